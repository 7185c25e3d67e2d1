//! A race of plans for one model.
//!
//! Which pages weights come to lie in decides which of them share sets of the caches, and so moves
//! times by a few per cent, for as long as a session lives. So the sessions are made anew several
//! times, each time in the other order, and the samples put together.

use gatestream::{Model, Plan};

use crate::rounds::{Rounds, Times};
use crate::runner::Runner;

/// Races plans for one size, with the rounds shared out over the packings. Times are in the order
/// of the plans.
///
/// # Errors
/// A session cannot be made, or two plans differ in a bit of their answers.
pub fn race(
    model: &Model,
    plans: &[&Plan],
    rounds: Rounds,
    packings: usize,
) -> Result<Vec<Times>, Box<dyn std::error::Error>> {
    let packings = packings.max(1);
    let rounds = rounds.shared_out(packings);
    let mut sum: Vec<Option<Times>> = vec![None; plans.len()];
    for packing in 0..packings {
        let mut order: Vec<usize> = (0..plans.len()).collect();
        if packing % 2 == 1 {
            order.reverse();
        }
        let runners = order.iter().map(|&plan| Runner::new(model, plans[plan]));
        let mut runners: Vec<Runner> = runners.collect::<Result<_, _>>()?;
        if runners.iter().any(|runner| runner.y() != runners[0].y()) {
            return Err("two plans differ in their answers".into());
        }
        let contenders = runners.iter_mut().map(|runner| runner.contender(""));
        let times = rounds.race(&mut contenders.collect::<Vec<_>>());
        for (plan, times) in order.into_iter().zip(times) {
            sum[plan] = Some(match sum[plan].take() {
                None => times,
                Some(before) => before.and(times),
            });
        }
    }
    Ok(sum.into_iter().flatten().collect())
}
