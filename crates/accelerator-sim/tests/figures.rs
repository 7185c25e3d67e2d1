//! Figures 3, 4 and 5 of the paper, step by step: four lanes, and one layer, whose weights are
//! read once.

use gatestream_accelerator_sim::accelerator::{Accelerator, Units};
use gatestream_accelerator_sim::arrivals::Arrival;
use gatestream_accelerator_sim::network::Network;
use gatestream_accelerator_sim::outcome::Outcome;
use gatestream_accelerator_sim::policy::{Machine, bucketing, cellular, padding};

fn machine() -> Machine {
    let accelerator = Accelerator {
        units: Units::DotProducts { width: 8 },
        lanes: 4,
        clock: 1e9,
        memory_bandwidth: 4e9,
    };
    let network = Network {
        gates: 4,
        layers: 1,
        hidden_size: 8,
    };
    Machine::new(accelerator, network)
}

/// Requests as pairs of the time step of their arrival and their steps.
fn requests<'a>(
    machine: &Machine,
    all: &'a [(u64, usize)],
) -> impl Iterator<Item = Arrival> + use<'a> {
    let (fetch, step) = (machine.fetch_time(), machine.step_time());
    all.iter().map(move |&(arrived, steps)| Arrival {
        time: if arrived == 0 {
            0
        } else {
            fetch + arrived * step
        },
        steps,
    })
}

/// The time step after which each request is complete, in the order of completion.
fn ends(machine: &Machine, outcome: &Outcome) -> Vec<u64> {
    let ends = outcome.completions.iter();
    ends.map(|end| (end - machine.fetch_time()) / machine.step_time())
        .collect()
}

/// "request 1 completes its execution long before request 4, but it is not returned"; requests 5
/// and 6 follow in a batch of their own.
#[test]
fn figure_3() {
    let machine = machine();
    let all = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (2, 2)];
    let outcome = padding(&machine, requests(&machine, &all));
    assert_eq!(ends(&machine, &outcome), [4, 4, 4, 4, 7, 7]);
    assert_eq!(outcome.counts.padded_lane_steps, 3 + 2 + 1 + 1);
}

/// Requests 1 and 2, then 3 to 5, then 6, which is of the first bucket. Requests 3 to 5 have 4, 5
/// and 3 steps: they differ by 2, though the text says that the width is one.
#[test]
fn figure_4() {
    let machine = machine();
    let all = [(0, 1), (0, 2), (0, 4), (0, 5), (0, 3), (1, 2)];
    let outcome = bucketing(&machine, requests(&machine, &all), 2);
    assert_eq!(ends(&machine, &outcome), [2, 2, 7, 7, 7, 9]);
    assert_eq!(outcome.counts.padded_lane_steps, 1 + 1 + 2);
}

/// Request 5 takes the lane of request 1 after one step, request 6 that of request 2 after two.
#[test]
fn figure_5() {
    let machine = machine();
    let all = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (2, 2)];
    let outcome = cellular(&machine, requests(&machine, &all), 1);
    assert_eq!(ends(&machine, &outcome), [1, 2, 3, 4, 4, 4]);
    assert_eq!(outcome.counts.padded_lane_steps, 0);
    // Four batches in all.
    assert_eq!(outcome.counts.steps, 4);
}
