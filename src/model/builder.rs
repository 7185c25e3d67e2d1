//! Models made in code: `Lstm::new(64, 256).layers(2).bidirectional(Merge::Concat).random(1)`.

use std::marker::PhantomData;

use super::{
    Activation, Cell, Direction, Layer, Matrix, Merge, Model, ModelError, ResetForm, Weights,
};

/// A stack of equal layers in the making; see [`Lstm`], [`Gru`] and [`Rnn`].
///
/// ```
/// use gatestream::model::{Lstm, Merge};
/// let model = Lstm::new(40, 128).layers(3).bidirectional(Merge::Concat).random(7)?;
/// assert_eq!(model.signature().output, 256);
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder<C> {
    cell: Cell,
    kind: PhantomData<C>,
    input: usize,
    hidden: usize,
    layers: usize,
    merge: Option<Merge>,
    projection: Option<usize>,
    clip: Option<f32>,
}

/// Builds LSTM models.
pub type Lstm = Builder<LstmCell>;
/// Builds GRU models.
pub type Gru = Builder<GruCell>;
/// Builds vanilla RNN models.
pub type Rnn = Builder<RnnCell>;

/// The kind of [`Lstm`].
#[derive(Clone, Debug)]
pub struct LstmCell;
/// The kind of [`Gru`].
#[derive(Clone, Debug)]
pub struct GruCell;
/// The kind of [`Rnn`].
#[derive(Clone, Debug)]
pub struct RnnCell;

/// The place in a model that a builder asks weights for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which layer, from 0.
    pub layer: usize,
    /// Whether it is the reverse direction.
    pub reverse: bool,
    /// `E`, features of the layer's input.
    pub input: usize,
    /// `H`, hidden units.
    pub hidden: usize,
    /// `R`, size of the recurrent state.
    pub state: usize,
}

impl Lstm {
    /// One forward layer of `hidden` units over `input` features.
    pub fn new(input: usize, hidden: usize) -> Lstm {
        Builder::of(Cell::LSTM, input, hidden)
    }

    /// Couples the forget gate to the input gate, `f = 1 - i`.
    #[must_use]
    pub fn input_forget(mut self) -> Lstm {
        if let Cell::Lstm { input_forget, .. } = &mut self.cell {
            *input_forget = true;
        }
        self
    }

    /// Replaces the activations of gates, candidate and output.
    #[must_use]
    pub fn activations(mut self, all: [Activation; 3]) -> Lstm {
        if let Cell::Lstm {
            gate,
            candidate,
            output,
            ..
        } = &mut self.cell
        {
            [*gate, *candidate, *output] = all;
        }
        self
    }

    /// Projects the hidden state to `size` values (PyTorch `proj_size`).
    #[must_use]
    pub fn projection(mut self, size: usize) -> Lstm {
        self.projection = Some(size);
        self
    }
}

impl Gru {
    /// One forward layer of `hidden` units over `input` features, reset after the product.
    pub fn new(input: usize, hidden: usize) -> Gru {
        Builder::of(Cell::GRU, input, hidden)
    }

    /// Chooses where the reset gate acts.
    #[must_use]
    pub fn reset(mut self, form: ResetForm) -> Gru {
        if let Cell::Gru { reset, .. } = &mut self.cell {
            *reset = form;
        }
        self
    }

    /// Replaces the activations of gates and candidate.
    #[must_use]
    pub fn activations(mut self, all: [Activation; 2]) -> Gru {
        if let Cell::Gru {
            gate, candidate, ..
        } = &mut self.cell
        {
            [*gate, *candidate] = all;
        }
        self
    }
}

impl Rnn {
    /// One forward layer of `hidden` units over `input` features, with tanh.
    pub fn new(input: usize, hidden: usize) -> Rnn {
        Builder::of(Cell::RNN, input, hidden)
    }

    /// Replaces the activation.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Rnn {
        self.cell = Cell::Rnn { activation };
        self
    }
}

impl Builder<Cell> {
    /// One forward layer of `hidden` units of `cell` over `input` features.
    pub fn with_cell(cell: Cell, input: usize, hidden: usize) -> Builder<Cell> {
        Builder::of(cell, input, hidden)
    }
}

impl<C> Builder<C> {
    pub(super) fn of(cell: Cell, input: usize, hidden: usize) -> Builder<C> {
        Builder {
            cell,
            kind: PhantomData,
            input,
            hidden,
            layers: 1,
            merge: None,
            projection: None,
            clip: None,
        }
    }

    /// Stacks this many layers.
    #[must_use]
    pub fn layers(mut self, layers: usize) -> Self {
        self.layers = layers;
        self
    }

    /// Makes every layer bidirectional.
    #[must_use]
    pub fn bidirectional(mut self, merge: Merge) -> Self {
        self.merge = Some(merge);
        self
    }

    /// Clamps the pre-activations of gates and candidates to `[-clip, clip]`.
    #[must_use]
    pub fn clip(mut self, clip: f32) -> Self {
        self.clip = Some(clip);
        self
    }

    /// The model, with the weights that `weights` gives for each place.
    ///
    /// # Errors
    /// What [`Direction::new`], [`Layer::bidirectional`] and [`Model::new`] refuse.
    pub fn build(&self, mut weights: impl FnMut(Slot) -> Weights) -> Result<Model, ModelError> {
        let mut input = self.input;
        let mut layers = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            let mut direction = |reverse| {
                let direction = Direction::new(
                    self.cell,
                    weights(Slot {
                        layer,
                        reverse,
                        input,
                        hidden: self.hidden,
                        state: self.projection.unwrap_or(self.hidden),
                    }),
                )?;
                match self.clip {
                    Some(clip) => direction.with_clip(clip),
                    None => Ok(direction),
                }
            };
            let forward = direction(false)?;
            let layer = match self.merge {
                None => Layer::single(forward),
                Some(merge) => Layer::bidirectional(forward, direction(true)?, merge)?,
            };
            input = layer.output_size();
            layers.push(layer);
        }
        Model::new(layers)
    }

    /// The model with weights drawn uniformly from `±1/√hidden`, as PyTorch initialises; equal
    /// seeds give equal models.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn random(&self, seed: u64) -> Result<Model, ModelError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let bound = 1.0 / (self.hidden.max(1) as f32).sqrt();
        self.filled(|count| {
            (0..count)
                .map(|_| (2.0 * random.f32() - 1.0) * bound)
                .collect()
        })
    }

    /// The model with all weights zero: for questions about its shape alone. It takes no time to
    /// make, and most systems give it memory only where that is looked at.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn zeros(&self) -> Result<Model, ModelError> {
        self.filled(|count| vec![0.0; count])
    }

    fn filled(&self, mut values: impl FnMut(usize) -> Vec<f32>) -> Result<Model, ModelError> {
        let gates = self.cell.kind().gates();
        self.build(|slot| {
            let rows = gates * slot.hidden;
            let mut matrix = |rows, cols| {
                Matrix::new(rows, cols, values(rows * cols)).expect("as many values as asked for")
            };
            Weights {
                input: matrix(rows, slot.input),
                recurrent: matrix(rows, slot.state),
                projection: self.projection.map(|size| matrix(size, slot.hidden)),
                input_bias: values(rows),
                recurrent_bias: values(rows),
                peepholes: None,
            }
        })
    }
}
