//! Operators that tract does not have, has with fewer forms than exporters write, or has slowly.

mod dynamic_quantize_linear;
mod masked_steps;
mod reverse_sequence;
mod top_k;

use std::sync::OnceLock;

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::{GraphProto, NodeProto};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array::Squeeze;
use tract_onnx::{Onnx, onnx};

use crate::NetworkError;
use crate::source::attributes::attribute;
use crate::source::names::subgraphs;

pub(crate) use masked_steps::{COMPACT_STEPS, EXPAND_STEPS};

type Parsed = (Box<dyn InferenceOp>, Vec<String>);

/// Adds the operators.
pub(crate) fn register(onnx: &mut Onnx) {
    onnx.op_register
        .insert(COMPACT_STEPS, masked_steps::parse_compact);
    onnx.op_register
        .insert("DynamicQuantizeLinear", dynamic_quantize_linear::parse);
    onnx.op_register
        .insert(EXPAND_STEPS, masked_steps::parse_expand);
    onnx.op_register
        .insert("ReverseSequence", reverse_sequence::parse);
    onnx.op_register.insert("Squeeze", squeeze);
    onnx.op_register.insert("TopK", top_k::parse);
}

/// Whether an operator of ONNX is computed.
pub(crate) fn is_supported(operator: &str) -> bool {
    const OWN: [&str; 2] = ["ReverseSequence", "DynamicQuantizeLSTM"];
    OWN.contains(&operator) || tract().0.contains_key(operator)
}

/// Checks the operators of a graph and of those within.
///
/// # Errors
/// [`NetworkError::Unsupported`]: the first one that is not supported.
pub(crate) fn check(graph: &GraphProto) -> Result<(), NetworkError> {
    graph.node.iter().try_for_each(|node| {
        if !is_supported(&node.op_type) {
            return Err(NetworkError::Unsupported {
                node: node.name.clone(),
                operator: node.op_type.clone(),
            });
        }
        subgraphs(node).try_for_each(check)
    })
}

/// Without axes, before opset 13, too.
fn squeeze(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let has_axes = attribute(node, "axes").is_some();
    if context.onnx_operator_set_version < 13 && !has_axes {
        return Ok((expand(Squeeze::new(None)), Vec::new()));
    }
    own("Squeeze")?(context, node)
}

type Parse = fn(&ParsingContext<'_>, &NodeProto) -> TractResult<Parsed>;

/// The operator of tract with this name.
fn own(name: &str) -> TractResult<Parse> {
    let parse = tract().0.get(name).copied();
    parse.with_context(|| format!("tract has no operator {name}"))
}

/// The operators of tract.
fn tract() -> &'static OnnxOpRegister {
    static REGISTER: OnceLock<OnnxOpRegister> = OnceLock::new();
    REGISTER.get_or_init(|| onnx().op_register)
}
