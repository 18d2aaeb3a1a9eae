//! Policy against a simulated fleet: the rules one by one, then arbitrary histories.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod eviction;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod failures;
mod files;
#[cfg(test)]
mod fleet_limits;
#[cfg(test)]
mod liveness;
#[cfg(test)]
mod loss;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod patience;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod spans;
#[cfg(test)]
mod strategy;
#[cfg(test)]
#[allow(dead_code, reason = "the rig of the controller uses the rest of it")]
#[path = "../world/mod.rs"]
mod world;
