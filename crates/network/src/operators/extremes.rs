//! Max, Min, ReduceMax and ReduceMin: a NaN among floats is the result, which tract loses. Its
//! reductions also start from the least finite number: of infinities alone that would be the result.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::bin_to_super_type;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::binary::Nary;
use tract_onnx::tract_hir::tract_core::ops::nn::{Reduce, Reducer};

use super::computed::{Computed, computed, passes_on_rules};
use super::{Parsed, expansion, of_tract};

pub(super) fn parse(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let (operator, names) = of_tract(&node.op_type)?(context, node)?;
    Ok((expand(Extremes(expansion(&*operator)?)), names))
}

/// Max and Min, of any number of inputs.
pub(super) fn parse_of_inputs(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let of_two = if node.op_type == "Max" {
        larger()
    } else {
        smaller()
    };
    Ok((Box::new(Nary(of_two.0, false)), Vec::new()))
}

bin_to_super_type!(larger, Larger,
    [f16, f32, f64] => |c, a, b| *c = if a > b || is_nan(a) { *a } else { *b },
    [TDim] => |c, a, b| *c = a.clone().maxi(b.clone()),
    [i8, i16, i32, i64, u8, u16, u32, u64] => |c, a, b| *c = *a.max(b));

bin_to_super_type!(smaller, Smaller,
    [f16, f32, f64] => |c, a, b| *c = if a < b || is_nan(a) { *a } else { *b },
    [TDim] => |c, a, b| *c = a.clone().mini(b.clone()),
    [i8, i16, i32, i64, u8, u16, u32, u64] => |c, a, b| *c = *a.min(b));

/// The operator of tract, whose reductions are replaced.
#[derive(Clone, Debug)]
struct Extremes(Box<dyn Expansion>);

impl Expansion for Extremes {
    passes_on_rules!(0);

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let x = target.outlet_fact(inputs[0])?;
        let kind = x.datum_type;
        if let Some(x) = x.konst.clone() {
            // tract would reduce it before the reductions are replaced.
            return self.of_constant(prefix, target, inputs, x);
        }
        let before = target.nodes.len();
        let outputs = self.0.wire(prefix, target, inputs)?;
        if kind.is_float() {
            for node in &mut target.nodes[before..] {
                let Some(reduce) = node.op_as::<Reduce>() else {
                    continue;
                };
                let is_largest = match reduce.reducer {
                    Reducer::Max => true,
                    Reducer::Min => false,
                    _ => continue,
                };
                let axes = reduce.axes.clone();
                node.op = Box::new(Extreme { axes, is_largest });
            }
        }
        Ok(outputs)
    }
}

impl Extremes {
    fn of_constant(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
        x: Arc<Tensor>,
    ) -> TractResult<TVec<OutletId>> {
        let mut model = TypedModel::default();
        let mut wired = tvec!(model.add_source("x", x.datum_type().fact(x.shape()))?);
        for (at, input) in inputs.iter().enumerate().skip(1) {
            let constant = target.outlet_fact(*input)?.konst.clone();
            let constant = constant.context("its axes depend on values of the run")?;
            wired.push(model.add_const(format!("constant.{at}"), constant)?);
        }
        let outputs = self.wire("y", &mut model, &wired)?;
        model.select_output_outlets(&outputs)?;
        let outputs = model.into_runnable()?.run(tvec!(x.into_tvalue()))?;
        let y = outputs.into_iter().next().context("it has no output")?;
        Ok(tvec!(target.add_const(prefix, y.into_arc_tensor())?))
    }
}

/// The largest or the smallest value over axes, which keep the length 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extreme {
    axes: TVec<usize>,
    is_largest: bool,
}

computed!(Extreme);

impl Computed for Extreme {
    const NAME: &'static str = "Extreme";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut shape = inputs[0].shape.to_tvec();
        for &axis in &self.axes {
            shape[axis] = 1.to_dim();
        }
        Ok(tvec!(inputs[0].datum_type.fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let mut x = args_1!(inputs).into_tensor();
        for &axis in &self.axes {
            x = match x.datum_type() {
                DatumType::F16 => {
                    // A float16 keeps its value as a float32.
                    let wide = x.cast_to::<f32>()?.into_owned();
                    self.over::<f32>(&wide, axis, f32::INFINITY)?
                        .cast_to::<f16>()?
                        .into_owned()
                }
                DatumType::F32 => self.over(&x, axis, f32::INFINITY)?,
                DatumType::F64 => self.over(&x, axis, f64::INFINITY)?,
                other => bail!("{:?} is no float", other),
            };
        }
        Ok(tvec!(x.into_tvalue()))
    }
}

/// Rows of this many values are compared at once.
const LANES: usize = 16;

impl Extreme {
    fn over<T>(&self, x: &Tensor, axis: usize, infinity: T) -> TractResult<Tensor>
    where
        T: Datum + Copy + PartialOrd + std::ops::Neg<Output = T>,
    {
        let first = if self.is_largest { -infinity } else { infinity };
        let mut shape: TVec<usize> = x.shape().into();
        let length = std::mem::replace(&mut shape[axis], 1);
        let inner: usize = shape[axis..].iter().product();
        let mut y = vec![first; shape.iter().product()];
        if x.len() == 0 {
            return Tensor::from_shape(&shape, &y);
        }
        let plain = x.try_as_plain_ram()?;
        let x = plain.as_slice::<T>()?;
        if inner == 1 {
            for (y, row) in y.iter_mut().zip(x.chunks_exact(length)) {
                let mut lanes = [first; LANES];
                row.chunks(LANES).for_each(|x| self.meet(&mut lanes, x));
                for lane in lanes {
                    self.meet(std::slice::from_mut(y), &[lane]);
                }
            }
        } else {
            for (y, rows) in y
                .chunks_exact_mut(inner)
                .zip(x.chunks_exact(inner * length))
            {
                rows.chunks_exact(inner).for_each(|x| self.meet(y, x));
            }
        }
        Tensor::from_shape(&shape, &y)
    }

    /// Value by value; a NaN remains.
    fn meet<T: Copy + PartialOrd>(&self, y: &mut [T], x: &[T]) {
        let pairs = y.iter_mut().zip(x);
        if self.is_largest {
            pairs.for_each(|(y, &x)| *y = if x > *y || is_nan(x) { x } else { *y });
        } else {
            pairs.for_each(|(y, &x)| *y = if x < *y || is_nan(x) { x } else { *y });
        }
    }
}

fn is_nan<T: PartialOrd>(x: T) -> bool {
    x.partial_cmp(&x).is_none()
}
