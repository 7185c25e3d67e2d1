//! Gathered rows of states and outputs go from node to node without a copy.

use std::sync::Arc;

use slotmap::SlotMap;

use super::*;
use crate::cell_graph::NodeId;
use crate::cell_graph::{Cells, WorkerEnv};
use crate::networks::{BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Outputs, run_unbatched};
use crate::scheduler::{Row, WorkerId};
use gatestream::execute::team::{SharedTeam, Team};

const HIDDEN: usize = 8;
const ROWS: usize = 4;
const LEAF: CellId = CellId::new(0);
const NODE: CellId = CellId::new(1);

/// A worker, and the only request: a tree.
struct One {
    worker: Worker<()>,
    key: RequestKey,
    values: Arc<RequestValues<()>>,
    /// Its answer, computed alone.
    alone: Vec<f32>,
}

impl One {
    fn new(leaves: usize, outputs: Outputs) -> One {
        One::of((HIDDEN, ROWS, 1), leaves, outputs)
    }

    /// With so many hidden units, rows and threads.
    fn of((hidden, rows, threads): (usize, usize, usize), leaves: usize, outputs: Outputs) -> One {
        let mut cells = Cells::new();
        let weights = BinaryTreeWeights::random(2, hidden, 1).unwrap();
        let trees = BinaryTreeLstm::add(&mut cells, weights).unwrap();
        let xs: Vec<f32> = (0..2 * leaves).map(|at| at as f32 / 10.0).collect();
        let tree = BinaryTree::complete(leaves).unwrap();
        let graph = trees.unfold(&tree, &xs, outputs).unwrap();
        let alone = run_unbatched(&cells, graph.clone(), None).unwrap();
        let unfolded = graph.unfold(&cells).unwrap();
        let values = Values::new(graph, &unfolded, None, &cells, ());
        let model = ModelCells::alone(cells);
        let env = WorkerEnv::one_step(SharedTeam::new(Team::with_threads(threads).unwrap()), rows);
        One {
            worker: Worker::of(&model, [env.clone(), env]),
            key: SlotMap::with_key().insert(()),
            values: Arc::new(RequestValues::new(&model, values)),
            alone,
        }
    }

    fn run(&mut self, cell: CellId, nodes: &[usize]) {
        let row = |&node: &usize| Row {
            request: self.key,
            node: NodeId::new(node),
        };
        let rows: Vec<_> = nodes.iter().map(row).collect();
        let work = rows.iter().map(|&row| TaskRow {
            row,
            values: Arc::clone(&self.values),
        });
        let task = Task {
            worker: WorkerId(0),
            cell,
            rows: rows.clone(),
            padding: 0,
            continues: false,
        };
        let outcome = self
            .worker
            .run(&mut [WorkerTask::new(task, work.collect())]);
        assert!(outcome.failed.is_empty());
    }

    /// Where a row of a cell's state or output is.
    fn address(&self, cell: CellId, port: usize, row: usize) -> usize {
        let rows = &self.worker.runner(cell).unwrap().rows;
        rows.written(port, row).as_ptr().addr()
    }

    fn retained(&self) -> usize {
        self.values.lock().retained()
    }
}

/// Three leaves: a node of the first two, and one of that and the third.
#[test]
fn what_a_leaf_writes_becomes_the_state_of_its_node() {
    let mut one = One::new(3, Outputs::Last);
    let written = [0, 1].map(|port| one.address(LEAF, port, 0));
    one.run(LEAF, &[0, 1, 2]);
    assert_eq!(one.retained(), 3 * 2 * HIDDEN);
    one.run(NODE, &[3]);
    let states = [0, 1].map(|port| one.address(NODE, port, 0));
    assert_eq!(states, written, "the first leaf's h and c");
    assert_eq!(one.retained(), 2 * HIDDEN, "those of the third leaf");
    one.run(NODE, &[4]);
    let states = [0, 1].map(|port| one.address(NODE, port, 0));
    assert_eq!(states, written, "they went on in env");
    assert_eq!(one.retained(), 0);
    assert_eq!(one.values.lock().take_answer(), one.alone);
}

/// Four leaves: the right node's states are the root's inputs, and the answer has all of them, too.
#[test]
fn what_a_node_gives_to_its_parent_and_to_the_answer_is_in_both() {
    let mut one = One::new(4, Outputs::Each);
    one.run(LEAF, &[0, 1, 2, 3]);
    one.run(NODE, &[4, 5]);
    // The left node's states rest in their row.
    assert_eq!(one.retained(), 2 * HIDDEN);
    one.run(NODE, &[6]);
    assert_eq!(one.retained(), 0);
    assert_eq!(one.values.lock().take_answer(), one.alone);
}

/// A row that rests where others are to be computed is kept as it is, and goes on from there.
#[test]
fn what_rests_is_kept_where_its_row_is_needed() {
    let mut one = One::new(4, Outputs::Last);
    one.run(LEAF, &[0, 1, 2, 3]);
    one.run(NODE, &[4]);
    let rested = [0, 1].map(|port| one.address(NODE, port, 0));
    // The other node needs the first row.
    one.run(NODE, &[5]);
    assert_eq!(one.retained(), 2 * 2 * HIDDEN);
    assert_ne!([0, 1].map(|port| one.address(NODE, port, 0)), rested);
    one.run(NODE, &[6]);
    assert_eq!([0, 1].map(|port| one.address(NODE, port, 0)), rested);
    assert_eq!(one.retained(), 0);
    assert_eq!(one.values.lock().take_answer(), one.alone);
}

/// A row that rests beyond the batch moves into it.
#[test]
fn what_rests_beyond_a_batch_moves_into_it() {
    let mut one = One::new(4, Outputs::Last);
    one.run(LEAF, &[0, 1, 2, 3]);
    one.run(NODE, &[5, 4]);
    let rested = [0, 1].map(|port| one.address(NODE, port, 1));
    one.run(NODE, &[6]);
    assert_eq!([0, 1].map(|port| one.address(NODE, port, 0)), rested);
    assert_eq!(one.values.lock().take_answer(), one.alone);
}

/// Rows that the whole team takes and hands on, in shares of the batch.
#[test]
fn the_whole_team_hands_on_many_rows() {
    let (leaves, hidden) = (64, 256);
    let mut one = One::of((hidden, leaves, 2), leaves, Outputs::Each);
    one.run(LEAF, &(0..leaves).collect::<Vec<_>>());
    let (mut first, mut count) = (leaves, leaves / 2);
    while count > 0 {
        one.run(NODE, &(first..first + count).collect::<Vec<_>>());
        first += count;
        count /= 2;
    }
    assert_eq!(one.retained(), 0);
    assert_eq!(one.values.lock().take_answer(), one.alone);
}
