//! Merging: the graphs of a group become one, which is run level by level.
//!
//! How TensorFlow Fold and DyNet batch (BatchMaker, section 2.3): all ready nodes of the lowest
//! cell, of all members, form a level, whose batches are full up to the last. No padding; but the
//! upper levels of trees have few nodes, and no other request may join them. What merging costs
//! those systems is not counted.

use super::graph_batch::{Rule, Step};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge;

impl Rule for Merge {
    fn step(&self) -> Step {
        Step::Level
    }
}
