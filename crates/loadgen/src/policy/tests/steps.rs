//! Several steps of a group in one batch of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use gatestream_serve::engine::{Engine, EngineOptions, Request, Workers};

/// Adds one to its state at each step; counts how often it was called.
struct Calls {
    ports: Ports,
    calls: Arc<AtomicUsize>,
}

impl Cell for Calls {
    fn name(&self) -> &str {
        "calls"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn supports_multiple_steps(&self) -> bool {
        true
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(Prepared(Arc::clone(&self.calls))))
    }
}

struct Prepared(Arc<AtomicUsize>);

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let lengths = batch.lengths();
        let ([], [state], []) = batch.split();
        for (row, state) in state.iter_mut().enumerate() {
            *state += lengths.map_or(1, |lengths| lengths[row]) as f32;
        }
        Ok(())
    }
}

/// Serves chains of these lengths, which are submitted together. Returns the number of calls.
fn calls(setting: Setting, lengths: &[usize], max_rows: usize, steps_at_once: usize) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut cells = Cells::new();
    let cell = cells.add(Calls {
        ports: Ports::new().state("state", 1),
        calls: Arc::clone(&calls),
    });
    let options = EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes {
            min: 1,
            max: max_rows,
        }],
        steps_at_once,
        ..EngineOptions::default()
    };
    let engine = Engine::with_policy(cells, &options, |workers| setting.build(workers)).unwrap();
    let requests = lengths.iter().map(|&length| {
        let mut graph = Graph::new();
        let mut state = graph.give(&[0.5]);
        for _ in 0..length {
            state = graph.node(cell, &[state]).output(0);
        }
        graph.answer(state);
        Request::new(graph)
    });
    let tickets = engine.submit_all(requests).unwrap();
    for (ticket, &length) in tickets.into_iter().zip(lengths) {
        let values = ticket.wait().unwrap().values;
        assert_eq!(values, [length as f32 + 0.5], "{setting:?}");
    }
    calls.load(Ordering::Relaxed)
}

#[test]
fn steps_of_a_group_are_one_call_of_cells_that_take_several() {
    for kind in policies() {
        let setting = Setting::new(kind, 2);
        for (steps_at_once, expected) in [(1, 9), (3, 3), (4, 3), (16, 1)] {
            for lengths in [&[9][..], &[9, 9]] {
                let found = calls(setting, lengths, 2, steps_at_once);
                // Two rows have eight steps at most.
                let expected = if lengths.len() == 2 {
                    expected.max(2)
                } else {
                    expected
                };
                assert_eq!(found, expected, "{kind}, {lengths:?}, {steps_at_once}");
            }
        }
    }
}

/// The rest of a level that was split, and the level after it, have other rows.
#[test]
fn further_steps_are_of_the_rows_of_the_task_before() {
    let mut rng = fastrand::Rng::with_seed(12);
    let mut continued = 0;
    for kind in policies() {
        for _ in 0..50 {
            let mut cells = Cells::new();
            let cell = cells.add(Calls {
                ports: Ports::new().state("state", 1),
                calls: Arc::default(),
            });
            let policy = Setting::new(kind, rng.usize(1..6)).build(1);
            let sizes = [BatchSizes {
                min: 1,
                max: rng.usize(1..6),
            }];
            let mut scheduler = scheduler_of(policy, &sizes, 1, 1, Limits::default());
            scheduler.set_steps_at_once(ModelKey::default(), &[4]);
            let now = Instant::now();
            for _ in 0..10 {
                let mut graph = Graph::new();
                // Some have two chains.
                for _ in 0..rng.usize(1..3) {
                    let mut state = graph.give(&[0.5]);
                    for _ in 0..rng.usize(1..9) {
                        state = graph.node(cell, &[state]).output(0);
                    }
                }
                let unfolded = graph.unfold(&cells).unwrap();
                let accepted = scheduler.handle_submit(now, &unfolded, Requirements::default());
                accepted.unwrap();
            }
            while scheduler.counts().live() > 0 {
                let mut tasks = Vec::new();
                scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
                let table = scheduler.table();
                let subgraphs = |task: &Task| -> BTreeSet<SubgraphKey> {
                    task.rows
                        .iter()
                        .map(|row| table.node_subgraph(*row))
                        .collect()
                };
                assert_eq!(tasks.iter().filter(|task| !task.continues).count(), 1);
                for pair in tasks.windows(2) {
                    let is_of_before = subgraphs(&pair[1]).is_subset(&subgraphs(&pair[0]));
                    assert!(is_of_before, "{kind}: {pair:?}");
                    continued += 1;
                }
                for task in tasks {
                    scheduler.handle_done(now, task, None);
                }
            }
        }
    }
    assert!(continued > 500, "{continued}");
}
