//! Errors of models, and of reading and writing their files.

use std::io;
use std::path::PathBuf;

use super::CellKind;

/// Why a model cannot be made of these layers and weights.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A model needs at least one layer.
    #[error("a model needs at least one layer")]
    NoLayers,
    /// The input size of a layer differs from the output size of the layer below it.
    #[error("layer {layer} takes {input} features, but the layer below it has {below} outputs")]
    LayersDoNotFit {
        /// Index of the upper layer, from 0.
        layer: usize,
        /// Its input features.
        input: usize,
        /// Output features of the layer below it.
        below: usize,
    },
    /// A tensor has the wrong shape.
    #[error("{tensor}: expected {expected}, found {found}")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// The shape required.
        expected: String,
        /// The shape it has.
        found: String,
    },
    /// A GRU or RNN has weights that only LSTM cells support.
    #[error("only lstm cells support {what}; found it on {kind}")]
    LstmOnly {
        /// The feature.
        what: &'static str,
        /// The cell that has it.
        kind: CellKind,
    },
    /// A named input or output breaks a rule of [`Interface`](super::Interface).
    #[error("port {port:?}: {reason}")]
    Interface {
        /// Name of the port.
        port: String,
        /// What is wrong and what is supported.
        reason: String,
    },
    /// The clip is not positive.
    #[error("clip must be positive, found {clip}")]
    Clip {
        /// The value given.
        clip: f32,
    },
    /// A weight or scale cannot be represented in int8.
    #[error(
        "int8 supports finite weights of -127 to 127 times a finite scale; found {value}; use f32 \
         or bf16"
    )]
    NotQuantisable {
        /// The value.
        value: f32,
    },
    /// The int8 sum of a matrix row could overflow.
    #[error("int8 supports at most {max} columns, this matrix has {cols}; use bf16 or f32")]
    TooDeepForInt8 {
        /// Columns of the matrix.
        cols: usize,
        /// Largest number of columns.
        max: usize,
    },
    /// Batch normalisation would divide by the root of this variance.
    #[error("a variance must be finite, and positive with eps = {eps} added; found {variance}")]
    Variance {
        /// The value.
        variance: f32,
        /// What is added to it.
        eps: f32,
    },
    /// The two directions of a layer do not match.
    #[error(
        "the two directions of a layer must have the same kind of cell and equal sizes, and the \
         first must not be reversed"
    )]
    DirectionsDiffer,
}

/// Why a model cannot be read from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The bytes are of no format that is known, or the crate feature of its loader is off.
    #[error("{}: unknown kind of model file; use {supported}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The kinds of files that this build reads.
        supported: String,
    },
    /// The file is something else than a model that is read here.
    #[error("{}: this is {found}; {way}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// How it becomes a model.
        way: String,
    },
    /// Files of a set are missing, or do not agree with its index.
    #[error("{}: {why}", path.display())]
    Set {
        /// The file of the set, or its index.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Options of state dicts were given for an ONNX file.
    #[error("prefix, cell and batch_first apply to state dicts; an ONNX file states them")]
    Options,
    /// The bytes are not a well-formed file of that format.
    #[error("not a readable {format} file: {reason}")]
    Malformed {
        /// The format.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The model needs a newer or older set of ONNX operators than is supported.
    #[error(
        "the model imports opset {found}; supported are {oldest} to {newest}; convert it with \
         `onnx.version_converter`"
    )]
    Opset {
        /// The version that the model imports.
        found: i64,
        /// The oldest version.
        oldest: i64,
        /// The newest version.
        newest: i64,
    },
    /// A tensor is missing, has the wrong shape or type, or does not belong to a layer.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name in the file.
        name: String,
        /// What is wrong and what is supported.
        reason: String,
    },
    /// The file holds several recurrent stacks and no prefix was given.
    #[error(
        "the file holds several recurrent stacks, with the prefixes {}; select one by its prefix{}",
        listed(prefixes),
        list.as_ref().map_or(String::new(), |list| {
            format!(", or {list:?} for the modules of the list, one after the other")
        })
    )]
    SeveralStacks {
        /// The prefixes of the tensor names.
        prefixes: Vec<String>,
        /// The prefix of a list of modules of one layer each.
        list: Option<String>,
    },
    /// No recurrent stack has the selected prefix, or the file holds none.
    #[error(
        "no recurrent stack{}; tensors must be named weight_ih_l0, weight_hh_l0, … after a \
         prefix{}",
        wanted.as_ref().map_or(String::new(), |p| format!(" with the prefix {p:?}")),
        if found.is_empty() { String::new() } else { format!("; found prefixes {}", listed(found)) }
    )]
    NoStack {
        /// The prefix selected, if any.
        wanted: Option<String>,
        /// The prefixes of all recurrent stacks.
        found: Vec<String>,
    },
    /// A metadata entry of this crate has an unsupported value.
    #[error("metadata {key:?} is {value:?}; use {supported}")]
    Metadata {
        /// Key of the entry.
        key: &'static str,
        /// Its value in the file, or what is wrong with it.
        value: String,
        /// The supported values.
        supported: &'static str,
    },
    /// A metadata entry has the name of before this library was renamed.
    #[error(
        "metadata {key:?} is of cellstream, the former name of gatestream; save the model again, \
         or rename the entry to \"gatestream.…\""
    )]
    FormerName {
        /// Key of the entry.
        key: String,
    },
    /// A graph node is not supported.
    #[error("node {name:?} ({operator}): {reason}")]
    Node {
        /// Its name in the file, or the name of its first output.
        name: String,
        /// Its operator.
        operator: String,
        /// What is wrong and what is supported.
        reason: String,
    },
    /// The tensors are valid one by one but do not form a model.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Why a model was not written to a file. The file is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The file could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The format cannot express a property of the model.
    #[error("a safetensors file cannot hold {what}")]
    Unsupported {
        /// The property and what is supported.
        what: String,
    },
}

/// The first few of `names`, quoted. A file may hold thousands.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut list: Vec<String> = names.iter().take(SHOWN).map(|n| format!("{n:?}")).collect();
    if names.len() > SHOWN {
        list.push(format!("{} more", names.len() - SHOWN));
    }
    list.join(", ")
}
