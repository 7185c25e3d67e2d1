//! Errors of networks.

use gatestream::layers::LayerError;
use gatestream::model::ModelError;
use gatestream::plan::PlanError;

/// Why a network was not built, or a request not unfolded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A layer has a reverse direction.
    #[error(
        "layer {layer} has a reverse direction, which needs the whole sequence first; a chain has \
         forward directions only, a `WholeCell` has any"
    )]
    Reverse {
        /// Index of the layer.
        layer: usize,
    },
    /// The plan does not fit the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Parts have different widths, or a symbol has no row.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The weights are invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Encoder and decoder have different states.
    #[error("the encoder has states of sizes {encoder:?}, the decoder of {decoder:?}")]
    States {
        /// Sizes of the encoder's states, in order.
        encoder: Vec<usize>,
        /// Sizes of the decoder's states, in order.
        decoder: Vec<usize>,
    },
    /// A weight has a wrong shape.
    #[error("{name}: expected {expected} values in rows of {cols}, found {found}")]
    Weights {
        /// Name of the weight.
        name: &'static str,
        /// Expected number of values.
        expected: usize,
        /// Values of a row.
        cols: usize,
        /// Number of values.
        found: usize,
    },
    /// A request has no step, symbol or word.
    #[error("the request has no {what}; give at least one")]
    Empty {
        /// The missing part.
        what: &'static str,
    },
    /// A wrong number of values.
    #[error("{name}: expected {expected} values, found {found}")]
    Values {
        /// Name of the values.
        name: &'static str,
        /// Expected number of values.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// Rows have no values, so their number is unknown.
    #[error("{name}: the rows have 0 values, so the number of rows is unknown")]
    NoFeatures {
        /// Name of the values.
        name: &'static str,
    },
    /// The values are not whole rows.
    #[error("{name}: expected a multiple of {width} values, found {found}")]
    Rows {
        /// Name of the values.
        name: &'static str,
        /// Values of a row.
        width: usize,
        /// Number of values.
        found: usize,
    },
    /// A child of a tree node does not exist, comes later, or has another parent.
    #[error(
        "node {node} of the tree has child {child}, which does not exist, comes later, or has a \
         parent"
    )]
    Child {
        /// The node.
        node: usize,
        /// Its child.
        child: String,
    },
    /// A tree has no root or several.
    #[error("the tree has {roots} roots; expected 1")]
    Roots {
        /// Number of roots.
        roots: usize,
    },
    /// The head of a word is not a word of the sentence.
    #[error(
        "word {word} of {words} has head {head}; expected another word, from 1, or 0 for the root"
    )]
    Head {
        /// The word, from 1.
        word: usize,
        /// Its head.
        head: usize,
        /// Number of words.
        words: usize,
    },
    /// The heads of some words form a cycle.
    #[error("word {word} is in a cycle of heads that does not reach the root")]
    Cycle {
        /// One of them, from 1.
        word: usize,
    },
    /// A text is not a list of heads.
    #[error("`{text}` is not a list of heads; expected numbers as in `[2,0,2]`")]
    InvalidHeads {
        /// The text, shortened.
        text: String,
    },
}

/// Refuses a wrong number of values.
pub(super) fn expect(
    name: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), NetworkError> {
    if found == expected {
        Ok(())
    } else {
        Err(NetworkError::Values {
            name,
            expected,
            found,
        })
    }
}

/// The number of rows of `width` values, at least one.
pub(super) fn rows_of(
    name: &'static str,
    what: &'static str,
    found: usize,
    width: usize,
) -> Result<usize, NetworkError> {
    if width == 0 {
        return Err(NetworkError::NoFeatures { name });
    }
    if !found.is_multiple_of(width) {
        return Err(NetworkError::Rows { name, width, found });
    }
    match found / width {
        0 => Err(NetworkError::Empty { what }),
        rows => Ok(rows),
    }
}
