//! Memory that engines were measured to use, by model settings, way to host them and kind of device. Kept on disk.
//!
//! The largest figure of the last runs counts: engines grow while they work, and a reservation that is too small is worse than one that is
//! too large. But a single peak must not keep a model out for good. If there are too many entries, the oldest is dropped.

use std::collections::BTreeMap;

use muster_core::{Bytes, DeviceKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Measured memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    known: BTreeMap<String, Seen>,
    /// Counts the measurements.
    clock: u64,
}

/// The measured memory of engines with the same settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    /// Value of [`Observed::clock`] at the last measurement.
    at: u64,
    /// Bytes by kind of device: the figure that counts.
    bytes: BTreeMap<String, u64>,
    /// The largest figure of each of the last runs by kind of device, the newest last. Files of earlier versions have none.
    #[serde(default)]
    runs: BTreeMap<String, Vec<Run>>,
}

/// The most that one instance used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    instance: String,
    bytes: u64,
}

/// How a model was hosted; its memory depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// Number of layers on the GPU, if it was set.
    pub(crate) layers: Option<i32>,
    /// Number of devices of a kind that shared it evenly; figures are the largest of them.
    pub(crate) devices: usize,
}

impl Way {
    /// On one device of a kind.
    pub(crate) const fn on_one(layers: Option<i32>) -> Self {
        Self { layers, devices: 1 }
    }
}

/// Number of runs that count.
const RUNS: usize = 8;
/// A change by less than 1/16 of the known figure is ignored.
const WORTH_TELLING: u64 = 16;
/// Number of settings that are remembered.
const LIMIT: usize = 4096;

impl Observed {
    /// Records what an instance hosted in this way uses on a device. Returns whether estimates change.
    pub(crate) fn learn(
        &mut self,
        instance: &str,
        spec_hash: &str,
        way: Way,
        kind: DeviceKind,
        bytes: Bytes,
    ) -> bool {
        if bytes == Bytes::ZERO {
            return false;
        }
        self.clock += 1;
        let seen = self.known.entry(key(spec_hash, way)).or_default();
        seen.at = self.clock;
        let changed = seen.learn(instance, kind.name(), bytes.get());
        self.forget();
        changed
    }

    /// What engines with these settings, hosted in this way, used on a device of `kind`.
    pub(crate) fn get(&self, spec_hash: &str, way: Way, kind: DeviceKind) -> Option<Bytes> {
        let seen = self.known.get(&key(spec_hash, way))?;
        seen.bytes.get(kind.name()).copied().map(Bytes::new)
    }

    fn forget(&mut self) {
        if self.known.len() <= LIMIT {
            return;
        }
        let oldest = self.known.iter().min_by_key(|(_, seen)| seen.at);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.known.remove(&key);
        }
    }
}

impl Seen {
    fn learn(&mut self, instance: &str, kind: &str, bytes: u64) -> bool {
        let known = self.bytes.entry(kind.to_owned()).or_default();
        let runs = self.runs.entry(kind.to_owned()).or_insert_with(|| {
            // A figure of an earlier version's file counts as one run.
            let instance = String::new();
            Vec::from_iter((*known > 0).then_some(Run {
                instance,
                bytes: *known,
            }))
        });
        match runs.iter_mut().find(|run| run.instance == instance) {
            Some(run) => run.bytes = run.bytes.max(bytes),
            None => {
                let instance = instance.to_owned();
                runs.push(Run { instance, bytes });
            }
        }
        runs.drain(..runs.len().saturating_sub(RUNS));
        let most = runs.iter().map(|run| run.bytes).max().unwrap_or(bytes);
        let changed = most.abs_diff(*known) > *known / WORTH_TELLING;
        if changed {
            *known = most;
        }
        changed
    }
}

fn key(spec_hash: &str, way: Way) -> String {
    let mut key = spec_hash.to_owned();
    if let Some(layers) = way.layers {
        key.push_str(&format!("/{layers}"));
    }
    if way.devices > 1 {
        key.push_str(&format!("*{}", way.devices));
    }
    key
}

impl Serialize for Observed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.known.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Observed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let known: BTreeMap<String, Seen> = Deserialize::deserialize(deserializer)?;
        let clock = known.values().map(|seen| seen.at).max().unwrap_or(0);
        Ok(Self { known, clock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(observed: &mut Observed, mib: u64) -> bool {
        learned_by(observed, "i", mib)
    }

    fn learned_by(observed: &mut Observed, instance: &str, mib: u64) -> bool {
        let way = Way::on_one(None);
        observed.learn(instance, "h", way, DeviceKind::Cpu, Bytes::mib(mib))
    }

    fn known(observed: &Observed) -> Option<Bytes> {
        observed.get("h", Way::on_one(None), DeviceKind::Cpu)
    }

    /// Regression: a single peak of an engine kept its model out for good.
    #[test]
    fn what_one_run_took_is_forgotten_after_others_took_less() {
        let mut observed = Observed::default();
        learned_by(&mut observed, "spike", 90_000);
        for run in 1..RUNS {
            assert!(!learned_by(&mut observed, &run.to_string(), 100));
            assert_eq!(known(&observed), Some(Bytes::mib(90_000)));
        }
        assert!(learned_by(&mut observed, "last", 100), "that is worth telling");
        assert_eq!(known(&observed), Some(Bytes::mib(100)));
        assert!(!learned_by(&mut observed, "last", 101));
        let runs = &observed.known["h"].runs["cpu"];
        assert_eq!(runs.len(), RUNS, "an instance that is seen again is no other run");
    }

    #[test]
    fn a_file_of_before_counts_as_one_run() {
        let text = r#"{"h":{"at":1,"bytes":{"cpu":104857600}}}"#;
        let mut observed: Observed = serde_json::from_str(text).unwrap();
        assert!(!learned_by(&mut observed, "i", 50));
        assert_eq!(known(&observed), Some(Bytes::mib(100)));
        for run in 1..RUNS {
            learned_by(&mut observed, &run.to_string(), 50);
        }
        assert_eq!(known(&observed), Some(Bytes::mib(50)));
    }

    #[test]
    fn only_growth_is_learned_of_one_run() {
        let mut observed = Observed::default();
        assert!(!learned(&mut observed, 0));
        assert!(learned(&mut observed, 100));
        assert!(!learned(&mut observed, 101));
        assert!(!learned(&mut observed, 50));
        assert_eq!(
            observed.get("h", Way::on_one(None), DeviceKind::Cpu),
            Some(Bytes::mib(100))
        );
        assert_eq!(observed.get("h", Way::on_one(None), DeviceKind::Gpu), None);
        assert!(learned(&mut observed, 120));
        let text = serde_json::to_string(&observed).unwrap();
        assert_eq!(serde_json::from_str::<Observed>(&text).unwrap(), observed);
    }

    #[test]
    fn another_split_is_another_figure() {
        let mut observed = Observed::default();
        observed.learn("i", "h", Way::on_one(Some(12)), DeviceKind::Gpu, Bytes::mib(100));
        assert_eq!(observed.get("h", Way::on_one(None), DeviceKind::Gpu), None);
        assert_eq!(
            observed.get("h", Way::on_one(Some(12)), DeviceKind::Gpu),
            Some(Bytes::mib(100))
        );
        let shared = Way {
            layers: None,
            devices: 2,
        };
        observed.learn("i", "h", shared, DeviceKind::Gpu, Bytes::mib(50));
        assert_eq!(observed.get("h", Way::on_one(None), DeviceKind::Gpu), None);
        assert_eq!(observed.get("h", shared, DeviceKind::Gpu), Some(Bytes::mib(50)));
    }

    #[test]
    fn what_was_learned_longest_ago_is_forgotten() {
        let mut observed = Observed::default();
        for number in 0..=LIMIT {
            observed.learn(
                "i",
                &number.to_string(),
                Way::on_one(None),
                DeviceKind::Cpu,
                Bytes::mib(1),
            );
            // Reported again and again.
            observed.learn("i", "0", Way::on_one(None), DeviceKind::Cpu, Bytes::mib(1));
        }
        assert_eq!(observed.known.len(), LIMIT);
        assert!(observed.get("0", Way::on_one(None), DeviceKind::Cpu).is_some());
        assert!(observed.get("1", Way::on_one(None), DeviceKind::Cpu).is_none());
    }

    #[test]
    fn a_file_of_another_version_is_not_guessed_at() {
        for text in [r#"{"version":2,"memory":{}}"#, r#"{"h":{"cpu":1}}"#, "[]"] {
            assert!(serde_json::from_str::<Observed>(text).is_err(), "{text}");
        }
    }
}
