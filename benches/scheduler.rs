//! What the scheduler costs, by the number of requests that wait: `cargo bench --bench scheduler`.
//!
//! One worker, batches of 64 rows, one task at a time; chains of 24 cells under `cellular`, of 1 to
//! 47 in turn under `shortest`, so that places differ. One iteration of `decision/POLICY/WAITING`
//! is one `poll_tasks` and the `handle_done` of the full batch that it gave; of
//! `submit/POLICY/WAITING` one `handle_submit`, and the `handle_cancel` that keeps the number of
//! those waiting. Neither may depend on how many wait.
//!
//! Before timing, tasks of `cellular` are held against the batches that a first-in-first-out queue
//! of chains gives, but for the eighth of the rows that goes by turns.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{
    Cell, CellError, CellId, Cells, Graph, Ports, PreparedCell, RequestGraph, Source, WorkerEnv,
};
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use gatestream_serve::scheduler::{
    End, Limits, ModelShare, RequestKey, Requirements, Scheduler, Task, WorkerId,
};

const WAITING: [usize; 4] = [100, 1_000, 10_000, 100_000];
const LENGTH: usize = 24;
const ROWS: usize = 64;
const WORKER: WorkerId = WorkerId(0);

/// A cell that is never run.
struct Link(Ports);

impl Cell for Link {
    fn name(&self) -> &str {
        "link"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Err(CellError::new("not to be run"))
    }
}

fn chain(cells: &Cells, cell: CellId, length: usize) -> RequestGraph {
    let mut graph = Graph::new();
    let mut before = Source::Zeros;
    for _ in 0..length {
        before = graph.node(cell, &[before]).output(0);
    }
    graph.answer(before);
    graph.unfold(cells).expect("a chain")
}

struct Served {
    scheduler: Scheduler,
    /// Submitted in turn.
    chains: Vec<RequestGraph>,
    submitted: usize,
    now: Instant,
    tasks: Vec<Task>,
}

impl Served {
    fn new(policy: PolicyKind, waiting: usize) -> Served {
        let mut cells = Cells::new();
        let cell = cells.add(Link(Ports::new().state("state", 1)));
        let costs = [BatchSizes { min: 1, max: ROWS }.into()];
        let limits = Limits {
            requests: usize::MAX,
            nodes: usize::MAX,
            bytes: usize::MAX,
            ..Limits::default()
        };
        let lengths = match policy {
            PolicyKind::Shortest => 1..2 * LENGTH,
            _ => LENGTH..LENGTH + 1,
        };
        let policy = policy.build(1, BatchSteps::default());
        let mut scheduler = Scheduler::new(policy, 1, 1, limits);
        let added = scheduler.add_model(&costs, ModelShare::default());
        added.expect("a model");
        let mut served = Served {
            scheduler,
            chains: lengths.map(|length| chain(&cells, cell, length)).collect(),
            submitted: 0,
            now: Instant::now(),
            tasks: Vec::new(),
        };
        for _ in 0..waiting {
            served.submit();
        }
        served
    }

    fn submit(&mut self) -> RequestKey {
        let chain = &self.chains[self.submitted % self.chains.len()];
        self.submitted += 1;
        let accepted = self
            .scheduler
            .handle_submit(self.now, chain, Requirements::default());
        accepted.expect("no limit")
    }

    /// One task.
    fn poll(&mut self) -> Task {
        self.scheduler.poll_tasks(self.now, WORKER, &mut self.tasks);
        self.tasks.pop().expect("requests wait")
    }

    /// As many new requests as have ended.
    fn refill(&mut self) {
        while let Some(ended) = self.scheduler.poll_ended() {
            if ended.end == End::Completed {
                self.submit();
            }
        }
    }
}

/// The oldest that are not done, a node each, until each has had all of its; an eighth of the rows
/// goes to others by turns.
fn check(waiting: usize) {
    let mut served = Served::new(PolicyKind::Cellular, 0);
    let mut left: VecDeque<(RequestKey, usize)> =
        (0..waiting).map(|_| (served.submit(), LENGTH)).collect();
    for _ in 0..3 * LENGTH {
        let task = served.poll();
        assert_eq!(task.rows.len(), ROWS);
        let in_order = ROWS - ROWS / 8;
        let oldest = left.iter().take(in_order).map(|chain| chain.0);
        let rows = task.rows.iter().take(in_order);
        assert!(
            rows.map(|row| row.request).eq(oldest),
            "the oldest, in order"
        );
        for row in &task.rows {
            let chain = left.iter_mut().find(|chain| chain.0 == row.request);
            let chain = chain.expect("it is not done");
            assert_eq!(row.node.index(), LENGTH - chain.1, "node after node");
            chain.1 -= 1;
        }
        served.scheduler.handle_done(served.now, task, None);
        left.retain(|chain| chain.1 > 0);
        while let Some(ended) = served.scheduler.poll_ended() {
            assert_eq!(ended.end, End::Completed);
            assert!(left.iter().all(|chain| chain.0 != ended.request));
            left.push_back((served.submit(), LENGTH));
        }
        assert_eq!(served.scheduler.counts().live(), left.len() as u64);
    }
    served.scheduler.audit().expect("conserved");
}

fn cases() -> impl Iterator<Item = (PolicyKind, usize)> {
    let of = |policy| WAITING.map(|waiting| (policy, waiting));
    [PolicyKind::Cellular, PolicyKind::Shortest]
        .into_iter()
        .flat_map(of)
}

fn decision(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    group.throughput(Throughput::Elements(ROWS as u64));
    for (policy, waiting) in cases() {
        if policy == PolicyKind::Cellular {
            check(waiting);
        }
        let mut served = Served::new(policy, waiting);
        group.bench_function(BenchmarkId::new(policy.to_string(), waiting), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                for _ in 0..iterations {
                    let start = Instant::now();
                    let task = served.poll();
                    served.scheduler.handle_done(served.now, task, None);
                    took += start.elapsed();
                    served.refill();
                }
                took
            });
        });
    }
    group.finish();
}

fn submit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("submit");
    for (policy, waiting) in cases() {
        let mut served = Served::new(policy, waiting);
        let task = served.poll();
        group.bench_function(BenchmarkId::new(policy.to_string(), waiting), |bencher| {
            bencher.iter(|| {
                let key = served.submit();
                served.scheduler.handle_cancel(served.now, key);
                served.scheduler.poll_ended()
            });
        });
        served.scheduler.handle_done(served.now, task, None);
        served.scheduler.audit().expect("conserved");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = decision, submit
}
criterion_main!(benches);
