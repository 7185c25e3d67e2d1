//! The scheduler under all policies, with simulated clocks, users and workers.

mod algorithm1;
mod ebatch;
mod figure5;
mod large;
mod memory;
mod models;
mod properties;
mod shares;
mod shortest;
mod simulated;
mod turns;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::*;
use crate::cell_graph::test_graphs;
use crate::cell_graph::{BatchSizes, BatchTime, CellCost, Cells, Graph, NodeId};
use crate::policy::{BatchSteps, Cellular, Order, PolicyKind};
use simulated::*;

/// The policies that the tests of every policy run.
const POLICIES: [PolicyKind; 3] = PolicyKind::ALL;

/// A policy with its settings.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: PolicyKind,
}

impl Setting {
    /// No policy here forms groups of requests; those that the load generator runs with the same
    /// tests do.
    fn new(kind: PolicyKind, _requests: usize) -> Setting {
        Setting { kind }
    }

    fn forms_groups(&self) -> bool {
        false
    }

    fn build(&self, workers: usize) -> Box<dyn Policy> {
        self.kind.build(workers, BatchSteps::default())
    }
}
