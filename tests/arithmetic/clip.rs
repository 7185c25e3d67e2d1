//! The two meanings of an LSTM's clip, in `f64`: with and without the input of its output
//! activation.

use gatestream::execute::Session;
use gatestream::model::{Lstm, Matrix, Model, SafetensorsOptions, Weights};
use gatestream::plan::Plan;

use crate::common::{Batch, Random, Results};

const CLIP: f32 = 0.5;
const STEPS: usize = 8;

/// One unit whose pre-activations are all 9 for an input of 1, before the clip.
fn model() -> Model {
    let model = Lstm::new(1, 1).clip(CLIP).build(|_| Weights {
        input: Matrix::new(4, 1, vec![9.0; 4]).unwrap(),
        recurrent: Matrix::new(4, 1, vec![0.0; 4]).unwrap(),
        input_bias: vec![0.0; 4],
        recurrent_bias: vec![0.0; 4],
        peepholes: None,
        projection: None,
    });
    model.unwrap()
}

/// The hidden states for inputs of 1, by the formula of ONNX's operator.
fn expected(clips_output: bool) -> Vec<f64> {
    let clip = f64::from(CLIP);
    let gate = 1.0 / (1.0 + (-clip).exp());
    let mut c = 0.0f64;
    let step = |_| {
        c = gate * c + gate * clip.tanh();
        let of_output = if clips_output { c.min(clip) } else { c };
        gate * of_output.tanh()
    };
    (0..STEPS).map(step).collect()
}

fn outputs(model: &Model) -> Vec<f32> {
    let mut batch = Batch::full(&mut Random::new(1), model, 1, STEPS);
    batch.values.fill(1.0);
    let plan = Plan::with_threads(model, 1, STEPS, 1);
    let mut found = Results::dirty(model, &batch);
    let mut session = Session::new(model, &plan).unwrap();
    let mut input = batch.input();
    (input.h0, input.c0) = (None, None);
    session.run(&input, &mut found.output()).unwrap();
    found.values
}

fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let error = (f64::from(*found) - expected).abs();
        assert!(error < 1e-6, "{found} for {expected}");
    }
}

#[test]
fn clip_of_an_lstm_bounds_its_output_activation_if_told() {
    let (usual, of_text) = (expected(false), expected(true));
    assert!(usual[STEPS - 1] - of_text[STEPS - 1] > 0.1);
    assert_near(&outputs(&model()), &usual);
    assert_near(&outputs(&model().clipping_outputs()), &of_text);
}

#[test]
fn a_file_keeps_the_meaning_of_the_clip() {
    let folder = tempfile::tempdir().unwrap();
    for model in [model(), model().clipping_outputs()] {
        let path = folder.path().join("model.safetensors");
        model.save_safetensors(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let again = Model::from_safetensors(&bytes, &SafetensorsOptions::new()).unwrap();
        assert_eq!(outputs(&again), outputs(&model));
    }
}
