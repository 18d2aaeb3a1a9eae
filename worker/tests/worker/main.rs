//! The worker as a real process, with the stub engine, a scripted controller and gateways.

mod controller;
mod ends;
mod fleet;
mod gateway;
mod rig;
mod streams;
mod unloading;
