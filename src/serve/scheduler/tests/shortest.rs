//! Who has the fewest cells left goes first: against sorting all that wait, before every task.

use super::*;
use crate::serve::cell_graph::tests::{plain_cells, plain_node};
use crate::serve::policy::{Cellular, Order};

/// What is known of a chain from outside.
struct Chain {
    key: RequestKey,
    priority: u8,
    submitted: usize,
    left: usize,
}

#[test]
fn the_fewest_left_of_the_highest_priority_go_first() {
    let (mut overtaken, mut resumed) = (0, 0);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let max = rng.usize(1..=5);
        let sizes = [BatchSizes { min: 1, max }];
        let policy = Box::new(Cellular::new(&sizes, 1, Order::FewestLeft));
        let mut simulated = Simulated::new(policy, plain_cells(1), &sizes, 1, rng.usize(1..=3));
        let worker = WorkerId(0);
        let mut chains: Vec<Chain> = Vec::new();
        let mut last: Vec<RequestKey> = Vec::new();
        let mut to_come = rng.usize(1..60);
        let mut submitted = 0;
        while to_come > 0 || !chains.is_empty() {
            for _ in 0..rng.usize(0..3).min(to_come) {
                to_come -= 1;
                submitted += 1;
                let (left, priority) = (rng.usize(1..12), rng.u8(0..2));
                let mut graph = Graph::new();
                for node in 0..left {
                    let before: Vec<usize> = node.checked_sub(1).into_iter().collect();
                    plain_node(&mut graph, 0, &before);
                }
                let key = simulated.submit(graph, priority, None, false);
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
                // It must have happened, or little was tested: a chain gives way to a shorter one, and goes on later.
                let waits = |chain: &&Chain| chain.left > 0 && !got.contains(&chain.key);
                let stops = |chain: &&Chain| last.contains(&chain.key);
                overtaken += chains.iter().filter(waits).filter(stops).count();
                let begun = |row: &&Row| row.node.index() > 0 && !last.contains(&row.request);
                resumed += task.rows.iter().filter(begun).count();
                let first = chains.iter_mut().filter(|chain| chain.left > 0).take(max);
                let expected = first.map(|chain| {
                    chain.left -= 1;
                    chain.key
                });
                assert_eq!(got, expected.collect::<Vec<_>>(), "seed {seed}");
                last = got;
            }
            while !simulated.queues[0].is_empty() {
                simulated.done(worker, false, |_, _| ());
            }
            chains.retain(|chain| simulated.is_live(chain.key));
        }
    }
    assert!(
        overtaken > 200 && resumed > 200,
        "{overtaken} and {resumed} are too few to say much"
    );
}
