//! Bucketing: padding among requests of similar length.
//!
//! BatchMaker, section 7.1: bucket `i` takes requests of lengths in `(i·width, (i+1)·width]`; buckets that
//! are not empty take turns. The width is 10 there. A length is the number of nodes that is known when the
//! request arrives: an encoder–decoder's input, not its answer. Priorities count within a bucket.
//!
//! A group is padded to its longest member. The paper's systems run one graph for each bucket, made
//! beforehand because making it takes them long, and so pad to the bucket's bound; [`PadTo::Bound`] does that
//! too. Here nothing has to be made, and the baseline would only lose by it.

use super::graph_batch::{Rule, Step};
use crate::scheduler::{RequestKey, Table};

/// How many steps a bucket's groups run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadTo {
    /// As many as the longest member has.
    Longest,
    /// As many as the bucket's longest possible request has. After its members' last steps, a group's tasks
    /// have no rows but padding, and its members are returned after those.
    Bound,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucketing {
    /// Greatest difference of lengths in a bucket, and one. 0 counts as 1.
    pub width: usize,
    /// How many steps are run.
    pub pad: PadTo,
}

impl Rule for Bucketing {
    fn name(&self) -> &'static str {
        match self.pad {
            PadTo::Longest => "bucketing",
            PadTo::Bound => "materialised",
        }
    }

    fn step(&self) -> Step {
        Step::Padded
    }

    fn queue(&self, table: &Table, request: RequestKey) -> usize {
        table.nodes(request).saturating_sub(1) / self.width.max(1)
    }

    fn least_steps(&self, queue: usize) -> usize {
        match self.pad {
            PadTo::Longest => 0,
            PadTo::Bound => (queue + 1) * self.width.max(1),
        }
    }
}
