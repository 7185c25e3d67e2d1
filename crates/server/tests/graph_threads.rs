//! The threads of a process with many graphs. No other test may run in it.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/onnx.rs"]
mod onnx;

use common::Running;
use serde_json::json;

const CLIENTS: usize = 10;
const GRAPHS_OF_CLIENT: usize = 10;

#[test]
fn graphs_share_threads() {
    let name = |client: usize, graph: usize| format!("graph{client}_{graph}");
    let running = Running::with(&common::options(), |folder| {
        for client in 0..CLIENTS {
            for graph in 0..GRAPHS_OF_CLIENT {
                onnx::save(folder, &name(client, graph), &onnx::sums_file(), "");
            }
        }
    });
    let asked = json!({ "inputs": [{
        "name": "x", "datatype": "FP32", "shape": [3], "data": [1, 1, 1],
    }]});
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (running, asked) = (&running, &asked);
            scope.spawn(move || {
                for graph in 0..GRAPHS_OF_CLIENT {
                    assert_eq!(running.infer(&name(client, graph), asked).status, 200);
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
    // The team of all graphs, the workers of the other models, a blocking thread for each client,
    // and a few more: fewer than one for each graph.
    let most = 2 * cores + CLIENTS + 20;
    assert!(threads <= most, "{threads} threads of at most {most}");
}
