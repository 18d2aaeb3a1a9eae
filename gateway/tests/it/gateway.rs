//! The real binary as a child process, and clients of it.

use std::process::Stdio;

use muster_proto::{net::Address, v1};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{
    net::UnixDatagram,
    process::{Child, Command},
};

use crate::{
    controller::{Controller, Said},
    within,
};

/// A running gateway; killed when dropped.
pub(crate) struct Gateway {
    pub(crate) url: String,
    child: Child,
    pub(crate) client: Client,
}

impl Gateway {
    pub(crate) async fn start(controller: &Address) -> Self {
        Self::start_at("127.0.0.1:0", controller).await
    }

    pub(crate) async fn start_at(listen: &str, controller: &Address) -> Self {
        Self::start_with(listen, controller, &[]).await
    }

    pub(crate) async fn start_with(listen: &str, controller: &Address, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let ready = UnixDatagram::bind(&path).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_muster-gateway"))
            .args(["--listen", listen, "--io-threads", "2"])
            .env("MUSTER_GATEWAY_MAX_BODY_BYTES", "100000")
            .args(["--controller", &controller.to_string(), "--drain-seconds", "10"])
            .args(more)
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut buffer = [0; 4096];
        let url = loop {
            let size = within(ready.recv(&mut buffer)).await.unwrap();
            let text = std::str::from_utf8(&buffer[..size]).unwrap();
            if let Some(address) = text.lines().find_map(|line| line.strip_prefix("MUSTER_ADDRESS=")) {
                break format!("http://{address}");
            }
        };
        // reqwest chooses none by itself; only the first counts.
        rustls::crypto::ring::default_provider().install_default().ok();
        Self {
            url,
            child,
            client: Client::builder().no_proxy().build().unwrap(),
        }
    }

    /// With a controller that knows `routes` of model `m`, and models `m` and `cold`.
    pub(crate) async fn with(routes: Vec<v1::Route>) -> (Self, Controller) {
        let models = vec![
            model("cold"),
            v1::ModelSummary {
                status: v1::ModelStatus::Loaded.into(),
                ..model("m")
            },
        ];
        let controller = Controller::start(Said {
            epoch: 1,
            routes,
            models,
            ..Said::default()
        })
        .await;
        let gateway = Self::start(&controller.address).await;
        (gateway, controller)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        within(self.client.post(format!("{}{path}", self.url)).json(body).send())
            .await
            .unwrap()
    }

    pub(crate) async fn chat(&self, body: Value) -> Response {
        self.post("/v1/chat/completions", &chat(body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let response = within(self.client.get(format!("{}{path}", self.url)).send())
            .await
            .unwrap();
        read(response).await
    }

    /// The most memory it ever had, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id().unwrap());
        let status = std::fs::read_to_string(path).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let kib: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kib * 1024
    }

    /// Asks for an orderly end.
    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(mut self) -> bool {
        within(self.child.wait()).await.unwrap().success()
    }
}

/// A model that is here but not loaded.
pub(crate) fn model(id: &str) -> v1::ModelSummary {
    v1::ModelSummary {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: v1::ModelStatus::Unloaded.into(),
        recipe: "llamacpp".into(),
        checkpoint: format!("/models/{id}.gguf"),
        created: Some(prost_types::Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        }),
        size_bytes: 382_000_000,
        downloaded: true,
        queue_limit: 100,
        ..v1::ModelSummary::default()
    }
}

/// A chat request to model `m` with further fields.
pub(crate) fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let Value::Object(fields) = fields else {
        panic!("want an object")
    };
    for (key, value) in fields {
        body[key] = value;
    }
    body
}

pub(crate) async fn read(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    (status, within(response.json()).await.unwrap())
}

/// The data of a stream's events, in order; JSON where it is.
pub(crate) async fn events(response: Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = within(response.text()).await.unwrap();
    assert!(text.ends_with("\n\n"), "cut: {text:?}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into()))
        .collect()
}

/// The text of a chat stream's first choice.
pub(crate) fn content(events: &[Value]) -> String {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect()
}
