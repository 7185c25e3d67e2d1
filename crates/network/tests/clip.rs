//! The two meanings of an LSTM's clip in a graph. The expected values are those of the library's
//! test of the clip.

use cellstream_network::{Network, NetworkOptions, Tensor};
use prost::Message;
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};

fn value(name: &str) -> ValueInfoProto {
    let kind = type_proto::Value::TensorType(type_proto::Tensor {
        elem_type: 1,
        shape: None,
    });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            value: Some(kind),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

fn weights(name: &str, weight: f32) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![1, 4, 1],
        data_type: 1,
        float_data: vec![weight; 4],
        ..TensorProto::default()
    }
}

/// An LSTM of one unit with weights of 9 and a clip of 0.5.
fn file() -> Vec<u8> {
    let clip = AttributeProto {
        name: "clip".into(),
        r#type: 1,
        f: 0.5,
        ..AttributeProto::default()
    };
    let hidden_size = AttributeProto {
        name: "hidden_size".into(),
        r#type: 2,
        i: 1,
        ..AttributeProto::default()
    };
    let node = NodeProto {
        op_type: "LSTM".into(),
        input: ["x", "w", "r"].map(String::from).to_vec(),
        output: vec!["y".into()],
        attribute: vec![clip, hidden_size],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        initializer: vec![weights("w", 9.0), weights("r", 0.0)],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto {
        version: 17,
        ..OperatorSetIdProto::default()
    };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    model.encode_to_vec()
}

fn last(clips_outputs: bool) -> f32 {
    let options = NetworkOptions {
        clips_outputs,
        ..NetworkOptions::default()
    };
    let network = Network::from_bytes(&file(), options).unwrap();
    let x = Tensor::new(&[8, 1, 1], vec![1f32; 8]).unwrap();
    let outputs = network.run(&[("x", &x)]).unwrap();
    outputs[0].tensor.floats().unwrap()[7]
}

#[test]
fn clip_bounds_the_output_activation_if_told() {
    assert!((last(false) - 0.3934).abs() < 1e-4);
    assert!((last(true) - 0.2876).abs() < 1e-4);
}
