//! The largest and the smallest of values: a NaN among floats is the result, which tract loses. Its
//! reductions also start from the least finite number: of infinities alone that would be the
//! result.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::bin_to_super_type;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::binary::Nary;
use tract_onnx::tract_hir::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_hir::tract_core::ops::math::{Max, Min};
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
    eval_in_a: |a: &mut Tensor, b: &Tensor| by_number(a, b, |a, b| if b > a { b } else { a }),
    [f16, f32, f64] => |c, a, b| *c = larger_of(*a, *b),
    [TDim] => |c, a, b| *c = a.clone().maxi(b.clone()),
    [i8, i16, i32, i64, u8, u16, u32, u64] => |c, a, b| *c = *a.max(b));

bin_to_super_type!(smaller, Smaller,
    eval_in_a: |a: &mut Tensor, b: &Tensor| by_number(a, b, |a, b| if b < a { b } else { a }),
    [f16, f32, f64] => |c, a, b| *c = smaller_of(*a, *b),
    [TDim] => |c, a, b| *c = a.clone().mini(b.clone()),
    [i8, i16, i32, i64, u8, u16, u32, u64] => |c, a, b| *c = *a.min(b));

/// Compares all values with one, if that is a number: one instruction then keeps a NaN of `a`.
fn by_number(a: &mut Tensor, b: &Tensor, of_two: impl Fn(f32, f32) -> f32) -> TractResult<bool> {
    if a.datum_type() != f32::datum_type() || b.len() != 1 {
        return Ok(false);
    }
    let b = b.try_as_plain_ram()?.as_slice::<f32>()?[0];
    if b.is_nan() {
        return Ok(false);
    }
    let mut plain = a.try_as_plain_ram_mut()?;
    let values = plain.as_slice_mut::<f32>()?;
    { values.iter_mut() }.for_each(|a| *a = of_two(*a, b));
    Ok(true)
}

fn larger_of<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if a > b || is_nan(a) { a } else { b }
}

fn smaller_of<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if a < b || is_nan(a) { a } else { b }
}

/// The operator that keeps a NaN, in the place of one that loses it.
fn replacement(operator: &dyn TypedOp) -> Option<Box<dyn TypedOp>> {
    if let Some(TypedBinOp(of_two, _)) = operator.downcast_ref() {
        let kept = of_two.is::<Max>().then(larger);
        let kept = kept.or_else(|| of_two.is::<Min>().then(smaller));
        return kept.map(Into::into);
    }
    let reduce = operator.downcast_ref::<Reduce>()?;
    let is_largest = match reduce.reducer {
        Reducer::Max => true,
        Reducer::Min => false,
        _ => return None,
    };
    let axes = reduce.axes.clone();
    Some(Box::new(Extreme { axes, is_largest }))
}

/// The operator of tract, whose maxima and minima are replaced.
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
        if !target.outlet_fact(inputs[0])?.datum_type.is_float() {
            return self.0.wire(prefix, target, inputs);
        }
        let constants = inputs.iter();
        let constants = constants.map(|input| Ok(target.outlet_fact(*input)?.konst.clone()));
        let constants: TractResult<Option<Vec<_>>> = constants.collect();
        if let Some(constants) = constants? {
            // tract would compute them before the operators are replaced.
            return self.of_constants(prefix, target, constants);
        }
        let before = target.nodes.len();
        let outputs = self.0.wire(prefix, target, inputs)?;
        for node in &mut target.nodes[before..] {
            if let Some(operator) = replacement(&*node.op) {
                node.op = operator;
            }
        }
        Ok(outputs)
    }
}

impl Extremes {
    fn of_constants(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        mut constants: Vec<Arc<Tensor>>,
    ) -> TractResult<TVec<OutletId>> {
        let x = constants.remove(0);
        let mut model = TypedModel::default();
        let mut wired = tvec!(model.add_source("x", x.datum_type().fact(x.shape()))?);
        for (at, constant) in constants.into_iter().enumerate() {
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
            pairs.for_each(|(y, &x)| *y = larger_of(x, *y));
        } else {
            pairs.for_each(|(y, &x)| *y = smaller_of(x, *y));
        }
    }
}

fn is_nan<T: PartialOrd>(x: T) -> bool {
    x.partial_cmp(&x).is_none()
}
