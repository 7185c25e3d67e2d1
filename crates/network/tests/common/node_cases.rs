//! ONNX's own cases of single nodes, as its package stores them: `CASE/model.onnx` and
//! `CASE/test_data_set_N/{input,output}_K.pb`.

#![allow(dead_code)] // Each program needs some of it.

use std::path::{Path, PathBuf};

use gatestream_network::{Data, ElementType, Network, NetworkError, NetworkOptions, Tensor};
use half::f16;
use prost::Message;
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto, ValueInfoProto, type_proto};

/// The tolerances of the runner of the package `onnx`.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

/// Two units in the last place of float16.
const RELATIVE_F16: f64 = 1.0 / 512.0;

/// Of the largest value of an output: sums of f32 whose terms cancel have such a rounding error.
const OF_LARGEST: f64 = 1e-6;

/// A case: a model, and its sets of inputs and outputs.
pub struct NodeCase {
    pub model: ModelProto,
    pub sets: Vec<Set>,
}

/// Inputs and the expected outputs, in the order of the model; `None`: no tensor of a type of ours.
pub struct Set {
    pub inputs: Vec<Option<Tensor>>,
    pub outputs: Vec<Option<Tensor>>,
}

/// Which inputs of a case become constants of its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// None, as the case is stored.
    Stored,
    /// All but the first.
    ConstantRest,
    /// The first.
    ConstantFirst,
}

/// The forms in which a case is run.
pub const FORMS: [Form; 3] = [Form::Stored, Form::ConstantRest, Form::ConstantFirst];

/// The result of a case in a form.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    /// A wrong number, shape or type.
    Differs(String),
    /// A typed error.
    Refused(String),
    /// A panic that became an error.
    Panics(String),
}

impl Outcome {
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Differs(_) => "differs",
            Outcome::Refused(_) => "refused",
            Outcome::Panics(_) => "panics",
        }
    }

    pub fn detail(&self) -> &str {
        match self {
            Outcome::Passed => "",
            Outcome::Differs(why) | Outcome::Refused(why) | Outcome::Panics(why) => why,
        }
    }
}

impl NodeCase {
    /// Reads a case from its folder.
    pub fn open(folder: &Path) -> NodeCase {
        let model = std::fs::read(folder.join("model.onnx")).unwrap();
        let model = ModelProto::decode(&*model).unwrap();
        let graph = model.graph.as_ref().unwrap();
        let is_tensor = |info: &ValueInfoProto| elem_type(info) != 0;
        let inputs: Vec<bool> = graph.input.iter().map(is_tensor).collect();
        let outputs: Vec<bool> = graph.output.iter().map(is_tensor).collect();
        let sets = (0..).map(|index| folder.join(format!("test_data_set_{index}")));
        let sets = sets.take_while(|set| set.is_dir());
        let sets = sets.map(|set| Set {
            inputs: values(&set, "input", &inputs),
            outputs: values(&set, "output", &outputs),
        });
        NodeCase {
            sets: sets.collect(),
            model,
        }
    }

    fn graph(&self) -> &GraphProto {
        self.model.graph.as_ref().unwrap()
    }

    /// Whether a form differs from those before.
    pub fn has(&self, form: Form) -> bool {
        let inputs = self.graph().input.len();
        match form {
            Form::Stored => true,
            Form::ConstantRest | Form::ConstantFirst => inputs > 1,
        }
    }

    /// Runs it in a form: the first outcome other than [`Outcome::Passed`].
    pub fn run(&self, form: Form, options: NetworkOptions) -> Outcome {
        let outcomes = self.sets.iter().map(|set| self.run_set(set, form, options));
        let mut failed = outcomes.filter(|outcome| *outcome != Outcome::Passed);
        failed.next().unwrap_or(Outcome::Passed)
    }

    fn run_set(&self, set: &Set, form: Form, options: NetworkOptions) -> Outcome {
        let refused = |why: NetworkError| {
            let why = why.to_string();
            if why.contains("it contradicts itself") {
                Outcome::Panics(why)
            } else {
                Outcome::Refused(why)
            }
        };
        let is_constant = |index: usize| match form {
            Form::Stored => false,
            Form::ConstantRest => index > 0,
            Form::ConstantFirst => index == 0,
        };
        let mut model = self.model.clone();
        let graph = model.graph.as_mut().unwrap();
        let mut given = Vec::new();
        for (index, (port, value)) in self.graph().input.iter().zip(&set.inputs).enumerate() {
            // Old packages store bfloat16 as uint16.
            let is_declared = |value: &&Tensor| elem_type(port) == proto("", value).data_type;
            let Some(value) = value.as_ref().filter(is_declared) else {
                return Outcome::Refused(format!("input {:?} is of another type", port.name));
            };
            if is_constant(index) {
                graph.input.retain(|input| input.name != port.name);
                graph.initializer.push(proto(&port.name, value));
            } else {
                given.push((port.name.as_str(), value));
            }
        }
        let network = match Network::from_bytes(&model.encode_to_vec(), options) {
            Ok(network) => network,
            Err(why) => return refused(why),
        };
        let found = match network.run(&given) {
            Ok(found) => found,
            Err(why) => return refused(why),
        };
        for (found, expected) in found.iter().zip(&set.outputs) {
            let Some(expected) = expected else {
                return Outcome::Refused(format!("output {:?} is of another type", found.name));
            };
            if let Some(why) = difference(&found.tensor, expected) {
                return Outcome::Differs(format!("{:?}: {why}", found.name));
            }
        }
        Outcome::Passed
    }
}

/// ONNX's number of the type of the elements; 0 of what is no tensor.
fn elem_type(info: &ValueInfoProto) -> i32 {
    let kind = info.r#type.as_ref().and_then(|of| of.value.as_ref());
    kind.map_or(0, |type_proto::Value::TensorType(tensor)| tensor.elem_type)
}

fn values(set: &Path, kind: &str, are_tensors: &[bool]) -> Vec<Option<Tensor>> {
    let files = are_tensors.iter().enumerate();
    let values = files.map(|(index, is_tensor)| {
        let file: PathBuf = set.join(format!("{kind}_{index}.pb"));
        let bytes = std::fs::read(file).ok().filter(|_| *is_tensor)?;
        tensor(&TensorProto::decode(&*bytes).ok()?)
    });
    values.collect()
}

fn tensor(proto: &TensorProto) -> Option<Tensor> {
    let shape: Vec<usize> = proto.dims.iter().map(|&size| size as usize).collect();
    let raw = &proto.raw_data;
    let count: usize = shape.iter().product();
    macro_rules! elements {
        ($type:ty, $stored:expr) => {{
            const SIZE: usize = size_of::<$type>();
            if raw.is_empty() && count > 0 {
                $stored.collect::<Vec<$type>>().into()
            } else {
                let chunks = raw.chunks_exact(SIZE);
                let values = chunks.map(|bytes| <$type>::from_le_bytes(bytes.try_into().unwrap()));
                values.collect::<Vec<$type>>().into()
            }
        }};
    }
    let small = || proto.int32_data.iter();
    let data: Data = match proto.data_type {
        1 => elements!(f32, proto.float_data.iter().copied()),
        2 => elements!(u8, small().map(|&v| v as u8)),
        3 => elements!(i8, small().map(|&v| v as i8)),
        4 => elements!(u16, small().map(|&v| v as u16)),
        5 => elements!(i16, small().map(|&v| v as i16)),
        6 => elements!(i32, small().copied()),
        7 => elements!(i64, proto.int64_data.iter().copied()),
        9 => {
            let bytes: Data = elements!(u8, small().map(|&v| v as u8));
            let Data::U8(bytes) = bytes else { return None };
            bytes.iter().map(|&v| v != 0).collect::<Vec<bool>>().into()
        }
        10 => elements!(f16, small().map(|&v| f16::from_bits(v as u16))),
        11 => elements!(f64, proto.double_data.iter().copied()),
        12 => elements!(u32, proto.uint64_data.iter().map(|&v| v as u32)),
        13 => elements!(u64, proto.uint64_data.iter().copied()),
        _ => return None,
    };
    Tensor::new(&shape, data).ok()
}

fn proto(name: &str, tensor: &Tensor) -> TensorProto {
    macro_rules! bytes {
        ($values:expr) => {
            $values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
    }
    let (data_type, raw_data): (i32, Vec<u8>) = match tensor.data() {
        Data::F32(values) => (1, bytes!(values)),
        Data::U8(values) => (2, bytes!(values)),
        Data::I8(values) => (3, bytes!(values)),
        Data::U16(values) => (4, bytes!(values)),
        Data::I16(values) => (5, bytes!(values)),
        Data::I32(values) => (6, bytes!(values)),
        Data::I64(values) => (7, bytes!(values)),
        Data::Bool(values) => (9, values.iter().map(|&value| u8::from(value)).collect()),
        Data::F16(values) => (10, bytes!(values)),
        Data::F64(values) => (11, bytes!(values)),
        Data::U32(values) => (12, bytes!(values)),
        Data::U64(values) => (13, bytes!(values)),
        other => panic!("elements of {}", other.element_type()),
    };
    TensorProto {
        name: name.into(),
        dims: tensor.shape().iter().map(|&size| size as i64).collect(),
        data_type,
        raw_data,
        ..TensorProto::default()
    }
}

/// How a value differs from the expected one, if it does.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    let kinds = (found.data().element_type(), expected.data().element_type());
    if kinds.0 != kinds.1 {
        return Some(format!("its type is {}, not {}", kinds.0, kinds.1));
    }
    if found.shape() != expected.shape() {
        let shapes = (found.shape(), expected.shape());
        return Some(format!("its shape is {:?}, not {:?}", shapes.0, shapes.1));
    }
    let relative = match kinds.1 {
        ElementType::F16 => RELATIVE_F16,
        _ => RELATIVE,
    };
    macro_rules! floats {
        ($($variant:ident),*) => {
            match (found.data(), expected.data()) {
                $((Data::$variant(found), Data::$variant(expected)) => {
                    let sizes = expected.iter().map(|value| f64::from(*value).abs());
                    let largest = sizes.filter(|size| size.is_finite()).fold(0.0, f64::max);
                    let pairs = found.iter().zip(expected);
                    let mut apart = pairs
                        .map(|(a, b)| (f64::from(*a), f64::from(*b)))
                        .filter(|(a, b)| !is_close(*a, *b, relative, largest));
                    apart.next().map(|(a, b)| format!("it has {a}, not {b}"))
                })*
                (found, expected) => {
                    (found != expected).then(|| "it has other integers".to_owned())
                }
            }
        };
    }
    floats!(F32, F64, F16)
}

fn is_close(found: f64, expected: f64, relative: f64, largest: f64) -> bool {
    let is_same = found == expected || (found.is_nan() && expected.is_nan());
    let allowed = ABSOLUTE + relative * expected.abs() + OF_LARGEST * largest;
    is_same || (found - expected).abs() <= allowed
}
