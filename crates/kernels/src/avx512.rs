//! AVX-512 (F, VL, BW, DQ; VNNI where it is there): 16 lanes, 32 registers, one mask register bit
//! per lane.

use super::Isa;
use super::simd::{Dot, DotJob, Plain, Simd};
use std::arch::x86_64::*;

/// Proof that this CPU has AVX-512 F, VL, BW and DQ, and whether it has VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx512 {
    vnni: bool,
}

impl Avx512 {
    /// The token, if this CPU has the instruction set.
    pub fn new() -> Option<Self> {
        let here = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq");
        let vnni = is_x86_feature_detected!("avx512vnni");
        here.then_some(Self { vnni })
    }
}

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn enabled<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni")]
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

impl Simd for Avx512 {
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const ISA: Isa = Isa::Avx512;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        op!(enabled(f))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> __m512 {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: __m512, to: *mut f32) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(mask, no, yes))
    }

    // The hardware's minimum and maximum have just the trait's rule for NaN.
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn to_bits(self, a: __m512) -> __m512i {
        op!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn from_bits(self, a: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_xor_si512(a, b))
    }
    // The immediate forms take a u32, which a const i32 cannot become in stable Rust; the compiler
    // turns a variable shift by a constant into the immediate form.
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_sllv_epi32(a, _mm512_set1_epi32(N)))
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_srav_epi32(a, _mm512_set1_epi32(N)))
    }
    #[inline(always)]
    fn max_i32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, v: __m512i, to: *mut u8) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(v)) }
    }

    const BYTE_ZERO: i32 = 128;
    #[inline(always)]
    fn dot4(self, sum: __m512i, a: __m512i, w: __m512i) -> __m512i {
        // Magnitudes times weights that took the sign: a pair is at most 2 · 127², which 16 bits
        // hold.
        op!({
            let a = _mm512_xor_si512(a, _mm512_set1_epi8(-128));
            let negative = _mm512_movepi8_mask(a);
            let w = _mm512_mask_sub_epi8(w, negative, _mm512_setzero_si512(), w);
            let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(a), w);
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
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

/// Proof that this CPU has AVX-512 VNNI: made only where the token says so.
#[derive(Clone, Copy, Debug)]
struct Vnni(());

impl Dot<Avx512> for Vnni {
    const COUNTS_ZERO: bool = true;
    #[inline(always)]
    fn dot4(self, _: Avx512, sum: __m512i, a: __m512i, w: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(sum, a, w))
    }
}
