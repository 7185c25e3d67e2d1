//! The time of each recurrent region of a run.
//!
//! The nodes of a graph run one after the other on the thread that calls. So the records of a run
//! are those of its thread, and other runs at the same time have records of their own.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::NamedTensor;

/// A run of one recurrent region: a recurrent node with its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionRun {
    /// The name of the node.
    pub node: String,
    /// Its operator: `LSTM`, `GRU`, `RNN` or `DynamicQuantizeLSTM`.
    pub operator: String,
    /// Features of an input step.
    pub input: usize,
    /// Features of an output step, of all directions.
    pub output: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Steps of the longest sequence.
    pub steps: usize,
    /// Its plan, in words.
    pub plan: String,
    /// The time that it took, without the conversion of its arrays.
    pub time: Duration,
}

/// The time of a run, and of the recurrent regions in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkProfile {
    /// The time of the whole run.
    pub total: Duration,
    /// The runs of regions, in their order. A region within a loop may occur several times.
    pub regions: Vec<RegionRun>,
}

impl NetworkProfile {
    /// The time of all recurrent regions.
    pub fn recurrent(&self) -> Duration {
        self.regions.iter().map(|region| region.time).sum()
    }

    /// The part of the time that recurrent regions take, from 0 to 1.
    pub fn recurrent_share(&self) -> f64 {
        self.recurrent().as_secs_f64() / self.total.as_secs_f64().max(1e-9)
    }
}

/// The outputs of a run, and its profile.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProfiledRun {
    /// As [`Network::run`](crate::Network::run) returns them.
    pub outputs: Vec<NamedTensor>,
    /// The times.
    pub profile: NetworkProfile,
}

thread_local!(static RECORD: RefCell<Option<Vec<RegionRun>>> = const { RefCell::new(None) });

/// Adds a run of a region to the record of this thread, if there is one.
pub(crate) fn record(region: impl FnOnce() -> RegionRun) {
    RECORD.with_borrow_mut(|record| {
        if let Some(runs) = record {
            runs.push(region());
        }
    });
}

/// Runs `run` with a record.
pub(crate) fn profiled<T>(run: impl FnOnce() -> T) -> (T, NetworkProfile) {
    // Ends the record even if `run` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            RECORD.set(None);
        }
    }
    let _end = End;
    RECORD.set(Some(Vec::new()));
    let start = Instant::now();
    let result = run();
    let total = start.elapsed();
    let regions = RECORD.take().unwrap_or_default();
    (result, NetworkProfile { total, regions })
}
