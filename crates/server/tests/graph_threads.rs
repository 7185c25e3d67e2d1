//! The threads of a process with many graphs. No other test may run in it.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/onnx.rs"]
mod onnx;

use std::sync::Barrier;

use common::Running;
use serde_json::json;

const GRAPHS: usize = 100;

#[test]
fn graphs_share_threads() {
    let name = |graph: usize| format!("graph{graph}");
    let running = Running::with(&common::options(), |folder| {
        (0..GRAPHS)
            .for_each(|graph| onnx::save(folder, &name(graph), &onnx::slow_file(20_000, None), ""));
    });
    let asked = json!({ "inputs": [{
        "name": "x", "datatype": "FP32", "shape": [1, 1, 1], "data": [1],
    }]});
    // Each graph has a client, and all of them ask at once.
    let start = Barrier::new(GRAPHS);
    std::thread::scope(|scope| {
        for graph in 0..GRAPHS {
            let (running, asked, start) = (&running, &asked, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..2 {
                    assert_eq!(running.infer(&name(graph), asked).status, 200);
                }
            });
        }
    });
    let threads = std::fs::read_dir("/proc/self/task")
        .expect("a list")
        .count();
    let cores = std::thread::available_parallelism()
        .expect("a number")
        .get();
    // The team of all graphs, the workers of the other models, blocking threads of the graphs that
    // run or are planned, and a few more: fewer than one for each client.
    let largest = 7 * cores + 20;
    assert!(threads <= largest, "{threads} threads of at most {largest}");
}
