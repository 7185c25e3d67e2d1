//! Batches of whole sequences, padded to the longest: padding and bucketing.

use std::collections::{BTreeMap, VecDeque};

use super::Machine;
use crate::arrivals::Arrival;
use crate::outcome::Outcome;

/// Sequence padding: the oldest requests, as many as lanes, evaluated to the longest of them.
pub fn padding(machine: &Machine, arrivals: impl IntoIterator<Item = Arrival>) -> Outcome {
    buckets(machine, arrivals, |_| 0)
}

/// Sequence bucketing: as padding, with sequences of the same bucket alone. A bucket has lengths
/// that differ by at most `width`.
///
/// # Panics
/// If `width` is the largest number.
pub fn bucketing(
    machine: &Machine,
    arrivals: impl IntoIterator<Item = Arrival>,
    width: usize,
) -> Outcome {
    buckets(machine, arrivals, |steps| steps / (width + 1))
}

fn buckets(
    machine: &Machine,
    arrivals: impl IntoIterator<Item = Arrival>,
    bucket: impl Fn(usize) -> usize,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut arrivals = arrivals.into_iter().peekable();
    let mut waiting: BTreeMap<usize, VecDeque<Arrival>> = BTreeMap::new();
    let mut now = 0;
    loop {
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.time <= now) {
            waiting
                .entry(bucket(arrival.steps))
                .or_default()
                .push_back(arrival);
        }
        let queues = waiting
            .iter()
            .filter_map(|(key, queue)| Some((queue.front()?.time, *key)));
        let Some((_, oldest)) = queues.min() else {
            match arrivals.peek() {
                Some(next) => now = next.time,
                None => return outcome,
            }
            continue;
        };
        let queue = waiting.get_mut(&oldest).expect("the bucket of the oldest");
        let batch: Vec<Arrival> = queue.drain(..queue.len().min(machine.lanes())).collect();
        let longest = batch.iter().map(|arrival| arrival.steps).max().unwrap_or(0);
        let layers = machine.network.layers;
        now += machine.pass(layers, longest, &mut outcome.counts);
        for arrival in batch {
            let layers = layers as u64;
            outcome.counts.lane_steps += layers * arrival.steps as u64;
            outcome.counts.padded_lane_steps += layers * (longest - arrival.steps) as u64;
            outcome.complete(arrival.time, now);
        }
    }
}
