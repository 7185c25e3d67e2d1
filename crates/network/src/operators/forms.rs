//! Forms of operators that tract computes in another way than ONNX says.

use tract_onnx::pb::NodeProto;

use crate::source::attributes::attribute;

/// The form of a node that is not supported, if it has one.
pub(super) fn refused(node: &NodeProto) -> Option<&'static str> {
    let text = |name: &str| attribute(node, name).map_or("", |one| utf8(&one.s));
    let count = |name: &str| attribute(node, name).map_or(0, |one| one.ints.len());
    // Each may be absent; without all of them, a plan tells.
    let kernel_axes = count("kernel_shape").max(count("strides"));
    let kernel_axes = kernel_axes.max(count("dilations"));
    let is_negative = |name: &str| {
        attribute(node, name).is_some_and(|one| one.ints.iter().any(|&value| value < 0))
    };
    match node.op_type.as_str() {
        "ConvTranspose" if (1..count("output_shape")).contains(&kernel_axes) => {
            Some("output_shape of all axes; give those of the kernel alone")
        }
        "Pad" if is_negative("pads") => Some("negative pads before opset 11"),
        "Normalizer" if !matches!(text("norm"), "L1" | "L2") => Some("norm MAX"),
        _ => None,
    }
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
