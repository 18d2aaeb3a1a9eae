//! Connections: to the controller, and to workers when `chat` talks to a model.

use std::{os::unix::fs::MetadataExt as _, path::PathBuf};

use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Address, Channel},
    trust::{Credentials, place},
    v1::{control_client::ControlClient, inference_client::InferenceClient, models_client::ModelsClient},
};
use rustix::process::geteuid;

use crate::{
    failure::{Failure, chain},
    up,
};

/// Whom a broken connection is blamed on.
pub(crate) const CONTROLLER: &str = "the controller";

/// Holds the key that operators show on a network.
const KEY: &str = "MUSTER_KEY";
/// Where operators reach a controller whose socket they may not or cannot use.
const OPERATORS: &str = "127.0.0.1:8100";

/// Where the controller is, and what it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    told: Option<Address>,
    key_file: Option<PathBuf>,
}

impl Controller {
    /// Nothing is dialled yet.
    pub(crate) const fn new(told: Option<Address>, key_file: Option<PathBuf>) -> Self {
        Self { told, key_file }
    }

    async fn channel(&self) -> Result<Channel, Failure> {
        let credentials = self.credentials()?;
        let mut address = Address::Tcp(OPERATORS.to_owned());
        let places = match &self.told {
            Some(told) => {
                address.clone_from(told);
                Vec::new()
            }
            None => sockets(),
        };
        for place in places {
            // Of a user who may not enter, or of a controller that is gone: there is another place.
            if let Ok(channel) = net::channel(&place, &credentials).await {
                return Ok(channel);
            }
        }
        let channel = net::channel(&address, &credentials).await;
        channel.map_err(|error| Failure::NoController {
            address,
            why: chain(&error),
        })
    }

    /// What is shown on a network.
    pub(crate) fn credentials(&self) -> Result<Credentials, Failure> {
        let wrong = |error: std::io::Error| Failure::Usage(format!("no key to show: {error}"));
        let key = match &self.key_file {
            Some(file) => std::fs::read_to_string(file).map_err(wrong)?,
            None => std::env::var(KEY).unwrap_or_default(),
        };
        match key.lines().next().map_or("", str::trim) {
            "" => Ok(Credentials::none()),
            key => Credentials::bearer(key).map_err(wrong),
        }
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> Result<ControlClient<Channel>, Failure> {
        Ok(ControlClient::new(self.channel().await?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Connects, for what changes the catalogue.
    pub(crate) async fn models(&self) -> Result<ModelsClient<Channel>, Failure> {
        Ok(ModelsClient::new(self.channel().await?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES))
    }
}

/// Sockets of controllers on this machine, nearest first: this user's `muster up`, this user's processes started one by one, a service's.
fn sockets() -> Vec<Address> {
    let own = up::run_dir().into_iter().chain([place::runtime_dir()]);
    // In /tmp anybody may have made one of that name.
    let own = own
        .map(|dir| dir.join(place::CONTROLLER_SOCKET))
        .filter(|path| std::fs::symlink_metadata(path).is_ok_and(|file| file.uid() == geteuid().as_raw()));
    let service = PathBuf::from("/run/muster").join(place::CONTROLLER_SOCKET);
    own.chain([service]).map(Address::Unix).collect()
}

/// Connects to a worker at the first of its addresses that answers.
pub(crate) async fn worker(
    worker_id: &str,
    addresses: &[String],
    credentials: &Credentials,
) -> Result<InferenceClient<Channel>, Failure> {
    let mut why = "it has no address".to_owned();
    for text in addresses {
        let attempt = match text.parse::<Address>() {
            Ok(address) => net::channel(&address, credentials)
                .await
                .map_err(|error| chain(&error)),
            Err(error) => Err(error.to_string()),
        };
        match attempt {
            Ok(channel) => {
                return Ok(InferenceClient::new(channel)
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES));
            }
            Err(error) => why = format!("{text}: {error}"),
        }
    }
    Err(Failure::Lost(format!("worker {worker_id}"), why))
}

/// The answer of a call to the controller, or why there is none.
pub(crate) fn answer<T>(result: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Failure> {
    result
        .map(tonic::Response::into_inner)
        .map_err(|status| Failure::from_status(CONTROLLER, &status))
}
