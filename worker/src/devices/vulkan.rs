//! GPUs that the engine finds through Vulkan: of any maker, and Mesa's software driver where an operator names it.
//!
//! ```text
//!   muster-llama --list-devices --every 1 ──a line per second──► the reader ──► the newest line ──► samples
//! ```
//!
//! Drivers of GPUs may crash or hang whoever loads them: they are loaded by that process only, and a sample is no older than [`STALE`].

use std::{
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::Driver;
use crate::{
    config::GpuChoice,
    engine::gpus::{Found, Listed, VULKAN, engine_name, listing},
    procfs::Memory,
};
use muster_core::{Bytes, InstanceId};
use muster_proto::v1::{Device, DeviceKind, ProcessId};

/// Time for the first answer: drivers are loaded.
const FIRST: Duration = Duration::from_secs(30);
/// Seconds between two looks at memory.
const EVERY: &str = "1";
/// Age at which an answer says nothing any more.
const STALE: Duration = Duration::from_secs(10);
/// Pause before the process is started again.
const AGAIN: Duration = Duration::from_secs(5);

/// What is known now.
#[derive(Debug, Default)]
struct News {
    listed: Option<(Listed, Instant)>,
    failed: Option<String>,
    /// The other end of its input, which ends the process with this one.
    _input: Option<ChildStdin>,
}

/// The process that looks, shared by all devices.
#[derive(Debug, Default)]
struct Looker {
    news: Mutex<News>,
    fresh: Condvar,
}

impl Looker {
    fn news(&self) -> MutexGuard<'_, News> {
        // Held for a look or an entry.
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(engine: PathBuf) -> io::Result<Arc<Self>> {
        let looker = Arc::new(Self::default());
        let watched = Arc::clone(&looker);
        thread::Builder::new().name("vulkan".to_owned()).spawn(move || {
            loop {
                let failed = match watched.watch(&engine) {
                    Ok(()) => format!("{} ended", engine.display()),
                    Err(error) => format!("{}: {error}", engine.display()),
                };
                tracing::warn!(error = failed, "nobody looks at the GPUs");
                watched.news().failed = Some(failed);
                watched.fresh.notify_all();
                thread::park_timeout(AGAIN);
            }
        })?;
        Ok(looker)
    }

    /// Reads what the process says until it ends.
    fn watch(&self, engine: &Path) -> io::Result<()> {
        let mut command = listing(engine);
        let mut child: Child = command
            .args(["--every", EVERY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        self.news()._input = child.stdin.take();
        let read = child
            .stdout
            .take()
            .map_or(Ok(()), |out| self.read(BufReader::new(out)));
        drop(child.kill());
        child.wait()?;
        read
    }

    fn read(&self, lines: impl io::BufRead) -> io::Result<()> {
        for line in lines.lines() {
            let listed = serde_json::from_str(&line?).map_err(io::Error::other)?;
            let mut news = self.news();
            news.listed = Some((listed, Instant::now()));
            news.failed = None;
            self.fresh.notify_all();
        }
        Ok(())
    }

    /// The first answer.
    fn first(&self) -> io::Result<Listed> {
        let open = |news: &mut News| news.listed.is_none() && news.failed.is_none();
        let (news, _) = self
            .fresh
            .wait_timeout_while(self.news(), FIRST, open)
            .unwrap_or_else(PoisonError::into_inner);
        match (&news.listed, &news.failed) {
            (Some((listed, _)), _) => Ok(listed.clone()),
            (None, Some(failed)) => Err(io::Error::other(failed.clone())),
            (None, None) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// A GPU.
#[derive(Debug)]
struct Gpu {
    looker: Arc<Looker>,
    name: String,
    device: Device,
}

/// Finds the chosen GPUs.
///
/// # Errors
/// A named GPU does not exist, or the engine was not built for Vulkan; `all` may find none.
pub(super) fn find(engine: &Path, choice: &GpuChoice) -> io::Result<Vec<Box<dyn Driver>>> {
    let looker = Looker::start(engine.to_owned())?;
    let listed = looker.first()?;
    let found = chosen(&listed, choice)?;
    let gpu = |device: Device| {
        let name = engine_name(&device);
        let looker = Arc::clone(&looker);
        Box::new(Gpu { looker, name, device }) as Box<dyn Driver>
    };
    Ok(found.into_iter().map(gpu).collect())
}

fn chosen(listed: &Listed, choice: &GpuChoice) -> io::Result<Vec<Device>> {
    if !listed.has(VULKAN) {
        return Err(io::Error::other("this muster-llama was built without Vulkan"));
    }
    let all = described(listed);
    let named = |device: &&Device| match choice {
        GpuChoice::All => true,
        GpuChoice::Index(index) => device.index == Some(*index),
        GpuChoice::Id(id) => device.device_id == *id,
    };
    let found: Vec<Device> = all.iter().filter(named).cloned().collect();
    if found.is_empty() && *choice != GpuChoice::All {
        let ids: Vec<&str> = all.iter().map(|device| device.device_id.as_str()).collect();
        let message = format!(
            "there is no such GPU; through Vulkan there are: {}",
            ids.join(", ")
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(found)
}

/// The GPUs that an engine finds through Vulkan.
pub(super) fn described(listed: &Listed) -> Vec<Device> {
    let all = listed.devices.iter().filter(|found| found.is_of(VULKAN));
    all.enumerate()
        .map(|(index, found)| describe(index, found))
        .collect()
}

fn describe(index: usize, found: &Found) -> Device {
    let device_id = match found.id.as_str() {
        "" => format!("{VULKAN}:{index}"),
        id => id.to_owned(),
    };
    Device {
        device_id,
        kind: DeviceKind::Gpu.into(),
        name: found.description.clone(),
        capacity_bytes: found.total_bytes,
        index: u32::try_from(index).ok(),
        api: VULKAN.to_owned(),
        ..Device::default()
    }
}

impl Driver for Gpu {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn sample(&self) -> io::Result<Memory> {
        let news = self.looker.news();
        let fresh = news.listed.as_ref().filter(|(_, at)| at.elapsed() < STALE);
        let found = fresh.and_then(|(listed, _)| listed.devices.iter().find(|found| found.name == self.name));
        let Some(found) = found else {
            let why = news
                .failed
                .clone()
                .unwrap_or_else(|| "the GPU is gone".to_owned());
            return Err(io::Error::other(why));
        };
        Ok(Memory {
            capacity: Bytes::new(found.total_bytes),
            free: Bytes::new(found.free_bytes),
        })
    }

    /// Vulkan does not tell one process of another.
    fn used_by(&self, _tree: &[ProcessId], _instance: &InstanceId) -> Option<Bytes> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"backends":["CPU","Vulkan"],"devices":[
        {"name":"Vulkan0","description":"A","backend":"Vulkan","id":"0000:01:00.0","integrated":false,"free_bytes":5,"total_bytes":8},
        {"name":"CUDA0","description":"A","backend":"CUDA","id":"0000:01:00.0","integrated":false,"free_bytes":5,"total_bytes":8},
        {"name":"Vulkan1","description":"llvmpipe","backend":"Vulkan","id":"","integrated":false,"free_bytes":2,"total_bytes":2}]}"#;

    #[test]
    fn gpus_are_named_by_their_address_or_their_place() {
        let listed: Listed = serde_json::from_str(LINE).unwrap();
        let ids = |choice| -> Vec<String> {
            let found = chosen(&listed, &choice).unwrap();
            found.into_iter().map(|device| device.device_id).collect()
        };
        assert_eq!(ids(GpuChoice::All), ["0000:01:00.0", "vulkan:1"]);
        assert_eq!(ids(GpuChoice::Index(1)), ["vulkan:1"]);
        assert_eq!(ids(GpuChoice::Id("0000:01:00.0".into())), ["0000:01:00.0"]);
        let error = chosen(&listed, &GpuChoice::Index(2)).unwrap_err();
        assert!(error.to_string().contains("vulkan:1"), "{error}");
        let second = chosen(&listed, &GpuChoice::Index(1)).unwrap().remove(0);
        assert_eq!(engine_name(&second), "Vulkan1");
        let plain = Listed {
            backends: vec!["CPU".into()],
            ..Listed::default()
        };
        assert!(
            chosen(&plain, &GpuChoice::All)
                .unwrap_err()
                .to_string()
                .contains("without Vulkan")
        );
    }

    #[test]
    fn the_newest_line_is_the_sample() {
        let looker = Arc::new(Looker::default());
        let line = LINE.replace('\n', "");
        let later = line.replace("\"free_bytes\":2", "\"free_bytes\":1");
        looker.read(format!("{line}\n{later}\n").as_bytes()).unwrap();
        let listed = looker.first().unwrap();
        let device = chosen(&listed, &GpuChoice::Index(1)).unwrap().remove(0);
        let gpu = Gpu {
            looker: Arc::clone(&looker),
            name: engine_name(&device),
            device,
        };
        assert_eq!(gpu.sample().unwrap().free, Bytes::new(1));
        assert!(looker.read("nonsense\n".as_bytes()).is_err());
        if let Some((_, at)) = &mut looker.news().listed {
            *at -= STALE;
        }
        assert!(gpu.sample().is_err());
    }
}
