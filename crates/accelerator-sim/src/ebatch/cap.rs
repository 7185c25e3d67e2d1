//! The most steps of a lane in a batch: N.

use gatestream_scheduler::policy::ebatch::{LayerTimes, Rest, Time};

/// The most steps of a lane in a batch (N).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Those of the longest lane when the batch starts.
    Longest,
    /// This number; at least 1.
    Steps(usize),
    /// Chosen for each batch, by the waiting sequences and their deadlines: [`LayerTimes::cap`].
    ByLoad(LayerTimes),
}

impl Cap {
    /// The most steps of a batch that starts now with the `oldest` of `waiting` sequences, as many
    /// as `lanes`. `None` for [`Cap::Longest`], and without a sequence.
    pub(super) fn of_batch(
        &self,
        now: Time,
        lanes: usize,
        waiting: usize,
        oldest: impl Iterator<Item = Rest> + Clone,
    ) -> Option<usize> {
        match self {
            Cap::Longest => None,
            Cap::Steps(steps) => Some(*steps),
            Cap::ByLoad(times) => times.cap(now, lanes, waiting, oldest),
        }
    }
}
