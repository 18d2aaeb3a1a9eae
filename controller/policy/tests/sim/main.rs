//! Whole days of a fleet in seconds, under the real policy and beside what others do.
//!
//! `cargo test -p muster-policy --test sim` runs a small box. The table of README comes from
//! `cargo test --release -p muster-policy --test sim -- --ignored --nocapture`.

#[cfg(test)]
mod baselines;
#[cfg(test)]
mod drifting;
#[cfg(test)]
mod others;
#[cfg(test)]
mod outcome;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod table;
#[cfg(test)]
mod worker;
#[cfg(test)]
mod world;
