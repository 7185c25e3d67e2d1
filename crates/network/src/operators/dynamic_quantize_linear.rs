//! DynamicQuantizeLinear in vector code: that of tract calls a function for each element.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::Parsed;
use super::computed::{Computed, computed, wires_itself};

/// The largest value of `u8`.
const LEVELS: f32 = 255.0;

/// Numbers from 2^23 to 2^24 are the integers: adding it to an integer below 2^23 puts that into
/// the low bits.
const INTEGERS: f32 = 8_388_608.0;

pub(super) fn parse(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((expand(DynamicQuantizeLinear), Vec::new()))
}

/// Bytes with their scale and zero point: `x = scale · (y - zero_point)`.
#[derive(Debug, PartialEq)]
struct Quantised {
    y: Vec<u8>,
    scale: f32,
    zero_point: u8,
}

/// The nearest integer to a number below 2^22; halves go to even ones. In vector code.
pub(super) fn round(value: f32) -> f32 {
    const ROUNDING: f32 = 1.5 * INTEGERS;
    (value + ROUNDING) - ROUNDING
}

/// The byte of an integer, saturated.
fn byte(integer: f32) -> u8 {
    (integer.clamp(0.0, LEVELS) + INTEGERS).to_bits() as u8
}

fn quantise(x: &[f32]) -> Quantised {
    // The range contains zero. In lanes, so that it compiles to vectors.
    let (mut least, mut most) = ([0f32; 16], [0f32; 16]);
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for ((least, most), &value) in least.iter_mut().zip(&mut most).zip(chunk) {
            *least = if value < *least { value } else { *least };
            *most = if value > *most { value } else { *most };
        }
    }
    let least = least.iter().chain(rest).fold(0f32, |a, &b| a.min(b));
    let most = most.iter().chain(rest).fold(0f32, |a, &b| a.max(b));
    let scale = if most == least {
        1.0
    } else {
        (most - least) / LEVELS
    };
    let zero_point = byte(round((-least / scale).clamp(0.0, LEVELS)));
    let zero = f32::from(zero_point);
    let values = x.iter();
    let y = values.map(|value| byte(round((value / scale).clamp(-LEVELS, LEVELS)) + zero));
    Quantised {
        y: y.collect(),
        scale,
        zero_point,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DynamicQuantizeLinear;

impl Expansion for DynamicQuantizeLinear {
    wires_itself!();

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(3)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 3)?;
        solver.equals(&inputs[0].datum_type, f32::datum_type())?;
        solver.equals(&outputs[0].datum_type, u8::datum_type())?;
        solver.equals(&outputs[1].datum_type, f32::datum_type())?;
        solver.equals(&outputs[2].datum_type, u8::datum_type())?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)?;
        solver.equals(&outputs[1].rank, 0)?;
        solver.equals(&outputs[2].rank, 0)
    }
}

computed!(DynamicQuantizeLinear);

impl Computed for DynamicQuantizeLinear {
    const NAME: &'static str = "DynamicQuantizeLinear";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let y = u8::datum_type().fact(inputs[0].shape.clone());
        Ok(tvec!(y, f32::scalar_fact(), u8::scalar_fact()))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        let plain = x.try_as_plain_ram()?;
        let quantised = quantise(plain.as_slice::<f32>()?);
        let y = Tensor::from_shape(x.shape(), &quantised.y)?;
        Ok(tvec!(
            y.into_tvalue(),
            tensor0(quantised.scale).into_tvalue(),
            tensor0(quantised.zero_point).into_tvalue()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::quantise;

    /// The formula of ONNX's text: bytes, scale, zero point.
    fn expected(x: &[f32]) -> (Vec<u8>, f32, u8) {
        let least = x.iter().copied().fold(0f32, f32::min);
        let most = x.iter().copied().fold(0f32, f32::max);
        let scale = if most == least {
            1.0
        } else {
            (most - least) / 255.0
        };
        let saturate = |value: f32| value.clamp(0.0, 255.0) as u8;
        let zero_point = saturate((-least / scale).round_ties_even());
        let y = x
            .iter()
            .map(|value| saturate((value / scale).round_ties_even() + f32::from(zero_point)));
        (y.collect(), scale, zero_point)
    }

    #[test]
    fn bytes_are_those_of_the_formula() {
        let mut random = fastrand::Rng::with_seed(1);
        for length in [0, 1, 15, 16, 17, 1000] {
            for (scale, shift) in [
                (1.0, 0.0),
                (1e-20, 0.0),
                (1e20, 1.0),
                (3.0, 5.0),
                (3.0, -5.0),
            ] {
                let values = (0..length).map(|_| (random.f32() - 0.5 + shift) * scale);
                let x: Vec<f32> = values.collect();
                let found = quantise(&x);
                let expected = expected(&x);
                assert_eq!((found.y, found.scale, found.zero_point), expected);
            }
        }
        // Halves, which round to even.
        let halves: Vec<f32> = (0..511).map(|i| i as f32 / 2.0).collect();
        assert_eq!(quantise(&halves).y, expected(&halves).0);
        assert_eq!(quantise(&[0.0; 20]).y, [0; 20]);
    }
}
