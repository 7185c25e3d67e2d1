//! Random arrivals, driven step by step: each step of each sequence is evaluated once, in order,
//! and no sequence waits for ever.

use std::collections::BTreeMap;

use super::*;
use crate::ebatch::{LayerTimes, Time};

/// A sequence as the driver knows it.
#[derive(Debug)]
struct Known {
    model: usize,
    steps: usize,
    evaluated: usize,
    /// The first time a batch could have started with it since its steps were last evaluated.
    offered: Option<Time>,
}

struct Driver {
    runtime: EBatch,
    options: EBatchOptions,
    known: BTreeMap<u64, Known>,
    now: Time,
    /// The lanes of the batch that is evaluated, with their last step.
    batch: Option<(usize, Vec<usize>)>,
    layers: usize,
}

impl Driver {
    fn is_within_cap(&self, end: usize) -> bool {
        match self.options.cap {
            Cap::Steps(cap) => end <= cap,
            Cap::Longest | Cap::ByLoad(_) => true,
        }
    }

    fn take(&mut self, model: usize, segment: Segment) {
        let known = self.known.get_mut(&segment.id).unwrap();
        assert_eq!(known.model, model);
        assert_eq!(known.evaluated, segment.first_step, "steps are in order");
        assert!(segment.steps > 0);
        known.evaluated += segment.steps;
        known.offered = None;
        assert!(known.evaluated <= known.steps, "no step is evaluated twice");
    }

    fn start(&mut self, batch: &Batch) {
        assert!(self.batch.is_none());
        assert_eq!(batch.lanes.len(), self.options.lanes);
        let ids: Vec<u64> = (batch.lanes.iter().flatten())
            .map(|segment| segment.id)
            .collect();
        assert!(!ids.is_empty());
        // No older sequence was ready: its model is short of lanes and its wait is not over.
        let oldest = self.known[ids.iter().min().unwrap()].model;
        assert_eq!(oldest, batch.model);
        for (id, older) in self.known.range(..ids.iter().min().unwrap()) {
            let waits = older
                .offered
                .is_none_or(|at| at + self.options.wait > self.now);
            assert!(waits, "{id} is ready and older");
        }
        let mut ends = Vec::new();
        for lane in &batch.lanes {
            lane.iter()
                .for_each(|segment| self.take(batch.model, *segment));
            let end = lane.iter().map(|segment| segment.steps).sum();
            assert!(self.is_within_cap(end));
            ends.push(end);
        }
        self.batch = Some((batch.model, ends));
    }

    fn decide(&mut self, decisions: Vec<Decision>, step: usize) {
        for decision in decisions {
            match decision {
                Decision::Start(batch) => self.start(&batch),
                Decision::Join(Join { lane, segment }) => self.join(lane, segment, step),
            }
        }
    }

    fn join(&mut self, lane: usize, segment: Segment, step: usize) {
        let (model, ends) = self.batch.as_mut().unwrap();
        assert!(ends[lane] <= step, "the lane is idle");
        ends[lane] = step + segment.steps;
        let (end, model) = (ends[lane], *model);
        assert!(self.is_within_cap(end));
        self.take(model, segment);
    }

    fn arrive(&mut self, random: &mut fastrand::Rng, step: usize) {
        let count = if random.u8(..4) == 0 {
            random.usize(1..4)
        } else {
            0
        };
        let new: Vec<Sequence> = (0..count)
            .map(|index| Sequence {
                id: (self.known.len() + index) as u64,
                model: random.usize(..2),
                steps: random.usize(1..9),
                deadline: random.bool().then(|| self.now + random.u64(..60)),
            })
            .collect();
        for sequence in &new {
            let known = Known {
                model: sequence.model,
                steps: sequence.steps,
                evaluated: 0,
                offered: self.batch.is_none().then_some(self.now),
            };
            self.known.insert(sequence.id, known);
        }
        let decisions = self.runtime.arrive(self.now, &new).unwrap();
        self.decide(decisions, step);
    }

    /// Evaluates the batch, with arrivals in all layers if there are any.
    fn evaluate(&mut self, mut random: Option<&mut fastrand::Rng>) {
        let mut step = 0;
        while step < self.runtime.steps() {
            step += 1;
            self.now += 1;
            self.runtime.advance(step);
            if let Some(random) = random.as_deref_mut() {
                self.arrive(random, step);
            }
            for lane in 0..self.options.lanes {
                if self.batch.as_ref().unwrap().1[lane] <= step
                    && let Some(segment) = self.runtime.lane_idle(lane)
                {
                    self.join(lane, segment, step);
                }
            }
        }
        self.runtime.lock();
        for _ in 0..(self.layers - 1) * step {
            self.now += 1;
            if let Some(random) = random.as_deref_mut() {
                self.arrive(random, step);
            }
        }
        let finished = self.runtime.finish(self.now);
        self.batch = None;
        for id in &finished.completed {
            let known = &self.known[id];
            assert_eq!(known.evaluated, known.steps, "{id} is complete");
        }
        for known in self
            .known
            .values_mut()
            .filter(|known| known.evaluated < known.steps)
        {
            known.offered.get_or_insert(self.now);
        }
        if let Some(batch) = finished.next {
            self.start(&batch);
        }
    }
}

#[test]
fn each_step_is_evaluated_once_and_nothing_starves() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = EBatchOptions {
            lanes: random.usize(1..5),
            cap: match random.u8(..3) {
                0 => Cap::Longest,
                1 => Cap::Steps(random.usize(1..6)),
                _ => Cap::ByLoad(LayerTimes {
                    layers: random.usize(1..4),
                    fetch: random.u64(..9),
                    step: random.u64(1..4),
                }),
            },
            wait: random.u64(..6),
        };
        let mut driver = Driver {
            runtime: EBatch::new(options),
            options,
            known: BTreeMap::new(),
            now: 0,
            batch: None,
            layers: random.usize(1..4),
        };
        while driver.now < 300 {
            if driver.batch.is_some() {
                driver.evaluate(Some(&mut random));
                continue;
            }
            driver.now += 1;
            driver.arrive(&mut random, 0);
            let is_due = driver.runtime.deadline().is_some_and(|at| at <= driver.now);
            if driver.batch.is_none() && is_due {
                let batch = driver.runtime.wait_over(driver.now).unwrap();
                driver.start(&batch);
            }
        }
        // Without arrivals, all end.
        while driver.runtime.waiting() > 0 || driver.batch.is_some() {
            if driver.batch.is_none() {
                driver.now = driver.runtime.deadline().unwrap();
                let batch = driver.runtime.wait_over(driver.now).unwrap();
                driver.start(&batch);
            }
            driver.evaluate(None);
        }
        assert!(
            driver
                .known
                .values()
                .all(|known| known.evaluated == known.steps)
        );
    }
}

#[test]
fn bad_arrivals_change_nothing() {
    let mut runtime = EBatch::new(EBatchOptions {
        lanes: 2,
        cap: Cap::Longest,
        wait: 5,
    });
    runtime.arrive(0, &[sequence(1, 2)]).unwrap();
    for (bad, part) in [
        (sequence(2, 0), "no steps"),
        (sequence(1, 3), "arrived already"),
    ] {
        let refused = runtime.arrive(1, &[sequence(3, 1), bad]).unwrap_err();
        assert!(refused.to_string().contains(part), "{refused}");
    }
    assert_eq!(runtime.waiting(), 1);
    assert!(runtime.cancel(1) && !runtime.cancel(1));
    assert_eq!((runtime.waiting(), runtime.deadline()), (0, None));
    // A completed or cancelled id may come again.
    runtime.arrive(2, &[sequence(1, 1)]).unwrap();
}
