//! Policies on examples worked out by hand, and orderings of the paper.

use gatestream_accelerator_sim::accelerator::{Accelerator, Units};
use gatestream_accelerator_sim::arrivals::{Arrival, Arrivals, Lengths};
use gatestream_accelerator_sim::ebatch::Cap;
use gatestream_accelerator_sim::energy::Energy;
use gatestream_accelerator_sim::network::Network;
use gatestream_accelerator_sim::outcome::Outcome;
use gatestream_accelerator_sim::policy::{Machine, Waits, bucketing, cellular, ebatch, padding};

/// A step of a layer takes 16 ns, reading its weights 128 ns.
fn small(lanes: usize, layers: usize) -> Machine {
    let accelerator = Accelerator {
        units: Units::DotProducts { width: 8 },
        lanes,
        clock: 1e9,
        memory_bandwidth: 4e9,
    };
    let network = Network {
        gates: 4,
        layers,
        hidden_size: 8,
    };
    let machine = Machine::new(accelerator, network);
    assert_eq!(machine.step_time(), 16);
    assert_eq!(accelerator.fetch_time(&network), 128);
    machine
}

fn at(time: u64, steps: usize) -> Arrival {
    Arrival { time, steps }
}

/// Latencies in nanoseconds.
fn latencies(outcome: &Outcome) -> Vec<u64> {
    let seconds = outcome.latencies.iter();
    seconds
        .map(|&latency| (f64::from(latency) * 1e9).round() as u64)
        .collect()
}

#[test]
fn padding_by_hand() {
    let outcome = padding(&small(2, 2), [at(0, 1), at(0, 3), at(10, 2)]);
    // Two layers of 3 steps, then two of 2: (128 + 48) · 2, and (128 + 32) · 2.
    assert_eq!(latencies(&outcome), [352, 352, 352 + 320 - 10]);
    assert_eq!(outcome.counts.weight_bytes, 4 * 512);
    // Two requests in the first 400 ns.
    assert_eq!(outcome.throughput_between(0, 400), 2.0 / 400e-9);
    assert_eq!(outcome.counts.steps, 10);
    assert_eq!(
        (outcome.counts.lane_steps, outcome.counts.padded_lane_steps),
        (12, 4)
    );
}

#[test]
fn bucketing_by_hand() {
    // Buckets of 2 lengths: (2, 3) and (4, 5).
    let outcome = bucketing(&small(2, 1), [at(0, 2), at(0, 4), at(0, 3)], 1);
    // The oldest is of the first bucket; one layer keeps its weights.
    assert_eq!(latencies(&outcome), [176, 176, 176 + 64]);
    assert_eq!(outcome.counts.padded_lane_steps, 1);
    assert_eq!(outcome.counts.weight_bytes, 512);
}

#[test]
fn cellular_by_hand() {
    let outcome = cellular(&small(2, 2), [at(0, 1), at(0, 3), at(10, 2)], 2);
    // Sweeps of 2, 2 and 0 steps: the third request joins the second one.
    let sweep = 2 * (128 + 32);
    assert_eq!(latencies(&outcome), [sweep, 2 * sweep, 2 * sweep - 10]);
    assert_eq!(
        (outcome.counts.lane_steps, outcome.counts.padded_lane_steps),
        (12, 0)
    );
}

#[test]
fn reads_that_overlap_cost_what_is_longer() {
    let machine = small(2, 2).overlap_fetches();
    // Reading takes 128 ns in each layer, 3 steps take 48, 10 take 160.
    let outcome = padding(&machine, [at(0, 3), at(300, 10)]);
    assert_eq!(latencies(&outcome), [2 * 128, 2 * 160]);
}

#[test]
fn ebatch_by_hand() {
    // The third request arrives in the first step and takes over the lane of the first one: two of
    // its steps follow in the batch, the third in the next.
    let outcome = ebatch(
        &small(2, 2),
        [at(0, 1), at(0, 3), at(130, 3)],
        Cap::Steps(3),
        Waits::default(),
    );
    let first = 2 * (128 + 3 * 16);
    let second = 2 * (128 + 16);
    assert_eq!(latencies(&outcome), [first, first, first + second - 130]);
    assert_eq!(outcome.counts.lane_steps, 2 * 7);
}

/// Requests of MNMT at this rate: from 20 to 100 steps.
fn requests(rate: f64, count: usize) -> impl Iterator<Item = Arrival> {
    let lengths = Lengths::Uniform {
        least: 20,
        most: 100,
    };
    Arrivals::new(rate, lengths, 7).take(count)
}

#[test]
fn every_policy_evaluates_every_step_once() {
    let machine = Machine::new(Accelerator::e_pur(64), Network::mnmt());
    let steps: u64 = requests(700.0, 3000)
        .map(|arrival| arrival.steps as u64)
        .sum();
    let waits = Waits {
        wait: 5_000_000,
        allowed: None,
    };
    for outcome in [
        padding(&machine, requests(700.0, 3000)),
        bucketing(&machine, requests(700.0, 3000), 9),
        cellular(&machine, requests(700.0, 3000), 5),
        ebatch(&machine, requests(700.0, 3000), Cap::Steps(50), waits),
        ebatch(&machine, requests(700.0, 3000), Cap::Longest, waits),
    ] {
        assert_eq!(outcome.latencies.len(), 3000);
        assert_eq!(outcome.counts.lane_steps, 8 * steps);
    }
}

/// Section 3 and Figures 8, 9 and 15 of the paper, in the order that it finds, at saturation.
#[test]
fn orderings_of_the_paper() {
    let machine = Machine::new(Accelerator::e_pur(64), Network::mnmt());
    let saturated = || requests(1e6, 6000);
    let padded = padding(&machine, saturated());
    let sweeps = cellular(&machine, saturated(), 5);
    let waits = Waits::default();
    let lanes = ebatch(&machine, saturated(), Cap::Longest, waits);
    // "on average, 40 %" of the work of padding is useless; of cellular batching none.
    assert!((padded.padded() - 0.4).abs() < 0.05, "{}", padded.padded());
    assert!(sweeps.padded() == 0.0);
    // Cellular batching reads a deep network's weights more often, and is slower by that.
    let ratio = sweeps.weight_bytes_per_request() / padded.weight_bytes_per_request();
    assert!(ratio > 5.0, "{ratio}");
    assert!(sweeps.throughput() < padded.throughput());
    // E-BATCH has the highest throughput.
    let gain = lanes.throughput() / padded.throughput();
    assert!(gain > 1.3, "{gain}");
    // A larger cap never needs more energy.
    let joules = [16, 64, 256].map(|cap| {
        let outcome = ebatch(&machine, saturated(), Cap::Steps(cap), waits);
        let energy = Energy::of(&machine.accelerator);
        outcome
            .joules_per_request(&energy, &machine.network)
            .total()
    });
    assert!(joules.is_sorted_by(|a, b| a >= b), "{joules:?}");
}
