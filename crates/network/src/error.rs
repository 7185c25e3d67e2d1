//! Why a network was not loaded or not run.

use std::path::PathBuf;

/// Why a network was not loaded or not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A file could not be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
    /// The bytes are not an ONNX model, or contradict themselves.
    #[error("not a readable ONNX file: {0}")]
    Malformed(String),
    /// The model needs a newer or older set of operators than is supported.
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
    /// Values that the model keeps in another file cannot be had.
    #[error("external data of tensor {tensor:?}: {why}")]
    ExternalData {
        /// The tensor.
        tensor: String,
        /// The cause.
        why: String,
    },
    /// An operator that neither gatestream nor tract computes.
    #[error("node {node:?}: operator {operator} is not supported")]
    Unsupported {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// An operator that has not been compared with ONNX's own test cases, or differed in one.
    #[error(
        "node {node:?}: operator {operator} has not passed ONNX's own test cases here; \
         `--unchecked` (`NetworkOptions::unchecked`) runs it, and its results may be wrong"
    )]
    Unchecked {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// The recurrent core cannot be cut out.
    #[error("the recurrent core cannot be cut out: {why}")]
    Cut {
        /// The cause.
        why: String,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// An input that does not fit the model.
    #[error("input {name:?}: {why}")]
    Input {
        /// The input.
        name: String,
        /// The cause.
        why: String,
    },
    /// The graph could not be prepared for inputs of these shapes.
    #[error("the graph does not accept these inputs: {why}")]
    Plan {
        /// The cause.
        why: String,
    },
    /// A file that is no plan of a network, or a plan that cannot be written.
    #[error("the plan file: {why}")]
    PlanFile {
        /// The cause.
        why: String,
    },
    /// A region could not be tuned.
    #[error("recurrent node {node:?} could not be tuned: {why}")]
    Tune {
        /// The node.
        node: String,
        /// The cause.
        why: String,
    },
    /// The weights of a graph cannot be stored in 8 bits.
    #[error("the weights cannot be stored in 8 bits: {why}")]
    Quantize {
        /// The cause.
        why: String,
    },
    /// A run failed.
    #[error("the run failed: {why}")]
    Run {
        /// The cause.
        why: String,
    },
    /// The threads could not be started.
    #[error(transparent)]
    Team(#[from] gatestream::execute::team::TeamError),
}
