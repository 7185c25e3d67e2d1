#![doc = include_str!("../README.md")]

pub mod cell_graph;
pub mod engine;
pub mod policy;
pub mod scheduler;
