//! QuantizeLinear and DequantizeLinear as ONNX has them.
//!
//! Those of tract need constant scales, and tract joins the operators between the two into one on
//! integers, which is another function for those that work on whole rows, such as Softmax.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::tract_hir::internal::*;

use super::Parsed;
use super::computed::{Computed, computed, wires_itself};
use super::dynamic_quantize_linear::round;
use super::indices::axis_of;
use crate::ElementType;
use crate::source::attributes::integer;

pub(super) fn parse_quantize(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    parse(node, Direction::Quantize)
}

pub(super) fn parse_dequantize(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    parse(node, Direction::Dequantize)
}

fn parse(node: &NodeProto, direction: Direction) -> TractResult<Parsed> {
    let number = integer(node, "output_dtype", DataType::Undefined as i64);
    let precision = integer(node, "precision", DataType::Undefined as i64);
    ensure!(
        [DataType::Undefined as i64, DataType::Float as i64].contains(&precision),
        "{} with the precision {precision} is not supported; float32 is",
        node.op_type
    );
    let output = match number {
        0 => None,
        number => Some(type_of(number).with_context(|| {
            format!("{} to ONNX's type {number} is not supported", node.op_type)
        })?),
    };
    let operator = Linear {
        direction,
        has_zero_point: node.input.get(2).is_some_and(|name| !name.is_empty()),
        axis: integer(node, "axis", 1),
        block: usize::try_from(integer(node, "block_size", 0)).context("block_size is negative")?,
        output,
    };
    Ok((expand(operator), Vec::new()))
}

fn type_of(number: i64) -> Option<DatumType> {
    let kind = ElementType::of_onnx(i32::try_from(number).ok()?)?;
    Some(match kind {
        ElementType::U8 => u8::datum_type(),
        ElementType::I8 => i8::datum_type(),
        ElementType::U16 => u16::datum_type(),
        ElementType::I16 => i16::datum_type(),
        ElementType::F32 => f32::datum_type(),
        ElementType::F16 => f16::datum_type(),
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// `y = saturate(round(x / scale) + zero point)`, halves to even integers.
    Quantize,
    /// `y = (x - zero point) · scale`.
    Dequantize,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Linear {
    direction: Direction,
    has_zero_point: bool,
    axis: i64,
    /// Values along the axis that share a scale; 0: all at a place of the axis share one.
    block: usize,
    output: Option<DatumType>,
}

impl Linear {
    /// The type of the results. `zero_point` as there is one.
    fn output(&self, scale: DatumType, zero_point: Option<DatumType>) -> DatumType {
        match self.direction {
            Direction::Quantize => zero_point.or(self.output).unwrap_or(u8::datum_type()),
            Direction::Dequantize => self.output.unwrap_or(scale),
        }
    }
}

impl Expansion for Linear {
    wires_itself!();

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2 + usize::from(self.has_zero_point))?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)?;
        match self.direction {
            Direction::Quantize if self.has_zero_point => {
                solver.equals(&inputs[2].datum_type, &outputs[0].datum_type)
            }
            Direction::Quantize => {
                let output = self.output.unwrap_or(u8::datum_type());
                solver.equals(&outputs[0].datum_type, output)
            }
            Direction::Dequantize => match self.output {
                Some(output) => solver.equals(&outputs[0].datum_type, output),
                None => solver.equals(&inputs[1].datum_type, &outputs[0].datum_type),
            },
        }
    }
}

computed!(Linear);

impl Computed for Linear {
    const NAME: &'static str = "(De)QuantizeLinear";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let zero_point = inputs.get(2).map(|zero| zero.datum_type);
        let output = self.output(inputs[1].datum_type, zero_point);
        Ok(tvec!(output.fact(inputs[0].shape.clone())))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, scale) = (&inputs[0], &inputs[1]);
        let zero_point = inputs.get(2);
        let output = self.output(scale.datum_type(), zero_point.map(|zero| zero.datum_type()));
        let scale = scale.cast_to::<f32>()?;
        let zeros = match zero_point {
            Some(zeros) => zeros.cast_to::<i32>()?.into_owned(),
            None => Tensor::zero::<i32>(scale.shape())?,
        };
        let scales = Scales::new(self, x.shape(), scale.shape())?;
        ensure!(
            zeros.len() == scale.len(),
            "{} zero points for {} scales",
            zeros.len(),
            scale.len()
        );
        let scale = scale.try_as_plain_ram()?;
        let zeros = zeros.try_as_plain_ram()?;
        let (scale, zeros) = (scale.as_slice::<f32>()?, zeros.as_slice::<i32>()?);
        let y = match self.direction {
            Direction::Quantize => {
                let x = x.cast_to::<f32>()?;
                quantize(&x, &scales, scale, zeros, output)?
            }
            Direction::Dequantize => dequantize(x, &scales, scale, zeros)?,
        };
        let y = if y.datum_type() == output {
            y
        } else {
            y.cast_to_dt(output)?.into_owned()
        };
        Ok(tvec!(y.into_tvalue()))
    }
}

/// The scale of each value: rows of neighbours that share one, or have one each.
struct Scales {
    count: usize,
    /// Values of an index of the axis.
    inner: usize,
    /// Length of the axis.
    length: usize,
    block: usize,
}

impl Scales {
    fn new(of: &Linear, x: &[usize], scale: &[usize]) -> TractResult<Scales> {
        let count: usize = scale.iter().product();
        if of.block == 0 && count == 1 {
            let inner = x.iter().product();
            return Ok(Scales {
                count,
                inner,
                length: 1,
                block: 0,
            });
        }
        let axis = axis_of(of.axis, x.len())?;
        let length = x[axis];
        if of.block == 0 {
            ensure!(count == length, "{count} scales for an axis of {length}");
        } else {
            let mut expected = x.to_vec();
            expected[axis] = length.div_ceil(of.block);
            ensure!(
                expected == scale,
                "scales of the shape {scale:?}, not {expected:?}"
            );
        }
        let inner = x[axis + 1..].iter().product();
        Ok(Scales {
            count,
            inner,
            length,
            block: of.block,
        })
    }

    /// Calls `run` for each row of values that share a scale, with the index of that.
    fn rows(&self, values: usize, mut run: impl FnMut(std::ops::Range<usize>, usize)) {
        if values == 0 {
            return;
        }
        if self.block == 0 {
            for (row, begin) in (0..values).step_by(self.inner).enumerate() {
                run(begin..begin + self.inner, row % self.count.max(1));
            }
            return;
        }
        let blocks = self.length.div_ceil(self.block);
        for at in 0..values {
            let (row, inner) = (at / self.inner, at % self.inner);
            let (outer, place) = (row / self.length, row % self.length);
            run(
                at..at + 1,
                (outer * blocks + place / self.block) * self.inner + inner,
            );
        }
    }
}

fn quantize(
    x: &Tensor,
    scales: &Scales,
    scale: &[f32],
    zeros: &[i32],
    output: DatumType,
) -> TractResult<Tensor> {
    let plain = x.try_as_plain_ram()?;
    let values = plain.as_slice::<f32>()?;
    macro_rules! of_type {
        ($type:ty) => {{
            // Beyond it, the result is saturated whatever the zero point.
            const LIMIT: f32 = 131_072.0;
            let mut y = Tensor::zero::<$type>(x.shape())?;
            let mut plain = y.try_as_plain_ram_mut()?;
            let to = plain.as_slice_mut::<$type>()?;
            scales.rows(x.len(), |row, at| {
                let (scale, zero) = (scale[at], zeros[at] as f32);
                for (y, x) in to[row.clone()].iter_mut().zip(&values[row]) {
                    let rounded = round((x / scale).clamp(-LIMIT, LIMIT));
                    *y = (rounded + zero) as $type;
                }
            });
            Ok(y)
        }};
    }
    match output.unquantized() {
        DatumType::U8 => of_type!(u8),
        DatumType::I8 => of_type!(i8),
        DatumType::U16 => of_type!(u16),
        DatumType::I16 => of_type!(i16),
        other => bail!("QuantizeLinear to {other:?} is not supported"),
    }
}

fn dequantize(x: &Tensor, scales: &Scales, scale: &[f32], zeros: &[i32]) -> TractResult<Tensor> {
    let mut y = Tensor::zero::<f32>(x.shape())?;
    let mut plain = y.try_as_plain_ram_mut()?;
    let to = plain.as_slice_mut::<f32>()?;
    macro_rules! of_type {
        ($type:ty) => {{
            let x = x.try_as_plain_ram()?;
            let x = x.as_slice::<$type>()?;
            scales.rows(x.len(), |row, at| {
                let (scale, zero) = (scale[at], zeros[at]);
                for (y, x) in to[row.clone()].iter_mut().zip(&x[row]) {
                    *y = i32::from(*x).wrapping_sub(zero) as f32 * scale;
                }
            });
        }};
    }
    match x.datum_type().unquantized() {
        DatumType::U8 => of_type!(u8),
        DatumType::I8 => of_type!(i8),
        DatumType::U16 => of_type!(u16),
        DatumType::I16 => of_type!(i16),
        DatumType::I32 => of_type!(i32),
        other => bail!("DequantizeLinear of {other:?} is not supported"),
    }
    Ok(y)
}
