//! What several integration tests share: random models and inputs, and comparison by bits.
#![allow(dead_code, missing_docs)] // each test binary uses a part

pub mod isas;
pub mod plan_files;
pub mod plans;

use gatestream::model::{
    Activation, Cell, Direction, Input, Layer, Layout, Matrix, Merge, Model, Output, Peepholes,
    Precision, ResetForm, Weights,
};
use gatestream::reference;

/// Every activation, with parameters that keep values in range.
pub const ACTIVATIONS: [Activation; 11] = [
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Relu,
    Activation::Affine {
        alpha: 0.5,
        beta: 0.1,
    },
    Activation::LeakyRelu { alpha: 0.1 },
    Activation::ThresholdedRelu { alpha: 0.2 },
    Activation::ScaledTanh {
        alpha: 0.8,
        beta: 1.1,
    },
    Activation::HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    },
    Activation::Elu { alpha: 0.7 },
    Activation::Softsign,
    Activation::Softplus,
];

/// The cells that take different ways through the kernels.
pub fn usual_cells() -> Vec<(Cell, Options)> {
    let plain = Options::default();
    let gru = |reset| Cell::Gru {
        gate: Activation::Sigmoid,
        candidate: Activation::Tanh,
        reset,
    };
    vec![
        (Cell::LSTM, plain),
        (
            Cell::LSTM,
            Options {
                projection: true,
                ..plain
            },
        ),
        (gru(ResetForm::After), plain),
        (gru(ResetForm::Before), plain),
        (Cell::LIGHT_GRU, plain),
        (Cell::RNN, plain),
    ]
}

/// Parts of a direction that may be there or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub projection: bool,
    pub peepholes: bool,
    pub clip: bool,
}

pub struct Random(pub fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * self.0.f32() - 1.0).collect()
    }

    fn scaled(&mut self, count: usize, depth: usize) -> Vec<f32> {
        let bound = 1.0 / (depth.max(1) as f32).sqrt();
        (0..count)
            .map(|_| (2.0 * self.0.f32() - 1.0) * bound)
            .collect()
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix::new(rows, cols, self.scaled(rows * cols, cols)).unwrap()
    }

    /// The model with a precision of its own for each matrix, or one for all.
    pub fn in_some_precision(&mut self, model: Model) -> Model {
        let mut any = || Precision::ALL[self.0.usize(..3)];
        let one = any();
        let mixed = any() == Precision::F32;
        let mut pick = || if mixed { any() } else { one };
        let layers = model.layers().iter().map(|layer| {
            let mut directions: Vec<Direction> = layer.directions().to_vec();
            for direction in &mut directions {
                let mut weights = direction.weights().clone();
                weights.input = weights.input.in_precision(pick()).unwrap();
                weights.recurrent = weights.recurrent.in_precision(pick()).unwrap();
                weights.projection = weights.projection.map(|p| p.in_precision(pick()).unwrap());
                let mut converted = Direction::new(*direction.cell(), weights).unwrap();
                if let Some(clip) = direction.clip() {
                    converted = converted.with_clip(clip).unwrap();
                }
                if direction.output_clip().is_some() {
                    converted = converted.clipping_output();
                }
                if direction.is_reverse() {
                    converted = converted.reversed();
                }
                *direction = converted;
            }
            match <[Direction; 2]>::try_from(directions) {
                Ok([forward, reverse]) => {
                    Layer::bidirectional(forward, reverse, layer.merge()).unwrap()
                }
                Err(mut one) => Layer::single(one.remove(0)),
            }
        });
        Model::new(layers.collect()).unwrap()
    }

    pub fn direction(
        &mut self,
        cell: Cell,
        input: usize,
        hidden: usize,
        options: Options,
    ) -> Direction {
        let rows = cell.kind().gates() * hidden;
        let projected = hidden.div_ceil(2) + 1;
        let state = if options.projection {
            projected
        } else {
            hidden
        };
        let weights = Weights {
            input: self.matrix(rows, input),
            recurrent: self.matrix(rows, state),
            input_bias: self.values(rows),
            recurrent_bias: self.values(rows),
            peepholes: options.peepholes.then(|| Peepholes {
                input: self.values(hidden),
                forget: self.values(hidden),
                output: self.values(hidden),
            }),
            projection: options.projection.then(|| self.matrix(projected, hidden)),
        };
        let direction = Direction::new(cell, weights).unwrap();
        if !options.clip {
            return direction;
        }
        let is_of_output = self.0.bool();
        let direction = direction.with_clip(0.4).unwrap();
        if is_of_output {
            direction.clipping_output()
        } else {
            direction
        }
    }

    /// A cell with random activations and options.
    pub fn cell(&mut self) -> (Cell, Options) {
        let usual = self.0.bool();
        let mut pick = |standard: Activation| {
            if usual {
                standard
            } else {
                ACTIVATIONS[self.0.usize(..ACTIVATIONS.len())]
            }
        };
        let (gate, candidate, output) = (
            pick(Activation::Sigmoid),
            pick(Activation::Tanh),
            pick(Activation::Tanh),
        );
        let clip = self.0.u8(..4) == 0;
        let plain = Options {
            clip,
            ..Options::default()
        };
        match self.0.u8(..4) {
            0 | 1 => (
                Cell::Lstm {
                    gate,
                    candidate,
                    output,
                    input_forget: self.0.u8(..4) == 0,
                },
                Options {
                    projection: self.0.u8(..3) == 0,
                    peepholes: self.0.u8(..3) == 0,
                    clip,
                },
            ),
            2 => (
                Cell::Gru {
                    gate,
                    candidate,
                    reset: if self.0.bool() {
                        ResetForm::Before
                    } else {
                        ResetForm::After
                    },
                },
                plain,
            ),
            _ => (
                Cell::Rnn {
                    activation: candidate,
                },
                plain,
            ),
        }
    }

    /// One layer: 0 forward, 1 reverse, 2 concatenated, 3 summed.
    pub fn layer(
        &mut self,
        cell: Cell,
        input: usize,
        hidden: usize,
        options: Options,
        way: u8,
    ) -> Layer {
        let forward = self.direction(cell, input, hidden, options);
        let merge = match way {
            0 => return Layer::single(forward),
            1 => return Layer::single(forward.reversed()),
            2 => Merge::Concat,
            _ => Merge::Sum,
        };
        let reverse = self.direction(cell, input, hidden, options);
        Layer::bidirectional(forward, reverse, merge).unwrap()
    }

    pub fn stack(&mut self, most_units: usize) -> Model {
        let mut input = self.0.usize(0..=most_units);
        let layers = (0..self.0.usize(1..=3))
            .map(|_| {
                let (cell, options) = self.cell();
                let hidden = self.0.usize(1..=most_units);
                let way = self.0.u8(..4);
                let layer = self.layer(cell, input, hidden, options, way);
                input = layer.output_size();
                layer
            })
            .collect();
        Model::new(layers).unwrap()
    }
}

/// A batch with everything that a run may be given, as owned values.
#[derive(Debug)]
pub struct Batch {
    pub steps: usize,
    pub batch: usize,
    pub layout: Layout,
    pub values: Vec<f32>,
    pub lengths: Option<Vec<usize>>,
    pub h0: Option<Vec<f32>>,
    pub c0: Option<Vec<f32>>,
}

impl Batch {
    pub fn full(random: &mut Random, model: &Model, batch: usize, steps: usize) -> Batch {
        Batch {
            steps,
            batch,
            layout: Layout::TimeMajor,
            values: random.values(steps * batch * model.signature().input),
            lengths: None,
            h0: None,
            c0: None,
        }
    }

    /// Random lengths, states and layout.
    pub fn ragged(random: &mut Random, model: &Model, batch: usize, steps: usize) -> Batch {
        let signature = model.signature();
        let lengths: Vec<_> = (0..batch).map(|_| random.0.usize(0..=steps)).collect();
        let layout = if random.0.bool() {
            Layout::TimeMajor
        } else {
            Layout::BatchMajor
        };
        let states = random.0.bool();
        Batch {
            layout,
            lengths: (random.0.u8(..4) > 0).then_some(lengths),
            h0: states.then(|| random.values(batch * signature.hidden_state)),
            c0: states.then(|| random.values(batch * signature.cell_state)),
            ..Batch::full(random, model, batch, steps)
        }
    }

    pub fn input(&self) -> Input<'_> {
        Input {
            values: &self.values,
            steps: self.steps,
            batch: self.batch,
            layout: Some(self.layout),
            lengths: self.lengths.as_deref(),
            h0: self.h0.as_deref(),
            c0: self.c0.as_deref(),
        }
    }
}

/// Owned results of a run.
#[derive(Clone, PartialEq)]
pub struct Results {
    pub values: Vec<f32>,
    pub hn: Vec<f32>,
    pub cn: Vec<f32>,
}

impl Results {
    /// Room for the results, filled with what no run may leave or read.
    pub fn dirty(model: &Model, batch: &Batch) -> Results {
        let signature = model.signature();
        let filled = |len: usize| vec![f32::from_bits(0x7fc0_dead); len];
        Results {
            values: filled(batch.steps * batch.batch * signature.output),
            hn: filled(batch.batch * signature.hidden_state),
            cn: filled(batch.batch * signature.cell_state),
        }
    }

    pub fn output(&mut self) -> Output<'_> {
        Output::new(&mut self.values)
            .hn(&mut self.hn)
            .cn(&mut self.cn)
    }

    pub fn reference(model: &Model, batch: &Batch) -> Results {
        let mut results = Results::dirty(model, batch);
        reference::run(model, &batch.input(), &mut results.output()).unwrap();
        results
    }

    /// Panics at the first value that differs in any bit. NaNs are equal to each other.
    pub fn assert_same(&self, other: &Results, what: impl std::fmt::Display) {
        let pairs = [
            ("output", &self.values, &other.values),
            ("hn", &self.hn, &other.hn),
            ("cn", &self.cn, &other.cn),
        ];
        for (name, found, expected) in pairs {
            assert_eq!(found.len(), expected.len(), "{what}: {name}");
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let differs = found.iter().zip(expected).position(|(a, b)| !same(*a, *b));
            if let Some(at) = differs {
                panic!(
                    "{what}: {name}[{at}] is {:e}, the reference says {:e}",
                    found[at], expected[at]
                );
            }
        }
    }
}
