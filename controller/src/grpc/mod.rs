//! The gRPC services. They only translate between streams and the driver's handle.
//!
//! Architecture invariant: nothing here knows policy.

mod control;
mod fleet;
mod models;
pub(crate) mod session;
mod updates;

use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) use control::ControlService;
pub(crate) use fleet::FleetService;
pub(crate) use models::ModelsService;

use crate::driver::inbox::stopping;

/// A response stream.
type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Ends a stream with `shutting_down` when the controller ends, so that the server's connections can close.
fn until_stopped<T: Send + 'static>(
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    stop: CancellationToken,
) -> Boxed<T> {
    let start = Some((Box::pin(stream), stop));
    Box::pin(stream::unfold(start, |state| async {
        let (mut stream, stop) = state?;
        tokio::select! {
            biased;
            () = stop.cancelled() => Some((Err(stopping()), None)),
            item = stream.next() => item.map(|item| (item, Some((stream, stop)))),
        }
    }))
}
