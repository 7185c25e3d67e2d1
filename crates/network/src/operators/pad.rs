//! Pad. Negative pads crop; tract takes them for large ones.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::tract_core::ops::array::Slice;

use super::computed::passes_on_rules;
use super::indices::{axis_of, constant_integers};
use super::{Parsed, expansion, of_tract};
use crate::source::attributes::attribute;

pub(super) fn parse(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let (operator, names) = of_tract("Pad")?(context, node)?;
    if context.onnx_operator_set_version < 11 {
        return Ok((operator, names));
    }
    let is_present = |at: usize| node.input.get(at).is_some_and(|name| !name.is_empty());
    let pad = Pad {
        operator: expansion(&*operator)?,
        axes: is_present(3).then(|| 2 + usize::from(is_present(2))),
        is_constant: attribute(node, "mode").is_none_or(|mode| mode.s == b"constant"),
    };
    Ok((expand(pad), names))
}

#[derive(Clone, Debug)]
struct Pad {
    operator: Box<dyn Expansion>,
    /// The input that has the axes.
    axes: Option<usize>,
    is_constant: bool,
}

impl Expansion for Pad {
    passes_on_rules!(operator);

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let mut pads = constant_integers(target, inputs[1])?;
        if pads.iter().all(|&pad| pad >= 0) {
            return self.operator.wire(prefix, target, inputs);
        }
        ensure!(
            self.is_constant,
            "negative pads are supported in the mode constant alone"
        );
        let shape = target.outlet_fact(inputs[0])?.shape.clone();
        let count = pads.len() / 2;
        let axes = match self.axes {
            Some(input) => constant_integers(target, inputs[input])?,
            None => (0..count as i64).collect(),
        };
        let mut inputs: TVec<OutletId> = inputs.into();
        for (at, &axis) in axes.iter().enumerate() {
            let axis = axis_of(axis, shape.rank())?;
            let mut crop = |at: usize| {
                let crop = (-pads[at]).max(0);
                pads[at] = pads[at].max(0);
                crop
            };
            let (begin, end) = (crop(at), shape[axis].clone() - crop(at + count));
            let name = format!("{prefix}.crop.{axis}");
            let slice = Slice::new(axis, begin.to_dim(), end);
            inputs[0] = target.wire_node(name, slice, &inputs[..1])?[0];
        }
        inputs[1] = target.add_const(format!("{prefix}.pads"), tensor1(&pads))?;
        self.operator.wire(prefix, target, &inputs)
    }
}
