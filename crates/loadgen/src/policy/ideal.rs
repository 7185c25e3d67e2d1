//! The ideal baseline: a graph written down beforehand, for inputs that all have that very graph.
//!
//! BatchMaker, section 7.5: node after node, in an order of their dependencies, each for all
//! members at once. Requests of other graphs are not refused: a group ends before the first that
//! differs from its first member, so every group is of one graph, smaller where graphs differ.

use super::graph_batch::{Rule, Step};
use gatestream_serve::scheduler::{RequestKey, Table};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ideal;

impl Rule for Ideal {
    fn step(&self) -> Step {
        // Members in step with each other have the same nodes ready in the same order.
        Step::Padded
    }

    fn fits(&self, table: &Table, first: RequestKey, next: RequestKey) -> bool {
        table.has_graph_of(first, next)
    }
}
