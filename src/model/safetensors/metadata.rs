//! What a safetensors file says of a model beside its tensors: the entries of `__metadata__` that this
//! crate defines, read and written. All are text, and all may be left out.
//!
//! | key | value | without it |
//! |---|---|---|
//! | `cellstream.cell` | the cell of every layer: `lstm`, `gru`, `rnn_tanh` or `rnn_relu` | by the shapes |
//! | `cellstream.layers` | instead, each layer as JSON, below | every layer has that cell |
//! | `cellstream.batch_first` | `true` or `false`: PyTorch's interface, batch or time first | time first |
//! | `cellstream.interface` | instead, all ports as JSON | PyTorch's |
//! | `cellstream.precision` | of all matrices, `f32`, `bf16` or `int8`; `mixed`: of each, as its dtype says | below |
//!
//! A layer is one direction or both, and how two are merged; an activation is its name or, where it has
//! parameters, an object of one entry:
//!
//! ```text
//! [{"forward": {"cell": {"lstm": {"gate": "sigmoid", "candidate": {"elu": {"alpha": 0.5}},
//!                                 "output": "tanh", "input_forget": false}}, "clip": 3.0},
//!   "reverse": {"cell": {"lstm": …}}, "merge": "sum"},
//!  {"reverse": {"cell": {"gru": {"gate": "sigmoid", "candidate": "tanh", "reset": "before"}}}}]
//! ```
//!
//! Without `cellstream.precision`, BF16 is widened to `f32`: it is how others store what they compute in
//! `f32`. I8 is int8 always, since it comes with scales.

use serde::{Deserialize, Serialize};

use super::tensors::Tensors;
use crate::model::{
    Activation, Axis, Cell, Direction, Interface, Layer, LoadError, Merge, Model, Port, Precision,
    ResetForm, Role, SaveError,
};

pub(super) const CELL: &str = "cellstream.cell";
pub(super) const LAYERS: &str = "cellstream.layers";
const BATCH_FIRST: &str = "cellstream.batch_first";
pub(super) const INTERFACE: &str = "cellstream.interface";
pub(super) const PRECISION: &str = "cellstream.precision";

/// The cells that have a word of their own.
const WORDS: [(&str, Cell); 4] = [
    ("lstm", Cell::LSTM),
    ("gru", Cell::GRU),
    ("rnn_tanh", Cell::RNN),
    (
        "rnn_relu",
        Cell::Rnn {
            activation: Activation::Relu,
        },
    ),
];

/// What the entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metadata {
    pub cell: Option<Cell>,
    pub layers: Option<Vec<LayerText>>,
    pub batch_first: Option<bool>,
    pub interface: Option<Interface>,
    pub precision: Option<Kept>,
}

/// The numbers that a file's matrices are to be kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    All(Precision),
    AsStored,
}

/// A layer but for its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<DirectionText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<DirectionText>,
    /// Of two directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    merge: Option<MergeText>,
}

/// A direction but for its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DirectionText {
    #[serde(with = "CellText")]
    pub cell: Cell,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clip: Option<Number>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MergeText {
    Concat,
    Sum,
}

/// An `f32`, as the `f64` of the same value: that is read back to within an `f64`'s last place, from
/// which the nearest `f32` is the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Number(#[serde(with = "exact")] f32);

mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
        match value.is_finite() {
            true => serializer.serialize_f64(f64::from(*value)),
            // JSON has no word for it, and its writer would leave `null`.
            false => Err(ser::Error::custom(format!("the number {value}"))),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        let value = f64::deserialize(deserializer)? as f32;
        let too_large = || de::Error::custom("a number too large for f32");
        value.is_finite().then_some(value).ok_or_else(too_large)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Cell",
    rename_all = "snake_case",
    rename_all_fields = "snake_case",
    deny_unknown_fields
)]
enum CellText {
    Lstm {
        #[serde(with = "ActivationText")]
        gate: Activation,
        #[serde(with = "ActivationText")]
        candidate: Activation,
        #[serde(with = "ActivationText")]
        output: Activation,
        input_forget: bool,
    },
    Gru {
        #[serde(with = "ActivationText")]
        gate: Activation,
        #[serde(with = "ActivationText")]
        candidate: Activation,
        #[serde(with = "ResetText")]
        reset: ResetForm,
    },
    Rnn {
        #[serde(with = "ActivationText")]
        activation: Activation,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ResetForm", rename_all = "snake_case")]
enum ResetText {
    Before,
    After,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Activation", rename_all = "snake_case", deny_unknown_fields)]
enum ActivationText {
    Sigmoid,
    Tanh,
    Relu,
    Affine {
        #[serde(with = "exact")]
        alpha: f32,
        #[serde(with = "exact")]
        beta: f32,
    },
    LeakyRelu {
        #[serde(with = "exact")]
        alpha: f32,
    },
    ThresholdedRelu {
        #[serde(with = "exact")]
        alpha: f32,
    },
    ScaledTanh {
        #[serde(with = "exact")]
        alpha: f32,
        #[serde(with = "exact")]
        beta: f32,
    },
    HardSigmoid {
        #[serde(with = "exact")]
        alpha: f32,
        #[serde(with = "exact")]
        beta: f32,
    },
    Elu {
        #[serde(with = "exact")]
        alpha: f32,
    },
    Softsign,
    Softplus,
}

/// All ports.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InterfaceText {
    inputs: Vec<PortText>,
    outputs: Vec<PortText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortText {
    name: String,
    #[serde(with = "RoleText")]
    role: Role,
    axes: Vec<Vec<AxisText>>,
    optional: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "snake_case")]
enum RoleText {
    Input,
    Lengths,
    InitialHidden(Vec<usize>),
    InitialCell(Vec<usize>),
    Output,
    FinalHidden(Vec<usize>),
    FinalCell(Vec<usize>),
}

#[derive(Serialize, Deserialize)]
struct AxisText(#[serde(with = "AxisWord")] Axis);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Axis", rename_all = "snake_case")]
enum AxisWord {
    Time,
    Batch,
    Direction,
    LayerDirection,
    Feature,
    One,
}

impl LayerText {
    fn of(layer: &Layer) -> LayerText {
        let text = |reverse| {
            let direction = layer
                .directions()
                .iter()
                .find(|d| d.is_reverse() == reverse)?;
            Some(DirectionText {
                cell: *direction.cell(),
                clip: direction.clip().map(Number),
            })
        };
        let both = layer.directions().len() == 2;
        LayerText {
            forward: text(false),
            reverse: text(true),
            merge: both.then_some(match layer.merge() {
                Merge::Concat => MergeText::Concat,
                Merge::Sum => MergeText::Sum,
            }),
        }
    }

    /// Its directions, forward first.
    pub fn directions(&self) -> impl Iterator<Item = &DirectionText> {
        self.forward.iter().chain(&self.reverse)
    }

    /// How two directions are merged.
    pub fn merge(&self) -> Merge {
        match self.merge {
            Some(MergeText::Sum) => Merge::Sum,
            _ => Merge::Concat,
        }
    }
}

impl DirectionText {
    /// Gives a direction, made of this cell, what else is said of it.
    pub fn finish(&self, direction: Direction) -> Result<Direction, LoadError> {
        match self.clip {
            None => Ok(direction),
            Some(Number(clip)) => Ok(direction.with_clip(clip)?),
        }
    }
}

impl Metadata {
    /// What a file says.
    pub fn read(tensors: &Tensors<'_>) -> Result<Metadata, LoadError> {
        let word = |key, words: &[&str], supported| {
            let value = tensors.metadata(key);
            let place = value.map(|value| words.iter().position(|word| *word == value));
            match place {
                Some(None) => Err(refused(key, value.unwrap_or_default(), supported)),
                found => Ok(found.flatten()),
            }
        };
        let cell = word(CELL, &WORDS.map(|(word, _)| word), CELLS)?;
        let batch_first = word(BATCH_FIRST, &["false", "true"], "true or false")?;
        let kept = ["f32", "bf16", "int8", "mixed"];
        let precision = word(PRECISION, &kept, "f32, bf16, int8 or mixed")?;
        let layers: Option<Vec<LayerText>> = json(tensors, LAYERS, "a layer for each, in JSON")?;
        let interface: Option<InterfaceText> =
            json(tensors, INTERFACE, "inputs and outputs, in JSON")?;
        for layer in layers.iter().flatten() {
            let both = layer.directions().count() == 2;
            if layer.directions().next().is_none() || both != layer.merge.is_some() {
                let supported = "forward or reverse in each layer, or both and how they merge";
                return Err(refused(LAYERS, &one_line(layer), supported));
            }
        }
        let twice = "it, or the entry that says more";
        match (cell, &layers, batch_first, &interface) {
            (Some(cell), Some(_), ..) => return Err(refused(CELL, WORDS[cell].0, twice)),
            (.., Some(yes), Some(_)) => {
                return Err(refused(BATCH_FIRST, ["false", "true"][yes], twice));
            }
            _ => {}
        }
        Ok(Metadata {
            cell: cell.map(|at| WORDS[at].1),
            layers,
            batch_first: batch_first.map(|at| at == 1),
            interface: interface.map(InterfaceText::interface),
            precision: precision.map(|at| match Precision::ALL.get(at) {
                Some(precision) => Kept::All(*precision),
                None => Kept::AsStored,
            }),
        })
    }

    /// What a file of this model must say.
    pub fn of(model: &Model) -> Metadata {
        let layers = model.layers();
        let cell = *layers[0].directions()[0].cell();
        let both = layers[0].directions().len() == 2;
        let is_plain = |layer: &Layer| {
            let alike = |d: &Direction| *d.cell() == cell && d.clip().is_none();
            layer.directions().iter().all(alike)
                && (layer.directions().len() == 2) == both
                && !layer.directions()[0].is_reverse()
                && layer.merge() == Merge::Concat
        };
        let is_plain = Metadata::word(&cell).is_some() && layers.iter().all(is_plain);
        let interface = model.interface();
        let pytorch = Interface::pytorch(layers);
        let batch_first = match *interface == pytorch {
            true => Some(false),
            false => (*interface == pytorch.batch_first()).then_some(true),
        };
        Metadata {
            cell: is_plain.then_some(cell),
            layers: (!is_plain).then(|| layers.iter().map(LayerText::of).collect()),
            batch_first,
            interface: batch_first.is_none().then(|| interface.clone()),
            precision: Some(model.precision().map_or(Kept::AsStored, Kept::All)),
        }
    }

    /// The value of [`CELL`] for this cell, if it has one.
    pub fn word(cell: &Cell) -> Option<&'static str> {
        let known = WORDS.iter().find(|(_, known)| known == cell);
        known.map(|(word, _)| *word)
    }

    /// The entries, by key.
    pub fn entries(&self) -> Result<Vec<(&'static str, String)>, SaveError> {
        let mut entries = Vec::new();
        if let Some(word) = self.cell.as_ref().and_then(Metadata::word) {
            entries.push((CELL, word.into()));
        }
        let failed = |error: serde_json::Error| SaveError::Unsupported {
            what: format!("{error} as a parameter of a cell or its clip; use finite ones"),
        };
        if let Some(layers) = &self.layers {
            entries.push((LAYERS, serde_json::to_string(layers).map_err(failed)?));
        }
        if let Some(yes) = self.batch_first {
            entries.push((BATCH_FIRST, yes.to_string()));
        }
        if let Some(interface) = &self.interface {
            let text = InterfaceText::of(interface);
            entries.push((INTERFACE, serde_json::to_string(&text).map_err(failed)?));
        }
        if let Some(precision) = self.precision {
            let name = match precision {
                Kept::All(precision) => precision.name(),
                Kept::AsStored => "mixed",
            };
            entries.push((PRECISION, name.into()));
        }
        Ok(entries)
    }
}

const CELLS: &str = "lstm, gru, rnn_tanh or rnn_relu";

impl InterfaceText {
    fn of(interface: &Interface) -> InterfaceText {
        let text = |port: &Port| PortText {
            name: port.name.clone(),
            role: port.role.clone(),
            axes: (port.axes.iter())
                .map(|folded| folded.iter().copied().map(AxisText).collect())
                .collect(),
            optional: port.optional,
        };
        InterfaceText {
            inputs: interface.inputs.iter().map(text).collect(),
            outputs: interface.outputs.iter().map(text).collect(),
        }
    }

    fn interface(self) -> Interface {
        let port = |text: PortText| Port {
            name: text.name,
            role: text.role,
            axes: (text.axes.into_iter())
                .map(|folded| folded.into_iter().map(|AxisText(axis)| axis).collect())
                .collect(),
            optional: text.optional,
        };
        Interface {
            inputs: self.inputs.into_iter().map(port).collect(),
            outputs: self.outputs.into_iter().map(port).collect(),
        }
    }
}

/// An entry in JSON, if there is one.
fn json<T: for<'de> Deserialize<'de>>(
    tensors: &Tensors<'_>,
    key: &'static str,
    supported: &'static str,
) -> Result<Option<T>, LoadError> {
    let read = tensors.metadata(key).map(serde_json::from_str).transpose();
    // The parser says what and where; the whole entry would be no line.
    read.map_err(|error| refused(key, &error.to_string(), supported))
}

fn one_line(layer: &LayerText) -> String {
    serde_json::to_string(layer).unwrap_or_default()
}

/// A value that is not defined. Hostile ones may be long, and an error is one line.
pub(super) fn refused(key: &'static str, value: &str, supported: &'static str) -> LoadError {
    const SHOWN: usize = 160;
    let mut shown: String = value.chars().take(SHOWN).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    LoadError::Metadata {
        key,
        value: shown,
        supported,
    }
}
