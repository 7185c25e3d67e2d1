//! The microkernel: a tile of rows by panels, all in registers.

use super::super::prefetch::Share;
use super::super::simd::Simd;
use super::element::Element;
use super::place::Place;
use super::{Product, Rows};

/// The rows that a tile multiplies with: of the job itself, or what was made of them.
#[derive(Clone, Copy)]
pub(super) struct Left<'a, T> {
    pub rows: Rows<'a, T>,
    /// Words of a row.
    pub words: usize,
}

impl<'a> Left<'a, f32> {
    /// The job's own.
    #[inline(always)]
    pub fn of(job: &Product<'a>) -> Left<'a, f32> {
        Left {
            rows: job.rows,
            words: job.weights.depth(),
        }
    }
}

impl<T> Left<'_, T> {
    /// Where `M` rows start. Not inlined: what it takes to find them would compete with them for the registers of the loop over
    /// them (f32, three gates: 4 % of the time).
    #[inline(never)]
    fn starts<const M: usize>(&self, row: usize) -> [*const T; M] {
        std::array::from_fn(|m| self.rows.row(row + m, self.words).as_ptr())
    }
}

/// `M` rows by `P` panels, `M * P * N` accumulators.
///
/// Plain loops over arrays, and no closure handed to the standard library: its functions are compiled
/// without the instruction set, so that vectors would travel through memory, by calls.
///
/// # Safety
/// `z`, and the bias if there is one, hold `z_slots` vectors for each panel of the weights, `z` for
/// each of `row_count` rows; `slots` are below `z_slots`; the rows and panels are the job's, and
/// `element` is what its weights hold.
#[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
#[inline(always)]
pub(super) unsafe fn tile<
    S: Simd,
    E: Element<S>,
    const M: usize,
    const N: usize,
    const P: usize,
>(
    s: S,
    element: E,
    left: &Left<'_, E::Left>,
    job: &mut Product<'_>,
    slots: &[usize; N],
    (row, panel): (usize, usize),
    mut ahead: Share,
) {
    const { assert!(E::PARTS == 1 || E::PARTS == 2 && E::STEPS == 2) };
    debug_assert!(row + M <= job.row_count && panel + P <= job.weights.panels());
    let a: [*const E::Left; M] = left.starts(row);
    let mut w = [std::ptr::null::<u32>(); P];
    for p in 0..P {
        w[p] = element.panel(job.weights, panel + p);
    }
    let depth = job.weights.depth();
    // SAFETY: the caller's promise.
    let place = unsafe { Place::new::<S>(job, slots, row, panel) };
    let mut sum = [[[element.zero(s); N]; P]; M];
    // SAFETY: the caller's promise.
    unsafe { element.begin(s, place, &mut sum) };
    let groups = depth / E::STEPS;
    for group in 0..groups {
        // Lower tiles have more to load for each term, and no time for more.
        if const { M >= 3 } {
            ahead.ask();
        }
        // SAFETY: rows and panels hold the group, whole.
        unsafe { part::<S, E, M, N, P, 0>(s, element, &a, &w, group, &mut sum) };
        if E::PARTS > 1 {
            // SAFETY: as above.
            unsafe { part::<S, E, M, N, P, 1>(s, element, &a, &w, group, &mut sum) };
        }
    }
    if !depth.is_multiple_of(E::STEPS) {
        // Of a last group of two steps only the first: adding a zero would turn -0 into 0, and infinity into NaN.
        // SAFETY: rows hold its first part, panels the group.
        unsafe { part::<S, E, M, N, P, 0>(s, element, &a, &w, groups, &mut sum) };
    }
    // SAFETY: the caller's promise.
    unsafe { element.end(s, place, sum) };
}

/// Adds the terms of a part of a group.
///
/// # Safety
/// The rows hold that part, the panels the group.
#[allow(clippy::needless_range_loop)] // as above
#[inline(always)]
unsafe fn part<
    S: Simd,
    E: Element<S>,
    const M: usize,
    const N: usize,
    const P: usize,
    const PART: usize,
>(
    s: S,
    element: E,
    a: &[*const E::Left; M],
    w: &[*const u32; P],
    group: usize,
    sum: &mut [[[E::Sum; N]; P]; M],
) {
    // Of rows and weights the fewer stay in registers while the others go by: where a core's other thread was busy, a step
    // of 64 rows took 6 % less than with rows kept (LSTM 1024, f32, Xeon); alone on its core it took as long.
    if const { M <= P * N } {
        // SAFETY: the caller's promise.
        let mut x = [unsafe { element.left::<PART>(s, a[0], group) }; M];
        for m in 1..M {
            // SAFETY: as above.
            x[m] = unsafe { element.left::<PART>(s, a[m], group) };
        }
        for p in 0..P {
            for n in 0..N {
                // SAFETY: a panel holds N vectors for each group.
                let w = unsafe { element.weights::<PART>(s, w[p].add((group * N + n) * S::LANES)) };
                for m in 0..M {
                    sum[m][p][n] = element.add(s, x[m], w, sum[m][p][n]);
                }
            }
        }
    } else {
        // SAFETY: as above.
        let first = unsafe { element.weights::<PART>(s, w[0].add(group * N * S::LANES)) };
        let mut kept = [[first; N]; P];
        for p in 0..P {
            for n in 0..N {
                // SAFETY: as above.
                kept[p][n] =
                    unsafe { element.weights::<PART>(s, w[p].add((group * N + n) * S::LANES)) };
            }
        }
        for m in 0..M {
            // SAFETY: the rows hold that part, by the caller's promise.
            let x = unsafe { element.left::<PART>(s, a[m], group) };
            for p in 0..P {
                for n in 0..N {
                    sum[m][p][n] = element.add(s, x, kept[p][n], sum[m][p][n]);
                }
            }
        }
    }
}
