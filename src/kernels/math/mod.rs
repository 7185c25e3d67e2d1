//! stand-in until the real functions land
use super::Activation;
use super::simd::Simd;

#[inline(always)]
pub(crate) fn activate<S: Simd>(s: S, activation: Activation, v: S::F32) -> S::F32 {
    let mut lanes = [0.0f32; 16];
    s.store(v, &mut lanes);
    for x in &mut lanes {
        *x = crate::reference::activate(activation, *x);
    }
    s.load(&lanes)
}
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, v: S::F32) -> S::F32 {
    activate(s, Activation::Sigmoid, v)
}
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, v: S::F32) -> S::F32 {
    activate(s, Activation::Tanh, v)
}
