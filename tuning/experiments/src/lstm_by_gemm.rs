//! An LSTM layer as frameworks run it: one step after the other, each by general products.
//!
//! ```text
//! apart                                   fused (TensorFlow, CNTK)
//! for step                                for step
//!   for gate in i f g o                     xh <- [x, h]
//!     z[gate] <- bias; += x·W; += h·U       z <- bias; += xh·[W; U]
//!   c, h, y <- gates                        c, h, y <- gates
//! ```
//!
//! Activations are the crate's own vector functions, so that the products are what is compared.

use std::time::Duration;

use gatestream::Model;
use gatestream_kernels::{Activation, Isa, activate_all};

use crate::gemm::{Gemm, Product, Split};
use crate::runner::Expected;

/// Which products a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Eight.
    Apart,
    /// One.
    Fused,
}

/// One LSTM layer and its buffers.
pub struct LstmByGemm<'g> {
    gemm: &'g Gemm,
    form: Form,
    split: Split,
    isa: Isa,
    input: usize,
    hidden: usize,
    batch: usize,
    /// Apart: per gate `[input, hidden]` then per gate `[hidden, hidden]`. Fused: one
    /// `[input + hidden, 4 hidden]`.
    weights: Vec<Vec<f32>>,
    /// `[4 hidden]`.
    bias: Vec<f32>,
    x: Vec<f32>,
    /// `[steps, batch, hidden]`, after a run.
    pub y: Vec<f32>,
    z: Vec<f32>,
    xh: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
}

impl<'g> LstmByGemm<'g> {
    /// Both forms with each of `gemms`, which have been run once and held against the reference.
    ///
    /// # Errors
    /// As [`LstmByGemm::new`]; an answer that is farther than 1e-4 from what is expected.
    pub fn of_each(
        model: &Model,
        gemms: &'g [Gemm],
        batch: usize,
        x: &[f32],
        expected: &Expected,
    ) -> Result<Vec<LstmByGemm<'g>>, Box<dyn std::error::Error>> {
        let mut all = Vec::new();
        for gemm in gemms {
            for form in [Form::Apart, Form::Fused] {
                let mut lstm = LstmByGemm::new(model, gemm, form, batch, x)?;
                lstm.run();
                expected.check(gemm.library().name(), &lstm.y, 1e-4)?;
                all.push(lstm);
            }
        }
        Ok(all)
    }

    /// For the first direction of the first layer of `model` and an input `[steps, batch,
    /// features]`; with the split that is fastest for it.
    ///
    /// # Errors
    /// The instruction set that is asked for is not there.
    pub fn new(
        model: &Model,
        gemm: &'g Gemm,
        form: Form,
        batch: usize,
        x: &[f32],
    ) -> Result<LstmByGemm<'g>, Box<dyn std::error::Error>> {
        let direction = &model.layers()[0].directions()[0];
        let weights = direction.weights();
        let (input, hidden) = (direction.input_size(), direction.hidden_size());
        let steps = x.len() / input / batch;
        let biases = weights.input_bias.iter().zip(&weights.recurrent_bias);
        let (w, u) = (weights.input.data(), weights.recurrent.data());
        let (w, u) = (&*w, &*u);
        let packed = match form {
            Form::Apart => {
                let gate = |from: &[f32], depth: usize, gate: usize| {
                    let block = &from[gate * hidden * depth..(gate + 1) * hidden * depth];
                    transposed(block, depth, hidden, 0, vec![0.0; depth * hidden])
                };
                let inputs = (0..4).map(|g| gate(w, input, g));
                inputs.chain((0..4).map(|g| gate(u, hidden, g))).collect()
            }
            Form::Fused => {
                let to = vec![0.0; (input + hidden) * 4 * hidden];
                let to = transposed(w, input, 4 * hidden, 0, to);
                vec![transposed(u, hidden, 4 * hidden, input, to)]
            }
        };
        let mut lstm = LstmByGemm {
            gemm,
            form,
            split: Split::Whole,
            isa: Isa::select()?,
            input,
            hidden,
            batch,
            weights: packed,
            bias: biases.map(|(a, b)| a + b).collect(),
            x: x.to_vec(),
            y: vec![0.0; steps * batch * hidden],
            z: vec![0.0; batch * 4 * hidden],
            xh: vec![0.0; batch * (input + hidden)],
            h: vec![0.0; batch * hidden],
            c: vec![0.0; batch * hidden],
        };
        lstm.split = gemm.best_split(batch, |split| {
            lstm.split = split;
            lstm.run()
        });
        Ok(lstm)
    }

    /// The split in use.
    pub fn split(&self) -> Split {
        self.split
    }

    /// Runs all steps from zero states.
    pub fn run(&mut self) -> Duration {
        let gemm = self.gemm;
        gemm.time(|| {
            self.h.fill(0.0);
            self.c.fill(0.0);
            for step in 0..self.x.len() / (self.input * self.batch) {
                match self.form {
                    Form::Apart => self.products_apart(step),
                    Form::Fused => self.product_fused(step),
                }
                self.gates(step);
            }
        })
    }

    fn products_apart(&mut self, step: usize) {
        let (batch, hidden) = (self.batch, self.hidden);
        let size = batch * self.input;
        let x = &self.x[step * size..(step + 1) * size];
        for (gate, z) in self.z.chunks_exact_mut(batch * hidden).enumerate() {
            for row in z.chunks_exact_mut(hidden) {
                row.copy_from_slice(&self.bias[gate * hidden..(gate + 1) * hidden]);
            }
            let products = [(x, self.input, gate), (&self.h, hidden, 4 + gate)];
            for (a, depth, weights) in products {
                let product = Product {
                    rows: batch,
                    depth,
                    columns: hidden,
                    a,
                    b: &self.weights[weights],
                    c: z,
                    add: true,
                };
                self.gemm.multiply(self.split, product);
            }
        }
    }

    fn product_fused(&mut self, step: usize) {
        let (batch, hidden, input) = (self.batch, self.hidden, self.input);
        for (row, xh) in self.xh.chunks_exact_mut(input + hidden).enumerate() {
            let x = (step * batch + row) * input;
            xh[..input].copy_from_slice(&self.x[x..x + input]);
            xh[input..].copy_from_slice(&self.h[row * hidden..(row + 1) * hidden]);
        }
        for z in self.z.chunks_exact_mut(4 * hidden) {
            z.copy_from_slice(&self.bias);
        }
        let product = Product {
            rows: batch,
            depth: input + hidden,
            columns: 4 * hidden,
            a: &self.xh,
            b: &self.weights[0],
            c: &mut self.z,
            add: true,
        };
        self.gemm.multiply(self.split, product);
    }

    fn gates(&mut self, step: usize) {
        let (batch, hidden) = (self.batch, self.hidden);
        let (isa, form) = (self.isa, self.form);
        // Where a gate of a row starts.
        let at = |row: usize, gate: usize| match form {
            Form::Apart => (gate * batch + row) * hidden,
            Form::Fused => (row * 4 + gate) * hidden,
        };
        let activate = |function, values: &mut [f32]| {
            // The instruction set was there when this was made.
            let _ = activate_all(isa, function, values);
        };
        for row in 0..batch {
            for (gate, function) in [Activation::Sigmoid; 4].into_iter().enumerate() {
                let function = if gate == 2 {
                    Activation::Tanh
                } else {
                    function
                };
                activate(function, &mut self.z[at(row, gate)..][..hidden]);
            }
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| &self.z[at(row, gate)..][..hidden]);
            let c = &mut self.c[row * hidden..][..hidden];
            let h = &mut self.h[row * hidden..][..hidden];
            for j in 0..hidden {
                c[j] = f[j] * c[j] + i[j] * g[j];
            }
            h.copy_from_slice(c);
            activate(Activation::Tanh, h);
            for j in 0..hidden {
                h[j] *= o[j];
            }
        }
        self.y[step * batch * hidden..][..batch * hidden].copy_from_slice(&self.h);
    }
}

/// Writes `from[columns, depth]` as rows `first..first + depth` of `to[_, columns]`.
fn transposed(
    from: &[f32],
    depth: usize,
    columns: usize,
    first: usize,
    mut to: Vec<f32>,
) -> Vec<f32> {
    for (column, row) in from.chunks_exact(depth).enumerate() {
        for (k, value) in row.iter().enumerate() {
            to[(first + k) * columns + column] = *value;
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Library;
    use crate::shapes::{Shape, numbers};

    #[test]
    fn both_forms_are_near_the_reference() {
        let shape = Shape {
            input: 5,
            hidden: 20,
            batch: 3,
            steps: 4,
        };
        let model = shape.lstm().unwrap();
        let x = numbers(5 * 3 * 4);
        let gemm = Gemm::new(2, Library::MatrixMultiply).unwrap();
        let expected = Expected::new(&model, 3, &x).unwrap();
        for form in [Form::Apart, Form::Fused] {
            let mut lstm = LstmByGemm::new(&model, &gemm, form, 3, &x).unwrap();
            lstm.run();
            expected.check("gemm", &lstm.y, 1e-5).unwrap();
            let other = numbers(lstm.y.len());
            assert!(expected.check("gemm", &other, 1e-5).is_err());
        }
    }
}
