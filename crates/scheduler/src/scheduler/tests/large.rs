//! Large requests: no call of the scheduler but the growth of a graph does work in proportion to
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::test_graphs::{complete_tree, plain_cells, plain_chain, plain_node};
use super::*;

const ROWS: usize = 32;
const SIZES: [BatchSizes; 2] = [BatchSizes { min: 1, max: ROWS }; 2];
/// Steps of a batch.
const STEPS: usize = 4;
/// Maximum number of subgraphs that a policy reads in one call: a piece, and those of a batch.
const MAX_SUBGRAPHS: usize = 1024 + 2 * ROWS;

/// A policy that counts the announced subgraphs, and those of requests that end. Checks its numbers
/// of steps.
struct Counted {
    policy: Box<dyn Policy>,
    subgraphs: Arc<AtomicUsize>,
}

impl Policy for Counted {
    fn queued(&self) -> usize {
        self.policy.queued()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        self.policy.add_model(model);
    }

    fn remove_model(&mut self, index: usize) {
        self.policy.remove_model(index);
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        self.subgraphs.fetch_add(1, Ordering::Relaxed);
        self.policy.ready(table, subgraph, count);
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        self.policy.unpinned(table, subgraph, worker);
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        self.policy.next_task(table, demand, rows)
    }

    fn max_steps(&self) -> Option<usize> {
        self.policy.max_steps()
    }

    fn steps(&mut self, now: Instant, table: &Table, first: &Task) -> usize {
        let steps = self.policy.steps(now, table, first);
        let max = self.max_steps().expect("asked only with a maximum");
        assert!((1..=max).contains(&steps), "{steps} steps of {max}");
        steps
    }

    fn done(&mut self, table: &Table, task: &Task, took: Option<Duration>) {
        self.policy.done(table, task, took);
    }

    fn completed(&mut self, table: &Table, request: RequestKey) -> Completion {
        self.policy.completed(table, request)
    }

    fn released(&mut self) -> Option<RequestKey> {
        self.policy.released()
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        let ready = table.ready_subgraphs(request).count();
        self.subgraphs.fetch_add(ready, Ordering::Relaxed);
        self.policy.ended(table, request);
    }
}

#[test]
fn a_large_tree_arrives_and_ends_in_pieces_under_every_policy() {
    const LEAVES: usize = 20_000;
    let tree = complete_tree(LEAVES).unfold(&plain_cells(2)).unwrap();
    let small = plain_chain(&[2, 2]).unfold(&plain_cells(2)).unwrap();
    for kind in policies() {
        // Cancelled after so many tasks, if at all.
        for cancelled in [Some(0), Some(1), Some(300), None] {
            let subgraphs = Arc::new(AtomicUsize::new(0));
            let policy = Counted {
                policy: Setting::new(kind, ROWS).build(1),
                subgraphs: Arc::clone(&subgraphs),
            };
            let limits = Limits::default();
            let decides_steps = policy.max_steps().is_some();
            let mut scheduler = scheduler_of(Box::new(policy), &SIZES, 1, 1, limits);
            if decides_steps {
                scheduler.set_steps_at_once(ModelKey::default(), &[STEPS; 2]);
            }
            let now = Instant::now();
            let bounded = || {
                let subgraphs = subgraphs.swap(0, Ordering::Relaxed);
                assert!(
                    subgraphs <= MAX_SUBGRAPHS,
                    "{kind}: {subgraphs} in one call"
                );
            };
            let submit = |scheduler: &mut Scheduler, graph: &RequestGraph| {
                let key = scheduler.handle_submit(now, graph, Requirements::default());
                bounded();
                key.unwrap()
            };
            let large = submit(&mut scheduler, &tree);
            submit(&mut scheduler, &small);
            let (mut tasks, mut rows) = (Vec::new(), 0);
            for count in 0.. {
                if cancelled == Some(count) {
                    scheduler.handle_cancel(now, large);
                    bounded();
                }
                scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
                bounded();
                let Some(task) = tasks.pop() else {
                    break;
                };
                rows += task.rows.len();
                scheduler.handle_done(now, task, Some(Duration::from_micros(50)));
                bounded();
            }
            let counts = scheduler.counts();
            assert_eq!((counts.live(), counts.submitted), (0, 2), "{kind}");
            assert_eq!(scheduler.queued(), 0, "{kind}");
            if cancelled.is_none() {
                assert_eq!(rows, tree.nodes() + small.nodes(), "{kind}");
            }
        }
    }
}

/// Rows of the first of two requests go before those of the second, but for an eighth by turns.
#[test]
fn what_arrives_later_keeps_its_position() {
    const NODES: usize = 3000;
    let mut graph = Graph::new();
    for _ in 0..NODES {
        plain_node(&mut graph, 0, &[]);
    }
    let unfolded = graph.unfold(&plain_cells(1)).unwrap();
    let policy = Box::new(Cellular::new(1, Order::Arrival));
    let mut scheduler = scheduler_of(policy, &SIZES[..1], 1, 1, Limits::default());
    let now = Instant::now();
    let [first, _] = [(); 2].map(|()| {
        let key = scheduler.handle_submit(now, &unfolded, Requirements::default());
        key.unwrap()
    });
    let (mut tasks, mut left) = (Vec::new(), NODES);
    while left > 0 {
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        let task = tasks.pop().unwrap();
        let of_first = task.rows.iter().filter(|row| row.request == first);
        let of_first = of_first.count();
        assert!(
            of_first >= left.min(ROWS - ROWS / 8),
            "{of_first} of {left}"
        );
        left -= of_first;
        scheduler.handle_done(now, task, None);
    }
}
