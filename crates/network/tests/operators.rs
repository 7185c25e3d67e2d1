//! Operators are known by domain, name and version; forms that tract computes in another way than
//! ONNX says are this crate's own, or refused by name.

#[path = "common/graphs.rs"]
mod graphs;

use gatestream_network::{Data, Network, NetworkError, NetworkOptions, RunOptions, Tensor};
use graphs::{branch, constant, float, integer, ints, model, node, value, value_of};
use prost::Message;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto};

const INT64: i32 = 7;

/// A graph of one node with the output `y`, of opset 18.
fn file(node: NodeProto, inputs: &[(&str, i32)], constants: Vec<TensorProto>) -> Vec<u8> {
    file_of(18, node, inputs, constants)
}

fn file_of(
    opset: i64,
    node: NodeProto,
    inputs: &[(&str, i32)],
    constants: Vec<TensorProto>,
) -> Vec<u8> {
    let graph = GraphProto {
        input: inputs
            .iter()
            .map(|(name, kind)| value_of(name, *kind))
            .collect(),
        output: vec![value("y")],
        node: vec![node],
        initializer: constants,
        ..GraphProto::default()
    };
    model(graph, &[opset]).encode_to_vec()
}

fn open(bytes: &[u8]) -> Result<Network, NetworkError> {
    Network::from_bytes(bytes, NetworkOptions::default())
}

fn floats(network: &Network, inputs: &[(&str, &Tensor)]) -> Result<Vec<f32>, NetworkError> {
    let outputs = network.run(inputs)?;
    Ok(outputs[0].tensor.floats().unwrap().to_vec())
}

fn integers(name: &str, shape: &[usize], values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: shape.iter().map(|&size| size as i64).collect(),
        data_type: INT64,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

#[test]
fn an_operator_of_another_domain_is_not_onnxs() {
    for (domain, operator) in [
        ("my.own", "Tanh"),
        ("com.microsoft", "Tanh"),
        ("com.microsoft", "Attention"),
        ("com.microsoft", "RotaryEmbedding"),
        ("ai.onnx.ml", "LSTM"),
        ("my.own", "LSTM"),
    ] {
        let node = NodeProto {
            domain: domain.into(),
            ..node(operator, &["x"], "y")
        };
        let file = file(node, &[("x", 1)], Vec::new());
        for unchecked in [false, true] {
            let options = NetworkOptions {
                unchecked,
                ..NetworkOptions::default()
            };
            let refused = Network::from_bytes(&file, options).err().unwrap();
            let expected = format!("{domain}::{operator}");
            let NetworkError::Unsupported { operator, .. } = &refused else {
                panic!("{refused}");
            };
            assert_eq!(*operator, expected);
        }
    }
    let node = NodeProto {
        domain: "ai.onnx".into(),
        ..node("Tanh", &["x"], "y")
    };
    let network = open(&file(node, &[("x", 1)], Vec::new())).unwrap();
    let x = Tensor::new(&[1], vec![0.5f32]).unwrap();
    let apart = floats(&network, &[("x", &x)]).unwrap()[0] - 0.5f32.tanh();
    assert!(apart.abs() < 1e-6);
}

#[test]
fn an_unchecked_operator_runs_on_request_alone() {
    // tract has it; ONNX does not.
    let file = file(node("Rsqrt", &["x"], "y"), &[("x", 1)], Vec::new());
    let refused = open(&file).err().unwrap();
    assert!(
        matches!(refused, NetworkError::Unchecked { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("--unchecked"), "{refused}");
    let options = NetworkOptions {
        unchecked: true,
        ..NetworkOptions::default()
    };
    let network = Network::from_bytes(&file, options).unwrap();
    let x = Tensor::new(&[1], vec![4.0f32]).unwrap();
    assert_eq!(floats(&network, &[("x", &x)]).unwrap(), [0.5]);
}

/// An operator with indices `i` into `x`, which is `[2, 3]`.
struct Indexed {
    operator: &'static str,
    attribute: Option<AttributeProto>,
    indices: &'static [usize],
    updates: Option<&'static [usize]>,
    /// Of the axis that the first index is of.
    length: i64,
}

fn indexed() -> Vec<Indexed> {
    let of = |operator, attribute, indices, updates, length| Indexed {
        operator,
        attribute,
        indices,
        updates,
        length,
    };
    let axis = |axis| Some(integer("axis", axis));
    vec![
        of("Gather", axis(0), &[1], None, 2),
        of("Gather", axis(1), &[1], None, 3),
        of("Gather", axis(-1), &[1, 1], None, 3),
        of("GatherElements", axis(1), &[2, 1], None, 3),
        of("GatherElements", axis(0), &[1, 3], None, 2),
        of("GatherND", None, &[1, 2], None, 2),
        of("GatherND", None, &[1, 1], None, 2),
        of("GatherND", Some(integer("batch_dims", 1)), &[2, 1], None, 3),
        of("ScatterElements", axis(1), &[1, 1], Some(&[1, 1]), 3),
        of("ScatterND", None, &[1, 2], Some(&[1]), 2),
        of("ScatterND", None, &[1, 1], Some(&[1, 3]), 2),
    ]
}

#[test]
fn an_index_out_of_range_is_an_error() {
    let x = Tensor::new(&[2, 3], (0..6).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    for case in indexed() {
        let Indexed {
            operator,
            attribute,
            indices: shape,
            updates,
            length,
        } = case;
        let count: usize = shape.iter().product();
        let node_of = |inputs: &[&str]| NodeProto {
            attribute: attribute.clone().into_iter().collect(),
            ..node(operator, inputs, "y")
        };
        let updates = updates.map(|shape| {
            let count = shape.iter().product();
            constant("u", shape, &vec![9.0; count])
        });
        let updates: Vec<TensorProto> = updates.into_iter().collect();
        let names: &[&str] = if updates.is_empty() {
            &["x", "i"]
        } else {
            &["x", "i", "u"]
        };
        let network = open(&file(
            node_of(names),
            &[("x", 1), ("i", INT64)],
            updates.clone(),
        ))
        .unwrap();
        let run = |first: i64| {
            let mut values = vec![0; count];
            values[0] = first;
            let indices = Tensor::new(shape, values).unwrap();
            floats(&network, &[("x", &x), ("i", &indices)])
        };
        let last = run(length - 1).unwrap();
        assert_eq!(run(-1).unwrap(), last, "{operator}");
        assert_eq!(run(-length).unwrap(), run(0).unwrap(), "{operator}");
        for wrong in [
            length,
            -length - 1,
            1 << 32,
            1 << 57,
            1 << 62,
            i64::MAX,
            i64::MIN,
        ] {
            let refused = run(wrong).unwrap_err().to_string();
            assert!(
                refused.contains(&wrong.to_string()),
                "{operator} {wrong}: {refused}"
            );
            assert!(!refused.contains("it contradicts itself"), "{refused}");
            // As a constant of the graph.
            let mut values = vec![0; count];
            values[0] = wrong;
            let mut constants = updates.clone();
            constants.push(integers("i", shape, &values));
            let network = open(&file(node_of(names), &[("x", 1)], constants)).unwrap();
            let refused = floats(&network, &[("x", &x)]).unwrap_err().to_string();
            assert!(!refused.contains("it contradicts itself"), "{refused}");
        }
    }
}

#[test]
fn one_hot_has_nothing_at_an_index_out_of_range() {
    let constants = vec![
        integers("depth", &[1], &[3]),
        constant("values", &[2], &[-1.0, 5.0]),
    ];
    let network = open(&file(
        node("OneHot", &["i", "depth", "values"], "y"),
        &[("i", INT64)],
        constants,
    ));
    let network = network.unwrap();
    let indices = Tensor::new(&[5], vec![0, -1, 3, 1 << 57, i64::MIN]).unwrap();
    let mut expected = vec![-1.0; 15];
    expected[0] = 5.0;
    expected[5] = 5.0;
    assert_eq!(floats(&network, &[("i", &indices)]).unwrap(), expected);
}

#[test]
fn bounds_of_a_slice_may_be_inputs() {
    let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let tensor = Tensor::new(&[2, 5], x.clone()).unwrap();
    let slice = node("Slice", &["x", "begin", "end", "axis", "step"], "y");
    for step in [1i64, 2, -1, -3] {
        let constants = vec![
            integers("axis", &[1], &[1]),
            integers("step", &[1], &[step]),
        ];
        let inputs = [("x", 1), ("begin", INT64), ("end", INT64)];
        let network = open(&file(slice.clone(), &inputs, constants)).unwrap();
        for (begin, end) in [
            (0, 3),
            (1, 100),
            (-4, -1),
            (4, 0),
            (3, -100),
            (2, 2),
            (0, i64::MAX),
        ] {
            let bound = |value: i64| Tensor::new(&[1], vec![value]).unwrap();
            let found = floats(
                &network,
                &[
                    ("x", &tensor),
                    ("begin", &bound(begin)),
                    ("end", &bound(end)),
                ],
            );
            let expected: Vec<f32> = x
                .chunks(5)
                .flat_map(|row| sliced(row, begin, end, step))
                .collect();
            assert_eq!(found.unwrap(), expected, "{begin}:{end}:{step}");
        }
    }
}

/// The rule of Python's slices, index by index.
fn sliced(row: &[f32], begin: i64, end: i64, step: i64) -> Vec<f32> {
    let size = row.len() as i64;
    let counted = |index: i64| {
        if index < 0 {
            index.saturating_add(size)
        } else {
            index
        }
    };
    let (begin, end) = (counted(begin), counted(end));
    let mut at = if step > 0 {
        begin.max(0)
    } else {
        begin.min(size - 1)
    };
    let mut found = Vec::new();
    while (step > 0 && at < end.min(size)) || (step < 0 && at > end.max(-1)) {
        found.extend(usize::try_from(at).ok().and_then(|at| row.get(at)));
        at += step;
    }
    found
}

/// `y [2, n] = Expand(c, Shape(x[:, :, :n]))[k]`, `n` and `k` inputs: a run with the plan for their
/// shapes alone fails, one with the plan for their values does not.
#[test]
fn a_length_that_an_input_has_is_part_of_a_plan() {
    let graph = GraphProto {
        node: vec![
            node("Unsqueeze", &["n", "zero"], "end"),
            node("Slice", &["x", "zero", "end", "last_axis"], "part"),
            node("Shape", &["part"], "shape"),
            node("Expand", &["c", "shape"], "all"),
            node("Gather", &["all", "k"], "y"),
        ],
        initializer: vec![
            integers("zero", &[1], &[0]),
            integers("last_axis", &[1], &[2]),
            constant("c", &[1, 2, 1], &[3.0, 4.0]),
        ],
        input: vec![value("x"), value_of("n", INT64), value_of("k", INT64)],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    let network = open(&model(graph, &[18]).encode_to_vec()).unwrap();
    let x = Tensor::new(&[1, 2, 6], vec![0.5f32; 12]).unwrap();
    let number = |value: i64| Tensor::new(&[], vec![value]).unwrap();
    let run = |n: i64, k: i64| {
        let (n, k) = (number(n), number(k));
        floats(&network, &[("x", &x), ("n", &n), ("k", &k)])
    };
    // Out of range: these fail with each plan.
    for k in 1..6 {
        assert!(run(3, k).is_err(), "{k}");
    }
    let (n, k) = (number(3), number(0));
    let inputs = [("x", &x), ("n", &n), ("k", &k)];
    let prepared = network.prepare(&inputs, RunOptions::default()).unwrap();
    for n in [3, 6, 2, 5, 3, 4] {
        let expected = [vec![3.0; n], vec![4.0; n]].concat();
        assert_eq!(run(n as i64, 0).unwrap(), expected, "{n}");
    }
    // One that was prepared before the values were known to matter takes the plan that is kept.
    let before = network.plan_stats();
    let outputs = network.run_prepared(&prepared, &inputs).unwrap();
    assert_eq!(outputs[0].tensor.floats().unwrap(), run(3, 0).unwrap());
    assert_eq!((before.made, network.plan_stats()), (6, before));
}

#[test]
fn a_transposed_convolution_needs_no_kernel_shape() {
    let run = |output_shape: &[i64]| {
        let node = NodeProto {
            attribute: vec![ints("strides", &[2]), ints("output_shape", output_shape)],
            ..node("ConvTranspose", &["x", "w"], "y")
        };
        let w = constant("w", &[1, 1, 2], &[1.0, 10.0]);
        let network = open(&file(node, &[("x", 1)], vec![w]))?;
        let x = Tensor::new(&[1, 1, 3], vec![1.0f32, 2.0, 3.0])?;
        floats(&network, &[("x", &x)])
    };
    assert_eq!(run(&[6]).unwrap(), [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    let refused = run(&[1, 1, 6]).unwrap_err().to_string();
    assert!(refused.contains("output_shape of all axes"), "{refused}");
}

#[test]
fn softplus_of_large_numbers_is_finite() {
    let network = open(&file(
        node("Softplus", &["x"], "y"),
        &[("x", 1)],
        Vec::new(),
    ))
    .unwrap();
    let x = [-100.0f32, -1.0, 0.0, 1.0, 88.0, 100.0, 1e30];
    let tensor = Tensor::new(&[x.len()], x.to_vec()).unwrap();
    let found = floats(&network, &[("x", &tensor)]).unwrap();
    for (found, x) in found.iter().zip(x) {
        let x = f64::from(x);
        let expected = x.max(0.0) + (-x.abs()).exp().ln_1p();
        assert!(
            (f64::from(*found) - expected).abs() <= 1e-6 * expected.max(1.0),
            "{x}: {found}"
        );
    }
}

#[test]
fn the_extremes_of_infinities_are_infinite() {
    let inf = f32::INFINITY;
    let mut x = vec![-inf; 40];
    x[20..].fill(3.0);
    x[39] = f32::NAN;
    let run = |operator: &str, axis: i64, values: &[f32]| {
        let node = NodeProto {
            attribute: vec![ints("axes", &[axis]), integer("keepdims", 0)],
            ..node(operator, &["x"], "y")
        };
        let graph = GraphProto {
            input: vec![value("x")],
            output: vec![value("y")],
            node: vec![node],
            ..GraphProto::default()
        };
        let x = Tensor::new(&[2, 20], values.to_vec()).unwrap();
        let mut constant_graph = graph.clone();
        constant_graph.input.clear();
        constant_graph.initializer = vec![constant("x", &[2, 20], values)];
        let run = |graph: GraphProto, inputs: &[(&str, &Tensor)]| {
            let network = open(&model(graph, &[13]).encode_to_vec()).unwrap();
            floats(&network, inputs).unwrap()
        };
        let found = run(graph, &[("x", &x)]);
        let of_constant = run(constant_graph, &[]);
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&of_constant));
        found
    };
    let rows = run("ReduceMax", 1, &x);
    assert_eq!(rows[0], -inf);
    assert!(rows[1].is_nan());
    let columns = run("ReduceMax", 0, &x);
    assert_eq!(columns[..19], [3.0; 19]);
    assert!(columns[19].is_nan());
    x[20..].fill(inf);
    assert_eq!(run("ReduceMin", 1, &x), [-inf, inf]);
    assert_eq!(run("ReduceMin", 0, &x), [-inf; 20]);
}

/// The results are NumPy's, in vectors and behind them.
#[test]
fn a_nan_stays_one() {
    let nan = f32::NAN;
    let (a, b) = ([nan, 2.0, -1.0, 0.5, -0.0], [1.0, nan, 3.0, -2.0, nan]);
    let below = (-1.0f32).exp() - 1.0;
    let repeated = |values: &[f32; 5]| Tensor::new(&[9, 5], values.repeat(9)).unwrap();
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f32| x.exp().ln_1p();
    let cases: [(&str, &[&str], [f32; 5]); 13] = [
        ("Sigmoid", &["a"], a.map(sigmoid)),
        ("Tanh", &["a"], a.map(f32::tanh)),
        ("Softplus", &["a"], a.map(softplus)),
        ("Swish", &["a"], a.map(|x| x * sigmoid(x))),
        ("Max", &["a", "b"], [nan, nan, 3.0, 0.5, nan]),
        ("Min", &["a", "b"], [nan, nan, -1.0, -2.0, nan]),
        ("Max", &["b", "row"], [nan, nan, 3.0, 0.5, nan]),
        ("Min", &["a", "scalar"], [nan; 5]),
        ("Max", &["a"], a),
        ("Celu", &["a"], [nan, 2.0, below, 0.5, 0.0]),
        ("Relu", &["a"], [nan, 2.0, 0.0, 0.5, 0.0]),
        ("Clip", &["b", "one", "two"], [1.0, nan, 2.0, 1.0, nan]),
        ("HardSigmoid", &["b"], [0.7, nan, 1.0, 0.1, nan]),
    ];
    for (operator, inputs, expected) in cases {
        let numbers = [("scalar", nan), ("one", 1.0), ("two", 2.0)];
        let mut constants = numbers
            .map(|(name, value)| constant(name, &[], &[value]))
            .to_vec();
        constants.push(constant("row", &[5], &a));
        let given = [("a", repeated(&a)), ("b", repeated(&b))];
        let given: Vec<_> = given
            .iter()
            .filter(|(name, _)| inputs.contains(name))
            .map(|(name, values)| (*name, values))
            .collect();
        let ports: Vec<_> = given.iter().map(|(name, _)| (*name, 1)).collect();
        let file = file_of(24, node(operator, inputs, "y"), &ports, constants);
        let network = open(&file).unwrap();
        for (at, found) in floats(&network, &given).unwrap().iter().enumerate() {
            let expected = expected[at % 5];
            let is_same = (found - expected).abs() < 1e-6 || (found.is_nan() && expected.is_nan());
            assert!(is_same, "{operator} {inputs:?}: {found}, not {expected}");
        }
    }
}

/// Errors of tract's are five times as large.
#[test]
fn sigmoid_and_tanh_are_right_to_two_units_in_the_last_place_of_one() {
    let x: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 400.0).collect();
    let tensor = Tensor::new(&[x.len()], x.clone()).unwrap();
    let of_operator = |operator: &str, x: f64| {
        if operator == "Sigmoid" {
            1.0 / (1.0 + (-x).exp())
        } else {
            x.tanh()
        }
    };
    for operator in ["Sigmoid", "Tanh"] {
        let network = open(&file(node(operator, &["x"], "y"), &[("x", 1)], vec![])).unwrap();
        for (found, x) in floats(&network, &[("x", &tensor)]).unwrap().iter().zip(&x) {
            let error = f64::from(*found) - of_operator(operator, f64::from(*x));
            assert!(
                error.abs() <= f64::from(f32::EPSILON),
                "{operator} of {x}: {error}"
            );
        }
    }
}

/// A plan has one operator for the two, unless somebody else takes the result of the first.
#[test]
fn the_product_of_a_sigmoid_and_its_input_has_the_bits_of_both() {
    let x: Vec<f32> = (-2000..=2000).map(|i| i as f32 / 40.0).collect();
    let tensor = Tensor::new(&[x.len()], x.clone()).unwrap();
    let run = |graph: GraphProto| {
        let network = open(&model(graph, &[18]).encode_to_vec()).unwrap();
        floats(&network, &[("x", &tensor)]).unwrap()
    };
    let graph = |node: Vec<NodeProto>| GraphProto {
        input: vec![value_of("x", 1)],
        output: vec![value("y")],
        node,
        ..GraphProto::default()
    };
    let gates = run(graph(vec![node("Sigmoid", &["x"], "y")]));
    let gate = || node("Sigmoid", &["x"], "gate");
    // `x · gate - gate`, where the gate has two users.
    let product = node("Mul", &["x", "gate"], "product");
    let both = vec![gate(), product, node("Sub", &["product", "gate"], "y")];
    for ((found, gate), x) in run(graph(both)).iter().zip(&gates).zip(&x) {
        assert_eq!(found.to_bits(), (gate * x - gate).to_bits(), "{x}");
    }
    for factors in [["x", "gate"], ["gate", "x"]] {
        let found = run(graph(vec![gate(), node("Mul", &factors, "y")]));
        for ((found, gate), x) in found.iter().zip(&gates).zip(&x) {
            assert_eq!(found.to_bits(), (gate * x).to_bits(), "{x}");
        }
    }
}

#[test]
fn a_window_longer_than_the_input_is_an_error() {
    let kernel = || vec![constant("w", &[1, 1, 4], &[1.0; 4])];
    let pool = |operator: &str, more: &[AttributeProto]| NodeProto {
        attribute: [&[ints("kernel_shape", &[4])], more].concat(),
        ..node(operator, &["x"], "y")
    };
    let conv = |attribute: Option<&AttributeProto>| NodeProto {
        attribute: attribute.into_iter().cloned().collect(),
        ..node("Conv", &["x", "w"], "y")
    };
    let (by_two, padded) = (ints("strides", &[2]), ints("pads", &[1, 0]));
    let dilated = ints("dilations", &[2]);
    let same = AttributeProto {
        name: "auto_pad".into(),
        r#type: 3,
        s: b"SAME_UPPER".to_vec(),
        ..AttributeProto::default()
    };
    let ceil = [integer("ceil_mode", 1), by_two.clone()];
    let valid = AttributeProto {
        s: b"VALID".to_vec(),
        ..same.clone()
    };
    // `auto_pad` counts, and neither `pads` nor `ceil_mode`.
    let valid_ceil = [&[valid], &ceil[..]].concat();
    let same_padded = [same.clone(), ints("pads", &[0, 0])];
    // A node, and the shortest input.
    for (node, constants, shortest) in [
        (conv(None), kernel(), 4),
        (conv(Some(&by_two)), kernel(), 4),
        (conv(Some(&dilated)), kernel(), 7),
        (conv(Some(&padded)), kernel(), 3),
        (conv(Some(&same)), kernel(), 1),
        (pool("MaxPool", &[]), vec![], 4),
        (pool("MaxPool", std::slice::from_ref(&by_two)), vec![], 4),
        (pool("MaxPool", &ceil), vec![], 3),
        (pool("MaxPool", &valid_ceil), vec![], 4),
        (pool("MaxPool", &same_padded), vec![], 1),
        (pool("AveragePool", &[by_two]), vec![], 4),
        (pool("AveragePool", &[padded]), vec![], 3),
        (pool("AveragePool", &[same]), vec![], 1),
    ] {
        let network = open(&file(node.clone(), &[("x", 1)], constants)).unwrap();
        let run = |length: usize| {
            let x = Tensor::new(&[1, 1, length], vec![1.0f32; length]).unwrap();
            floats(&network, &[("x", &x)])
        };
        assert_eq!(run(shortest).unwrap().len(), 1, "{node:?}");
        for length in 1..shortest {
            let refused = run(length).unwrap_err().to_string();
            assert!(refused.contains("shorter than its window"), "{refused}");
        }
    }
}

#[test]
fn a_window_of_integers_is_checked_too() {
    let bytes = |name: &str, shape: &[usize], values: &[i32]| TensorProto {
        data_type: 2,
        int32_data: values.to_vec(),
        ..integers(name, shape, &[])
    };
    let constants = vec![
        bytes("w", &[1, 1, 4], &[1; 4]),
        bytes("zero", &[], &[0]),
        constant("one", &[], &[1.0]),
    ];
    let quantised = ["x", "one", "zero", "w", "one", "zero", "one", "zero"];
    let inputs = [&["x", "w"][..], &quantised];
    for (operator, inputs) in ["ConvInteger", "QLinearConv"].into_iter().zip(inputs) {
        let node = node(operator, inputs, "y");
        let network = open(&file(node, &[("x", 2)], constants.clone())).unwrap();
        let run = |length: usize| {
            let x = Tensor::new(&[1, 1, length], vec![1u8; length]).unwrap();
            network.run(&[("x", &x)])
        };
        assert_eq!(run(4).unwrap()[0].tensor.shape(), [1, 1, 1], "{operator}");
        let refused = run(3).unwrap_err().to_string();
        assert!(refused.contains("shorter than its window"), "{refused}");
    }
}

#[test]
fn relu_is_of_integers_and_sizes_too() {
    let graph = |node: Vec<NodeProto>, kind| GraphProto {
        input: vec![value_of("x", kind)],
        output: vec![value("y")],
        node,
        ..GraphProto::default()
    };
    let run = |graph: GraphProto, x: &Tensor| {
        let network = open(&model(graph, &[18]).encode_to_vec()).unwrap();
        let outputs = network.run(&[("x", x)]).unwrap();
        outputs[0].tensor.data().clone()
    };
    let x = Tensor::new(&[3], vec![-2i64, 0, 5]).unwrap();
    let found = run(graph(vec![node("Relu", &["x"], "y")], INT64), &x);
    assert_eq!(found, Data::I64(vec![0, 0, 5]));
    let of_shape = vec![
        node("Shape", &["x"], "shape"),
        node("Relu", &["shape"], "y"),
    ];
    let x = Tensor::new(&[2, 3], vec![0.0f32; 6]).unwrap();
    assert_eq!(run(graph(of_shape, 1), &x), Data::I64(vec![2, 3]));
}

#[test]
fn an_attribute_of_a_function_is_none_of_a_recurrent_node() {
    let referring = AttributeProto {
        ref_attr_name: "of_function".into(),
        ..integer("linear_before_reset", 0)
    };
    let gru = NodeProto {
        attribute: vec![integer("hidden_size", 1), referring],
        ..node("GRU", &["x", "w", "r"], "y")
    };
    let weights = |name: &str| constant(name, &[1, 3, 1], &[0.5; 3]);
    let file = file(gru, &[("x", 1)], vec![weights("w"), weights("r")]);
    let x = Tensor::new(&[2, 1, 1], vec![1.0f32; 2]).unwrap();
    let ran = open(&file).and_then(|network| floats(&network, &[("x", &x)]));
    let refused = ran.unwrap_err().to_string();
    assert!(refused.contains("an attribute of a function"), "{refused}");
}

#[test]
fn top_k_of_more_than_there_are_is_an_error() {
    let x = Tensor::new(&[2, 3], vec![1.0f32, 3.0, 2.0, 6.0, 5.0, 4.0]).unwrap();
    let node = NodeProto {
        output: vec!["y".into(), "indices".into()],
        ..node("TopK", &["x", "k"], "y")
    };
    let given = open(&file(node.clone(), &[("x", 1), ("k", INT64)], vec![])).unwrap();
    for (k, expected) in [(2, Some([3.0, 2.0, 6.0, 5.0])), (4, None), (-1, None)] {
        let constants = vec![integers("k", &[1], &[k])];
        let constant = open(&file(node.clone(), &[("x", 1)], constants)).unwrap();
        let count = Tensor::new(&[1], vec![k]).unwrap();
        let found = [
            floats(&constant, &[("x", &x)]),
            floats(&given, &[("x", &x), ("k", &count)]),
        ];
        for found in found {
            match (found, expected) {
                (Ok(found), Some(expected)) => assert_eq!(found, expected),
                (Err(why), None) => {
                    assert!(why.to_string().contains(&format!("k is {k}")), "{why}")
                }
                (found, _) => panic!("{k}: {found:?}"),
            }
        }
    }
}

/// As in ONNX Runtime; ONNX says nothing of them.
#[test]
fn final_states_of_a_sequence_without_steps_are_zero() {
    let (steps, batch, features, hidden) = (3, 2, 3, 2);
    let weights = |name: &str, columns: usize| {
        let values = (0..4 * hidden * columns).map(|at| at as f32 / 16.0 - 0.5);
        constant(name, &[1, 4 * hidden, columns], &values.collect::<Vec<_>>())
    };
    for layout in [0, 1] {
        let inputs = ["x", "w", "r", "", "lengths", "h0", "c0"];
        let lstm = NodeProto {
            output: ["", "h", "c"].map(String::from).to_vec(),
            attribute: vec![
                integer("hidden_size", hidden as i64),
                integer("layout", layout),
            ],
            ..node("LSTM", &inputs, "")
        };
        // Both states, one after the other.
        let joined = NodeProto {
            attribute: vec![integer("axis", 2)],
            ..node("Concat", &["h", "c"], "y")
        };
        let graph = GraphProto {
            input: ["x", "h0", "c0"].map(|name| value_of(name, 1)).to_vec(),
            output: vec![value("y")],
            node: vec![lstm, joined],
            initializer: vec![
                weights("w", features),
                weights("r", hidden),
                TensorProto {
                    data_type: 6,
                    int32_data: vec![2, 0],
                    ..integers("lengths", &[2], &[])
                },
            ],
            ..GraphProto::default()
        };
        let network = open(&model(graph, &[17]).encode_to_vec()).unwrap();
        let (of_x, of_state) = if layout == 0 {
            ([steps, batch, features], [1, batch, hidden])
        } else {
            ([batch, steps, features], [batch, 1, hidden])
        };
        let x = Tensor::new(&of_x, vec![0.5f32; steps * batch * features]).unwrap();
        let state = Tensor::new(&of_state, vec![1.0f32; batch * hidden]).unwrap();
        let found = floats(&network, &[("x", &x), ("h0", &state), ("c0", &state)]).unwrap();
        assert!(
            found[..2 * hidden].iter().all(|value| *value != 0.0),
            "{found:?}"
        );
        assert_eq!(found[2 * hidden..], [0.0; 4], "layout {layout}");
    }
}

/// A function, with the fields that the schema of tract does not have.
#[derive(Clone, Message)]
struct Function {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "4")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "9")]
    opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, tag = "10")]
    domain: String,
    #[prost(message, repeated, tag = "11")]
    attributes: Vec<AttributeProto>,
    #[prost(string, tag = "13")]
    overload: String,
}

#[derive(Message)]
struct Functions {
    #[prost(message, repeated, tag = "25")]
    functions: Vec<Function>,
}

#[test]
fn functions_have_defaults_and_the_operators_of_the_model() {
    let of_function = AttributeProto {
        ref_attr_name: "slope".into(),
        ..float("alpha", 0.0)
    };
    let leaky = NodeProto {
        attribute: vec![of_function],
        ..node("LeakyRelu", &["a"], "b")
    };
    let function = Function {
        name: "Leaky".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![leaky],
        opset_import: vec![OperatorSetIdProto {
            version: 18,
            ..OperatorSetIdProto::default()
        }],
        domain: "my.own".into(),
        attributes: vec![float("slope", 0.5)],
        overload: String::new(),
    };
    let call = |slope: Option<f32>| NodeProto {
        domain: "my.own".into(),
        attribute: slope
            .map(|slope| float("slope", slope))
            .into_iter()
            .collect(),
        ..node("Leaky", &["x"], "y")
    };
    let file = |function: Function, slope: Option<f32>| {
        let mut bytes = file(call(slope), &[("x", 1)], Vec::new());
        let functions = Functions {
            functions: vec![function],
        };
        bytes.extend(functions.encode_to_vec());
        bytes
    };
    let x = Tensor::new(&[1], vec![-1.0f32]).unwrap();
    for (slope, expected) in [(None, -0.5), (Some(0.25), -0.25)] {
        let network = open(&file(function.clone(), slope)).unwrap();
        assert_eq!(floats(&network, &[("x", &x)]).unwrap(), [expected]);
    }
    // Softmax of opset 11 is over all axes from the second, that of 13 over the last.
    let mut older = function.clone();
    older.node = vec![node("Softmax", &["a"], "b")];
    older.opset_import[0].version = 11;
    let refused = open(&file(older, None)).err().unwrap();
    assert!(
        refused.to_string().contains("Softmax of another opset"),
        "{refused}"
    );
    // ReduceMean takes its axes as an input since 18; If is the same in both.
    let mut within = function.clone();
    let branches = ["then_branch", "else_branch"]
        .map(|name| branch(name, vec![node("ReduceMean", &["a"], "c")], "c"));
    within.node = vec![NodeProto {
        attribute: branches.to_vec(),
        ..node("If", &["a"], "b")
    }];
    within.opset_import[0].version = 17;
    let refused = open(&file(within, None)).err().unwrap();
    assert!(
        refused.to_string().contains("ReduceMean of another opset"),
        "{refused}"
    );
    let overloaded = Function {
        overload: "other".into(),
        ..function
    };
    let refused = open(&file(overloaded, None)).err().unwrap();
    assert!(refused.to_string().contains("overload"), "{refused}");
}
