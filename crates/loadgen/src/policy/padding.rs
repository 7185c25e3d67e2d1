//! Padding: as many rows at every step as the group has members, until the longest is done.
//!
//! How MXNet and TensorFlow batch recurrent networks (BatchMaker, section 2.3). All steps of one
//! cell come before those of the next, so an encoder–decoder runs the encoder until the longest
//! input is read, and then the decoder until every answer has ended. Meant for chains; of other
//! graphs it runs one node of each member at a time, which is right but slow.

use super::graph_batch::{Rule, Step};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding;

impl Rule for Padding {
    fn step(&self) -> Step {
        Step::Padded
    }
}
