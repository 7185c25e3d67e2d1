//! Runs ONNX's own cases of nodes and prints a line for each, separated by tabs: its folder, the
//! version of the operator set, the operators of its model, the form, the outcome and its cause.
//!
//! ```text
//! cargo run --release -p gatestream-network --example node_cases -- FOLDER [--unchecked]
//! ```
//!
//! `FOLDER` has a folder for each case, as `onnx/backend/test/data/node` of the package `onnx`.
//! `--unchecked` also runs operators that are not verified.

#[path = "../tests/common/node_cases.rs"]
mod node_cases;

use std::collections::BTreeSet;
use std::path::Path;

use gatestream_network::NetworkOptions;
use node_cases::{FORMS, NodeCase};
use tract_onnx::pb::ModelProto;

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut options = NetworkOptions {
        threads: Some(1),
        ..NetworkOptions::default()
    };
    for argument in std::env::args().skip(1) {
        if argument == "--unchecked" {
            options.unchecked = true;
        }
    }
    let folders = std::env::args().skip(1).filter(|one| one != "--unchecked");
    for folder in folders {
        let mut cases: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|why| panic!("{folder}: {why}"))
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.join("model.onnx").is_file())
            .collect();
        cases.sort();
        for path in cases {
            report(&path, options);
        }
    }
}

fn report(path: &Path, options: NetworkOptions) {
    let case = NodeCase::open(path);
    for form in FORMS.into_iter().filter(|form| case.has(*form)) {
        let outcome = case.run(form, options);
        println!(
            "{}\t{}\t{}\t{form:?}\t{}\t{}",
            path.display(),
            opset(&case.model),
            operators(&case.model),
            outcome.name(),
            outcome.detail().replace(['\n', '\t'], " "),
        );
    }
}

fn opset(model: &ModelProto) -> i64 {
    let imports = model.opset_import.iter();
    let mut standard = imports.filter(|set| matches!(&*set.domain, "" | "ai.onnx"));
    standard.next().map_or(0, |set| set.version)
}

/// The operators with their domains, each once.
fn operators(model: &ModelProto) -> String {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let names = nodes.map(|node| match &*node.domain {
        "" | "ai.onnx" => node.op_type.clone(),
        domain => format!("{domain}::{}", node.op_type),
    });
    let names: BTreeSet<String> = names.collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
}
