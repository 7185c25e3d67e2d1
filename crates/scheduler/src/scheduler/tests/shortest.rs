//! Who has the fewest cells left goes first: against sorting all that wait, before every task. Rows
//! that go by turns are others, and at most an eighth of all.

use super::test_graphs::{plain_cells, plain_chain, plain_node};
use super::*;

/// What is known of a chain from outside.
struct Chain {
    key: RequestKey,
    priority: u8,
    submitted: usize,
    left: usize,
}

#[test]
fn the_fewest_left_of_the_highest_priority_go_first() {
    let (mut overtaken, mut resumed, mut by_turn) = (0, 0, 0);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let max = rng.usize(1..=5);
        let sizes = [BatchSizes { min: 1, max }];
        let policy = Box::new(Cellular::new(1, Order::FewestLeft));
        let mut simulated = Simulated::new(policy, plain_cells(1), &sizes, 1, rng.usize(1..=3));
        let worker = WorkerId(0);
        let mut chains: Vec<Chain> = Vec::new();
        let mut last: Vec<RequestKey> = Vec::new();
        let (mut all_rows, mut turn_rows) = (0, 0);
        let mut to_come = rng.usize(1..60);
        let mut submitted = 0;
        while to_come > 0 || !chains.is_empty() {
            for _ in 0..rng.usize(0..3).min(to_come) {
                to_come -= 1;
                submitted += 1;
                let (left, priority) = (rng.usize(1..12), rng.u8(0..2));
                let key = simulated.submit(plain_chain(&[left]), priority, None, false);
                let chain = Chain {
                    key,
                    priority,
                    submitted,
                    left,
                };
                chains.push(chain);
            }
            if rng.u8(0..10) == 0 && !chains.is_empty() {
                let chain = chains.swap_remove(rng.usize(0..chains.len()));
                simulated.cancel(chain.key);
            }
            let tasks = simulated.poll(worker);
            assert_eq!(tasks.is_empty(), chains.is_empty());
            for task in tasks {
                chains.sort_by_key(|c| (std::cmp::Reverse(c.priority), c.left, c.submitted));
                let got: Vec<RequestKey> = task.rows.iter().map(|row| row.request).collect();
                // It must have happened, or little was tested: a chain gives way to a shorter one,
                // and goes on later.
                let waits = |chain: &&Chain| chain.left > 0 && !got.contains(&chain.key);
                let stops = |chain: &&Chain| last.contains(&chain.key);
                overtaken += chains.iter().filter(waits).filter(stops).count();
                let begun = |row: &&Row| row.node.index() > 0 && !last.contains(&row.request);
                resumed += task.rows.iter().filter(begun).count();
                let first = chains.iter().filter(|chain| chain.left > 0).take(max);
                let expected: Vec<RequestKey> = first.map(|chain| chain.key).collect();
                assert_eq!(got.len(), expected.len(), "seed {seed}");
                all_rows += got.len();
                turn_rows += got.iter().filter(|key| !expected.contains(key)).count();
                assert!(turn_rows * 8 <= all_rows, "seed {seed}");
                // One row of a full batch may go by turn.
                let in_order = got.len() - usize::from(got.len() == max);
                assert_eq!(got[..in_order], expected[..in_order], "seed {seed}");
                for chain in &mut chains {
                    chain.left -= usize::from(got.contains(&chain.key));
                }
                last = got;
            }
            while !simulated.queues[0].is_empty() {
                simulated.done(worker, false, |_, _| ());
            }
            chains.retain(|chain| simulated.is_live(chain.key));
        }
        by_turn += turn_rows;
    }
    assert!(
        overtaken > 200 && resumed > 200 && by_turn > 20,
        "{overtaken}, {resumed} and {by_turn} are too few to say much"
    );
}

/// What is known of a tree from outside: leaves, all ready when it comes, and nodes that each join
/// one more of them.
struct Tree {
    key: RequestKey,
    /// All of them.
    nodes: usize,
    leaves_left: usize,
    /// Not done; those above wait for all.
    leaves_not_done: usize,
    above_left: usize,
}

#[test]
fn leaves_of_the_smallest_trees_go_first() {
    const MAX: usize = 4;
    let (mut passed_over, mut by_turn) = (0, 0);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes = [BatchSizes { min: 1, max: MAX }; 2];
        let policy = Box::new(Cellular::new(1, Order::FewestLeft));
        let mut simulated = Simulated::new(policy, plain_cells(2), &sizes, 1, 1);
        let worker = WorkerId(0);
        let mut trees: Vec<Tree> = Vec::new();
        let (mut all_rows, mut turn_rows) = (0, 0);
        let mut to_come = rng.usize(1..30);
        while to_come > 0 || !trees.is_empty() {
            for _ in 0..rng.usize(0..3).min(to_come) {
                to_come -= 1;
                let leaves = rng.usize(1..7);
                let above = leaves - 1;
                let mut graph = Graph::new();
                for _ in 0..leaves {
                    plain_node(&mut graph, 0, &[]);
                }
                for node in 0..above {
                    let left = node.checked_sub(1).map_or(0, |below| leaves + below);
                    plain_node(&mut graph, 1, &[left, node + 1]);
                }
                trees.push(Tree {
                    key: simulated.submit(graph, 0, None, false),
                    nodes: leaves + above,
                    leaves_left: leaves,
                    leaves_not_done: leaves,
                    above_left: above,
                });
            }
            for task in simulated.poll(worker) {
                let is_leaf = task.cell.index() == 0;
                // How many nodes are left of whose rows may go, as often as it has some.
                let may_go = trees.iter().flat_map(|tree| {
                    if is_leaf {
                        vec![(tree.nodes, tree.key); tree.leaves_left]
                    } else if tree.leaves_not_done > 0 {
                        Vec::new()
                    } else {
                        vec![(tree.above_left, tree.key); tree.above_left.min(1)]
                    }
                });
                let may_go: Vec<(usize, RequestKey)> = may_go.collect();
                let of = |row: &Row| {
                    let here = may_go.iter().find(|(_, key)| *key == row.request);
                    here.expect("may go").0
                };
                let mut got: Vec<usize> = task.rows.iter().map(of).collect();
                got.sort_unstable();
                let mut expected: Vec<usize> = may_go.iter().map(|(left, _)| *left).collect();
                // It must have happened, or little was tested.
                passed_over +=
                    usize::from(is_leaf && expected[..got.len()].iter().max() > got.iter().max());
                expected.sort_unstable();
                expected.truncate(MAX);
                assert_eq!(got.len(), expected.len(), "seed {seed}");
                all_rows += got.len();
                if got != expected {
                    // One row of a batch of four goes by turn; the rest in order.
                    assert_eq!(got[..MAX - 1], expected[..MAX - 1], "seed {seed}");
                    turn_rows += 1;
                }
                assert!(turn_rows * 8 <= all_rows, "seed {seed}");
                for row in &task.rows {
                    let tree = trees.iter_mut().find(|tree| tree.key == row.request);
                    let tree = tree.expect("live");
                    if is_leaf {
                        tree.leaves_left -= 1
                    } else {
                        tree.above_left -= 1
                    }
                }
            }
            while let Some(task) = simulated.queues[0].front().cloned() {
                simulated.done(worker, false, |_, _| ());
                for row in task.rows.iter().filter(|_| task.cell.index() == 0) {
                    let tree = trees.iter_mut().find(|tree| tree.key == row.request);
                    tree.expect("live").leaves_not_done -= 1;
                }
            }
            trees.retain(|tree| simulated.is_live(tree.key));
        }
        by_turn += turn_rows;
    }
    assert!(
        passed_over > 100 && by_turn > 20,
        "{passed_over} and {by_turn} are too few to say much"
    );
}
