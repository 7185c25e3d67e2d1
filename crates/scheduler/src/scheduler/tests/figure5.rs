//! BatchMaker's Figure 5, as far as section 3.2 says what is in it.
//!
//! Fixed there: chains, one unit of time for each cell, batches of 4; requests 1 to 4 of lengths 2,
//! 3, 3, 5 at time 0. Graph batching runs them until 5 and the others until 12, so the longest of
//! those has 7. By cells, two full tasks are formed at 0; request 1 leaves at 2, and the third task
//! has 2 to 5, so 5 comes by then; after it 2 and 3 leave, and 6 and 7 join. Chosen here: the other
//! lengths, and when exactly 5 to 8 arrive.

use super::test_graphs::{plain_cells, plain_chain};
use super::*;

pub(super) const LENGTHS: [usize; 8] = [2, 3, 3, 5, 5, 7, 3, 1];

/// In tenths of a unit.
const ARRIVALS: [u64; 8] = [0, 0, 0, 0, 15, 22, 27, 35];

/// When a task starts, which requests are in it, and its padding.
pub(super) type Ran = (u64, Vec<usize>, usize);

/// When each task starts and which requests, counted from 1, are in it; and when each request ends.
pub(super) fn timeline(
    policy: Box<dyn Policy>,
    min: usize,
    tasks_at_once: usize,
) -> (Vec<Ran>, Vec<u64>) {
    let sizes = [BatchSizes { min, max: 4 }];
    let mut simulated = Simulated::new(policy, plain_cells(1), &sizes, 1, tasks_at_once);
    let mut keys = Vec::new();
    simulated.run(10, |simulated, now| {
        while keys.len() < 8 && ARRIVALS[keys.len()] <= now {
            let graph = plain_chain(&[LENGTHS[keys.len()]]);
            keys.push(simulated.submit(graph, 0, None, false));
        }
        keys.len() < 8
    });
    let number = |row: &Row| {
        keys.iter()
            .position(|&k| k == row.request)
            .expect("one of 8")
            + 1
    };
    // One worker: tasks run one after the other, whenever they were given.
    let mut free = 0;
    let tasks = simulated.given.iter().map(|given| {
        let start = given.time.max(free);
        free = start + 10;
        let mut requests: Vec<usize> = given.task.rows.iter().map(number).collect();
        requests.sort_unstable();
        (start, requests, given.task.padding)
    });
    let tasks = tasks.collect();
    let ends = keys.iter().map(|key| match simulated.known[key].end {
        Some((time, End::Completed)) => time,
        other => panic!("{other:?}"),
    });
    (tasks, ends.collect())
}

#[test]
fn cellular_batching() {
    // One task at a time; and up to five, but only full ones after the first, which forms two at 0.
    for (min, tasks_at_once) in [(1, 1), (4, 5)] {
        let policy = Box::new(Cellular::new(1, Order::Arrival));
        let (tasks, ends) = timeline(policy, min, tasks_at_once);
        let expected: [&[usize]; 10] = [
            &[1, 2, 3, 4],
            &[1, 2, 3, 4],
            &[2, 3, 4, 5],
            &[4, 5, 6, 7],
            &[4, 5, 6, 7],
            &[5, 6, 7, 8],
            &[5, 6],
            &[6],
            &[6],
            &[6],
        ];
        assert_eq!(tasks.len(), expected.len());
        for (index, ((start, requests, padding), expected)) in
            tasks.iter().zip(expected).enumerate()
        {
            assert_eq!(
                (*start, &requests[..], *padding),
                (10 * index as u64, expected, 0)
            );
        }
        assert_eq!(ends, [20, 30, 30, 50, 70, 100, 60, 60]);
    }
}
