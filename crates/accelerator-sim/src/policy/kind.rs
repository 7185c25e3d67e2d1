//! The policies by name, as a command line gives them.

use std::fmt;
use std::str::FromStr;

use super::{Machine, Waits, bucketing, cellular, ebatch, padding};
use crate::arrivals::Arrival;
use crate::ebatch::{Cap, LayerTimes};
use crate::outcome::Outcome;

/// A policy: `padding`, `bucketing:WIDTH`, `cellular:STEPS`, `ebatch`, `ebatch:N` or
/// `ebatch:by-load`.
///
/// ```
/// use gatestream_accelerator_sim::policy::Policy;
///
/// assert_eq!("ebatch:64".parse(), Ok(Policy::EBatch { cap: 64 }));
/// assert_eq!("bucketing".parse::<Policy>()?.to_string(), "bucketing:10");
/// # Ok::<(), gatestream_accelerator_sim::policy::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Sequence padding.
    Padding,
    /// Sequence bucketing.
    Bucketing {
        /// Lengths of a bucket differ by at most this number; `bucketing` alone is 10.
        width: usize,
    },
    /// Cellular batching.
    Cellular {
        /// Steps of a cell; `cellular` alone is 5, as in the paper.
        steps: usize,
    },
    /// `ebatch`: E-BATCH with batches as long as their longest lane.
    EBatchLongest,
    /// E-BATCH with at most so many steps of a lane (N).
    EBatch {
        /// N.
        cap: usize,
    },
    /// `ebatch:by-load`: E-BATCH with [`Cap::ByLoad`].
    EBatchByLoad,
}

impl Policy {
    /// Runs it until all requests are complete.
    pub fn run(
        self,
        machine: &Machine,
        arrivals: impl IntoIterator<Item = Arrival>,
        waits: Waits,
    ) -> Outcome {
        match self {
            Policy::Padding => padding(machine, arrivals),
            Policy::Bucketing { width } => bucketing(machine, arrivals, width),
            Policy::Cellular { steps } => cellular(machine, arrivals, steps),
            Policy::EBatchLongest => ebatch(machine, arrivals, Cap::Longest, waits),
            Policy::EBatch { cap } => ebatch(machine, arrivals, Cap::Steps(cap), waits),
            Policy::EBatchByLoad => {
                let times = LayerTimes {
                    layers: machine.network.layers,
                    fetch: machine.fetch_time(),
                    step: machine.step_time(),
                };
                ebatch(machine, arrivals, Cap::ByLoad(times), waits)
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Padding => f.pad("padding"),
            Policy::Bucketing { width } => f.pad(&format!("bucketing:{width}")),
            Policy::Cellular { steps } => f.pad(&format!("cellular:{steps}")),
            Policy::EBatchLongest => f.pad("ebatch"),
            Policy::EBatch { cap } => f.pad(&format!("ebatch:{cap}")),
            Policy::EBatchByLoad => f.pad("ebatch:by-load"),
        }
    }
}

/// Text that names no [`Policy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy; expected padding, bucketing, bucketing:WIDTH, cellular, cellular:STEPS, \
     ebatch, ebatch:N or ebatch:by-load, with whole numbers from 1"
)]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let refused = || PolicyError(text.into());
        let number = |digits: &str| {
            let number: u32 = digits.parse().ok().filter(|&number| number > 0)?;
            Some(number as usize)
        };
        let (name, number) = match text.split_once(':') {
            None => (text, None),
            Some(("ebatch", "by-load")) => return Ok(Policy::EBatchByLoad),
            Some((name, digits)) => (name, Some(number(digits).ok_or_else(refused)?)),
        };
        match (name, number) {
            ("padding", None) => Ok(Policy::Padding),
            ("bucketing", width) => Ok(Policy::Bucketing {
                width: width.unwrap_or(10),
            }),
            ("cellular", steps) => Ok(Policy::Cellular {
                steps: steps.unwrap_or(5),
            }),
            ("ebatch", None) => Ok(Policy::EBatchLongest),
            ("ebatch", Some(cap)) => Ok(Policy::EBatch { cap }),
            _ => Err(refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for text in [
            "padding",
            "bucketing:3",
            "cellular:1",
            "ebatch",
            "ebatch:256",
            "ebatch:by-load",
        ] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "pad",
            "padding:2",
            "ebatch:0",
            "ebatch:",
            "cellular:-1",
            "bucketing:x",
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no policy")),
                "{error}"
            );
        }
    }
}
