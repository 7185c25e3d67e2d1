//! AVX2 with FMA: 8 lanes, 16 registers, a mask is a vector whose lanes are all ones or all zeros.

use super::Isa;
use super::simd::Simd;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this CPU has the instruction set.
    pub fn new() -> Option<Self> {
        let here = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        here.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma")]
fn enabled<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls one intrinsic. Every method below has the token as `self`, which is what makes it safe.
macro_rules! op {
    ($call:expr) => {{
        // SAFETY: the token `self` proves that the CPU has the instruction set.
        unsafe { $call }
    }};
}

impl Simd for Avx2 {
    type F32 = __m256;
    type I32 = __m256i;
    type Mask = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const ISA: Isa = Isa::Avx2;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        op!(enabled(f))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m256i {
        op!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> __m256 {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: __m256, to: *mut f32) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn le(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_cmp_ps::<_CMP_LE_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, mask: __m256, yes: __m256, no: __m256) -> __m256 {
        op!(_mm256_blendv_ps(no, yes, mask))
    }

    // The hardware's minimum and maximum have just the trait's rule for NaN.
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn to_bits(self, a: __m256) -> __m256i {
        op!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn from_bits(self, a: __m256i) -> __m256 {
        op!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: __m256i) -> __m256i {
        op!(_mm256_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: __m256i) -> __m256i {
        op!(_mm256_srai_epi32::<N>(a))
    }
}
