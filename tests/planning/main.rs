//! Graphs, schedules, partitions and traces of plans, against enumeration and counting.

#[path = "../common/mod.rs"]
mod common;

mod graph;
mod partition;
mod partition_lru;
mod schedules;
mod traces;
