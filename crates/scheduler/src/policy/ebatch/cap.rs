//! The cap of a batch: the maximum number of steps of a row in it (E-BATCH's N), by load and
//! deadlines.

/// A time, in a unit that the caller chooses.
pub type Time = u64;

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

/// The rest of a sequence that may be in the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The steps that are left; at least 1.
    pub steps: usize,
    /// When it should be complete.
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

    /// The cap of a batch that starts now, with the `oldest` of `waiting` sequences, as many
    /// as `lanes`. `None` without a sequence.
    ///
    /// - In general the number that makes the mean latency least. A sequence of `T` steps pays for
    ///   `T/N` reads of the weights in each layer, `T fetch / N`; one that arrives meanwhile waits
    ///   for half a batch, `N step / 2`. The sum is least at `N = sqrt(2 T fetch / step)`.
    /// - While more sequences wait than two for each lane, `N` grows in proportion: the load is
    ///   high, and a larger `N` serves more sequences in a time.
    /// - If sequences have deadlines: of that number and the steps that are left of each, the one
    ///   with which the most end in time, if all later batches were like this one.
    ///
    /// ```
    /// use gatestream_scheduler::policy::ebatch::{LayerTimes, Rest};
    ///
    /// let times = LayerTimes { layers: 8, fetch: 50, step: 10 };
    /// let oldest = [Rest { steps: 90, deadline: None }; 2];
    /// assert_eq!(times.cap(0, 4, 2, oldest.into_iter()), Some(30)); // sqrt(2 · 90 · 5)
    /// ```
    pub fn cap(
        &self,
        now: Time,
        lanes: usize,
        waiting: usize,
        oldest: impl Iterator<Item = Rest> + Clone,
    ) -> Option<usize> {
        let cap = self.by_load(waiting as f64 / lanes as f64, oldest.clone())?;
        if oldest.clone().all(|rest| rest.deadline.is_none()) {
            return Some(cap);
        }
        Some(self.in_time(now, cap, &oldest.collect::<Vec<_>>()))
    }

    /// The cap with the least mean latency, where this number of sequences waits for each lane.
    fn by_load(&self, waiting_for_each: f64, rests: impl Iterator<Item = Rest>) -> Option<usize> {
        let (mut count, mut sum, mut longest) = (0usize, 0, None);
        for rest in rests {
            count += 1;
            sum += rest.steps;
            longest = longest.max(Some(rest.steps));
        }
        let mean = sum as f64 / count.max(1) as f64;
        let balanced = (2.0 * mean * self.fetch as f64 / self.step.max(1) as f64).sqrt();
        let cap = balanced * (waiting_for_each / 2.0).max(1.0);
        Some((cap.ceil() as usize).clamp(1, longest?))
    }

    /// Of `cap` and the steps of each sequence, the cap with which the most end in time.
    fn in_time(&self, now: Time, cap: usize, rests: &[Rest]) -> usize {
        let count = |cap: usize| {
            let is_in_time = |rest: &&Rest| {
                let ends = now.saturating_add(self.time(rest.steps, cap));
                rest.deadline.is_some_and(|at| ends <= at)
            };
            rests.iter().filter(is_in_time).count()
        };
        let mut caps: Vec<usize> = rests.iter().map(|rest| rest.steps).collect();
        caps.sort_unstable();
        caps.dedup();
        // Of equal ones the last.
        caps.push(cap);
        let best = caps.into_iter().max_by_key(|&cap| count(cap));
        best.unwrap_or(cap)
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

    fn rests(steps: &[usize]) -> impl Iterator<Item = Rest> + Clone {
        let of = |&steps: &usize| Rest {
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
            let cap = TIMES.cap(0, 4, 2, rests(&[steps, steps]));
            let best = (1..=steps)
                .min_by(|&a, &b| latency(steps, a).total_cmp(&latency(steps, b)))
                .unwrap();
            assert!(cap.unwrap().abs_diff(best) <= 1, "{steps}: {cap:?}, {best}");
        }
    }

    #[test]
    fn the_cap_grows_with_the_queue() {
        let of = |waiting| TIMES.cap(0, 2, waiting, rests(&[90, 90]));
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
            let all: Vec<Rest> = std::iter::repeat_with(|| Rest {
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
            let of = |all: Vec<Rest>| {
                let cap = TIMES.cap(now, 6, count, all.into_iter());
                cap.unwrap()
            };
            let found = of(all.clone());
            let without = |one: &Rest| Rest {
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
