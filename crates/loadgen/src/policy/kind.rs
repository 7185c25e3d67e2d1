//! The policies by name, for options and reports.

use std::fmt;
use std::str::FromStr;

use super::{Bucketing, GraphBatching, Ideal, Merge, Padding};
use gatestream_serve::policy::{self, BatchSteps};
use gatestream_serve::scheduler::Policy;

/// A policy by its name, which [`FromStr`] reads and [`Display`](fmt::Display) writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// `cellular`: [`policy::PolicyKind::Cellular`].
    Cellular,
    /// `shortest`: [`policy::PolicyKind::Shortest`].
    Shortest,
    /// `ebatch`: [`policy::PolicyKind::EBatch`], the default as in the engine.
    #[default]
    EBatch,
    /// `padding`: [`Padding`].
    Padding,
    /// `bucketing`: [`Bucketing`].
    Bucketing,
    /// `merge`: [`Merge`].
    Merge,
    /// `ideal`: [`Ideal`].
    Ideal,
}

/// How policies that run whole requests form groups of them; other policies ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Maximum number of requests of a group; at least 1.
    pub requests: usize,
    /// Width of a bucket in cells, for [`PolicyKind::Bucketing`]; at least 1.
    pub width: usize,
}

impl Groups {
    /// The width of a bucket in BatchMaker's evaluation, in cells.
    pub const WIDTH: usize = 10;
}

impl PolicyKind {
    /// All kinds.
    pub const ALL: [PolicyKind; 7] = [
        PolicyKind::Cellular,
        PolicyKind::Shortest,
        PolicyKind::EBatch,
        PolicyKind::Padding,
        PolicyKind::Bucketing,
        PolicyKind::Merge,
        PolicyKind::Ideal,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Cellular => policy::PolicyKind::Cellular.name(),
            PolicyKind::Shortest => policy::PolicyKind::Shortest.name(),
            PolicyKind::EBatch => policy::PolicyKind::EBatch.name(),
            PolicyKind::Padding => "padding",
            PolicyKind::Bucketing => "bucketing",
            PolicyKind::Merge => "merge",
            PolicyKind::Ideal => "ideal",
        }
    }

    /// Makes the policy, for this number of workers. `groups` are for policies that run whole
    /// requests, `steps` for [`PolicyKind::EBatch`].
    pub fn build(self, workers: usize, groups: Groups, steps: BatchSteps) -> Box<dyn Policy> {
        let Groups { requests, width } = groups;
        match self {
            PolicyKind::Cellular => policy::PolicyKind::Cellular.build(workers, steps),
            PolicyKind::Shortest => policy::PolicyKind::Shortest.build(workers, steps),
            PolicyKind::EBatch => policy::PolicyKind::EBatch.build(workers, steps),
            PolicyKind::Padding => Box::new(GraphBatching::new(Padding, workers, requests)),
            PolicyKind::Bucketing => {
                Box::new(GraphBatching::new(Bucketing { width }, workers, requests))
            }
            PolicyKind::Merge => Box::new(GraphBatching::new(Merge, workers, requests)),
            PolicyKind::Ideal => Box::new(GraphBatching::new(Ideal, workers, requests)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that names no [`PolicyKind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy; expected one of {all}",
    all = PolicyKind::ALL.map(PolicyKind::name).join(", ")
)]
pub struct PolicyKindError(String);

impl FromStr for PolicyKind {
    type Err = PolicyKindError;

    fn from_str(text: &str) -> Result<PolicyKind, PolicyKindError> {
        let mut all = PolicyKind::ALL.into_iter();
        all.find(|kind| kind.name() == text)
            .ok_or_else(|| PolicyKindError(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_all_names() {
        for text in ["", "Ideal", "padding:4", "fold"] {
            let error = text.parse::<PolicyKind>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no policy")));
            for kind in PolicyKind::ALL {
                assert!(error.contains(kind.name()), "{error}");
            }
        }
    }
}
