//! What the microkernel multiplies and adds: one type for each kind of number that weights are kept
//! as. All are chains over `k` in order; what differs is how many steps a word holds.

use super::super::pack::{Int8Words, PackedMatrix};
use super::super::simd::{Dot, Simd};
use super::Start;
use super::place::Place;

/// The arithmetic of a product. Vectors of weights are counted `[group of k][gate]` from the start
/// of a stripe, those that stand beside them `[stripe][gate]`.
pub(super) trait Element<S: Simd>: Copy {
    /// A word of a row of the left operand.
    type Lhs: Copy;
    /// What a row multiplies with, in every lane.
    type X: Copy;
    /// What it multiplies: a vector of weights, or of parts of them.
    type W: Copy;
    /// What is added up.
    type Sum: Copy;
    /// Steps of the chain that a word of the weights holds.
    const STEPS: usize;
    /// Words of the left operand that meet a group.
    const LHS: usize;
    /// Parts of a word that are multiplied one after the other: one, or its two steps.
    const PARTS: usize;
    /// Whether tall tiles pay for weights outside the private caches: fewer passes over a panel
    /// against more loads of the left operand. Not for int8.
    const USES_TALL_TILES: bool;
    /// The words of a stripe.
    fn stripe(self, weights: &PackedMatrix, stripe: usize) -> *const u32;
    /// A word of the left operand.
    ///
    /// # Safety
    /// `word` is valid for reading.
    unsafe fn lhs(self, s: S, word: *const Self::Lhs) -> Self::X;
    /// That part of a vector of weights.
    ///
    /// # Safety
    /// `from` is valid for reading a vector.
    unsafe fn weights<const PART: usize>(self, s: S, from: *const u32) -> Self::W;
    /// No sum.
    fn zero(self, s: S) -> Self::Sum;
    /// The sums of a tile before the first term.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    unsafe fn begin<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: &mut [[[Self::Sum; N]; P]; M],
    );
    /// Adds a part's terms.
    fn add(self, s: S, x: Self::X, w: Self::W, sum: Self::Sum) -> Self::Sum;
    /// The tile's pre-activations after the last term.
    ///
    /// # Safety
    /// As [`super::tile::tile`].
    unsafe fn end<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: [[[Self::Sum; N]; P]; M],
    );
}

/// Words of `STEPS` steps each: f32, or bf16, widened (exactly) where it is used. The two steps of
/// a word of bf16 are one after the other, so that no more registers are needed than for f32: the
/// second load of a word costs nothing that the arithmetic waits for.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a, T, const STEPS: usize>(pub &'a [T]);

impl<S: Simd, T: Copy, const STEPS: usize> Element<S> for Floats<'_, T, STEPS> {
    type Lhs = f32;
    type X = S::F32;
    type W = S::F32;
    type Sum = S::F32;
    const STEPS: usize = STEPS;
    const LHS: usize = STEPS;
    const PARTS: usize = STEPS;
    const USES_TALL_TILES: bool = true;

    #[inline(always)]
    fn stripe(self, weights: &PackedMatrix, stripe: usize) -> *const u32 {
        stripe_words(self.0, weights, weights.depth().div_ceil(STEPS), stripe)
    }
    #[inline(always)]
    unsafe fn lhs(self, s: S, word: *const f32) -> S::F32 {
        // SAFETY: the caller's promise.
        s.splat(unsafe { *word })
    }
    #[inline(always)]
    unsafe fn weights<const PART: usize>(self, s: S, from: *const u32) -> S::F32 {
        if STEPS == 1 {
            // SAFETY: the caller's promise.
            return unsafe { s.load_ptr(from.cast()) };
        }
        // SAFETY: the caller's promise.
        let words = unsafe { s.load_words(from) };
        s.from_bits(match PART {
            0 => s.shl_i32::<16>(words),
            _ => s.and_i32(words, s.splat_i32(-0x1_0000)),
        })
    }
    #[inline(always)]
    fn zero(self, s: S) -> S::F32 {
        s.splat(0.0)
    }
    #[inline(always)]
    unsafe fn begin<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: &mut [[[S::F32; N]; P]; M],
    ) {
        // SAFETY: the caller's promise.
        unsafe { place.begin_chains(s, sum) };
    }
    #[inline(always)]
    fn add(self, s: S, x: S::F32, w: S::F32, sum: S::F32) -> S::F32 {
        s.fma(x, w, sum)
    }
    #[inline(always)]
    unsafe fn end<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: [[[S::F32; N]; P]; M],
    ) {
        // SAFETY: the caller's promise.
        unsafe { place.end_chains(s, sum) };
    }
}

/// int8 times int8: four steps a word, summed exactly, scaled once.
#[derive(Clone, Copy)]
pub(super) struct Int8<'a, D> {
    pub words: &'a Int8Words,
    /// The bits of the scale of each row of the left operand.
    pub scales: &'a [u32],
    pub dot: D,
}

impl<S: Simd, D: Dot<S>> Element<S> for Int8<'_, D> {
    type Lhs = u32;
    type X = S::I32;
    type W = S::I32;
    type Sum = S::I32;
    const STEPS: usize = 4;
    const LHS: usize = 1;
    const PARTS: usize = 1;
    const USES_TALL_TILES: bool = false;

    #[inline(always)]
    fn stripe(self, weights: &PackedMatrix, stripe: usize) -> *const u32 {
        stripe_words(
            &self.words.quads,
            weights,
            weights.depth().div_ceil(4),
            stripe,
        )
    }
    #[inline(always)]
    unsafe fn lhs(self, s: S, word: *const u32) -> S::I32 {
        // SAFETY: the caller's promise.
        s.splat_i32(unsafe { *word } as i32)
    }
    #[inline(always)]
    unsafe fn weights<const PART: usize>(self, s: S, from: *const u32) -> S::I32 {
        // SAFETY: the caller's promise.
        unsafe { s.load_words(from) }
    }
    #[inline(always)]
    fn zero(self, s: S) -> S::I32 {
        s.splat_i32(0)
    }
    #[allow(clippy::needless_range_loop)] // indices name registers; iterators would hide which
    #[inline(always)]
    unsafe fn begin<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: &mut [[[S::I32; N]; P]; M],
    ) {
        // SAFETY: the caller's promise.
        unsafe { place.store_starts::<S, M>(s) };
        if !D::COUNTS_ZERO {
            return;
        }
        const { assert!(S::BYTE_ZERO == 0 || S::BYTE_ZERO == 128) };
        for p in 0..P {
            for n in 0..N {
                let vector = ((place.stripe + p) * N + n) * S::LANES;
                // SAFETY: there is a sum of weights for each vector beside them.
                let sums = unsafe { s.load_words(self.words.sums.as_ptr().add(vector).cast()) };
                let excess = s.sub_i32(s.splat_i32(0), s.shl_i32::<7>(sums));
                for m in 0..M {
                    sum[m][p][n] = excess;
                }
            }
        }
    }
    #[inline(always)]
    fn add(self, s: S, x: S::I32, w: S::I32, sum: S::I32) -> S::I32 {
        self.dot.dot4(s, sum, x, w)
    }
    #[allow(clippy::needless_range_loop)] // as above
    #[inline(always)]
    unsafe fn end<const M: usize, const N: usize, const P: usize>(
        self,
        s: S,
        place: Place<'_, N, P>,
        sum: [[[S::I32; N]; P]; M],
    ) {
        // A copy, so that the loop of many instructions below does not index the sums themselves.
        let mut done = [[[s.splat_i32(0); N]; P]; M];
        for m in 0..M {
            for p in 0..P {
                for n in 0..N {
                    done[m][p][n] = sum[m][p][n];
                }
            }
        }
        for m in 0..M {
            let of_row = s.splat(f32::from_bits(self.scales[place.row + m]));
            for p in 0..P {
                for n in 0..N {
                    let vector = ((place.stripe + p) * N + n) * S::LANES;
                    // SAFETY: rows, panels and slots are the job's, and there is a scale for each
                    // vector beside the weights.
                    unsafe {
                        let z = place.z(m, p, n);
                        let start = match place.start {
                            Start::Zero => s.splat(0.0),
                            Start::Bias(_) | Start::Continue => s.load_ptr(z),
                        };
                        let of_weights = s.load_ptr(self.words.scales.as_ptr().add(vector));
                        let scale = s.mul(of_row, of_weights);
                        s.store_ptr(s.fma(s.to_f32(done[m][p][n]), scale, start), z);
                    }
                }
            }
        }
    }
}

/// A stripe of `groups` groups of steps; checked here, once for all that the microkernel reads.
#[inline(always)]
fn stripe_words<T>(
    words: &[T],
    weights: &PackedMatrix,
    groups: usize,
    stripe: usize,
) -> *const u32 {
    const { assert!(size_of::<T>() == 4) };
    let size = groups * weights.stripe_gates() * weights.lanes();
    words[stripe * size..][..size].as_ptr().cast()
}
