//! Recurrent stacks in safetensors files, named as PyTorch's modules name their tensors.
//!
//! ```text
//! group the tensors into stacks by their prefix (the text before weight_ih_l0); the rest: others
//! select one stack; refuse tensors that do not belong to it
//! check the shapes of every direction against each other; this reads the header only
//! read the tensors and build the layers
//! ```

mod entry;
mod header;
mod layer_tensors;
mod metadata;
mod names;
mod save;
mod stack;
mod stored_as;
mod tensors;

pub use tensors::Tensors;

#[cfg(feature = "pytorch")]
pub(super) use entry::{Entry, width};
use layer_tensors::DirectionId;
pub(super) use metadata::ActivationText;
use metadata::{LayerMetadata, Metadata};
use stack::{BATCH_FIRST, ExpectedCell, IS_RELU, Stack};
#[cfg(feature = "pytorch")]
pub(super) use tensors::{ModuleOptions, Stated};

use super::{Activation, Cell, Direction, Layer, Layout, LoadError, Merge, Model};

/// Options for what a safetensors file does not state.
///
/// ```
/// use gatestream::model::{Activation, Cell, SafetensorsOptions};
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
    /// No options: everything comes from the file.
    pub fn new() -> SafetensorsOptions {
        SafetensorsOptions::default()
    }

    /// Selects the stack whose tensor names start with `prefix` (`encoder.rnn.`; the final dot is
    /// optional). Tensors of other modules are ignored: names that do not start with the prefix or
    /// that contain another dot after it. Without a prefix the file must hold one stack and nothing
    /// else.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> SafetensorsOptions {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the cell of every layer. Loading fails if the shapes or the metadata contradict it.
    /// Without this option the cell comes from the metadata entry `gatestream.cell` (a name of
    /// [`Cell::NAMED`]) or `gatestream.layers`. Without either it follows from the shapes, with
    /// PyTorch's activations ([`Cell::LSTM`], [`Cell::GRU`], [`Cell::RNN`]) or those of a pickled
    /// module.
    #[must_use]
    pub fn cell(mut self, cell: Cell) -> SafetensorsOptions {
        self.cell = Some(cell);
        self
    }

    /// Sets whether the batch is the first axis of input and output. Without this option the order
    /// comes from the metadata entry `gatestream.batch_first` (`true` or `false`) or
    /// `gatestream.interface`, or from a pickled module. Without them the first axis is time.
    #[must_use]
    pub fn batch_first(mut self, yes: bool) -> SafetensorsOptions {
        self.batch_first = Some(yes);
        self
    }
}

impl Model {
    /// Reads the recurrent stack of a safetensors file.
    ///
    /// Tensors have the names of `torch.nn.LSTM`, `GRU` and `RNN` in a `state_dict`, after any
    /// prefix. Layer 0 has `weight_ih_l0` `[G·H, E]`, `weight_hh_l0` `[G·H, R]`, `bias_ih_l0` and
    /// `bias_hh_l0` `[G·H]` (all biases or none; none means zero), and for an LSTM with projection
    /// `weight_hr_l0` `[R, H]`. Other layers have their own number; a reverse direction has the
    /// suffix `_reverse`. Layers may differ in size. `F32`, `F16`, `BF16` and `F64` are read as
    /// `f32`; values of `F64` are rounded ([`Tensors::rounded`]).
    ///
    /// Tensors of a cell (`torch.nn.LSTMCell`: `weight_ih` without `_l0`) are those of layer 0.
    /// Parametrisations are computed: weight normalisation in both forms (`_g` and `_v`, or
    /// `parametrizations`), pruning (`_orig` and `_mask`), weight drop (`_raw`, without dropout).
    /// Others are refused. A prefix that names a list of modules (`rnns.`, for `rnns.0.` and
    /// `rnns.1.`, of one layer each) selects the stack of all of them, one after the other.
    ///
    /// The kind of cell follows from `G`, the rows of `weight_ih` per hidden unit: 4 for an LSTM,
    /// 3 for a GRU, 1 for an RNN.
    ///
    /// Batch normalisation of the input products is folded into the input weights
    /// ([`BatchNorm::fold`](super::BatchNorm::fold)). Its tensors are `norm_weight_l0`,
    /// `norm_bias_l0`, `norm_mean_l0` and `norm_var_l0` `[G·H]` (of `torch.nn.BatchNorm1d`:
    /// `weight`, `bias`, `running_mean` and `running_var`): all four or none of a direction. The
    /// metadata entry `gatestream.norm_eps` holds its `eps`; without it that is 1e-5.
    ///
    /// Files of [`Model::save_safetensors`] may hold more than PyTorch's: weights of dtype `I8`
    /// with a scale for each row, `weight_ih_l0_scale` `[G·H]`, read as int8
    /// ([`Matrix::from_int8`](super::Matrix::from_int8)); `peephole_l0` `[3, H]` of an LSTM (input,
    /// forget, output gate); and metadata for all other properties of a model. `BF16` weights stay
    /// bf16 only if `gatestream.precision` is `bf16` or `mixed`.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] for bytes that are not a safetensors file. [`LoadError::Tensor`]
    /// with the name of a tensor that is missing, has the wrong shape or type, or does not belong
    /// to the stack. [`LoadError::SeveralStacks`] and [`LoadError::NoStack`] if the prefix does not
    /// select one stack. [`LoadError::Metadata`] for an unknown value of a `gatestream.` entry.
    pub fn from_safetensors(
        bytes: &[u8],
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        Model::from_tensors(&Tensors::from_bytes(bytes)?, options)
    }

    /// Reads the recurrent stack of a file whose header has been read, as
    /// [`Model::from_safetensors`] does.
    ///
    /// # Errors
    /// As [`Model::from_safetensors`]; [`LoadError::Malformed`] only for tensors of a checkpoint
    /// that share its bytes and are together larger than it.
    pub fn from_tensors(
        tensors: &Tensors<'_>,
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        let tensors = &tensors.canonical()?;
        let metadata = Metadata::read(tensors)?;
        let stack = Stack::find(tensors, &metadata, options.prefix.as_deref())?;
        // What the modules say counts where nothing else does.
        let stated = match expected_cell(&metadata, options)? {
            None if stack.of_modules(&IS_RELU)? => Some(RELU),
            stated => stated,
        };
        let batch_first = match options.batch_first.or(metadata.batch_first) {
            None if stack.of_modules(&BATCH_FIRST)? => Some(true),
            stated => stated,
        };
        let cell = check_shapes(&stack, stated)?;
        tensors.check_size(stack.names())?;
        let layers = stack.layers().map(|ids| read_layer(&stack, ids, cell));
        let layers = layers.collect::<Result<_, LoadError>>()?;
        let model = match metadata.interface {
            Some(interface) => Model::with_interface(layers, interface)?,
            None => Model::new(layers)?,
        };
        match batch_first {
            Some(true) => Ok(model.batch_first()),
            // Only an interface in the metadata can give this order without `batch_first`.
            Some(false) if model.layout() == Layout::BatchMajor => Err(metadata::error(
                metadata::INTERFACE,
                "batch first",
                "time first, as the options require, or omit the option",
            )),
            _ => Ok(model),
        }
    }
}

/// The cell of a pickled module.
const RELU: ExpectedCell = ExpectedCell {
    cell: Cell::Rnn {
        activation: Activation::Relu,
    },
    stated_by: "the module is",
};

/// Checks every shape before any values are read, so a refused file costs only its header. Returns
/// the cell of the layers that have no metadata.
fn check_shapes(
    stack: &Stack<'_>,
    mut cell: Option<ExpectedCell>,
) -> Result<Option<Cell>, LoadError> {
    let mut layer_input = None;
    for ids in stack.layers() {
        let mut outputs = Vec::new();
        for &id in ids {
            outputs.push(stack.check(id, &mut cell, layer_input)?);
        }
        layer_input = match stack.merge(ids[0].layer) {
            Merge::Concat => Some(outputs.iter().sum()),
            Merge::Sum => outputs.last().copied(),
        };
    }
    Ok(cell.map(|expected| expected.cell))
}

fn read_layer(
    stack: &Stack<'_>,
    ids: &[DirectionId],
    cell: Option<Cell>,
) -> Result<Layer, LoadError> {
    let direction = |id: DirectionId| -> Result<Direction, LoadError> {
        let metadata = stack.direction_metadata(id);
        let cell = metadata.map(|direction| direction.cell).or(cell);
        let cell = cell.expect("a checked direction has a cell");
        let mut direction = Direction::new(cell, stack.weights(id)?)?;
        if let Some(clip) = metadata.and_then(|direction| direction.clip()) {
            direction = direction.with_clip(clip)?;
        }
        if metadata.is_some_and(|direction| direction.clips_output()) {
            direction = direction.clipping_output();
        }
        Ok(if id.reverse {
            direction.reversed()
        } else {
            direction
        })
    };
    Ok(match *ids {
        [forward, reverse, ..] => Layer::bidirectional(
            direction(forward)?,
            direction(reverse)?,
            stack.merge(forward.layer),
        )?,
        _ => Layer::single(direction(ids[0])?),
    })
}

/// The cell of all layers from the options or, without one there, from the metadata.
fn expected_cell(
    metadata: &Metadata,
    options: &SafetensorsOptions,
) -> Result<Option<ExpectedCell>, LoadError> {
    let Some(cell) = options.cell else {
        return Ok(metadata.cell.map(|cell| ExpectedCell {
            cell,
            stated_by: "the metadata says",
        }));
    };
    // `gatestream.cell` has four values; options may add properties that it cannot express.
    let contradiction = match metadata.cell {
        Some(stated) => contradicts(cell, stated).then_some((metadata::CELL, stated)),
        None => {
            let layers = metadata.layers.iter().flatten();
            let mut cells = layers.flat_map(LayerMetadata::directions).map(|d| d.cell);
            let other = cells.find(|stated| *stated != cell);
            other.map(|stated| (metadata::LAYERS, stated))
        }
    };
    match contradiction {
        Some((key, stated)) => Err(metadata::error(
            key,
            Metadata::cell_name(&stated).unwrap_or("another cell"),
            "the cell that the options require, or omit the option",
        )),
        None => Ok(Some(ExpectedCell {
            cell,
            stated_by: "the options require",
        })),
    }
}

/// Whether the cell in the options contradicts the value of `gatestream.cell`.
fn contradicts(option: Cell, stated: Cell) -> bool {
    match (option, stated) {
        (Cell::Rnn { .. }, Cell::Rnn { .. }) => option != stated,
        _ => option.kind() != stated.kind(),
    }
}
