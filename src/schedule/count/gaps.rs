//! The number of ways to insert the input products into a sequence of recurrent phases.
//!
//! The schedules counted are weak orders (ordered set partitions, counted by the Fubini numbers)
//! that extend the order of dependences, as linear extensions do for total orders. A *block* is a
//! phase with recurrent products; a *gap* is an insertion point between two blocks, for phases of
//! input products alone.
//!
//! ```text
//! ways[0] = 1                                        // by pool: products waiting for a place
//! for step in last..=first, segment in step:
//!     pool grows by segment.arrive
//!     ways'[q] = Σ over p ≥ q of ways[p] · C(p, p - q) · fill(p - q)
//! total = Σ ways[p] · fill(p)                        // the first gap takes what is left
//! ```
//!
//! `fill(m)` is the number of ways to put `m` labelled products into the slots of a segment; the
//! exponential generating functions of its slots multiply: `1 / (2 - eˣ)` for a gap of ordered
//! phases, `eˣ` for a gap of one phase or a block, less 1 where a gap must not be empty.
//!
//! The real code does this twice. Exactly with binomials in `u128`, as long as they fit. Else with
//! `w[p] = ln(ways[p] · p!)`, for which the sum is a plain convolution with `fill(m) / m!`; its
//! values span more than a double's exponents, so each stretch of the sum is scaled by its largest.

use std::collections::BTreeMap;

use super::Count;
use super::step::{Segment, Slots, Step};

/// What the input products of a gap form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// Any number of phases in any order.
    Ordered,
    /// One phase.
    Merged,
}

/// Most steps that are gone through one by one.
const MAX_STEPS: usize = 128;

/// The number of ways over `steps` steps, each step in any of `ways` (with how often each comes).
pub(super) fn count(ways: &[(Step, u128)], steps: usize, gap: Gap) -> Count {
    if let Some(number) = exact(ways, steps, gap) {
        return Count::Exact(number);
    }
    let log10 = |steps| logarithm(ways, steps, gap) / std::f64::consts::LN_10;
    if steps <= MAX_STEPS {
        let log10 = log10(steps);
        return Count::Approximately { log10 };
    }
    // One run's schedule after another's is a schedule of both, and tells which they were.
    let (runs, rest) = (steps / MAX_STEPS, steps % MAX_STEPS);
    let log10 = runs as f64 * log10(MAX_STEPS) + log10(rest);
    Count::AtLeast { log10 }
}

fn products(ways: &[(Step, u128)], steps: usize) -> usize {
    let of_step = |(step, _): &(Step, u128)| step.iter().map(|segment| segment.arrive).sum();
    steps.saturating_mul(ways.iter().map(of_step).max().unwrap_or(0))
}

/// `None` when a number on the way is more than a `u128` holds.
fn exact(ways: &[(Step, u128)], steps: usize, gap: Gap) -> Option<u128> {
    let most = products(ways, steps);
    // The largest binomial that fits. With more products the numbers do not fit either.
    if most > 128 {
        return None;
    }
    let choose = binomials(most)?;
    let fills = ways.iter().flat_map(|(step, _)| step);
    let mut fill = BTreeMap::new();
    for Segment { slots, .. } in fills {
        if !fill.contains_key(slots) {
            fill.insert(*slots, exact_fill(*slots, gap, &choose)?);
        }
    }
    let first = Slots {
        gaps: 1,
        ..Slots::default()
    };
    let first = exact_fill(first, gap, &choose)?;
    let place = |row: &[u128], fill: &[u128], waiting: usize| {
        let mut sum = 0_u128;
        for (pool, number) in row.iter().enumerate().skip(waiting) {
            let placed = pool - waiting;
            if *number > 0 && fill[placed] > 0 {
                let ways = choose[pool][placed].checked_mul(fill[placed])?;
                sum = sum.checked_add(number.checked_mul(ways)?)?;
            }
        }
        Some(sum)
    };
    // Where there is nothing to place, the steps are all the same factor.
    if most == 0 {
        let of_step = ways.iter().map(|(step, number)| {
            let impossible = step.iter().any(|segment| segment.slots.forced > 0);
            if impossible { 0 } else { *number }
        });
        return of_step
            .sum::<u128>()
            .checked_pow(u32::try_from(steps).ok()?);
    }
    let mut row = vec![1_u128];
    for _ in 0..steps {
        let mut next = Vec::new();
        for (step, number) in ways {
            let mut row = row.clone();
            for segment in step {
                row.splice(0..0, std::iter::repeat_n(0, segment.arrive));
                let fill = &fill[&segment.slots];
                let waiting = 0..row.len();
                row = waiting
                    .map(|waiting| place(&row, fill, waiting))
                    .collect::<Option<_>>()?;
            }
            next.resize(row.len(), 0);
            for (sum, ways) in next.iter_mut().zip(row) {
                *sum = ways.checked_mul(*number)?.checked_add(*sum)?;
            }
        }
        row = next;
    }
    place(&row, &first, 0)
}

fn binomials(most: usize) -> Option<Vec<Vec<u128>>> {
    let mut rows = vec![vec![1_u128]];
    for row in 1..=most {
        let above = &rows[row - 1];
        let inner = above.windows(2).map(|pair| pair[0].checked_add(pair[1]));
        let row = std::iter::once(Some(1)).chain(inner).chain([Some(1)]);
        rows.push(row.collect::<Option<_>>()?);
    }
    Some(rows)
}

fn exact_fill(slots: Slots, gap: Gap, choose: &[Vec<u128>]) -> Option<Vec<u128>> {
    let most = choose.len() - 1;
    let block = vec![1; most + 1];
    let gap = match gap {
        Gap::Merged => block.clone(),
        Gap::Ordered => {
            // Fubini numbers: choose the first phase.
            let mut fubini = vec![1_u128];
            for all in 1..=most {
                let first =
                    (1..=all).map(|first| choose[all][first].checked_mul(fubini[all - first]));
                let sum = first
                    .into_iter()
                    .try_fold(0_u128, |sum, ways| sum.checked_add(ways?))?;
                fubini.push(sum);
            }
            fubini
        }
    };
    // Which of the products that are in both come into the slot.
    filled(slots, &gap, &block, |slot, fill| {
        let product = (0..=most).map(|all| {
            let parts = (0..=all).map(|here| {
                choose[all][here]
                    .checked_mul(slot[here])?
                    .checked_mul(fill[all - here])
            });
            parts
                .into_iter()
                .try_fold(0_u128, |sum, ways| sum.checked_add(ways?))
        });
        product.collect()
    })
}

/// The ways to put products into all slots of a segment, by how many there are, from those of a gap
/// and of a block; `times` joins two such series. A gap that must not be empty has none for none.
fn filled<T: Copy + Default>(
    slots: Slots,
    gap: &[T],
    block: &[T],
    times: impl Fn(&[T], &[T]) -> Option<Vec<T>>,
) -> Option<Vec<T>> {
    let mut forced = gap.to_vec();
    forced[0] = T::default();
    // One way to put nothing nowhere, as into a block.
    let mut fill = vec![T::default(); block.len()];
    fill[0] = block[0];
    for (slot, count) in [
        (gap, slots.gaps),
        (&forced, slots.forced),
        (block, slots.blocks),
    ] {
        for _ in 0..count {
            fill = times(slot, &fill)?;
        }
    }
    Some(fill)
}

/// The radius of convergence of `1 / (2 - eˣ)`; with `fill(m) / m!` multiplied by its powers the
/// series neither grow nor (for ordered gaps) fade.
const TILT: f64 = std::f64::consts::LN_2;

/// The natural logarithm of the number.
fn logarithm(ways: &[(Step, u128)], steps: usize, gap: Gap) -> f64 {
    let most = products(ways, steps);
    // The ways that differ in their last segment only share the work before it, and the last
    // convolution, with the sum of their series.
    let mut shared = BTreeMap::<_, Vec<f64>>::new();
    for (step, number) in ways {
        let Some((last, before)) = step.split_last() else {
            continue;
        };
        let sum = shared.entry((before, last.arrive)).or_default();
        sum.resize(most + 1, 0.0);
        for (sum, fill) in sum.iter_mut().zip(series(last.slots, gap, most)) {
            *sum += *number as f64 * fill;
        }
    }
    let shared: Vec<_> = { shared.into_iter() }
        .map(|((before, arrive), last)| {
            let before = before.iter();
            let before = before.map(|segment| (segment.arrive, series(segment.slots, gap, most)));
            before.chain([(arrive, last)]).collect::<Vec<_>>()
        })
        .collect();
    let mut factorials = vec![0.0_f64];
    for number in 1..=most {
        factorials.push(factorials[number - 1] + (number as f64).ln());
    }
    let mut row = vec![0.0_f64];
    for _ in 0..steps {
        let mut next = Vec::<f64>::new();
        for segments in &shared {
            let mut row = row.clone();
            for (arrive, fill) in segments {
                let longer = row.iter().enumerate().map(|(pool, ways)| {
                    let grown = factorials[pool + arrive] - factorials[pool];
                    ways + grown - *arrive as f64 * TILT.ln()
                });
                let none = std::iter::repeat_n(f64::NEG_INFINITY, *arrive);
                row = none.chain(longer).collect();
                row = convolve(&row, fill);
            }
            next.resize(row.len(), f64::NEG_INFINITY);
            for (sum, ways) in next.iter_mut().zip(row) {
                let (big, small) = (sum.max(ways), sum.min(ways));
                if small > f64::NEG_INFINITY {
                    *sum = big + (small - big).exp().ln_1p();
                } else {
                    *sum = big;
                }
            }
        }
        row = next;
    }
    let first = Slots {
        gaps: 1,
        ..Slots::default()
    };
    convolve(&row, &series(first, gap, most))[0]
}

/// `fill(m) / m! · TILT^m` for all `m` up to `most`.
fn series(slots: Slots, gap: Gap, most: usize) -> Vec<f64> {
    let mut block = vec![1.0];
    for power in 1..=most {
        block.push(block[power - 1] * TILT / power as f64);
    }
    let gap = match gap {
        Gap::Merged => block.clone(),
        Gap::Ordered => {
            let mut ordered = vec![1.0];
            for all in 1..=most {
                ordered.push(
                    (1..=all)
                        .map(|first| block[first] * ordered[all - first])
                        .sum(),
                );
            }
            ordered
        }
    };
    let product = |slot: &[f64], fill: &[f64]| {
        let sum = |all| (0..=all).map(|here| slot[here] * fill[all - here]).sum();
        Some((0..=most).map(sum).collect())
    };
    filled(slots, &gap, &block, product).expect("floats take any sum")
}

/// `ln Σ over p ≥ q of exp(row[p]) · fill[p - q]` for all `q`.
fn convolve(row: &[f64], fill: &[f64]) -> Vec<f64> {
    // The largest value from here on, which bounds what the sum for `q` is made of.
    let mut largest = row.to_vec();
    for pool in (1..row.len()).rev() {
        largest[pool - 1] = largest[pool - 1].max(largest[pool]);
    }
    let mut scale = f64::INFINITY;
    let mut scaled = vec![0.0; row.len()];
    let sums = (0..row.len()).map(|waiting| {
        if largest[waiting] == f64::NEG_INFINITY {
            return f64::NEG_INFINITY;
        }
        if largest[waiting] < scale - 300.0 {
            scale = largest[waiting];
            for (scaled, ways) in scaled.iter_mut().zip(row).skip(waiting) {
                *scaled = (ways - scale).exp();
            }
        }
        scale + dot(&scaled[waiting..], fill).ln()
    });
    sums.collect()
}

/// In eight sums, which the compiler turns into vector lanes; the shorter of the two ends it.
fn dot(one: &[f64], two: &[f64]) -> f64 {
    let length = one.len().min(two.len());
    let (one, two) = (&one[..length], &two[..length]);
    let mut sums = [0.0; 8];
    let (ones, twos) = (one.chunks_exact(8), two.chunks_exact(8));
    let rest = ones.remainder().iter().zip(twos.remainder());
    let rest: f64 = rest.map(|(one, two)| one * two).sum();
    for (one, two) in ones.zip(twos) {
        for (sum, (one, two)) in sums.iter_mut().zip(one.iter().zip(two)) {
            *sum += one * two;
        }
    }
    rest + sums.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Model, ResetForm};
    use crate::schedule::count::step::Shape;

    fn shapes() -> Vec<Shape> {
        let models: [Model; 3] = [
            Lstm::new(1, 1).random(1).unwrap(),
            Lstm::new(1, 2).projection(1).random(1).unwrap(),
            Gru::new(1, 1).reset(ResetForm::Before).random(1).unwrap(),
        ];
        let shape = |model: &Model| Shape::of(&model.layers()[0].directions()[0]);
        models.iter().map(shape).collect()
    }

    #[test]
    fn logarithms_are_those_of_the_exact_numbers() {
        let mut compared = 0;
        for shape in shapes() {
            for steps in 1..7 {
                let together = [(shape.free(), Gap::Ordered)].into_iter();
                let alone = { shape.symmetric().into_iter() }.map(|way| (vec![way], Gap::Ordered));
                let merged = { shape.dependent().into_iter() }.map(|way| (vec![way], Gap::Merged));
                for (mut ways, gap) in together.chain(alone).chain(merged) {
                    if ways.len() == 1 {
                        ways[0].1 = 1;
                    }
                    let Some(number) = exact(&ways, steps, gap) else {
                        continue;
                    };
                    let (found, expected) = (logarithm(&ways, steps, gap), (number as f64).ln());
                    let equal = found == expected || (found - expected).abs() < 1e-9;
                    assert!(equal, "{found} for {expected}: {ways:?} in {steps} steps");
                    compared += 1;
                }
            }
        }
        assert!(compared > 300, "{compared}");
    }
}
