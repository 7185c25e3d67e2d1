//! E-BATCH, by its state machine.

use std::collections::HashMap;
use std::iter::Peekable;

use super::Machine;
use crate::arrivals::Arrival;
use crate::ebatch::{Batch, Cap, Decision, EBatch, EBatchOptions, Segment, Sequence};
use crate::outcome::Outcome;

/// The times of E-BATCH, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Longest wait for a fuller batch (T).
    pub wait: u64,
    /// From the arrival of a request to its deadline, which only [`Cap::ByLoad`] heeds.
    pub allowed: Option<u64>,
}

/// E-BATCH with at most so many steps of a lane in a batch (N). Lanes without a sequence are clock
/// gated.
pub fn ebatch(
    machine: &Machine,
    arrivals: impl IntoIterator<Item = Arrival>,
    cap: Cap,
    waits: Waits,
) -> Outcome {
    let options = EBatchOptions {
        lanes: machine.lanes(),
        cap,
        wait: waits.wait,
    };
    let mut run = Run {
        machine,
        runtime: EBatch::new(options),
        arrivals: arrivals.into_iter().peekable(),
        arrived: HashMap::new(),
        count: 0,
        allowed: waits.allowed,
        outcome: Outcome::default(),
        now: 0,
    };
    run.run();
    run.outcome
}

struct Run<'a, I: Iterator<Item = Arrival>> {
    machine: &'a Machine,
    runtime: EBatch,
    arrivals: Peekable<I>,
    /// The time of the arrival of each request that has not completed.
    arrived: HashMap<u64, u64>,
    count: u64,
    allowed: Option<u64>,
    outcome: Outcome,
    now: u64,
}

impl<I: Iterator<Item = Arrival>> Run<'_, I> {
    fn run(&mut self) {
        let mut started: Option<Batch> = None;
        loop {
            let batch = match started.take() {
                Some(batch) => batch,
                None => match self.idle() {
                    Some(batch) => batch,
                    None => return,
                },
            };
            started = self.evaluate(&batch);
        }
    }

    /// Waits for a batch; `None` if no request is left.
    fn idle(&mut self) -> Option<Batch> {
        loop {
            let next = self.arrivals.peek().map(|arrival| arrival.time);
            match (next, self.runtime.deadline()) {
                (Some(time), deadline) if deadline.is_none_or(|at| time <= at) => {
                    self.now = self.now.max(time);
                    for decision in self.arrive() {
                        if let Decision::Start(batch) = decision {
                            return Some(batch);
                        }
                    }
                }
                (_, Some(at)) => {
                    self.now = self.now.max(at);
                    if let Some(batch) = self.runtime.wait_over(self.now) {
                        return Some(batch);
                    }
                }
                (_, None) => return None,
            }
        }
    }

    /// The requests that have arrived until now.
    fn arrive(&mut self) -> Vec<Decision> {
        let mut new = Vec::new();
        while let Some(arrival) = self.arrivals.next_if(|arrival| arrival.time <= self.now) {
            self.arrived.insert(self.count, arrival.time);
            new.push(Sequence {
                deadline: self.allowed.map(|allowed| arrival.time + allowed),
                ..Sequence::new(self.count, 0, arrival.steps)
            });
            self.count += 1;
        }
        let decisions = self.runtime.arrive(self.now, &new);
        decisions.expect("each request has an id of its own, and steps")
    }

    /// Evaluates a batch in all layers. The batch that starts next, if any.
    fn evaluate(&mut self, batch: &Batch) -> Option<Batch> {
        let machine = self.machine;
        let mut ends: Vec<usize> = (batch.lanes.iter())
            .map(|lane| lane.iter().map(|segment| segment.steps).sum())
            .collect();
        let mut lane_steps: usize = ends.iter().sum();
        // The first layer, step by step only where a lane ends or a request arrives.
        let fetch = machine.pass(1, 0, &mut self.outcome.counts);
        let start = self.now + fetch;
        let mut step = 0;
        let mut join = |ends: &mut [usize], lane: usize, step: usize, segment: Segment| {
            ends[lane] = step + segment.steps;
            lane_steps += segment.steps;
        };
        while step < self.runtime.steps() {
            let next_end = ends.iter().copied().filter(|&end| end > step).min();
            let next_arrival = self.arrivals.peek().map(|arrival| {
                let passed = arrival.time.saturating_sub(start);
                (passed.div_ceil(machine.step) as usize).max(step + 1)
            });
            step = [next_end, next_arrival]
                .into_iter()
                .flatten()
                .min()
                .expect("a lane ends");
            step = step.min(self.runtime.steps());
            self.now = start + step as u64 * machine.step;
            self.runtime.advance(step);
            for decision in self.arrive() {
                if let Decision::Join(joined) = decision {
                    join(&mut ends, joined.lane, step, joined.segment);
                }
            }
            for lane in 0..ends.len() {
                if ends[lane] <= step
                    && let Some(segment) = self.runtime.lane_idle(lane)
                {
                    join(&mut ends, lane, step, segment);
                }
            }
        }
        self.runtime.lock();
        let layers = machine.network.layers;
        self.outcome.counts.steps += step as u64;
        self.outcome.counts.lane_steps += (layers * lane_steps) as u64;
        self.now += machine.pass(layers - 1, step, &mut self.outcome.counts);
        self.arrive();
        let finished = self.runtime.finish(self.now);
        for id in finished.completed {
            let arrived = self.arrived.remove(&id).expect("a known request");
            self.outcome.complete(arrived, self.now);
        }
        finished.next
    }
}
