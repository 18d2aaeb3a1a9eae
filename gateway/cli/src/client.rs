//! Connections: to the controller, and to workers when `chat` talks to a model.

use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Address},
    v1::{control_client::ControlClient, inference_client::InferenceClient, models_client::ModelsClient},
};
use tonic::transport::Channel;

use crate::failure::{Failure, chain};

/// Whom a broken connection is blamed on.
pub(crate) const CONTROLLER: &str = "the controller";

/// Where the controller is.
#[derive(Clone, Debug)]
pub(crate) struct Controller(Address);

impl Controller {
    /// Nothing is dialled yet.
    pub(crate) const fn new(address: Address) -> Self {
        Self(address)
    }

    async fn channel(&self) -> Result<Channel, Failure> {
        let channel = net::channel(&self.0).await;
        channel.map_err(|error| Failure::NoController {
            address: self.0.clone(),
            why: chain(&error),
        })
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

/// Connects to a worker at the first of its addresses that answers.
pub(crate) async fn worker(
    worker_id: &str,
    addresses: &[String],
) -> Result<InferenceClient<Channel>, Failure> {
    let mut why = "it has no address".to_owned();
    for text in addresses {
        let attempt = match text.parse::<Address>() {
            Ok(address) => net::channel(&address).await.map_err(|error| chain(&error)),
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
