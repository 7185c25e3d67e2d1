//! Serving: requests of many users, batched cell by cell.
//!
//! A request is a graph of cells ([`cell_graph`]).
pub mod cell_graph;
