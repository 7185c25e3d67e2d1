//! Software prefetches.
//!
//! Hardware prefetchers follow a panel that is read in order. In the second of several passes over
//! one panel, which stays in a cache, they fetch nothing, though memory has time then: so each pass
//! over a panel prefetches its share of the next one. A single pass prefetches its own panel a
//! little ahead: hardware prefetchers stop at the end of a page, and do not run far enough ahead
//! while arithmetic takes most of the time. [`Prefetch`](super::Prefetch) says which passes do so.
//!
//! Blocks of steps that all passes but the first find in the first level were tried instead, and
//! slower: the first pass of each block waits for memory.

use super::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches `values` into the second level of cache. Does nothing but on x86-64: the language has
/// no stable name for other instructions.
#[inline]
pub fn prefetch_second_level<T>(values: &[T]) {
    lines_of(values).for_each(prefetch_line::<false>);
}

/// The address of each line of `values`, that of the last one twice.
#[inline(always)]
fn lines_of<T>(values: &[T]) -> impl Iterator<Item = *const u8> {
    let bytes = size_of_val(values);
    let first: *const u8 = values.as_ptr().cast();
    // The last line is chained, so that the loop has no test for it.
    let lines = (0..bytes).step_by(LINE).chain(bytes.checked_sub(1));
    lines.map(move |at| first.wrapping_add(at))
}

/// Memory that is read after the panels of a product. It is only ever prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextProduct {
    first: *const u8,
    bytes: usize,
}

impl NextProduct {
    /// Unknown, or nothing.
    pub const NONE: NextProduct = NextProduct {
        first: std::ptr::null(),
        bytes: 0,
    };

    /// These values.
    pub(super) fn of<T>(values: &[T]) -> NextProduct {
        NextProduct {
            first: values.as_ptr().cast(),
            bytes: size_of_val(values),
        }
    }

    /// The share of pass `pass` of `passes`, which prefetches a line `times` times. All shares are
    /// the whole, unless a line each time is not enough.
    #[inline(always)]
    pub(super) fn share(self, pass: usize, passes: usize, times: usize) -> NextPanel {
        let share = self.bytes.div_ceil(passes.max(1));
        NextPanel {
            next: self.first.wrapping_add(pass * share),
            step: share.div_ceil(times.max(1)).min(LINE),
        }
    }
}

/// What a pass over its panel prefetches.
#[derive(Clone, Copy)]
pub(super) enum PassPrefetch {
    /// Nothing.
    None,
    /// Its share of what is read next.
    Next(NextPanel),
    /// Its own panel, ahead of what it reads.
    Own,
}

impl PassPrefetch {
    /// The share of what is read next; an empty one where that is not prefetched.
    #[inline(always)]
    pub(super) fn share(self) -> NextPanel {
        match self {
            PassPrefetch::Next(share) => share,
            PassPrefetch::None | PassPrefetch::Own => NextPanel {
                next: std::ptr::null(),
                step: 0,
            },
        }
    }
}

/// Prefetches during a pass over `P` stripes of `N` vectors each.
pub(super) trait Prefetcher {
    /// Prefetches with one group of the weights at `weights`.
    fn prefetch<S: Simd, const N: usize, const P: usize>(
        &mut self,
        weights: &[*const u32; P],
        group: usize,
    );
}

/// Prefetches nothing.
pub(super) struct NoPrefetch;

impl Prefetcher for NoPrefetch {
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize, const P: usize>(&mut self, _: &[*const u32; P], _: usize) {
    }
}

/// [`PassPrefetch::Own`].
pub(super) struct OwnPanel;

impl OwnPanel {
    /// Bytes ahead: far enough that lines arrive in time, near enough that the first level still
    /// holds them when they are read.
    const DISTANCE: usize = 4 << 10;
}

impl Prefetcher for OwnPanel {
    #[allow(clippy::needless_range_loop)] // no closure is compiled for the instruction set
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize, const P: usize>(
        &mut self,
        weights: &[*const u32; P],
        group: usize,
    ) {
        let vectors_of_line = const { LINE / (4 * S::LANES) };
        for p in 0..P {
            for n in 0..N {
                // Once a line, where a vector is shorter than one.
                if (group * N + n).is_multiple_of(vectors_of_line) {
                    let vector = weights[p].wrapping_add((group * N + n) * S::LANES);
                    prefetch_line::<true>(vector.cast::<u8>().wrapping_add(OwnPanel::DISTANCE));
                }
            }
        }
    }
}

/// One pass's share of what is read next.
#[derive(Clone, Copy)]
pub(super) struct NextPanel {
    next: *const u8,
    step: usize,
}

/// Lines that a pass prefetches with each group of `vectors` of weights: half of those it reads,
/// where a vector is a line, since two passes share a panel.
pub(super) const fn lines_a_group(vectors: usize) -> usize {
    vectors.div_ceil(2)
}

impl Prefetcher for NextPanel {
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize, const P: usize>(&mut self, _: &[*const u32; P], _: usize) {
        if self.step > 0 {
            for _ in 0..const { lines_a_group(N * P) } {
                prefetch_line::<false>(self.next);
                self.next = self.next.wrapping_add(self.step);
            }
        }
    }
}

/// Prefetches a line into the first level or the second.
#[inline(always)]
fn prefetch_line<const FIRST: bool>(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees, and faults nowhere.
        unsafe {
            if FIRST {
                _mm_prefetch::<_MM_HINT_T0>(line.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T1>(line.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_line_is_prefetched_and_no_other() {
        let values = vec![0u8; 10 * LINE];
        let line = |address: *const u8| address as usize / LINE;
        for (first, bytes) in
            (0..2 * LINE).flat_map(|first| [1, 63, 64, 65, 128, 500].map(|b| (first, b)))
        {
            let part = &values[first..first + bytes];
            let asked: BTreeSet<usize> = lines_of(part).map(line).collect();
            let own: BTreeSet<usize> = part.iter().map(|value| line(value)).collect();
            assert_eq!(asked, own, "{bytes} bytes from {first}");
        }
        assert_eq!(lines_of::<f32>(&[]).count(), 0);
    }

    /// All passes together prefetch every line of what is next but its last, where a line at a time
    /// is enough, and hardly anything beyond.
    #[test]
    fn the_shares_of_all_passes_are_the_whole() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let values = vec![0f32; random.usize(1..20_000)];
            let (passes, times) = (random.usize(1..9), random.usize(1..3000));
            let line = |address: *const u8| address as usize / LINE;
            let bytes = size_of_val(&values[..]);
            let first: *const u8 = values.as_ptr().cast();
            let wanted: BTreeSet<usize> =
                (line(first)..line(first.wrapping_add(bytes - 1))).collect();
            let mut asked = BTreeSet::new();
            for pass in 0..passes {
                let mut share = NextProduct::of(&values).share(pass, passes, times);
                for _ in 0..times {
                    asked.insert(line(share.next));
                    share.next = share.next.wrapping_add(share.step);
                }
            }
            if bytes.div_ceil(passes).div_ceil(times) <= LINE {
                assert!(asked.is_superset(&wanted), "{passes} passes, {times} times");
                let beyond = asked.difference(&wanted).count() * LINE;
                assert!(
                    beyond <= passes * (times + 2 * LINE),
                    "{beyond} bytes beyond"
                );
            } else {
                assert!(asked.len() >= passes * times);
            }
        }
    }
}
