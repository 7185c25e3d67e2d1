//! What moves when a batch changes.

use std::sync::Arc;

use slotmap::SlotMap;

use super::*;
use crate::cell_graph::{
    Batch, Cell, CellError, Cells, Graph, NodeId, Ports, PreparedCell, Source, WorkerEnv,
};
use crate::scheduler::{Row, WorkerId};
use gatestream::execute::team::{SharedTeam, Team};

/// Adds its input to its state, and gives the sum at its output, if it has one; fails at what is
/// not a number.
struct Sum(pub Ports);

impl Cell for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let (rows, lengths) = (batch.rows(), batch.lengths());
                let all = batch.steps() * rows;
                let x = batch.input(0);
                let (mut states, outputs) = batch.written();
                let Some(mut sums) = states.next() else {
                    return Err(CellError::new("no state"));
                };
                let mut outputs: Vec<_> = outputs.collect();
                let mut are_numbers = true;
                for at in 0..all {
                    let (step, row) = (at / rows, at % rows);
                    if lengths.is_none_or(|lengths| step < lengths[row]) {
                        let (x, sum) = (x.row(at, 1)[0], sums.row(row, 1));
                        are_numbers &= !x.is_nan();
                        sum[0] += x;
                        outputs.iter_mut().for_each(|y| y.row(at, 1)[0] = sum[0]);
                    }
                }
                if are_numbers {
                    Ok(())
                } else {
                    Err(CellError::new("not a number"))
                }
            }
        }
        Ok(Box::new(Ready))
    }
}

struct Chains {
    model: Arc<ModelCells>,
    worker: Worker<()>,
    keys: SlotMap<RequestKey, ()>,
    chains: Vec<(RequestKey, Arc<RequestValues<()>>)>,
}

const CELL: CellId = CellId::new(0);

fn sum() -> Ports {
    Ports::new().input("x", 1).state("sum", 1)
}

/// `count` chains of ten ones each, and room for four rows.
fn chains(count: usize) -> Chains {
    chains_of(sum(), count)
}

fn chains_of(ports: Ports, count: usize) -> Chains {
    let mut cells = Cells::new();
    cells.add(Sum(ports));
    let team = SharedTeam::new(Team::new(&[0]).unwrap());
    let model = ModelCells::alone(cells);
    let env = WorkerEnv {
        steps: 3,
        step_rows: 4 * 3,
        ..WorkerEnv::one_step(team, 4)
    };
    let mut chains = Chains {
        worker: Worker::of(&model, [env]),
        model,
        keys: SlotMap::with_key(),
        chains: Vec::new(),
    };
    for _ in 0..count {
        let mut graph = Graph::new();
        let one = graph.give(&[1.0]);
        let mut before = Source::Zeros;
        for _ in 0..10 {
            before = graph.node(CELL, &[one, before]).output(0);
        }
        graph.answer(before);
        chains.add(graph);
    }
    chains
}

impl Chains {
    /// Adds a request with a graph of its own.
    fn add(&mut self, graph: Graph) {
        let unfolded = graph.unfold(&self.model.cells).unwrap();
        let values = Values::new(graph, &unfolded, None, &self.model.cells, ());
        let values = Arc::new(RequestValues::new(&self.model, values));
        self.chains.push((self.keys.insert(()), values));
    }

    /// Runs `step` of these chains as one batch; how many rows of states were moved.
    fn run(&mut self, rows: &[(usize, usize)]) -> u64 {
        let before = self.worker.moved(CELL);
        let mut todo = [self.todo(rows)];
        let outcome = self.worker.run(&mut todo);
        assert!(outcome.failed.is_empty());
        self.worker.moved(CELL) - before
    }

    /// A task of `step` of these chains.
    fn todo(&self, rows: &[(usize, usize)]) -> WorkerTask<()> {
        let work: Vec<_> = rows
            .iter()
            .map(|&(chain, step)| {
                let (request, values) = &self.chains[chain];
                let row = Row {
                    request: *request,
                    node: NodeId::new(step),
                };
                TaskRow {
                    row,
                    values: Arc::clone(values),
                }
            })
            .collect();
        let task = Task {
            worker: WorkerId(0),
            cell: CELL,
            rows: work.iter().map(|work| work.row).collect(),
            padding: 0,
            continues: false,
        };
        WorkerTask::new(task, work)
    }

    fn answer(&self, chain: usize) -> Vec<f32> {
        self.chains[chain].1.lock().take_answer()
    }
}

#[test]
fn an_unchanged_batch_moves_no_state() {
    let mut chains = chains(3);
    assert_eq!(chains.run(&[(0, 0), (1, 0), (2, 0)]), 3);
    for step in 1..10 {
        // In whatever order the rows are named.
        let rows = [
            (step % 3, step),
            ((step + 1) % 3, step),
            ((step + 2) % 3, step),
        ];
        assert_eq!(chains.run(&rows), 0, "step {step}");
    }
    for chain in 0..3 {
        assert_eq!(chains.answer(chain), [10.0]);
    }
    assert_eq!(chains.keys.len(), 3);
}

#[test]
fn a_row_that_leaves_is_closed_up_and_one_that_joins_is_appended() {
    let mut chains = chains(5);
    assert_eq!(chains.run(&[(0, 0), (1, 0), (2, 0), (3, 0)]), 4);
    // The last row goes into the gap of the second, which is kept for later.
    assert_eq!(chains.run(&[(0, 1), (2, 1), (3, 1)]), 2);
    // One joins; nobody else moves.
    assert_eq!(chains.run(&[(0, 2), (2, 2), (3, 2), (4, 0)]), 1);
    // One leaves for good, in the last row: nothing moves.
    assert_eq!(chains.run(&[(0, 3), (2, 3), (3, 3)]), 0);
    // The kept one comes back, beside all: into the free row.
    for step in 4..10 {
        let moved = chains.run(&[(0, step), (2, step), (3, step), (1, step - 3)]);
        // Once the fourth chain, which rested there, is kept, and the second is loaded.
        assert_eq!(moved, if step == 4 { 2 } else { 0 }, "step {step}");
    }
    for step in 7..10 {
        chains.run(&[(1, step)]);
    }
    for step in 1..10 {
        chains.run(&[(4, step)]);
    }
    for chain in 0..5 {
        assert_eq!(chains.answer(chain), [10.0], "chain {chain}");
    }
}

#[test]
fn in_place_successor_frees_the_retained_copy() {
    let mut chains = chains(1);
    // Node 1 goes on with the state of node 0, node 2 takes it as its input.
    let mut graph = Graph::new();
    let one = graph.give(&[1.0]);
    let first = graph.node(CELL, &[one, Source::Zeros]);
    let on = graph.node(CELL, &[one, first.output(0)]);
    let other = graph.node(CELL, &[first.output(0), Source::Zeros]);
    graph.answer(on.output(0));
    graph.answer(other.output(0));
    chains.add(graph);
    // In the second row, where its state rests while node 2 runs in the first.
    chains.run(&[(0, 0), (1, 0)]);
    assert_eq!(chains.chains[1].1.lock().retained(), 1);
    chains.run(&[(1, 2)]);
    assert_eq!(chains.run(&[(0, 1), (1, 1)]), 1, "the second row stays");
    assert_eq!(chains.chains[1].1.lock().retained(), 0);
    assert_eq!(chains.answer(1), [2.0, 1.0]);
}

/// Random graphs, some nodes watched, whose nodes run one by one in any order; others' chains take
/// their rows in between.
#[test]
fn no_more_is_kept_than_was_counted_when_the_request_came() {
    // Of a chain, one state at a time.
    let chain = chains(1);
    let counted = (chain.chains[0].1.lock()).max_retained(&chain.model.cells);
    assert_eq!(counted, 1);
    let mut most = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut chains = chains(1);
        let mut graph = Graph::new();
        let one = graph.give(&[1.0]);
        let nodes = rng.usize(1..12);
        for node in 0..nodes {
            let mut any = |or: Source| match rng.usize(..=node) {
                0 => or,
                before => NodeId::new(before - 1).output(0),
            };
            let added = graph.node(CELL, &[any(one), any(Source::Zeros)]);
            if rng.usize(..4) == 0 {
                graph.watch(added);
            }
        }
        chains.add(graph.clone());
        let values = Arc::clone(&chains.chains[1].1);
        let counted = values.lock().max_retained(&chains.model.cells);
        let mut left: Vec<usize> = (0..nodes).collect();
        let mut others = 0;
        while !left.is_empty() {
            let is_ready = |&at: &usize| {
                let before = |source: &Source| match *source {
                    Source::Node { node, .. } => !left.contains(&node.index()),
                    _ => true,
                };
                graph.sources(NodeId::new(left[at])).iter().all(before)
            };
            let ready: Vec<usize> = (0..left.len()).filter(is_ready).collect();
            let node = left.remove(ready[rng.usize(..ready.len())]);
            chains.run(&[(1, node)]);
            if others < 10 && rng.bool() {
                chains.run(&[(0, others)]);
                others += 1;
            }
            let kept = values.lock().retained();
            assert!(kept <= counted, "seed {seed}: {kept} of {counted}");
            most = most.max(kept);
        }
    }
    assert!(most > 3, "{most}");
}

#[test]
fn a_row_that_is_another_s_by_now_is_not_gone_on_from() {
    let mut chains = chains(2);
    chains.run(&[(0, 0)]);
    // The second chain rests where the first did, whose state is kept.
    chains.run(&[(1, 0)]);
    chains.run(&[(1, 1)]);
    assert_eq!(chains.run(&[(0, 1), (1, 2)]), 1, "the second chain stays");
    for step in 2..9 {
        chains.run(&[(0, step), (1, step + 1)]);
    }
    chains.run(&[(0, 9)]);
    assert_eq!([chains.answer(0), chains.answer(1)], [[10.0], [10.0]]);
}

#[test]
fn the_state_of_a_watched_node_is_there_for_what_is_added_when_its_row_is_another_s() {
    let mut chains = chains(1);
    let model = Arc::clone(&chains.model);
    // Node 1 takes the state of node 0 as its input; what goes on from node 0 is added later.
    let mut graph = Graph::new();
    let one = graph.give(&[1.0]);
    let first = graph.node(CELL, &[one, Source::Zeros]);
    let other = graph.node(CELL, &[first.output(0), Source::Zeros]);
    graph.watch(first);
    graph.answer(other.output(0));
    chains.add(graph);
    let values = Arc::clone(&chains.chains[1].1);
    chains.run(&[(1, 0)]);
    // In its row; then its input is taken, for the last time that is known of.
    chains.run(&[(0, 0)]);
    chains.run(&[(1, 1)]);
    let added = (values.lock()).grow_by(&model.cells, (None, values.given()), |graph| {
        let on = graph.node(CELL, &[one, first.output(0)]);
        graph.answer(on.output(0));
    });
    assert!(added.is_ok());
    chains.run(&[(1, 2)]);
    assert_eq!(chains.answer(1), [1.0, 2.0]);
    assert_eq!(values.lock().retained(), 0);
}

#[test]
fn rows_of_requests_that_have_ended_hold_on_to_nothing() {
    let mut chains = chains(2);
    chains.run(&[(0, 0), (1, 0)]);
    let holders = |chains: &Chains| [0, 1].map(|chain| Arc::strong_count(&chains.chains[chain].1));
    assert_eq!(holders(&chains), [2, 2]);
    chains.chains[0].1.set_ended();
    assert!(chains.worker.holds_memory());
    chains.worker.release_memory();
    assert!(!chains.worker.holds_memory());
    assert_eq!(holders(&chains), [1, 2]);
    assert_eq!(
        chains.run(&[(1, 1)]),
        1,
        "the other goes on, in the first row"
    );
}

#[test]
fn tasks_that_go_on_with_the_same_rows_are_one_batch() {
    let mut chains = chains(3);
    // The second chain ends after the first of these steps, the first one after the second.
    for step in 0..9 {
        chains.run(&[(1, step)]);
    }
    for step in 0..8 {
        chains.run(&[(0, step)]);
    }
    let tasks = [
        chains.todo(&[(0, 8), (1, 9), (2, 0)]),
        chains.todo(&[(0, 9), (2, 1)]),
        chains.todo(&[(2, 2)]),
        chains.todo(&[(2, 3)]),
    ];
    let mut tasks = VecDeque::from(tasks);
    assert_eq!(chains.worker.together(&tasks), 3, "most steps of a batch");
    let rest = tasks.split_off(3);
    let outcome = chains.worker.run(tasks.make_contiguous());
    assert!(outcome.failed.is_empty());
    assert_eq!([chains.answer(0), chains.answer(1)], [[10.0], [10.0]]);
    let mut rest = rest;
    chains.worker.run(rest.make_contiguous());
    for step in 4..10 {
        assert_eq!(chains.run(&[(2, step)]), 0, "its state rests in its row");
    }
    assert_eq!(chains.answer(2), [10.0]);
}

#[test]
fn tasks_are_apart_where_rows_join_or_padding_would_change() {
    let chains = chains(3);
    let together = |tasks: Vec<WorkerTask<()>>| chains.worker.together(&tasks.into());
    let padded = |rows: &[(usize, usize)], padding| {
        let mut todo = chains.todo(rows);
        todo.task.padding = padding;
        todo
    };
    assert_eq!(together(vec![]), 0);
    assert_eq!(together(vec![chains.todo(&[(0, 0)])]), 1);
    let joins = vec![chains.todo(&[(0, 0)]), chains.todo(&[(0, 1), (1, 0)])];
    assert_eq!(together(joins), 1);
    let another = vec![chains.todo(&[(0, 0)]), chains.todo(&[(1, 0)])];
    assert_eq!(together(another), 1);
    let skips = vec![chains.todo(&[(0, 0)]), chains.todo(&[(0, 2)])];
    assert_eq!(together(skips), 1);
    let same = vec![padded(&[(0, 0), (1, 0)], 1), padded(&[(0, 1), (1, 1)], 1)];
    assert_eq!(together(same), 2);
    let ends = vec![padded(&[(0, 0), (1, 0)], 1), padded(&[(0, 1)], 2)];
    assert_eq!(together(ends), 1);
    let leaves = vec![padded(&[(0, 0), (1, 0)], 1), padded(&[(0, 1)], 1)];
    assert_eq!(together(leaves), 1);
    let nobody = vec![padded(&[], 1), padded(&[], 1)];
    assert_eq!(together(nobody), 1);
    let more = vec![padded(&[(0, 0), (1, 0)], 1), padded(&[(0, 1), (1, 1)], 2)];
    assert_eq!(together(more), 1);
    // 16 rows at most.
    let all = |step| (0..3).map(move |chain| (chain, step)).collect::<Vec<_>>();
    let large = vec![padded(&all(0), 5), padded(&all(1), 5), padded(&all(2), 5)];
    assert_eq!(together(large), 2);
}

#[test]
fn padding_is_computed_at_every_step() {
    let mut chains = chains(2);
    let padded = |rows: &[(usize, usize)]| {
        let mut todo = chains.todo(rows);
        todo.task.padding = 2;
        todo
    };
    let tasks = VecDeque::from([
        padded(&[(0, 0), (1, 0)]),
        padded(&[(0, 1), (1, 1)]),
        padded(&[(0, 2), (1, 2)]),
    ]);
    assert_eq!(chains.worker.together(&tasks), 3);
    chains.worker.run(&mut Vec::from(tasks));
    assert_eq!(chains.worker.runner(CELL).unwrap().rows.lengths, [3; 4]);
}

#[test]
fn an_output_of_a_joined_step_is_let_go_when_all_have_taken_it() {
    let mut chains = chains_of(sum().output("y", 1), 0);
    // Node 1 goes on from node 0, whose output node 2 takes later.
    let mut graph = Graph::new();
    let one = graph.give(&[1.0]);
    let first = graph.node(CELL, &[one, Source::Zeros]);
    let second = graph.node(CELL, &[one, first.output(0)]);
    let other = graph.node(CELL, &[first.output(1), Source::Zeros]);
    graph.answer(second.output(0));
    graph.answer(other.output(0));
    chains.add(graph.clone());
    chains.add(graph);
    for request in 0..2 {
        let first = [(request, 0)];
        let tasks = VecDeque::from([chains.todo(&first), chains.todo(&[(request, 1)])]);
        assert_eq!(chains.worker.together(&tasks), 2);
        chains.worker.run(&mut Vec::from(tasks));
        assert_eq!(chains.chains[request].1.lock().retained(), 1);
        // The second request's is where the first's was.
        assert!(chains.worker.pools[0].is_empty());
        chains.run(&[(request, 2)]);
        assert_eq!(chains.chains[request].1.lock().retained(), 0);
        assert!(!chains.worker.pools[0].is_empty());
        assert_eq!(chains.answer(request), [2.0, 1.0]);
    }
    chains.worker.release_memory();
    assert!(chains.worker.pools[0].is_empty());
}

#[test]
fn steps_that_ran_together_share_their_time() {
    let [gather, run, scatter] = [8, 12, 4].map(Duration::from_micros);
    let spent = Spent {
        gather,
        run,
        scatter,
    };
    let each = spent.divided(4);
    assert_eq!(4 * each.gather, gather);
    assert_eq!(4 * each.run, run);
    assert_eq!(4 * each.scatter, scatter);
    assert_eq!(spent.divided(0).run, run);
}
