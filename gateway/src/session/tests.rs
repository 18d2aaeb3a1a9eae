use std::task::Waker;

use muster_proto::v1::{Delta, Event, SequenceEvents, event};

use super::*;

fn delta(text: &str) -> Event {
    let delta = Delta {
        content: text.into(),
        ..Delta::default()
    };
    Event {
        kind: Some(event::Kind::Delta(delta)),
        extra_json: String::new(),
    }
}

fn tick(seq: u64, handle: u64, events: Vec<Event>, finished: bool) -> Tick {
    let sequences = vec![SequenceEvents {
        handle,
        events,
        finished,
    }];
    Tick {
        seq,
        sequences,
        ..Tick::default()
    }
}

fn poll(request: &mut Request<()>) -> (Poll<Batch>, usize) {
    let mut out = Vec::new();
    let batch = request.poll(&Context::from_waker(Waker::noop()), &mut out);
    (batch, out.len())
}

fn sent(session: &Session) -> Vec<session_command::Kind> {
    let outbox = std::mem::take(&mut session.inner().outbox);
    outbox.into_iter().filter_map(|command| command.kind).collect()
}

fn session() -> Arc<Session> {
    let nowhere = WorkerAddress::read(&["unix:/nowhere".to_owned()]).unwrap();
    Arc::new(Session::new(nowhere))
}

#[test]
fn events_reach_their_request_and_the_end_comes_last() {
    let session = session();
    let mut one = Request::start(Arc::clone(&session), Start::default(), ());
    let mut two = Request::start(Arc::clone(&session), Start::default(), ());
    assert_eq!(poll(&mut one), (Poll::Pending, 0));
    session.deliver(tick(1, 1, vec![delta("a")], false)).unwrap();
    session.deliver(tick(2, 1, vec![delta("b")], true)).unwrap();
    assert_eq!(poll(&mut one), (Poll::Ready(Batch::More), 2));
    assert_eq!(poll(&mut one), (Poll::Ready(Batch::End(End::Finished)), 0));
    assert_eq!(poll(&mut two), (Poll::Pending, 0));
}

#[test]
fn dropping_a_request_cancels_it_once_and_only_if_it_runs() {
    let session = session();
    let running = Request::start(Arc::clone(&session), Start::default(), ());
    let done = Request::start(Arc::clone(&session), Start::default(), ());
    session.deliver(tick(1, 2, vec![], true)).unwrap();
    sent(&session);
    drop((running, done));
    assert_eq!(
        sent(&session),
        [session_command::Kind::Cancel(Cancel { handle: 1 })]
    );
}

#[test]
fn a_request_dropped_before_it_was_sent_never_is() {
    let session = session();
    let [first, dropped, last] = [(); 3].map(|()| Request::start(Arc::clone(&session), Start::default(), ()));
    drop(dropped);
    let handles: Vec<u64> = sent(&session)
        .into_iter()
        .map(|kind| match kind {
            session_command::Kind::Start(start) => start.handle,
            session_command::Kind::Cancel(_) | session_command::Kind::Credit(_) => panic!("only starts"),
        })
        .collect();
    assert_eq!(handles, [1, 3]);
    drop((first, last));
    assert_eq!(sent(&session).len(), 2, "what was sent is cancelled");
}

#[test]
fn credit_returns_only_as_events_are_taken() {
    let session = session();
    let mut request = Request::start(Arc::clone(&session), Start::default(), ());
    sent(&session);
    let half = CREDIT / 2;
    let events = vec![delta("x"); half as usize];
    session.deliver(tick(1, 1, events, false)).unwrap();
    assert!(sent(&session).is_empty());
    assert_eq!(poll(&mut request), (Poll::Ready(Batch::More), half as usize));
    assert_eq!(
        sent(&session),
        [session_command::Kind::Credit(Credit {
            handle: 1,
            events: half
        })]
    );
}

#[test]
fn a_closed_session_loses_its_requests_and_takes_no_new_ones() {
    let session = session();
    let mut request = Request::start(Arc::clone(&session), Start::default(), ());
    assert_eq!(session.close(), 1);
    assert_eq!(poll(&mut request), (Poll::Ready(Batch::End(End::Lost)), 0));
    let mut late = Request::start(Arc::clone(&session), Start::default(), ());
    assert_eq!(poll(&mut late), (Poll::Ready(Batch::End(End::Lost)), 0));
    assert!(sent(&session).is_empty());
}

#[test]
fn a_gap_in_ticks_is_noticed() {
    let session = session();
    session.deliver(tick(1, 1, vec![], false)).unwrap();
    assert_eq!(
        session.deliver(tick(3, 1, vec![], false)),
        Err(Gap { expected: 2, got: 3 })
    );
}

#[test]
fn suspicion_ends_when_the_worker_speaks() {
    let session = session();
    session.suspect();
    assert!(session.is_suspect(Instant::now()));
    session.deliver(tick(1, 1, vec![], false)).unwrap();
    assert!(!session.is_suspect(Instant::now()));
}
