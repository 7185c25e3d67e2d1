//! The tensors of a safetensors file that are a recurrent stack: found by their names, and held
//! against each other by their shapes before any of their data is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::metadata::{self, DirectionText, LayerText, Metadata};
use super::tensors::{Shape, Tensors, scale_name, tensor};
use crate::model::{Cell, CellKind, LoadError, Merge, Peepholes, Weights};

const SUPPORTED: &str = "supported are weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, \
     weight_hr_l0 and peephole_l0, for every layer number, with or without _reverse, and _scale behind \
     a weight of I8";

/// A cell, and who gave it, for the error when shapes contradict.
pub(super) type Given = (Cell, &'static str);

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
pub(super) struct Place {
    pub layer: usize,
    pub reverse: bool,
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
pub(super) struct Stack<'t> {
    tensors: &'t Tensors<'t>,
    said: &'t Metadata,
    prefix: &'t str,
    /// Layer by layer from 0; forward, reverse, or forward then reverse.
    places: Vec<Place>,
    biases: bool,
}

impl<'t> Stack<'t> {
    pub fn find(
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

    pub fn layers(&self) -> impl Iterator<Item = &[Place]> {
        self.places.chunk_by(|a, b| a.layer == b.layer)
    }

    /// What the metadata describes of a layer.
    fn layer_text(&self, layer: usize) -> Option<&'t LayerText> {
        self.said.layers.as_ref()?.get(layer)
    }

    pub fn text(&self, place: Place) -> Option<&'t DirectionText> {
        let layer = self.layer_text(place.layer)?;
        match place.reverse {
            true => layer.reverse.as_ref(),
            false => layer.forward.as_ref(),
        }
    }

    pub fn merge(&self, layer: usize) -> Merge {
        self.layer_text(layer)
            .map_or(Merge::Concat, LayerText::merge)
    }

    /// Holds the shapes at `place` against each other, against `cell` (set by the first place if
    /// nothing gave it) and against the features that the layer `below` gives. Returns the
    /// features that this direction gives.
    pub fn check(
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

    pub fn weights(&self, place: Place) -> Result<Weights, LoadError> {
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
