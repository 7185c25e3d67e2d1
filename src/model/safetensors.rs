//! Recurrent stacks in safetensors files, under the names that PyTorch's modules give.
//!
//! ```text
//! sort the names into stacks (by what stands before weight_ih_l0 …) and other tensors
//! choose the stack; refuse what is not part of it
//! hold its places (layer, direction) and shapes against each other     — header only
//! widen the tensors, build the layers
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::tensors::{Shape, Tensors, tensor};
use super::{
    Activation, Cell, CellKind, Direction, Layer, LoadError, Matrix, Merge, Model, Weights,
};

const CELL_KEY: &str = "cellstream.cell";
const BATCH_FIRST_KEY: &str = "cellstream.batch_first";
const SUPPORTED: &str = "supported are weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0 and \
     weight_hr_l0, for every layer number, with or without _reverse";

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
    /// metadata entry `cellstream.cell` says it (`lstm`, `gru`, `rnn_tanh` or `rnn_relu`), or else
    /// the shapes do, with PyTorch's activations ([`Cell::LSTM`], [`Cell::GRU`], [`Cell::RNN`]).
    #[must_use]
    pub fn cell(mut self, cell: Cell) -> SafetensorsOptions {
        self.cell = Some(cell);
        self
    }

    /// Whether the first axis of input and output is the batch, not the time. Without it the
    /// metadata entry `cellstream.batch_first` says it (`true` or `false`), or else it is not.
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
        let stack = Stack::find(tensors, options.prefix.as_deref())?;
        let mut cell = given_cell(tensors, options)?;
        let batch_first = match options.batch_first {
            Some(yes) => yes,
            None => match tensors.metadata(BATCH_FIRST_KEY) {
                None | Some("false") => false,
                Some("true") => true,
                Some(other) => return Err(metadata(BATCH_FIRST_KEY, other, "true or false")),
            },
        };

        // All shapes before any value: a file that is refused costs its header only.
        let mut below = None;
        for layer in stack.layers() {
            let mut size = 0;
            for &place in layer {
                size += stack.check(place, &mut cell, below)?;
            }
            below = Some(size);
        }
        let (cell, _) = cell.expect("a stack has a place, and a checked place a cell");

        let layers = stack.layers().map(|places| {
            let direction = |place| -> Result<Direction, LoadError> {
                Ok(Direction::new(cell, stack.weights(place)?)?)
            };
            match *places {
                [forward, reverse, ..] => Ok(Layer::bidirectional(
                    direction(forward)?,
                    direction(reverse)?,
                    Merge::Concat,
                )?),
                _ => Ok(Layer::single(direction(places[0])?)),
            }
        });
        let model = Model::new(layers.collect::<Result<_, LoadError>>()?)?;
        Ok(if batch_first {
            model.batch_first()
        } else {
            model
        })
    }
}

/// The cell that options or metadata give, and who gave it, for the error when shapes contradict.
fn given_cell(
    tensors: &Tensors<'_>,
    options: &SafetensorsOptions,
) -> Result<Option<(Cell, &'static str)>, LoadError> {
    let asked = options.cell.map(|cell| (cell, "the options ask for"));
    let cell = match tensors.metadata(CELL_KEY) {
        None => return Ok(asked),
        Some("lstm") => Cell::LSTM,
        Some("gru") => Cell::GRU,
        Some("rnn_tanh") => Cell::RNN,
        Some("rnn_relu") => Cell::Rnn {
            activation: Activation::Relu,
        },
        Some(other) => {
            let supported = "lstm, gru, rnn_tanh or rnn_relu";
            return Err(metadata(CELL_KEY, other, supported));
        }
    };
    match (asked, tensors.metadata(CELL_KEY)) {
        // The entry tells four cells apart; options may go on to say what it has no word for.
        (Some((asked, _)), Some(said)) if is_other(asked, cell) => Err(metadata(
            CELL_KEY,
            said,
            "the cell that the options ask for, or leave it out of them",
        )),
        (Some(asked), _) => Ok(Some(asked)),
        (None, _) => Ok(Some((cell, "the metadata says"))),
    }
}

/// Whether a cell that was asked for contradicts the one that a file names.
fn is_other(asked: Cell, said: Cell) -> bool {
    match (asked, said) {
        (Cell::Rnn { .. }, Cell::Rnn { .. }) => asked != said,
        _ => asked.kind() != said.kind(),
    }
}

fn metadata(key: &'static str, value: &str, supported: &'static str) -> LoadError {
    LoadError::Metadata {
        key,
        value: value.into(),
        supported,
    }
}

/// The tensors of one direction of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    InputWeight,
    RecurrentWeight,
    InputBias,
    RecurrentBias,
    Projection,
}

impl Role {
    const ALL: [(Role, &str); 5] = [
        (Role::InputWeight, "weight_ih"),
        (Role::RecurrentWeight, "weight_hh"),
        (Role::InputBias, "bias_ih"),
        (Role::RecurrentBias, "bias_hh"),
        (Role::Projection, "weight_hr"),
    ];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Role::ALL[*self as usize].1)
    }
}

/// One direction of one layer. Ordered as the state arrays of PyTorch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    layer: usize,
    reverse: bool,
}

/// `encoder.rnn.weight_ih_l0_reverse` into prefix, part and place; `None` for other names.
fn parse(name: &str) -> Option<(&str, Role, Place)> {
    let (name, reverse) = match name.strip_suffix("_reverse") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let (name, number) = name.rsplit_once("_l")?;
    let layer: usize = number.parse().ok()?;
    if layer.to_string() != number {
        return None; // `+1` and `01` are not how layers are numbered, and `01` would be a second 1
    }
    Role::ALL.iter().find_map(|&(part, text)| {
        let prefix = name.strip_suffix(text)?;
        Some((prefix, part, Place { layer, reverse }))
    })
}

/// The tensors of one prefix, with all places that they should have.
struct Stack<'t> {
    tensors: &'t Tensors<'t>,
    prefix: &'t str,
    /// Layer by layer from 0; forward, or forward then reverse.
    places: Vec<Place>,
    bidirectional: bool,
    biases: bool,
}

impl<'t> Stack<'t> {
    fn find(tensors: &'t Tensors<'t>, wanted: Option<&str>) -> Result<Stack<'t>, LoadError> {
        let mut stacks: BTreeMap<&str, BTreeSet<(Place, Role)>> = BTreeMap::new();
        let mut others = Vec::new();
        for name in tensors.names() {
            match parse(name) {
                Some((prefix, part, place)) => {
                    stacks.entry(prefix).or_default().insert((place, part));
                }
                None => others.push(name),
            }
        }
        let prefixes = || stacks.keys().map(|p| p.to_string()).collect();
        let chosen = match wanted {
            Some(wanted) => [wanted, &format!("{wanted}.")]
                .into_iter()
                .find_map(|prefix| stacks.get_key_value(prefix)),
            None if stacks.len() > 1 => {
                return Err(LoadError::SeveralStacks {
                    prefixes: prefixes(),
                });
            }
            None => stacks.first_key_value(),
        };
        let Some((&prefix, parts)) = chosen else {
            return Err(LoadError::NoStack {
                wanted: wanted.map(Into::into),
                found: prefixes(),
            });
        };
        let refused = others.into_iter().find(|name| match wanted {
            None => true,
            Some(_) => name.strip_prefix(prefix).is_some_and(|n| !n.contains('.')),
        });
        match (refused, wanted) {
            (None, _) => Stack::of(tensors, prefix, parts),
            (Some(name), None) => Err(tensor(
                name,
                format!(
                    "is not part of a recurrent layer; {SUPPORTED}; choose the prefix {prefix:?} \
                     to load its layers alone"
                ),
            )),
            (Some(name), Some(_)) => Err(tensor(
                name,
                format!("is not part of a recurrent layer; {SUPPORTED}"),
            )),
        }
    }

    fn of(
        tensors: &'t Tensors<'t>,
        prefix: &'t str,
        parts: &BTreeSet<(Place, Role)>,
    ) -> Result<Stack<'t>, LoadError> {
        let mut places: Vec<Place> = parts.iter().map(|&(place, _)| place).collect();
        places.dedup();
        let bidirectional = places.iter().any(|p| p.reverse);
        let stack = Stack {
            tensors,
            prefix,
            bidirectional,
            biases: parts
                .iter()
                .any(|&(_, part)| matches!(part, Role::InputBias | Role::RecurrentBias)),
            places,
        };
        // Counted along the places found, since a hostile layer number is no reason to count far.
        let missing = |place| {
            tensor(
                &stack.name(Role::InputWeight, place),
                "is missing; layers are numbered from 0 without gaps, and all have a _reverse or \
                 none"
                    .into(),
            )
        };
        let mut expected = Place {
            layer: 0,
            reverse: false,
        };
        for &place in &stack.places {
            if place != expected {
                return Err(missing(expected));
            }
            expected = Place {
                layer: place.layer + usize::from(!bidirectional || place.reverse),
                reverse: bidirectional && !place.reverse,
            };
        }
        if expected.reverse {
            return Err(missing(expected));
        }
        Ok(stack)
    }

    fn name(&self, part: Role, place: Place) -> String {
        let reverse = if place.reverse { "_reverse" } else { "" };
        format!("{}{part}_l{}{reverse}", self.prefix, place.layer)
    }

    fn layers(&self) -> impl Iterator<Item = &[Place]> {
        self.places.chunks(1 + usize::from(self.bidirectional))
    }

    /// Holds the shapes at `place` against each other, against `cell` (set by the first place if
    /// nothing gave it) and against the features that the layer `below` gives. Returns the
    /// features that this direction gives.
    fn check(
        &self,
        place: Place,
        cell: &mut Option<(Cell, &'static str)>,
        below: Option<usize>,
    ) -> Result<usize, LoadError> {
        let name = |part| self.name(part, place);
        let matrix = |part| self.tensors.matrix_shape(&name(part));
        let [rows, input] = matrix(Role::InputWeight)?;
        let [_, state] = matrix(Role::RecurrentWeight)?;
        let projected = self.tensors.shape(&name(Role::Projection)).is_some();
        let hidden = if projected {
            matrix(Role::Projection)?[1]
        } else {
            state
        };

        let kinds = [CellKind::Lstm, CellKind::Gru, CellKind::Rnn];
        let kind = kinds
            .into_iter()
            .find(|kind| hidden.checked_mul(kind.gates()) == Some(rows))
            .ok_or_else(|| {
                tensor(
                    &name(Role::InputWeight),
                    format!(
                        "has {rows} rows for the hidden size {hidden} (the columns of {}); \
                         supported are 4 (lstm), 3 (gru) or 1 (rnn) rows per hidden unit",
                        name(if projected {
                            Role::Projection
                        } else {
                            Role::RecurrentWeight
                        })
                    ),
                )
            })?;
        if projected && kind != CellKind::Lstm {
            return Err(tensor(
                &name(Role::Projection),
                format!("is a projection on {kind}; supported is a projection on lstm"),
            ));
        }
        let (expected, who) = *cell.get_or_insert((
            match kind {
                CellKind::Lstm => Cell::LSTM,
                CellKind::Gru => Cell::GRU,
                CellKind::Rnn => Cell::RNN,
            },
            "the first layer is",
        ));
        if kind != expected.kind() {
            return Err(tensor(
                &name(Role::InputWeight),
                format!(
                    "has {rows} rows for the hidden size {hidden}, as {kind} has, but {who} {}",
                    expected.kind()
                ),
            ));
        }

        if below.is_some_and(|below| below != input) {
            self.expect(Role::InputWeight, place, &[rows, below.unwrap_or(input)])?;
        }
        self.expect(Role::RecurrentWeight, place, &[rows, state])?;
        if projected {
            self.expect(Role::Projection, place, &[state, hidden])?;
        }
        if self.biases {
            for part in [Role::InputBias, Role::RecurrentBias] {
                if self.tensors.shape(&name(part)).is_none() {
                    return Err(tensor(
                        &name(part),
                        "is missing; supported are both biases everywhere, or none".into(),
                    ));
                }
                self.tensors.vector_shape(&name(part))?;
                self.expect(part, place, &[rows])?;
            }
        }
        if place.reverse {
            // The layer's other direction has been checked, so its tensors are there.
            let forward = Place {
                reverse: false,
                ..place
            };
            for part in [Role::InputWeight, Role::RecurrentWeight] {
                let [rows, cols] = self.tensors.matrix_shape(&self.name(part, forward))?;
                self.expect(part, place, &[rows, cols])?;
            }
        }
        Ok(state)
    }

    fn expect(&self, part: Role, place: Place, shape: &[usize]) -> Result<(), LoadError> {
        let name = self.name(part, place);
        match self.tensors.shape(&name) {
            Some(found) if found != shape => Err(tensor(
                &name,
                format!(
                    "has shape {}; beside the other tensors it must be {}",
                    Shape(found),
                    Shape(shape)
                ),
            )),
            _ => Ok(()),
        }
    }

    fn weights(&self, place: Place) -> Result<Weights, LoadError> {
        let matrix = |part| self.tensors.matrix(&self.name(part, place));
        let input = matrix(Role::InputWeight)?;
        let bias = |part| match self.biases {
            true => self.tensors.vector(&self.name(part, place)),
            false => Ok(vec![0.0; input.rows()]),
        };
        let projection: Option<Matrix> = self
            .tensors
            .shape(&self.name(Role::Projection, place))
            .map(|_| matrix(Role::Projection))
            .transpose()?;
        Ok(Weights {
            recurrent: matrix(Role::RecurrentWeight)?,
            input_bias: bias(Role::InputBias)?,
            recurrent_bias: bias(Role::RecurrentBias)?,
            peepholes: None,
            projection,
            input,
        })
    }
}
