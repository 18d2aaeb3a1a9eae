//! Starts what is measured, each as real processes, and ends it again.

use std::{
    fs::File,
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// A started process tree with an HTTP address.
pub(crate) struct Stack {
    /// `HOST:PORT` of its HTTP.
    pub(crate) http: String,
    /// `HOST:PORT` of the controller; empty if there is none.
    pub(crate) grpc: String,
    /// From the start of the process to the first answer.
    pub(crate) ready_after: Duration,
    child: Child,
    _files: tempfile::TempDir,
}

impl Drop for Stack {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _sent = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ended = self.child.wait();
    }
}

/// A port nobody listens on now.
pub(crate) fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

impl Stack {
    /// `muster up` with this configuration.
    pub(crate) async fn muster(binaries: &Path, llama_server: &Path, config: &str) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let path = files.path().join("bench.toml");
        File::create(&path)?.write_all(config.as_bytes())?;
        let (http, grpc) = (free_address()?, free_address()?);
        let mut command = Command::new(binaries.join("muster"));
        command
            .args(["up", "--log-level", "warning", "--device", "cpu"])
            .args(["--http", &http, "--grpc", &grpc])
            .arg("--llama-server")
            .arg(llama_server)
            .arg("--config")
            .arg(&path)
            .arg("--state-dir")
            .arg(files.path().join("state"));
        Self::start(command, http, grpc, files, "/live").await
    }

    /// llama.cpp's own server.
    pub(crate) async fn llama_server(binary: &Path, model: &Path, flags: &[String]) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let http = free_address()?;
        let (host, port) = http.split_once(':').context("an address has a port")?;
        let mut command = Command::new(binary);
        command
            .arg("-m")
            .arg(model)
            .args(["--host", host, "--port", port])
            .args(flags);
        Self::start(command, http, String::new(), files, "/health").await
    }

    /// The direct mock: this program again.
    pub(crate) async fn mock() -> anyhow::Result<Self> {
        let http = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["mock", &http]);
        Self::start(command, http, String::new(), tempfile::tempdir()?, "/").await
    }

    async fn start(
        mut command: Command,
        http: String,
        grpc: String,
        files: tempfile::TempDir,
        probe: &str,
    ) -> anyhow::Result<Self> {
        let log = files.path().join("log");
        command
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let begun = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut stack = Self {
            http,
            grpc,
            ready_after: Duration::ZERO,
            child,
            _files: files,
        };
        stack.ready(probe, &log).await?;
        stack.ready_after = begun.elapsed();
        Ok(stack)
    }

    async fn ready(&mut self, probe: &str, log: &Path) -> anyhow::Result<()> {
        let url = format!("http://{}{probe}", self.http);
        let client = muster_tests::http::client();
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}:\n{}", std::fs::read_to_string(log)?);
            }
            match client.get(&url).send().await {
                Ok(answer) if answer.status() != 503 => return Ok(()),
                _ if begun.elapsed() > Duration::from_secs(60) => {
                    bail!("not ready after a minute:\n{}", std::fs::read_to_string(log)?)
                }
                _ => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

/// The directory of built binaries: beside this program.
pub(crate) fn binaries() -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe()?
        .parent()
        .context("a program has a directory")?
        .to_owned())
}
