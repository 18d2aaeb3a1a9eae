//! The connection of a session: connects to the worker and reads ticks until the connection breaks.

use std::sync::Arc;

use muster_core::WorkerAddress;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Channel},
    trust::Credentials,
    v1::{inference_client::InferenceClient, session_message},
};
use tonic::Status;

use super::{Outbox, Session};

/// Closes the session when its task ends for whatever reason: a session without a task must not look open.
struct Closing(Arc<Session>);

impl Drop for Closing {
    fn drop(&mut self) {
        let lost = self.0.close();
        if lost > 0 {
            tracing::error!(
                address = %self.0.address,
                lost,
                "a worker session's task was lost"
            );
        }
    }
}

/// Runs a session to its end. The task ends with the connection or the runtime; in both cases the session's requests see that they are
/// lost.
pub(super) async fn run(session: Arc<Session>, credentials: Credentials) {
    let _closing = Closing(Arc::clone(&session));
    let status = match serve(&session, &credentials).await {
        Ok(()) => Status::ok(""),
        Err(status) => status,
    };
    let lost = session.close();
    let address = &session.address;
    if lost > 0 {
        tracing::warn!(%address, lost, reason = %status.message(), "worker session broke");
    } else {
        tracing::debug!(%address, reason = %status.message(), "worker session closed");
    }
}

async fn serve(session: &Arc<Session>, credentials: &Credentials) -> Result<(), Status> {
    let channel = dial(&session.address, credentials).await?;
    let mut client = InferenceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let mut messages = client.session(Outbox(Arc::clone(session))).await?.into_inner();
    while let Some(message) = messages.message().await? {
        match message.kind {
            Some(session_message::Kind::Tick(tick)) => session.deliver(tick).map_err(|gap| {
                Status::data_loss(format!("tick {} came where {} was due", gap.got, gap.expected))
            })?,
            Some(session_message::Kind::Alive(_)) | None => {}
        }
    }
    Ok(())
}

/// The text of an error and of all its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// Connects to the first address that answers. The addresses are sorted, the best first.
async fn dial(worker: &WorkerAddress, credentials: &Credentials) -> Result<Channel, Status> {
    let mut last = Status::unavailable("the worker has no address");
    for address in worker.all() {
        match net::channel(address, credentials).await {
            Ok(channel) => return Ok(channel),
            Err(error) => last = Status::unavailable(format!("{address}: {}", whole(&error))),
        }
    }
    Err(last)
}
