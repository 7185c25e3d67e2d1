//! The vector trait that every kernel is written over.
//!
//! Two rules make all instruction sets give the same bits: every operation here is one IEEE-754
//! binary32 operation (round to nearest even, subnormals kept) or an exact bit operation, and there
//! is no horizontal operation, so the result of a lane does not depend on other lanes.

use super::Isa;

/// An instruction set. A value of an implementing type is the proof that this CPU has it, so the
/// safe methods need no further check.
#[allow(clippy::wrong_self_convention)] // `self` is the token, never the value converted
pub trait Simd: Copy + Send + Sync + 'static {
    /// A vector of [`Simd::LANES`] `f32`.
    type F32: Copy;
    /// A vector of [`Simd::LANES`] `i32`.
    type I32: Copy;
    /// One boolean per lane.
    type Mask: Copy;
    /// Lanes per vector.
    const LANES: usize;
    /// Architectural vector registers; tile shapes are chosen to fit.
    const REGISTERS: usize;
    /// Which instruction set this is.
    const ISA: Isa;

    /// Runs `f` compiled with this instruction set enabled. Everything `f` calls that is
    /// `#[inline(always)]` is compiled so too.
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F32;
    /// All lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I32;
    /// The first [`Simd::LANES`] elements of `from`; panics if it is shorter.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::F32 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES elements.
        unsafe { self.load_ptr(from.as_ptr()) }
    }
    /// Writes the lanes to the start of `to`; panics if it is shorter than [`Simd::LANES`].
    #[inline(always)]
    fn store(self, v: Self::F32, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES elements.
        unsafe { self.store_ptr(v, to.as_mut_ptr()) }
    }
    /// Loads [`Simd::LANES`] elements; no alignment needed.
    ///
    /// # Safety
    /// `from` must be valid for reading [`Simd::LANES`] `f32`.
    unsafe fn load_ptr(self, from: *const f32) -> Self::F32;
    /// Stores [`Simd::LANES`] elements; no alignment needed.
    ///
    /// # Safety
    /// `to` must be valid for writing [`Simd::LANES`] `f32`.
    unsafe fn store_ptr(self, v: Self::F32, to: *mut f32);

    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`, the true IEEE division.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;

    /// `a < b`; false where either is NaN.
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// `a <= b`; false where either is NaN.
    fn le(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// Lane by lane, `yes` where the mask holds, else `no`.
    fn select(self, mask: Self::Mask, yes: Self::F32, no: Self::F32) -> Self::F32;

    /// `a` where `a < b`, else `b`: so `b` where either is NaN.
    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        self.select(self.lt(a, b), a, b)
    }
    /// `a` where `b < a`, else `b`: so `b` where either is NaN.
    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        self.select(self.lt(b, a), a, b)
    }

    /// The bits of each lane.
    fn to_bits(self, a: Self::F32) -> Self::I32;
    /// The floats with these bits.
    #[allow(clippy::wrong_self_convention)]
    fn from_bits(self, a: Self::I32) -> Self::F32;
    /// Wrapping sum.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Wrapping difference.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise and.
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise or.
    fn or_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise exclusive or.
    fn xor_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Left shift by `N` bits.
    fn shl_i32<const N: i32>(self, a: Self::I32) -> Self::I32;
    /// Arithmetic right shift by `N` bits.
    fn shr_i32<const N: i32>(self, a: Self::I32) -> Self::I32;
    /// The greater of two signed numbers.
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The nearest float, ties to even.
    fn to_f32(self, a: Self::I32) -> Self::F32;
    /// Loads [`Simd::LANES`] words; no alignment needed.
    ///
    /// # Safety
    /// `from` must be valid for reading [`Simd::LANES`] words.
    #[inline(always)]
    unsafe fn load_words(self, from: *const u32) -> Self::I32 {
        // SAFETY: the caller's promise; a load does not look at the bits.
        self.to_bits(unsafe { self.load_ptr(from.cast()) })
    }
    /// Stores the lowest byte of each lane; no alignment needed.
    ///
    /// # Safety
    /// `to` must be valid for writing [`Simd::LANES`] bytes.
    unsafe fn store_bytes(self, v: Self::I32, to: *mut u8);

    /// Zero point of the left operand of [`Simd::dot4`]: 128 where the instruction takes unsigned
    /// bytes, else 0.
    const BYTE_ZERO: i32;
    /// In each lane `sum + Σ a[i] · w[i]` over its four bytes, wrapping: `a` as
    /// [`Simd::BYTE_ZERO`] says, `w` signed, no value beyond ±127.
    fn dot4(self, sum: Self::I32, a: Self::I32, w: Self::I32) -> Self::I32;
    /// Runs `job` with the quickest [`Dot`] of this CPU, compiled with its instructions enabled;
    /// with [`Plain`] where `plain` asks for it.
    #[inline(always)]
    fn with_dot<J: DotJob<Self>>(self, _plain: bool, job: J) {
        self.vectorize(
            #[inline(always)]
            || job.run(self, Plain),
        );
    }
}

/// A dot product of four bytes per lane: [`Simd::dot4`], or an instruction that not every CPU of an
/// instruction set has. All give the same sums once [`Simd::BYTE_ZERO`] is accounted for.
pub trait Dot<S: Simd>: Copy {
    /// Whether the result holds `BYTE_ZERO · Σ w` beside the sum of products.
    const COUNTS_ZERO: bool;
    /// As [`Simd::dot4`].
    fn dot4(self, s: S, sum: S::I32, a: S::I32, w: S::I32) -> S::I32;
}

/// What [`Simd::with_dot`] runs.
pub trait DotJob<S: Simd> {
    /// Marked `#[inline(always)]`.
    fn run<D: Dot<S>>(self, s: S, dot: D);
}

/// [`Simd::dot4`] itself, which every CPU of the instruction set has.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl<S: Simd> Dot<S> for Plain {
    const COUNTS_ZERO: bool = false;
    #[inline(always)]
    fn dot4(self, s: S, sum: S::I32, a: S::I32, w: S::I32) -> S::I32 {
        s.dot4(sum, a, w)
    }
}
