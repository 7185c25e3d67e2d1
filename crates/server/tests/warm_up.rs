//! Requests that a model answers before it is ready.

mod common;
#[path = "common/onnx.rs"]
mod onnx;

use common::{FEATURES, Running, request};
use onnx::{BFLOAT16, FLOAT, INT64, STRING, node_file};
use serde_json::json;

/// A server of one graph more, and why it has failed.
fn serve(file: &[u8], config: &str) -> (Running, Option<String>) {
    let running = Running::with(&common::options(), |folder| {
        onnx::save(folder, "graph", file, config)
    });
    let mut failures = running.server.failures();
    assert!(failures.len() < 2, "{failures:?}");
    let why = failures.pop().map(|failure| failure.why);
    (running, why)
}

#[test]
fn a_graph_that_cannot_run_fails_with_the_reason() {
    for axes in [&["2", "3"], &["batch", "time"]] {
        let x = ("x", FLOAT, Some(&axes[..]));
        let file = node_file("NoSuchOperator", &[], &[x], ("y", FLOAT, Some(axes)));
        let (running, why) = serve(&file, "");
        let why = why.expect("it cannot run");
        assert!(why.contains("NoSuchOperator"), "{why}");
        let answer = running.get("/v2/models/graph");
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.error().contains("NoSuchOperator"), "{answer:?}");
    }
}

/// Pixels of a block become channels: the sizes must be multiples of the block's.
#[test]
fn a_graph_may_need_larger_sizes_than_one() {
    let axes = Some(&["batch", "1", "height", "width"][..]);
    let y = (
        "y",
        FLOAT,
        Some(&["batch", "channels", "rows", "columns"][..]),
    );
    let blocks = |size: i64| {
        let block = [("blocksize", size)];
        node_file("SpaceToDepth", &block, &[("x", FLOAT, axes)], y)
    };
    let (running, why) = serve(&blocks(4), "");
    assert_eq!(why, None);
    let values: Vec<usize> = (0..16).collect();
    let asked = json!({ "inputs": [{
        "name": "x", "datatype": "FP32", "shape": [1, 1, 4, 4], "data": values,
    }]});
    let found = common::output(&running.infer("graph", &asked), "y");
    assert_eq!(
        found,
        values.iter().map(|&value| value as f32).collect::<Vec<_>>()
    );
    // No size that is tried is a multiple of 7, but the configuration may have one.
    let entry = |size: u32| format!("[[warm_up]]\nshapes = {{ x = [1, 1, {size}, {size}] }}\n");
    assert_eq!(serve(&blocks(7), &entry(14)).1, None);
    let why = serve(&blocks(7), &format!("{}{}", entry(7), entry(8))).1;
    let why = why.expect("it is run");
    assert!(why.contains("entry 2 of [[warm_up]]"), "{why}");
}

/// Five million elements: too many to try sizes, but a file that has them all is run.
#[test]
fn large_inputs_are_run_if_the_file_has_all_sizes() {
    let served = |axes: &[&str]| {
        let y = (
            "y",
            FLOAT,
            Some(&["batch", "channels", "rows", "columns"][..]),
        );
        let block = [("blocksize", 7)];
        let file = node_file("SpaceToDepth", &block, &[("x", FLOAT, Some(axes))], y);
        serve(&file, "").1
    };
    let why = served(&["1", "1", "1250", "4000"]).expect("run");
    assert!(why.contains("it cannot answer a request"), "{why}");
    assert_eq!(served(&["batch", "1", "1250", "4000"]), None);
}

#[test]
fn a_graph_of_any_rank_is_served_untested() {
    let x = ("x", FLOAT, None);
    let (running, why) = serve(&node_file("Neg", &[], &[x], ("y", FLOAT, None)), "");
    assert_eq!(why, None);
    let asked = json!({ "inputs": [{
        "name": "x", "datatype": "FP32", "shape": [2], "data": [1, -2],
    }]});
    assert_eq!(
        common::output(&running.infer("graph", &asked), "y"),
        [-1.0, 2.0]
    );
    // Shapes of the configuration are run.
    let wrong = "[[warm_up]]\nshapes = { x = [2], y = [2] }\n";
    let why = serve(&node_file("Neg", &[], &[x], ("y", FLOAT, None)), wrong).1;
    assert!(why.expect("refused").contains("no input \"y\""));
}

#[test]
fn types_without_a_tensor_are_refused_by_their_names() {
    let axes = Some(&["2"][..]);
    for (number, name) in [(BFLOAT16, "bfloat16"), (STRING, "string")] {
        for (input, output) in [(number, number), (FLOAT, number), (number, FLOAT)] {
            let x = ("x", input, axes);
            let why = serve(&node_file("Identity", &[], &[x], ("y", output, axes)), "").1;
            let why = why.expect("refused");
            assert!(why.contains(name), "{why}");
        }
    }
}

/// The file does not say the type of the output.
#[test]
fn a_type_that_only_the_answer_has_is_shown() {
    let x = ("x", FLOAT, Some(&["batch", "3"][..]));
    let (running, why) = serve(&node_file("Shape", &[], &[x], ("y", 0, Some(&["2"]))), "");
    assert_eq!(why, None);
    let metadata = running.get("/v2/models/graph").json;
    assert_eq!(metadata["outputs"][0]["datatype"], "INT64", "{metadata}");
}

fn computed_rows(running: &Running) -> f64 {
    let text = running.text("/metrics");
    let name = "gatestream_computed_rows_total{model=\"lstm\",version=\"1\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a line").parse().expect("a number")
}

#[test]
fn the_requests_of_the_configuration_run_before_the_model_is_ready() {
    let rows = |config: &str| {
        let running = Running::with(&common::options(), |folder| {
            common::configure(folder, "lstm", config);
        });
        assert_eq!(running.server.failures(), []);
        // They are no requests of clients.
        let stats = running.get("/v2/models/lstm/stats").json;
        assert_eq!(stats["model_stats"][0]["inference_count"], 0);
        computed_rows(&running)
    };
    let one = rows("");
    assert!(one > 0.0, "a step of one sequence without a configuration");
    let entry = "[[warm_up]]\nshapes = { input = [2, 7, 3] }\n";
    assert_eq!(rows(entry), 14.0 * one);
    let lengths = "[[warm_up]]\nshapes = { input = [2, 7, 3], lengths = [2, 1] }\n\
                   values = { lengths = [[7], [3]], input = 0.5 }\n";
    assert_eq!(rows(&format!("{entry}{lengths}")), 24.0 * one);
    let only = "[sequences]\nonly = true\n[[warm_up]]\nshapes = { input = [1, 5, 3] }\n";
    assert_eq!(rows(only), 5.0 * one);
}

#[test]
fn entries_that_do_not_fit_are_refused_by_name() {
    for (config, named) in [
        ("[[warm_up]]\nshape = { input = [1, 1, 3] }\n", "shape"),
        ("[[warm_up]]\nshapes = { inputs = [1, 1, 3] }\n", "inputs"),
        ("[[warm_up]]\n", "give all sizes"),
        ("[[warm_up]]\nshapes = { input = [1, 1, 4] }\n", "[1, 1, 4]"),
        ("[[warm_up]]\nshapes = { input = [1, -1, 3] }\n", "-1"),
        (
            "[[warm_up]]\nshapes = { input = [1, 1, 3] }\nvalues = { input = [1] }\n",
            "3 elements",
        ),
        (
            "[[warm_up]]\nshapes = { input = [1, 1, 3] }\nvalues = { input = \"a\" }\n",
            "numbers",
        ),
    ] {
        let running = Running::with(&common::options(), |folder| {
            common::configure(folder, "lstm", config);
        });
        let failures = running.server.failures();
        assert_eq!(failures.len(), 1, "{config}");
        assert!(failures[0].why.contains(named), "{named}: {failures:?}");
        let answer = running.infer("lstm", &request(&[0.5; FEATURES]));
        assert_eq!(answer.status, 404, "{answer:?}");
    }
}

/// Integers may be lengths, which are 1 or more: zeros alone would not do.
#[test]
fn integers_of_a_graph_may_have_values() {
    let axes = Some(&["n"][..]);
    let inputs = [("x", FLOAT, axes), ("at", INT64, Some(&["k"][..]))];
    let gather = node_file("Gather", &[], &inputs, ("y", FLOAT, Some(&["k"])));
    assert_eq!(serve(&gather, "").1, None);
    let config = |at: i64| {
        format!("[[warm_up]]\nshapes = {{ x = [5], at = [2] }}\nvalues = {{ at = {at} }}\n")
    };
    assert_eq!(serve(&gather, &config(4)).1, None);
    assert!(
        serve(&gather, &config(5)).1.is_some(),
        "there is no such element"
    );
}
