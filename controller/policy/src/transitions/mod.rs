//! One file per kind of event. A transition changes facts and collects effects; it decides nothing about the load queue.

mod catalogue;
mod ended;
mod ensure;
mod follow;
mod ghost;
mod group;
mod operator;
mod outcome;
mod report;
mod worker;
