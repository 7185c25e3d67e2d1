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

use super::metadata::{self, DirectionText, LayerText, Metadata};
use super::tensors::{Shape, Tensors, scale_name, tensor};
use super::{
    Cell, CellKind, Direction, Layer, Layout, LoadError, Merge, Model, Peepholes, Weights,
};

const SUPPORTED: &str = "supported are weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, \
     weight_hr_l0 and peephole_l0, for every layer number, with or without _reverse, and _scale behind \
     a weight of I8";

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
    /// `cellstream.layers` of each layer, or else the shapes do, with PyTorch's activations ([`Cell::LSTM`], [`Cell::GRU`], [`Cell::RNN`]).
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

/// A cell, and who gave it, for the error when shapes contradict.
type Given = (Cell, &'static str);

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

/// The tensors of one direction of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    InputWeight,
    RecurrentWeight,
    InputBias,
    RecurrentBias,
    Projection,
    Peephole,
}

impl Role {
    const ALL: [(Role, &str); 6] = [
        (Role::InputWeight, "weight_ih"),
        (Role::RecurrentWeight, "weight_hh"),
        (Role::InputBias, "bias_ih"),
        (Role::RecurrentBias, "bias_hh"),
        (Role::Projection, "weight_hr"),
        (Role::Peephole, "peephole"),
    ];

    const MATRICES: [Role; 3] = [Role::InputWeight, Role::RecurrentWeight, Role::Projection];
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

/// `encoder.rnn.weight_ih_l0_reverse` into prefix, part and place; `None` for other names. The scale
/// of a matrix is part of it.
fn parse(name: &str) -> Option<(&str, Role, Place)> {
    if let Some(name) = name.strip_suffix("_scale") {
        let of = parse_tensor(name);
        return of.filter(|(_, part, _)| Role::MATRICES.contains(part));
    }
    parse_tensor(name)
}

fn parse_tensor(name: &str) -> Option<(&str, Role, Place)> {
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
    said: &'t Metadata,
    prefix: &'t str,
    /// Layer by layer from 0; forward, reverse, or forward then reverse.
    places: Vec<Place>,
    biases: bool,
}

impl<'t> Stack<'t> {
    fn find(
        tensors: &'t Tensors<'t>,
        said: &'t Metadata,
        wanted: Option<&str>,
    ) -> Result<Stack<'t>, LoadError> {
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
            (None, _) => Stack::of(tensors, said, prefix, parts),
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
        said: &'t Metadata,
        prefix: &'t str,
        parts: &BTreeSet<(Place, Role)>,
    ) -> Result<Stack<'t>, LoadError> {
        let mut places: Vec<Place> = parts.iter().map(|&(place, _)| place).collect();
        places.dedup();
        let stack = Stack {
            tensors,
            said,
            prefix,
            biases: parts
                .iter()
                .any(|&(_, part)| matches!(part, Role::InputBias | Role::RecurrentBias)),
            places,
        };
        match &said.layers {
            Some(layers) => stack.match_described(layers)?,
            None => stack.match_uniform()?,
        }
        Ok(stack)
    }

    /// All places that the metadata describes, and no other.
    fn match_described(&self, layers: &[LayerText]) -> Result<(), LoadError> {
        let described = layers.iter().enumerate().flat_map(|(layer, text)| {
            let place = |reverse| move |_| Place { layer, reverse };
            let forward = text.forward.as_ref().map(place(false));
            forward
                .into_iter()
                .chain(text.reverse.as_ref().map(place(true)))
        });
        let mut found = self.places.iter().copied();
        let key = metadata::LAYERS;
        for expected in described {
            match found.next() {
                Some(place) if place < expected => return Err(self.surplus(place)),
                Some(place) if place == expected => {}
                _ => {
                    let reason = format!("is missing; the metadata {key:?} describes its layer");
                    return Err(tensor(&self.name(Role::InputWeight, expected), reason));
                }
            }
        }
        found
            .next()
            .map_or(Ok(()), |place| Err(self.surplus(place)))
    }

    fn surplus(&self, place: Place) -> LoadError {
        let parts = Role::ALL.map(|(part, _)| self.name(part, place));
        let there = parts.iter().find(|n| self.tensors.shape(n).is_some());
        let reason = format!(
            "is of no layer or direction that the metadata {:?} describes",
            metadata::LAYERS
        );
        tensor(there.unwrap_or(&parts[0]), reason)
    }

    /// All layers from 0, all with both directions or none.
    fn match_uniform(&self) -> Result<(), LoadError> {
        let bidirectional = self.places.iter().any(|p| p.reverse);
        // Counted along the places found, since a hostile layer number is no reason to count far.
        let missing = |place| {
            tensor(
                &self.name(Role::InputWeight, place),
                "is missing; layers are numbered from 0 without gaps, and all have a _reverse or \
                 none"
                    .into(),
            )
        };
        let mut expected = Place {
            layer: 0,
            reverse: false,
        };
        for &place in &self.places {
            if place != expected {
                return Err(missing(expected));
            }
            expected = Place {
                layer: place.layer + usize::from(!bidirectional || place.reverse),
                reverse: bidirectional && !place.reverse,
            };
        }
        match expected.reverse {
            true => Err(missing(expected)),
            false => Ok(()),
        }
    }

    fn name(&self, part: Role, place: Place) -> String {
        let reverse = if place.reverse { "_reverse" } else { "" };
        format!("{}{part}_l{}{reverse}", self.prefix, place.layer)
    }

    fn layers(&self) -> impl Iterator<Item = &[Place]> {
        self.places.chunk_by(|a, b| a.layer == b.layer)
    }

    /// What the metadata describes of a layer.
    fn layer_text(&self, layer: usize) -> Option<&'t LayerText> {
        self.said.layers.as_ref()?.get(layer)
    }

    fn text(&self, place: Place) -> Option<&'t DirectionText> {
        let layer = self.layer_text(place.layer)?;
        match place.reverse {
            true => layer.reverse.as_ref(),
            false => layer.forward.as_ref(),
        }
    }

    fn merge(&self, layer: usize) -> Merge {
        self.layer_text(layer)
            .map_or(Merge::Concat, LayerText::merge)
    }

    /// Holds the shapes at `place` against each other, against `cell` (set by the first place if
    /// nothing gave it) and against the features that the layer `below` gives. Returns the
    /// features that this direction gives.
    fn check(
        &self,
        place: Place,
        cell: &mut Option<Given>,
        below: Option<usize>,
    ) -> Result<usize, LoadError> {
        let name = |part| self.name(part, place);
        let matrix = |part| self.tensors.weight_shape(&name(part), self.said.precision);
        let [rows, input] = matrix(Role::InputWeight)?;
        let [_, state] = matrix(Role::RecurrentWeight)?;
        let projected = self.has_projection(place);
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
        let usual = match kind {
            CellKind::Lstm => Cell::LSTM,
            CellKind::Gru => Cell::GRU,
            CellKind::Rnn => Cell::RNN,
        };
        let (expected, who) = match self.text(place) {
            Some(text) => (text.cell, "the metadata says"),
            None => *cell.get_or_insert((usual, "the first layer is")),
        };
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
        if self.tensors.shape(&name(Role::Peephole)).is_some() {
            if kind != CellKind::Lstm {
                let reason = format!("is a peephole on {kind}; supported is a peephole on lstm");
                return Err(tensor(&name(Role::Peephole), reason));
            }
            self.tensors.matrix_shape(&name(Role::Peephole))?;
            self.expect(Role::Peephole, place, &[3, hidden])?;
        }
        let forward = Place {
            reverse: false,
            ..place
        };
        if place.reverse && self.places.binary_search(&forward).is_ok() {
            // The layer's other direction has been checked, so its tensors are there.
            for part in [Role::InputWeight, Role::RecurrentWeight] {
                let of_forward = self.name(part, forward);
                let [rows, cols] = self
                    .tensors
                    .weight_shape(&of_forward, self.said.precision)?;
                self.expect(part, place, &[rows, cols])?;
            }
        }
        Ok(state)
    }

    /// Also where there is but its scale, which is refused with its name then.
    fn has_projection(&self, place: Place) -> bool {
        let name = self.name(Role::Projection, place);
        let names = [scale_name(&name), name];
        names.iter().any(|name| self.tensors.shape(name).is_some())
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
        let matrix = |part| {
            self.tensors
                .weight(&self.name(part, place), self.said.precision)
        };
        let input = matrix(Role::InputWeight)?;
        let bias = |part| match self.biases {
            true => self.tensors.vector(&self.name(part, place)),
            false => Ok(vec![0.0; input.rows()]),
        };
        let projection = self.has_projection(place).then(|| matrix(Role::Projection));
        let peepholes = self.name(Role::Peephole, place);
        let peepholes = match self.tensors.shape(&peepholes) {
            Some(_) => {
                let rows = self.tensors.matrix(&peepholes)?;
                Some(Peepholes {
                    input: rows.row(0).into_owned(),
                    forget: rows.row(1).into_owned(),
                    output: rows.row(2).into_owned(),
                })
            }
            None => None,
        };
        Ok(Weights {
            recurrent: matrix(Role::RecurrentWeight)?,
            input_bias: bias(Role::InputBias)?,
            recurrent_bias: bias(Role::RecurrentBias)?,
            peepholes,
            projection: projection.transpose()?,
            input,
        })
    }
}
