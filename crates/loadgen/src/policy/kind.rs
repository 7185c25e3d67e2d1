//! The compared policies by name, for options and reports.

use std::fmt;
use std::str::FromStr;

use super::{Bucketing, GraphBatching, Ideal, Merge, Padding};
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use gatestream_serve::scheduler::Policy;

/// A policy by its name, which [`FromStr`] reads and [`Display`](fmt::Display) writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComparedPolicy {
    /// A policy of the engine.
    Engine(PolicyKind),
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
    /// Width of a bucket in cells, for [`ComparedPolicy::Bucketing`]; at least 1.
    pub width: usize,
}

impl Groups {
    /// The width of a bucket in BatchMaker's evaluation, in cells.
    pub const WIDTH: usize = 10;
}

/// Number of policies of the engine.
const OF_ENGINE: usize = PolicyKind::ALL.len();

impl ComparedPolicy {
    /// All of them: those of the engine, then those of other systems.
    pub const ALL: [ComparedPolicy; OF_ENGINE + 4] = {
        let mut all = [ComparedPolicy::Padding; OF_ENGINE + 4];
        // A constant cannot use iterators.
        let mut index = 0;
        while index < OF_ENGINE {
            all[index] = ComparedPolicy::Engine(PolicyKind::ALL[index]);
            index += 1;
        }
        all[OF_ENGINE + 1] = ComparedPolicy::Bucketing;
        all[OF_ENGINE + 2] = ComparedPolicy::Merge;
        all[OF_ENGINE + 3] = ComparedPolicy::Ideal;
        all
    };

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            ComparedPolicy::Engine(kind) => kind.name(),
            ComparedPolicy::Padding => "padding",
            ComparedPolicy::Bucketing => "bucketing",
            ComparedPolicy::Merge => "merge",
            ComparedPolicy::Ideal => "ideal",
        }
    }

    /// Whether it runs groups of whole requests, which end together.
    pub fn forms_groups(self) -> bool {
        match self {
            ComparedPolicy::Engine(_) => false,
            ComparedPolicy::Padding
            | ComparedPolicy::Bucketing
            | ComparedPolicy::Merge
            | ComparedPolicy::Ideal => true,
        }
    }

    /// Whether it is a baseline: a policy of another system, which does not know requests in
    /// advance.
    pub fn is_baseline(self) -> bool {
        match self {
            ComparedPolicy::Engine(_) | ComparedPolicy::Ideal => false,
            ComparedPolicy::Padding | ComparedPolicy::Bucketing | ComparedPolicy::Merge => true,
        }
    }

    /// Makes the policy, for this number of workers. `groups` are for policies that run whole
    /// requests, `steps` for [`PolicyKind::EBatch`].
    pub fn build(self, workers: usize, groups: Groups, steps: BatchSteps) -> Box<dyn Policy> {
        let Groups { requests, width } = groups;
        match self {
            ComparedPolicy::Engine(kind) => kind.build(workers, steps),
            ComparedPolicy::Padding => Box::new(GraphBatching::new(Padding, workers, requests)),
            ComparedPolicy::Bucketing => {
                Box::new(GraphBatching::new(Bucketing { width }, workers, requests))
            }
            ComparedPolicy::Merge => Box::new(GraphBatching::new(Merge, workers, requests)),
            ComparedPolicy::Ideal => Box::new(GraphBatching::new(Ideal, workers, requests)),
        }
    }
}

#[cfg(test)]
impl ComparedPolicy {
    pub const CELLULAR: ComparedPolicy = ComparedPolicy::Engine(PolicyKind::Cellular);
    pub const SHORTEST: ComparedPolicy = ComparedPolicy::Engine(PolicyKind::Shortest);
    pub const EBATCH: ComparedPolicy = ComparedPolicy::Engine(PolicyKind::EBatch);
}

/// The default of the engine.
impl Default for ComparedPolicy {
    fn default() -> ComparedPolicy {
        ComparedPolicy::Engine(PolicyKind::default())
    }
}

impl From<PolicyKind> for ComparedPolicy {
    fn from(kind: PolicyKind) -> ComparedPolicy {
        ComparedPolicy::Engine(kind)
    }
}

impl fmt::Display for ComparedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that names no [`ComparedPolicy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy; expected one of {all}",
    all = ComparedPolicy::ALL.map(ComparedPolicy::name).join(", ")
)]
pub struct ComparedPolicyError(String);

impl FromStr for ComparedPolicy {
    type Err = ComparedPolicyError;

    fn from_str(text: &str) -> Result<ComparedPolicy, ComparedPolicyError> {
        let mut all = ComparedPolicy::ALL.into_iter();
        all.find(|policy| policy.name() == text)
            .ok_or_else(|| ComparedPolicyError(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_those_of_the_engine_and_of_other_systems() {
        use ComparedPolicy::{Bucketing, Ideal, Merge, Padding};
        let engine = PolicyKind::ALL.map(ComparedPolicy::Engine);
        let all = [&engine[..], &[Padding, Bucketing, Merge, Ideal]].concat();
        assert_eq!(ComparedPolicy::ALL[..], all);
        let baselines = all.iter().filter(|policy| policy.is_baseline());
        assert!(baselines.eq(&[Padding, Bucketing, Merge]));
    }

    #[test]
    fn names_are_read_back() {
        for policy in ComparedPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let kind = PolicyKind::Shortest;
        assert_eq!(kind.name().parse(), Ok(ComparedPolicy::from(kind)));
    }

    #[test]
    fn an_unknown_name_is_refused_with_all_names() {
        for text in ["", "Ideal", "padding:4", "fold"] {
            let error = text.parse::<ComparedPolicy>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no policy")));
            for policy in ComparedPolicy::ALL {
                assert!(error.contains(policy.name()), "{error}");
            }
        }
    }
}
