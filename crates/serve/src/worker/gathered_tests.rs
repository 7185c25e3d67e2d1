//! Gathered rows of inputs are read where they are, and only what must be is copied.

use std::sync::{Arc, Mutex};

use slotmap::SlotMap;

use super::*;
use crate::cell_graph::{Batch, Cell, Graph, NodeId, Ports, PreparedCell, RowLayout, Source};
use crate::cell_graph::{CellError, Cells, WorkerEnv};
use crate::scheduler::{Row, WorkerId};
use gatestream::execute::team::{SharedTeam, Team};

const CELL: CellId = CellId::new(0);
const WIDTH: usize = 2;

/// Gives each row what it takes plus one, and tells where the rows were; fails at what is negative.
struct Watching {
    ports: Ports,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Cell for Watching {
    fn name(&self) -> &str {
        "watching"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn layout(&self) -> RowLayout {
        RowLayout::GatheredInputs
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready(Arc<Mutex<Vec<usize>>>);
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let x = batch.input(0);
                assert!(x.is_gathered());
                let rows: Vec<&[f32]> = (0..batch.rows()).map(|row| x.row(row, WIDTH)).collect();
                let [y] = batch.written_rows();
                let y = y.into_buffer().expect("contiguous rows");
                *self.0.lock().unwrap() = rows.iter().map(|row| row.as_ptr().addr()).collect();
                for (x, y) in rows.iter().copied().flatten().zip(y) {
                    *y = x + 1.0;
                }
                if rows.iter().copied().flatten().any(|x| *x < 0.0) {
                    Err(CellError::new("negative"))
                } else {
                    Ok(())
                }
            }
        }
        Ok(Box::new(Ready(Arc::clone(&self.seen))))
    }
}

struct One {
    worker: Worker<()>,
    key: RequestKey,
    values: Arc<RequestValues<()>>,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl One {
    fn new(graph: Graph) -> One {
        let seen = Arc::default();
        let ports = Ports::new().input("x", WIDTH).output("y", WIDTH);
        let mut cells = Cells::new();
        cells.add(Watching {
            ports,
            seen: Arc::clone(&seen),
        });
        let unfolded = graph.unfold(&cells).unwrap();
        let values = Values::new(graph, &unfolded, None, &cells, ());
        let model = ModelCells::alone(cells);
        let env = WorkerEnv::one_step(SharedTeam::new(Team::new(&[0]).unwrap()), 4);
        One {
            worker: Worker::of(&model, [env]),
            key: SlotMap::with_key().insert(()),
            values: Arc::new(RequestValues::new(&model, values)),
            seen,
        }
    }

    /// Runs nodes as one batch: where the cell found their rows, and what became of them.
    fn run(&mut self, nodes: &[usize]) -> (Vec<usize>, Outcome) {
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
            cell: CELL,
            rows: rows.clone(),
            padding: 0,
            continues: false,
        };
        let outcome = self
            .worker
            .run(&mut [WorkerTask::new(task, work.collect())]);
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        (seen, outcome)
    }

    /// Where values of that width that nobody needs any more lie, if there are any.
    fn spare(&mut self) -> Option<usize> {
        let is_empty = self.worker.pools[0].is_empty();
        (!is_empty).then(|| {
            let values = self.worker.pools[0].copy(&[0.0; WIDTH]);
            values.as_ptr().addr()
        })
    }
}

#[test]
fn what_came_with_a_request_is_read_where_it_lies() {
    let mut graph = Graph::new();
    let given = [[1.0, 2.0], [3.0, 4.0]].map(|x| graph.give(&x));
    for source in [given[1], Source::Zeros, given[0]] {
        let node = graph.node(CELL, &[source]);
        graph.answer(node.output(0));
    }
    let mut one = One::new(graph);
    let (seen, _) = one.run(&[0, 1, 2]);
    let first = one.values.given().as_ptr().addr();
    let second = one.values.given()[WIDTH..].as_ptr().addr();
    assert_eq!((seen[0], seen[2]), (second, first));
    assert!(seen[1] != first && seen[1] != second);
    let answer = one.values.lock().take_answer();
    assert_eq!(answer, [4.0, 5.0, 1.0, 1.0, 2.0, 3.0]);
}

#[test]
fn what_was_kept_for_one_row_is_read_there_and_spare_after() {
    let mut graph = Graph::new();
    let x = graph.give(&[1.0, 2.0]);
    let first = graph.node(CELL, &[x]).output(0);
    let second = graph.node(CELL, &[first]).output(0);
    let third = graph.node(CELL, &[first]).output(0);
    graph.answer(second);
    graph.answer(third);
    let mut one = One::new(graph);
    one.run(&[0]);
    // The first of two takes a copy, the last what was kept.
    let (copy, _) = one.run(&[1]);
    assert_eq!(one.spare(), None);
    assert_eq!(one.values.lock().retained(), WIDTH);
    let (kept, _) = one.run(&[2]);
    assert_ne!(copy, kept);
    assert_eq!(one.values.lock().retained(), 0);
    assert_eq!(one.spare(), Some(kept[0]));
    assert_eq!(one.values.lock().take_answer(), [3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn what_a_failed_cell_was_lent_is_spare_after() {
    let mut graph = Graph::new();
    let x = graph.give(&[-3.0, -2.0]);
    // The third fails the batch in which the second reads the output of the first.
    let first = graph.node(CELL, &[Source::Zeros]).output(0);
    let second = graph.node(CELL, &[first]);
    let failing = graph.node(CELL, &[x]);
    graph.answer(second.output(0));
    graph.answer(failing.output(0));
    let mut one = One::new(graph);
    one.run(&[0]);
    let (seen, outcome) = one.run(&[1, 2]);
    assert_eq!(outcome.failed.len(), 2);
    assert_eq!(one.values.lock().retained(), 0);
    assert_eq!(one.spare(), Some(seen[0]));
}

#[test]
fn what_came_later_is_copied_even_where_it_begins_with_what_came_first() {
    let mut graph = Graph::new();
    let x = graph.give(&[1.0, 2.0]);
    let node = graph.node(CELL, &[x]);
    graph.answer(node.output(0));
    let mut one = One::new(graph);
    let model = Arc::clone(one.values.model());
    let across = Source::Given { first: 1, width: 2 };
    let values = Arc::clone(&one.values);
    let mut values = values.lock();
    let grown = values.grow_by(&model.cells, (None, one.values.given()), |graph| {
        let later = graph.give(&[3.0, 4.0]);
        for source in [later, across] {
            let node = graph.node(CELL, &[source]);
            graph.answer(node.output(0));
        }
        graph.answer(across);
    });
    assert!(grown.is_ok());
    drop(values);
    let (seen, _) = one.run(&[0, 1, 2]);
    let of_first = one.values.given().as_ptr_range();
    let of_first = of_first.start.addr()..of_first.end.addr();
    assert_eq!(
        [0, 1, 2].map(|row| of_first.contains(&seen[row])),
        [true, false, false]
    );
    let answer = one.values.lock().take_answer();
    assert_eq!(answer, [2.0, 3.0, 4.0, 5.0, 3.0, 4.0, 2.0, 3.0]);
}
