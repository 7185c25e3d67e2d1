//! What the generator drives: a server with one policy and its settings, seen through two small traits.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::drive::clock::Clock;
use crate::record::Times;
use crate::workload::{Network, Request};
use cellstream_command::Failure;
use cellstream_serve::engine::Calibration;
use cellstream_serve::policy::PolicyKind;

/// The policies that can serve requests of `network`, which are all the same if `identical`.
pub fn policies_for(network: Network, identical: bool) -> Vec<PolicyKind> {
    let serves = |policy: &PolicyKind| match policy {
        PolicyKind::Cellular | PolicyKind::Shortest | PolicyKind::Merge => true,
        PolicyKind::Padding | PolicyKind::Bucketing => !network.is_tree(),
        PolicyKind::Ideal => identical,
    };
    PolicyKind::ALL.into_iter().filter(serves).collect()
}

/// Whether cellular batching is compared with this policy: the policies of other systems, which do
/// not know requests in advance.
pub fn is_baseline(policy: PolicyKind) -> bool {
    use PolicyKind::{Cellular, Ideal, Shortest};
    !matches!(policy, Cellular | Shortest | Ideal)
}

/// Serialises a policy as its name.
///
/// # Errors
/// Those of the serialiser.
pub fn by_name<S: serde::Serializer>(policy: &PolicyKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(policy.name())
}

/// Rows of a batch at most, for each cell, in the order of the cells.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rows(Vec<usize>);

impl Rows {
    /// These.
    pub fn new(cells: Vec<usize>) -> Rows {
        Rows(cells)
    }

    /// As many of every cell.
    pub fn each(rows: usize, cells: usize) -> Rows {
        Rows(vec![rows; cells])
    }

    /// Of each cell.
    pub fn cells(&self) -> &[usize] {
        &self.0
    }

    /// The greatest.
    pub fn most(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(1)
    }

    fn is_even(&self) -> bool {
        self.0.iter().all(|&rows| rows == self.most())
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_even() {
            return write!(f, "{}", self.most());
        }
        let rows: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&rows.join(":"))
    }
}

impl serde::Serialize for Rows {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.is_even() {
            true => self.most().serialize(to),
            false => self.0.serialize(to),
        }
    }
}

/// What a policy may be set to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// Rows of a batch at most; of policies that group whole requests, as many of every cell.
    pub batch: Rows,
    /// Lengths in one bucket; of [`PolicyKind::Bucketing`] alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_width: Option<usize>,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}", self.batch)?;
        match self.bucket_width {
            Some(width) => write!(f, ", buckets of {width}"),
            None => Ok(()),
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With its answer.
    Done {
        /// From submission to the start of its first cell.
        queueing: Duration,
        /// From there to the end of its last cell.
        computing: Duration,
    },
    /// Without.
    Failed(ErrorKind),
}

/// Why a request ended without its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Refused at once: the queue was full.
    Overloaded,
    /// Its deadline passed.
    Deadline,
    /// The server gave it up: a cell failed, it was cancelled or the server shut down.
    Failed,
    /// The generator gave up waiting for it.
    Unfinished,
}

impl ErrorKind {
    /// All, in the order of reports.
    pub const ALL: [ErrorKind; 4] = [
        ErrorKind::Overloaded,
        ErrorKind::Deadline,
        ErrorKind::Failed,
        ErrorKind::Unfinished,
    ];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Deadline => "deadline",
            ErrorKind::Failed => "failed",
            ErrorKind::Unfinished => "unfinished",
        }
    }
}

/// Called when a request ends, on whatever thread ends it: it only notes the time.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// What has been run of each cell, by its name.
pub type Ran = BTreeMap<String, CellRan>;

/// What has been run of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellRan {
    /// Batches by their number of rows.
    pub batches: BTreeMap<usize, u64>,
    /// How long a batch took; steps that ran together share their time.
    pub steps: Times,
}

/// A server that runs. Dropped, it shuts down.
pub trait Target {
    /// A request with its values, ready to be submitted.
    type Prepared;

    /// Makes the request's graph and values. Called ahead of the time when it is due: that is the client's work.
    fn prepare(&self, request: &Request) -> Self::Prepared;

    /// Submits; `done` is called once, at once if the request is refused. `left`: time until its deadline.
    fn submit(&self, request: Self::Prepared, left: Option<Duration>, done: Done);

    /// What has been run so far.
    fn ran(&self) -> Ran;
}

/// Starts servers, each of which has the machine for itself until it is dropped.
pub trait Launch {
    /// What is started.
    type Target: Target;
    /// The clock of its callbacks.
    type Clock: Clock;

    /// A server with this policy, and the clock to drive it by.
    ///
    /// # Errors
    /// What the server refuses.
    fn launch(
        &self,
        policy: PolicyKind,
        settings: &Settings,
    ) -> Result<(Self::Target, Self::Clock), Failure>;

    /// What each cell takes for batches of these sizes, in the order of the cells.
    ///
    /// # Errors
    /// What the server refuses.
    fn calibrate(&self, rows: &[usize]) -> Result<Vec<Calibration>, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_serve_what_they_can() {
        use PolicyKind::*;
        assert_eq!(
            policies_for(Network::Lstm, false),
            [Cellular, Shortest, Padding, Bucketing, Merge]
        );
        assert_eq!(
            policies_for(Network::Treelstm, false),
            [Cellular, Shortest, Merge]
        );
        assert_eq!(
            policies_for(Network::TreeChildSum, true),
            [Cellular, Shortest, Merge, Ideal]
        );
        assert_eq!(policies_for(Network::Seq2seq, true), PolicyKind::ALL);
    }

    #[test]
    fn names_are_what_is_typed() {
        use clap::ValueEnum;
        for network in Network::value_variants() {
            let typed = network.to_possible_value().unwrap();
            assert_eq!(typed.get_name(), network.name());
            assert_eq!(serde_json::to_value(network).unwrap(), network.name());
        }
        for kind in ErrorKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn sizes_are_shown_as_they_are_typed() {
        for (rows, text, json) in [
            (Rows::new(vec![64, 64]), "64", serde_json::json!(64)),
            (Rows::each(8, 1), "8", serde_json::json!(8)),
            (
                Rows::new(vec![64, 32]),
                "64:32",
                serde_json::json!([64, 32]),
            ),
        ] {
            assert_eq!(rows.to_string(), text);
            assert_eq!(serde_json::to_value(&rows).unwrap(), json);
        }
        assert_eq!(Rows::new(vec![16, 48]).most(), 48);
    }
}
