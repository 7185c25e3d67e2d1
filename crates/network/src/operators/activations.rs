//! Activations that tract has without a parameter, that overflow there, or lose a NaN.
//!
//! Those of float32 and float16 are the library's: their errors are smaller than those of tract,
//! and a NaN stays one.

use std::sync::OnceLock;

use gatestream::kernels::{self, Isa, activate_all};
use half::f16;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::element_wise;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_hir::tract_core::ops::element_wise::ElementWiseOp;
use tract_onnx::tract_hir::tract_core::ops::logic::{Iff, comp_gt};
use tract_onnx::tract_hir::tract_core::ops::math::{Mul, div, exp, mul, sub};

use super::Parsed;
use crate::source::attributes::float;

pub(super) fn parse_celu(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let alpha = float(node, "alpha", 1.0);
    Ok((expand(Activation::Celu { alpha }), Vec::new()))
}

pub(super) fn parse_relu(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((relu().into_hir(), Vec::new()))
}

pub(super) fn parse_sigmoid(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((sigmoid().into_hir(), Vec::new()))
}

pub(super) fn parse_softplus(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((softplus().into_hir(), Vec::new()))
}

pub(super) fn parse_tanh(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((tanh().into_hir(), Vec::new()))
}

pub(super) fn parse_swish(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let alpha = float(node, "alpha", 1.0);
    Ok((expand(Activation::Swish { alpha }), Vec::new()))
}

element_wise!(relu, Relu,
    [f32] => |_, x| activate(kernels::Activation::Relu, x),
    [f16] => |_, x| activate_halves(kernels::Activation::Relu, x),
    [f64] => |_, x| each(x, |x| if x < 0.0 { 0.0 } else { x }),
    [i8, i16, i32, i64] => |_, x| each(x, |x| x.max(0)),
    // Integers that tract keeps as sizes.
    [TDim] => |_, x| {
        x.iter_mut().for_each(|x| *x = x.clone().maxi(0.into()));
        Ok(())
    }
);

element_wise!(sigmoid, Sigmoid,
    [f32] => |_, x| activate(kernels::Activation::Sigmoid, x),
    [f16] => |_, x| activate_halves(kernels::Activation::Sigmoid, x),
    [f64] => |_, x| each(x, |x| 1.0 / (1.0 + (-x).exp()));
    declutter: as_silu
);

// `x · sigmoid(x)`: one pass over `x` in place, where two operators would copy it.
element_wise!(silu, Silu,
    [f32] => |_, x| {
        const VALUES: usize = 1024;
        let mut gates = [0.0; VALUES];
        x.chunks_mut(VALUES).try_for_each(|x| {
            let gates = &mut gates[..x.len()];
            gates.copy_from_slice(x);
            activate(kernels::Activation::Sigmoid, gates)?;
            x.iter_mut().zip(gates).for_each(|(x, gate)| *x *= *gate);
            Ok(())
        })
    }
);

/// Replaces the product of a Sigmoid of float32 and its input.
fn as_silu(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let is_sigmoid = node
        .op_as::<ElementWiseOp>()
        .is_some_and(|op| op.0.is::<Sigmoid>());
    if !is_sigmoid || model.outlet_fact(node.inputs[0])?.datum_type != f32::datum_type() {
        return Ok(None);
    }
    let product = model.find_succ_bin_with_outlet::<Mul>(node, &node.inputs[0]);
    let Some(product) = product else {
        return Ok(None);
    };
    let mut patch = TypedModelPatch::default();
    let x = patch.taps(model, &node.inputs)?;
    let y = patch.wire_node(format!("{}.silu", node.name), silu(), &x)?;
    patch.shunt_outside(model, product.id.into(), y[0])?;
    Ok(Some(patch))
}

element_wise!(tanh, Tanh,
    [f32] => |_, x| activate(kernels::Activation::Tanh, x),
    [f16] => |_, x| activate_halves(kernels::Activation::Tanh, x),
    [f64] => |_, x| each(x, f64::tanh)
);

element_wise!(softplus, Softplus,
    [f32] => |_, x| activate(kernels::Activation::Softplus, x),
    [f16] => |_, x| activate_halves(kernels::Activation::Softplus, x),
    // ln(1 + exp(x)), without overflow. The second term keeps a NaN.
    [f64] => |_, x| each(x, |x| x.max(0.0) + (-x.abs()).exp().ln_1p())
);

fn activate(activation: kernels::Activation, values: &mut [f32]) -> TractResult<()> {
    // Its choice reads a variable of the environment.
    static ISA: OnceLock<Isa> = OnceLock::new();
    let isa = match ISA.get() {
        Some(isa) => *isa,
        None => {
            let isa = Isa::select()?;
            *ISA.get_or_init(|| isa)
        }
    };
    Ok(activate_all(isa, activation, values)?)
}

fn activate_halves(activation: kernels::Activation, values: &mut [f16]) -> TractResult<()> {
    let mut floats: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
    activate(activation, &mut floats)?;
    let pairs = values.iter_mut().zip(floats);
    pairs.for_each(|(value, float)| *value = f16::from_f32(float));
    Ok(())
}

fn each<T: Copy>(values: &mut [T], of_one: impl Fn(T) -> T) -> TractResult<()> {
    values.iter_mut().for_each(|value| *value = of_one(*value));
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Activation {
    /// `x` above zero, else `alpha · (exp(x / alpha) - 1)`
    Celu { alpha: f32 },
    /// `x · sigmoid(alpha · x)`
    Swish { alpha: f32 },
}

impl Expansion for Activation {
    fn name(&self) -> StaticName {
        match self {
            Activation::Celu { .. } => "Celu".into(),
            Activation::Swish { .. } => "Swish".into(),
        }
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let x = inputs[0];
        let fact = target.outlet_fact(x)?.clone();
        let constant = |target: &mut TypedModel, name: &str, value: f32| {
            let value = tensor0(value).cast_to_dt(fact.datum_type)?.into_owned();
            target.add_const(
                format!("{prefix}.{name}"),
                value.broadcast_into_rank(fact.rank())?,
            )
        };
        let (Activation::Celu { alpha } | Activation::Swish { alpha }) = *self;
        let alpha = constant(target, "alpha", alpha)?;
        let zero = constant(target, "zero", 0.0)?;
        let one = constant(target, "one", 1.0)?;
        let mut step = |name: &str, operator: Box<dyn TypedOp>, of: &[OutletId]| {
            let wired = target.wire_node(format!("{prefix}.{name}"), operator, of)?;
            TractResult::Ok(wired[0])
        };
        match self {
            Activation::Celu { .. } => {
                let is_above = TypedBinOp(comp_gt(), None);
                let is_above = step("is_above", Box::new(is_above), &[x, zero])?;
                let exponent = step("exponent", div().into(), &[x, alpha])?;
                let power = step("power", exp().into(), &[exponent])?;
                let less = step("less", sub().into(), &[power, one])?;
                let scaled = step("scaled", mul().into(), &[less, alpha])?;
                target.wire_node(prefix, Iff, &[is_above, x, scaled])
            }
            Activation::Swish { .. } => {
                let scaled = step("scaled", mul().into(), &[x, alpha])?;
                let gate = step("gate", sigmoid().into(), &[scaled])?;
                target.wire_node(prefix, mul(), &[x, gate])
            }
        }
    }
}
