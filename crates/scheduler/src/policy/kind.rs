//! The policies by name, for options and command lines.

use std::fmt;
use std::str::FromStr;

use super::{BatchSteps, Cellular, EBatching, Order};
use crate::scheduler::Policy;

/// A policy by its name, which [`FromStr`] reads and [`Display`](fmt::Display) writes.
///
/// ```
/// use gatestream_scheduler::policy::PolicyKind;
///
/// let kind: PolicyKind = "shortest".parse()?;
/// assert_eq!(kind, PolicyKind::Shortest);
/// assert_eq!(kind.to_string(), "shortest");
/// # Ok::<(), gatestream_scheduler::policy::PolicyKindError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// `cellular`: [`Cellular`] with [`Order::Arrival`].
    ///
    /// A batch of more than 16 rows has one step. Each step costs a decision under the engine's
    /// lock and copies of states, which for small cells takes longer than the cell.
    Cellular,
    /// `shortest`: [`Cellular`] with [`Order::FewestLeft`].
    ///
    /// It differs from `cellular` only under overload, when more rows are ready than a batch has.
    /// Then most requests end sooner and the longest ones later; an eighth of the rows goes to
    /// requests in turn, so these end, too. The number of cells left counts the cells that a
    /// request is known to need when the first of its ready nodes got ready: the steps of a chain
    /// or an encoder, the nodes of a tree, the inputs of a stream so far, one step of a decoder.
    Shortest,
    /// `ebatch`: [`EBatching`]. The default.
    ///
    /// As `cellular`, but a batch has as many steps of its rows as pay, by the load and measured
    /// times (`gatestream_serve::engine::EngineOptions::batch_steps`): several where a batch
    /// has costs that do not depend on its steps (reads of weights that the caches do not hold,
    /// decisions and copies beside small cells), one elsewhere.
    #[default]
    EBatch,
}

impl PolicyKind {
    /// All kinds.
    pub const ALL: [PolicyKind; 3] = [
        PolicyKind::Cellular,
        PolicyKind::Shortest,
        PolicyKind::EBatch,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Cellular => "cellular",
            PolicyKind::Shortest => "shortest",
            PolicyKind::EBatch => "ebatch",
        }
    }

    /// Makes the policy, for this number of workers. `steps` are for [`PolicyKind::EBatch`].
    pub fn build(self, workers: usize, steps: BatchSteps) -> Box<dyn Policy> {
        match self {
            PolicyKind::Cellular => Box::new(Cellular::new(workers, Order::Arrival)),
            PolicyKind::Shortest => Box::new(Cellular::new(workers, Order::FewestLeft)),
            PolicyKind::EBatch => Box::new(EBatching::new(workers, steps)),
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
        for text in ["", "Cellular", "ebatch:4", "padding"] {
            let error = text.parse::<PolicyKind>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no policy")));
            for kind in PolicyKind::ALL {
                assert!(error.contains(kind.name()), "{error}");
            }
        }
    }
}
