//! Plans with times that a test chooses.

use gatestream::model::Model;
use gatestream::plan::{Cost, Measured, Plan};

/// A plan on one core with these measured entries: batch, steps, nanoseconds.
pub fn measured_plan(model: &Model, entries: &[(usize, usize, u64)]) -> Plan {
    let entries = entries.iter().map(|&(batch, steps, median_ns)| {
        let mut entry = Plan::with_threads(model, batch, steps, 1).entries.remove(0);
        entry.measured = Some(Measured {
            cost: Cost {
                median_ns,
                spread_ns: 0,
            },
            runner_up: None,
        });
        entry
    });
    Plan {
        entries: entries.collect(),
    }
}
