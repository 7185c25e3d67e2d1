//! The two meanings of an LSTM's clip in a graph. The expected values are those of the library's
//! test of the clip.

#[path = "common/graphs.rs"]
mod graphs;

use gatestream_network::{Network, NetworkOptions, Tensor};
use graphs::{constant, file, float, integer, node, value};
use tract_onnx::pb::GraphProto;

/// An LSTM of one unit with weights of 9 and a clip of 0.5.
fn lstm() -> Vec<u8> {
    let mut lstm = node("LSTM", &["x", "w", "r"], "y");
    lstm.attribute = vec![float("clip", 0.5), integer("hidden_size", 1)];
    file(GraphProto {
        node: vec![lstm],
        initializer: vec![
            constant("w", &[1, 4, 1], &[9.0; 4]),
            constant("r", &[1, 4, 1], &[0.0; 4]),
        ],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    })
}

fn last(clips_outputs: bool) -> f32 {
    let options = NetworkOptions {
        clips_outputs,
        ..NetworkOptions::default()
    };
    let network = Network::from_bytes(&lstm(), options).unwrap();
    let x = Tensor::new(&[8, 1, 1], vec![1f32; 8]).unwrap();
    let outputs = network.run(&[("x", &x)]).unwrap();
    outputs[0].tensor.floats().unwrap()[7]
}

#[test]
fn clip_bounds_the_output_activation_if_told() {
    assert!((last(false) - 0.3934).abs() < 1e-4);
    assert!((last(true) - 0.2876).abs() < 1e-4);
}
