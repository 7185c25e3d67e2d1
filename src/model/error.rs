//! What can be wrong with a model, or with the file it comes from.

use std::io;
use std::path::PathBuf;

use super::CellKind;

/// Why layers and weights do not make a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A model needs at least one layer.
    #[error("a model needs at least one layer")]
    NoLayers,
    /// Consecutive layers have different sizes at their joint.
    #[error("layer {layer} takes {input} features but the layer below it gives {below}")]
    LayersDoNotFit {
        /// Index of the upper layer, from 0.
        layer: usize,
        /// Features it takes.
        input: usize,
        /// Features it is given.
        below: usize,
    },
    /// A tensor has the wrong shape.
    #[error("{tensor}: expected {expected}, found {found}")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// The shape that would fit.
        expected: String,
        /// The shape it has.
        found: String,
    },
    /// A feature that only LSTM cells have.
    #[error("{what} is for lstm cells only, found on {kind}")]
    LstmOnly {
        /// The feature.
        what: &'static str,
        /// The cell it was found on.
        kind: CellKind,
    },
    /// A named input or output that does not describe the layers, or not unambiguously.
    #[error("port {port:?}: {reason}")]
    Interface {
        /// Its name.
        port: String,
        /// What is wrong, and what would be accepted.
        reason: String,
    },
    /// A clip that is not positive.
    #[error("clip must be positive, found {clip}")]
    Clip {
        /// The value given.
        clip: f32,
    },
    /// A weight or a scale that int8 cannot hold.
    #[error("int8 takes finite weights, from -127 to 127 times a finite scale; found {value}")]
    NotQuantisable {
        /// The value.
        value: f32,
    },
    /// A product whose sum of int8 could overflow.
    #[error(
        "int8 takes products of at most {most} values, this one has {cols}; keep it in bf16 or f32"
    )]
    TooDeepForInt8 {
        /// Columns of the matrix.
        cols: usize,
        /// The most.
        most: usize,
    },
    /// The two directions of a layer do not match.
    #[error("the two directions of a layer need one kind of cell and equal sizes")]
    DirectionsDiffer,
}

/// Why a file does not give a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The name's ending is none that a loader exists for (or the loader's feature is off).
    #[error("{}: unknown kind of model file; use {supported}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The endings that this build reads.
        supported: String,
    },
    /// The bytes are not a well-formed file of that format.
    #[error("not a readable {format} file: {reason}")]
    Malformed {
        /// The format.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is missing, or has the wrong shape or type, or is not part of any layer.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name in the file.
        name: String,
        /// What is wrong, and what is supported.
        reason: String,
    },
    /// No prefix was chosen and the file holds several recurrent stacks.
    #[error(
        "several recurrent stacks in one file, under the prefixes {}; choose one by its prefix",
        listed(prefixes)
    )]
    SeveralStacks {
        /// The prefixes of their tensors' names.
        prefixes: Vec<String>,
    },
    /// No recurrent stack has the chosen prefix, or there is none at all.
    #[error(
        "no recurrent stack{}; its tensors are named weight_ih_l0, weight_hh_l0, … after a prefix{}",
        wanted.as_ref().map_or(String::new(), |p| format!(" under the prefix {p:?}")),
        if found.is_empty() { String::new() } else { format!("; found prefixes {}", listed(found)) }
    )]
    NoStack {
        /// The prefix chosen, if one was.
        wanted: Option<String>,
        /// The prefixes of the recurrent stacks that exist.
        found: Vec<String>,
    },
    /// A metadata entry that this crate defines has a value that it does not.
    #[error("metadata {key:?} is {value:?}; use {supported}")]
    Metadata {
        /// The entry's key.
        key: &'static str,
        /// Its value in the file.
        value: String,
        /// The values that are defined.
        supported: &'static str,
    },
    /// A graph node that cannot be run.
    #[error("node {name:?} ({operator}): {reason}")]
    Node {
        /// Its name in the file (or its first output's).
        name: String,
        /// Its operator.
        operator: String,
        /// What is wrong, and what is supported.
        reason: String,
    },
    /// The tensors are fine one by one, but make no model.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Why a model was not written to a file. Nothing has been written then.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The model has something that no file of the format can say.
    #[error("a safetensors file cannot hold {what}")]
    Unsupported {
        /// What it has, and what would be accepted.
        what: String,
    },
}

/// The first few of `names`, quoted: a file may hold thousands, an error is one line.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut list: Vec<String> = names.iter().take(SHOWN).map(|n| format!("{n:?}")).collect();
    if names.len() > SHOWN {
        list.push(format!("{} more", names.len() - SHOWN));
    }
    list.join(", ")
}
