//! The cases. Each reports its values with the load beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream::model::{Input, Lstm, Output};
use gatestream::{Plan, Session};
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{Cells, Graph};
use gatestream_serve::engine::{EngineOptions, Request, Stream, Workers};
use gatestream_serve::networks::{
    BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, Outputs,
};
use gatestream_serve::scheduler::Limits;

use super::bounds::{Quota, confine};
use super::load::{BusyCores, Times, Users, call_time};

/// Reports a value: the load beside the case, the measure, the value.
pub type Report<'a> = &'a mut dyn FnMut(&str, &str, f64);

/// A case: its name and the function that measures it.
pub type Case = (&'static str, fn(Report<'_>));

/// All cases.
pub const ALL: [Case; 9] = [
    ("two_models", two_models),
    ("tree_beside_tree", tree_beside_tree),
    ("streams_at_limit", streams_at_limit),
    ("streams_beside_backlog", streams_beside_backlog),
    ("large_request", large_request),
    ("session_beside_busy_core", session_beside_busy_core),
    ("session_in_cpu_set", session_in_cpu_set),
    ("session_in_quota", session_in_quota),
    ("streams_of_20_ms", streams_of_20_ms),
];

const INPUT: usize = 64;
const HIDDEN: usize = 256;
/// The input size of the streams of 20 ms.
const WIDE_INPUT: usize = 80;
const MEASURED: Duration = Duration::from_secs(4);

fn lstm(seed: u64) -> ChainCell {
    let model = Lstm::new(INPUT, HIDDEN).random(seed).expect("valid sizes");
    ChainCell::new(model).expect("a forward model")
}

fn words(steps: usize) -> Vec<f32> {
    values(steps * INPUT)
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * 0.37).sin()).collect()
}

fn request(chain: &Chain, steps: usize) -> Request {
    Request::new(
        chain
            .unfold(&words(steps), None, Outputs::Last)
            .expect("valid words"),
    )
}

fn engine(cells: Cells, options: EngineOptions) -> Arc<Engine> {
    Arc::new(Engine::start(cells, &options).expect("the engine starts"))
}

/// Threads that send requests of `steps` steps, each after the response to the one before.
fn closed_loop(engine: &Arc<Engine>, chain: &Chain, users: usize, steps: usize) -> Users {
    Users::start(users, |_| {
        let (engine, chain) = (Arc::clone(engine), chain.clone());
        move || {
            let ticket = engine.submit(request(&chain, steps));
            ticket.is_ok_and(|ticket| ticket.wait().is_ok()).into()
        }
    })
}

/// A step of one model beside another model whose batches are always full.
fn two_models(report: Report<'_>) {
    for users in [31, 40] {
        let mut cells = Cells::new();
        let (a, b) = (
            Chain::add(&mut cells, lstm(1)),
            Chain::add(&mut cells, lstm(2)),
        );
        let engine = engine(cells, EngineOptions::default());
        let flood = closed_loop(&engine, &b, users, 20);
        std::thread::sleep(Duration::from_millis(500));
        let beside = format!("{users} users");
        let batches = || {
            engine.stats().models[0].cells[b.cell().index()]
                .batches
                .iter()
                .sum::<u64>()
        };
        let (calls, tasks, begin) = (flood.calls(), batches(), Instant::now());
        std::thread::sleep(MEASURED);
        let alone = (flood.calls() - calls) as f64 / begin.elapsed().as_secs_f64();
        let batch = 1e3 * begin.elapsed().as_secs_f64() / (batches() - tasks) as f64;
        let (calls, begin) = (flood.calls(), Instant::now());
        let mut times = Times::of(MEASURED, Duration::from_millis(10), || {
            let _ = engine.submit(request(&a, 1)).expect("room").wait();
        });
        let with = (flood.calls() - calls) as f64 / begin.elapsed().as_secs_f64();
        report(&beside, "batch of the flood", batch);
        report(&beside, "step p50", times.quantile(0.5));
        report(&beside, "step p99", times.quantile(0.99));
        report(&beside, "step max", times.quantile(1.0));
        report(&beside, "requests/s of the flood alone", alone);
        report(&beside, "requests/s of the flood beside the steps", with);
    }
}

/// A complete tree of `leaves` leaves.
fn tree(network: &BinaryTreeLstm, leaves: usize) -> Graph {
    let shape = BinaryTree::complete(leaves).expect("leaves");
    let graph = network.unfold(&shape, &vec![0.25; leaves * INPUT], Outputs::Last);
    graph.expect("valid values")
}

/// A tree of 16 leaves beside a large one.
fn tree_beside_tree(report: Report<'_>) {
    for leaves in [0, 20_000, 100_000] {
        let mut cells = Cells::new();
        let weights = BinaryTreeWeights::random(INPUT, 64, 3).expect("valid sizes");
        let network = BinaryTreeLstm::add(&mut cells, weights).expect("valid weights");
        let engine = engine(cells, EngineOptions::default());
        let large = (leaves > 0).then(|| {
            engine
                .submit(Request::new(tree(&network, leaves)))
                .expect("room")
        });
        let mut times = Times::default();
        let begin = Instant::now();
        // As long as the large tree is computed, a quarter of a second at most.
        while begin.elapsed() < Duration::from_millis(250) {
            times.add(call_time(|| {
                let small = engine
                    .submit(Request::new(tree(&network, 16)))
                    .expect("room");
                small.wait().expect("a response");
            }));
        }
        let beside = format!("{leaves} leaves");
        report(&beside, "tree p50", times.quantile(0.5));
        report(&beside, "tree max", times.quantile(1.0));
        drop(large);
    }
}

fn open(engine: &Engine, chain: &Chain, count: usize) -> Vec<Stream> {
    (0..count)
        .map(|_| engine.stream(chain.cell(), None).expect("room"))
        .collect()
}

/// Streams while other users take all room.
fn streams_at_limit(report: Report<'_>) {
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, lstm(1));
    let limits = Limits {
        requests: 64,
        ..Limits::default()
    };
    let engine = engine(
        cells,
        EngineOptions {
            limits,
            ..EngineOptions::default()
        },
    );
    let streams = open(&engine, &chain, 20);
    let flood = Users::start(3, |_| {
        let (engine, chain) = (Arc::clone(&engine), chain.clone());
        let mut held = std::collections::VecDeque::new();
        move || match engine.submit(request(&chain, 20)) {
            Ok(ticket) => {
                held.push_back(ticket);
                1
            }
            Err(_) => {
                drop(held.pop_front().map(|ticket| ticket.wait()));
                0
            }
        }
    });
    let end = Instant::now() + MEASURED;
    let lives = streams.into_iter().map(|mut stream| {
        std::thread::spawn(move || {
            let inputs = words(1);
            let mut ahead = std::collections::VecDeque::new();
            while Instant::now() < end {
                let Ok(step) = stream.push(&inputs) else {
                    return false;
                };
                ahead.push_back(step);
                if ahead.len() == 4
                    && let Some(first) = ahead.pop_front()
                    && first.wait().is_err()
                {
                    return false;
                }
            }
            true
        })
    });
    let lives: Vec<_> = lives.collect();
    let died = (lives.into_iter()).filter_map(|life| match life.join() {
        Ok(true) => None,
        died => Some(died),
    });
    report(
        "3 flooding users",
        "streams of 20 that died",
        died.count() as f64,
    );
    report(
        "3 flooding users",
        "requests accepted",
        flood.calls() as f64,
    );
}

/// Streams of 20 ms steps beside a backlog of long requests.
fn streams_beside_backlog(report: Report<'_>) {
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, lstm(1));
    let engine = engine(cells, EngineOptions::default());
    let streams = open(&engine, &chain, 10);
    let backlog: Vec<_> = (0..900)
        .filter_map(|_| engine.submit(request(&chain, 1000)).ok())
        .collect();
    let beside = format!("{} x 1000 steps", backlog.len());
    let before = engine.stats().models[0].cells[0]
        .batches
        .iter()
        .sum::<u64>();
    let begin = Instant::now();
    let mut times = paced(streams, &words(1), Duration::from_millis(20), 400);
    let batches = engine.stats().models[0].cells[0]
        .batches
        .iter()
        .sum::<u64>()
        - before;
    report(
        &beside,
        "requests not ended at the end",
        engine.stats().counts.live() as f64,
    );
    report(
        &beside,
        "batch",
        1e3 * begin.elapsed().as_secs_f64() / batches as f64,
    );
    report(&beside, "step p50", times.quantile(0.5));
    report(&beside, "step p99", times.quantile(0.99));
    report(&beside, "step max", times.quantile(1.0));
    drop(backlog);
}

/// Times of the steps of streams, each `steps` steps of `inputs` at a constant interval. The
/// streams begin at different moments of the interval; one thread waits for each.
fn paced(streams: Vec<Stream>, inputs: &[f32], interval: Duration, steps: u32) -> Times {
    let (count, begin) = (streams.len() as u32, Instant::now() + interval);
    let users = streams.into_iter().zip(0..).map(|(mut stream, index)| {
        let (begin, inputs) = (begin + interval * index / count, inputs.to_vec());
        std::thread::spawn(move || {
            let mut times = Times::default();
            for step in 0..steps {
                let due = begin + interval * step;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let answer = stream.push(&inputs).expect("room").wait();
                answer.expect("the output of a step");
                times.add(due.elapsed());
            }
            times
        })
    });
    let users: Vec<_> = users.collect();
    let mut all = Times::default();
    for user in users {
        all.merge(user.join().expect("no panic"));
    }
    all
}

/// Requests of 20 steps while one of many nodes is submitted and dropped.
fn large_request(report: Report<'_>) {
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, lstm(1));
    let limits = Limits {
        request_nodes: 1_000_000,
        bytes: 4 << 30,
        ..Limits::default()
    };
    let engine = engine(
        cells,
        EngineOptions {
            limits,
            ..EngineOptions::default()
        },
    );
    let small = |lasting| {
        Times::of(lasting, Duration::ZERO, || {
            let _ = engine.submit(request(&chain, 20)).expect("room").wait();
        })
    };
    let second = Duration::from_secs(1);
    report("nothing", "request p50", small(second).quantile(0.5));
    report("nothing", "request max", small(second).quantile(1.0));
    // As long as a request is built, but without the engine.
    let computes = Users::start(1, |_| {
        || {
            std::hint::black_box(words(100));
            1
        }
    });
    let mut computing = small(second);
    drop(computes);
    report(
        "a thread of the user that computes",
        "request max",
        computing.quantile(1.0),
    );
    let large = request(&chain, 990_000);
    let (during, ticket) = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| engine.submit(large).expect("room"));
        let times = small(second);
        (times, submitting.join().expect("no panic"))
    });
    let mut during = during;
    report(
        "a request of 990000 steps is submitted",
        "request max",
        during.quantile(1.0),
    );
    let dropping = std::thread::scope(|scope| {
        scope.spawn(move || drop(ticket));
        small(second)
    });
    let mut dropping = dropping;
    report(
        "a request of 990000 steps is dropped",
        "request max",
        dropping.quantile(1.0),
    );
}

/// A session and what it runs.
struct SessionRuns {
    session: Session,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl SessionRuns {
    const STEPS: usize = 24;

    fn new(threads: usize) -> SessionRuns {
        let model = Lstm::new(INPUT, HIDDEN).random(1).expect("valid sizes");
        let plan = Plan::with_threads(&model, 1, SessionRuns::STEPS, threads);
        SessionRuns {
            session: Session::new(&model, &plan).expect("a session"),
            x: words(SessionRuns::STEPS),
            y: vec![0.0; SessionRuns::STEPS * HIDDEN],
        }
    }

    /// Measures and reports the times of runs.
    fn report(&mut self, report: Report<'_>, beside: &str, name: &str) {
        let SessionRuns { session, x, y } = self;
        let mut times = Times::of(MEASURED, Duration::ZERO, || {
            let (input, output) = (Input::new(x, SessionRuns::STEPS, 1), &mut Output::new(y));
            session.run(&input, output).expect("an output");
        });
        for (quantile, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let measure = format!("{name} {quantile}");
            report(beside, &measure, times.quantile(share));
        }
        report(beside, &format!("{name} mean"), times.mean());
    }
}

/// A session of one thread and of two, beside a busy process on each core in turn.
fn session_beside_busy_core(report: Report<'_>) {
    for busy in [vec![], vec![0], vec![1]] {
        let beside = match busy.first() {
            Some(core) => format!("a busy core {core}"),
            None => "nothing".into(),
        };
        let _busy = BusyCores::new(&busy);
        for threads in [1, 2] {
            let mut runs = SessionRuns::new(threads);
            runs.report(report, &beside, &format!("{threads} threads"));
        }
    }
}

/// A session of two threads whose CPU set shrinks to either core and grows again, beside one that
/// was made for the one core.
fn session_in_cpu_set(report: Report<'_>) {
    let mut two = SessionRuns::new(2);
    two.report(report, "CPUs 0-1", "2 threads");
    for cpu in ["0", "1"] {
        confine(cpu);
        let beside = format!("CPU {cpu}");
        two.report(report, &beside, "2 threads");
        SessionRuns::new(1).report(report, &beside, "1 thread");
        confine("0-1");
        two.report(report, &format!("CPUs 0-1 after {cpu}"), "2 threads");
    }
}

/// A session of two threads that was made without a quota, beside one that was made for the quota.
fn session_in_quota(report: Report<'_>) {
    let mut two = SessionRuns::new(2);
    two.report(report, "no quota", "2 threads");
    for cpus in [1.5, 1.0, 0.5] {
        let Some(_quota) = Quota::new(cpus) else {
            eprintln!("no control group could be made: `session_in_quota` is left out");
            return;
        };
        let beside = format!("{cpus} CPUs");
        two.report(report, &beside, "2 threads");
        SessionRuns::new(1).report(report, &beside, "1 thread");
    }
    two.report(report, "no quota again", "2 threads");
}

/// 200 streams of a step each 20 ms: alone, beside one busy core, beside both.
fn streams_of_20_ms(report: Report<'_>) {
    let workers = [
        ("one worker", Workers::OneOverAll),
        ("a worker a core", Workers::OnePerCore),
    ];
    for (beside, busy) in [
        ("nothing", vec![]),
        ("a busy core 1", vec![1]),
        ("two busy processes a core", vec![0, 0, 1, 1]),
    ] {
        let _busy = BusyCores::new(&busy);
        for (name, workers) in &workers {
            let mut cells = Cells::new();
            let model = Lstm::new(WIDE_INPUT, HIDDEN)
                .layers(2)
                .random(1)
                .expect("valid sizes");
            let cell = ChainCell::new(model).expect("a forward model");
            let chain = Chain::add(&mut cells, cell);
            let engine = engine(
                cells,
                EngineOptions {
                    workers: workers.clone(),
                    ..EngineOptions::default()
                },
            );
            let streams = open(&engine, &chain, 200);
            let mut times = paced(streams, &values(WIDE_INPUT), Duration::from_millis(20), 200);
            report(beside, &format!("{name}: step p50"), times.quantile(0.5));
            report(beside, &format!("{name}: step p99"), times.quantile(0.99));
            report(
                beside,
                &format!("{name}: percent over 20 ms"),
                times.percent_above(20.0),
            );
        }
    }
}
