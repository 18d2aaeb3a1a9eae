//! What can happen, and how often.

use muster_policy::UnloadHow;
use proptest::prelude::*;

/// One thing that happens; numbers choose among what there is at that moment.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Open(u8),
    Close(u8),
    Request(u8),
    RouteRequest(u8),
    EndRequest(u8),
    Down(u8),
    Up(u8),
    FinishLoad(u8),
    FailLoad(u8, bool),
    /// An engine fails, while it loads or later, or somebody at its host wants it gone: it is unloading first (`Exit` ends it).
    BeginEnd(u8, Option<bool>),
    Exit(u8),
    Crash(u8),
    Worker(u8, WorkerOp),
    Model(u8, ModelOp),
    Touches(u8),
    Foreign(u8),
    RestartController(bool),
    /// Touches that were told already are told again, older and with lower counts.
    LateTouch(u8),
    Advance(u16),
    Settle,
    /// A gateway just could not reach a worker, and an instance.
    OpenAvoiding(u8, u8),
    /// A few short requests, one right after the other.
    Burst(u8),
    /// A worker cannot say what became of a command, which it has carried out or not.
    Unknown(u8, bool),
    /// A command gets lost on a session that lives on, or its outcome does.
    Unanswered(u8, bool),
    /// An engine comes to use more or less than it did, whatever was set aside for it.
    Memory(u8, u8),
    /// Workers report without memory samples for a while.
    Withhold(bool),
    /// The controller comes back with other limits.
    RestartWith(u8),
    /// The driver stands still for so many seconds.
    Jump(u16),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum WorkerOp {
    Lose,
    Rejoin,
    Restart,
    Leave,
    Forget,
    Drain(bool),
    /// An engine of a lost worker ends, which a live worker sees.
    GhostGone,
    /// Its session is open, and takes nothing any more.
    Deaf,
    /// The same, and there is no place left for what the controller has to say.
    FillUp,
    /// Nothing comes through any more, in either direction, and neither end knows.
    HalfOpen,
    /// It opens another session beside the one that it has.
    JoinAnew,
    /// Its process dies and comes back before anybody knows that its session is over.
    RestartSilently,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ModelOp {
    Load,
    /// With settings that take so many bytes.
    LoadWith(u8),
    Unload(UnloadHow),
    Preload,
    Pin,
    /// Gives it an idle time, of so many seconds; zero = as the configuration says.
    Ttl(u8),
    /// Leaves the catalogue, or comes back.
    Catalogue,
    /// Its files are with one worker only, or with all.
    Files(u8),
    /// What policy would do is asked for.
    Explain,
}

fn worker_op() -> impl Strategy<Value = WorkerOp> {
    prop_oneof![
        2 => Just(WorkerOp::Lose),
        4 => Just(WorkerOp::Rejoin),
        1 => Just(WorkerOp::Restart),
        1 => Just(WorkerOp::Leave),
        1 => Just(WorkerOp::Forget),
        2 => any::<bool>().prop_map(WorkerOp::Drain),
        2 => Just(WorkerOp::GhostGone),
        1 => Just(WorkerOp::Deaf),
        1 => Just(WorkerOp::FillUp),
        2 => Just(WorkerOp::HalfOpen),
        1 => Just(WorkerOp::JoinAnew),
        1 => Just(WorkerOp::RestartSilently),
    ]
}

fn model_op() -> impl Strategy<Value = ModelOp> {
    let how = prop_oneof![
        Just(UnloadHow::Drain),
        Just(UnloadHow::Force),
        Just(UnloadHow::DrainOrCancel)
    ];
    prop_oneof![
        Just(ModelOp::Load),
        any::<u8>().prop_map(ModelOp::LoadWith),
        how.prop_map(ModelOp::Unload),
        any::<u8>().prop_map(ModelOp::Files),
        Just(ModelOp::Preload),
        Just(ModelOp::Pin),
        any::<u8>().prop_map(ModelOp::Ttl),
        Just(ModelOp::Catalogue),
        Just(ModelOp::Explain),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => any::<u8>().prop_map(Op::Open),
        6 => any::<u8>().prop_map(Op::Close),
        8 => any::<u8>().prop_map(Op::Request),
        4 => any::<u8>().prop_map(Op::RouteRequest),
        8 => any::<u8>().prop_map(Op::EndRequest),
        20 => any::<u8>().prop_map(Op::Down),
        20 => any::<u8>().prop_map(Op::Up),
        8 => any::<u8>().prop_map(Op::FinishLoad),
        2 => any::<(u8, bool)>().prop_map(|(n, engine)| Op::FailLoad(n, engine)),
        3 => any::<(u8, Option<bool>)>().prop_map(|(n, engine)| Op::BeginEnd(n, engine)),
        8 => any::<u8>().prop_map(Op::Exit),
        1 => any::<u8>().prop_map(Op::Crash),
        6 => (any::<u8>(), worker_op()).prop_map(|(n, op)| Op::Worker(n, op)),
        4 => (any::<u8>(), model_op()).prop_map(|(n, op)| Op::Model(n, op)),
        4 => any::<u8>().prop_map(Op::Touches),
        1 => any::<u8>().prop_map(Op::Foreign),
        1 => prop::bool::weighted(0.8).prop_map(Op::RestartController),
        6 => (0_u16..12_000).prop_map(Op::Advance),
        2 => any::<u8>().prop_map(Op::LateTouch),
        4 => Just(Op::Settle),
        2 => any::<(u8, u8)>().prop_map(|(n, worker)| Op::OpenAvoiding(n, worker)),
        2 => any::<u8>().prop_map(Op::Burst),
        1 => any::<(u8, bool)>().prop_map(|(n, reached)| Op::Unknown(n, reached)),
        1 => any::<(u8, bool)>().prop_map(|(n, reached)| Op::Unanswered(n, reached)),
        3 => any::<(u8, u8)>().prop_map(|(n, bytes)| Op::Memory(n, bytes)),
        1 => any::<bool>().prop_map(Op::Withhold),
        1 => any::<u8>().prop_map(Op::RestartWith),
        1 => (0_u16..700).prop_map(Op::Jump),
    ]
}

/// Mostly requests, on a fleet that is too small for its models: evictions race with them.
pub(super) fn crowded_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => any::<u8>().prop_map(Op::Open),
        10 => any::<u8>().prop_map(Op::Close),
        14 => any::<u8>().prop_map(Op::RouteRequest),
        14 => any::<u8>().prop_map(Op::EndRequest),
        14 => any::<u8>().prop_map(Op::Down),
        14 => any::<u8>().prop_map(Op::Up),
        8 => any::<u8>().prop_map(Op::FinishLoad),
        8 => any::<u8>().prop_map(Op::Exit),
        2 => any::<(u8, Option<bool>)>().prop_map(|(n, engine)| Op::BeginEnd(n, engine)),
        1 => any::<(u8, bool)>().prop_map(|(n, engine)| Op::FailLoad(n, engine)),
        1 => (any::<u8>(), worker_op()).prop_map(|(n, op)| Op::Worker(n, op)),
        3 => (any::<u8>(), model_op()).prop_map(|(n, op)| Op::Model(n, op)),
        6 => Just(Op::Settle),
        4 => (0_u16..600).prop_map(Op::Advance),
        4 => any::<u8>().prop_map(Op::Burst),
        1 => any::<(u8, bool)>().prop_map(|(n, reached)| Op::Unknown(n, reached)),
    ]
}
