use std::time::Duration;

use super::*;
use crate::candidate::MaxRows;
use crate::drive::{Run, drive};
use crate::policy::ComparedPolicy;
use crate::record::Recording;
use crate::workload::{Arrivals, Lengths, Network, Workload};
use gatestream_serve::cell_graph::{BatchSizes, BatchTime};
use gatestream_serve::policy::BatchSteps;
use machine::BatchTimes;

/// A cell of these batch times, in microseconds by rows.
fn cost(times: &[(usize, u64)]) -> CellCost {
    let mut cost = CellCost::from(BatchSizes { min: 1, max: 1 });
    let batch = |&(rows, micros): &(usize, u64)| BatchTime {
        rows,
        steps: 1,
        time: Duration::from_micros(micros),
    };
    cost.times = times.iter().map(batch).collect();
    cost
}

fn machines(count: usize, workers: usize, routing: Routing, times: &[(usize, u64)]) -> Machines {
    let spec = EngineSpec {
        network: Network::Lstm,
        shape: crate::in_process::tests::shape(8, 8),
        seed: 1,
        threads: workers,
        workers,
        tasks_at_once: 1,
        steps_at_once: 1,
        batch_steps: BatchSteps::default(),
        cuda: Vec::new(),
    };
    let calibrated = vec![Calibration {
        cell: "chain".into(),
        cost: cost(times),
    }];
    Machines::one(spec, routing, calibrated).of(count)
}

fn run(machines: &Machines, batch: usize, rate: f64, steps: usize) -> Recording {
    let candidate = Candidate {
        policy: Some(ComparedPolicy::CELLULAR),
        batch: Some(MaxRows::uniform(batch, 1)),
        bucket_width: None,
    };
    let (target, clock) = machines.launch(&candidate).unwrap();
    let arrivals = Arrivals::Poisson { rate };
    let workload = Workload::Chains(Lengths::Fixed(steps));
    let run = Run {
        warm_up: Duration::from_secs(5),
        window: Duration::from_secs(100),
        ..Run::new(&arrivals, &workload)
    };
    drive(&target, &clock, &run)
}

/// The mean wait of M/D/c queues: exact for one server (Pollaczek and Khinchine), a classic
/// approximation for several (half of that of M/M/c, by Erlang's formula).
fn mean_wait(servers: usize, rate: f64, service: f64) -> f64 {
    let offered = rate * service;
    let c = servers as f64;
    let mut term = 1.0;
    let mut sum = 1.0;
    for k in 1..servers {
        term *= offered / k as f64;
        sum += term;
    }
    let last = term * offered / c * c / (c - offered);
    let waits = last / (sum + last);
    0.5 * waits * service / (c - offered)
}

#[test]
fn a_machine_of_one_row_is_a_queue_with_constant_service() {
    // Batches of one row of one step: 10 ms, at 70 % load.
    for workers in [1, 2, 4] {
        let rate = 70.0 * workers as f64;
        let all = run(
            &machines(1, workers, Routing::InTurn, &[(1, 10_000)]),
            1,
            rate,
            1,
        );
        let expected = 1e3 * (mean_wait(workers, rate, 0.01) + 0.01);
        let near = (all.latency.mean() / expected - 1.0).abs();
        assert!(
            near < 0.1,
            "{workers}: {} for {expected} ms",
            all.latency.mean()
        );
        assert_eq!(all.unanswered(), 0);
    }
}

#[test]
fn random_routing_makes_separate_queues_and_shorter_queues_wait_less() {
    let mean = |routing| run(&machines(8, 1, routing, &[(1, 10_000)]), 1, 8.0 * 80.0, 1).latency;
    let (random, shorter) = (mean(Routing::Random), mean(Routing::ShorterOfTwo));
    // Each of eight machines has an eighth of the Poisson arrivals.
    let expected = 1e3 * (mean_wait(1, 80.0, 0.01) + 0.01);
    assert!(
        (random.mean() / expected - 1.0).abs() < 0.1,
        "{}",
        random.mean()
    );
    assert!(shorter.mean() < 0.6 * random.mean(), "{}", shorter.mean());
    assert!(shorter.quantile(0.99) < 0.5 * random.quantile(0.99));
}

#[test]
fn requests_join_batches_at_each_step() {
    // Any number of rows takes the same time: no request waits longer than a step.
    let times = [(1, 1_000), (64, 1_000)];
    let all = run(&machines(1, 1, Routing::InTurn, &times), 64, 200.0, 20);
    assert!(
        all.latency.quantile(0.999) <= 21.1,
        "{}",
        all.latency.quantile(0.999)
    );
    assert!(all.latency.mean() > 20.0);
    // Little's law: requests under way are those that arrive in the time of one.
    let batch = all.cells["chain"].mean_batch();
    assert!(
        (batch / (200.0 * all.computing.mean() / 1e3) - 1.0).abs() < 0.1,
        "{batch}"
    );
}

#[test]
fn machines_bear_in_proportion_and_overload_is_seen() {
    let times = [(1, 1_000), (16, 4_000)];
    for count in [1, 4] {
        // A machine with full batches: 16 rows in 4 ms, 10 steps each: 400 requests a second.
        let at = |load: f64| {
            run(
                &machines(count, 1, Routing::ShorterOfTwo, &times),
                16,
                load * 400.0 * count as f64,
                10,
            )
        };
        assert!(at(0.9).latency.quantile(0.99) < 150.0, "{count}");
        assert!(at(1.2).backlog > 1000, "{count}");
    }
}

#[test]
fn deadlines_end_requests_that_wait() {
    let machines = machines(2, 1, Routing::InTurn, &[(1, 10_000)]);
    let (target, clock) = machines.launch(&Candidate::default()).unwrap();
    let arrivals = Arrivals::Poisson { rate: 400.0 };
    let workload = Workload::Chains(Lengths::Fixed(1));
    let run = Run {
        deadline: Some(Duration::from_millis(25)),
        window: Duration::from_secs(20),
        ..Run::new(&arrivals, &workload)
    };
    let all = drive(&target, &clock, &run);
    let [refused, late, failed, unfinished] = all.errors;
    assert_eq!([refused, failed, unfinished], [0, 0, 0]);
    // Two machines answer 200 a second at most. A request that begins late may end too late.
    assert!(
        2 * late > all.due && late < all.due,
        "{late} of {}",
        all.due
    );
    assert!(all.latency.quantile(1.0) <= 25.1);
}

#[test]
fn times_between_measured_rows_are_interpolated() {
    let times = BatchTimes::new(&cost(&[(2, 100), (4, 200), (8, 300)]));
    for (rows, micros) in [
        (1, 100),
        (2, 100),
        (3, 150),
        (4, 200),
        (6, 250),
        (8, 300),
        (16, 600),
    ] {
        assert_eq!(times.of(rows), Duration::from_micros(micros), "{rows}");
    }
}
