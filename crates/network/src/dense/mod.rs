//! Products with constant matrices, on the team of the recurrent regions.
//!
//! ```text
//! MatMul(x, W)                    gatestream.Dense(x, W)
//! Add(MatMul(x, W), b)            gatestream.Dense(x, W, b)
//! Gemm(x, W, b)                   gatestream.Dense(x, W, b)
//! ```
//!
//! `W` is a constant of the graph with two axes, `b` one with one axis. The library's dense layer
//! computes them: it uses the widest vectors of the CPU, and packs `W` once for all plans. A `W`
//! that stays in its file is an attribute instead of an input, and is packed from there.

mod operator;

use std::collections::HashMap;

use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

use crate::control_flow::readers;
use crate::source::attributes::integer;
use crate::source::constants::table_attribute;
use crate::source::is_plain_product;
use operator::DENSE;
pub(crate) use operator::{DenseLayers, register, while_parsing};

/// Fewest elements of a matrix: below, the call takes as long as the product.
const MIN_ELEMENTS: i64 = 4096;

/// Replaces such products of a graph, not those in bodies and branches.
pub(crate) fn rewrite(graph: &mut GraphProto) {
    let constants: HashMap<&str, &TensorProto> = (graph.initializer.iter())
        .filter(|tensor| tensor.data_type == 1)
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let readers = readers(graph);
    let nodes = graph.node.iter().enumerate();
    let products: HashMap<&str, usize> = nodes
        .filter(|(_, node)| is_product(node, &constants))
        .map(|(index, node)| (node.output[0].as_str(), index))
        .collect();
    // The sums that a product may take in: nothing else reads the product.
    let mut sums: HashMap<usize, (usize, String)> = HashMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        let ("Add", [a, b], [_]) = (node.op_type.as_str(), &*node.input, &*node.output) else {
            continue;
        };
        for (product, bias) in [(a, b), (b, a)] {
            if let Some(&at) = products.get(product.as_str())
                && readers.get(product.as_str()) == Some(&1)
                && graph.node[at].input.len() == 2
                && has_bias(&graph.node[at], bias, &constants)
            {
                sums.insert(at, (index, bias.clone()));
                break;
            }
        }
    }
    let products: Vec<usize> = products.into_values().collect();
    let mut removed = vec![false; graph.node.len()];
    for at in products {
        if let Some((sum, bias)) = sums.remove(&at) {
            removed[sum] = true;
            let output = graph.node[sum].output.clone();
            graph.node[at].output = output;
            graph.node[at].input.push(bias);
        }
        let node = &mut graph.node[at];
        if node.op_type == "MatMul" {
            node.attribute.clear();
        }
        if let Some(table) = table_attribute(constants[node.input[1].as_str()]) {
            node.attribute.push(table);
            node.input.remove(1);
        }
        node.op_type = DENSE.into();
    }
    let mut removed = removed.into_iter();
    graph.node.retain(|_| !removed.next().unwrap_or(false));
}

fn is_product(node: &NodeProto, constants: &HashMap<&str, &TensorProto>) -> bool {
    let ([x, w, rest @ ..], [_]) = (&*node.input, &*node.output) else {
        return false;
    };
    let is_matrix = constants.get(w.as_str()).is_some_and(|w| match *w.dims {
        [inputs, outputs] => inputs.saturating_mul(outputs) >= MIN_ELEMENTS,
        _ => false,
    });
    is_plain_product(node)
        && is_matrix
        && !constants.contains_key(x.as_str())
        && !x.is_empty()
        && rest.iter().all(|bias| has_bias(node, bias, constants))
}

/// Whether a value is a constant with one axis, for the outputs of a product.
fn has_bias(node: &NodeProto, bias: &str, constants: &HashMap<&str, &TensorProto>) -> bool {
    let is_transposed = integer(node, "transB", 0) != 0;
    let outputs = |w: &TensorProto| w.dims[usize::from(!is_transposed)];
    let (Some(w), Some(bias)) = (constants.get(node.input[1].as_str()), constants.get(bias)) else {
        return false;
    };
    bias.dims == [outputs(w)]
}
