//! The same model as a textbook would have it: the formulas, one number after the other, with the
//! exponential and the hyperbolic tangent of the standard library.
#![allow(clippy::needless_range_loop)] // indices are what the formulas have

use std::error::Error;

use gatestream::layers::GreedyOptions;
use gatestream::model::{Matrix, Tensors};

/// The model's weights, as they are in the file.
pub struct Textbook {
    letters: Matrix,
    forward: Gru,
    reverse: Gru,
    phonemes: Matrix,
    decoder: Gru,
    output: Matrix,
    output_bias: Vec<f32>,
    options: GreedyOptions,
}

impl Textbook {
    /// Loads the weights from the bytes of the model's file.
    pub fn load(bytes: &[u8]) -> Result<Textbook, Box<dyn Error>> {
        let tensors = Tensors::from_bytes(bytes)?;
        Ok(Textbook {
            letters: tensors.matrix("encoder.embedding.weight")?,
            forward: Gru::load(&tensors, "encoder.rnn", "l0")?,
            reverse: Gru::load(&tensors, "encoder.rnn", "l0_reverse")?,
            phonemes: tensors.matrix("decoder.embedding.weight")?,
            decoder: Gru::load(&tensors, "decoder.rnn", "l0")?,
            output: tensors.matrix("output.weight")?,
            output_bias: tensors.vector("output.bias")?,
            options: super::greedy_options(&tensors)?,
        })
    }

    /// The phonemes of a word.
    pub fn phonemes(&self, letters: &[usize]) -> Vec<usize> {
        let mut forward = vec![0.0; self.forward.hidden()];
        for &letter in letters {
            forward = self.forward.step(&self.letters.row(letter), &forward);
        }
        let mut reverse = vec![0.0; self.reverse.hidden()];
        for &letter in letters.iter().rev() {
            reverse = self.reverse.step(&self.letters.row(letter), &reverse);
        }

        let mut state = [forward, reverse].concat();
        let mut answer = Vec::new();
        let mut previous = self.options.bos;
        while answer.len() < self.options.limit {
            state = self.decoder.step(&self.phonemes.row(previous), &state);
            let logits = multiply(&self.output, &state, &self.output_bias);
            previous = 0;
            for (symbol, logit) in logits.iter().enumerate() {
                if *logit > logits[previous] {
                    previous = symbol;
                }
            }
            if previous == self.options.eos {
                break;
            }
            answer.push(previous);
        }
        answer
    }
}

/// One direction of a GRU, with gates in PyTorch's order: reset, update, new.
struct Gru {
    input: Matrix,
    recurrent: Matrix,
    input_bias: Vec<f32>,
    recurrent_bias: Vec<f32>,
}

impl Gru {
    fn load(tensors: &Tensors<'_>, prefix: &str, place: &str) -> Result<Gru, Box<dyn Error>> {
        Ok(Gru {
            input: tensors.matrix(&format!("{prefix}.weight_ih_{place}"))?,
            recurrent: tensors.matrix(&format!("{prefix}.weight_hh_{place}"))?,
            input_bias: tensors.vector(&format!("{prefix}.bias_ih_{place}"))?,
            recurrent_bias: tensors.vector(&format!("{prefix}.bias_hh_{place}"))?,
        })
    }

    fn hidden(&self) -> usize {
        self.recurrent.cols()
    }

    fn step(&self, x: &[f32], h: &[f32]) -> Vec<f32> {
        let hidden = self.hidden();
        let from_x = multiply(&self.input, x, &self.input_bias);
        let from_h = multiply(&self.recurrent, h, &self.recurrent_bias);
        let mut after = vec![0.0; hidden];
        for j in 0..hidden {
            let r = sigmoid(from_x[j] + from_h[j]);
            let z = sigmoid(from_x[hidden + j] + from_h[hidden + j]);
            let n = (from_x[2 * hidden + j] + r * from_h[2 * hidden + j]).tanh();
            after[j] = (1.0 - z) * n + z * h[j];
        }
        after
    }
}

/// `matrix · x + bias`
fn multiply(matrix: &Matrix, x: &[f32], bias: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; matrix.rows()];
    for j in 0..matrix.rows() {
        let row = matrix.row(j);
        let mut sum = bias[j];
        for k in 0..x.len() {
            sum += row[k] * x[k];
        }
        y[j] = sum;
    }
    y
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
