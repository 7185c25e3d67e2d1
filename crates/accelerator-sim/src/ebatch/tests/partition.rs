//! The partition beside the best one, found by trying all.

use crate::ebatch::partition;

/// The text of section 5.2 of the paper: (8, 5, 4) and (7, 6).
#[test]
fn example_of_the_paper() {
    let steps = [4, 5, 6, 8, 7];
    let lanes: Vec<Vec<usize>> = (partition(&steps, 2).iter())
        .map(|lane| lane.iter().map(|&index| steps[index]).collect())
        .collect();
    assert_eq!(lanes, [vec![8, 5, 4], vec![7, 6]]);
}

fn longest(steps: &[usize], lane_of: impl Fn(usize) -> usize, lanes: usize) -> usize {
    let mut totals = vec![0; lanes];
    for (index, steps) in steps.iter().enumerate() {
        totals[lane_of(index)] += steps;
    }
    totals.into_iter().max().unwrap()
}

/// The steps of the longest lane of the best division.
fn optimum(steps: &[usize], lanes: usize) -> usize {
    let ways = lanes.pow(steps.len() as u32);
    let divisions = (0..ways).map(|way| {
        let lane_of = |index: usize| way / lanes.pow(index as u32) % lanes;
        longest(steps, lane_of, lanes)
    });
    divisions.min().unwrap()
}

#[test]
fn longest_lane_is_within_grahams_bound() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut best = 0;
    let cases = 300;
    for _ in 0..cases {
        let (count, lanes) = (random.usize(1..=8), random.usize(1..=3));
        let steps: Vec<usize> = (0..count).map(|_| random.usize(1..=20)).collect();
        let divided = partition(&steps, lanes);
        let mut seen: Vec<usize> = divided.concat();
        seen.sort_unstable();
        assert_eq!(
            seen,
            (0..count).collect::<Vec<_>>(),
            "each index is in one lane"
        );
        let lane_of = |index| {
            divided
                .iter()
                .position(|lane| lane.contains(&index))
                .unwrap()
        };
        let (found, optimum) = (longest(&steps, lane_of, lanes), optimum(&steps, lanes));
        assert!(found >= optimum);
        // 4/3 - 1/(3 lanes), in whole numbers.
        assert!(
            found * 3 * lanes <= optimum * (4 * lanes - 1),
            "{steps:?} on {lanes}"
        );
        best += usize::from(found == optimum);
    }
    assert!(best > cases / 2, "{best} of {cases} are the best");
}
