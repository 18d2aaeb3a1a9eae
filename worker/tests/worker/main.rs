//! The worker as a real process, with the stub engine, a scripted controller and gateways.

#[cfg(test)]
mod ends;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod host;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod throughput;
#[cfg(test)]
mod unloading;

#[cfg(test)]
use muster_fakes::{controller::workers as controller, gateway};
