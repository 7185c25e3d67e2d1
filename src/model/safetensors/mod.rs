//! Recurrent stacks in safetensors files, under the names that PyTorch's modules give.
//!
//! ```text
//! sort the names into stacks (by what stands before weight_ih_l0 …) and other tensors
//! choose the stack; refuse what is not part of it
//! hold its places (layer, direction) and shapes against each other     — header only
//! widen the tensors, build the layers
//! ```

mod metadata;
mod save;
mod stack;
mod tensors;

pub use tensors::Tensors;

use metadata::{LayerText, Metadata};
use stack::{Given, Place, Stack};

use super::{Cell, Direction, Layer, Layout, LoadError, Merge, Model};

/// What a safetensors file does not say by itself.
///
/// ```
/// use cellstream::model::{Activation, Cell, SafetensorsOptions};
/// let options = SafetensorsOptions::new()
///     .prefix("encoder.rnn.")
///     .cell(Cell::Rnn { activation: Activation::Relu })
///     .batch_first(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SafetensorsOptions {
    prefix: Option<String>,
    cell: Option<Cell>,
    batch_first: Option<bool>,
}

impl SafetensorsOptions {
    /// Everything as the file says, or inferred.
    pub fn new() -> SafetensorsOptions {
        SafetensorsOptions::default()
    }

    /// Chooses the stack whose tensors' names start with `prefix` (`encoder.rnn.`; the dot may be
    /// left out). Tensors of other modules are then ignored: all that do not start with the prefix,
    /// or have a dot after it. Without a prefix the file must hold one stack and nothing else.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> SafetensorsOptions {
        self.prefix = Some(prefix.into());
        self
    }

    /// The cell of every layer; a contradiction with shapes or metadata is an error. Without it the
    /// metadata entry `cellstream.cell` says it (`lstm`, `gru`, `rnn_tanh` or `rnn_relu`), or
    /// `cellstream.layers` of each layer, or else the shapes do, with PyTorch's activations
    /// ([`Cell::LSTM`], [`Cell::GRU`], [`Cell::RNN`]).
    #[must_use]
    pub fn cell(mut self, cell: Cell) -> SafetensorsOptions {
        self.cell = Some(cell);
        self
    }

    /// Whether the first axis of input and output is the batch, not the time. Without it the
    /// metadata entry `cellstream.batch_first` says it (`true` or `false`), or `cellstream.interface`
    /// of each port, or else it is not.
    #[must_use]
    pub fn batch_first(mut self, yes: bool) -> SafetensorsOptions {
        self.batch_first = Some(yes);
        self
    }
}

impl Model {
    /// The recurrent stack in a safetensors file, as `torch.nn.LSTM`, `GRU` and `RNN` name its
    /// tensors in a `state_dict`: after any prefix, for layer 0, 1, … and again with `_reverse`,
    /// `weight_ih_l0` `[G·H, E]`, `weight_hh_l0` `[G·H, R]`, `bias_ih_l0` and `bias_hh_l0` `[G·H]`
    /// (all or none, meaning zero), and for an LSTM with projection `weight_hr_l0` `[R, H]`.
    /// Layers may differ in size. `F32`, `F16` and `BF16` are read, as `f32`.
    ///
    /// The kind of cell follows from `G`, the rows of `weight_ih` over the hidden size: 4 for an
    /// LSTM, 3 for a GRU, 1 for an RNN.
    ///
    /// Beyond PyTorch, as [`Model::save_safetensors`] writes them: a weight may be `I8` with its
    /// scales, `weight_ih_l0_scale` `[G·H]`, and is then int8 ([`Matrix::from_int8`](super::Matrix::from_int8)); an LSTM may
    /// have `peephole_l0` `[3, H]` (to the input, forget and output gate); and the metadata may say
    /// the rest of a model. `BF16` weights are kept as bf16 only where `cellstream.precision` is
    /// `bf16` or `mixed`.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] for bytes that are no such file; [`LoadError::Tensor`] naming a
    /// tensor that is missing, of another shape or type, or not part of the stack;
    /// [`LoadError::SeveralStacks`] and [`LoadError::NoStack`] where the prefix does not choose
    /// one; [`LoadError::Metadata`] for an undefined value of a `cellstream.` entry.
    pub fn from_safetensors(
        bytes: &[u8],
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        Model::from_tensors(&Tensors::from_bytes(bytes)?, options)
    }

    /// As [`Model::from_safetensors`], from a file whose header has been read.
    ///
    /// # Errors
    /// As [`Model::from_safetensors`], less [`LoadError::Malformed`].
    pub fn from_tensors(
        tensors: &Tensors<'_>,
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        let said = Metadata::read(tensors)?;
        let stack = Stack::find(tensors, &said, options.prefix.as_deref())?;
        let mut cell = given_cell(&said, options)?;

        // All shapes before any value: a file that is refused costs its header only.
        let mut below = None;
        for places in stack.layers() {
            let (mut one, mut all) = (0, 0);
            for &place in places {
                one = stack.check(place, &mut cell, below)?;
                all += one;
            }
            below = Some(match stack.merge(places[0].layer) {
                Merge::Concat => all,
                Merge::Sum => one,
            });
        }

        let layers = stack.layers().map(|places| {
            let direction = |place: Place| -> Result<Direction, LoadError> {
                let text = stack.text(place);
                let cell = text.map(|text| text.cell).or(cell.map(|(cell, _)| cell));
                let cell = cell.expect("a checked place has a cell");
                let direction = Direction::new(cell, stack.weights(place)?)?;
                let direction = match text {
                    Some(text) => text.finish(direction)?,
                    None => direction,
                };
                Ok(match place.reverse {
                    true => direction.reversed(),
                    false => direction,
                })
            };
            match *places {
                [forward, reverse, ..] => Ok(Layer::bidirectional(
                    direction(forward)?,
                    direction(reverse)?,
                    stack.merge(forward.layer),
                )?),
                _ => Ok(Layer::single(direction(places[0])?)),
            }
        });
        let layers = layers.collect::<Result<_, LoadError>>()?;
        let model = match said.interface {
            Some(interface) => Model::with_interface(layers, interface)?,
            None => Model::new(layers)?,
        };
        match (options.batch_first.or(said.batch_first), model.layout()) {
            (Some(true), _) => Ok(model.batch_first()),
            // Only ports of the metadata can be so by themselves.
            (Some(false), Layout::BatchMajor) => Err(metadata::refused(
                metadata::INTERFACE,
                "batch first",
                "time first, as the options ask, or leave it out of them",
            )),
            _ => Ok(model),
        }
    }
}

/// The cell of all layers that options or metadata give.
fn given_cell(said: &Metadata, options: &SafetensorsOptions) -> Result<Option<Given>, LoadError> {
    let asked = options.cell;
    let cells = said.layers.iter().flatten();
    let cells = cells.flat_map(LayerText::directions).map(|d| d.cell);
    // An entry for all layers tells four cells apart; options may go on to say what it has no word for.
    let (key, contradicted) = match said.cell {
        Some(cell) => (
            metadata::CELL,
            asked.filter(|a| is_other(*a, cell)).and(Some(cell)),
        ),
        None => (
            metadata::LAYERS,
            cells
                .into_iter()
                .find(|cell| asked.is_some_and(|a| a != *cell)),
        ),
    };
    match (contradicted, asked, said.cell) {
        (Some(cell), ..) => Err(metadata::refused(
            key,
            Metadata::word(&cell).unwrap_or("another cell"),
            "the cell that the options ask for, or leave it out of them",
        )),
        (None, Some(asked), _) => Ok(Some((asked, "the options ask for"))),
        (None, None, said) => Ok(said.map(|cell| (cell, "the metadata says"))),
    }
}

/// Whether a cell that was asked for contradicts the one that a file names.
fn is_other(asked: Cell, said: Cell) -> bool {
    match (asked, said) {
        (Cell::Rnn { .. }, Cell::Rnn { .. }) => asked != said,
        _ => asked.kind() != said.kind(),
    }
}
