//! A recurrent node of a graph: its model, and the places of its inputs and outputs.

use gatestream::Model;
use gatestream::model::{AttributeValue, OpAttribute, OpWeights, RecurrentOp};

use crate::api::{Api, Result, Tensor};
use crate::ffi::{Node, ValueInfo};

/// See the [module](self).
pub struct RecurrentNode {
    pub name: String,
    pub operator: String,
    pub directions: usize,
    /// The batch is the first axis.
    pub is_batch_major: bool,
    attributes: Vec<OpAttribute>,
    /// The names of the values at the first of [`RecurrentOp::INPUTS`]; empty where an optional one
    /// is absent.
    inputs: Vec<String>,
    /// The names of the outputs Y, Y_h and Y_c; `None`: nobody reads it.
    pub outputs: [Option<String>; 3],
}

impl RecurrentNode {
    /// Reads a node whose operator [is recurrent](RecurrentOp::is_recurrent).
    ///
    /// # Errors
    /// Why it is left to ONNX Runtime.
    pub fn read(api: &Api, node: *const Node) -> Result<RecurrentNode> {
        let (name, operator) = (api.node_name(node)?, api.operator(node)?);
        let mut attributes = api.attributes(node)?;
        let inputs = value_names(api, &api.inputs(node)?)?;
        if inputs.len() > RecurrentOp::INPUTS.len() {
            return Err(format!("it has {} inputs", inputs.len()));
        }
        let outputs = api.outputs(node)?;
        let output = |at: usize| -> Result<Option<String>> {
            let Some(&value) = outputs.get(at) else {
                return Ok(None);
            };
            let name = api.value_name(value)?;
            Ok((!name.is_empty()).then_some(name))
        };
        let outputs = [output(0)?, output(1)?, output(2)?];
        let directions = RecurrentOp::directions(&attributes);
        if operator == "RNN" {
            // The default of its schema, which ONNX Runtime fills in, is for two directions.
            let activations = attributes
                .iter_mut()
                .find(|attribute| attribute.name == "activations");
            if let Some(AttributeValue::Strings(names)) = activations.map(|found| &mut found.value)
            {
                names.truncate(directions);
            }
        }
        Ok(RecurrentNode {
            name,
            operator,
            directions,
            is_batch_major: RecurrentOp::is_batch_major(&attributes),
            attributes,
            inputs,
            outputs,
        })
    }

    /// The name of the value at this one of [`RecurrentOp::INPUTS`]; `None`: it is absent.
    pub fn input(&self, input: &str) -> Option<&str> {
        self.given()
            .find(|(found, _)| *found == input)
            .map(|(_, value)| value)
    }

    /// The inputs that are weights, and the names of their values.
    pub fn weights(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.given()
            .filter(|(input, _)| RecurrentOp::is_weight(input))
    }

    /// All inputs that are not absent, and the names of their values.
    fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = RecurrentOp::INPUTS
            .into_iter()
            .zip(self.inputs.iter().map(String::as_str));
        all.filter(|(_, value)| !value.is_empty())
    }

    /// Its model with the weights of the file.
    ///
    /// # Errors
    /// As [`RecurrentNode::model`], and weights that are no constants.
    pub fn constant_model(&self, api: &Api, node: *const Node) -> Result<Model> {
        let values = api.inputs(node)?;
        let mut weights = Vec::new();
        for (input, value) in RecurrentOp::INPUTS.into_iter().zip(values) {
            if !RecurrentOp::is_weight(input) || self.input(input).is_none() {
                continue;
            }
            let constant = api.constant(value)?;
            weights.push((
                input,
                constant.ok_or_else(|| format!("{input} is no constant"))?,
            ));
        }
        self.model(&weights)
    }

    /// Its model with these weights.
    ///
    /// # Errors
    /// Why it is left to ONNX Runtime.
    pub fn model(&self, weights: &[(&'static str, Tensor<'_>)]) -> Result<Model> {
        let weights = weights.iter().map(|(input, tensor)| {
            let bytes = tensor.bytes().map_err(|why| format!("{input} is {why}"))?;
            Ok(OpWeights {
                input,
                shape: &tensor.shape,
                element_type: tensor.element_type,
                bytes,
            })
        });
        let run_inputs = self.given().map(|(input, _)| input);
        let op = RecurrentOp {
            name: &self.name,
            operator: &self.operator,
            attributes: &self.attributes,
            run_inputs: &run_inputs
                .filter(|input| !RecurrentOp::is_weight(input))
                .collect::<Vec<_>>(),
            weights: &weights.collect::<Result<Vec<_>>>()?,
        };
        Model::from_recurrent(&op).map_err(|why| why.to_string())
    }
}

/// The names of values; empty for one that is absent.
pub fn value_names(api: &Api, values: &[*const ValueInfo]) -> Result<Vec<String>> {
    values.iter().map(|&value| api.value_name(value)).collect()
}
