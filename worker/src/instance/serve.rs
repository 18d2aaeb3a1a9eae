//! The middle stage: a loaded engine serves requests until it is unloaded or lost.
//!
//! One task owns the link, the queue and the running requests, so a tick gets from the engine's link to the sessions' outboxes without
//! another hop. If the engine accepts no commands for a moment they wait in the relay, which only delays starts and credits.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use muster_core::{Code, Error};
use muster_proto::v1::{
    InstanceState, RefusedReason, SessionCommand, SessionMessage, Tick, command::Kind as Order,
    session_message::Kind as Message,
};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, sleep_until},
};

use super::{
    Control, Engine, Request, Verdict,
    actor::{Core, End, Loaded, Service},
    beside,
    health::Health,
    limits,
    mode::{self, Mode, Unloading, Work},
    relay::{Begin, Relay},
    stale,
};
use crate::{
    board::Urgency,
    engine::{EngineCalls, EngineLink, EngineProcess, RunningEngine},
    procfs,
};

/// First and longest wait before a request is sent again to an idle engine that had no room for it.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// Number of messages handled before the task looks at anything else.
const BURST: usize = 8;

struct Serving<'a> {
    core: &'a mut Core,
    relay: Relay,
    mode: Mode,
    health: Health,
    sends_alive: bool,
    /// CPU time of a foreign engine at the last sweep, in milliseconds.
    cpu_ms: Arc<AtomicU64>,
    process: Arc<dyn EngineProcess>,
    calls: Arc<dyn EngineCalls>,
    commands: mpsc::Sender<SessionCommand>,
    messages: mpsc::Receiver<SessionMessage>,
    /// When a request is sent again that the idle engine had no room for, and the wait before that.
    retry: Option<(Instant, Duration)>,
}

/// Why serving ended: whether by force, and the failure if there was one.
type Over = (bool, Option<Error>);

/// Serves requests until the instance ends.
pub(super) async fn serve(core: &mut Core, engine: RunningEngine) -> End {
    let RunningEngine {
        link: EngineLink { commands, messages },
        description,
        process,
        calls,
        backend_url,
        sends_alive,
    } = engine;
    core.handle.set_engine(Some(Engine {
        process: Arc::clone(&process),
        calls: Arc::clone(&calls),
    }));
    let sequences = description
        .capabilities
        .as_ref()
        .map_or(0, |capabilities| capabilities.sequences);
    let limits = limits(&core.spec, sequences);
    core.tell_memory(&description.memory);
    let walked = Arc::clone(&process);
    let loaded = Loaded {
        command: process.command(),
        tree: beside(move || walked.tree()).await,
        capabilities: description.capabilities,
        url: backend_url,
        limits,
    };
    core.loaded(loaded).await;
    let places = (
        usize::try_from(limits.0).unwrap_or(1),
        usize::try_from(limits.1).unwrap_or(0),
    );
    let serving = Serving {
        relay: Relay::new(core.handle.id().into(), places.0, places.1),
        mode: Mode::Ready,
        health: Health::new(core.ground.patience, sends_alive, Instant::now()),
        sends_alive,
        cpu_ms: Arc::default(),
        process,
        calls,
        commands,
        messages,
        retry: None,
        core,
    };
    serving.run().await
}

impl Serving<'_> {
    async fn run(mut self) -> End {
        let mut gone = self.process.gone();
        let patience = self.core.ground.patience;
        let every = (patience.slow_reader.min(patience.engine_silent) / 8)
            .clamp(Duration::from_millis(5), Duration::from_secs(1));
        let mut sweeps = interval(every);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Sessions may have begun or ended while the model was loaded.
        self.look_around();
        let mut over = None;
        while over.is_none() {
            over = self
                .next_event(&mut gone, &mut sweeps)
                .await
                .or_else(|| self.settle());
        }
        let (force, failure) = over.unwrap_or((true, None));
        self.close(force, failure)
    }

    /// Waits for the next event and handles it.
    async fn next_event(&mut self, gone: &mut BoxFuture<'static, ()>, sweeps: &mut Interval) -> Option<Over> {
        let wake = self.wake();
        tokio::select! {
            message = self.messages.recv() => return self.messages(message),
            Some(request) = self.core.inbox.requests.recv() => self.request(request),
            // This task is the only sender, so the room is still there.
            () = room(&self.commands), if self.relay.has_outgoing() => self.send_more(),
            Some(control) = self.core.inbox.control.recv() => return self.control(control),
            Ok(()) = self.core.around.changed() => self.look_around(),
            () = gone => return crashed("the engine's process ended"),
            () = self.core.visits.left() => {}
            _ = sweeps.tick() => return self.sweep(),
            () = sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => self.woken(),
        }
        None
    }

    fn send_more(&mut self) {
        while self.relay.has_outgoing() {
            let Ok(permit) = self.commands.try_reserve() else {
                return;
            };
            if let Some(command) = self.relay.next_outgoing() {
                permit.send(command);
            }
        }
    }

    fn messages(&mut self, first: Option<SessionMessage>) -> Option<Over> {
        let Some(first) = first else {
            return crashed("the engine closed its session");
        };
        let mut next = Some(first);
        let mut handled = 0;
        while let Some(message) = next {
            let result = match message.kind {
                Some(Message::Tick(tick)) => self.tick(tick),
                Some(Message::Alive(alive)) => self.health.alive(&alive, Instant::now()),
                None => Ok(()),
            };
            if let Err(error) = result {
                return Some((true, Some(error)));
            }
            handled += 1;
            next = if handled < BURST {
                self.messages.try_recv().ok()
            } else {
                None
            };
        }
        self.send_more();
        None
    }

    fn tick(&mut self, tick: Tick) -> Result<(), Error> {
        self.health.ticked();
        self.relay
            .tick(tick)
            .map_err(|gap| Code::RuntimeCrashed.error(format!("events of the engine were lost: {gap}")))
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Begin(begin) => self.begin(*begin),
            Request::Cancel(ticket) => self.relay.cancel(ticket),
            Request::Supersede(ticket) => {
                let error = Code::Superseded.error("a newer request with the same id took its place");
                self.relay.expel(ticket, error);
            }
            Request::Credit(ticket, events) => self.relay.credit(ticket, events),
            Request::Visit(purpose, reply) => {
                let visit = if self.is_open() {
                    Ok(self.core.visits.enter(purpose, Arc::clone(&self.calls)))
                } else {
                    Err(stale("the instance takes no new work"))
                };
                drop(reply.send(visit));
            }
        }
        self.send_more();
    }

    fn begin(&mut self, begin: Begin) {
        if self.is_open() {
            self.relay.begin(begin);
        } else {
            begin.reply.fail(stale("the instance takes no new work"));
        }
    }

    fn is_open(&self) -> bool {
        self.mode == Mode::Ready && self.core.service() == Service::Open
    }

    fn control(&mut self, control: Control) -> Option<Over> {
        let Control { order, verdict } = control;
        let (answer, over) = match self.core.obey(order) {
            Ok(answer) => (answer, None),
            Err(order) => self.order(&order),
        };
        drop(verdict.send(answer));
        over
    }

    fn order(&mut self, order: &Order) -> (Verdict, Option<Over>) {
        match order {
            Order::Quiesce(_) => match self.core.session() {
                Some(session) => self.set_mode(self.mode.quiesced(session)),
                None => {
                    return (
                        self.core
                            .refuse(RefusedReason::Invalid, "no session of a controller"),
                        None,
                    );
                }
            },
            Order::Resume(_) => self.set_mode(self.mode.resumed()),
            Order::Unload(unload) => {
                let work = Work {
                    busy: !self.relay.is_idle() || self.core.visits.count() > 0,
                    held: !self.core.holds.is_empty(),
                    touch_seq: self.core.touch_seq,
                };
                match mode::unload(*unload, work, Instant::now()) {
                    Err(reason) => {
                        return (
                            self.core.refuse(reason, "the instance cannot be unloaded now"),
                            None,
                        );
                    }
                    Ok(Unloading::Drain(until)) => {
                        let error = Code::ModelUnloading.error("the model is being unloaded");
                        self.relay.fail_queued(&error);
                        self.set_mode(Mode::Draining { until });
                    }
                    Ok(unloading @ (Unloading::End | Unloading::Force)) => {
                        self.core.enter(InstanceState::Unloading, |_| {});
                        return (self.core.done(), Some((unloading == Unloading::Force, None)));
                    }
                }
            }
            Order::Cancel(_) => {
                return (
                    self.core.refuse(RefusedReason::NotLoading, "the load has ended"),
                    None,
                );
            }
            Order::Load(_)
            | Order::PlaceHold(_)
            | Order::ReleaseHoldId(_)
            | Order::Set(_)
            | Order::Ack(_)
            | Order::LookAt(_) => {}
        }
        (self.core.done(), None)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        let closed = self.core.service() != Service::Open;
        // An operator drained the whole worker: loaded models stay but take no requests.
        let state = if mode == Mode::Ready && closed {
            InstanceState::Quiesced
        } else {
            mode.state()
        };
        self.core.enter(state, |_| {});
    }

    fn look_around(&mut self) {
        self.core.look_around(Instant::now());
        let mode = match self.core.service() {
            Service::Leaving => Mode::Draining { until: None },
            Service::Open | Service::Closed => self.mode.in_session(self.core.session()),
        };
        self.set_mode(mode);
    }

    /// The periodic check for slow readers, silent engines, and holds whose time has run out.
    fn sweep(&mut self) -> Option<Over> {
        let now = Instant::now();
        self.core.expire_holds(now);
        self.relay.sweep(now, self.core.ground.patience.slow_reader);
        self.send_more();
        let expects = self.relay.expects_events();
        if expects && !self.sends_alive {
            self.measure();
        }
        let cpu = Duration::from_millis(self.cpu_ms.load(Ordering::Relaxed));
        let healthy = self.health.check(now, expects, cpu);
        healthy.err().map(|error| (true, Some(error)))
    }

    /// Measures the engine's CPU time without waiting; the next sweep reads the result.
    fn measure(&self) {
        let (process, cpu_ms) = (Arc::clone(&self.process), Arc::clone(&self.cpu_ms));
        // It ends by itself; if it fails, the engine only looks idle.
        tokio::task::spawn_blocking(move || {
            let cpu = procfs::activity(&process.tree()).cpu;
            cpu_ms.store(
                u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX),
                Ordering::Relaxed,
            );
        });
    }

    /// When the next timed action is due.
    fn wake(&self) -> Option<Instant> {
        let drain = match self.mode {
            Mode::Draining { until } => until,
            Mode::Ready | Mode::Quiesced { .. } => None,
        };
        let retry = self.retry.map(|(at, _)| at);
        drain.into_iter().chain(retry).min()
    }

    fn woken(&mut self) {
        let now = Instant::now();
        self.set_mode(self.mode.at(now));
        if self.retry.is_some_and(|(at, _)| at <= now) {
            self.relay.retry(now);
            self.send_more();
        }
    }

    /// After each event: reports touches, ends a finished drain, and sends a request again that found no room.
    fn settle(&mut self) -> Option<Over> {
        let moved = self.relay.take_moved();
        let touches = moved.begun + moved.ended + self.core.visits.take_touches();
        if touches > 0 {
            let counts = (self.relay.running(), self.relay.queued());
            let idle = self.relay.is_idle();
            let urgency = if idle { Urgency::Soon } else { Urgency::Lazy };
            self.core.touch(touches, urgency, counts);
        }
        self.retry = match self.retry {
            _ if !self.relay.wants_retry() => None,
            None => Some((Instant::now() + RETRY.0, RETRY.0)),
            Some((at, wait)) if at <= Instant::now() => {
                let wait = (wait * 2).min(RETRY.1);
                Some((Instant::now() + wait, wait))
            }
            waiting => waiting,
        };
        let idle = self.relay.is_idle() && self.core.visits.count() == 0;
        (matches!(self.mode, Mode::Draining { .. }) && idle).then_some((false, None))
    }

    fn close(mut self, force: bool, failure: Option<Error>) -> End {
        let told = match &failure {
            Some(error) => error.clone(),
            None => Code::ModelUnloading.error("the model was unloaded"),
        };
        // What the engine sent before it was lost still counts.
        while let Ok(message) = self.messages.try_recv() {
            if let Some(Message::Tick(tick)) = message.kind
                && self.relay.tick(tick).is_err()
            {
                break;
            }
        }
        self.relay.fail_all(&told);
        // The log is for operators, not for every caller.
        let log = || self.process.log().join("\n");
        let failure = failure.map(|error| Box::new(error.with_detail("log", log())));
        End {
            process: Some(self.process),
            force,
            failure,
        }
    }
}

async fn room(commands: &mpsc::Sender<SessionCommand>) {
    if commands.reserve().await.is_err() {
        // The engine is lost; the end of its messages tells that.
        pending().await
    }
}

fn crashed(how: &str) -> Option<Over> {
    Some((true, Some(Code::RuntimeCrashed.error(how))))
}
