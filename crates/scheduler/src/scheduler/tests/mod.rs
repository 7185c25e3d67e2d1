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

/// A policy by its name; that of the load generator has more of them.
type Kind = PolicyKind;

/// The policies that the tests of every policy run.
fn policies() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter()
}

/// A policy with its settings.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: Kind,
}

impl Setting {
    /// No policy here forms groups of requests; those that the load generator runs with the same
    /// tests do.
    fn new(kind: impl Into<Kind>, _requests: usize) -> Setting {
        let kind = kind.into();
        Setting { kind }
    }

    /// Whether requests with the fewest nodes left go first.
    fn takes_shortest(&self) -> bool {
        self.kind == PolicyKind::Shortest
    }

    fn forms_groups(&self) -> bool {
        false
    }

    fn build(&self, workers: usize) -> Box<dyn Policy> {
        self.kind.build(workers, BatchSteps::default())
    }
}
