//! What the driver does next: one input at a time, and nobody waits for ever behind others.
//!
//! ```text
//!   stop ─► ends of sessions ─► outcomes ─► closings ─► one of each in turn: reports, joins, asks, what is due by the clock
//! ```
//!
//! Invariant: as long as one of the lanes that take turns, or a timer, has something, it gets a turn at least once in [`LANES`] such
//! inputs. The number of other inputs is limited by the number of sessions, commands and wishes. If a caller ends a wish and then asks for
//! something, both are handled in this order.

use futures::FutureExt as _;
use muster_core::SessionId;
use muster_proto::life::BEAT_EVERY;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Driver, SHORTEST_SLEEP,
    inbox::{Ask, Closing, Join, Models, Order, Query},
    looks::Looked,
    watchdog::What,
};

/// Number of lanes that take turns: those of the inbox, and the timer.
const LANES: usize = 4;

/// One input of the driver.
#[derive(Debug)]
pub(super) enum Input {
    End(SessionId),
    Outcome(SessionId),
    Report(SessionId),
    Join(Box<Join>),
    Closing(Closing),
    Ask(Ask),
    Wake,
    PutOff,
    Overdue,
    Look,
    Looked(Looked),
    Files,
    Beat,
    Stop,
}

impl Input {
    /// A description of the input, for the watchdog.
    pub(super) fn what(&self) -> What {
        match self {
            Self::End(session) => What::of("the end of a session", session),
            Self::Outcome(session) => What::of("an outcome", session),
            Self::Report(session) => What::of("a report", session),
            Self::Join(join) => What::of("a join", &join.session),
            Self::Closing(_) => What::plain("the end of a wish"),
            Self::Ask(ask) => What::plain(name_of(ask)),
            Self::Wake => What::plain("a timer of policy"),
            Self::PutOff => What::plain("events that were put off"),
            Self::Overdue => What::plain("commands without an answer"),
            Self::Look => What::plain("a look at engines of lost workers"),
            Self::Looked(_) => What::plain("files that were looked at"),
            Self::Files => What::plain("files that are due"),
            Self::Beat => What::plain("a sign of life"),
            Self::Stop => What::plain("the end"),
        }
    }
}

fn name_of(ask: &Ask) -> &'static str {
    match ask {
        Ask::Ensure { .. } => "a wish for a model",
        Ask::Call { order, .. } => match order {
            Order::Load(_) => "a load",
            Order::Unload(_) => "an unload",
            Order::Forget(_) => "forgetting a worker",
        },
        Ask::Pin(_) => "a pin",
        Ask::Query(query) => match query {
            Query::Models(..) => "a list of models",
            Query::Model(..) => "a question about a model",
            Query::Explain(..) => "an explanation",
            Query::Replacement(..) => "a load in place of another",
            Query::Devices(_) => "a list of devices",
            Query::Workers(_) => "a list of workers",
            Query::Stats(_) => "counters",
            Query::Routes(_) => "a watch of routes",
            Query::Saved(_) => "a question about what is on disk",
            Query::Stale(_) => "a question about loads that are out of date",
        },
        Ask::Models(models) => match models {
            Models::Pull(..) => "a pull",
            Models::ListDownloads(_) | Models::ControlDownload(..) => "downloads",
            Models::Checkable(..) | Models::Check(..) => "a question about newer files",
            Models::Register(..) => "a registration",
            Models::RemoveFiles(..) => "a removal of files",
            Models::Remove(..) => "a removal of a model",
            Models::SetOptions(..) => "options of a model",
            Models::ListVariants(..) => "a list of variants",
            Models::Reload(..) => "another configuration",
            Models::ReloadOwn { .. } => "users' models on disk",
            Models::SetAlias(..) | Models::DeleteAlias(..) | Models::ListAliases(_) => "aliases",
        },
    }
}

impl Driver {
    /// The next input, if one is there already.
    pub(super) fn ready(&mut self) -> Option<Input> {
        if self.stop.is_cancelled() {
            return Some(Input::Stop);
        }
        let inbox = &mut self.inbox;
        if let Ok(session) = inbox.ends.try_recv() {
            return Some(Input::End(session));
        }
        if let Ok(session) = inbox.outcomes.try_recv() {
            return Some(Input::Outcome(session));
        }
        if let Ok(closing) = inbox.closings.try_recv() {
            return Some(Input::Closing(closing));
        }
        (0..LANES).find_map(|_| {
            self.turn = (self.turn + 1) % LANES;
            let inbox = &mut self.inbox;
            match self.turn {
                0 => inbox.reports.try_recv().ok().map(Input::Report),
                1 => inbox.joins.try_recv().ok().map(Input::Join),
                2 => inbox.asks.try_recv().ok().map(Input::Ask),
                _ => self.due(),
            }
        })
    }

    /// The input that is due by time.
    fn due(&mut self) -> Option<Input> {
        let now = Instant::now();
        let over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if over(self.wake_at()) {
            return Some(Input::Wake);
        }
        if over(self.sessions.overdue_at()) {
            return Some(Input::Overdue);
        }
        if over(self.agenda.due()) {
            return Some(Input::PutOff);
        }
        if over(self.ghosts.next_look()) {
            return Some(Input::Look);
        }
        if over(self.pulls.due()) {
            return Some(Input::Files);
        }
        self.looks.looked().now_or_never().map(Input::Looked)
    }

    fn wake_at(&self) -> Option<Instant> {
        let earliest = self.woken + SHORTEST_SLEEP;
        self.wake
            .map(|at| (self.started + at.since_start()).max(earliest))
    }

    /// Waits for the next input. If it is cancelled while it waits, no input is lost.
    #[cfg(test)]
    pub(super) async fn next(&mut self) -> Input {
        match self.ready() {
            Some(input) => input,
            None => self.wait().await,
        }
    }

    /// Waits for an input; call it when none is there.
    pub(super) async fn wait(&mut self) -> Input {
        let clock = [
            self.wake_at(),
            self.sessions.overdue_at(),
            self.agenda.due(),
            self.ghosts.next_look(),
            self.pulls.due(),
        ];
        let clock = clock.into_iter().flatten().min();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Input::Stop,
                Some(session) = self.inbox.ends.recv() => return Input::End(session),
                Some(session) = self.inbox.outcomes.recv() => return Input::Outcome(session),
                Some(session) = self.inbox.reports.recv() => return Input::Report(session),
                Some(join) = self.inbox.joins.recv() => return Input::Join(join),
                Some(closing) = self.inbox.closings.recv() => return Input::Closing(closing),
                Some(ask) = self.inbox.asks.recv() => return Input::Ask(ask),
                looked = self.looks.looked() => return Input::Looked(looked),
                () = at(clock) => {}
                () = sleep(BEAT_EVERY) => return Input::Beat,
                else => return Input::Stop,
            }
            if let Some(input) = self.due() {
                return input;
            }
        }
    }
}

/// Resolves at `moment`; never if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::{
        life::Life,
        v1::{self, worker_message::Kind as Up},
    };
    use tokio::sync::{mpsc, oneshot};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::convert::wish::Wish;
    use crate::{
        config::{Config, Defaults},
        driver::{Start, handle::Handle, inbox::JoinAnswer, pulse::Pulse},
    };

    fn driver(dir: &std::path::Path) -> (Driver, Handle) {
        let config = Config::load(&[], None, &Defaults::default()).unwrap();
        let start = Start::read(config, dir, CancellationToken::new(), Life::default());
        Driver::new(start.unwrap())
    }

    /// A worker's session and its mailbox.
    async fn join(
        driver: &mut Driver,
        handle: &Handle,
        name: &str,
    ) -> (SessionId, mpsc::Sender<crate::driver::inbox::Said>) {
        let session = SessionId::fresh();
        let (reply, answer) = oneshot::channel();
        let hello = v1::Hello {
            worker_id: name.to_owned(),
            boot_id: "boot".to_owned(),
            host_id: "host".to_owned(),
            protocol_min: 1,
            protocol_max: 1,
            ..v1::Hello::default()
        };
        let join = Join {
            session: session.clone(),
            joining: Some(handle.joining()),
            hello,
            commands: mpsc::channel(8).0,
            end: CancellationToken::new(),
            pulse: Pulse::new(),
            silent: None,
            reply,
        };
        assert!(handle.join(join).await);
        let Some(Input::Join(join)) = driver.ready() else {
            panic!("a worker joins")
        };
        assert!(driver.take(Input::Join(join)));
        match answer.await.unwrap() {
            JoinAnswer::Accepted { mailbox, .. } => (session, mailbox),
            refused @ (JoinAnswer::Occupied { .. } | JoinAnswer::Rejected(_)) => panic!("{refused:?}"),
        }
    }

    fn report() -> Up {
        Up::Report(v1::WorkerReport::default())
    }

    /// Regression: calls were taken only when no worker had anything to say, so reports could delay wishes for ever.
    #[tokio::test]
    async fn a_wish_has_its_turn_however_much_workers_report() {
        let dir = tempfile::tempdir().unwrap();
        let (mut driver, handle) = driver(dir.path());
        let (session, mailbox) = join(&mut driver, &handle, "w").await;
        let wish = Wish {
            hold: "h".into(),
            gateway: None,
            model: "m".into(),
            avoid_instances: Vec::new(),
            avoid_workers: Vec::new(),
        };
        let _asked = handle.ensure(wish).unwrap();
        for _ in 0..LANES {
            handle.say(&session, &mailbox, report()).await.unwrap();
            let input = driver.ready().expect("there is a report");
            if matches!(input, Input::Ask(_)) {
                return;
            }
            assert!(driver.take(input));
        }
        panic!("reports come first, again and again");
    }

    /// Regression: outcomes waited behind the reports of all workers. Within a session they still come after what was said before.
    #[tokio::test]
    async fn an_outcome_comes_before_what_others_report_and_after_what_its_own_worker_did() {
        let dir = tempfile::tempdir().unwrap();
        let (mut driver, handle) = driver(dir.path());
        let (loud, loud_mailbox) = join(&mut driver, &handle, "loud").await;
        let (quiet, quiet_mailbox) = join(&mut driver, &handle, "quiet").await;
        for _ in 0..4 {
            handle.say(&loud, &loud_mailbox, report()).await.unwrap();
        }
        handle.say(&quiet, &quiet_mailbox, report()).await.unwrap();
        let outcome = Up::Outcome(v1::Outcome::default());
        handle.say(&quiet, &quiet_mailbox, outcome).await.unwrap();
        handle.say(&quiet, &quiet_mailbox, report()).await.unwrap();

        let input = driver.ready().expect("there is an outcome");
        assert!(
            matches!(&input, Input::Outcome(session) if *session == quiet),
            "{input:?}"
        );
        assert!(driver.take(input));
        let left = |mailbox: &mpsc::Sender<_>| mailbox.max_capacity() - mailbox.capacity();
        assert_eq!(
            left(&quiet_mailbox),
            1,
            "what was said before it was heard, what came after it was not"
        );
        assert_eq!(left(&loud_mailbox), 4);
        while let Some(input) = driver.ready() {
            assert!(driver.take(input));
        }
        assert_eq!((left(&quiet_mailbox), left(&loud_mailbox)), (0, 0));
    }
}
