//! What networks refuse.

use cellstream::layers::LayerError;
use cellstream::plan::PlanError;

/// Why a network could not be made, or a request not be unfolded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A layer that needs the end of a sequence before its start.
    #[error(
        "layer {layer} has a reverse direction, which needs the whole sequence first; a chain has \
         forward directions only"
    )]
    Reverse {
        /// Which layer, from 0.
        layer: usize,
    },
    /// A plan that is not the model's.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Parts that do not fit together, or a symbol that there is not.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Two parts with states of different sizes.
    #[error("the encoder leaves states of sizes {encoder:?}, the decoder takes {decoder:?}")]
    States {
        /// Of the encoder, in order.
        encoder: Vec<usize>,
        /// Of the decoder, in order.
        decoder: Vec<usize>,
    },
    /// A weight of another shape.
    #[error("{name}: expected {expected} values in rows of {cols}, found {found}")]
    Weights {
        /// Which one.
        name: &'static str,
        /// Values that fit.
        expected: usize,
        /// How many stand in a row.
        cols: usize,
        /// Values that it has.
        found: usize,
    },
    /// A request without a step, symbol or word.
    #[error("the request has no {what}; give at least one")]
    Empty {
        /// Of what there is none.
        what: &'static str,
    },
    /// Another number of values.
    #[error("{name}: expected {expected} values, found {found}")]
    Values {
        /// Which ones.
        name: &'static str,
        /// The number of values that fits.
        expected: usize,
        /// The number given.
        found: usize,
    },
    /// Rows of no value: how many there are, nothing says.
    #[error("{name}: the network takes rows of 0 values, whose number nothing says")]
    NoFeatures {
        /// Which ones.
        name: &'static str,
    },
    /// Values that are not whole rows.
    #[error("{name}: expected a multiple of {width} values, found {found}")]
    Rows {
        /// Which ones.
        name: &'static str,
        /// Values of a row.
        width: usize,
        /// The number given.
        found: usize,
    },
    /// A child of a tree's node that is not there, or has another parent.
    #[error(
        "node {node} of the tree takes {child}, which is not there, comes later, or has a parent already"
    )]
    Child {
        /// The node.
        node: usize,
        /// Its child.
        child: String,
    },
    /// A tree in pieces.
    #[error("the tree has {roots} roots; expected 1")]
    Roots {
        /// How many there are.
        roots: usize,
    },
    /// A head that there is not.
    #[error(
        "word {word} of {words} has head {head}; expected another word, from 1, or 0 for the root"
    )]
    Head {
        /// The word, from 1.
        word: usize,
        /// Its head.
        head: usize,
        /// How many words there are.
        words: usize,
    },
    /// Words that hang on each other in a circle.
    #[error("word {word} hangs on itself: its heads lead round in a circle, not to the root")]
    Circle {
        /// One of them, from 1.
        word: usize,
    },
    /// A line that is no list of heads.
    #[error("`{text}` is no list of heads; expected numbers as in `[2,0,2]`")]
    NotHeads {
        /// What could not be read.
        text: String,
    },
}

/// Refuses values of another number than `expected`.
pub(super) fn expect(
    name: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), NetworkError> {
    match found == expected {
        true => Ok(()),
        false => Err(NetworkError::Values {
            name,
            expected,
            found,
        }),
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
