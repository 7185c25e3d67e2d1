//! Bucketing: padding among requests of similar length.
//!
//! BatchMaker, section 7.1: bucket `i` holds requests with lengths in `(i·width, (i+1)·width]`, and
//! non-empty buckets are served in turn. The width is 10 there. The length is the number of nodes
//! known when the request arrives: the source of an encoder–decoder, not its translation.
//! Priorities count within a bucket.
//!
//! A group is padded to its longest member. The paper's systems pad to the upper bound of the
//! bucket, because they build one graph for each bucket in advance; here that would only slow the
//! baseline down.

use super::graph_batch::{Rule, Step};
use gatestream_serve::scheduler::{RequestKey, Table};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucketing {
    /// Number of lengths in a bucket; 0 counts as 1.
    pub width: usize,
}

impl Rule for Bucketing {
    fn step(&self) -> Step {
        Step::Padded
    }

    fn queue(&self, table: &Table, request: RequestKey) -> usize {
        table.nodes(request).saturating_sub(1) / self.width.max(1)
    }
}
