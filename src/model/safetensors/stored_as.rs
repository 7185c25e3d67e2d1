//! The precision of a file's matrices.

use crate::model::Precision;

/// Its entry in the metadata.
pub(super) const PRECISION: &str = "gatestream.precision";

/// The precision in which a file stores its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredAs {
    Uniform(Precision),
    /// Each matrix as its dtype says.
    Mixed,
}
