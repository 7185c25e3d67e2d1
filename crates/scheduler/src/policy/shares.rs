//! Shares of the models: the model that a worker runs next.
//!
//! ```text
//! the virtual time of a model: the time of its batches / its weight
//! next(worker, S):                                  S: models with rows that the worker may take
//!   the model of S that has been overdue for longest, if there is one
//!   else the one with the least virtual time; of equal ones, the one that ran least recently
//! a model without ready rows gets some:
//!   its time = max(its time, that of the latest batch at its start)
//! a model is overdue at a worker that has skipped it, while it had rows, in
//!   MODEL_SKIPS · max(1, ceil(weights of all others / its weight)) batches
//! ```
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). While two models have
//! rows for a worker, the times that it gives to them, each divided by the weight, differ by at
//! most a batch of each, divided by the weights. A model that has had no rows saves no time up: it
//! goes on from where the others are.
//!
//! A batch counts with the usual time of its cell when it starts and with its own when it is done,
//! so that a worker takes account of the batches of others.
//!
//! The rule of overdue models bounds the wait in batches, where times alone would let a model with
//! batches of a hundred times the length wait for hundreds of batches. It changes the shares of
//! models whose batches differ more than MODEL_SKIPS times in length.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::scheduler::WorkerId;

/// A model with rows is skipped at most this often in a row, times the sum of the other weights
/// divided by its own, unless other models have been overdue for longer.
const MODEL_SKIPS: u64 = 32;

/// See the [module](self). [`Shares::next`] returns the model of the next batch. A policy calls the
/// other methods when models change ([`Shares::add`], [`Shares::enter`], [`Shares::remove`]), for
/// each batch ([`Shares::taken`]) and at the start and the end of each task ([`Shares::start`],
/// [`Shares::done`]).
///
/// Methods that take a worker or a model may panic if there is no such worker, or if no model was
/// added at the index or above it. A model that was removed is ignored.
///
/// ```
/// use std::num::NonZeroU32;
///
/// use gatestream_scheduler::policy::Shares;
/// use gatestream_scheduler::scheduler::WorkerId;
///
/// let (mut shares, worker) = (Shares::new(1), WorkerId(0));
/// for model in [0, 1] {
///     shares.add(model, NonZeroU32::MIN);
///     shares.enter(model);
/// }
/// let first = shares.next(worker, |_| true); // both have rows
/// assert_eq!(first, Some(0));
/// shares.taken(worker, 0, |_| true);
/// shares.start(worker, 0, Some(1e-3)); // it usually takes a millisecond
/// assert_eq!(shares.next(worker, |_| true), Some(1));
/// ```
pub struct Shares {
    /// By index.
    models: Vec<Option<Share>>,
    /// The virtual time of the latest batch at its start.
    now: f64,
    /// Batches so far, further steps not counted.
    batches: u64,
    /// By worker: the seconds that its tasks were counted with at their start, in order.
    expected: Vec<VecDeque<f64>>,
}

struct Share {
    weight: NonZeroU32,
    /// The virtual time.
    time: f64,
    /// The number of its latest batch.
    latest: u64,
    /// By worker: batches in a row that were of other models while this one had rows.
    skips: Vec<u64>,
}

impl Share {
    fn count(&mut self, seconds: f64) {
        self.time += seconds / f64::from(self.weight.get());
    }
}

impl Shares {
    /// Of no models yet, for this number of workers.
    pub fn new(workers: usize) -> Shares {
        Shares {
            models: Vec::new(),
            now: 0.0,
            batches: 0,
            expected: vec![VecDeque::new(); workers],
        }
    }

    /// Adds the model of this index.
    pub fn add(&mut self, model: usize, weight: NonZeroU32) {
        if self.models.len() <= model {
            self.models.resize_with(model + 1, || None);
        }
        self.models[model] = Some(Share {
            weight,
            time: self.now,
            latest: 0,
            skips: vec![0; self.expected.len()],
        });
    }

    /// Removes a model.
    pub fn remove(&mut self, model: usize) {
        self.models[model] = None;
    }

    /// A model that had no ready rows gets some.
    pub fn enter(&mut self, model: usize) {
        let now = self.now;
        if let Some(share) = &mut self.models[model] {
            share.time = share.time.max(now);
        }
    }

    /// The model that is run next, of those that have rows that the worker may take.
    pub fn next(&self, worker: WorkerId, has_rows: impl Fn(usize) -> bool) -> Option<usize> {
        let shares = || {
            let all = self.models.iter().enumerate();
            let all = all.filter_map(|(model, share)| Some((model, share.as_ref()?)));
            all.filter(|&(model, _)| has_rows(model))
        };
        if shares().nth(1).is_none() {
            return shares().next().map(|(model, _)| model);
        }
        let weights: u64 = { self.models.iter().flatten() }
            .map(|share| u64::from(share.weight.get()))
            .sum();
        let overdue = shares().filter_map(|(model, share)| {
            let weight = u64::from(share.weight.get());
            let max_skips = MODEL_SKIPS * (weights - weight).div_ceil(weight).max(1);
            Some((share.skips[worker.0].checked_sub(max_skips)?, model))
        });
        let least = || {
            shares()
                .min_by(|(_, a), (_, b)| a.time.total_cmp(&b.time).then(a.latest.cmp(&b.latest)))
        };
        let overdue = overdue.max_by_key(|&(excess, _)| excess);
        let overdue = overdue.map(|(_, model)| model);
        overdue.or_else(|| least().map(|(model, _)| model))
    }

    /// `worker` runs a batch of `model`, several steps of the same rows counted once; `has_rows`
    /// says which models have rows that it may take.
    pub fn taken(&mut self, worker: WorkerId, model: usize, has_rows: impl Fn(usize) -> bool) {
        self.batches += 1;
        for (other, share) in self.models.iter_mut().enumerate() {
            let Some(share) = share else {
                continue;
            };
            let skips = &mut share.skips[worker.0];
            if other == model {
                share.latest = self.batches;
                self.now = self.now.max(share.time);
                *skips = 0;
            } else {
                *skips = if has_rows(other) { *skips + 1 } else { 0 };
            }
        }
    }

    /// A task of the worker starts, which usually takes so many seconds, if that is known.
    pub fn start(&mut self, worker: WorkerId, model: usize, usual: Option<f64>) {
        let expected = usual.unwrap_or(0.0);
        self.expected[worker.0].push_back(expected);
        if let Some(share) = &mut self.models[model] {
            share.count(expected);
        }
    }

    /// The first task of the worker is done, and took this time.
    pub fn done(&mut self, worker: WorkerId, model: usize, took: Option<Duration>) {
        let expected = self.expected[worker.0].pop_front().unwrap_or(0.0);
        let took = took.map_or(0.0, |took| took.as_secs_f64());
        if let Some(share) = &mut self.models[model] {
            share.count(took - expected);
        }
    }
}
