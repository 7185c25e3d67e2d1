//! Whether a node that can be computed is claimed: not where it would run slower than in ONNX
//! Runtime.

use gatestream::machine::CacheModel;
use gatestream::model::{Cell, Direction, Model, ResetForm};

/// Why a node is faster in ONNX Runtime; `None`: it is not.
///
/// What decides is whether the recurrent weights that a core reads at each step stay in its own
/// cache. Two kinds of nodes lose where they do not; `provider-nodes.csv` in the record has the
/// times of them and of others.
///
/// - A GRU whose reset gate comes before the product reads its weights in two phases of a step, so
///   that nothing of them is left from one step to the next.
/// - Of two directions each core has one. ONNX Runtime reads a matrix that is a little larger than
///   the cache faster; of a much larger one both read all from the next level.
pub fn slower(model: &Model) -> Option<String> {
    let caches = CacheModel::here();
    let private = caches.private_bytes();
    let bytes = |direction: &Direction| direction.weights().recurrent.bytes();
    let why = |bytes: usize, of: &str| {
        format!(
            "it would be slower: the {} KiB of recurrent weights {of} exceed a core's cache of {} \
             KiB",
            bytes >> 10,
            private >> 10
        )
    };
    for layer in model.layers() {
        for direction in layer.directions() {
            let bytes = bytes(direction);
            if !caches.exceeds_private(bytes) {
                continue;
            }
            if let Cell::Gru { reset, .. } = direction.cell()
                && *reset == ResetForm::Before
            {
                return Some(why(bytes, "of a GRU with linear_before_reset 0"));
            }
            if layer.directions().len() == 2 && bytes < 4 * private {
                return Some(why(bytes, "of each of two directions"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use gatestream::model::{Gru, Lstm, Merge};

    /// A hidden size whose matrix of so many gates has about these bytes.
    fn hidden(bytes: usize, gates: usize) -> usize {
        (bytes / 4 / gates).isqrt()
    }

    #[test]
    fn weights_that_fit_are_claimed_and_others_where_they_gain() {
        let private = CacheModel::here().private_bytes();
        let lstm = |bytes| Lstm::new(4, hidden(bytes, 4));
        let gru = |bytes, form| Gru::new(4, hidden(bytes, 3)).reset(form).random(1).unwrap();
        for (model, is_left) in [
            (lstm(2 * private).random(1).unwrap(), false),
            (
                lstm(private / 2)
                    .bidirectional(Merge::Concat)
                    .random(1)
                    .unwrap(),
                false,
            ),
            (
                lstm(2 * private)
                    .bidirectional(Merge::Concat)
                    .random(1)
                    .unwrap(),
                true,
            ),
            (gru(private / 2, ResetForm::Before), false),
            (gru(2 * private, ResetForm::Before), true),
            (gru(2 * private, ResetForm::After), false),
        ] {
            assert_eq!(slower(&model).is_some(), is_left, "{:?}", slower(&model));
        }
    }
}
