//! A graph whose recurrent weights are stored in 8 bits.
//!
//! ```text
//! W  float32 [directions, rows, columns]
//! becomes, for each direction
//! W_int8   int8 [1, rows, columns], from -127 to 127
//! W_scale  float32 [rows], the greatest |weight| of the row / 127
//! W = DequantizeLinear(W_int8, W_scale), for two directions both concatenated
//! ```
//!
//! The rows and scales are those of [`Precision::Int8`]. So a network with that precision computes
//! with the integers of the file. Other runtimes widen them before they run.

use std::collections::HashSet;
use std::path::Path;

use gatestream::model::{Matrix, ModelError, Precision};
use prost::Message;
use tract_onnx::pb::{
    AttributeProto, GraphProto, NodeProto, TensorProto, attribute_proto::AttributeType,
};

use crate::recurrent::is_recurrent;
use crate::source::{self, names};
use crate::{NetworkError, Tensor};

/// `DequantizeLinear` has scales of rows from this opset on.
const OPSET: i64 = 13;
const FLOAT: i32 = 1;

/// A graph with recurrent weights in 8 bits.
///
/// ```no_run
/// let graph = gatestream_network::QuantizedGraph::of("model.onnx")?;
/// std::fs::write("small.onnx", &graph.bytes)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuantizedGraph {
    /// The ONNX file, with all constants inside.
    pub bytes: Vec<u8>,
    /// The names of the weights that are in 8 bits now.
    pub reduced: Vec<String>,
    /// The names of recurrent nodes with weights that stay as they are, because they are computed,
    /// inputs, not float32, or in 8 bits already.
    pub kept: Vec<String>,
}

fn refused(why: impl Into<String>) -> NetworkError {
    NetworkError::Quantize { why: why.into() }
}

impl QuantizedGraph {
    /// Reads a file, and stores the weights of its recurrent nodes in 8 bits.
    ///
    /// # Errors
    /// [`NetworkError`]: the file cannot be read; [`NetworkError::Quantize`]: no weights can be
    /// stored so.
    pub fn of(path: impl AsRef<Path>) -> Result<QuantizedGraph, NetworkError> {
        let mut model = source::open(path.as_ref())?;
        let version = source::opsets(&model.opset_import)
            .next()
            .unwrap_or_default();
        if version < OPSET {
            return Err(refused(format!(
                "the model imports opset {version}; 8-bit weights need {OPSET} or newer; convert \
                 it with `onnx.version_converter`"
            )));
        }
        let mut found = Found::default();
        if let Some(graph) = &mut model.graph {
            found.in_graph(graph)?;
        }
        if found.reduced.is_empty() {
            return Err(refused("no recurrent node has constant float32 weights"));
        }
        Ok(QuantizedGraph {
            bytes: model.encode_to_vec(),
            reduced: found.reduced,
            kept: found.kept,
        })
    }
}

/// Weights and nodes so far.
#[derive(Default)]
struct Found {
    reduced: Vec<String>,
    kept: Vec<String>,
}

impl Found {
    /// Stores the weights that this graph defines. Graphs within may use them, too.
    fn in_graph(&mut self, graph: &mut GraphProto) -> Result<(), NetworkError> {
        let mut wanted = HashSet::new();
        weights_of(graph, &mut wanted);
        let mut made = Vec::new();
        let mut constants = Vec::new();
        for tensor in std::mem::take(&mut graph.initializer) {
            match wanted
                .contains(&tensor.name)
                .then(|| values(&tensor))
                .flatten()
            {
                None => constants.push(tensor),
                Some(values) => {
                    self.reduced.push(tensor.name.clone());
                    // Before IR version 4 constants are inputs, too.
                    graph.input.retain(|input| input.name != tensor.name);
                    made.extend(store(&tensor, &values, &mut constants)?);
                }
            }
        }
        graph.initializer = constants;
        graph.node.splice(0..0, made);
        let reduced: HashSet<&str> = self.reduced.iter().map(String::as_str).collect();
        let kept = graph.node.iter().filter(|node| {
            is_recurrent(node)
                && !(weights(node).iter()).all(|name| reduced.contains(name.as_str()))
        });
        let kept: Vec<String> = kept.map(|node| node.name.clone()).collect();
        self.kept.extend(kept);
        for node in &mut graph.node {
            for inner in names::subgraphs_mut(node) {
                self.in_graph(inner)?;
            }
        }
        Ok(())
    }
}

/// W and R of a recurrent node.
fn weights(node: &NodeProto) -> &[String] {
    node.input.get(1..3).unwrap_or_default()
}

/// The names of weights of all recurrent nodes of a graph and of those within.
fn weights_of(graph: &GraphProto, wanted: &mut HashSet<String>) {
    for node in &graph.node {
        let is_float = matches!(node.op_type.as_str(), "LSTM" | "GRU" | "RNN");
        if is_float {
            wanted.extend(weights(node).iter().cloned());
        }
        names::subgraphs(node).for_each(|inner| weights_of(inner, wanted));
    }
}

/// The values of a tensor of float32 with three axes.
fn values(tensor: &TensorProto) -> Option<Vec<f32>> {
    if tensor.data_type != FLOAT || tensor.dims.len() != 3 {
        return None;
    }
    let values: Vec<f32> = if tensor.raw_data.is_empty() {
        tensor.float_data.clone()
    } else {
        let (values, _) = tensor.raw_data.as_chunks::<4>();
        values
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect()
    };
    let mut sizes = (tensor.dims.iter()).map(|&size| usize::try_from(size).ok());
    let count = sizes.try_fold(1usize, |product, size| product.checked_mul(size?));
    (count == Some(values.len()) && !values.is_empty()).then_some(values)
}

/// Adds the constants of a weight, and returns the nodes that make it of them.
fn store(
    tensor: &TensorProto,
    values: &[f32],
    constants: &mut Vec<TensorProto>,
) -> Result<Vec<NodeProto>, NetworkError> {
    let name = &tensor.name;
    let size = |axis: usize| tensor.dims[axis] as usize;
    let (directions, rows, cols) = (size(0), size(1), size(2));
    let mut parts = Vec::new();
    let mut nodes = Vec::new();
    for (direction, values) in values.chunks(rows * cols).enumerate() {
        let failed = |why: ModelError| refused(format!("weights {name:?}: {why}"));
        let matrix = Matrix::new(rows, cols, values.to_vec()).map_err(failed)?;
        let matrix = matrix.into_precision(Precision::Int8).map_err(failed)?;
        let suffix = match directions {
            1 => String::new(),
            _ => format!("_{direction}"),
        };
        let (int8, scale) = (
            format!("{name}_int8{suffix}"),
            format!("{name}_scale{suffix}"),
        );
        let integers = (0..rows).flat_map(|row| matrix.int8_row(row));
        let integers: Vec<i8> = integers.copied().collect();
        constants.push(Tensor::new(&[1, rows, cols], integers)?.to_proto(&int8));
        constants.push(Tensor::new(&[rows], matrix.scales().to_vec())?.to_proto(&scale));
        let part = match directions {
            1 => name.clone(),
            _ => format!("{name}_widened{suffix}"),
        };
        nodes.push(NodeProto {
            name: format!("{part}_dequantize"),
            op_type: "DequantizeLinear".into(),
            input: vec![int8, scale],
            output: vec![part.clone()],
            attribute: vec![axis(1)],
            ..NodeProto::default()
        });
        parts.push(part);
    }
    if directions > 1 {
        nodes.push(NodeProto {
            name: format!("{name}_concat"),
            op_type: "Concat".into(),
            input: parts,
            output: vec![name.clone()],
            attribute: vec![axis(0)],
            ..NodeProto::default()
        });
    }
    Ok(nodes)
}

fn axis(axis: i64) -> AttributeProto {
    AttributeProto {
        name: "axis".into(),
        r#type: AttributeType::Int as i32,
        i: axis,
        ..AttributeProto::default()
    }
}
