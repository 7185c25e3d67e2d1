//! AVX2 with FMA (and VNNI where it is there): 8 lanes, 16 registers, a mask is a vector whose
//! lanes are all ones or all zeros.

use super::Isa;
use super::simd::{Dot, DotJob, Plain, Simd};
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2 and FMA, and whether it has AVX-VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx2 {
    vnni: bool,
}

impl Avx2 {
    /// The token, if this CPU has the instruction set.
    pub fn new() -> Option<Self> {
        let here = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let vnni = is_x86_feature_detected!("avxvnni");
        here.then_some(Self { vnni })
    }
}

#[target_feature(enable = "avx2,fma")]
fn enabled<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[target_feature(enable = "avx2,fma,avxvnni")]
fn enabled_with_vnni<R>(f: impl FnOnce() -> R) -> R {
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
    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, v: __m256i, to: *mut u8) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe {
            // The lowest bytes of each half's lanes, side by side.
            let lowest = _mm256_set1_epi32(0x0c08_0400);
            let bytes = _mm256_shuffle_epi8(v, lowest);
            let low = _mm256_castsi256_si128(bytes);
            let high = _mm256_extracti128_si256::<1>(bytes);
            _mm_storel_epi64(to.cast(), _mm_unpacklo_epi32(low, high));
        }
    }

    const BYTE_ZERO: i32 = 128;
    #[inline(always)]
    fn dot4(self, sum: __m256i, a: __m256i, w: __m256i) -> __m256i {
        // Magnitudes times weights that took the sign: a pair is at most 2 · 127², which 16 bits
        // hold.
        op!({
            let a = _mm256_xor_si256(a, _mm256_set1_epi8(-128));
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w, a));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn with_dot<J: DotJob<Self>>(self, plain: bool, job: J) {
        if self.vnni && !plain {
            op!(enabled_with_vnni(
                #[inline(always)]
                || job.run(self, Vnni(()))
            ));
        } else {
            op!(enabled(
                #[inline(always)]
                || job.run(self, Plain)
            ));
        }
    }
}

/// Proof that this CPU has AVX-VNNI: made only where the token says so.
#[derive(Clone, Copy, Debug)]
struct Vnni(());

impl Dot<Avx2> for Vnni {
    const COUNTS_ZERO: bool = true;
    #[inline(always)]
    fn dot4(self, _: Avx2, sum: __m256i, a: __m256i, w: __m256i) -> __m256i {
        op!(_mm256_dpbusd_avx_epi32(sum, a, w))
    }
}
