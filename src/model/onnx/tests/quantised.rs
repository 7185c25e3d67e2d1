//! DynamicQuantizeLSTM: what its tensors mean, and every refusal.

use super::*;
use crate::model::{MatrixKind, Precision, QuantisedMatrix, Requantised};

const INT8: i32 = data_type::INT8;
const UINT8: i32 = data_type::UINT8;
const ROWS: i64 = 4 * H;

fn bytes(name: &str, element: i32, dims: &[i64], values: &[i32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: element,
        int32_data: values.to_vec(),
        ..Default::default()
    }
}

/// Counts up from `first`.
fn numbers_from(first: i32, count: i64) -> Vec<i32> {
    (first..).take(count as usize).collect()
}

/// One forward node over `x`; its W holds -12 and on, its R -50 and on, from their zero points.
fn quantised(element: i32, zero: i32) -> GraphProto {
    let node = NodeProto {
        domain: "com.microsoft".into(),
        ..node(
            "DynamicQuantizeLSTM",
            &["x", "W", "R", "B", "", "", "", "", "Ws", "Wz", "Rs", "Rz"],
            &["Y", "Y_h", "Y_c"],
            vec![int("hidden_size", H)],
        )
    };
    GraphProto {
        node: vec![node],
        initializer: vec![
            bytes(
                "W",
                element,
                &[1, E, ROWS],
                &numbers_from(zero - 12, E * ROWS),
            ),
            bytes(
                "R",
                element,
                &[1, H, ROWS],
                &numbers_from(zero - 50, H * ROWS),
            ),
            counted("B", &[1, 2 * ROWS], 200.0),
            floats("Ws", &[1], &[0.5]),
            bytes("Wz", element, &[1], &[zero]),
            floats("Rs", &[1], &[0.25]),
            bytes("Rz", element, &[1], &[zero]),
        ],
        input: vec![info("x", FLOAT, &["T", "B", "3"])],
        output: ["Y", "Y_h", "Y_c"].map(result).into(),
        sparse_initializer: None,
    }
}

fn import(version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: "com.microsoft".into(),
        version,
    }
}

fn file(graph: GraphProto) -> ModelProto {
    let mut file = model(graph);
    file.opset_import.push(import(1));
    file
}

fn load(graph: GraphProto) -> Model {
    let model = Model::from_onnx(&file(graph).encode_to_vec());
    model.unwrap_or_else(|error| panic!("{error}"))
}

fn tensor<'g>(graph: &'g mut GraphProto, name: &str) -> &'g mut TensorProto {
    let found = graph.initializer.iter_mut().find(|t| t.name == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// The int8 node, with one tensor changed, is refused with these parts.
fn refused_with(name: &str, change: impl FnOnce(&mut TensorProto), parts: &[&str]) {
    let mut graph = quantised(INT8, 0);
    change(tensor(&mut graph, name));
    refused_model(file(graph), parts);
}

fn refused_node(change: impl FnOnce(&mut NodeProto), parts: &[&str]) {
    let mut graph = quantised(INT8, 0);
    change(&mut graph.node[0]);
    refused_model(file(graph), parts);
}

fn reasons(model: &Model) -> Vec<Option<Requantised>> {
    let report = model.quantised().iter();
    report.map(|matrix| matrix.requantised).collect()
}

#[test]
fn transposes_and_reorders_gates() {
    let model = load(quantised(INT8, 0));
    let weights = model.layers()[0].directions()[0].weights();
    for (row, column) in [0, 1, 4, 5, 6, 7, 2, 3].into_iter().enumerate() {
        let of = |first: i64, cols: i64| -> Vec<i64> {
            (0..cols).map(|k| first + k * ROWS + column).collect()
        };
        let whole: Vec<i64> = weights
            .input
            .int8_row(row)
            .iter()
            .map(|&q| q.into())
            .collect();
        assert_eq!(whole, of(-12, E));
        let whole: Vec<i64> = weights
            .recurrent
            .int8_row(row)
            .iter()
            .map(|&q| q.into())
            .collect();
        assert_eq!(whole, of(-50, H));
        assert_eq!(weights.input_bias[row], 200.0 + column as f32);
        assert_eq!(weights.recurrent_bias[row], 208.0 + column as f32);
    }
    assert_eq!(weights.input.scales(), [0.5; 8]);
    assert_eq!(weights.recurrent.scales(), [0.25; 8]);
    let matrix = |matrix, tensor: &str| QuantisedMatrix {
        layer: 0,
        reverse: false,
        matrix,
        tensor: tensor.into(),
        requantised: None,
    };
    let report = [
        matrix(MatrixKind::Input, "W"),
        matrix(MatrixKind::Recurrent, "R"),
    ];
    assert_eq!(model.quantised(), report);
}

#[test]
fn raw_and_typed_signed_and_unsigned_agree() {
    let expected = load(quantised(INT8, 0));
    for (element, zero) in [(INT8, 0), (UINT8, 128)] {
        for raw in [false, true] {
            let mut graph = quantised(element, zero);
            for tensor in &mut graph.initializer {
                if raw && tensor.data_type == element {
                    let bytes = tensor.int32_data.drain(..).map(|v| v as u8);
                    tensor.raw_data = Some(bytes.collect());
                }
            }
            let model = load(graph);
            assert_eq!(model, expected, "{element} {raw}");
            assert_eq!(reasons(&model), [None; 2], "{element} {raw}");
        }
    }
}

#[test]
fn scales_and_zero_points_of_columns_follow_their_gates() {
    let mut graph = quantised(INT8, 0);
    *tensor(&mut graph, "Ws") = counted("Ws", &[1, ROWS], 1.0);
    *tensor(&mut graph, "Rz") = bytes("Rz", INT8, &[1, ROWS], &[0; 8]);
    let model = load(graph.clone());
    let weights = model.layers()[0].directions()[0].weights();
    let scales = [1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 3.0, 4.0];
    assert_eq!(weights.input.scales(), scales);
    assert_eq!(reasons(&model), [None; 2]);

    // One column's zero point is off: the first of the output gate, our row 6.
    tensor(&mut graph, "Rz").int32_data[2] = 10;
    let model = load(graph);
    assert_eq!(reasons(&model), [None, Some(Requantised::ZeroPoint)]);
    let recurrent = &model.layers()[0].directions()[0].weights().recurrent;
    // (-50 + 2 - 10) / 4 is the greatest of its row; row 0 has -50 / 4.
    assert_eq!(recurrent.scales()[6], 14.5 / 127.0);
    assert_eq!(recurrent.scales()[0], 12.5 / 127.0);
    let row = recurrent.int8_row(6);
    // (-42 + 2 - 10 + 2 - 2) / 4 = -12.5: 127 · 50 / 58 = 109.48.
    assert_eq!(row, [-127, -109]);
}

#[test]
fn minus_128_is_quantised_again() {
    for (element, zero) in [(INT8, 0), (UINT8, 128)] {
        let mut graph = quantised(element, zero);
        tensor(&mut graph, "R").int32_data[15] = zero - 128;
        let model = load(graph);
        assert_eq!(reasons(&model), [None, Some(Requantised::Lowest)]);
        assert_eq!(model.precision(), Some(Precision::Int8));
        let recurrent = &model.layers()[0].directions()[0].weights().recurrent;
        // Column 7 is the candidate's second, our row 5: -43 and -128, in quarters.
        assert_eq!(recurrent.scales()[5], 32.0 / 127.0);
        assert_eq!(recurrent.int8_row(5), [-43, -127]);
    }
}

#[test]
fn constant_nodes_between_weights_and_layer() {
    let expected = load(quantised(INT8, 0));
    // Stored as LSTM's W is, in two parts, one of which is longer than is needed.
    let mut graph = quantised(INT8, 0);
    let transposed: Vec<i32> = (0..ROWS)
        .flat_map(|row| (0..E).map(move |k| (k * ROWS + row) as i32 - 12))
        .collect();
    let (low, high) = transposed.split_at(4 * E as usize);
    let longer = [high, &[100; 3]].concat();
    graph.initializer[0] = bytes("low", INT8, &[1, 4, E], low);
    graph
        .initializer
        .push(bytes("longer", INT8, &[1, 5, E], &longer));
    for (name, value) in [("from", 0), ("to", 4), ("axis", 1)] {
        graph.initializer.push(ints(name, &[value]));
    }
    let nodes = [
        node(
            "Slice",
            &["longer", "from", "to", "axis"],
            &["high"],
            vec![],
        ),
        node("Concat", &["low", "high"], &["all"], vec![int("axis", 1)]),
        node(
            "Transpose",
            &["all"],
            &["W"],
            vec![list("perm", &[0, 2, 1])],
        ),
    ];
    graph.node.splice(0..0, nodes);
    assert_eq!(load(graph.clone()), expected);

    graph.initializer[0].data_type = UINT8;
    graph.initializer[0].int32_data = vec![0; 12];
    refused_model(file(graph), &["the_concat", "differ in type"]);
}

#[test]
fn reports_the_layer_in_a_mixed_chain() {
    let mut graph = quantised(INT8, -1);
    graph.node[0].output = vec!["y".into()];
    let squeeze = node("Squeeze", &["y"], &["x1"], vec![list("axes", &[1])]);
    let plain = node("LSTM", &["x1", "V", "U"], &["Y"], vec![]);
    graph.node.extend([squeeze, plain]);
    graph.initializer.push(counted("V", &[1, ROWS, H], 0.0));
    graph.initializer.push(counted("U", &[1, ROWS, H], 0.0));
    graph.output.truncate(1);
    let below = load(graph.clone());
    assert_eq!(below.precision(), None);
    let layers = |m: &Model| m.quantised().iter().map(|q| q.layer).collect::<Vec<_>>();
    assert_eq!(layers(&below), [0, 0]);
    assert_eq!(reasons(&below), [Some(Requantised::ZeroPoint); 2]);

    // The other way round; the upper W takes two features then.
    graph.node.swap(0, 2);
    graph.node[0].input[0] = "x".into();
    graph.node[0].output = vec!["y".into()];
    graph.node[2].input[0] = "x1".into();
    graph.node[2].output = vec!["Y".into()];
    *tensor(&mut graph, "V") = counted("V", &[1, ROWS, E], 0.0);
    *tensor(&mut graph, "W") = bytes("W", INT8, &[1, H, ROWS], &numbers_from(0, H * ROWS));
    assert_eq!(layers(&load(graph)), [1, 1]);
}

#[test]
fn refuses_other_operators_and_versions() {
    refused_model(
        model(quantised(INT8, 0)),
        &[
            "the_dynamicquantizelstm",
            "no version",
            "com.microsoft",
            "version 1",
        ],
    );
    let mut newer = model(quantised(INT8, 0));
    newer.opset_import.push(import(2));
    refused_model(newer, &["version 2", "supported: version 1"]);
    let mut twice = file(quantised(INT8, 0));
    twice.opset_import.push(import(2));
    refused_model(twice, &["the versions 1 and 2", "com.microsoft"]);
    refused_node(
        |n| n.op_type = "QAttention".into(),
        &["QAttention", "\"com.microsoft\"", "DynamicQuantizeLSTM"],
    );
    refused_node(
        |n| n.domain.clear(),
        &["DynamicQuantizeLSTM", "operator not supported"],
    );
    refused_node(|n| n.domain = "ai.onnx.ml".into(), &["\"ai.onnx.ml\""]);
    // A version that no node asks for stays without effect.
    let mut unused = model(one("LSTM", 1));
    unused.opset_import.push(import(7));
    assert!(Model::from_onnx(&unused.encode_to_vec()).is_ok());
}

#[test]
fn refuses_missing_inputs_and_wrong_types() {
    for (index, name) in [
        (1, "W"),
        (2, "R"),
        (8, "W_scale"),
        (9, "W_zero_point"),
        (10, "R_scale"),
        (11, "R_zero_point"),
    ] {
        let missing = format!("input {index} ({name}) is missing");
        refused_node(|n| n.input[index].clear(), &[&missing]);
    }
    refused_node(
        |n| n.input.truncate(11),
        &["input 11 (R_zero_point) is missing"],
    );
    refused_node(|n| n.input.push("x".into()), &["13 inputs", "at most 12"]);
    refused_node(
        |n| n.attribute.push(int("layout", 0)),
        &["the_dynamicquantizelstm", "\"layout\"", "input_forget"],
    );
    refused_with(
        "Wz",
        |t| t.data_type = UINT8,
        &[
            "W_zero_point (\"Wz\") is uint8",
            "must be int8",
            "W (\"W\")",
        ],
    );
    refused_with(
        "Rz",
        |t| *t = ints("Rz", &[0]),
        &[
            "(R_zero_point), \"Rz\"",
            "constant of integers",
            "int8 or uint8",
        ],
    );
    refused_with(
        "Rz",
        |t| *t = floats("Rz", &[1], &[0.0]),
        &["\"Rz\"", "constant of floats", "int8 or uint8"],
    );
    refused_with(
        "Ws",
        |t| *t = bytes("Ws", INT8, &[1], &[1]),
        &[
            "(W_scale), \"Ws\"",
            "constant of int8",
            "constant of floats",
        ],
    );
    refused_with(
        "W",
        |t| *t = counted("W", &[1, E, ROWS], 0.0),
        &["(W), \"W\"", "constant of floats", "int8 or uint8"],
    );
    refused_with(
        "W",
        |t| t.data_type = 5,
        &["tensor \"W\"", "int16", "uint8"],
    );
    refused_node(|n| n.input[1] = "x".into(), &["(W), \"x\"", "is data"]);
    // And the plain operator does not take what only this one does.
    let plain = changed("LSTM", 1, |g| {
        g.initializer[0] = bytes("W", INT8, &[1, ROWS, E], &[0; 24]);
    });
    refused(plain, &["the_lstm", "\"W\"", "int8", "constant of floats"]);
}

#[test]
fn refuses_wrong_shapes() {
    refused_with(
        "W",
        |t| t.dims = vec![1, ROWS, E],
        &["W (\"W\")", "[1, 8, 3]", "[1, any, 8]"],
    );
    refused_with(
        "R",
        |t| t.dims = vec![1, ROWS, H],
        &["R (\"R\")", "[1, 8, 2]", "[1, 8, 32]"],
    );
    refused_with("R", |t| t.dims = vec![16], &["R (\"R\")", "[16]"]);
    refused_with(
        "R",
        |t| t.dims = vec![2, 1, ROWS],
        &["R (\"R\")", "[2, 1, 8]"],
    );
    for dims in [&[][..], &[2], &[1, 4], &[2, 8], &[8, 1], &[1, 1, 8]] {
        let count: i64 = dims.iter().product();
        let shown = format!("{dims:?}");
        let parts =
            |name: &'static str| [name, shown.as_str(), "must be [1] or [1, 8]"].map(String::from);
        for (name, label) in [("Ws", "W_scale (\"Ws\")"), ("Rs", "R_scale (\"Rs\")")] {
            let parts = parts(label);
            let parts = parts.each_ref().map(String::as_str);
            refused_with(name, |t| *t = counted(name, dims, 1.0), &parts);
        }
        for (name, label) in [
            ("Wz", "W_zero_point (\"Wz\")"),
            ("Rz", "R_zero_point (\"Rz\")"),
        ] {
            let parts = parts(label);
            let parts = parts.each_ref().map(String::as_str);
            let zeros = vec![0; count as usize];
            refused_with(name, |t| *t = bytes(name, INT8, dims, &zeros), &parts);
        }
    }
    refused_node(
        |n| n.attribute = vec![int("hidden_size", 8)],
        &["hidden_size is 8", "[1, 2, 8]", "2 hidden units"],
    );
    refused_with(
        "B",
        |t| *t = counted("B", &[1, 8], 0.0),
        &["B (\"B\")", "[1, 16]"],
    );
}

#[test]
fn refuses_invalid_scales_and_integers() {
    for (bad, shown) in [
        (f32::NAN, "NaN"),
        (-0.5, "-0.5"),
        (f32::INFINITY, "inf"),
        (f32::MAX / 200.0, "every weight must be finite"),
    ] {
        for (name, label) in [("Ws", "W_scale (\"Ws\")"), ("Rs", "R_scale (\"Rs\")")] {
            refused_with(name, |t| t.float_data[0] = bad, &[label, shown]);
        }
    }
    // 0 is the scale of zeros.
    let mut graph = quantised(INT8, 0);
    tensor(&mut graph, "Ws").float_data[0] = 0.0;
    let model = load(graph);
    let input = &model.layers()[0].directions()[0].weights().input;
    assert!(input.data().iter().all(|v| *v == 0.0));

    for (value, element, name) in [
        (128, INT8, "int8"),
        (-129, INT8, "int8"),
        (-1, UINT8, "uint8"),
        (256, UINT8, "uint8"),
    ] {
        let mut graph = quantised(element, 100);
        tensor(&mut graph, "R").int32_data[3] = value;
        let parts = ["tensor \"R\"", &value.to_string(), &format!("type {name}")];
        refused_model(file(graph), &parts);
    }
    refused_with(
        "W",
        |t| t.raw_data = Some(vec![0; 24]),
        &["tensor \"W\"", "raw and typed"],
    );
    refused_with(
        "W",
        |t| {
            t.int32_data.clear();
            t.raw_data = Some(vec![0; 23]);
        },
        &["tensor \"W\"", "24 values of type int8", "holds 23"],
    );
}

#[test]
fn refuses_deep_products_and_weights_beyond_the_file() {
    let mut deep = quantised(INT8, 0);
    let depth = i64::try_from(gatestream_kernels::INT8_DEPTH).unwrap() + 1;
    let w = TensorProto {
        raw_data: Some(vec![1; (depth * ROWS) as usize]),
        ..bytes("W", INT8, &[1, depth, ROWS], &[])
    };
    *tensor(&mut deep, "W") = w;
    deep.input[0] = info("x", FLOAT, &["T", "B", &depth.to_string()]);
    refused_model(
        file(deep),
        &["the_dynamicquantizelstm", "W (\"W\")", "at most"],
    );

    // Many layers may share one tensor, but each holds a copy.
    let mut graph = quantised(INT8, 0);
    let wide = 32i64;
    for name in ["W", "R"] {
        let values = vec![1; (wide * 4 * wide) as usize];
        *tensor(&mut graph, name) = bytes(name, INT8, &[1, wide, 4 * wide], &values);
    }
    graph.input[0] = info("x", FLOAT, &["T", "B", "32"]);
    let mut layer = graph.node.remove(0);
    layer.attribute.clear();
    layer.input[3].clear();
    layer.output.truncate(1);
    let mut x = "x".to_string();
    for i in 0..100 {
        let y = format!("y{i}");
        layer.input[0] = x;
        layer.output[0] = y.clone();
        graph.node.push(layer.clone());
        x = format!("x{i}");
        graph
            .node
            .push(node("Squeeze", &[&y], &[&x], vec![list("axes", &[1])]));
    }
    graph.output = vec![result(&x)];
    refused_model(
        file(graph),
        &["the_dynamicquantizelstm", "eight values per byte"],
    );
}
