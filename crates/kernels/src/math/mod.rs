//! The activation functions over vectors: one fixed sequence of IEEE operations each, so that every
//! instruction set gives the same bits. `gatestream::reference::activate` is the same sequence for
//! one number, written independently; the two are compared bit by bit.
//!
//! NaN in gives NaN out, everywhere. The polynomials come from `tuning/activations/fit.py`.

mod elu;
pub(crate) mod exp;
mod piecewise;
mod sigmoid;
mod softplus;
mod tanh;

pub(crate) use sigmoid::sigmoid;
pub(crate) use tanh::tanh;

use super::simd::Simd;
use super::{Activation, Isa, IsaError, Visitor, dispatch};

/// `activation` of each lane.
#[inline(always)]
pub(crate) fn activate<S: Simd>(s: S, activation: Activation, x: S::F32) -> S::F32 {
    match activation {
        Activation::Sigmoid => sigmoid(s, x),
        Activation::Tanh => tanh(s, x),
        Activation::Relu => piecewise::relu(s, x),
        Activation::Affine { alpha, beta } => piecewise::affine(s, alpha, beta, x),
        Activation::LeakyRelu { alpha } => piecewise::leaky_relu(s, alpha, x),
        Activation::ThresholdedRelu { alpha } => piecewise::thresholded_relu(s, alpha, x),
        Activation::ScaledTanh { alpha, beta } => {
            s.mul(s.splat(alpha), tanh(s, s.mul(s.splat(beta), x)))
        }
        Activation::HardSigmoid { alpha, beta } => piecewise::hard_sigmoid(s, alpha, beta, x),
        Activation::Elu { alpha } => elu::elu(s, alpha, x),
        Activation::Softsign => piecewise::softsign(s, x),
        Activation::Softplus => softplus::softplus(s, x),
    }
}

/// Replaces each of `values` by its `activation`, with the vectors of `isa`.
///
/// Equal to `gatestream::reference::activate` of each, bit for bit (but for the payload of a NaN).
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks `isa`.
///
/// ```
/// # use gatestream_kernels::{Activation, Isa, activate_all};
/// let mut values = [f32::NEG_INFINITY, -0.0, 1.0, 100.0];
/// activate_all(Isa::select()?, Activation::Tanh, &mut values)?;
/// assert_eq!(values, [-1.0, 0.0, 0.7615942, 1.0]);
/// # Ok::<(), gatestream_kernels::IsaError>(())
/// ```
pub fn activate_all(isa: Isa, activation: Activation, values: &mut [f32]) -> Result<(), IsaError> {
    dispatch(isa, Elementwise { activation, values })
}

struct Elementwise<'a> {
    activation: Activation,
    values: &'a mut [f32],
}

impl Visitor for Elementwise<'_> {
    type Out = ();
    fn visit<S: Simd>(self, s: S) {
        activate_values(s, self.activation, self.values);
    }
}

/// Replaces each of `values` by its `activation`.
pub(crate) fn activate_values<S: Simd>(s: S, activation: Activation, values: &mut [f32]) {
    // Without the attribute on the closures they, and all they call, would be compiled for the
    // baseline instruction set. The match stands outside the loop for the three that matter.
    s.vectorize(
        #[inline(always)]
        || match activation {
            Activation::Sigmoid => map(
                s,
                values,
                #[inline(always)]
                |x| sigmoid(s, x),
            ),
            Activation::Tanh => map(
                s,
                values,
                #[inline(always)]
                |x| tanh(s, x),
            ),
            Activation::Relu => map(
                s,
                values,
                #[inline(always)]
                |x| piecewise::relu(s, x),
            ),
            other => map(
                s,
                values,
                #[inline(always)]
                |x| activate(s, other, x),
            ),
        },
    );
}

/// Replaces each of `values` by a function of it.
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, values: &mut [f32], f: impl Fn(S::F32) -> S::F32) {
    let mut whole = values.chunks_exact_mut(S::LANES);
    for lanes in &mut whole {
        s.store(f(s.load(lanes)), lanes);
    }
    let rest = whole.into_remainder();
    if !rest.is_empty() {
        let mut lanes = [0.0; 16];
        lanes[..rest.len()].copy_from_slice(rest);
        let result = f(s.load(&lanes));
        s.store(result, &mut lanes);
        rest.copy_from_slice(&lanes[..rest.len()]);
    }
}

/// The magnitude of each lane.
#[inline(always)]
fn abs<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.from_bits(s.and_i32(s.to_bits(x), s.splat_i32(i32::MAX)))
}

/// The non-negative `magnitude` with the sign of `x`.
#[inline(always)]
fn with_sign_of<S: Simd>(s: S, magnitude: S::F32, x: S::F32) -> S::F32 {
    let sign = s.and_i32(s.to_bits(x), s.splat_i32(i32::MIN));
    s.from_bits(s.or_i32(s.to_bits(magnitude), sign))
}
