//! The best continuations of one hypothesis, from its logits.

use gatestream_kernels::{ExpSum, RowKernels};

/// A hypothesis, continued by one symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// The row of the hypothesis in the batch.
    pub row: usize,
    /// The symbol that continues it.
    pub symbol: usize,
    /// Logarithm of the probability of all its symbols.
    pub score: f32,
    /// The symbol's logit. It decides between symbols of one hypothesis whose scores are equal
    /// as rounded.
    pub logit: f32,
}

/// Logits that are compared with the least of the best at once.
const BLOCK: usize = 64;

/// Writes the `best.len()` greatest of `logits` to `best`, in order, the lowest of equal ones
/// first, with scores that continue `score`. Returns how many there are: fewer where there are
/// fewer logits. `None` where a logit is not a number.
///
/// The logarithm of a probability is `(logit - greatest) - ln Σ exp(logit - greatest)`.
pub fn best_continuations(
    kernels: &dyn RowKernels,
    (row, score): (usize, f32),
    logits: &[f32],
    best: &mut [Candidate],
) -> Option<usize> {
    let ExpSum { greatest, sum } = kernels.exp_sum(logits);
    if greatest.is_nan() {
        return None;
    }
    let mut count = 0;
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        let is_full = count == best.len();
        if is_full
            && best
                .last()
                .is_none_or(|last| kernels.max(values) <= last.logit)
        {
            continue;
        }
        for (at, &logit) in values.iter().enumerate() {
            let place = best[..count].partition_point(|better| better.logit >= logit);
            if place == best.len() {
                continue;
            }
            count = (count + 1).min(best.len());
            best[place..count].rotate_right(1);
            best[place] = Candidate {
                row,
                symbol: block * BLOCK + at,
                score,
                logit,
            };
        }
    }
    // In f64, so that the logarithm of the system's library is right in all bits of f32.
    let logarithm = f64::from(sum).ln() as f32;
    for candidate in &mut best[..count] {
        candidate.score += if greatest.is_finite() {
            (candidate.logit - greatest) - logarithm
        } else if candidate.logit == greatest {
            // An infinite logit has all the probability.
            0.0
        } else {
            f32::NEG_INFINITY
        };
    }
    Some(count)
}
