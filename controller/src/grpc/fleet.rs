//! The service `muster.v1.Fleet`, where workers join.

use muster_proto::v1::{ControllerMessage, WorkerMessage, fleet_server::Fleet};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use super::{Boxed, session::Session};
use crate::driver::handle::Handle;

/// Number of messages to a worker that wait to be sent. If it is reached, the session waits, and is lost if that takes too long.
const OUT: usize = 64;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct FleetService {
    handle: Handle,
    tasks: TaskTracker,
}

impl FleetService {
    /// Makes the service. Its sessions run on `tasks`.
    pub(crate) fn new(handle: Handle, tasks: TaskTracker) -> Self {
        Self { handle, tasks }
    }
}

#[tonic::async_trait]
impl Fleet for FleetService {
    type JoinStream = Boxed<ControllerMessage>;

    async fn join(
        &self,
        request: Request<Streaming<WorkerMessage>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let (out, messages) = mpsc::channel(OUT);
        let session = Session::new(self.handle.clone(), request.into_inner(), out);
        self.tasks.spawn(session.run());
        let stream = futures::stream::unfold(messages, |mut messages| async {
            messages.recv().await.map(|message| (Ok(*message), messages))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
