//! A recurrent node of a file: its attributes, inputs and outputs.

use std::cell::RefCell;
use std::sync::Arc;

use gatestream::model::{AttributeValue, OpAttribute, RecurrentOp};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto};
use tract_onnx::tract_hir::internal::{TractResult, bail};

use super::region::Regions;
use crate::scoped;

/// The attribute of nodes of this crate whose sequences without steps end with their initial
/// states, as loops do; those of ONNX Runtime end with zeros.
pub(crate) const KEEPS_STATES: &str = "gatestream.keeps_states";

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct RecurrentNode {
    pub name: String,
    pub operator: String,
    pub attributes: Vec<OpAttribute>,
    /// The names of the inputs that are present, in the order of the operator's inputs in tract.
    pub inputs: Vec<&'static str>,
    pub outputs: Vec<&'static str>,
    /// ONNX `layout` 1: the batch is the first axis.
    pub is_batch_major: bool,
    /// See [`KEEPS_STATES`].
    pub keeps_states: bool,
    pub regions: Arc<Regions>,
}

thread_local!(static REGIONS: RefCell<Option<Arc<Regions>>> = const { RefCell::new(None) });

/// Parses a graph whose recurrent nodes belong to these regions.
pub(crate) fn while_parsing<T>(regions: &Arc<Regions>, parse: impl FnOnce() -> T) -> T {
    scoped::with(&REGIONS, regions, parse)
}

impl RecurrentNode {
    pub fn parse(proto: &NodeProto) -> TractResult<RecurrentNode> {
        let Some(regions) = scoped::current(&REGIONS) else {
            bail!("a recurrent node outside of a network");
        };
        let present = |names: &[&'static str], found: &[String]| {
            let pairs = names.iter().zip(found);
            let present = pairs.filter(|(_, found)| !found.is_empty());
            present.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let is_kept = |attribute: &&AttributeProto| attribute.name == KEEPS_STATES;
        let of_operator = proto.attribute.iter().filter(|one| !is_kept(one));
        let attributes = of_operator
            .map(attribute)
            .collect::<TractResult<Vec<_>>>()?;
        Ok(RecurrentNode {
            name: proto.name.clone(),
            operator: proto.op_type.clone(),
            inputs: present(&RecurrentOp::INPUTS, &proto.input),
            outputs: present(&RecurrentOp::OUTPUTS, &proto.output),
            is_batch_major: RecurrentOp::is_batch_major(&attributes),
            keeps_states: proto.attribute.iter().any(|one| is_kept(&one)),
            attributes,
            regions,
        })
    }

    /// The index of an input, if it is present.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| *input == name)
    }

    pub fn is_quantised(&self) -> bool {
        self.operator == "DynamicQuantizeLSTM"
    }
}

/// # Errors
/// It refers to an attribute of a function, or its type is not one of those of recurrent operators.
fn attribute(proto: &AttributeProto) -> TractResult<OpAttribute> {
    if !proto.ref_attr_name.is_empty() {
        bail!(
            "attribute {:?} refers to an attribute of a function",
            proto.name
        );
    }
    let value = match proto.r#type() {
        AttributeType::Float => AttributeValue::Float(proto.f),
        AttributeType::Int => AttributeValue::Int(proto.i),
        AttributeType::String => AttributeValue::String(proto.s.clone()),
        AttributeType::Floats => AttributeValue::Floats(proto.floats.clone()),
        AttributeType::Ints => AttributeValue::Ints(proto.ints.clone()),
        AttributeType::Strings => AttributeValue::Strings(proto.strings.clone()),
        other => bail!(
            "attribute {:?} has the type {}",
            proto.name,
            other.as_str_name()
        ),
    };
    Ok(OpAttribute {
        name: proto.name.clone(),
        value,
    })
}
