//! The values of `--policies`.

use crate::policy::ComparedPolicy;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gatestream_serve::policy::PolicyKind;

/// One entry of `--policies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOption {
    /// All that support the requests.
    All,
    /// This one.
    One(ComparedPolicy),
}

/// Reads a policy by its name.
pub fn policy() -> impl TypedValueParser<Value = PolicyOption> {
    let possible = ComparedPolicy::ALL.map(|policy| {
        let help = match policy {
            ComparedPolicy::Engine(PolicyKind::Cellular) => {
                "Requests join and leave at every batch of cells"
            }
            ComparedPolicy::Engine(PolicyKind::Shortest) => {
                "As cellular, those with the fewest cells left first"
            }
            ComparedPolicy::Engine(PolicyKind::EBatch) => {
                "As cellular, with as many steps in a batch as pay"
            }
            ComparedPolicy::Padding => "Whole requests, padded to the longest",
            ComparedPolicy::Bucketing => "Whole requests of similar length, buckets in turn",
            ComparedPolicy::Merge => "Whole graphs, merged level by level",
            ComparedPolicy::Ideal => "Full batches of requests known to be identical",
        };
        PossibleValue::new(policy.name()).help(help)
    });
    let all = PossibleValue::new("all").help("All that support the requests");
    let names = PossibleValuesParser::new(possible.into_iter().chain([all]));
    names.try_map(|name| match name.as_str() {
        "all" => Ok(PolicyOption::All),
        name => name.parse().map(PolicyOption::One),
    })
}
