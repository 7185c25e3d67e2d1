//! No cell is kept waiting by others that always have something ready, and growths may come in any order.

use super::*;
use crate::serve::cell_graph::tests::{plain_cells, plain_node};
use crate::serve::policy::Cellular;

/// A chain of one cell.
fn chain(cell: usize, length: usize) -> Graph {
    let mut graph = Graph::new();
    for node in 0..length {
        let from: Vec<usize> = node.checked_sub(1).into_iter().collect();
        plain_node(&mut graph, cell, &from);
    }
    graph
}

#[test]
fn every_cell_gets_its_turn_beside_chains_that_never_stop() {
    for cells in 1..5 {
        let sizes = vec![BatchSizes { min: 1, max: 8 }; cells];
        let policy = Box::new(Cellular::new(&sizes, 1));
        let mut simulated = Simulated::new(policy, plain_cells(cells), &sizes, 1, 1);
        for cell in 0..cells {
            simulated.submit(chain(cell, 50), 0, None, false);
        }
        simulated.run(1, |_, _| false);
        // Each cell once in every turn, the latest first.
        let order: Vec<usize> = simulated
            .given
            .iter()
            .map(|g| g.task.cell.index())
            .collect();
        for turn in order.chunks(cells) {
            let expected: Vec<usize> = (0..cells).rev().collect();
            assert_eq!(turn, expected, "{order:?}");
        }
        assert_eq!(order.len(), 50 * cells);
    }
}

#[test]
fn a_growth_that_is_told_before_the_one_before_it_waits() {
    let sizes = [BatchSizes { min: 1, max: 8 }];
    let cells = plain_cells(1);
    let policy = Box::new(Cellular::new(&sizes, 1));
    let mut scheduler = Scheduler::new(policy, 1, 1, Limits::default());
    let now = Instant::now();
    let mut graph = Graph::new();
    plain_node(&mut graph, 0, &[]);
    plain_node(&mut graph, 0, &[]);
    let unfolded = graph.unfold(&cells).unwrap();
    let key = scheduler
        .handle_submit(now, &unfolded, Ask::default())
        .unwrap();
    let mut tasks = Vec::new();
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    // Both nodes were watched, and each has grown by one that takes it.
    let mut grow = |from: usize| {
        let nodes = graph.len();
        plain_node(&mut graph, 0, &[from]);
        graph.unfold_from(&cells, nodes, 0).unwrap()
    };
    let (first, second) = (grow(0), grow(1));
    scheduler.handle_grow(key, second).unwrap();
    assert_eq!(scheduler.table().nodes(key), 2);
    scheduler.handle_grow(key, first).unwrap();
    assert_eq!(scheduler.table().nodes(key), 4);
    scheduler.handle_done(now, tasks.remove(0));
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    let mut nodes: Vec<_> = tasks[0].rows.iter().map(|row| row.node.index()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [2, 3]);
    scheduler.handle_done(now, tasks.remove(0));
    assert_eq!(scheduler.poll_ended().unwrap().end, End::Completed);
    assert_eq!(scheduler.audit(), Ok(()));
}
