//! Connections to the controller, and for `chat` to workers.

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

/// Name of the controller in messages about a broken connection.
pub(crate) const CONTROLLER: &str = "the controller";

/// Environment variable with the key for a controller on a network.
const KEY: &str = "MUSTER_KEY";
/// Address for operators, used if no socket can be used.
const OPERATORS: &str = "127.0.0.1:8100";

/// Address of the controller, and the key file.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    told: Option<Address>,
    key_file: Option<PathBuf>,
}

impl Controller {
    /// Makes a client; it connects later.
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
            // A socket of another user, or of a controller that is gone: try the next place.
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

    /// The key to send over a network.
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

    /// Connects to the Control service.
    pub(crate) async fn connect(&self) -> Result<ControlClient<Channel>, Failure> {
        Ok(ControlClient::new(self.channel().await?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Connects to the Models service, for changes of the catalogue.
    pub(crate) async fn models(&self) -> Result<ModelsClient<Channel>, Failure> {
        Ok(ModelsClient::new(self.channel().await?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES))
    }
}

/// Sockets of controllers on this machine, in the order to try: this user's `muster up`, this user's single processes, a system service.
fn sockets() -> Vec<Address> {
    let own = up::run_dir().into_iter().chain([place::runtime_dir()]);
    // In /tmp anybody may have created a socket with that name.
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

/// The answer of a call to the controller, or its failure.
pub(crate) fn answer<T>(result: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Failure> {
    result
        .map(tonic::Response::into_inner)
        .map_err(|status| Failure::from_status(CONTROLLER, &status))
}
