//! Cases of single nodes: ONNX's own, and ONNX Runtime's answers for operators of other domains
//! (`tests/node_cases/cases.py`). These are few of them; the README says how to run all.

#[path = "common/node_cases.rs"]
mod node_cases;

use std::path::Path;

use gatestream_network::NetworkOptions;
use node_cases::{FORMS, NodeCase, Outcome};

#[test]
fn operators_have_the_results_of_the_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node_cases/fixtures");
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let case = NodeCase::open(&folder);
        assert!(!case.sets.is_empty(), "{name} has no values");
        let forms = FORMS.into_iter().filter(|form| case.has(*form));
        let outcomes: Vec<Outcome> = forms
            .map(|form| case.run(form, NetworkOptions::default()))
            .collect();
        count += 1;
        // A form may be refused where values decide on shapes, not each.
        let is_right = outcomes.contains(&Outcome::Passed)
            && outcomes
                .iter()
                .all(|outcome| matches!(outcome, Outcome::Passed | Outcome::Refused(_)));
        if !is_right {
            wrong.push(format!("{name}: {outcomes:?}"));
        }
    }
    assert!(count >= MIN_CASES, "{count} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fewest cases there are.
const MIN_CASES: usize = 135;
