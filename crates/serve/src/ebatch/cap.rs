//! The most steps of a lane in a batch: N.

use super::{Sequence, Time};

/// The most steps of a lane in a batch (N).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Those of the longest lane when the batch starts.
    Longest,
    /// This number; at least 1.
    Steps(usize),
    /// Chosen for each batch, by the waiting sequences and their deadlines.
    ///
    /// - In general the number that makes the mean latency least. A sequence of `T` steps pays for
    ///   `T/N` reads of the weights in each layer, `T fetch / N`; one that arrives meanwhile waits
    ///   for half a batch, `N step / 2`. The sum is least at `N = sqrt(2 T fetch / step)`.
    /// - While more sequences wait than two for each lane, `N` grows in proportion: the load is
    ///   high, and a larger `N` serves more sequences in a time.
    /// - If sequences have deadlines: of that number and the steps that are left of each, the one
    ///   with which the most end in time, if all later batches were like this one.
    ByLoad(LayerTimes),
}

/// Times of the evaluation, of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTimes {
    /// Number of layers.
    pub layers: usize,
    /// Time that a batch takes in a layer, whatever its steps: to read the weights.
    pub fetch: Time,
    /// Time of a step of all lanes; at least 1.
    pub step: Time,
}

/// A sequence that may be in the next batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The steps that are left.
    pub steps: usize,
    pub deadline: Option<Time>,
}

impl LayerTimes {
    /// The time of a sequence with so many steps left in batches of `cap` steps.
    fn time(&self, steps: usize, cap: usize) -> Time {
        let steps_time = self.step.saturating_mul(cap as Time);
        let batch = self.fetch.saturating_add(steps_time);
        let passes = steps.div_ceil(cap).saturating_mul(self.layers);
        batch.saturating_mul(passes as Time)
    }

    /// The cap of a batch, where this number of sequences waits for each lane.
    fn cap(&self, now: Time, waiting_for_each: f64, candidates: &[Candidate]) -> Option<usize> {
        let steps = || candidates.iter().map(|candidate| candidate.steps);
        let mean = steps().sum::<usize>() as f64 / candidates.len().max(1) as f64;
        let balanced = (2.0 * mean * self.fetch as f64 / self.step.max(1) as f64).sqrt();
        let by_load = balanced * (waiting_for_each / 2.0).max(1.0);
        let by_load = (by_load.ceil() as usize).clamp(1, steps().max()?);
        if candidates.iter().all(|one| one.deadline.is_none()) {
            return Some(by_load);
        }
        let in_time = |cap: usize| {
            let ends = |steps| now.saturating_add(self.time(steps, cap));
            let is_in_time = |candidate: &&Candidate| {
                let deadline = candidate.deadline;
                deadline.is_some_and(|at| ends(candidate.steps) <= at)
            };
            candidates.iter().filter(is_in_time).count()
        };
        let mut caps: Vec<usize> = steps().collect();
        caps.sort_unstable();
        caps.dedup();
        let caps = caps.into_iter().chain([by_load]);
        // Of equal ones the last, which is that by the load.
        caps.max_by_key(|&cap| in_time(cap))
    }
}

impl Cap {
    /// The most steps of a batch that starts now, from the oldest of `waiting` sequences, as many
    /// as `lanes`; their deadlines are times from now on. `None` for [`Cap::Longest`].
    ///
    /// ```
    /// use cellstream_serve::ebatch::{Cap, LayerTimes, Sequence};
    ///
    /// let cap = Cap::ByLoad(LayerTimes { layers: 8, fetch: 50, step: 10 });
    /// let oldest = [Sequence::new(1, 0, 90), Sequence::new(2, 0, 90)];
    /// assert_eq!(cap.for_batch(4, 2, oldest), Some(30)); // sqrt(2 · 90 · 5)
    /// ```
    pub fn for_batch(
        &self,
        lanes: usize,
        waiting: usize,
        oldest: impl IntoIterator<Item = Sequence>,
    ) -> Option<usize> {
        let candidates = oldest.into_iter().map(|sequence| Candidate {
            steps: sequence.steps,
            deadline: sequence.deadline,
        });
        self.of_batch(0, lanes, waiting, candidates)
    }

    /// The cap of a batch that starts now with the oldest of `waiting` sequences, as many as lanes;
    /// `None` for [`Cap::Longest`].
    pub(super) fn of_batch(
        &self,
        now: Time,
        lanes: usize,
        waiting: usize,
        oldest: impl Iterator<Item = Candidate>,
    ) -> Option<usize> {
        match self {
            Cap::Longest => None,
            Cap::Steps(steps) => Some(*steps),
            Cap::ByLoad(times) => {
                let waiting_for_each = waiting as f64 / lanes as f64;
                times.cap(now, waiting_for_each, &oldest.collect::<Vec<_>>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: LayerTimes = LayerTimes {
        layers: 3,
        fetch: 50,
        step: 10,
    };

    fn candidates(steps: &[usize]) -> impl Iterator<Item = Candidate> {
        let of = |&steps: &usize| Candidate {
            steps,
            deadline: None,
        };
        steps.iter().map(of)
    }

    /// The mean latency of a sequence that arrives at a random time while batches of `cap` steps
    /// follow each other.
    fn latency(steps: usize, cap: usize) -> f64 {
        let batch = 3.0 * (50.0 + 10.0 * cap as f64);
        // A fraction of a batch counts as such, as in the formula.
        batch / 2.0 + steps as f64 / cap as f64 * batch
    }

    #[test]
    fn the_cap_by_load_has_the_least_latency_of_all() {
        for steps in [8, 20, 60, 300] {
            let cap = Cap::ByLoad(TIMES).of_batch(0, 4, 2, candidates(&[steps, steps]));
            let best = (1..=steps)
                .min_by(|&a, &b| latency(steps, a).total_cmp(&latency(steps, b)))
                .unwrap();
            assert!(cap.unwrap().abs_diff(best) <= 1, "{steps}: {cap:?}, {best}");
        }
    }

    #[test]
    fn the_cap_grows_with_the_queue() {
        let of = |waiting| Cap::ByLoad(TIMES).of_batch(0, 2, waiting, candidates(&[90, 90]));
        let balanced = Some(30); // sqrt(2 · 90 · 5)
        assert_eq!((of(1), of(4)), (balanced, balanced));
        assert_eq!(of(6), Some(45));
        assert_eq!(of(100), Some(90)); // no more than the longest has
    }

    #[test]
    fn the_cap_lets_the_most_sequences_end_in_time() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let now = random.u64(..1000);
            let count = random.usize(1..6);
            let all: Vec<Candidate> = std::iter::repeat_with(|| Candidate {
                steps: random.usize(1..80),
                deadline: random.bool().then(|| now + random.u64(..9000)),
            })
            .take(count)
            .collect();
            let in_time = |cap: usize| {
                let ends = |steps: usize| {
                    let batches = steps.div_ceil(cap);
                    now + (batches * 3 * (50 + 10 * cap)) as u64
                };
                let met = all
                    .iter()
                    .filter_map(|one| Some(ends(one.steps) <= one.deadline?));
                met.filter(|met| *met).count()
            };
            let of = |all: Vec<Candidate>| {
                let cap = Cap::ByLoad(TIMES).of_batch(now, 6, count, all.into_iter());
                cap.unwrap()
            };
            let found = of(all.clone());
            let without = |one: &Candidate| Candidate {
                deadline: None,
                ..*one
            };
            let by_load = of(all.iter().map(without).collect());
            let best = all.iter().map(|one| in_time(one.steps)).max().unwrap();
            assert_eq!(in_time(found), best.max(in_time(by_load)));
            // Without need, the load decides.
            assert!(found == by_load || in_time(found) > in_time(by_load));
        }
    }
}
