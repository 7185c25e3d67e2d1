//! Candidates of a comparison: a target for each combination of settings.

use std::fmt;

use crate::drive::Clock;
use crate::policy::ComparedPolicy;
use crate::target::Target;
use gatestream_command::Failure;
use gatestream_serve::engine::Calibration;

/// Starts the targets of a comparison, one at a time.
pub trait Launch {
    /// The target.
    type Target: Target;
    /// The clock by which its completions are timed.
    type Clock: Clock;

    /// Starts the target of a candidate.
    ///
    /// # Errors
    /// The target refuses the settings or cannot be reached.
    fn launch(&self, candidate: &Candidate) -> Result<(Self::Target, Self::Clock), Failure>;

    /// Whether the target has the policies and batch sizes of candidates. A server that is
    /// configured elsewhere is measured once.
    fn has_policies(&self) -> bool {
        true
    }

    /// Measures each cell with batches of these sizes, in the order of the cells.
    ///
    /// # Errors
    /// The target cannot be calibrated, as by default.
    fn calibrate(&self, _rows: &[usize]) -> Result<Vec<Calibration>, Failure> {
        Err(Failure::usage("this target cannot be calibrated"))
    }
}

/// Settings of one target. All are `None` for a server that is configured elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Candidate {
    /// Batching policy. Candidates with one policy compete in a sweep.
    #[serde(skip)]
    pub policy: Option<ComparedPolicy>,
    /// Maximum rows of a batch. Policies that group whole requests use one size for all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<MaxRows>,
    /// Lengths in one bucket; for [`ComparedPolicy::Bucketing`] only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_width: Option<usize>,
}

impl Candidate {
    /// Whether it is a baseline: it has a [baseline's policy](ComparedPolicy::is_baseline), or is a
    /// server that is configured elsewhere.
    pub fn is_baseline(&self) -> bool {
        self.policy.is_none_or(ComparedPolicy::is_baseline)
    }

    /// The settings other than the policy, as in "batch 8, buckets of 10".
    pub fn settings(&self) -> String {
        let batch = self.batch.iter().map(|rows| format!("batch {rows}"));
        let width = self.bucket_width.iter();
        let all = batch.chain(width.map(|width| format!("buckets of {width}")));
        all.collect::<Vec<_>>().join(", ")
    }

    /// Number of requests of the largest batch; 1 if unknown.
    pub fn max_batch(&self) -> usize {
        self.batch.as_ref().map_or(1, MaxRows::largest)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            Some(policy) => write!(f, "{policy}, {}", self.settings()),
            None => f.write_str("target"),
        }
    }
}

/// Maximum rows of a batch for each cell, in the order of the cells.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaxRows(Vec<usize>);

impl MaxRows {
    /// One number for each cell.
    pub fn new(cells: Vec<usize>) -> MaxRows {
        MaxRows(cells)
    }

    /// The same number for all cells.
    pub fn uniform(rows: usize, cells: usize) -> MaxRows {
        MaxRows(vec![rows; cells])
    }

    /// One number for each cell.
    pub fn cells(&self) -> &[usize] {
        &self.0
    }

    /// The largest.
    pub fn largest(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(1)
    }

    fn is_uniform(&self) -> bool {
        self.0.iter().all(|&rows| rows == self.largest())
    }
}

impl fmt::Display for MaxRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_uniform() {
            return write!(f, "{}", self.largest());
        }
        let rows: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&rows.join(":"))
    }
}

impl serde::Serialize for MaxRows {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_uniform() {
            return self.largest().serialize(to);
        }
        self.0.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_they_are_typed() {
        for (rows, text, json) in [
            (MaxRows::new(vec![64, 64]), "64", serde_json::json!(64)),
            (MaxRows::uniform(8, 1), "8", serde_json::json!(8)),
            (
                MaxRows::new(vec![64, 32]),
                "64:32",
                serde_json::json!([64, 32]),
            ),
        ] {
            assert_eq!(rows.to_string(), text);
            assert_eq!(serde_json::to_value(&rows).unwrap(), json);
        }
        assert_eq!(MaxRows::new(vec![16, 48]).largest(), 48);
    }
}
