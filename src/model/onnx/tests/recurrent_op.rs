//! A node that is given as data has the model of a file with this node alone.

use super::*;
use crate::model::{AttributeValue, OpAttribute, OpWeights, RecurrentOp};

/// A weight of floats, and its bytes.
struct Floats {
    input: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn weight(input: &'static str, shape: &[usize]) -> Floats {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|at| (at + input.len()) as f32 / 64.0);
    Floats {
        input,
        shape: shape.to_vec(),
        bytes: values.flat_map(f32::to_le_bytes).collect(),
    }
}

fn of_op(
    operator: &str,
    attributes: &[(&str, AttributeValue)],
    run_inputs: &[&str],
    weights: &[Floats],
) -> Result<Model, LoadError> {
    let attributes = attributes.iter().map(|(name, value)| OpAttribute {
        name: (*name).into(),
        value: value.clone(),
    });
    let weights = weights.iter().map(|of| OpWeights {
        input: of.input,
        shape: &of.shape,
        element_type: FLOAT,
        bytes: &of.bytes,
    });
    Model::from_recurrent(&RecurrentOp {
        name: "the_node",
        operator,
        attributes: &attributes.collect::<Vec<_>>(),
        run_inputs,
        weights: &weights.collect::<Vec<_>>(),
    })
}

fn of_file(
    node: NodeProto,
    inputs: Vec<ValueInfoProto>,
    weights: &[Floats],
) -> Result<Model, LoadError> {
    let initializer = weights.iter().map(|of| TensorProto {
        name: of.input.into(),
        dims: of.shape.iter().map(|&size| size as i64).collect(),
        data_type: FLOAT,
        raw_data: Some(of.bytes.clone()),
        ..Default::default()
    });
    let graph = GraphProto {
        output: node.output.iter().map(|name| result(name)).collect(),
        node: vec![node],
        initializer: initializer.collect(),
        input: inputs,
        sparse_initializer: None,
    };
    Model::from_onnx(&model(graph).encode_to_vec())
}

#[test]
fn an_lstm_of_both_directions_with_all_inputs() {
    let weights = [
        weight("W", &[2, 8, 3]),
        weight("R", &[2, 8, 2]),
        weight("B", &[2, 16]),
        weight("P", &[2, 6]),
    ];
    let activations = ["Sigmoid", "Elu", "Tanh"].repeat(2);
    let bytes = activations.iter().map(|name| name.as_bytes().to_vec());
    let run_inputs = ["X", "sequence_lens", "initial_h", "initial_c"];
    let found = of_op(
        "LSTM",
        &[
            (
                "direction",
                AttributeValue::String(b"bidirectional".to_vec()),
            ),
            ("activations", AttributeValue::Strings(bytes.collect())),
            ("activation_alpha", AttributeValue::Floats(vec![0.5, 0.25])),
            ("clip", AttributeValue::Float(3.0)),
            ("hidden_size", AttributeValue::Int(2)),
            ("input_forget", AttributeValue::Int(1)),
        ],
        &run_inputs,
        &weights,
    );
    let attributes = vec![
        text("direction", "bidirectional"),
        texts("activations", &activations),
        numbers("activation_alpha", &[0.5, 0.25]),
        AttributeProto {
            f: 3.0,
            ..attribute("clip", attribute_type::FLOAT)
        },
        int("hidden_size", 2),
        int("input_forget", 1),
    ];
    let slots = RecurrentOp::INPUTS[..8].to_vec();
    let inputs = vec![
        info("X", FLOAT, &["a", "b", "c"]),
        info("sequence_lens", data_type::INT32, &["d"]),
        info("initial_h", FLOAT, &["e", "f", "g"]),
        info("initial_c", FLOAT, &["h", "i", "j"]),
    ];
    let file = of_file(
        node("LSTM", &slots, &RecurrentOp::OUTPUTS, attributes),
        inputs,
        &weights,
    );
    assert_eq!(found.unwrap(), file.unwrap());
}

#[test]
fn a_gru_with_the_batch_first_and_few_inputs() {
    let weights = [weight("W", &[1, 6, 3]), weight("R", &[1, 6, 2])];
    let layout = [("layout", AttributeValue::Int(1))];
    let found = of_op("GRU", &layout, &["X", "initial_h"], &weights);
    let slots = ["X", "W", "R", "", "", "initial_h"];
    let inputs = vec![
        info("X", FLOAT, &["a", "b", "c"]),
        info("initial_h", FLOAT, &["d", "e", "f"]),
    ];
    let node = node("GRU", &slots, &["Y", "Y_h"], vec![int("layout", 1)]);
    let found = found.unwrap();
    assert_eq!(found, of_file(node, inputs, &weights).unwrap());
    assert_eq!(found.interface().inputs[0].axes[0], [Axis::Batch]);
}

#[test]
fn an_lstm_of_onnx_runtime_in_8_bits() {
    let (features, hidden) = (3, 2);
    let integers = |rows: usize| -> Vec<u8> { (0..rows * 4 * hidden).map(|at| at as u8).collect() };
    let (w, r) = (integers(features), integers(hidden));
    let (scale, zero) = (0.25f32.to_le_bytes(), [0u8]);
    let weights = |input, shape, element_type, bytes| OpWeights {
        input,
        shape,
        element_type,
        bytes,
    };
    let all = [
        weights("W", &[1, 3, 8], data_type::INT8, &w),
        weights("R", &[1, 2, 8], data_type::INT8, &r),
        weights("W_scale", &[1], FLOAT, &scale),
        weights("W_zero_point", &[1], data_type::INT8, &zero),
        weights("R_scale", &[1], FLOAT, &scale),
        weights("R_zero_point", &[1], data_type::INT8, &zero),
    ];
    let found = Model::from_recurrent(&RecurrentOp {
        name: "the_node",
        operator: "DynamicQuantizeLSTM",
        attributes: &[],
        run_inputs: &["X"],
        weights: &all,
    });
    let absent = ["B", "sequence_lens", "initial_h", "initial_c", "P"];
    let slot = |input: &'static str| if absent.contains(&input) { "" } else { input };
    let slots = RecurrentOp::INPUTS.map(slot);
    let node = NodeProto {
        domain: "com.microsoft".into(),
        ..node("DynamicQuantizeLSTM", &slots, &RecurrentOp::OUTPUTS, vec![])
    };
    let initializer = all.iter().map(|of| TensorProto {
        name: of.input.into(),
        dims: of.shape.iter().map(|&size| size as i64).collect(),
        data_type: of.element_type,
        raw_data: Some(of.bytes.to_vec()),
        ..Default::default()
    });
    let mut file = model(GraphProto {
        output: node.output.iter().map(|name| result(name)).collect(),
        node: vec![node],
        initializer: initializer.collect(),
        input: vec![info("X", FLOAT, &["a", "b", "c"])],
        sparse_initializer: None,
    });
    file.opset_import.push(OperatorSetIdProto {
        domain: "com.microsoft".into(),
        version: 1,
    });
    let (found, expected) = (
        found.unwrap(),
        Model::from_onnx(&file.encode_to_vec()).unwrap(),
    );
    assert_eq!(found, expected);
    assert_eq!(found.quantised().len(), expected.quantised().len());
}

#[test]
fn what_a_node_lacks_is_named() {
    let (w, r) = (weight("W", &[1, 2, 3]), weight("R", &[1, 2, 2]));
    let missing = of_op("RNN", &[], &["X"], &[r]).unwrap_err().to_string();
    assert!(missing.contains("\"the_node\""), "{missing}");
    assert!(missing.contains("W) is missing"), "{missing}");
    let wrong = weight("R", &[1, 2, 3]);
    let wrong = of_op("RNN", &[], &["X"], &[w, wrong]).unwrap_err();
    assert!(wrong.to_string().contains("has shape [1, 2, 3]"), "{wrong}");
    let unknown = [("peephole", AttributeValue::Int(1))];
    let weights = [weight("W", &[1, 2, 3]), weight("R", &[1, 2, 2])];
    let unknown = of_op("RNN", &unknown, &["X"], &weights).unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("\"peephole\" is not supported"),
        "{unknown}"
    );
    let none = [weight("W", &[1, 2, 3]), weight("b", &[1, 4])];
    let none = of_op("RNN", &[], &["X"], &none).unwrap_err().to_string();
    assert!(
        none.contains("\"b\"") && none.contains("no input"),
        "{none}"
    );
    let other = of_op("Attention", &[], &["X"], &weights).unwrap_err();
    assert!(other.to_string().contains("Attention"), "{other}");
}
