//! How an instance with a loaded engine reacts to orders: total functions over [`Mode`], without tasks or clocks.

use std::time::{Duration, Instant};

use muster_proto::v1::{InstanceState, RefusedReason, Unload, UnloadMode};

use crate::convert;

/// Whether a loaded instance takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Takes requests.
    Ready,
    /// Takes no requests; can be resumed. The end of the controller's session undoes it.
    Quiesced {
        /// Number of the session in which the order came.
        session: u64,
    },
    /// Finishes running requests and then unloads; gives up at `until`.
    Draining {
        /// When it gives up; none = never.
        until: Option<Instant>,
    },
}

/// What an unload depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Requests or calls run or wait.
    pub(crate) busy: bool,
    /// A hold is in place.
    pub(crate) held: bool,
    /// Number of touches so far.
    pub(crate) touch_seq: u64,
}

/// What an accepted unload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unloading {
    /// End the engine in order.
    End,
    /// Kill it, whatever runs.
    Force,
    /// Refuse waiting requests and let running ones finish, until this moment.
    Drain(Option<Instant>),
}

/// Decides an unload (PROTOCOL.md 8, 11).
///
/// # Errors
/// Why it is refused; nothing has changed then.
pub(crate) fn unload(unload: Unload, work: Work, now: Instant) -> Result<Unloading, RefusedReason> {
    match unload.mode() {
        UnloadMode::Unspecified => Err(RefusedReason::Invalid),
        UnloadMode::IfIdle if work.busy => Err(RefusedReason::Busy),
        UnloadMode::IfIdle if work.held => Err(RefusedReason::Held),
        UnloadMode::IfIdle if work.touch_seq > unload.if_touch_seq => Err(RefusedReason::Touched),
        UnloadMode::IfIdle => Ok(Unloading::End),
        UnloadMode::Drain => {
            let patience = convert::span_from(unload.drain_for).filter(|limit| !limit.is_zero());
            Ok(Unloading::Drain(
                patience.and_then(|limit: Duration| now.checked_add(limit)),
            ))
        }
        UnloadMode::Force => Ok(Unloading::Force),
    }
}

impl Mode {
    /// The state as the wire's value.
    pub(crate) fn state(self) -> InstanceState {
        match self {
            Self::Ready => InstanceState::Ready,
            Self::Quiesced { .. } => InstanceState::Quiesced,
            Self::Draining { .. } => InstanceState::Draining,
        }
    }

    /// The mode after Quiesce in this session. A draining instance takes no requests anyway, and keeps draining.
    pub(crate) fn quiesced(self, session: u64) -> Self {
        match self {
            Self::Ready | Self::Quiesced { .. } => Self::Quiesced { session },
            Self::Draining { .. } => self,
        }
    }

    /// The mode after Resume.
    pub(crate) fn resumed(self) -> Self {
        match self {
            Self::Ready | Self::Quiesced { .. } => Self::Ready,
            Self::Draining { .. } => self,
        }
    }

    /// The mode when the controller's session is `current`, or none.
    pub(crate) fn in_session(self, current: Option<u64>) -> Self {
        match self {
            Self::Quiesced { session } if current != Some(session) => Self::Ready,
            Self::Ready | Self::Quiesced { .. } | Self::Draining { .. } => self,
        }
    }

    /// The mode at `now`: an instance whose drain has timed out is ready again.
    pub(crate) fn at(self, now: Instant) -> Self {
        match self {
            Self::Draining { until: Some(until) } if until <= now => Self::Ready,
            Self::Ready | Self::Quiesced { .. } | Self::Draining { .. } => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(mode: UnloadMode, if_touch_seq: u64) -> Unload {
        Unload {
            mode: mode.into(),
            if_touch_seq,
            drain_for: None,
        }
    }

    #[test]
    fn an_idle_unload_is_a_compare_and_set() {
        let now = Instant::now();
        let work = |busy, held, touch_seq| Work {
            busy,
            held,
            touch_seq,
        };
        let decide = |seen, work| unload(order(UnloadMode::IfIdle, seen), work, now);
        assert_eq!(decide(5, work(false, false, 5)), Ok(Unloading::End));
        assert_eq!(decide(5, work(false, false, 6)), Err(RefusedReason::Touched));
        assert_eq!(decide(5, work(true, true, 6)), Err(RefusedReason::Busy));
        assert_eq!(decide(5, work(false, true, 5)), Err(RefusedReason::Held));
        assert_eq!(
            unload(order(UnloadMode::Unspecified, 9), Work::default(), now),
            Err(RefusedReason::Invalid)
        );
        let busy = work(true, true, 9);
        assert_eq!(
            unload(order(UnloadMode::Drain, 0), busy, now),
            Ok(Unloading::Drain(None))
        );
        assert_eq!(
            unload(order(UnloadMode::Force, 0), busy, now),
            Ok(Unloading::Force)
        );
    }

    #[test]
    fn quiesce_ends_with_its_session() {
        let quiesced = Mode::Ready.quiesced(3);
        assert_eq!(quiesced.in_session(Some(3)), quiesced);
        assert_eq!(quiesced.in_session(None), Mode::Ready);
        assert_eq!(
            quiesced.in_session(Some(4)),
            Mode::Ready,
            "lost and found again in between"
        );
        assert_eq!(quiesced.resumed(), Mode::Ready);
    }

    #[test]
    fn a_drain_gives_up_and_nothing_else_ends_it() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let draining = Mode::Draining { until: Some(later) };
        assert_eq!(draining.at(now), draining);
        assert_eq!(draining.at(later), Mode::Ready);
        assert_eq!(draining.quiesced(1), draining);
        assert_eq!(draining.resumed(), draining);
        assert_eq!(draining.in_session(None), draining);
        let forever = Mode::Draining { until: None };
        assert_eq!(forever.at(later), forever);
    }
}
