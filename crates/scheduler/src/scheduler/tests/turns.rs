//! Whose turn it is: no cell is kept waiting by others that always have something ready, steps are
//! decided at once where they can be one batch, and growths may come in any order.

use super::test_graphs::{Named, plain_cells, plain_chain, plain_node};
use super::*;
use crate::cell_graph::{Ports, Source};

#[test]
fn every_cell_gets_its_turn_beside_chains_that_never_stop() {
    for cells in 1..5 {
        let sizes = vec![BatchSizes { min: 1, max: 8 }; cells];
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let mut simulated = Simulated::new(policy, plain_cells(cells), &sizes, 1, 1);
        for cell in 0..cells {
            let mut lengths = vec![0; cell];
            lengths.push(50);
            simulated.submit(plain_chain(&lengths), 0, None, false);
        }
        simulated.run(1, |_, _| false);
        let order: Vec<usize> = simulated
            .given
            .iter()
            .map(|g| g.task.cell.index())
            .collect();
        assert_eq!(order[0], cells - 1, "the latest first: {order:?}");
        for cell in 0..cells {
            let mut turns = vec![0];
            turns.extend((0..order.len()).filter(|&at| order[at] == cell));
            let gaps = turns.windows(2).map(|pair| pair[1] - pair[0]);
            // Skipped four times, and once for each other that was skipped as often.
            assert!(gaps.max() <= Some(4 + cells), "{order:?}");
        }
        assert_eq!(order.len(), 50 * cells);
    }
}

/// Encoders and decoders on one worker whose batches take a time of their own and some for each
/// row: the mean time from coming to ending, where times are told and where they are not.
#[test]
fn requests_end_sooner_where_cells_go_by_what_their_rows_are_worth() {
    // Microseconds: of a batch, and of each of its rows.
    const TAKES: [(u64, u64); 2] = [(300, 40), (1200, 100)];
    let mean = |(encoded, decoded): (usize, usize), tells: bool| {
        let sizes = vec![BatchSizes { min: 1, max: 64 }; 2];
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let mut scheduler = scheduler_of(policy, &sizes, 1, 1, Limits::default());
        let graph = plain_chain(&[encoded, decoded])
            .unfold(&plain_cells(2))
            .unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let (start, mut now, mut comes) = (Instant::now(), 0.0, 0.0);
        let (mut came, mut ended, mut sum) = (HashMap::new(), 0, 0.0);
        let at = |micros: f64| start + Duration::from_micros(micros as u64);
        while ended < 2000 {
            while comes <= now {
                let asked = scheduler.handle_submit(at(comes), &graph, Requirements::default());
                came.insert(asked.unwrap(), comes);
                comes -= 6500.0 * (1.0 - rng.f64()).ln();
            }
            let mut tasks = Vec::new();
            scheduler.poll_tasks(at(now), WorkerId(0), &mut tasks);
            let Some(task) = tasks.pop() else {
                now = comes;
                continue;
            };
            let (of_all, of_a_row) = TAKES[task.cell.index()];
            let took = of_all + of_a_row * task.rows.len() as u64;
            now += took as f64;
            let told = tells.then(|| Duration::from_micros(took));
            scheduler.handle_done(at(now), task, told);
            while let Some(one) = scheduler.poll_ended() {
                sum += now - came[&one.request];
                ended += 1;
            }
        }
        sum / f64::from(ended)
    };
    for (lengths, at_most) in [((16, 16), 0.95), ((32, 4), 0.8), ((8, 32), 0.97)] {
        let (told, not) = (mean(lengths, true), mean(lengths, false));
        assert!(
            told < at_most * not,
            "{lengths:?}: {told:.0} and {not:.0} µs"
        );
    }
}

#[test]
fn nodes_of_a_subgraph_go_in_the_order_in_which_they_got_ready() {
    // Six that take nothing, and those that make one subgraph of them.
    let mut graph = Graph::new();
    for _ in 0..6 {
        plain_node(&mut graph, 0, &[]);
    }
    for from in [&[0][..], &[1, 2], &[3, 4], &[7, 8], &[9, 5], &[10, 6]] {
        plain_node(&mut graph, 0, from);
    }
    let order = |most: usize| {
        let sizes = [BatchSizes { min: 1, max: most }];
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let mut scheduler = scheduler_of(policy, &sizes, 1, 10, Limits::default());
        let unfolded = graph.unfold(&plain_cells(1)).unwrap();
        let now = Instant::now();
        (scheduler.handle_submit(now, &unfolded, Requirements::default())).unwrap();
        let mut tasks = Vec::new();
        scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
        let nodes = |task: &Task| task.rows.iter().map(|row| row.node.index()).collect();
        tasks.iter().map(nodes).collect::<Vec<Vec<usize>>>()
    };
    let last = [vec![9], vec![10], vec![11]];
    let fours = [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8]];
    let threes = [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8]];
    let twos = [[0, 1], [2, 3], [4, 5], [6, 7]].map(Vec::from);
    assert_eq!(order(4), [&fours[..], &last].concat());
    assert_eq!(order(3), [&threes[..], &last].concat());
    assert_eq!(order(2), [&twos[..], &[vec![8]], &last].concat());
}

/// A cell with an input and a state.
pub(super) fn stateful() -> Cells {
    let mut cells = Cells::new();
    let ports = Ports::new().input("x", 1).state("s", 1).output("y", 1);
    cells.add(Named::new("stateful", ports));
    cells
}

/// A chain of that cell whose inputs are there.
pub(super) fn going_on(length: usize) -> Graph {
    let mut graph = Graph::new();
    let mut state = Source::Zeros;
    for _ in 0..length {
        state = graph.node(CellId(0), &[Source::Zeros, state]).output(0);
    }
    graph
}

fn first_turn(chains: usize, most: usize, tasks: usize, steps: &[usize]) -> Vec<usize> {
    first_turn_of(10, chains, most, tasks, steps)
}

/// How many rows each task of a worker's first turn has, of `chains` chains of this length, with
/// batches of up to `most` rows and so many tasks and steps at once.
fn first_turn_of(
    length: usize,
    chains: usize,
    most: usize,
    tasks: usize,
    steps: &[usize],
) -> Vec<usize> {
    let sizes = [BatchSizes { min: 1, max: most }];
    let policy = Box::new(Cellular::new(1, Order::Arrival));
    let mut scheduler = scheduler_of(policy, &sizes, 1, tasks, Limits::default());
    scheduler.set_steps_at_once(ModelKey::default(), steps);
    let unfolded = going_on(length).unfold(&stateful()).unwrap();
    let now = Instant::now();
    for _ in 0..chains {
        let asked = scheduler.handle_submit(now, &unfolded, Requirements::default());
        asked.unwrap();
    }
    let mut given = Vec::new();
    scheduler.poll_tasks(now, WorkerId(0), &mut given);
    for pair in given.windows(2).filter(|_| tasks == 1) {
        let requests = |task: &Task| task.rows.iter().map(|row| row.request).collect::<Vec<_>>();
        assert_eq!(requests(&pair[0]), requests(&pair[1]));
        let (before, next) = (pair[0].rows[0].node, pair[1].rows[0].node);
        assert_eq!(next.index(), before.index() + 1);
    }
    given.iter().map(|task| task.rows.len()).collect()
}

#[test]
fn a_turn_takes_several_steps_of_few_rows() {
    // As many as asked for, while all together have no more than 16 rows.
    assert_eq!(first_turn(1, 8, 1, &[4]), [1; 4]);
    assert_eq!(first_turn(4, 8, 1, &[4]), [4; 4]);
    assert_eq!(first_turn(5, 8, 1, &[4]), [5; 3]);
    assert_eq!(first_turn(8, 8, 1, &[4]), [8; 2]);
    assert_eq!(first_turn(9, 32, 1, &[4]), [9]);
    assert_eq!(first_turn(20, 8, 1, &[4]), [8; 2], "the same eight");
    assert_eq!(first_turn(30, 32, 1, &[4]), [30]);
    assert_eq!(
        first_turn(1, 8, 1, &[20]),
        [1; 10],
        "no more than there are"
    );
    // Others do not take the place of rows that end.
    assert_eq!(first_turn_of(1, 16, 4, 1, &[4]), [4]);
    assert_eq!(first_turn_of(2, 16, 4, 1, &[4]), [4; 2]);
    // Where a cell takes one step at a time, and where more tasks were asked for anyway.
    assert_eq!(first_turn(4, 8, 1, &[1]), [4]);
    assert_eq!(first_turn(4, 8, 1, &[]), [4]);
    assert_eq!(first_turn(9, 32, 3, &[2]), [9; 3]);
}

#[test]
fn steps_that_cannot_be_one_batch_are_not_decided_at_once() {
    // How many tasks the first turn has.
    let turn = |graphs: &[&Graph]| {
        let sizes = [BatchSizes { min: 1, max: 8 }];
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let mut scheduler = scheduler_of(policy, &sizes, 1, 1, Limits::default());
        scheduler.set_steps_at_once(ModelKey::default(), &[4]);
        let now = Instant::now();
        for graph in graphs {
            let unfolded = graph.unfold(&stateful()).unwrap();
            (scheduler.handle_submit(now, &unfolded, Requirements::default())).unwrap();
        }
        let mut given = Vec::new();
        scheduler.poll_tasks(now, WorkerId(0), &mut given);
        given.len()
    };
    let free = going_on(6);
    assert_eq!(turn(&[&free]), 4);
    // Somebody is told after the first, or the second.
    let [mut first, mut second] = [free.clone(), free.clone()];
    first.watch(NodeId::new(0));
    second.watch(NodeId::new(1));
    assert_eq!([turn(&[&first]), turn(&[&second])], [1, 2]);
    assert_eq!(turn(&[&free, &second]), 2, "nor with others");
    // The third takes what the second gives as its input.
    let mut feeds = going_on(2);
    let before = NodeId::new(1);
    feeds.node(CellId(0), &[before.output(1), before.output(0)]);
    assert_eq!(turn(&[&feeds]), 2);
    // Somebody else takes a state of the second: the answer, or a node.
    let mut answers = free.clone();
    answers.answer(NodeId::new(1).output(0));
    let mut shares = free.clone();
    shares.node(CellId(0), &[NodeId::new(1).output(0), Source::Zeros]);
    assert_eq!([turn(&[&answers]), turn(&[&shares])], [2, 2]);
    let mut outputs = free.clone();
    outputs.answer(NodeId::new(1).output(1));
    assert_eq!(turn(&[&outputs]), 4, "of outputs there is one a step");
    // Two go on from the first, of which only one can do so in place.
    let mut forks = going_on(4);
    forks.node(CellId(0), &[Source::Zeros, NodeId::new(0).output(0)]);
    assert_eq!(turn(&[&forks]), 1);
}

/// A scheduler of one plain cell, a task at once for each of so many workers.
fn one_cell(workers: usize) -> Scheduler {
    let sizes = [BatchSizes { min: 1, max: 8 }];
    let policy = Box::new(Cellular::new(workers, Order::Arrival));
    scheduler_of(policy, &sizes, workers, 1, Limits::default())
}

/// What `graph` grows by: a node of the first cell that takes the state of `from`.
fn grown(graph: &mut Graph, from: usize) -> RequestGraph {
    let before = graph.mark();
    plain_node(graph, 0, &[from]);
    graph.unfold_from(&plain_cells(1), before).unwrap()
}

fn nodes_of(task: &Task) -> Vec<usize> {
    let mut nodes: Vec<usize> = task.rows.iter().map(|row| row.node.index()).collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_growth_that_is_told_before_the_one_before_it_waits() {
    let mut scheduler = one_cell(1);
    let now = Instant::now();
    let mut graph = Graph::new();
    plain_node(&mut graph, 0, &[]);
    plain_node(&mut graph, 0, &[]);
    let unfolded = graph.unfold(&plain_cells(1)).unwrap();
    let key = scheduler
        .handle_submit(now, &unfolded, Requirements::default())
        .unwrap();
    let mut tasks = Vec::new();
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    // Both nodes were watched, and each has grown by one that takes it.
    let (first, second) = (grown(&mut graph, 0), grown(&mut graph, 1));
    scheduler.handle_grow(key, second).unwrap();
    assert_eq!(scheduler.table().nodes(key), 2);
    scheduler.handle_grow(key, first).unwrap();
    assert_eq!(scheduler.table().nodes(key), 4);
    scheduler.handle_done(now, tasks.remove(0), None);
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    assert_eq!(nodes_of(&tasks[0]), [2, 3]);
    scheduler.handle_done(now, tasks.remove(0), None);
    assert_eq!(scheduler.poll_ended().unwrap().end, End::Completed);
    assert_eq!(scheduler.audit(), Ok(()));
}

#[test]
fn growths_of_one_subgraph_that_are_told_together_are_all_queued() {
    let mut scheduler = one_cell(2);
    let now = Instant::now();
    let mut graph = Graph::new();
    plain_node(&mut graph, 0, &[]);
    let unfolded = graph.unfold(&plain_cells(1)).unwrap();
    let open = Requirements {
        open: true,
        ..Requirements::default()
    };
    let key = scheduler.handle_submit(now, &unfolded, open).unwrap();
    let mut tasks = Vec::new();
    scheduler.poll_tasks(now, WorkerId(0), &mut tasks);
    scheduler.handle_done(now, tasks.remove(0), None);
    // Its worker has put the state away: any may go on.
    let subgraph = SubgraphKey {
        request: key,
        index: 0,
    };
    scheduler.handle_evicted(subgraph);
    assert_eq!(scheduler.table().pinned(subgraph), None);
    // Two nodes go on from it; the second is told first, so both get ready by one event.
    let (first, second) = (grown(&mut graph, 0), grown(&mut graph, 0));
    scheduler.handle_grow(key, second).unwrap();
    scheduler.handle_grow(key, first).unwrap();
    assert_eq!(scheduler.table().ready(subgraph), 2);
    scheduler.poll_tasks(now, WorkerId(1), &mut tasks);
    assert_eq!(nodes_of(&tasks[0]), [1, 2]);
    scheduler.handle_done(now, tasks.remove(0), None);
    scheduler.handle_close(now, key);
    assert_eq!(scheduler.poll_ended().unwrap().end, End::Completed);
    assert_eq!(scheduler.audit(), Ok(()));
}
