//! The baselines on the scheduler of `gatestream-serve`: what graph batching does in closed form,
//! and the tests that the scheduler has for every policy.

#[path = "../../../../serve/src/scheduler/tests/figure5.rs"]
mod figure5;
mod groups;
#[path = "../../../../serve/src/scheduler/tests/large.rs"]
mod large;
#[path = "../../../../serve/src/scheduler/tests/models.rs"]
mod models;
#[path = "../../../../serve/src/scheduler/tests/properties.rs"]
mod properties;
#[path = "../../../../serve/src/scheduler/tests/shares.rs"]
mod shares;
#[path = "../../../../serve/src/scheduler/tests/simulated.rs"]
mod simulated;
#[path = "../../../../serve/src/cell_graph/test_graphs.rs"]
mod test_graphs;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::{Groups, PolicyKind};
use gatestream_serve::cell_graph::*;
use gatestream_serve::policy::{BatchSteps, Cellular, Order};
use gatestream_serve::scheduler::*;
use simulated::*;

/// The policies that the tests of every policy run: the baselines.
const POLICIES: [PolicyKind; 4] = [
    PolicyKind::Padding,
    PolicyKind::Bucketing,
    PolicyKind::Merge,
    PolicyKind::Ideal,
];

/// A policy with its settings.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: PolicyKind,
    groups: Groups,
}

impl Setting {
    /// With groups of up to `requests` requests.
    fn new(kind: PolicyKind, requests: usize) -> Setting {
        let width = Groups::WIDTH;
        let groups = Groups { requests, width };
        Setting { kind, groups }
    }

    fn bucketing(requests: usize, width: usize) -> Setting {
        let kind = PolicyKind::Bucketing;
        let groups = Groups { requests, width };
        Setting { kind, groups }
    }

    /// Whether a worker gets rows of a group only, whatever else is ready.
    fn forms_groups(&self) -> bool {
        POLICIES.contains(&self.kind)
    }

    fn build(&self, workers: usize) -> Box<dyn Policy> {
        self.kind.build(workers, self.groups, BatchSteps::default())
    }
}
