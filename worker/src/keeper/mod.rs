//! The keeper: a small process between the worker and each engine, which ends the engine's whole process tree (PROTOCOL.md 22).
//!
//! ```text
//!   worker ══ control socket (the life line) ══ keeper ── fork, exec ──► engine ──► its children …
//!      ▲                                          │ subreaper, own group        own group, PDEATHSIG = KILL
//!      └───────── stdout and stderr of all ───────┴────────────────────────────────────┘
//!
//!   running ──engine exits, `stop`, worker dies──► ending (TERM) ──grace over, `kill`──► killing (KILL) ──no child left──► gone
//! ```
//!
//! The kernel closes the worker's end of the socket however the worker dies, so the keeper needs no heartbeat. As a subreaper it inherits
//! orphans of the tree, so "no child left" means that the tree has ended. If the keeper itself is killed, the engine dies by its parent
//! death signal and the worker ends the rest: every process of the tree has `MUSTER_INSTANCE` in its environment.
//!
//! * [`child`]: the keeper process. [`handle`]: the worker's side. [`inherited`]: its environment. [`sweep()`]: leftovers of an earlier
//!   boot.
//!
//! Architecture invariant: nothing in here knows what an engine is; it can keep any command.

mod cgroup;
mod child;
mod dir;
mod environment;
mod handle;
mod proc;
mod protocol;
mod record;
mod sweep;

pub(crate) use child::{KeeperArgs, run};
pub(crate) use dir::EngineDir;
pub(crate) use environment::inherited;
pub(crate) use handle::{EngineCommand, Kept, StartError, start};
pub(crate) use sweep::sweep;

/// Environment variable that marks every process of an engine with its instance.
pub(crate) const MARK: &str = "MUSTER_INSTANCE";
