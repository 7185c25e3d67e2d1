//! Memory that is about to be read, asked for before.
//!
//! The caches fetch by themselves what is read in order, while it is read: in the second of several passes over
//! the same panel they fetch nothing, though that is when the memory behind them has time. So the passes over a
//! panel ask for the next one, each for its share.
//! A single pass asks for what it reads itself a little later: the caches do not fetch past the end of a page, nor as far
//! ahead while the arithmetic takes most of the time.
//!
//! Taking a panel a block of steps at a time, so that all passes but the first find it in the first level, was tried
//! instead: 15 to 18 % slower with 16 and 32 rows (LSTM 1024), as each block's first pass waits for memory anew.

use std::sync::OnceLock;

use super::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes of weights that leave the private caches of today's cores, of 1 or 2 MiB: products with more than that ask
/// for their panels in time.
pub const FAR: usize = 2 << 20;

/// The environment variable that says how cores reach the third level of cache: `near`, a few of them have one of their own; `far`,
/// slices of it lie all over the chip. Results have the same bits with both.
pub const L3_VARIABLE: &str = "CELLSTREAM_L3";

/// Whether the third level is far from cores: as [`L3_VARIABLE`] has it, or as most processors of this kind. Asked once.
pub(super) fn is_l3_far() -> bool {
    static IS_FAR: OnceLock<bool> = OnceLock::new();
    *IS_FAR.get_or_init(|| match l3_of_variable() {
        Ok(Some(is_far)) => is_far,
        // What is no answer was refused when an instruction set was selected.
        Ok(None) | Err(_) => {
            #[cfg(target_arch = "x86_64")]
            // An extension of AMD's that nobody else took up stands for `near`. Whatever else is not known is taken for `far`;
            // desktop processors of Intel's, and EPYCs that hide the extension, were not measured.
            {
                !is_x86_feature_detected!("sse4a")
            }
            #[cfg(not(target_arch = "x86_64"))]
            false
        }
    })
}

/// What [`L3_VARIABLE`] says: whether it is far; what it is set to, if that is no answer.
pub(super) fn l3_of_variable() -> Result<Option<bool>, String> {
    let Some(value) = std::env::var_os(L3_VARIABLE) else {
        return Ok(None);
    };
    match value.to_str() {
        Some("near") => Ok(Some(false)),
        Some("far") => Ok(Some(true)),
        _ => Err(value.to_string_lossy().into_owned()),
    }
}

/// Of how many passes over a panel, at least, it pays that they ask for the next one.
///
/// With one pass the caches keep up by themselves, or the pass asks for its own weights. With two that depends on how fast a core
/// reads what all cores share: where each few cores have a third level of their own (EPYC, 94 GB/s) asking cost up to 9 % (GRU
/// 1024, 10 rows); where slices of it lie all over the chip (Xeon, 27 GB/s) a step of 12 rows took 7 to 9 % less (LSTM 1024, f32
/// and int8).
pub(super) fn fewest_passes_that_ask() -> usize {
    if is_l3_far() { 2 } else { 3 }
}

/// Asks the second level of cache for `values`, and does not wait for them. It holds more than the first beside what is at
/// work there, and a core can ask for more at a time. Does nothing where the language has no stable name for the instruction.
#[inline]
pub fn prefetch_second_level<T>(values: &[T]) {
    lines_of(values).for_each(ask::<false>);
}

/// Where each line of `values` is, and the last once more.
#[inline(always)]
fn lines_of<T>(values: &[T]) -> impl Iterator<Item = *const u8> {
    let bytes = size_of_val(values);
    let first: *const u8 = values.as_ptr().cast();
    // Not a loop of its own, which would ask at every line whether it is the last.
    let lines = (0..bytes).step_by(LINE).chain(bytes.checked_sub(1));
    lines.map(move |at| first.wrapping_add(at))
}

/// What is read after the panels of a product; only ever asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcoming {
    first: *const u8,
    bytes: usize,
}

impl Upcoming {
    /// Nothing that is known.
    pub const NOTHING: Upcoming = Upcoming {
        first: std::ptr::null(),
        bytes: 0,
    };

    /// These values.
    pub(super) fn of<T>(values: &[T]) -> Upcoming {
        Upcoming {
            first: values.as_ptr().cast(),
            bytes: size_of_val(values),
        }
    }

    /// What pass `pass` of `passes` asks for, a line at a time, so many times: all of it together, unless a line each time is
    /// not enough.
    #[inline(always)]
    pub(super) fn share(self, pass: usize, passes: usize, times: usize) -> Share {
        let share = self.bytes.div_ceil(passes.max(1));
        Share {
            next: self.first.wrapping_add(pass * share),
            step: share.div_ceil(times.max(1)).min(LINE),
        }
    }
}

/// What a pass through its weights asks for on the way.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// Nothing.
    Nothing,
    /// A share of what is read next.
    Next(Share),
    /// What it reads itself, a little later.
    Own,
}

impl Ahead {
    /// The share of what is read next, if that is what it asks for; else none.
    #[inline(always)]
    pub(super) fn share(self) -> Share {
        match self {
            Ahead::Next(share) => share,
            Ahead::Nothing | Ahead::Own => Share {
                next: std::ptr::null(),
                step: 0,
            },
        }
    }
}

/// Asks on the way through `P` stripes of `N` vectors each.
pub(super) trait Ask {
    /// Asks with a group of the weights, which stand at `weights`.
    fn ask<S: Simd, const N: usize, const P: usize>(
        &mut self,
        weights: &[*const u32; P],
        group: usize,
    );
}

/// Asks for nothing.
pub(super) struct Nothing;

impl Ask for Nothing {
    #[inline(always)]
    fn ask<S: Simd, const N: usize, const P: usize>(&mut self, _: &[*const u32; P], _: usize) {}
}

/// [`Ahead::Own`].
pub(super) struct Own;

impl Own {
    /// How far ahead of itself a pass asks: far enough that lines are there in time, and near enough that they are still in the
    /// first level. From 2 to 8 KiB a step takes as long, with 1 KiB 2 to 4 % longer (LSTM 1024, f32, 8 and 12 rows).
    const DISTANCE: usize = 4 << 10;
}

impl Ask for Own {
    #[allow(clippy::needless_range_loop)] // no closure is compiled for the instruction set
    #[inline(always)]
    fn ask<S: Simd, const N: usize, const P: usize>(
        &mut self,
        weights: &[*const u32; P],
        group: usize,
    ) {
        let vectors_of_line = const { LINE / (4 * S::LANES) };
        for p in 0..P {
            for n in 0..N {
                // Of shorter vectors, one for each line.
                if (group * N + n).is_multiple_of(vectors_of_line) {
                    let vector = weights[p].wrapping_add((group * N + n) * S::LANES);
                    ask::<true>(vector.cast::<u8>().wrapping_add(Own::DISTANCE));
                }
            }
        }
    }
}

/// What one pass asks for, a line at a time.
#[derive(Clone, Copy)]
pub(super) struct Share {
    next: *const u8,
    step: usize,
}

/// Lines that a pass asks for with each group of `vectors` of weights: with two passes half of as many as it reads, of 16 lanes.
pub(super) const fn lines_a_group(vectors: usize) -> usize {
    vectors.div_ceil(2)
}

impl Ask for Share {
    #[inline(always)]
    fn ask<S: Simd, const N: usize, const P: usize>(&mut self, _: &[*const u32; P], _: usize) {
        if self.step > 0 {
            for _ in 0..const { lines_a_group(N * P) } {
                ask::<false>(self.next);
                self.next = self.next.wrapping_add(self.step);
            }
        }
    }
}

/// Asks for a line, for the first level or the second.
#[inline(always)]
fn ask<const FIRST: bool>(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees, and faults nowhere.
        unsafe {
            match FIRST {
                true => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
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
    fn every_line_is_asked_for_and_no_other() {
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

    /// All passes together ask for every line of what is next but the one in which it ends, where a line at a time is enough,
    /// and for next to nothing beyond.
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
                let mut share = Upcoming::of(&values).share(pass, passes, times);
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
