//! Greedy multi-way number partitioning.

use std::cmp::Reverse;

/// Divides sequences of these lengths among lanes so that the longest lane is short: the longest
/// sequence first, each to the lane with the fewest steps, the first of several. Returns the
/// indices of each lane's sequences, in the order of their evaluation. Sequences that are no more
/// than the lanes get one each, in their order.
///
/// E-BATCH, section 5.2; the longest lane has at most `4/3 - 1/(3 lanes)` times the steps of the
/// best division (Graham, 1969).
///
/// ```
/// use gatestream_accelerator_sim::ebatch::partition;
///
/// let lanes = partition(&[4, 5, 6, 8, 7], 2);
/// assert_eq!(lanes, [vec![3, 1, 0], vec![4, 2]]); // steps (8, 5, 4) and (7, 6)
/// ```
///
/// # Panics
/// If there is no lane.
pub fn partition(steps: &[usize], lanes: usize) -> Vec<Vec<usize>> {
    assert!(lanes > 0, "there is no lane");
    let mut divided = vec![Vec::new(); lanes];
    if steps.len() <= lanes {
        for (index, lane) in (0..steps.len()).zip(&mut divided) {
            lane.push(index);
        }
        return divided;
    }
    let mut order: Vec<usize> = (0..steps.len()).collect();
    // Stable: the older of two equals goes first.
    order.sort_by_key(|&index| Reverse(steps[index]));
    let mut totals = vec![0usize; lanes];
    for index in order {
        let shortest = (0..lanes).min_by_key(|&lane| totals[lane]).expect("a lane");
        totals[shortest] += steps[index];
        divided[shortest].push(index);
    }
    divided
}
