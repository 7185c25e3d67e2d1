//! The microkernel: a tile of rows by stripes of panels, all in registers.

use super::super::prefetch::{NoPrefetch, OwnPanel, PassPrefetch, Prefetcher};
use super::super::simd::Simd;
use super::Product;
use super::element::Element;
use super::lhs::{Lhs, Stand};
use super::place::Place;
use super::tiles::is_tall;

/// `M` rows by `P` stripes of `N` gates, `M * P * N` accumulators.
///
/// Plain loops over arrays, and no closure handed to the standard library: its functions are
/// compiled without the instruction set, so that vectors would travel through memory, by calls.
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
    lhs: &Lhs<'_, E::Lhs>,
    job: &mut Product<'_>,
    (row, stripe): (usize, usize),
    prefetch: PassPrefetch,
) {
    const { assert!(E::PARTS == 1 || E::PARTS == 2 && E::STEPS == 2) };
    debug_assert!(row + M <= job.row_count);
    debug_assert!(stripe + P <= job.weights.panels() * job.weights.stripes());
    let mut w = [std::ptr::null::<u32>(); P];
    for p in 0..P {
        w[p] = element.stripe(job.weights, stripe + p);
    }
    let depth = job.weights.depth();
    // SAFETY: the caller's promise.
    let place = unsafe { Place::<N, P>::new::<S>(job, row, stripe) };
    let mut sum = [[[element.zero(s); N]; P]; M];
    // SAFETY: the caller's promise.
    unsafe { element.begin(s, place, &mut sum) };
    // Where rows and weights leave no register for a choice, each way to prefetch has a loop of its
    // own. Tiles of few rows have more to load for each term, and no time to prefetch. SAFETY: rows
    // and stripes hold `depth` steps.
    unsafe {
        if const { is_tall::<S, E>(M, N) } {
            let a = lhs.by_steps::<M>(row);
            match prefetch {
                PassPrefetch::Own => {
                    chains::<S, E, M, N, P>(s, element, a, &w, depth, OwnPanel, &mut sum);
                }
                other => {
                    let share = other.share();
                    chains::<S, E, M, N, P>(s, element, a, &w, depth, share, &mut sum);
                }
            }
        } else {
            let a = lhs.separate::<M>(row);
            match prefetch {
                _ if const { M < 3 } => {
                    chains::<S, E, M, N, P>(s, element, a, &w, depth, NoPrefetch, &mut sum);
                }
                PassPrefetch::Own if const { M > POINTERS } => {
                    chains::<S, E, M, N, P>(s, element, a, &w, depth, OwnPanel, &mut sum);
                }
                other => {
                    let share = other.share();
                    chains::<S, E, M, N, P>(s, element, a, &w, depth, share, &mut sum);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { element.end(s, place, sum) };
}

/// Rows whose starts the registers of addresses hold beside what else the loop needs. A tile of
/// more reads them from the stack, so it takes two steps with each.
const POINTERS: usize = 6;

/// Adds the terms of all steps.
///
/// # Safety
/// The rows and the stripes hold `depth` steps.
#[inline(always)]
unsafe fn chains<S: Simd, E: Element<S>, const M: usize, const N: usize, const P: usize>(
    s: S,
    element: E,
    a: impl Stand<E::Lhs>,
    w: &[*const u32; P],
    depth: usize,
    mut prefetcher: impl Prefetcher,
    sum: &mut [[[E::Sum; N]; P]; M],
) {
    let groups = depth / E::STEPS;
    let mut group = 0;
    if const { M > POINTERS && !is_tall::<S, E>(M, N) } {
        let both = const { 2 / E::PARTS };
        while group + both <= groups {
            for group in group..group + both {
                prefetcher.prefetch::<S, N, P>(w, group);
            }
            // SAFETY: rows and stripes hold the groups, whole.
            unsafe { two::<S, E, M, N, P>(s, element, a, w, group, sum) };
            group += both;
        }
    }
    while group < groups {
        prefetcher.prefetch::<S, N, P>(w, group);
        // SAFETY: rows and stripes hold the group, whole.
        unsafe { part::<S, E, M, N, P, 0>(s, element, a, w, group, sum) };
        if E::PARTS > 1 {
            // SAFETY: as above.
            unsafe { part::<S, E, M, N, P, 1>(s, element, a, w, group, sum) };
        }
        group += 1;
    }
    if !depth.is_multiple_of(E::STEPS) {
        // Of a last group of two steps only the first: adding a zero would turn -0 into 0, and
        // infinity into NaN. SAFETY: rows hold its first part, stripes the group.
        unsafe { part::<S, E, M, N, P, 0>(s, element, a, w, groups, sum) };
    }
}

/// Adds the terms of two parts: both of a group, or those of two groups. A row's start is read once
/// for both; each chain takes them in their order.
///
/// # Safety
/// The rows hold these parts, the stripes the groups.
#[allow(clippy::needless_range_loop)] // as above
#[inline(always)]
unsafe fn two<S: Simd, E: Element<S>, const M: usize, const N: usize, const P: usize>(
    s: S,
    element: E,
    a: impl Stand<E::Lhs>,
    w: &[*const u32; P],
    group: usize,
    sum: &mut [[[E::Sum; N]; P]; M],
) {
    let other = if const { E::PARTS == 1 } {
        group + 1
    } else {
        group
    };
    // SAFETY: the caller's promise; a stripe holds N vectors for each group.
    unsafe {
        let mut kept = [[element.weights::<0>(s, w[0].add(group * N * S::LANES)); N]; P];
        let mut next = kept;
        for p in 0..P {
            for n in 0..N {
                let at = |group: usize| w[p].add((group * N + n) * S::LANES);
                kept[p][n] = element.weights::<0>(s, at(group));
                next[p][n] = match const { E::PARTS } {
                    1 => element.weights::<0>(s, at(other)),
                    _ => element.weights::<1>(s, at(other)),
                };
            }
        }
        for m in 0..M {
            let x = element.lhs(s, a.at(m, group * E::LHS));
            let y = element.lhs(s, a.at(m, group * E::LHS + 1));
            for p in 0..P {
                for n in 0..N {
                    sum[m][p][n] = element.add(s, x, kept[p][n], sum[m][p][n]);
                }
            }
            for p in 0..P {
                for n in 0..N {
                    sum[m][p][n] = element.add(s, y, next[p][n], sum[m][p][n]);
                }
            }
        }
    }
}

/// Adds the terms of a part of a group.
///
/// # Safety
/// The rows hold that part, the stripes the group.
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
    a: impl Stand<E::Lhs>,
    w: &[*const u32; P],
    group: usize,
    sum: &mut [[[E::Sum; N]; P]; M],
) {
    // Of rows and weights, the fewer stay in registers while the others are loaded one by one. This
    // matters where the other hardware thread of the core is busy.
    if const { M <= P * N } {
        // SAFETY: the caller's promise.
        let mut x = [unsafe { element.lhs(s, a.at(0, group * E::LHS + PART)) }; M];
        for m in 1..M {
            // SAFETY: as above.
            x[m] = unsafe { element.lhs(s, a.at(m, group * E::LHS + PART)) };
        }
        for p in 0..P {
            for n in 0..N {
                // SAFETY: a stripe holds N vectors for each group.
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
            let x = unsafe { element.lhs(s, a.at(m, group * E::LHS + PART)) };
            for p in 0..P {
                for n in 0..N {
                    sum[m][p][n] = element.add(s, x, kept[p][n], sum[m][p][n]);
                }
            }
        }
    }
}
