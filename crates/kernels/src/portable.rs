//! Plain Rust over eight lanes, for every other machine and as a second opinion in tests.
//!
//! `f32::mul_add` rounds once everywhere; where the compile target has no fused multiply-add it is
//! a library call, so this path is exact but slow there.

use super::Isa;
use super::simd::Simd;
use std::array::from_fn;

const LANES: usize = 8;

/// The instruction set that every CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Portable(());

impl Portable {
    /// The token; never `None`, but of the same shape as the other instruction sets' constructors.
    pub fn new() -> Option<Self> {
        Some(Self(()))
    }
}

impl Simd for Portable {
    type F32 = [f32; LANES];
    type I32 = [i32; LANES];
    type Mask = [bool; LANES];
    const LANES: usize = LANES;
    // Baseline x86-64 and AArch64 hold one such vector in two registers.
    const REGISTERS: usize = 8;
    const ISA: Isa = Isa::Portable;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> [i32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller vouches for LANES elements; f32 and [f32; LANES] are aligned alike.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: [f32; LANES], to: *mut f32) {
        // SAFETY: the caller vouches for LANES elements; f32 and [f32; LANES] are aligned alike.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(v) }
    }

    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn lt(self, a: [f32; LANES], b: [f32; LANES]) -> [bool; LANES] {
        from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn le(self, a: [f32; LANES], b: [f32; LANES]) -> [bool; LANES] {
        from_fn(|i| a[i] <= b[i])
    }
    #[inline(always)]
    fn select(self, mask: [bool; LANES], yes: [f32; LANES], no: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| if mask[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn to_bits(self, a: [f32; LANES]) -> [i32; LANES] {
        a.map(|x| x.to_bits() as i32)
    }
    #[inline(always)]
    fn from_bits(self, a: [i32; LANES]) -> [f32; LANES] {
        a.map(|x| f32::from_bits(x as u32))
    }
    #[inline(always)]
    fn add_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn and_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn xor_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: [i32; LANES]) -> [i32; LANES] {
        a.map(|x| x << N)
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: [i32; LANES]) -> [i32; LANES] {
        a.map(|x| x >> N)
    }
    #[inline(always)]
    fn max_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn to_f32(self, a: [i32; LANES]) -> [f32; LANES] {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn store_bytes(self, v: [i32; LANES], to: *mut u8) {
        // SAFETY: the caller vouches for LANES bytes.
        unsafe { to.cast::<[u8; LANES]>().write(v.map(|x| x as u8)) }
    }

    const BYTE_ZERO: i32 = 0;
    #[inline(always)]
    fn dot4(self, sum: [i32; LANES], a: [i32; LANES], w: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| {
            let (a, w) = (a[i].to_ne_bytes(), w[i].to_ne_bytes());
            let products = from_fn::<_, 4, _>(|b| i32::from(a[b] as i8) * i32::from(w[b] as i8));
            products.into_iter().fold(sum[i], i32::wrapping_add)
        })
    }
}
