//! The HTTP body of a streamed answer. It owns the requests behind it: when the client leaves, hyper drops the body, and that cancels them.
//!
//! Events that are ready together leave in one frame; a single token never waits. hyper stops polling a body whose client does not read.
//! Then no more credit is granted, and the engine stops (PROTOCOL.md 18).

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use muster_proto::v1::Event;

use crate::{answer_events::AnswerEvents, render::Render};

/// A body that renders events into frames.
#[derive(Debug)]
pub(crate) struct EventBody<R> {
    answers: Option<AnswerEvents>,
    /// Events that are not rendered yet.
    events: Vec<Event>,
    render: R,
    buffer: BytesMut,
}

impl<R: Render> EventBody<R> {
    /// A body that renders `events` first, and then those of `answers`.
    pub(crate) fn new(mut answers: AnswerEvents, events: Vec<Event>, render: R) -> Self {
        answers.is_streamed();
        Self {
            answers: Some(answers),
            events,
            render,
            buffer: BytesMut::with_capacity(4096),
        }
    }
}

impl<R: Render + Unpin> Body for EventBody<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        while this.buffer.is_empty() {
            let Some(answers) = &mut this.answers else {
                return Poll::Ready(None);
            };
            if this.events.is_empty() {
                std::task::ready!(answers.poll(cx, &mut this.events));
            }
            for event in this.events.drain(..) {
                if this.render.event(event, &mut this.buffer) {
                    this.answers = None;
                    break;
                }
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.buffer.split().freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.answers.is_none() && self.buffer.is_empty()
    }
}
