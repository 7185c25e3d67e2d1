//! Activations that tract has without a parameter, or that overflow there.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_hir::tract_core::ops::logic::{Iff, comp_gt};
use tract_onnx::tract_hir::tract_core::ops::math::{abs, add, div, exp, ln, max, mul, neg, sub};
use tract_onnx::tract_hir::tract_core::ops::nn::sigmoid;

use super::Parsed;
use crate::source::attributes::float;

pub(super) fn parse_celu(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let alpha = float(node, "alpha", 1.0);
    Ok((expand(Activation::Celu { alpha }), Vec::new()))
}

pub(super) fn parse_softplus(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Parsed> {
    Ok((expand(Activation::Softplus), Vec::new()))
}

pub(super) fn parse_swish(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let alpha = float(node, "alpha", 1.0);
    Ok((expand(Activation::Swish { alpha }), Vec::new()))
}

#[derive(Clone, Copy, Debug)]
enum Activation {
    /// `x` above zero, else `alpha · (exp(x / alpha) - 1)`
    Celu { alpha: f32 },
    /// `max(x, 0) + ln(1 + exp(-|x|))`, which is `ln(1 + exp(x))`.
    Softplus,
    /// `x · sigmoid(alpha · x)`
    Swish { alpha: f32 },
}

impl Expansion for Activation {
    fn name(&self) -> StaticName {
        match self {
            Activation::Celu { .. } => "Celu".into(),
            Activation::Softplus => "Softplus".into(),
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
        let zero = constant(target, "zero", 0.0)?;
        let one = constant(target, "one", 1.0)?;
        let alpha = match *self {
            Activation::Celu { alpha } | Activation::Swish { alpha } => alpha,
            Activation::Softplus => 1.0,
        };
        let alpha = constant(target, "alpha", alpha)?;
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
            Activation::Softplus => {
                let above = step("above", max().into(), &[x, zero])?;
                let size = step("size", abs().into(), &[x])?;
                let exponent = step("exponent", neg().into(), &[size])?;
                let power = step("power", exp().into(), &[exponent])?;
                let sum = step("sum", add().into(), &[power, one])?;
                let rest = step("rest", ln().into(), &[sum])?;
                target.wire_node(prefix, add(), &[above, rest])
            }
            Activation::Swish { .. } => {
                let scaled = step("scaled", mul().into(), &[x, alpha])?;
                let gate = step("gate", sigmoid().into(), &[scaled])?;
                target.wire_node(prefix, mul(), &[x, gate])
            }
        }
    }
}
