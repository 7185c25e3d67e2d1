//! The recurrent core of a file as a file of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use gatestream::execute::team::catch_panic_silently;
use gatestream::model::Model;
use prost::Message;
use tract_onnx::pb::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};

use crate::control_flow::cone;
use crate::evaluation::Evaluation;
use crate::executors::Executors;
use crate::inspect::{Origin, Parts};
use crate::network::{PANICKED, port};
use crate::recurrent::{RegionOptions, is_recurrent};
use crate::source::attributes::{integer, is_standard};
use crate::source::constants::Constants;
use crate::source::flat::flatten;
use crate::source::{self, graph, of_any_size};
use crate::threads::Threads;
use crate::{Data, ElementType, NetworkError, NetworkPort, Tensor};

/// The recurrent core of a file.
///
/// ```no_run
/// let core = gatestream_network::Core::cut("model.onnx", None)?;
/// std::fs::write("core.onnx", &core.bytes)?;
/// let model = gatestream::Model::open("core.onnx")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Core {
    /// The ONNX file, with all constants inside.
    pub bytes: Vec<u8>,
    /// The names of its recurrent nodes.
    pub nodes: Vec<String>,
    /// The names of the recurrent nodes that it does not have.
    pub others: Vec<String>,
    /// The inputs, which have the names of the values in the whole model.
    pub inputs: Vec<NetworkPort>,
    /// The outputs, which have the names of the values in the whole model.
    pub outputs: Vec<NetworkPort>,
    /// The model of the file.
    pub model: Model,
}

/// Operators between the layers of a stack: those that the library's loader reads.
const BETWEEN: [&str; 14] = [
    "Cast",
    "Concat",
    "Constant",
    "Dropout",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Shape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Longest chain of operators between two layers.
const MAX_BETWEEN: usize = 1000;

impl Core {
    /// Cuts the core out of a file: the stack with the most weights, or the node with this name
    /// alone. Initial states that are zero are omitted; other states and lengths are inputs of the
    /// core. Nodes of branches and loop bodies have the names of
    /// [`Inspection`](crate::Inspection).
    ///
    /// # Errors
    /// [`NetworkError`]: the file cannot be read; [`NetworkError::Cut`]: there is no such node, or
    /// it cannot be cut out.
    pub fn cut(path: impl AsRef<Path>, node: Option<&str>) -> Result<Core, NetworkError> {
        let model = source::open(path.as_ref())?;
        let flat = flatten(graph(&model));
        let parts = Parts::new(&flat.graph);
        let threads = Arc::new(Threads::new(1));
        let executors = Executors::new(
            threads,
            RegionOptions::default(),
            Constants::default(),
            true,
        );
        let cutting = Cutting {
            evaluation: Evaluation {
                ir_version: model.ir_version,
                opset_import: &model.opset_import,
                executors: &executors,
            },
            graph: &flat.graph,
            parts,
        };
        let recurrent = flat.graph.node.iter();
        let recurrent: Vec<&NodeProto> = recurrent.filter(|node| is_recurrent(node)).collect();
        if recurrent.is_empty() {
            let why = "the model has no LSTM, GRU, RNN or DynamicQuantizeLSTM node";
            return Err(refused(why));
        }
        if let Some(name) = node {
            let found = recurrent.iter().find(|node| node.name == name);
            let found = found.ok_or_else(|| {
                let names: Vec<&str> = recurrent.iter().map(|node| node.name.as_str()).collect();
                refused(format!(
                    "it has no recurrent node {name:?}; use one of {}",
                    names.join(", ")
                ))
            })?;
            return cutting.core(&[*found], &recurrent);
        }
        // The stack with the most weights, else its nodes by themselves.
        let mut stacks = cutting.stacks(&recurrent);
        let weights = |stack: &Vec<&NodeProto>| stack.iter().map(|one| cutting.weights(one)).sum();
        stacks.sort_by_cached_key(|stack| std::cmp::Reverse::<usize>(weights(stack)));
        let mut first = None;
        for stack in &stacks {
            let tries = [stack.as_slice(), &stack[..1]];
            for nodes in &tries[..1 + usize::from(stack.len() > 1)] {
                match cutting.core(nodes, &recurrent) {
                    Ok(core) => return Ok(core),
                    Err(why) => first = first.or(Some(why)),
                }
            }
        }
        Err(first.unwrap_or_else(|| refused("it has no stack")))
    }
}

fn refused(why: impl Into<String>) -> NetworkError {
    NetworkError::Cut { why: why.into() }
}

struct Cutting<'a> {
    evaluation: Evaluation<'a>,
    graph: &'a GraphProto,
    parts: Parts<'a>,
}

/// A core that is being collected.
#[derive(Default)]
struct Collected {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    inputs: Vec<ValueInfoProto>,
    /// Names that are inputs, constants, or given by nodes.
    known: HashSet<String>,
}

impl<'a> Cutting<'a> {
    /// Recurrent nodes that follow each other with nothing but shape operators between them.
    fn stacks(&self, recurrent: &[&'a NodeProto]) -> Vec<Vec<&'a NodeProto>> {
        let mut stack_of: HashMap<&str, usize> = HashMap::new();
        let mut stacks: Vec<Vec<&NodeProto>> = Vec::new();
        for node in recurrent {
            let before = self.layers_before(node);
            let stack = match before.first().and_then(|name| stack_of.get(name.as_str())) {
                Some(&stack) => stack,
                None => {
                    stacks.push(Vec::new());
                    stacks.len() - 1
                }
            };
            stacks[stack].push(node);
            stack_of.insert(&node.name, stack);
        }
        stacks
    }

    /// The recurrent nodes that give the input of this one.
    fn layers_before(&self, node: &NodeProto) -> Vec<String> {
        let mut open: VecDeque<&str> = node.input.first().map(String::as_str).into_iter().collect();
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        while let Some(name) = open.pop_front() {
            let Some(producer) = self.parts.producer(name) else {
                continue;
            };
            if !seen.insert(producer.name.as_str()) {
                continue;
            }
            if is_recurrent(producer) {
                found.push(producer.name.clone());
            } else if BETWEEN.contains(&producer.op_type.as_str()) {
                open.extend(producer.input.iter().map(String::as_str));
            }
        }
        found
    }

    /// The number of weights of a node.
    fn weights(&self, node: &NodeProto) -> usize {
        let inputs = node.input.iter().skip(1).take(2);
        let sizes = inputs.map(|name| self.parts.elements(name));
        sizes.sum()
    }

    /// The core of these nodes.
    fn core(&self, stack: &[&NodeProto], recurrent: &[&NodeProto]) -> Result<Core, NetworkError> {
        let mut collected = Collected::default();
        for (index, node) in stack.iter().enumerate() {
            self.add_layer(&mut collected, node, index == 0)?;
        }
        let names: HashSet<&str> = collected
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        let is_read = |name: &str| {
            let readers = self.parts.readers(name);
            let is_output = self.graph.output.iter().any(|output| output.name == name);
            is_output
                || readers
                    .iter()
                    .any(|reader| !names.contains(reader.name.as_str()))
        };
        let of_stack = stack.iter().flat_map(|node| {
            let outputs = node.output.iter().enumerate();
            outputs.filter(|(_, name)| !name.is_empty() && is_read(name))
        });
        let outputs = of_stack.map(|(index, name)| {
            of_any_size(name, ElementType::F32, if index == 0 { 4 } else { 3 })
        });
        let mut outputs: Vec<ValueInfoProto> = outputs.collect();
        // Outputs that only a branch gives.
        if outputs.is_empty() {
            let last = stack.last().and_then(|node| node.output.first());
            outputs.extend(last.map(|name| of_any_size(name, ElementType::F32, 4)));
        }
        let mut sets: Vec<OperatorSetIdProto> = Vec::new();
        for set in self.evaluation.opset_import {
            let mut set = set.clone();
            if is_standard(&set.domain) {
                set.domain.clear();
                // The operators of a core have not changed since.
                set.version = set.version.min(22);
            }
            // Some exporters write one twice.
            if sets.iter().all(|other| other.domain != set.domain) {
                sets.push(set);
            }
        }
        let (inputs, nodes) = (collected.inputs, stack.iter().map(|node| node.name.clone()));
        let nodes: Vec<String> = nodes.collect();
        let others = recurrent.iter().map(|node| node.name.clone());
        let others = others.filter(|name| !nodes.contains(name)).collect();
        let ports = |infos: &[ValueInfoProto]| infos.iter().map(port).collect();
        let (input_ports, output_ports) = (ports(&inputs), ports(&outputs));
        let file = ModelProto {
            ir_version: 8,
            producer_name: "gatestream".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            opset_import: sets,
            graph: Some(GraphProto {
                name: "core".into(),
                node: collected.nodes,
                initializer: collected.constants,
                input: inputs,
                output: outputs,
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        let bytes = file.encode_to_vec();
        let model = Model::from_onnx(&bytes);
        let model = model.map_err(|why| refused(format!("{}: {why}", nodes.join(", "))))?;
        Ok(Core {
            bytes,
            nodes,
            others,
            inputs: input_ports,
            outputs: output_ports,
            model,
        })
    }

    /// Adds a recurrent node, and the nodes between it and those before.
    fn add_layer(
        &self,
        collected: &mut Collected,
        node: &NodeProto,
        is_first: bool,
    ) -> Result<(), NetworkError> {
        let is_batch_major = integer(node, "layout", 0) == 1;
        let x = node.input.first().map_or("", String::as_str);
        if is_first {
            let sizes = if is_batch_major {
                ["batch", "steps", "input"]
            } else {
                ["steps", "batch", "input"]
            };
            collected.add_input(source::input_of(x, ElementType::F32, &sizes));
        } else {
            self.add_between(collected, x, 0)?;
        }
        let mut node = node.clone();
        for (slot, name) in node.input.iter_mut().enumerate().skip(1) {
            match (slot, self.parts.origin(name)) {
                (_, Origin::Absent) => {}
                (5 | 6, Origin::Zeros) => name.clear(),
                // Constant lengths and states are inputs, too: a model has none of its own.
                (4, _) => {
                    let lengths = source::input_of(name, ElementType::I32, &["batch"]);
                    collected.add_input(lengths);
                }
                (5 | 6, _) => {
                    let sizes = if is_batch_major {
                        ["batch", "directions", "hidden"]
                    } else {
                        ["directions", "batch", "hidden"]
                    };
                    collected.add_input(source::input_of(name, ElementType::F32, &sizes));
                }
                (_, Origin::Constant | Origin::Zeros) => self.add_constant(collected, name)?,
                _ => {
                    return Err(refused(format!(
                        "the weights {name:?} of node {:?} are computed from inputs",
                        node.name
                    )));
                }
            }
        }
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        collected.add_node(node);
        Ok(())
    }

    /// Adds the nodes that compute a value from the layers before.
    fn add_between(
        &self,
        collected: &mut Collected,
        name: &str,
        depth: usize,
    ) -> Result<(), NetworkError> {
        if depth > MAX_BETWEEN {
            return Err(refused(format!(
                "more than {MAX_BETWEEN} operators in a row are between two layers"
            )));
        }
        if name.is_empty() || collected.known.contains(name) {
            return Ok(());
        }
        if self.parts.is_constant(name) {
            return self.add_constant(collected, name);
        }
        let producer = self.parts.producer(name);
        let producer = producer.filter(|node| BETWEEN.contains(&node.op_type.as_str()));
        let Some(node) = producer else {
            return Err(refused(format!(
                "{name:?} between two layers depends on other parts of the model"
            )));
        };
        for input in &node.input {
            self.add_between(collected, input, depth + 1)?;
        }
        collected.add_node(node.clone());
        Ok(())
    }

    /// Adds a value that depends on constants alone.
    fn add_constant(&self, collected: &mut Collected, name: &str) -> Result<(), NetworkError> {
        if !collected.known.insert(name.to_owned()) {
            return Ok(());
        }
        let value = catch_panic_silently(|| self.evaluation.value(cone(self.graph, &[name])));
        let panicked = |_| Err(refused(format!("the constant {name:?}: {PANICKED}")));
        let value = value.unwrap_or_else(panicked)?;
        let value = value.ok_or_else(|| refused(format!("the constant {name:?} has no value")))?;
        let value = match value.data() {
            Data::F64(all) => {
                let all: Vec<f32> = all.iter().map(|&one| one as f32).collect();
                Tensor::new(value.shape(), all)?
            }
            Data::F16(all) => {
                let all: Vec<f32> = all.iter().map(|one| one.to_f32()).collect();
                Tensor::new(value.shape(), all)?
            }
            _ => value,
        };
        collected.constants.push(value.to_proto(name));
        Ok(())
    }
}

impl Collected {
    fn add_input(&mut self, input: ValueInfoProto) {
        if self.known.insert(input.name.clone()) {
            self.inputs.push(input);
        }
    }

    fn add_node(&mut self, node: NodeProto) {
        let outputs = node.output.iter().filter(|name| !name.is_empty());
        self.known.extend(outputs.cloned());
        self.nodes.push(node);
    }
}
