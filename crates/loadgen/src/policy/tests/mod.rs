//! The baselines on the scheduler: what graph batching does in closed form,
//! and the tests that the scheduler has for every policy.

#[path = "../../../../scheduler/src/scheduler/tests/figure5.rs"]
mod figure5;
mod groups;
#[path = "../../../../scheduler/src/scheduler/tests/large.rs"]
mod large;
#[path = "../../../../scheduler/src/scheduler/tests/models.rs"]
mod models;
#[path = "../../../../scheduler/src/scheduler/tests/properties.rs"]
mod properties;
#[path = "../../../../scheduler/src/scheduler/tests/shares.rs"]
mod shares;
#[path = "../../../../scheduler/src/scheduler/tests/simulated.rs"]
mod simulated;
mod steps;
#[path = "../../../../scheduler/src/cell_graph/test_graphs.rs"]
mod test_graphs;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::{ComparedPolicy, Groups};
use gatestream_serve::cell_graph::*;
use gatestream_serve::policy::{BatchSteps, Cellular, Order, PolicyKind};
use gatestream_serve::scheduler::*;
use simulated::*;

/// A policy by its name; that of the engine has fewer of them.
type Kind = ComparedPolicy;

/// The policies that the tests of every policy run: those that the engine does not have.
fn policies() -> impl Iterator<Item = Kind> {
    let all = Kind::ALL.into_iter();
    all.filter(|kind| !matches!(kind, ComparedPolicy::Engine(_)))
}

/// A policy with its settings.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: Kind,
    groups: Groups,
}

impl Setting {
    /// With groups of up to `requests` requests.
    fn new(kind: impl Into<Kind>, requests: usize) -> Setting {
        let (kind, width) = (kind.into(), Groups::WIDTH);
        let groups = Groups { requests, width };
        Setting { kind, groups }
    }

    fn bucketing(requests: usize, width: usize) -> Setting {
        let kind = ComparedPolicy::Bucketing;
        let groups = Groups { requests, width };
        Setting { kind, groups }
    }

    /// Whether requests with the fewest nodes left go first.
    fn takes_shortest(&self) -> bool {
        self.kind == ComparedPolicy::SHORTEST
    }

    /// Whether a worker gets rows of a group only, whatever else is ready.
    fn forms_groups(&self) -> bool {
        self.kind.forms_groups()
    }

    fn build(&self, workers: usize) -> Box<dyn Policy> {
        self.kind.build(workers, self.groups, BatchSteps::default())
    }
}
