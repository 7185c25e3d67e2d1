//! Convolutions and pools. Where the input is shorter than the window, tract gives an empty result,
//! or that of a part of the window.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::computed::passes_on_rules;
use super::{Parsed, expansion, of_tract};
use crate::source::attributes::{attribute, integer};

pub(super) fn parse(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let padding = attribute(node, "auto_pad").map(|padding| padding.s.as_slice());
    let is_explicit = matches!(padding, None | Some(b"" | b"NOTSET"));
    let mut node = node.clone();
    if !is_explicit {
        // tract would take them in the place of `auto_pad`.
        node.attribute.retain(|attribute| attribute.name != "pads");
    }
    let (operator, names) = of_tract(&node.op_type)?(context, &node)?;
    let sizes = |name| attribute(&node, name).map(|attribute| attribute.ints.clone());
    let windows = Windows {
        operator: expansion(&*operator)?,
        weights: if node.op_type == "QLinearConv" { 3 } else { 1 },
        kernel: sizes("kernel_shape"),
        dilations: sizes("dilations"),
        pads: sizes("pads"),
        strides: sizes("strides"),
        is_same: padding.is_some_and(|padding| padding.starts_with(b"SAME")),
        is_ceil: is_explicit && integer(&node, "ceil_mode", 0) == 1,
    };
    Ok((expand(windows), names))
}

/// The operator of tract, with a check of the input's size.
#[derive(Clone, Debug)]
struct Windows {
    operator: Box<dyn Expansion>,
    /// The number of the input that has the weights, if the operator has some.
    weights: usize,
    /// Default: that of the weights.
    kernel: Option<Vec<i64>>,
    dilations: Option<Vec<i64>>,
    pads: Option<Vec<i64>>,
    strides: Option<Vec<i64>>,
    /// Whether the input is padded to as many windows as it has values, by the stride.
    is_same: bool,
    /// Whether the last window may go beyond the input.
    is_ceil: bool,
}

impl Windows {
    /// # Errors
    /// An axis of `x` (batch, channels, axes) is shorter than the window.
    fn check(&self, x: &[TDim], weights: Option<&[TDim]>) -> TractResult<()> {
        if self.is_same {
            return Ok(());
        }
        let axes = x.iter().skip(2).enumerate();
        for (axis, size) in axes.filter_map(|(axis, size)| Some((axis, size.to_i64().ok()?))) {
            let of_axis = |sizes: &Option<Vec<i64>>, default| {
                let size = sizes.as_ref().and_then(|sizes| sizes.get(axis));
                size.copied().unwrap_or(default)
            };
            let of_weights = weights.and_then(|shape| shape.get(2 + axis)?.to_i64().ok());
            let kernel = of_axis(&self.kernel, of_weights.unwrap_or(1));
            let window = kernel
                .saturating_sub(1)
                .saturating_mul(of_axis(&self.dilations, 1));
            let pads = self.pads.as_deref().unwrap_or_default();
            let after = pads.get(pads.len() / 2 + axis).copied().unwrap_or(0);
            let padded = size
                .saturating_add(of_axis(&self.pads, 0))
                .saturating_add(after);
            let beyond = if self.is_ceil {
                of_axis(&self.strides, 1).saturating_sub(1)
            } else {
                0
            };
            ensure!(
                size == 0 || padded.saturating_add(beyond) > window,
                "axis {} of its input has {padded} values with its padding, and is shorter than \
                 its window",
                2 + axis
            );
        }
        Ok(())
    }
}

impl Expansion for Windows {
    passes_on_rules!(operator);

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let x = target.outlet_fact(inputs[0])?;
        let weights = inputs
            .get(self.weights)
            .map(|&weights| target.outlet_fact(weights));
        let weights = weights.transpose()?;
        self.check(&x.shape, weights.map(|fact| &*fact.shape))?;
        self.operator.wire(prefix, target, inputs)
    }
}
