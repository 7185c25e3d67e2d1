//! Where the answers of an LSTM must lie when what it multiplies is quantised: interval arithmetic
//! in f64, from the formulas in `Cell`'s documentation, with sigmoid gates and tanh elsewhere.
//!
//! Every value is an interval. A value that goes into a product is widened by the most that
//! rounding it may move it; both activations are monotone, so their intervals are exact.

use gatestream::model::{Direction, Model, OwnedInput};

/// A value's least and greatest.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub low: f64,
    pub high: f64,
}

impl Range {
    fn exactly(value: f32) -> Range {
        let value = f64::from(value);
        Range {
            low: value,
            high: value,
        }
    }

    fn widened(self, by: f64) -> Range {
        Range {
            low: self.low - by,
            high: self.high + by,
        }
    }

    fn plus(self, other: Range) -> Range {
        Range {
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }

    fn times(self, other: Range) -> Range {
        let ends = [
            self.low * other.low,
            self.low * other.high,
            self.high * other.low,
            self.high * other.high,
        ];
        Range {
            low: ends.into_iter().fold(f64::INFINITY, f64::min),
            high: ends.into_iter().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn by(self, monotone: impl Fn(f64) -> f64) -> Range {
        Range {
            low: monotone(self.low),
            high: monotone(self.high),
        }
    }

    /// The greatest magnitude.
    fn most(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }
}

/// How what goes into a product is quantised.
#[derive(Clone, Copy, PartialEq)]
pub enum Rounding {
    /// Each sequence and step: greatest magnitude / 127, to the nearest.
    ByRow,
    /// All of them as uint8 with a zero point: (greatest - least, or 0) / 255, to the nearest.
    Together,
}

impl Rounding {
    /// The most that each value of each row is moved, with a little for the rounding of f32.
    fn error(self, rows: &[Vec<Range>]) -> Vec<f64> {
        let step = match self {
            Rounding::ByRow => {
                let most = |row: &Vec<Range>| row.iter().fold(0.0f64, |m, r| m.max(r.most()));
                return rows.iter().map(|row| 0.501 * most(row) / 127.0).collect();
            }
            Rounding::Together => {
                let all = || rows.iter().flatten();
                let high = all().fold(0.0f64, |m, r| m.max(r.high));
                let low = all().fold(0.0f64, |m, r| m.min(r.low));
                (high - low) / 255.0
            }
        };
        vec![0.501 * step; rows.len()]
    }

    fn of(self, rows: &[Vec<Range>]) -> Vec<Vec<Range>> {
        let errors = self.error(rows);
        let widened = |(row, by): (&Vec<Range>, f64)| row.iter().map(|r| r.widened(by)).collect();
        rows.iter().zip(errors).map(widened).collect()
    }
}

/// Weights `[rows][columns]`, gates in this crate's order.
pub type Rows = Vec<Vec<f64>>;

/// The ranges of `values`, `hn` and `cn`, laid out as `OwnedOutput`'s.
pub struct Ranges {
    pub values: Vec<Range>,
    pub hn: Vec<Range>,
    pub cn: Vec<Range>,
}

/// The ranges of a model's answers. `weights` gives W and U of a layer's direction, which replace
/// the model's own; biases, peepholes and clip are the model's.
pub fn enclose(
    model: &Model,
    input: &OwnedInput,
    rounding: Rounding,
    weights: impl Fn(usize, &Direction) -> [Rows; 2],
) -> Ranges {
    let (steps, batch) = (input.steps, input.batch);
    let mut xs: Vec<Vec<Range>> = input
        .values
        .chunks_exact(input.values.len() / (steps * batch))
        .map(|row| row.iter().map(|v| Range::exactly(*v)).collect())
        .collect();
    let (mut hn, mut cn) = (Vec::new(), Vec::new());
    for (index, layer) in model.layers().iter().enumerate() {
        let rounded = rounding.of(&xs);
        let mut outputs = vec![Vec::new(); steps * batch];
        for direction in layer.directions() {
            let [w, u] = weights(index, direction);
            let hidden = direction.hidden_size();
            let start = |states: &[f32], sequence: usize| -> Vec<Range> {
                let from = hn.len() + sequence * hidden;
                let states = &states[from..from + hidden];
                states.iter().map(|v| Range::exactly(*v)).collect()
            };
            let mut h: Vec<_> = (0..batch).map(|s| start(&input.h0, s)).collect();
            let mut c: Vec<_> = (0..batch).map(|s| start(&input.c0, s)).collect();
            let mut ys = vec![vec![Range::exactly(0.0); hidden]; steps * batch];
            for step in 0..steps {
                let states = rounding.of(&h);
                for sequence in 0..batch {
                    let length = input.lengths.as_ref().map_or(steps, |l| l[sequence]);
                    if step >= length {
                        continue;
                    }
                    let time = if direction.is_reverse() {
                        length - 1 - step
                    } else {
                        step
                    };
                    let x = &rounded[time * batch + sequence];
                    let row = |j: usize| {
                        let terms = w[j].iter().zip(x).chain(u[j].iter().zip(&states[sequence]));
                        let bias = direction.weights().input_bias[j]
                            + direction.weights().recurrent_bias[j];
                        terms.fold(Range::exactly(bias), |z, (&w, x)| {
                            z.plus(x.times(Range { low: w, high: w }))
                        })
                    };
                    let z: Vec<Range> = (0..4 * hidden).map(row).collect();
                    advance(direction, &z, &mut h[sequence], &mut c[sequence]);
                    ys[time * batch + sequence] = h[sequence].clone();
                }
            }
            for (output, y) in outputs.iter_mut().zip(ys) {
                output.extend(y);
            }
            hn.extend(h.into_iter().flatten());
            cn.extend(c.into_iter().flatten());
        }
        xs = outputs;
    }
    let values = xs.into_iter().flatten().collect();
    Ranges { values, hn, cn }
}

/// The new states from the products.
fn advance(direction: &Direction, z: &[Range], h: &mut [Range], c: &mut [Range]) {
    let hidden = h.len();
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    let bound = direction.clip().map_or(f64::INFINITY, f64::from);
    let clip = |z: Range| z.by(|z| z.clamp(-bound, bound));
    let output_bound = direction.output_clip().map_or(f64::INFINITY, f64::from);
    let output_clip = |c: Range| c.by(|c| c.clamp(-output_bound, output_bound));
    let peepholes = direction.weights().peepholes.as_ref();
    for j in 0..hidden {
        let seen = |p: Option<f32>, c: Range| Range::exactly(p.unwrap_or(0.0)).times(c);
        let (to_input, to_forget, to_output) = (
            peepholes.map(|p| p.input[j]),
            peepholes.map(|p| p.forget[j]),
            peepholes.map(|p| p.output[j]),
        );
        let i = clip(z[j].plus(seen(to_input, c[j]))).by(sigmoid);
        let f = clip(z[hidden + j].plus(seen(to_forget, c[j]))).by(sigmoid);
        let g = clip(z[2 * hidden + j]).by(f64::tanh);
        c[j] = f.times(c[j]).plus(i.times(g));
        let o = clip(z[3 * hidden + j].plus(seen(to_output, c[j]))).by(sigmoid);
        h[j] = o.times(output_clip(c[j]).by(f64::tanh));
    }
}
