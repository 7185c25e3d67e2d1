//! What these layers refuse.

use crate::execute::team::TeamPanicked;
use gatestream_kernels::IsaError;

/// Why a layer could not be made, or a call was refused. Nothing has been written then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A symbol that the table has no row for.
    #[error("symbol {symbol} is not in the table; it has {symbols}, counted from 0")]
    Symbol {
        /// The symbol given.
        symbol: usize,
        /// Rows of the table.
        symbols: usize,
    },
    /// A slice has the wrong length.
    #[error("{name}: expected {expected} values, found {found}")]
    Values {
        /// Which slice.
        name: &'static str,
        /// The number of values that fits.
        expected: usize,
        /// The number it has.
        found: usize,
    },
    /// Two parts of a model that do not fit together.
    #[error("{upper} takes {takes} features, but {lower} gives {gives}")]
    DoesNotFit {
        /// The part that is fed.
        upper: &'static str,
        /// Features it takes.
        takes: usize,
        /// The part that feeds it.
        lower: &'static str,
        /// Features that gives.
        gives: usize,
    },
    /// A sequence that has no steps, or more than the batch.
    #[error("sequence {sequence} has {length} steps; 1 to {steps} are supported")]
    Length {
        /// Which sequence of the batch.
        sequence: usize,
        /// Steps of it.
        length: usize,
        /// Steps of the batch.
        steps: usize,
    },
    /// More symbols than memory has room for.
    #[error(
        "an answer of up to {limit} symbols is more than memory can hold; choose a lower limit"
    )]
    Limit {
        /// The limit given.
        limit: usize,
    },
    /// A beam search that keeps no hypothesis.
    #[error("a beam of width 0 keeps no hypothesis; choose 1 or more")]
    BeamWidth,
    /// None to choose among, or more than `f32` counts.
    #[error(
        "a choice among {symbols} symbols; 1 to {} are supported",
        super::MAX_SYMBOLS
    )]
    ManySymbols {
        /// How many there are.
        symbols: usize,
    },
    /// A worker of the team panicked.
    #[error(transparent)]
    Team(#[from] TeamPanicked),
    /// The instruction set that `GATESTREAM_ISA` names cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

/// Refuses a slice of another length than `expected`.
pub(super) fn expect(name: &'static str, found: usize, expected: usize) -> Result<(), LayerError> {
    if found == expected {
        return Ok(());
    }
    Err(LayerError::Values {
        name,
        expected,
        found,
    })
}

/// Refuses a part that takes other features than the part before gives.
pub(super) fn fits(
    upper: &'static str,
    takes: usize,
    lower: &'static str,
    gives: usize,
) -> Result<(), LayerError> {
    if takes == gives {
        return Ok(());
    }
    Err(LayerError::DoesNotFit {
        upper,
        takes,
        lower,
        gives,
    })
}
