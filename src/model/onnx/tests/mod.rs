//! Graphs built from protobuf messages: the loader gives them the meaning that ONNX defines, and
//! every refusal names the node or tensor and what is supported.

mod quantised;
mod recurrent_op;

use prost::Message;

use super::proto::*;
use crate::model::{Axis, Cell, LoadError, Merge, Model, ResetForm, Role};

const FLOAT: i32 = data_type::FLOAT;

fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: FLOAT,
        float_data: values.to_vec(),
        ..Default::default()
    }
}

/// Counts up from `first`, so that a misplaced value shows.
fn counted(name: &str, dims: &[i64], first: f32) -> TensorProto {
    let count: i64 = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| first + i as f32).collect();
    floats(name, dims, &values)
}

fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: data_type::INT64,
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

fn info(name: &str, element: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = dims
        .iter()
        .map(|d| match d.parse() {
            Ok(size) => DimensionProto {
                dim_value: Some(size),
                dim_param: String::new(),
            },
            Err(_) => DimensionProto {
                dim_value: None,
                dim_param: (*d).into(),
            },
        })
        .collect();
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: element,
                shape: Some(TensorShapeProto { dim }),
            }),
        }),
    }
}

fn result(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.into(),
        r#type: None,
    }
}

fn attribute(name: &str, kind: i32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: kind,
        ..Default::default()
    }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        i,
        ..attribute(name, attribute_type::INT)
    }
}

fn list(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        ints: ints.to_vec(),
        ..attribute(name, attribute_type::INTS)
    }
}

fn text(name: &str, s: &str) -> AttributeProto {
    AttributeProto {
        s: s.into(),
        ..attribute(name, attribute_type::STRING)
    }
}

fn texts(name: &str, all: &[&str]) -> AttributeProto {
    AttributeProto {
        strings: all.iter().map(|s| s.as_bytes().to_vec()).collect(),
        ..attribute(name, attribute_type::STRINGS)
    }
}

fn numbers(name: &str, all: &[f32]) -> AttributeProto {
    AttributeProto {
        floats: all.to_vec(),
        ..attribute(name, attribute_type::FLOATS)
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        name: format!("the_{}", op.to_lowercase()),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: outputs.iter().map(|s| (*s).into()).collect(),
        attribute,
        ..Default::default()
    }
}

fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 17,
        }],
        functions: vec![],
    }
}

const H: i64 = 2;
const E: i64 = 3;

/// One recurrent node with `directions`, from `x` to `Y` and `Y_h`.
fn one(op: &str, directions: i64) -> GraphProto {
    let gates = match op {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let way = ["forward", "bidirectional"][directions as usize - 1];
    GraphProto {
        node: vec![node(
            op,
            &["x", "W", "R", "B"],
            &["Y", "Y_h"],
            vec![text("direction", way), int("hidden_size", H)],
        )],
        initializer: vec![
            counted("W", &[directions, gates * H, E], 0.0),
            counted("R", &[directions, gates * H, H], 100.0),
            counted("B", &[directions, 2 * gates * H], 200.0),
        ],
        input: vec![info("x", FLOAT, &["T", "B", "3"])],
        output: vec![result("Y"), result("Y_h")],
        sparse_initializer: None,
    }
}

fn load(graph: GraphProto) -> Result<Model, LoadError> {
    Model::from_onnx(&model(graph).encode_to_vec())
}

/// The message that refuses a model, which must hold each of `parts`.
fn refused_model(model: ModelProto, parts: &[&str]) {
    let message = match Model::from_onnx(&model.encode_to_vec()) {
        Ok(_) => panic!("accepted, but should be refused with {parts:?}"),
        Err(error) => error.to_string(),
    };
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    assert!(!message.contains('\n'), "{message:?}");
}

fn refused(graph: GraphProto, parts: &[&str]) {
    refused_model(model(graph), parts);
}

/// `one`, changed.
fn changed(op: &str, directions: i64, change: impl FnOnce(&mut GraphProto)) -> GraphProto {
    let mut graph = one(op, directions);
    change(&mut graph);
    graph
}

/// `one`, with another first attribute (the direction stays forward).
fn with_attribute(op: &str, attribute: AttributeProto) -> GraphProto {
    changed(op, 1, |g| {
        g.node[0].attribute.retain(|a| a.name != attribute.name);
        g.node[0].attribute.push(attribute);
    })
}

/// A bidirectional LSTM whose `Y` goes through `nodes` to the only output, `out`.
fn behind(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> GraphProto {
    changed("LSTM", 2, |g| {
        g.node.extend(nodes);
        g.initializer.extend(constants);
        g.output = vec![result("out")];
    })
}

#[test]
fn lstm_gates_go_from_iofc_to_ifco() {
    let graph = changed("LSTM", 1, |g| {
        g.node[0].input.extend(["", "", "", "P"].map(String::from));
        g.initializer.push(counted("P", &[1, 3 * H], 300.0));
    });
    let model = load(graph).unwrap();
    let weights = model.layers()[0].directions()[0].weights();
    // Blocks of H = 2 rows; onnx rows i 0-1, o 2-3, f 4-5, c 6-7.
    let order = [0, 1, 4, 5, 6, 7, 2, 3];
    for (row, from) in order.into_iter().enumerate() {
        let first = (from * E) as f32;
        assert_eq!(
            weights.input.row(row)[..],
            [first, first + 1.0, first + 2.0]
        );
        let first = 100.0 + (from * H) as f32;
        assert_eq!(weights.recurrent.row(row)[..], [first, first + 1.0]);
        assert_eq!(weights.input_bias[row], 200.0 + from as f32);
        assert_eq!(weights.recurrent_bias[row], 208.0 + from as f32);
    }
    let peepholes = weights.peepholes.as_ref().unwrap();
    assert_eq!(peepholes.input, [300.0, 301.0]);
    assert_eq!(peepholes.output, [302.0, 303.0]);
    assert_eq!(peepholes.forget, [304.0, 305.0]);
}

#[test]
fn gru_gates_go_from_zrh_to_rzh() {
    let model = load(one("GRU", 2)).unwrap();
    for (d, direction) in model.layers()[0].directions().iter().enumerate() {
        let weights = direction.weights();
        let base = d as i64 * 3 * H;
        for (row, from) in [2, 3, 0, 1, 4, 5].into_iter().enumerate() {
            assert_eq!(weights.input.row(row)[0], ((base + from) * E) as f32);
            assert_eq!(
                weights.recurrent.row(row)[0],
                100.0 + ((base + from) * H) as f32
            );
            let bias = 200.0 + (2 * base + from) as f32;
            assert_eq!(weights.input_bias[row], bias);
            assert_eq!(weights.recurrent_bias[row], bias + 6.0);
        }
        let reset = ResetForm::Before;
        assert!(matches!(direction.cell(), Cell::Gru { reset: r, .. } if *r == reset));
    }
    assert!(model.layers()[0].directions()[1].is_reverse());
}

#[test]
fn default_biases_and_reset_form() {
    let graph = changed("GRU", 1, |g| {
        g.node[0].input.truncate(3);
        g.node[0].attribute.push(int("linear_before_reset", 1));
    });
    let model = load(graph).unwrap();
    let direction = &model.layers()[0].directions()[0];
    assert_eq!(direction.weights().input_bias, [0.0; 6]);
    assert_eq!(direction.weights().recurrent_bias, [0.0; 6]);
    let reset = ResetForm::After;
    assert!(matches!(direction.cell(), Cell::Gru { reset: r, .. } if *r == reset));
}

#[test]
fn sixteen_bit_weights_are_widened() {
    // 1.0, -2.0 and 0.5 repeated, in both formats.
    for (kind, bits) in [
        (data_type::FLOAT16, [0x3c00u16, 0xc000, 0x3800]),
        (data_type::BFLOAT16, [0x3f80, 0xc000, 0x3f00]),
    ] {
        for raw in [false, true] {
            let graph = changed("RNN", 1, |g| {
                let w = &mut g.initializer[0];
                let all: Vec<u16> = bits.repeat(2);
                w.data_type = kind;
                w.float_data.clear();
                if raw {
                    w.raw_data = Some(all.iter().flat_map(|b| b.to_le_bytes()).collect());
                } else {
                    w.int32_data = all.iter().map(|b| i32::from(*b)).collect();
                }
            });
            let model = load(graph).unwrap();
            let input = &model.layers()[0].directions()[0].weights().input;
            assert_eq!(input.data()[..], [1.0, -2.0, 0.5, 1.0, -2.0, 0.5]);
        }
    }
}

#[test]
fn accepts_unused_initializers_and_all_constants() {
    let constant = |attribute| node("Constant", &[], &["axes"], vec![attribute]);
    let tensor = AttributeProto {
        t: Some(Box::new(ints("", &[1]))),
        ..attribute("value", attribute_type::TENSOR)
    };
    for form in [tensor, list("value_ints", &[1])] {
        let graph = changed("LSTM", 1, |g| {
            g.initializer.push(TensorProto {
                data_type: 8,
                ..floats("unused", &[1 << 40], &[])
            });
            g.node.push(constant(form));
            g.node
                .push(node("Squeeze", &["Y", "axes"], &["out"], vec![]));
            g.output = vec![result("out")];
        });
        let model = load(graph).unwrap();
        let axes = &model.interface().outputs[0].axes;
        assert_eq!(*axes, [[Axis::Time], [Axis::Batch], [Axis::Feature]]);
    }
}

#[test]
fn axes_keep_their_meaning_between_layers() {
    use Axis::{Batch, Direction, Feature, Time};
    let transpose = |perm: &[i64]| node("Transpose", &["Y"], &["t"], vec![list("perm", perm)]);
    let reshape = || node("Reshape", &["t", "shape"], &["out"], vec![]);
    type Case<'a> = (&'a [i64], &'a [i64], &'a [&'a [Axis]]);
    let cases: [Case<'_>; 4] = [
        (
            &[0, 2, 1, 3],
            &[0, 0, -1],
            &[&[Time], &[Batch], &[Direction, Feature]],
        ),
        (
            &[0, 2, 3, 1],
            &[0, 0, -1],
            &[&[Time], &[Batch], &[Feature, Direction]],
        ),
        (
            &[2, 0, 1, 3],
            &[0, -1, 4],
            &[&[Batch], &[Time], &[Direction, Feature]],
        ),
        (
            &[0, 2, 1, 3],
            &[-1, 4],
            &[&[Time, Batch], &[Direction, Feature]],
        ),
    ];
    for (perm, shape, expected) in cases {
        let graph = behind(vec![transpose(perm), reshape()], vec![ints("shape", shape)]);
        let model = load(graph).unwrap();
        assert_eq!(
            model.interface().outputs[0].axes,
            expected,
            "{perm:?} {shape:?}"
        );
    }
}

#[test]
fn features_follow_directions_in_a_layer_input() {
    let stack = |perm: &[i64]| {
        let mut graph = behind(
            vec![
                node("Transpose", &["Y"], &["t"], vec![list("perm", perm)]),
                node("Reshape", &["t", "shape"], &["next"], vec![]),
                node("RNN", &["next", "W2", "R2"], &["out"], vec![]),
            ],
            vec![
                ints("shape", &[0, 0, -1]),
                counted("W2", &[1, H, 2 * H], 0.0),
                counted("R2", &[1, H, H], 0.0),
            ],
        );
        graph.node[0].output.truncate(1);
        graph
    };
    let model = load(stack(&[0, 2, 1, 3])).unwrap();
    assert_eq!(model.layers().len(), 2);
    refused(
        stack(&[0, 2, 3, 1]),
        &[
            "the_rnn",
            "[feature, direction]",
            "it must have axes",
            "[direction, feature]",
        ],
    );
    refused(
        stack(&[2, 0, 1, 3]),
        &[
            "the_rnn",
            "[batch] [time]",
            "it must have axes [time] [batch]",
        ],
    );
}

#[test]
fn directions_are_summed_from_a_split() {
    let graph = behind(
        vec![
            node("Split", &["Y"], &["f", "r"], vec![int("axis", 1)]),
            node("Add", &["r", "f"], &["s"], vec![]),
            node("Squeeze", &["s"], &["out"], vec![list("axes", &[1])]),
        ],
        vec![],
    );
    let model = load(graph).unwrap();
    assert_eq!(model.layers()[0].merge(), Merge::Sum);
    assert_eq!(model.layers()[0].output_size(), H as usize);
}

#[test]
fn final_states_of_both_directions_side_by_side() {
    let graph = changed("LSTM", 2, |g| {
        for (at, name) in [(0, "f"), (1, "r")] {
            let index = format!("i{at}");
            g.node
                .push(node("Constant", &[], &[&index], vec![int("value_int", at)]));
            g.node
                .push(node("Gather", &["Y_h", &index], &[name], vec![]));
        }
        g.node
            .push(node("Concat", &["f", "r"], &["out"], vec![int("axis", -1)]));
        g.output = vec![result("out")];
    });
    let model = load(graph).unwrap();
    let port = &model.interface().outputs[0];
    assert_eq!(port.role, Role::FinalHidden(vec![0]));
    assert_eq!(
        port.axes,
        [&[Axis::Batch][..], &[Axis::LayerDirection, Axis::Feature]]
    );
}

#[test]
fn refuses_whole_files() {
    let with = |change: &dyn Fn(&mut ModelProto)| {
        let mut file = model(one("LSTM", 1));
        change(&mut file);
        file
    };
    let opset = |version| with(&|m| m.opset_import[0].version = version);
    refused_model(opset(6), &["imports opset 6", "supported are 7 to 26"]);
    refused_model(opset(27), &["imports opset 27", "supported are 7 to 26"]);
    refused_model(
        with(&|m| m.opset_import.clear()),
        &["operator set", "supported: 7 to 26"],
    );
    refused_model(
        with(&|m| {
            let mut other = m.opset_import[0].clone();
            other.version += 1;
            m.opset_import.push(other);
        }),
        &["the versions", "keep one"],
    );
    // One version twice, as `onnx.compose` writes it.
    let twice = with(&|m| m.opset_import.push(m.opset_import[0].clone()));
    assert!(Model::from_onnx(&twice.encode_to_vec()).is_ok());
    refused_model(with(&|m| m.graph = None), &["no graph"]);
    let function = FunctionProto {
        name: "Mine".into(),
        domain: "local".into(),
    };
    refused_model(
        with(&|m| m.functions.push(function.clone())),
        &[
            "\"Mine\"",
            "\"local\"",
            "inline",
            "supported operators: LSTM",
        ],
    );
    refused(
        changed("LSTM", 1, |g| g.sparse_initializer = Some(vec![])),
        &["sparse", "dense"],
    );
    refused(changed("LSTM", 1, |g| g.output.clear()), &["no outputs"]);
    refused(
        changed("LSTM", 1, |g| g.node.clear()),
        &["graph output \"Y\"", "any node"],
    );
}

#[test]
fn refuses_operators_by_name() {
    for op in ["If", "Loop", "Scan", "MatMul"] {
        let graph = behind(vec![node(op, &["Y"], &["out"], vec![])], vec![]);
        let name = format!("the_{}", op.to_lowercase());
        refused(graph, &[&name, op, "supported: LSTM, GRU and RNN"]);
    }
    let graph = behind(vec![node("Mat\nMul", &["Y"], &["out"], vec![])], vec![]);
    refused(graph, &["Mat\\nMul", "not supported"]);
    let foreign = changed("LSTM", 1, |g| g.node[0].domain = "com.microsoft".into());
    refused(
        foreign,
        &["the_lstm", "LSTM", "\"com.microsoft\"", "supported: LSTM"],
    );
}

#[test]
fn refuses_unsupported_attributes() {
    let lstm = |a| with_attribute("LSTM", a);
    refused(
        lstm(int("output_sequence", 1)),
        &["the_lstm", "\"output_sequence\"", "clip"],
    );
    refused(
        lstm(int("linear_before_reset", 1)),
        &["\"linear_before_reset\"", "supported"],
    );
    refused(
        with_attribute("GRU", int("input_forget", 1)),
        &["the_gru", "\"input_forget\"", "linear_before_reset"],
    );
    refused(
        lstm(int("hidden_size", 3)),
        &["the_lstm", "hidden_size is 3", "2 hidden units"],
    );
    refused(lstm(int("layout", 2)), &["\"layout\" is 2", "0 and 1"]);
    refused(
        with_attribute("GRU", int("linear_before_reset", 5)),
        &["the_gru", "\"linear_before_reset\" is 5", "0 and 1"],
    );
    refused(
        lstm(int("clip", 1)),
        &["\"clip\" has type 2", "must be a float"],
    );
    refused(
        lstm(text("direction", "up")),
        &["\"up\"", "forward, reverse, bidirectional"],
    );
    let clip = AttributeProto {
        f: -1.0,
        ..attribute("clip", attribute_type::FLOAT)
    };
    refused(lstm(clip), &["the_lstm", "clip must be positive"]);
    let twice = changed("LSTM", 1, |g| {
        g.node[0].attribute.push(int("hidden_size", H))
    });
    refused(twice, &["the_lstm", "\"hidden_size\" is given twice"]);
    let reference = AttributeProto {
        ref_attr_name: "outer".into(),
        ..int("layout", 0)
    };
    refused(lstm(reference), &["\"layout\"", "function"]);
    refused(
        lstm(texts("activations", &["Sigmoid", "Tanh"])),
        &["the_lstm", "2 activations; give 3"],
    );
    refused(
        lstm(texts("activations", &["Sigmoid", "Tanh", "Gelu"])),
        &["\"Gelu\"", "Softplus"],
    );
    refused(
        lstm(texts("activations", &["Affine", "Tanh", "Tanh"])),
        &["Affine", "activation_alpha"],
    );
    refused(
        lstm(numbers("activation_beta", &[1.0])),
        &["the_lstm", "activation_beta has 1 more"],
    );
}

#[test]
fn refuses_tensors_by_name() {
    let weight =
        |change: &dyn Fn(&mut TensorProto)| changed("LSTM", 1, |g| change(&mut g.initializer[0]));
    refused(
        weight(&|w| w.data_type = 11),
        &["tensor \"W\"", "double", "float16 or bfloat16"],
    );
    refused(weight(&|w| w.data_type = 99), &["tensor \"W\"", "type 99"]);
    refused(
        weight(&|w| w.data_location = 1),
        &["tensor \"W\"", "another file", "inside the file"],
    );
    refused(
        weight(&|w| w.segment = Some(vec![])),
        &["tensor \"W\"", "whole tensors"],
    );
    refused(weight(&|w| w.dims[1] = -8), &["tensor \"W\"", "size -8"]);
    refused(weight(&|w| w.dims[1] = 0), &["tensor \"W\"", "empty shape"]);
    refused(
        weight(&|w| w.dims[1] = i64::MAX),
        &["tensor \"W\"", "too many values for memory"],
    );
    refused(
        weight(&|w| w.dims[1] = 9),
        &["tensor \"W\"", "27 values", "holds 24"],
    );
    refused(
        weight(&|w| w.dims = vec![1; 17]),
        &["tensor \"W\"", "17 axes", "16"],
    );
    refused(
        weight(&|w| w.raw_data = Some(vec![0; 96])),
        &["tensor \"W\"", "raw and typed"],
    );
    refused(
        weight(&|w| {
            w.float_data.clear();
            w.raw_data = Some(vec![0; 95]);
        }),
        &["tensor \"W\"", "95 bytes", "multiple of 4"],
    );
    refused(
        weight(&|w| w.dims = vec![8, 3]),
        &["the_lstm", "W (\"W\")", "[8, 3]", "[1, 8, any]"],
    );
    let bias = changed("LSTM", 1, |g| g.initializer[2] = counted("B", &[1, 8], 0.0));
    refused(bias, &["the_lstm", "B (\"B\")", "[1, 8]", "[1, 16]"]);
    let peephole = changed("LSTM", 1, |g| {
        g.node[0].input.extend(["", "", "", "P"].map(String::from));
        g.initializer.push(counted("P", &[1, 8], 0.0));
    });
    refused(peephole, &["P (\"P\")", "[1, 8]", "[1, 6]"]);
    let integers = changed("LSTM", 1, |g| g.initializer[2] = ints("B", &[0; 16]));
    refused(
        integers,
        &[
            "the_lstm",
            "(B)",
            "constant of integers",
            "constant of floats",
        ],
    );
}

#[test]
fn refuses_contradictions_in_a_graph() {
    let twice = changed("LSTM", 1, |g| g.initializer.push(g.initializer[0].clone()));
    refused(twice, &["two initializers", "\"W\""]);
    let same = changed("LSTM", 1, |g| g.node[0].output[1] = "Y".into());
    refused(same, &["two values", "\"Y\""]);
    let cycle = changed("LSTM", 1, |g| g.node[0].input[0] = "Y".into());
    refused(cycle, &["the_lstm", "\"Y\"", "sort the nodes"]);
    let missing = changed("LSTM", 1, |g| g.node[0].input[2].clear());
    refused(missing, &["the_lstm", "input 2 (R) is missing"]);
    let many = changed("GRU", 1, |g| g.node[0].input.resize(7, String::new()));
    refused(many, &["the_gru", "7 inputs", "at most 6"]);
    let outputs = changed("GRU", 1, |g| g.node[0].output.push("Y_c".into()));
    refused(outputs, &["the_gru", "3 outputs", "at most 2"]);
    let width = changed("LSTM", 1, |g| {
        g.input[0] = info("x", FLOAT, &["T", "B", "4"])
    });
    refused(width, &["the_lstm", "4 features", "W has 3"]);
    let rank = changed("LSTM", 1, |g| g.input[0] = info("x", FLOAT, &["T", "3"]));
    refused(rank, &["the_lstm", "X", "[time] [batch] [feature]"]);
    let kind = changed("LSTM", 1, |g| g.input[0] = info("x", 11, &["T", "B", "3"]));
    refused(kind, &["the_lstm", "\"x\"", "double", "float16"]);
    let empty = changed("LSTM", 1, |g| {
        g.input[0] = info("x", FLOAT, &["0", "B", "3"])
    });
    refused(empty, &["\"x\"", "size 0", "positive"]);
    let shapeless = changed("LSTM", 1, |g| g.input[0] = result("x"));
    refused(shapeless, &["\"x\"", "no tensor shape"]);
    let declared = changed("LSTM", 1, |g| {
        g.output[1] = info("Y_h", FLOAT, &["1", "B", "3"])
    });
    refused(
        declared,
        &["\"Y_h\"", "sizes differ", "[direction] [batch] [feature]"],
    );
    let unused = changed("LSTM", 1, |g| g.input.push(info("spare", FLOAT, &["1"])));
    refused(unused, &["\"spare\"", "no role", "sequence_lens"]);
}

#[test]
fn refuses_forks_and_outputs_of_lower_layers() {
    let second = |x: &str| {
        changed("RNN", 1, |g| {
            g.node
                .push(node("Squeeze", &["Y"], &["y"], vec![list("axes", &[1])]));
            let mut upper = node("RNN", &[x, "W2", "R"], &["Z", "Z_h"], vec![]);
            upper.name = "upper".into();
            g.node.push(upper);
            let features = if x == "x" { E } else { H };
            g.initializer.push(counted("W2", &[1, H, features], 0.0));
            g.output = vec![result("Z"), result("Y_h")];
        })
    };
    assert_eq!(load(second("y")).unwrap().layers().len(), 2);
    refused(second("x"), &["upper", "\"x\"", "the_rnn", "one chain"]);
    let mut lower = second("y");
    lower.output.push(result("y"));
    refused(
        lower,
        &[
            "\"y\"",
            "the_rnn",
            "supported: Y of the last recurrent node, and Y_h",
        ],
    );
    refused(second("Y_h"), &["upper", "final states", "supported"]);
}

#[test]
fn refuses_states_and_lengths_that_are_not_inputs() {
    let state = |add: TensorProto| {
        changed("LSTM", 1, |g| {
            g.node[0].input.extend(["".into(), add.name.clone()]);
            g.initializer.push(add);
        })
    };
    assert!(load(state(floats("h", &[1, 5, 2], &[0.0; 10]))).is_ok());
    refused(
        state(floats("h", &[1, 5, 2], &[0.5; 10])),
        &[
            "the_lstm",
            "initial_h",
            "a constant",
            "supported: none, zeros, a graph input",
        ],
    );
    refused(
        state(floats("h", &[1, 5, 3], &[0.0; 15])),
        &[
            "the_lstm",
            "initial_h",
            "[direction, batch, hidden]",
            "2 entries",
        ],
    );
    let lengths = changed("LSTM", 1, |g| {
        g.node[0].input.push("lens".into());
        g.initializer.push(ints("lens", &[3, 4]));
    });
    refused(
        lengths,
        &["the_lstm", "sequence_lens is a constant", "graph input"],
    );
    let clash = changed("LSTM", 1, |g| {
        g.node[0].input.extend(["", "h", "h"].map(String::from));
        g.input.push(info("h", FLOAT, &["1", "B", "2"]));
    });
    refused(
        clash,
        &[
            "\"h\"",
            "initial_h with initial_c",
            "one slice for each layer",
        ],
    );
    let part = changed("LSTM", 1, |g| {
        g.node[0].input.extend(["", "part"].map(String::from));
        g.node
            .insert(0, node("Slice", &["h", "a", "b"], &["part"], vec![]));
        g.initializer.extend([ints("a", &[1]), ints("b", &[2])]);
        g.input.push(info("h", FLOAT, &["2", "B", "2"]));
    });
    refused(part, &["\"h\"", "leave gaps", "cover it"]);
}

#[test]
fn refuses_nodes_that_change_values() {
    let with_node =
        |n: NodeProto| behind(vec![n], vec![ints("one", &[1]), ints("two", &[0, 0, -1])]);
    let cases: [(NodeProto, &[&str]); 13] = [
        (
            node("Reshape", &["Y", "one"], &["out"], vec![]),
            &["the_reshape", "whole axes"],
        ),
        (
            node("Squeeze", &["Y", "one"], &["out"], vec![]),
            &["the_squeeze", "length is not 1"],
        ),
        (
            node("Squeeze", &["Y"], &["out"], vec![]),
            &["the_squeeze", "axes is missing"],
        ),
        (
            node(
                "Transpose",
                &["Y"],
                &["out"],
                vec![list("perm", &[0, 1, 1, 2])],
            ),
            &["the_transpose", "not a permutation"],
        ),
        (
            node("Gather", &["Y", "one"], &["out"], vec![]),
            &["the_gather", "supported slices"],
        ),
        (
            node("Gather", &["Y", "one"], &["out"], vec![int("axis", 1)]),
            &["\"out\"", "one direction", "supported"],
        ),
        (
            node("Concat", &["Y", "Y"], &["out"], vec![int("axis", 1)]),
            &["the_concat", "final states"],
        ),
        (
            node("Concat", &["Y"], &["out"], vec![]),
            &["the_concat", "\"axis\"", "missing"],
        ),
        (
            node("Cast", &["Y"], &["out"], vec![int("to", 10)]),
            &["the_cast", "to float16", "supported"],
        ),
        (
            node("Add", &["Y", "Y"], &["out"], vec![]),
            &["the_add", "two directions"],
        ),
        (
            node("Mul", &["Y", "one"], &["out"], vec![]),
            &["the_mul", "products of sizes"],
        ),
        (
            node("ReduceSum", &["Y"], &["out"], vec![list("axes", &[0])]),
            &["the_reducesum", "direction axis"],
        ),
        (
            node(
                "ReduceSum",
                &["Y"],
                &["out"],
                vec![list("axes", &[1]), int("keepdims", 2)],
            ),
            &["the_reducesum", "\"keepdims\" is 2", "0 and 1"],
        ),
    ];
    for (n, parts) in cases {
        refused(with_node(n), parts);
    }
    refused(
        with_node(node("Identity", &["one"], &["out"], vec![])),
        &["\"out\"", "is a constant", "supported: Y of the last"],
    );
    refused(
        with_node(node("Identity", &["x"], &["out"], vec![])),
        &["\"out\"", "graph input \"x\"", "supported"],
    );
    let fill = AttributeProto {
        t: Some(Box::new(floats("", &[1], &[1.0]))),
        ..attribute("value", attribute_type::TENSOR)
    };
    refused(
        with_node(node("ConstantOfShape", &["one"], &["out"], vec![fill])),
        &["the_constantofshape", "supported: 0"],
    );
}

#[test]
fn decoding_cannot_grow_far_beyond_the_file() {
    // A hundred thousand empty nodes in two bytes each, inside a graph.
    let mut graph = Vec::new();
    for _ in 0..100_000 {
        graph.extend([0x0a, 0x00]);
    }
    let mut file = vec![0x3a];
    prost::encoding::encode_varint(graph.len() as u64, &mut file);
    file.extend(graph);
    let error = Model::from_onnx(&file).unwrap_err().to_string();
    assert!(error.contains("messages"), "{error}");

    // Doubling a constant forty times would be a terabyte.
    let graph = changed("LSTM", 1, |g| {
        for i in 0..40 {
            let (from, to) = (format!("c{i}"), format!("c{}", i + 1));
            g.node.push(node(
                "Concat",
                &[&from, &from],
                &[&to],
                vec![int("axis", 0)],
            ));
        }
        g.initializer.push(counted("c0", &[4], 0.0));
    });
    refused(graph, &["the_concat", "eight values per byte"]);

    // Many layers may share one tensor, but each holds a copy.
    let graph = changed("RNN", 1, |g| {
        let (wide, count) = (64i64, 100);
        g.initializer = vec![
            counted("W", &[1, wide, wide], 0.0),
            counted("R", &[1, wide, wide], 0.0),
        ];
        g.input[0] = info("x", FLOAT, &["T", "B", "64"]);
        g.node.clear();
        let mut x = "x".to_string();
        for i in 0..count {
            let y = format!("y{i}");
            g.node.push(node("RNN", &[&x, "W", "R"], &[&y], vec![]));
            x = format!("x{i}");
            g.node
                .push(node("Squeeze", &[&y], &[&x], vec![list("axes", &[1])]));
        }
        g.output = vec![result(&x)];
    });
    refused(graph, &["the_rnn", "eight values per byte"]);
}
