//! A recurrent node of a file: its attributes, inputs and outputs.

use std::cell::RefCell;
use std::sync::Arc;

use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::{TractResult, bail};

use super::region::Regions;
use crate::scoped;
use crate::source::attributes::integer;

/// The inputs of the operators, in the order of the file; `None` where an operator has none.
const STANDARD: [&str; 8] = [
    "X",
    "W",
    "R",
    "B",
    "sequence_lens",
    "initial_h",
    "initial_c",
    "P",
];
const QUANTISED: [&str; 12] = [
    "X",
    "W",
    "R",
    "B",
    "sequence_lens",
    "initial_h",
    "initial_c",
    "P",
    "W_scale",
    "W_zero_point",
    "R_scale",
    "R_zero_point",
];
pub(super) const OUTPUTS: [&str; 3] = ["Y", "Y_h", "Y_c"];

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct RecurrentNode {
    pub name: String,
    /// With its attributes, without inputs and outputs.
    pub proto: NodeProto,
    pub opset: i64,
    /// The names of the inputs that are present, in the order of the operator's inputs in tract.
    pub inputs: Vec<&'static str>,
    pub outputs: Vec<&'static str>,
    /// ONNX `layout` 1: the batch is the first axis.
    pub is_batch_major: bool,
    pub regions: Arc<Regions>,
}

thread_local!(static REGIONS: RefCell<Option<Arc<Regions>>> = const { RefCell::new(None) });

/// Parses a graph whose recurrent nodes belong to these regions.
pub(crate) fn while_parsing<T>(regions: &Arc<Regions>, parse: impl FnOnce() -> T) -> T {
    scoped::with(&REGIONS, regions, parse)
}

impl RecurrentNode {
    pub fn parse(proto: &NodeProto, opset: i64) -> TractResult<RecurrentNode> {
        let Some(regions) = scoped::current(&REGIONS) else {
            bail!("a recurrent node outside of a network");
        };
        let is_quantised = proto.op_type == "DynamicQuantizeLSTM";
        let names: &[&'static str] = if is_quantised { &QUANTISED } else { &STANDARD };
        let present = |names: &[&'static str], found: &[String]| {
            let pairs = names.iter().zip(found);
            let present = pairs.filter(|(_, found)| !found.is_empty());
            present.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        Ok(RecurrentNode {
            name: proto.name.clone(),
            opset,
            inputs: present(names, &proto.input),
            outputs: present(&OUTPUTS, &proto.output),
            is_batch_major: integer(proto, "layout", 0) == 1,
            regions,
            proto: NodeProto {
                input: Vec::new(),
                output: Vec::new(),
                ..proto.clone()
            },
        })
    }

    /// The index of an input, if it is present.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| *input == name)
    }

    pub fn is_quantised(&self) -> bool {
        self.proto.op_type == "DynamicQuantizeLSTM"
    }

    /// Whether an input is part of the weights.
    pub fn is_weight(name: &str) -> bool {
        !matches!(name, "X" | "sequence_lens" | "initial_h" | "initial_c")
    }
}
