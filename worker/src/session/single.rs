//! A request outside a session, for `Generate`, `Embed` and `Rerank`. It is admitted in the same way and has an outbox of its own.

use std::{collections::VecDeque, future::poll_fn, sync::Arc};

use muster_core::{Code, Error, id};
use muster_proto::v1::{Event, Start, event::Kind};

use super::{
    Sessions,
    outbox::{Outbox, Taken},
};
use crate::instance::{Instance, Request, registry::Registry};

const HANDLE: u64 = 1;
/// Number of events granted at a time.
const CREDIT: u32 = 64;

/// A request without a session. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Single {
    outbox: Arc<Outbox>,
    tasks: Sessions,
    ready: VecDeque<Event>,
    /// Number of events read since credit was last granted.
    taken: u32,
    over: bool,
}

impl Single {
    /// Sends a request to an instance.
    pub(crate) async fn start(
        registry: &Registry,
        tasks: &Sessions,
        instance: Instance,
        start: Start,
    ) -> Self {
        let outbox = Arc::new(Outbox::default());
        let request_id = if start.request_id.is_empty() {
            id::fresh().as_ref().to_owned()
        } else {
            start.request_id
        };
        let start = Start {
            handle: HANDLE,
            credit: CREDIT,
            request_id,
            ..start
        };
        // The outbox is new, so the handle is free.
        registry.start(&outbox, instance, start).await;
        Self {
            outbox,
            tasks: tasks.clone(),
            ready: VecDeque::new(),
            taken: 0,
            over: false,
        }
    }

    /// The next event. The last one is terminal; after it there is none.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            if self.over {
                return None;
            }
            match poll_fn(|cx| self.outbox.poll_take(cx)).await {
                Taken::Events(sequences) => {
                    for sequence in sequences {
                        self.over |= sequence.finished;
                        self.ready.extend(sequence.events);
                    }
                }
                Taken::End => return None,
            }
        }
        let event = self.ready.pop_front()?;
        if matches!(event.kind, Some(Kind::Delta(_) | Kind::Progress(_))) {
            self.taken += 1;
            if self.taken >= CREDIT / 2 {
                self.grant().await;
            }
        }
        Some(event)
    }

    async fn grant(&mut self) {
        if let Some(route) = self.outbox.route(HANDLE) {
            route
                .instance
                .send(Request::Credit(route.ticket, self.taken))
                .await;
        }
        self.taken = 0;
    }

    /// Runs the request to its end and returns its one answer.
    ///
    /// # Errors
    /// The error that ended it.
    pub(crate) async fn answer<T>(mut self, pick: impl Fn(Kind) -> Option<T>) -> Result<T, Error> {
        let mut answer = None;
        while let Some(event) = self.next().await {
            match event.kind {
                Some(Kind::Failed(error)) => return Err(error.into()),
                Some(kind) => answer = pick(kind).or(answer),
                None => {}
            }
        }
        answer.ok_or_else(|| Code::RuntimeError.error("the engine gave no answer"))
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        let routes = self.outbox.abandon();
        if !routes.is_empty() {
            // Drop cannot wait for a full channel; a task can, and ends as soon as the instance has read.
            self.tasks.spawn(async move {
                for route in routes {
                    route.instance.send(Request::Cancel(route.ticket)).await;
                }
            });
        }
    }
}
