//! AArch64 Advanced SIMD (and its dot product where it is there): 4 lanes, 32 registers, a mask is
//! a vector whose lanes are all ones or all zeros.

use super::Isa;
use super::simd::{Dot, DotJob, Plain, Simd};
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

/// Proof that this CPU has Advanced SIMD, and whether it has its dot product.
#[derive(Clone, Copy, Debug)]
pub struct Neon {
    dot: bool,
}

impl Neon {
    /// The token, if this CPU has the instruction set.
    pub fn new() -> Option<Self> {
        let dot = is_aarch64_feature_detected!("dotprod");
        is_aarch64_feature_detected!("neon").then_some(Self { dot })
    }
}

#[target_feature(enable = "neon")]
fn enabled<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[target_feature(enable = "neon,dotprod")]
fn enabled_with_dot<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls one intrinsic. Every method below has the token as `self`, which is what makes it safe.
macro_rules! op {
    ($call:expr) => {{
        // SAFETY: the token `self` proves that the CPU has the instruction set.
        unsafe { $call }
    }};
}

impl Simd for Neon {
    type F32 = float32x4_t;
    type I32 = int32x4_t;
    type Mask = uint32x4_t;
    const LANES: usize = 4;
    const REGISTERS: usize = 32;
    const ISA: Isa = Isa::Neon;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        op!(enabled(f))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        op!(vdupq_n_f32(x))
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> int32x4_t {
        op!(vdupq_n_s32(x))
    }
    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> float32x4_t {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: float32x4_t, to: *mut f32) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe { vst1q_f32(to, v) }
    }

    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        op!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        op!(vcltq_f32(a, b))
    }
    #[inline(always)]
    fn le(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        op!(vcleq_f32(a, b))
    }
    #[inline(always)]
    fn select(self, mask: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        op!(vbslq_f32(mask, yes, no))
    }

    #[inline(always)]
    fn to_bits(self, a: float32x4_t) -> int32x4_t {
        op!(vreinterpretq_s32_f32(a))
    }
    #[inline(always)]
    fn from_bits(self, a: int32x4_t) -> float32x4_t {
        op!(vreinterpretq_f32_s32(a))
    }
    #[inline(always)]
    fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(vaddq_s32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(vsubq_s32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(vandq_s32(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(vorrq_s32(a, b))
    }
    #[inline(always)]
    fn xor_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(veorq_s32(a, b))
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: int32x4_t) -> int32x4_t {
        op!(vshlq_n_s32::<N>(a))
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: int32x4_t) -> int32x4_t {
        op!(vshrq_n_s32::<N>(a))
    }
    #[inline(always)]
    fn max_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        op!(vmaxq_s32(a, b))
    }
    #[inline(always)]
    fn to_f32(self, a: int32x4_t) -> float32x4_t {
        op!(vcvtq_f32_s32(a))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, v: int32x4_t, to: *mut u8) {
        // SAFETY: the caller vouches for the pointer, the token for the instruction set.
        unsafe {
            let halves = vmovn_s32(v);
            let bytes = vmovn_s16(vcombine_s16(halves, halves));
            let word = vget_lane_s32::<0>(vreinterpret_s32_s8(bytes));
            to.cast::<i32>().write_unaligned(word);
        }
    }

    const BYTE_ZERO: i32 = 0;
    #[inline(always)]
    fn dot4(self, sum: int32x4_t, a: int32x4_t, w: int32x4_t) -> int32x4_t {
        op!({
            let (a, w) = (vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(w));
            let low = vmull_s8(vget_low_s8(a), vget_low_s8(w));
            let high = vmull_s8(vget_high_s8(a), vget_high_s8(w));
            let lanes = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
            vaddq_s32(sum, lanes)
        })
    }
    #[inline(always)]
    fn with_dot<J: DotJob<Self>>(self, plain: bool, job: J) {
        if self.dot && !plain {
            op!(enabled_with_dot(
                #[inline(always)]
                || job.run(self, DotProduct(()))
            ));
        } else {
            op!(enabled(
                #[inline(always)]
                || job.run(self, Plain)
            ));
        }
    }
}

/// Proof that this CPU has the dot product instructions: made only where the token says so.
#[derive(Clone, Copy, Debug)]
struct DotProduct(());

impl Dot<Neon> for DotProduct {
    const COUNTS_ZERO: bool = false;
    #[inline(always)]
    fn dot4(self, _: Neon, mut sum: int32x4_t, a: int32x4_t, w: int32x4_t) -> int32x4_t {
        // The intrinsic is not stable yet.
        // SAFETY: the token proves that the CPU has the instruction, which touches registers only.
        unsafe {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {a:v}.16b, {w:v}.16b",
                sum = inout(vreg) sum,
                a = in(vreg) a,
                w = in(vreg) w,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
}
