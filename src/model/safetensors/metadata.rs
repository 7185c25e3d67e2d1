//! The entries of `__metadata__` that this crate defines: reading and writing them.
//!
//! All values are text. All entries are optional.
//!
//! - `gatestream.cell`: the cell of every layer, a name of [`Cell::NAMED`]. If absent, it follows
//!   from the shapes.
//! - `gatestream.layers`: in place of `gatestream.cell`, every layer as JSON, see below. If absent,
//!   all layers have the same cell.
//! - `gatestream.batch_first`: `true` or `false`, PyTorch's interface with batch or time first. If
//!   absent, time is first.
//! - `gatestream.interface`: in place of `gatestream.batch_first`, all ports as JSON. If absent,
//!   they are PyTorch's.
//! - `gatestream.precision`: that of all matrices, `f32`, `bf16` or `int8`; or `mixed`, where each
//!   has that of its dtype. If absent, see below.
//! - `gatestream.norm_eps`: the number of 0 or more that is added to the variance of batch
//!   normalisation. If absent, 1e-5.
//!
//! A layer is one direction, or two with the way they are merged. An activation is its name or, if
//! it has parameters, an object with one entry:
//!
//! ```text
//! [{"forward": {"cell": {"lstm": {"gate": "sigmoid", "candidate": {"elu": {"alpha": 0.5}},
//!                                 "output": "tanh", "input_forget": false}}, "clip": 3.0},
//!   "reverse": {"cell": {"lstm": …}}, "merge": "sum"},
//!  {"reverse": {"cell": {"gru": {"gate": "sigmoid", "candidate": "tanh", "reset": "before"}}}}]
//! ```
//!
//! Without `gatestream.precision`, BF16 is widened to `f32`: other programs store weights in BF16
//! that they compute with in `f32`. I8 always is int8, because it comes with scales.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::stored_as::{PRECISION, StoredAs};
use super::tensors::Tensors;
use crate::model::cell::CellText;
use crate::model::{
    Activation, Cell, Direction, Interface, Layer, LoadError, Merge, Model, Precision, SaveError,
};

pub(super) const CELL: &str = "gatestream.cell";
pub(super) const LAYERS: &str = "gatestream.layers";
const BATCH_FIRST: &str = "gatestream.batch_first";
pub(super) const INTERFACE: &str = "gatestream.interface";
/// What keys began with before the library was renamed.
const FORMER_PREFIX: &str = "cellstream.";
pub(super) const NORM_EPS: &str = "gatestream.norm_eps";

/// The entries, parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metadata {
    pub cell: Option<Cell>,
    pub layers: Option<Vec<LayerMetadata>>,
    pub batch_first: Option<bool>,
    pub interface: Option<Interface>,
    pub precision: Option<StoredAs>,
    /// Of files from training only: saved weights are folded.
    pub norm_eps: Option<f32>,
}

/// A layer without its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<DirectionMetadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<DirectionMetadata>,
    /// Given exactly if both directions are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Merge>,
}

/// A direction without its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DirectionMetadata {
    #[serde(with = "CellText")]
    pub cell: Cell,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clip: Option<Number>,
    /// Whether the bound is also that of an LSTM's output activation.
    #[serde(default, skip_serializing_if = "is_false")]
    clips_output: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// An `f32`, written as the `f64` of the same value. The JSON parser reads an `f64` to within one
/// unit in the last place; rounding that to `f32` gives the value that was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Number(#[serde(with = "exact")] f32);

mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(f64::from(*value))
        } else {
            // JSON cannot express it; serde_json would write `null`.
            Err(ser::Error::custom(format!("the number {value}")))
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        let value = f64::deserialize(deserializer)? as f32;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(de::Error::custom("a number too large for f32"))
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Activation", rename_all = "snake_case", deny_unknown_fields)]
pub(in crate::model) enum ActivationText {
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

impl LayerMetadata {
    fn of(layer: &Layer) -> LayerMetadata {
        let direction = |reverse| {
            let mut directions = layer.directions().iter();
            let direction = directions.find(|d| d.is_reverse() == reverse)?;
            Some(DirectionMetadata {
                cell: *direction.cell(),
                clip: direction.clip().map(Number),
                clips_output: direction.output_clip().is_some(),
            })
        };
        LayerMetadata {
            forward: direction(false),
            reverse: direction(true),
            merge: (layer.directions().len() == 2).then_some(layer.merge()),
        }
    }

    /// The directions, forward first.
    pub fn directions(&self) -> impl Iterator<Item = &DirectionMetadata> {
        self.forward.iter().chain(&self.reverse)
    }
}

impl DirectionMetadata {
    pub fn clip(&self) -> Option<f32> {
        self.clip.map(|Number(clip)| clip)
    }

    pub fn clips_output(&self) -> bool {
        self.clips_output
    }
}

impl Metadata {
    /// Reads and checks the entries of a file.
    pub fn read(tensors: &Tensors<'_>) -> Result<Metadata, LoadError> {
        if let Some(key) = tensors.metadata_key(FORMER_PREFIX) {
            return Err(LoadError::FormerName { key: key.into() });
        }
        let cell_names: Vec<_> = Cell::NAMED.iter().map(|named| named.name).collect();
        let cell = choice(tensors, CELL, &cell_names, &SUPPORTED_CELLS)?;
        let batch_first = choice(tensors, BATCH_FIRST, &["false", "true"], "true or false")?;
        let precisions = ["f32", "bf16", "int8", "mixed"];
        let precision = choice(tensors, PRECISION, &precisions, "f32, bf16, int8 or mixed")?;
        let layers: Option<Vec<LayerMetadata>> = json(
            tensors,
            LAYERS,
            "a JSON array with one entry for each layer",
        )?;
        let interface: Option<Interface> =
            json(tensors, INTERFACE, "a JSON object of inputs and outputs")?;
        let norm_eps = tensors.metadata(NORM_EPS).map(|text| {
            let eps = text.parse().ok();
            let eps = eps.filter(|eps: &f32| eps.is_finite() && *eps >= 0.0);
            eps.ok_or_else(|| error(NORM_EPS, text, "a number of 0 or more"))
        });
        for layer in layers.iter().flatten() {
            let directions = layer.directions().count();
            if directions == 0 || (directions == 2) != layer.merge.is_some() {
                let value = serde_json::to_string(layer).unwrap_or_default();
                let supported = "forward or reverse in each layer, or both with merge";
                return Err(error(LAYERS, &value, supported));
            }
        }
        let duplicate = "only one of this entry and the more detailed one";
        if let (Some(cell), Some(_)) = (cell, &layers) {
            return Err(error(CELL, cell_names[cell], duplicate));
        }
        if let (Some(yes), Some(_)) = (batch_first, &interface) {
            return Err(error(BATCH_FIRST, ["false", "true"][yes], duplicate));
        }
        Ok(Metadata {
            cell: cell.map(|index| Cell::NAMED[index].cell),
            layers,
            batch_first: batch_first.map(|index| index == 1),
            interface,
            precision: precision.map(|index| match Precision::ALL.get(index) {
                Some(precision) => StoredAs::Uniform(*precision),
                None => StoredAs::Mixed,
            }),
            norm_eps: norm_eps.transpose()?,
        })
    }

    /// The entries that a file of this model needs.
    pub fn of(model: &Model) -> Metadata {
        let layers = model.layers();
        let cell = *layers[0].directions()[0].cell();
        let bidirectional = layers[0].directions().len() == 2;
        let has_cell = |d: &Direction| *d.cell() == cell && d.clip().is_none();
        let is_plain = |layer: &Layer| {
            layer.directions().iter().all(has_cell)
                && (layer.directions().len() == 2) == bidirectional
                && !layer.directions()[0].is_reverse()
                && layer.merge() == Merge::Concat
        };
        let is_plain = Metadata::cell_name(&cell).is_some() && layers.iter().all(is_plain);
        let interface = model.interface();
        let pytorch = Interface::pytorch(layers);
        let batch_first = if *interface == pytorch {
            Some(false)
        } else {
            (*interface == pytorch.batch_first()).then_some(true)
        };
        Metadata {
            cell: is_plain.then_some(cell),
            layers: (!is_plain).then(|| layers.iter().map(LayerMetadata::of).collect()),
            batch_first,
            interface: batch_first.is_none().then(|| interface.clone()),
            precision: Some(model.precision().map_or(StoredAs::Mixed, StoredAs::Uniform)),
            norm_eps: None,
        }
    }

    /// The value of [`CELL`] for this cell, if there is one.
    pub fn cell_name(cell: &Cell) -> Option<&'static str> {
        let known = Cell::NAMED.iter().find(|named| named.cell == *cell);
        known.map(|named| named.name)
    }

    /// The entries as pairs of key and text.
    pub fn entries(&self) -> Result<Vec<(&'static str, String)>, SaveError> {
        let mut entries = Vec::new();
        if let Some(name) = self.cell.as_ref().and_then(Metadata::cell_name) {
            entries.push((CELL, name.into()));
        }
        let failed = |error: serde_json::Error| SaveError::Unsupported {
            what: format!("{error} as a parameter of a cell or a clip; use finite numbers"),
        };
        if let Some(layers) = &self.layers {
            entries.push((LAYERS, serde_json::to_string(layers).map_err(failed)?));
        }
        if let Some(yes) = self.batch_first {
            entries.push((BATCH_FIRST, yes.to_string()));
        }
        if let Some(interface) = &self.interface {
            entries.push((INTERFACE, serde_json::to_string(interface).map_err(failed)?));
        }
        if let Some(precision) = self.precision {
            let name = match precision {
                StoredAs::Uniform(precision) => precision.name(),
                StoredAs::Mixed => "mixed",
            };
            entries.push((PRECISION, name.into()));
        }
        Ok(entries)
    }
}

/// The names of cells, for messages.
static SUPPORTED_CELLS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = Cell::NAMED.iter().map(|named| named.name).collect();
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    format!("{} or {last}", others.join(", "))
});

/// The index of an entry's value in `values`, if the entry exists.
fn choice(
    tensors: &Tensors<'_>,
    key: &'static str,
    values: &[&str],
    supported: &'static str,
) -> Result<Option<usize>, LoadError> {
    let Some(value) = tensors.metadata(key) else {
        return Ok(None);
    };
    match values.iter().position(|known| *known == value) {
        Some(index) => Ok(Some(index)),
        None => Err(error(key, value, supported)),
    }
}

/// An entry in JSON, if it exists.
fn json<T: for<'de> Deserialize<'de>>(
    tensors: &Tensors<'_>,
    key: &'static str,
    supported: &'static str,
) -> Result<Option<T>, LoadError> {
    let parsed = tensors.metadata(key).map(serde_json::from_str).transpose();
    // Reports the parser's message, which is one line; the value itself may have many.
    parsed.map_err(|reason| error(key, &reason.to_string(), supported))
}

/// An unsupported value, cut to a length that keeps the message on one line.
pub(super) fn error(key: &'static str, value: &str, supported: &'static str) -> LoadError {
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
