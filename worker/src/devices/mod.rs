//! Devices: their description, their free memory, and how much of it an engine has.
//!
//! * [`cpu`]: the host's memory. [`sim`]: a declared device with a ledger. [`nvml`]: NVIDIA GPUs. [`vulkan`]: GPUs that the engine finds.
//!
//! Where a driver cannot tell what a process has of a device, what its engine says it took counts ([`Devices::tell`]).
//!
//! A sample tells which engine start or exit it includes (`lifecycle_seq`), since a load is judged only by a sample newer than the last one
//! (I4). So the count is raised first and the sample is taken after that.
//!
//! Architecture invariant: knows of an instance only its id, and no policy.

mod cpu;
mod nvml;
mod sim;
pub(crate) mod survey;
mod vulkan;

use std::{
    collections::HashMap,
    fmt, io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use muster_core::{Bytes, InstanceId};
use muster_proto::v1::{Device, DeviceSample, ProcessId, Reservation};

use crate::{config::DeviceChoice, procfs::Memory};

/// A sample of a device and when it was taken.
pub(crate) type Sample = (DeviceSample, Instant);

/// The driver of a kind of device.
trait Driver: Send + Sync + fmt::Debug {
    /// The device's description.
    fn device(&self) -> Device;

    /// The device's memory now. Blocks as long as the driver does.
    fn sample(&self) -> io::Result<Memory>;

    /// Memory of the device that a process tree uses; `None` if the driver cannot tell.
    fn used_by(&self, tree: &[ProcessId], instance: &InstanceId) -> Option<Bytes>;

    /// Records that an engine with this reservation will start.
    fn enter(&self, _instance: &InstanceId, _bytes: Bytes) -> io::Result<()> {
        Ok(())
    }

    /// Records that the engine has ended.
    fn leave(&self, _instance: &InstanceId) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Owned {
    id: String,
    driver: Box<dyn Driver>,
    /// Number of engine starts and exits so far.
    lifecycle: AtomicU64,
    /// Bytes that engines say they took. Held for a look or an entry.
    told: Mutex<HashMap<InstanceId, Bytes>>,
}

/// The devices of this worker. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Devices(Arc<Vec<Owned>>);

impl Devices {
    /// Finds the chosen devices. `sim_dir` has the ledgers that the workers of a host share; `engine` is the program that knows Vulkan's.
    ///
    /// # Errors
    /// A device that was named does not exist.
    pub(crate) fn open(choices: &[DeviceChoice], sim_dir: &Path, engine: &Path) -> io::Result<Self> {
        let mut owned = Vec::new();
        for choice in choices {
            let drivers: Vec<Box<dyn Driver>> = match choice {
                DeviceChoice::Cpu => vec![Box::new(cpu::Cpu::new()?)],
                DeviceChoice::Sim { name, capacity } => {
                    vec![Box::new(sim::Sim::new(sim_dir, name, *capacity)?)]
                }
                DeviceChoice::Cuda(which) => nvml::find(which)?,
                DeviceChoice::Vulkan(which) => vulkan::find(engine, which)?,
            };
            owned.extend(drivers.into_iter().map(|driver| Owned {
                id: driver.device().device_id,
                driver,
                lifecycle: AtomicU64::new(0),
                told: Mutex::default(),
            }));
        }
        Ok(Self(Arc::new(owned)))
    }

    /// The devices' descriptions.
    pub(crate) fn list(&self) -> Vec<Device> {
        self.0.iter().map(|owned| owned.driver.device()).collect()
    }

    fn get(&self, id: &str) -> Option<&Owned> {
        self.0.iter().find(|owned| owned.id == id)
    }

    /// The devices of a reservation in its order; or the first unknown id.
    pub(crate) fn resolve(&self, reservations: &[Reservation]) -> Result<Vec<Device>, String> {
        reservations
            .iter()
            .map(|reservation| {
                let owned = self.get(&reservation.device_id);
                owned
                    .map(|owned| owned.driver.device())
                    .ok_or_else(|| reservation.device_id.clone())
            })
            .collect()
    }

    /// Records that an engine with these reservations will start.
    pub(crate) fn enter(&self, instance: &InstanceId, reservations: &[Reservation]) -> io::Result<()> {
        for reservation in reservations {
            if let Some(owned) = self.get(&reservation.device_id) {
                owned.driver.enter(instance, Bytes::new(reservation.bytes))?;
            }
        }
        Ok(())
    }

    /// Records what an engine says it took of a device.
    pub(crate) fn tell(&self, instance: &InstanceId, took: &[Reservation]) {
        for took in took {
            if let Some(owned) = self.get(&took.device_id) {
                owned.told().insert(instance.clone(), Bytes::new(took.bytes));
            }
        }
    }

    /// Records that an engine has ended or never started. Returns samples taken after that.
    pub(crate) async fn ended(&self, instance: &InstanceId, reservations: &[Reservation]) -> Vec<Sample> {
        let (devices, instance, reservations) = (self.clone(), instance.clone(), reservations.to_vec());
        let look = move || {
            devices.leave(&instance, &reservations);
            devices.lifecycle(&reservations)
        };
        // An error means that a driver panicked; the next look at all devices tells more.
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// Records that an engine has started on these devices. Returns samples taken after that.
    pub(crate) async fn started(&self, reservations: &[Reservation]) -> Vec<Sample> {
        let (devices, reservations) = (self.clone(), reservations.to_vec());
        tokio::task::spawn_blocking(move || devices.lifecycle(&reservations))
            .await
            .unwrap_or_default()
    }

    /// Samples the devices of a loaded model, and the memory that its engine has on them.
    pub(crate) async fn loaded(
        &self,
        instance: &InstanceId,
        tree: &[ProcessId],
        reservations: &[Reservation],
    ) -> (Vec<Sample>, Vec<Reservation>) {
        let (devices, instance) = (self.clone(), instance.clone());
        let (tree, reservations) = (tree.to_vec(), reservations.to_vec());
        let look = move || {
            let own = reservations
                .iter()
                .filter_map(|reservation| devices.get(&reservation.device_id));
            let samples = own.filter_map(Owned::sample).collect();
            (samples, devices.observe(&instance, &tree, &reservations))
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    fn leave(&self, instance: &InstanceId, reservations: &[Reservation]) {
        for owned in reservations
            .iter()
            .filter_map(|reservation| self.get(&reservation.device_id))
        {
            owned.told().remove(instance);
            if let Err(error) = owned.driver.leave(instance) {
                tracing::error!(%instance, device = owned.id, %error, "the device's ledger was not updated");
            }
        }
    }

    fn lifecycle(&self, reservations: &[Reservation]) -> Vec<Sample> {
        let touched: Vec<_> = reservations
            .iter()
            .filter_map(|reservation| self.get(&reservation.device_id))
            .collect();
        for owned in &touched {
            owned.lifecycle.fetch_add(1, Ordering::Relaxed);
        }
        touched.into_iter().filter_map(Owned::sample).collect()
    }

    /// Samples all devices. Blocks for a short time.
    pub(crate) fn sample(&self) -> Vec<Sample> {
        self.0.iter().filter_map(Owned::sample).collect()
    }

    /// Memory that an engine's processes have on the devices they reserved. Blocks for a short time.
    pub(crate) fn observe(
        &self,
        instance: &InstanceId,
        tree: &[ProcessId],
        reservations: &[Reservation],
    ) -> Vec<Reservation> {
        reservations
            .iter()
            .filter_map(|reservation| {
                let owned = self.get(&reservation.device_id)?;
                let used = owned.driver.used_by(tree, instance);
                let used = used.or_else(|| owned.told().get(instance).copied())?;
                Some(Reservation {
                    device_id: reservation.device_id.clone(),
                    bytes: used.get(),
                })
            })
            .collect()
    }
}

impl Owned {
    fn told(&self) -> MutexGuard<'_, HashMap<InstanceId, Bytes>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free memory, by a driver that may not know what our engines have.
    fn free(&self, memory: &Memory) -> Bytes {
        let told: u64 = self.told().values().map(|bytes| bytes.get()).sum();
        let left = memory.capacity.get().saturating_sub(told);
        Bytes::new(left.min(memory.free.get()))
    }

    fn sample(&self) -> Option<Sample> {
        // Read first: the sample may or may not include a start or exit that happens meanwhile.
        let lifecycle_seq = self.lifecycle.load(Ordering::Relaxed);
        match self.driver.sample() {
            Ok(memory) => {
                let sample = DeviceSample {
                    device_id: self.id.clone(),
                    capacity_bytes: memory.capacity.get(),
                    free_bytes: self.free(&memory).get(),
                    age: None,
                    lifecycle_seq,
                };
                Some((sample, Instant::now()))
            }
            Err(error) => {
                tracing::warn!(device = self.id, %error, "the device's memory could not be read");
                None
            }
        }
    }
}
