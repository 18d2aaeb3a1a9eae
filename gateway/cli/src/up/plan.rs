//! Makes the command lines of the child processes from the flags.

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use muster_proto::{net::Address, trust::place};
use serde::Deserialize;
use serde_json::Deserializer;

use super::{UpError, catalogue, directories::Directories, ports, process::Spec};
use crate::args::UpOptions;

const CONTROLLER: &str = "muster-controller";
const WORKER: &str = "muster-worker";
const GATEWAY: &str = "muster-gateway";

/// Everything that is decided before the first process starts.
#[derive(Debug)]
pub(crate) struct Plan {
    options: UpOptions,
    directories: Directories,
    configs: Vec<PathBuf>,
    devices: Vec<String>,
    binaries: PathBuf,
    width: usize,
}

impl Plan {
    /// Checks what can be checked before the start.
    pub(crate) fn new(options: UpOptions) -> Result<Self, UpError> {
        let binaries = binaries()?;
        let preset = options.models_preset.iter().map(|path| ("--models-preset", path));
        let configs = options.configs.iter().map(|path| ("--config", path));
        for (flag, path) in preset.clone().chain(configs) {
            let wrong = |why: String| UpError::NoFile {
                flag,
                path: path.clone(),
                why,
            };
            // The controller checks the contents.
            std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
            if flag == "--models-preset" && path.extension().is_none_or(|ending| ending != "ini") {
                return Err(wrong("its name must end in .ini".to_owned()));
            }
        }
        let directories = Directories::open(options.state_dir.clone())?;
        let mut configs: Vec<PathBuf> = preset.map(|(_, path)| path.clone()).collect();
        configs.extend(options.configs.iter().cloned());
        configs.extend(catalogue::generate(directories.run(), &options.models)?);
        ports::check("the gateway", "--http", &options.http)?;
        ports::check("the controller", "--grpc", &options.grpc)?;
        let devices = if options.devices.is_empty() {
            found(&binaries)
        } else {
            options.devices.clone()
        };
        let width = devices
            .iter()
            .map(|device| worker_name(device).len())
            .chain(["controller".len()])
            .max()
            .unwrap_or(0);
        Ok(Self {
            options,
            directories,
            configs,
            devices,
            binaries,
            width,
        })
    }

    /// The controller's command line. After a restart it listens on the same port for operators.
    pub(crate) fn controller(&self) -> Spec {
        let mut args = self.common();
        for path in &self.configs {
            args.extend(["--config".into(), path.into()]);
        }
        args.extend(["--state-dir".into(), self.directories.state().into()]);
        let limits = self.options.limits();
        if !limits.is_empty() {
            args.push("--max-loaded-models".into());
            args.extend(limits.iter().map(|limit| limit.to_string().into()));
        }
        for folder in &self.options.models_dir {
            args.extend(["--models-dir".into(), folder.into()]);
        }
        flag(
            &mut args,
            "--ctx-size",
            self.options.ctx_size.map(|size| size.to_string()),
        );
        flag(&mut args, "--llamacpp", self.options.llamacpp.clone());
        // Joined to its flag, because its value begins with a dash.
        let llamacpp_args = self.options.llamacpp_args.as_ref();
        args.extend(llamacpp_args.map(|words| format!("--llamacpp-args={words}").into()));
        args.extend(["--listen".into(), self.socket().to_string().into()]);
        let grpc = self.options.grpc.clone();
        Spec {
            listen_flag: "--operators",
            secrets: self.secrets(),
            ..self.spec("controller", CONTROLLER, args, grpc, true)
        }
    }

    /// The controller's address for the other processes.
    pub(crate) fn socket(&self) -> Address {
        Address::Unix(self.directories.run().join(place::CONTROLLER_SOCKET))
    }

    /// Whether clients need an API key.
    pub(crate) fn needs_key(&self) -> bool {
        let keys = &self.options.keys;
        !keys.api_key.is_empty() || !keys.api_key_file.is_empty()
    }

    /// Environment variables that only processes get that check keys.
    fn secrets(&self) -> Vec<(&'static str, OsString)> {
        let set = |(_, value): &(_, OsString)| !value.is_empty();
        self.options.keys.environment().into_iter().filter(set).collect()
    }

    /// The command lines of the workers: one per `--device`, which has all devices that it names (`A+B`). Gateways learn a worker's socket
    /// from the controller.
    pub(crate) fn workers(&self, controller: &Address) -> Vec<Spec> {
        self.devices
            .iter()
            .map(|device| {
                let name = worker_name(device);
                let mut args = self.common();
                args.extend(["--controller".into(), controller.to_string().into()]);
                for device in device.split('+') {
                    args.extend(["--device".into(), device.into()]);
                }
                args.extend(["--name".into(), name.clone().into()]);
                args.extend(["--drain-timeout".into(), self.drain_seconds()]);
                // The workers of a host share it.
                args.extend(["--run-dir".into(), self.directories.run().into()]);
                if let Some(path) = &self.options.llama_server {
                    args.extend(["--llama-server".into(), path.into()]);
                }
                let socket = self.directories.run().join(format!("{name}.sock"));
                self.spec(&name, WORKER, args, Address::Unix(socket), false)
            })
            .collect()
    }

    /// The gateway's command line. After a restart it listens on the same port.
    pub(crate) fn gateway(&self, controller: &Address) -> Spec {
        let mut args = self.common();
        args.extend(["--controller".into(), controller.to_string().into()]);
        args.extend(["--drain-seconds".into(), self.drain_seconds()]);
        for (name, values) in [
            ("--allowed-host", &self.options.allowed_host),
            ("--allowed-media-host", &self.options.allowed_media_host),
        ] {
            args.extend(values.iter().flat_map(|value| [name.into(), value.into()]));
        }
        flag(&mut args, "--share-prefixes", self.options.share_prefixes.clone());
        Spec {
            secrets: self.secrets(),
            ..self.spec("gateway", GATEWAY, args, self.options.http.clone(), true)
        }
    }

    fn drain_seconds(&self) -> OsString {
        self.options.drain_timeout.to_string().into()
    }

    fn common(&self) -> Vec<OsString> {
        vec!["--log-level".into(), self.options.log_level.as_str().into()]
    }

    fn spec(&self, name: &str, binary: &str, args: Vec<OsString>, listen: Address, keeps: bool) -> Spec {
        Spec {
            name: name.to_owned(),
            program: self.binaries.join(binary),
            args,
            listen_flag: "--listen",
            listen,
            secrets: Vec::new(),
            keeps_address: keeps,
            watchdog: self.options.watchdog(),
            notify: self.directories.run().join(format!("{name}.ready")),
            width: self.width,
        }
    }
}

fn flag(args: &mut Vec<OsString>, name: &str, value: Option<String>) {
    if let Some(value) = value {
        args.extend([name.into(), value.into()]);
    }
}

/// A GPU, as `muster-worker devices` prints it.
#[derive(Debug, Deserialize)]
struct Listed {
    device: String,
    name: String,
    why_not: Option<String>,
}

/// The devices of this machine: the GPUs that an engine here can use, and the processor. What is left out is said.
fn found(binaries: &Path) -> Vec<String> {
    let mut command = Command::new(binaries.join(WORKER));
    command
        .arg("devices")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // Without anybody who reads it, nothing is said.
    let mut say = |line: String| drop(writeln!(std::io::stderr(), "{line}"));
    match command.output() {
        Ok(output) => usable(&output.stdout, &mut say),
        Err(error) => {
            say(format!(
                "no GPU is used: {} devices: {error}",
                binaries.join(WORKER).display()
            ));
            usable(b"", &mut |_| {})
        }
    }
}

fn usable(lines: &[u8], say: &mut dyn FnMut(String)) -> Vec<String> {
    let mut devices = Vec::new();
    for listed in Deserializer::from_slice(lines)
        .into_iter::<Listed>()
        .map_while(Result::ok)
    {
        match listed.why_not {
            None => devices.push(listed.device),
            Some(why) => say(format!("{} ({}) is left out: {why}", listed.name, listed.device)),
        }
    }
    devices.push("cpu".to_owned());
    devices
}

/// The name of a worker, the same after restarts. It comes from the device and not from the host name, which changes at each start of a
/// container.
fn worker_name(devices: &str) -> String {
    let name = |device: &str| {
        let mut parts = device.splitn(3, ':');
        match (parts.next(), parts.next()) {
            (Some("sim"), Some(name)) => format!("sim-{name}"),
            _ => device.to_owned(),
        }
    };
    let names: Vec<String> = devices.split('+').map(name).collect();
    let safe = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    format!("worker-{}", names.join("-").chars().map(safe).collect::<String>())
}

fn binaries() -> Result<PathBuf, UpError> {
    let own = std::env::current_exe().map_err(super::directories::at(Path::new("/proc/self/exe")))?;
    let directory = own.parent().map(Path::to_owned).unwrap_or_default();
    for name in [CONTROLLER, WORKER, GATEWAY] {
        if !directory.join(name).is_file() {
            return Err(UpError::NoBinary { name, directory });
        }
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_used_that_an_engine_can_use_and_of_others_it_is_said_why_not() {
        let lines = br#"{"device":"cuda:GPU-1","name":"A","capacity_bytes":1,"why_not":"built without CUDA"}
            {"device":"vulkan:0","name":"B","capacity_bytes":1}"#;
        let mut said = Vec::new();
        assert_eq!(usable(lines, &mut |line| said.push(line)), ["vulkan:0", "cpu"]);
        assert_eq!(said, ["A (cuda:GPU-1) is left out: built without CUDA"]);
        assert_eq!(usable(b"nonsense", &mut |_| ()), ["cpu"]);
    }

    #[test]
    fn workers_are_named_after_their_devices() {
        assert_eq!(worker_name("cpu"), "worker-cpu");
        assert_eq!(worker_name("sim:a:8GiB"), "worker-sim-a");
        assert_eq!(worker_name("GPU-12:34"), "worker-GPU-12-34");
        assert_eq!(worker_name("sim:a:8GiB+sim:b:8GiB"), "worker-sim-a-sim-b");
    }
}
