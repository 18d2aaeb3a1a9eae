//! Files of models that clients bring: kept once on each host (`muster.v1.Uploads`).
//!
//! ```text
//!   body of the request ─► parts ─┬─► a worker of host 1
//!                                 └─► a worker of host 2      the slowest one sets the pace
//! ```
//!
//! Invariants: no more of a file than a few parts is in memory; a client that stops leaves nothing.

use std::{collections::BTreeMap, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::{
    future::{join_all, try_join_all},
    stream::poll_fn,
};
use http_body_util::BodyExt as _;
use muster_core::{Code, Error, WorkerAddress};
use muster_proto::{
    MAX_MESSAGE_BYTES, StatusExt as _,
    hub::Sum,
    net::Channel,
    v1::{LookForUploadRequest, UploadPart, UploadedFile, WorkerStatus, uploads_client::UploadsClient},
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{Response, Status};

use super::Dispatcher;

/// Parts on their way to a worker.
const PARTS: usize = 4;
/// Longest time without anything of the body.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest time for the answer to a look, and for what follows the last part: the sum is made while the parts come.
const ANSWER: Duration = Duration::from_secs(60);

type Client = UploadsClient<Channel>;

impl Dispatcher {
    /// Whether a file is on all hosts.
    ///
    /// # Errors
    /// `no_worker`; the error of a worker or the controller.
    pub(crate) async fn uploaded(&self, sum: &Sum) -> Result<bool, Error> {
        Ok(self.without(sum).await?.is_empty())
    }

    /// Keeps a file on all hosts. The rest of a body that nobody wants is left unread.
    ///
    /// # Errors
    /// `no_worker`, `invalid_request`, `slow_request`, `insufficient_storage`; the error of a worker or the controller.
    pub(crate) async fn upload(&self, sum: &Sum, body: &mut Body) -> Result<(), Error> {
        let without = self.without(sum).await?;
        let (senders, calls): (Vec<_>, Vec<_>) = without.into_iter().map(put).unzip();
        // They go on beside the parts, and end with them if this is dropped.
        let calls: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
        let passed = pass(sum, body, senders).await;
        let answers = timeout(ANSWER, join_all(calls)).await.map_err(|_| hangs())?;
        // What a worker says is why the parts found nobody.
        for answer in answers {
            answer.map_err(|panic| Code::Internal.error(panic.to_string()))??;
        }
        passed
    }

    /// A worker of each host that has not the file.
    async fn without(&self, sum: &Sum) -> Result<Vec<Client>, Error> {
        let workers = self.fleet.control().workers().await?;
        let hosts: Vec<Client> = hosts(&workers)
            .into_iter()
            .map(|at| self.pool.uploads(&at))
            .collect();
        if hosts.is_empty() {
            return Err(Code::NoWorker.error("no worker is here to keep the file"));
        }
        let look = async |mut client: Client| -> Result<Option<Client>, Error> {
            let request = LookForUploadRequest {
                sha256: sum.hex().to_owned(),
            };
            let found = answer(client.look(request)).await?;
            Ok((!found.there).then_some(client))
        };
        let found = try_join_all(hosts.into_iter().map(look)).await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// One worker of each host.
fn hosts(workers: &[WorkerStatus]) -> Vec<WorkerAddress> {
    let there = workers
        .iter()
        .filter(|worker| worker.connected && !worker.draining);
    let reached = there.filter_map(|worker| {
        let address = WorkerAddress::read(&worker.addresses).ok()?;
        Some((worker.host_id.as_str(), address))
    });
    reached.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn put(
    mut client: Client,
) -> (
    mpsc::Sender<UploadPart>,
    impl Future<Output = Result<UploadedFile, Error>>,
) {
    let (sender, mut receiver) = mpsc::channel(PARTS);
    let call = async move {
        let stored = client
            .put(poll_fn(move |context| receiver.poll_recv(context)))
            .await;
        stored
            .map(Response::into_inner)
            .map_err(|status| Error::from_status(&status))
    };
    (sender, call)
}

/// Passes a body on to all workers that want more of it.
async fn pass(sum: &Sum, body: &mut Body, mut to: Vec<mpsc::Sender<UploadPart>>) -> Result<(), Error> {
    let first = UploadPart {
        sha256: sum.hex().to_owned(),
        ..UploadPart::default()
    };
    send(&mut to, first).await?;
    loop {
        if to.is_empty() {
            return Ok(());
        }
        let Ok(frame) = timeout(SILENCE, body.frame()).await else {
            let message = format!("nothing of the file came for {} s", SILENCE.as_secs());
            return Err(Code::SlowRequest.error(message));
        };
        let Some(frame) = frame else {
            break;
        };
        let broken = |error| Code::InvalidRequest.error(format!("could not read the file: {error}"));
        let Ok(mut data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        while !data.is_empty() {
            let content: Bytes = data.split_to(data.len().min(MAX_MESSAGE_BYTES / 2));
            let part = UploadPart {
                content,
                ..UploadPart::default()
            };
            send(&mut to, part).await?;
        }
    }
    let last = UploadPart {
        last: true,
        ..UploadPart::default()
    };
    send(&mut to, last).await
}

/// Whoever does not take it any more has answered.
async fn send(to: &mut Vec<mpsc::Sender<UploadPart>>, part: UploadPart) -> Result<(), Error> {
    let sent = join_all(to.iter().map(|sender| sender.send(part.clone())));
    let sent = timeout(SILENCE, sent).await.map_err(|_| hangs())?;
    let mut sent = sent.into_iter();
    to.retain(|_| sent.next().is_some_and(|sent| sent.is_ok()));
    Ok(())
}

fn hangs() -> Error {
    Code::WorkerLost.error("a worker that was to keep the file does not answer")
}

async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
    let Ok(answer) = timeout(ANSWER, call).await else {
        return Err(hangs());
    };
    answer
        .map(Response::into_inner)
        .map_err(|status| Error::from_status(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_asked_once_and_only_where_somebody_answers() {
        let worker = |host: &str, port: u16, connected| WorkerStatus {
            host_id: host.to_owned(),
            addresses: vec![format!("127.0.0.1:{port}")],
            connected,
            ..WorkerStatus::default()
        };
        let leaving = WorkerStatus {
            draining: true,
            ..worker("c", 6, true)
        };
        let lost = WorkerStatus {
            addresses: Vec::new(),
            ..worker("d", 7, true)
        };
        let all = [
            worker("a", 1, true),
            worker("a", 2, true),
            worker("b", 3, false),
            worker("b", 4, true),
            leaving,
            lost,
        ];
        let found: Vec<String> = hosts(&all).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2);
        assert!(found.contains(&"127.0.0.1:4".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_goes_to_whoever_wants_it_in_parts_that_fit_a_message() {
        let sum: Sum = "0a".repeat(32).parse().unwrap();
        let ((all, mut wanted), (early, not)) = (mpsc::channel(PARTS), mpsc::channel(PARTS));
        drop(not);
        let content = vec![7; MAX_MESSAGE_BYTES + 1];
        let mut body = Body::from(content.clone());
        let reader = async {
            let mut parts = Vec::new();
            while let Some(part) = wanted.recv().await {
                parts.push(part);
            }
            parts
        };
        let (passed, parts) = tokio::join!(pass(&sum, &mut body, vec![early, all]), reader);
        assert_eq!(passed, Ok(()));
        assert_eq!(parts[0].sha256, sum.hex());
        assert!(parts.last().unwrap().last && parts.iter().filter(|part| part.last).count() == 1);
        assert!(
            parts
                .iter()
                .all(|part| part.content.len() <= MAX_MESSAGE_BYTES / 2)
        );
        assert_eq!(
            parts
                .iter()
                .flat_map(|part| part.content.clone())
                .collect::<Vec<u8>>(),
            content
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_hangs_ends_the_upload() {
        let sum: Sum = "0a".repeat(32).parse().unwrap();
        let (sender, _full) = mpsc::channel(1);
        let mut body = Body::from("GGUF");
        let error = pass(&sum, &mut body, vec![sender]).await.unwrap_err();
        assert_eq!(error.code, Code::WorkerLost);
    }
}
