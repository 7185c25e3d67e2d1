//! The contents of an ONNX file, whether it runs or not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use crate::network::port;
use crate::operators::{is_supported, qualified};
use crate::recurrent::is_recurrent;
use crate::source::attributes::attribute;
use crate::source::flat::{Holder, flatten};
use crate::source::{self, graph};
use crate::{NetworkError, NetworkPort};

/// The contents of an ONNX file, whether it runs or not.
///
/// ```no_run
/// let inspection = gatestream_network::Inspection::open("model.onnx")?;
/// for node in &inspection.recurrent {
///     println!("{} {:?}: {:?} units", node.operator, node.name, node.hidden_size);
/// }
/// # Ok::<(), gatestream_network::NetworkError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The program that wrote the file, with its version.
    pub producer: String,
    /// The version of the ONNX operator set.
    pub opset: i64,
    /// The inputs that a run needs.
    pub inputs: Vec<NetworkPort>,
    /// The outputs.
    pub outputs: Vec<NetworkPort>,
    /// Number of nodes, those of branches, loop bodies and functions included.
    pub nodes: usize,
    /// Number of elements of all constants.
    pub constants: usize,
    /// The recurrent nodes, in the order of the file.
    pub recurrent: Vec<InspectedNode>,
    /// The other operators, with the number of their nodes.
    pub operators: BTreeMap<String, usize>,
    /// Those of them that are not supported.
    pub unsupported: Vec<String>,
}

/// A recurrent node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedNode {
    /// Its name. A node of a branch or body has the name of the `If`, `Loop` or `Scan` as a prefix.
    pub name: String,
    /// LSTM, GRU, RNN or DynamicQuantizeLSTM.
    pub operator: String,
    /// forward, reverse or bidirectional.
    pub direction: String,
    /// Features of a step, if the file tells.
    pub input_size: Option<usize>,
    /// Units of each direction, if the file tells.
    pub hidden_size: Option<usize>,
    /// The other attributes that are set, as name and value.
    pub attributes: Vec<(String, String)>,
    /// The lengths of the sequences.
    pub lengths: Origin,
    /// The initial hidden state.
    pub initial_h: Origin,
    /// The initial cell state.
    pub initial_c: Origin,
    /// The weights of the inputs.
    pub weights: Origin,
    /// The operator and the node that give its input; `None` if it is an input of the graph.
    pub before: Option<NodeName>,
    /// The nodes that read its outputs.
    pub after: Vec<NodeName>,
    /// The node whose branch or body holds it.
    pub within: Option<NodeName>,
}

/// A node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// Its name.
    pub name: String,
    /// Its operator.
    pub operator: String,
}

/// The origin of an input of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The node does not have the input.
    Absent,
    /// Zeros, of a size that may depend on the inputs.
    Zeros,
    /// Values of the file.
    Constant,
    /// The input of the graph with this name.
    Input(String),
    /// The node that computes it.
    Computed(NodeName),
}

impl Inspection {
    /// Reads a file. External data is not read.
    ///
    /// # Errors
    /// [`NetworkError`]: the file cannot be read, or is no ONNX model.
    pub fn open(path: impl AsRef<Path>) -> Result<Inspection, NetworkError> {
        let model = source::describe(path.as_ref())?;
        let flat = flatten(graph(&model));
        let parts = Parts::new(&flat.graph);
        let mut opsets = source::opsets(&model.opset_import);
        let mut inspection = Inspection {
            producer: format!("{} {}", model.producer_name, model.producer_version)
                .trim()
                .to_owned(),
            opset: opsets.next().unwrap_or_default(),
            inputs: source::inputs_of(graph(&model)).map(port).collect(),
            outputs: graph(&model).output.iter().map(port).collect(),
            nodes: flat.graph.node.len(),
            constants: flat.graph.initializer.iter().map(elements).sum(),
            recurrent: Vec::new(),
            operators: BTreeMap::new(),
            unsupported: Vec::new(),
        };
        for node in &flat.graph.node {
            if is_recurrent(node) {
                let holder = flat.holders.get(&node.name);
                inspection.recurrent.push(parts.inspect(node, holder));
            } else {
                *inspection.operators.entry(qualified(node)).or_default() += 1
            }
        }
        // Branches and loops may be decided once the shapes are known.
        let others = flat.graph.node.iter().filter(|node| node.op_type != "Loop");
        let missing = others.filter(|node| !is_supported(&node.domain, &node.op_type));
        let missing: BTreeSet<String> = missing.map(qualified).collect();
        inspection.unsupported = missing.into_iter().collect();
        Ok(inspection)
    }
}

fn elements(tensor: &TensorProto) -> usize {
    let sizes = tensor
        .dims
        .iter()
        .map(|&size| usize::try_from(size).unwrap_or(0));
    sizes.fold(1, usize::saturating_mul)
}

/// The producers and readers of the values of a flat graph.
pub(crate) struct Parts<'a> {
    producers: HashMap<&'a str, &'a NodeProto>,
    readers: HashMap<&'a str, Vec<&'a NodeProto>>,
    constants: HashMap<&'a str, &'a TensorProto>,
}

impl<'a> Parts<'a> {
    pub fn new(graph: &'a GraphProto) -> Parts<'a> {
        let mut parts = Parts {
            producers: HashMap::new(),
            readers: HashMap::new(),
            constants: HashMap::new(),
        };
        for node in &graph.node {
            let outputs = node.output.iter().filter(|name| !name.is_empty());
            parts
                .producers
                .extend(outputs.map(|name| (name.as_str(), node)));
            for name in node.input.iter().filter(|name| !name.is_empty()) {
                parts.readers.entry(name).or_default().push(node);
            }
        }
        let constants = graph.initializer.iter();
        parts
            .constants
            .extend(constants.map(|tensor| (tensor.name.as_str(), tensor)));
        parts
    }

    /// The origin of a value.
    pub fn origin(&self, name: &str) -> Origin {
        if name.is_empty() {
            return Origin::Absent;
        }
        if self.is_zeros(name) {
            return Origin::Zeros;
        }
        if self.is_constant(name) {
            return Origin::Constant;
        }
        match self.producers.get(name) {
            Some(node) => Origin::Computed(name_of(node)),
            None => Origin::Input(name.to_owned()),
        }
    }

    /// Whether a value depends on constants alone.
    pub fn is_constant(&self, name: &str) -> bool {
        self.all(name, |name| match self.producers.get(name) {
            None => Found::Leaf(self.constants.contains_key(name)),
            Some(node) => Found::Of(node.input.iter().map(String::as_str).collect()),
        })
    }

    /// Whether a value is zero everywhere, whatever its size.
    fn is_zeros(&self, name: &str) -> bool {
        self.all(name, |name| {
            let Some(node) = self.producers.get(name) else {
                let constant = self.constants.get(name);
                return Found::Leaf(constant.is_some_and(|tensor| is_zero_tensor(tensor)));
            };
            let data = |count: usize| {
                let inputs = node.input.iter().take(count).map(String::as_str);
                Found::Of(inputs.collect())
            };
            match node.op_type.as_str() {
                "ConstantOfShape" => {
                    let value = attribute(node, "value").and_then(|value| value.t.as_ref());
                    Found::Leaf(value.is_none_or(is_zero_tensor))
                }
                "Constant" => {
                    let value = attribute(node, "value").and_then(|value| value.t.as_ref());
                    Found::Leaf(value.is_some_and(is_zero_tensor))
                }
                "Concat" => data(usize::MAX),
                "Expand" | "Reshape" | "Transpose" | "Squeeze" | "Unsqueeze" | "Slice"
                | "Split" | "Identity" | "Cast" | "Gather" | "Tile" | "Flatten" => data(1),
                _ => Found::Leaf(false),
            }
        })
    }

    /// Whether all leaves hold that a value depends on.
    fn all<'n>(&self, name: &'n str, find: impl Fn(&'n str) -> Found<'n>) -> bool
    where
        'a: 'n,
    {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            if name.is_empty() || !seen.insert(name) {
                continue;
            }
            match find(name) {
                Found::Leaf(true) => {}
                Found::Leaf(false) => return false,
                Found::Of(inputs) => open.extend(inputs),
            }
        }
        true
    }

    fn inspect(&self, node: &NodeProto, holder: Option<&Holder>) -> InspectedNode {
        let input = |index: usize| node.input.get(index).map_or("", String::as_str);
        let is_quantised = node.op_type == "DynamicQuantizeLSTM";
        let hidden = attribute(node, "hidden_size").map(|hidden| hidden.i);
        let shape = |index: usize| self.constants.get(input(index)).map(|tensor| &tensor.dims);
        let size = |index: usize, axis: usize| {
            let size = shape(index)?.get(axis)?;
            usize::try_from(*size).ok()
        };
        let direction = attribute(node, "direction").map(|direction| text(&direction.s));
        let named = |name: &str| matches!(name, "hidden_size" | "direction");
        let others = node.attribute.iter().filter(|one| !named(&one.name));
        let read = node.output.iter().filter(|name| !name.is_empty());
        let readers = read.flat_map(|name| self.readers.get(name.as_str()).into_iter().flatten());
        InspectedNode {
            name: node.name.clone(),
            operator: node.op_type.clone(),
            direction: direction.unwrap_or_else(|| "forward".into()),
            input_size: size(1, if is_quantised { 1 } else { 2 }),
            hidden_size: hidden
                .and_then(|hidden| usize::try_from(hidden).ok())
                .or_else(|| size(2, if is_quantised { 1 } else { 2 })),
            attributes: others.map(|one| (one.name.clone(), value(one))).collect(),
            lengths: self.origin(input(4)),
            initial_h: self.origin(input(5)),
            initial_c: self.origin(input(6)),
            weights: self.origin(input(1)),
            before: self.producers.get(input(0)).map(|node| name_of(node)),
            after: readers.map(|node| name_of(node)).collect(),
            within: holder.map(|holder| NodeName {
                name: holder.name.clone(),
                operator: holder.operator.clone(),
            }),
        }
    }

    /// The node that gives a value.
    pub fn producer(&self, name: &str) -> Option<&'a NodeProto> {
        self.producers.get(name).copied()
    }

    /// The nodes that read a value.
    pub fn readers(&self, name: &str) -> &[&'a NodeProto] {
        self.readers.get(name).map_or(&[], Vec::as_slice)
    }

    /// Number of elements of a constant; 0 for other values.
    pub fn elements(&self, name: &str) -> usize {
        self.constants
            .get(name)
            .map_or(0, |tensor| elements(tensor))
    }
}

enum Found<'n> {
    Leaf(bool),
    Of(Vec<&'n str>),
}

fn name_of(node: &NodeProto) -> NodeName {
    NodeName {
        name: node.name.clone(),
        operator: node.op_type.clone(),
    }
}

fn is_zero_tensor(tensor: &TensorProto) -> bool {
    let is_inside = tensor.data_location.unwrap_or_default() == 0;
    is_inside
        && tensor.raw_data.iter().all(|&byte| byte == 0)
        && tensor.float_data.iter().all(|&value| value == 0.0)
        && tensor.double_data.iter().all(|&value| value == 0.0)
        && tensor.int32_data.iter().all(|&value| value == 0)
        && tensor.int64_data.iter().all(|&value| value == 0)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value of an attribute, as text.
fn value(attribute: &AttributeProto) -> String {
    let list = |all: Vec<String>| all.join(", ");
    match () {
        () if !attribute.strings.is_empty() => {
            list(attribute.strings.iter().map(|one| text(one)).collect())
        }
        () if !attribute.floats.is_empty() => {
            list(attribute.floats.iter().map(f32::to_string).collect())
        }
        () if !attribute.ints.is_empty() => {
            list(attribute.ints.iter().map(i64::to_string).collect())
        }
        () if !attribute.s.is_empty() => text(&attribute.s),
        () if attribute.f != 0.0 => attribute.f.to_string(),
        () => attribute.i.to_string(),
    }
}
