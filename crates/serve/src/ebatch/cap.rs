//! The most steps of a lane in a batch: N.

use super::Time;

/// The most steps of a lane in a batch (N).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Those of the longest lane when the batch starts.
    Longest,
    /// This number; at least 1.
    Steps(usize),
    /// Chosen for each batch, by the number of waiting sequences and their deadlines.
    ///
    /// - More sequences wait than there are lanes: as [`Cap::Longest`], which reads the weights
    ///   least often.
    /// - Otherwise the number that makes the mean latency least. Of a sequence of `T` steps, `T/N`
    ///   batches of `N` steps take `T fetch / N` longer than one batch, in each layer; a sequence
    ///   that arrives meanwhile waits for half a batch, `N step / 2`. The sum is least at
    ///   `N = sqrt(2 T fetch / step)`.
    /// - A sequence that would end after its deadline with that, and before it in one batch, gets
    ///   one batch.
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
        let batch = self.fetch + cap as Time * self.step;
        steps.div_ceil(cap) as Time * self.layers as Time * batch
    }

    /// The cap of a batch whose sequences are fewer than the lanes.
    fn cap(&self, now: Time, candidates: &[Candidate]) -> Option<usize> {
        let steps = || candidates.iter().map(|candidate| candidate.steps);
        let longest = steps().max()?;
        let mean = steps().sum::<usize>() as f64 / candidates.len() as f64;
        let balanced = (2.0 * mean * self.fetch as f64 / self.step.max(1) as f64).sqrt();
        let cap = (balanced.ceil() as usize).clamp(1, longest);
        let needs_one_batch = |candidate: &&Candidate| {
            let ends = |cap| now.saturating_add(self.time(candidate.steps, cap));
            let is_late = |cap| candidate.deadline.is_some_and(|at| ends(cap) > at);
            is_late(cap) && !is_late(candidate.steps)
        };
        let urgent = candidates.iter().filter(needs_one_batch);
        urgent.map(|candidate| candidate.steps).chain([cap]).max()
    }
}

impl Cap {
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
            Cap::ByLoad(_) if waiting > lanes => None,
            Cap::ByLoad(times) => times.cap(now, &oldest.collect::<Vec<_>>()),
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
    fn many_waiting_sequences_get_the_longest_batch() {
        let of = |waiting| Cap::ByLoad(TIMES).of_batch(0, 2, waiting, candidates(&[90, 90]));
        assert_eq!(of(3), None);
        assert_eq!(of(2), Some(30)); // sqrt(2 · 90 · 5)
    }

    #[test]
    fn a_sequence_that_would_be_late_gets_one_batch() {
        let of = |deadline| {
            let urgent = Candidate {
                steps: 60,
                deadline: Some(deadline),
            };
            let all = candidates(&[90, 90]).chain([urgent]);
            Cap::ByLoad(TIMES).of_batch(1000, 4, 3, all)
        };
        let balanced = Some(29); // sqrt(2 · 80 · 5)
        let (one_batch, three) = (3 * (50 + 600), 3 * 3 * (50 + 290));
        assert_eq!(of(1000 + one_batch), Some(60));
        assert_eq!(of(1000 + three - 1), Some(60));
        // In time anyway; late anyway.
        assert_eq!(of(1000 + three), balanced);
        assert_eq!(of(1000 + one_batch - 1), balanced);
    }
}
