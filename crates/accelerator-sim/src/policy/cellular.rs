//! Cellular batching: a few steps through all layers, then others may join.

use super::Machine;
use crate::arrivals::Arrival;
use crate::outcome::Outcome;

/// Cellular batching with cells of `sweep` steps. Lanes without a sequence are clock gated.
pub fn cellular(
    machine: &Machine,
    arrivals: impl IntoIterator<Item = Arrival>,
    sweep: usize,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut arrivals = arrivals.into_iter().peekable();
    // Requests with the steps that are left.
    let mut active: Vec<(Arrival, usize)> = Vec::with_capacity(machine.lanes());
    let mut now = 0;
    loop {
        while active.len() < machine.lanes()
            && let Some(arrival) = arrivals.next_if(|arrival| arrival.time <= now)
        {
            active.push((arrival, arrival.steps));
        }
        let Some(longest) = active.iter().map(|(_, left)| *left).max() else {
            match arrivals.peek() {
                Some(next) => now = next.time,
                None => return outcome,
            }
            continue;
        };
        let layers = machine.network.layers;
        now += machine.pass(layers, longest.min(sweep), &mut outcome.counts);
        active.retain_mut(|(arrival, left)| {
            let steps = (*left).min(sweep);
            outcome.counts.lane_steps += (layers * steps) as u64;
            *left -= steps;
            if *left == 0 {
                outcome.complete(arrival.time, now);
            }
            *left > 0
        });
    }
}
