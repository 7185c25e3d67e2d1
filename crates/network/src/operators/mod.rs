//! Operators that tract does not have, has with fewer forms than exporters write, has slowly, or
//! computes in another way.

mod activations;
pub(crate) mod computed;
mod dynamic_quantize_linear;
mod extremes;
mod forms;
mod fused_matmul;
mod gather_nd;
mod indices;
mod masked_steps;
mod one_hot;
mod pad;
mod quantize_linear;
mod reverse_sequence;
mod slice;
mod table;
mod top_k;
mod windows;

use std::sync::OnceLock;

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::{GraphProto, NodeProto, OperatorSetIdProto};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array::Squeeze;
use tract_onnx::{Onnx, onnx};

use crate::NetworkError;
use crate::source::attributes::{attribute, float_attribute, is_standard};
use crate::source::names::subgraphs;

pub(crate) use indices::{integers, place};
pub(crate) use masked_steps::{COMPACT_STEPS, EXPAND_STEPS};
pub(crate) use table::{has_one_version, qualified};

/// What a parser of tract gives: an operator, and names of outputs that it adds.
pub(crate) type Parsed = (Box<dyn InferenceOp>, Vec<String>);

/// The operators of this crate, by their names in tract.
const OWN: [(&str, Parse); 36] = [
    (COMPACT_STEPS, masked_steps::parse_compact),
    (EXPAND_STEPS, masked_steps::parse_expand),
    ("AveragePool", windows::parse),
    ("Celu", activations::parse_celu),
    ("Clip", extremes::parse),
    ("Conv", windows::parse),
    ("ConvInteger", windows::parse),
    ("DequantizeLinear", quantize_linear::parse_dequantize),
    ("DynamicQuantizeLinear", dynamic_quantize_linear::parse),
    ("FusedMatMul", fused_matmul::parse),
    ("Gather", indices::parse_gather),
    ("GatherElements", indices::parse_gather_elements),
    ("GatherND", gather_nd::parse),
    ("HardSigmoid", extremes::parse),
    ("Max", extremes::parse_of_inputs),
    ("MaxPool", windows::parse),
    ("Min", extremes::parse_of_inputs),
    ("OneHot", one_hot::parse),
    ("Pad", pad::parse),
    ("QLinearConv", windows::parse),
    ("QuantizeLinear", quantize_linear::parse_quantize),
    ("ReduceMax", extremes::parse),
    ("ReduceMin", extremes::parse),
    ("Relu", activations::parse_relu),
    ("ReverseSequence", reverse_sequence::parse),
    ("Scatter", indices::parse_scatter_elements),
    ("ScatterElements", indices::parse_scatter_elements),
    ("ScatterND", indices::parse_scatter_nd),
    ("Sigmoid", activations::parse_sigmoid),
    ("SkipLayerNormalization", skip_layer_normalization),
    ("Slice", slice::parse),
    ("Softplus", activations::parse_softplus),
    ("Squeeze", squeeze),
    ("Swish", activations::parse_swish),
    ("Tanh", activations::parse_tanh),
    ("TopK", top_k::parse),
];

/// Adds the operators.
pub(crate) fn register(onnx: &mut Onnx) {
    for (name, parse) in OWN {
        onnx.op_register.insert(name, parse);
    }
}

/// Whether an operator is computed, checked or not.
pub(crate) fn is_supported(domain: &str, operator: &str) -> bool {
    // tract knows operators by their names alone: those of ONNX's own domain.
    let is_known = || tract().0.contains_key(operator) || operator == "ReverseSequence";
    table::has(domain, operator) || (is_standard(domain) && is_known())
}

/// When operators are checked, and with it which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckTime {
    /// All but those of branches, which may not be chosen, and loops, which may become scans.
    AtOpen,
    /// All.
    InPlan,
}

/// Checks the operators of a graph and of those within, under these imports. `is_unchecked`: also
/// operators that have not passed ONNX's own test cases may be there.
///
/// # Errors
/// [`NetworkError::Unsupported`] or [`NetworkError::Unchecked`]: the first one that is refused.
pub(crate) fn check(
    graph: &GraphProto,
    imports: &[OperatorSetIdProto],
    is_unchecked: bool,
    time: CheckTime,
) -> Result<(), NetworkError> {
    graph.node.iter().try_for_each(|node| {
        let is_control = is_standard(&node.domain) && matches!(&*node.op_type, "If" | "Loop");
        if time == CheckTime::AtOpen && is_control {
            return Ok(());
        }
        check_node(node, imports, is_unchecked)?;
        let mut within = subgraphs(node);
        within.try_for_each(|graph| check(graph, imports, is_unchecked, time))
    })
}

fn check_node(
    node: &NodeProto,
    imports: &[OperatorSetIdProto],
    is_unchecked: bool,
) -> Result<(), NetworkError> {
    let unsupported = |operator: String| NetworkError::Unsupported {
        node: node.name.clone(),
        operator,
    };
    let operator = table::qualified(node);
    if !is_supported(&node.domain, &node.op_type) {
        return Err(unsupported(operator));
    }
    if let Some(form) = forms::refused(node) {
        return Err(unsupported(format!("{operator} with {form}")));
    }
    let version = table::version(node, imports);
    if is_unchecked || version.is_some_and(|version| version.is_verified) {
        return Ok(());
    }
    Err(NetworkError::Unchecked {
        node: node.name.clone(),
        operator: match version {
            Some(version) => format!("{operator} of opset {}", version.since),
            None => operator,
        },
    })
}

/// Without axes, before opset 13, too.
fn squeeze(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let has_axes = attribute(node, "axes").is_some();
    if context.onnx_operator_set_version < 13 && !has_axes {
        return Ok((expand(Squeeze::new(None)), Vec::new()));
    }
    of_tract("Squeeze")?(context, node)
}

/// With ONNX Runtime's default.
fn skip_layer_normalization(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    const EPSILON: f32 = 1e-12;
    let mut node = node.clone();
    if attribute(&node, "epsilon").is_none() {
        node.attribute.push(float_attribute("epsilon", EPSILON));
    }
    of_tract("SkipLayerNormalization")?(context, &node)
}

type Parse = fn(&ParsingContext<'_>, &NodeProto) -> TractResult<Parsed>;

/// The operator of tract with this name.
fn of_tract(name: &str) -> TractResult<Parse> {
    let parse = tract().0.get(name).copied();
    parse.with_context(|| format!("tract has no operator {name}"))
}

/// The expansion that an operator of tract is.
fn expansion(operator: &dyn InferenceOp) -> TractResult<Box<dyn Expansion>> {
    let operator: &dyn Op = operator;
    let expansion = operator.downcast_ref::<Box<dyn Expansion>>();
    expansion.cloned().context("it is no expansion")
}

/// The operators of tract.
fn tract() -> &'static OnnxOpRegister {
    static REGISTER: OnceLock<OnnxOpRegister> = OnceLock::new();
    REGISTER.get_or_init(|| onnx().op_register)
}
