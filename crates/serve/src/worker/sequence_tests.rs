//! Sequences are read in place where that is possible, and their memory is freed after each batch.

use std::sync::{Arc, Mutex};

use slotmap::SlotMap;

use super::*;
use crate::cell_graph::{
    Batch, Cell, CellError, Cells, Graph, NodeId, Ports, PreparedCell, WorkerEnv,
};
use crate::scheduler::{Row, WorkerId};
use gatestream::execute::team::{SharedTeam, Team};

const CELL: CellId = CellId::new(0);

/// `y` is `x` followed by `x`. Notes the addresses of `x`; fails if `x` begins with a negative
/// value.
struct Twice {
    ports: Ports,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Cell for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready(Arc<Mutex<Vec<usize>>>);
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let (rows, xs) = (batch.rows(), batch.input(0));
                let [mut y] = batch.written_rows();
                let mut seen = self.0.lock().unwrap();
                seen.clear();
                for row in 0..rows {
                    let x = xs.row(row, xs.row_len(row));
                    seen.push(x.as_ptr().addr());
                    assert_eq!(y.row_len(row), 2 * x.len());
                    for y in y.row(row, 2 * x.len()).chunks_exact_mut(x.len().max(1)) {
                        y.copy_from_slice(x);
                    }
                    if x.first().is_some_and(|x| *x < 0.0) {
                        return Err(CellError::new("negative"));
                    }
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready(Arc::clone(&self.seen))))
    }
}

/// Runs the nodes of a graph, each list as one batch with `padding`. After each, the addresses of
/// the inputs; then the response and the number of failed requests.
fn run(graph: Graph, batches: &[&[usize]], padding: usize) -> (Vec<Vec<usize>>, Vec<f32>, usize) {
    let seen = Arc::default();
    let ports = Ports::new().input_sequence("x", 1).output_sequence("y", 1);
    let mut cells = Cells::new();
    cells.add(Twice {
        ports,
        seen: Arc::clone(&seen),
    });
    let unfolded = graph.unfold(&cells).unwrap();
    let values = Values::new(graph, &unfolded, None, &cells, ());
    let model = ModelCells::alone(cells);
    let values = Arc::new(RequestValues::new(&model, values));
    let env = WorkerEnv::one_step(SharedTeam::new(Team::new(&[0]).unwrap()), 4);
    let mut worker = Worker::of(&model, [env]);
    let request = SlotMap::with_key().insert(());
    let (mut addresses, mut failed) = (Vec::new(), 0);
    for &nodes in batches {
        let row = |&node: &usize| Row {
            request,
            node: NodeId::new(node),
        };
        let rows: Vec<_> = nodes.iter().map(row).collect();
        let work = rows.iter().map(|&row| TaskRow {
            row,
            values: Arc::clone(&values),
        });
        let work = work.collect();
        let task = Task {
            worker: WorkerId(0),
            cell: CELL,
            rows,
            padding,
            continues: false,
        };
        failed += worker.run(&mut [WorkerTask::new(task, work)]).failed.len();
        addresses.push(seen.lock().unwrap().clone());
        let rows = &worker.runner(CELL).unwrap().rows;
        assert!((0..4).all(|row| rows.written(0, row).is_empty()));
        assert!(rows.holds_no_inputs() && !worker.holds_memory());
    }
    let given = values.given().as_ptr().addr();
    for address in addresses.iter_mut().flatten() {
        *address = address.wrapping_sub(given) / size_of::<f32>();
    }
    let answer = values.lock().take_answer();
    (addresses, answer, failed)
}

#[test]
fn sequences_of_a_request_are_read_in_place() {
    let mut graph = Graph::new();
    for x in [&[1.0][..], &[2.0, 3.0, 4.0], &[5.0, 6.0]] {
        let given = graph.give(x);
        let node = graph.node_of_lengths(CELL, &[given], &[2 * x.len()]);
        graph.answer(node.output(0));
    }
    for padding in [0, 1] {
        let (addresses, answer, _) = run(graph.clone(), &[&[1, 0], &[2]], padding);
        assert_eq!(addresses[0][..2], [1, 0]);
        assert_eq!(addresses[1][0], 4);
        let [one, three, two] = [&[1.0; 2][..], &[2.0, 3.0, 4.0], &[5.0, 6.0]];
        assert_eq!(answer, [one, three, three, two, two].concat());
    }
}

#[test]
fn results_are_freed_after_the_last_reader_and_after_a_failure() {
    let mut graph = Graph::new();
    let x = graph.give(&[7.0]);
    let first = graph.node_of_lengths(CELL, &[x], &[2]).output(0);
    for _ in 0..2 {
        let node = graph.node_of_lengths(CELL, &[first], &[4]);
        graph.answer(node.output(0));
    }
    let (_, answer, failed) = run(graph.clone(), &[&[0], &[1], &[2]], 0);
    assert_eq!((answer, failed), (vec![7.0; 8], 0));
    let bad = graph.give(&[-1.0]);
    graph.node_of_lengths(CELL, &[bad], &[2]);
    let (_, _, failed) = run(graph, &[&[0], &[1, 3]], 0);
    assert_eq!(failed, 2);
}
