//! How much memory models of lower precision take, and making them: the numbers as they are, with
//! no f32 beside them. One test, alone in its process, since it reads the process's resident
//! memory.
#![cfg(all(target_os = "linux", feature = "safetensors"))]

#[path = "common/resident.rs"]
mod resident;

use std::io::Write;
use std::sync::Once;

use gatestream::execute::Session;
use gatestream::model::{Gru, Lstm, Model, Precision, SafetensorsOptions};
use gatestream::plan::Plan;
use resident::{allocated, peak, resident};

const MIB: f64 = (1 << 20) as f64;
/// How much `VmHWM` may be off: 64 pages for each of so many CPUs.
const LAG: f64 = 10.0 * MIB;

/// Set to anything, it makes the test fail where peaks cannot be checked, instead of leaving them
/// out.
const REQUIRE_VARIABLE: &str = "GATESTREAM_REQUIRE_PEAK";
/// A 5 written there starts `VmHWM` anew.
const RESET: &str = "/proc/self/clear_refs";

fn file(model: &Model) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    model.save_safetensors(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn load(file: &[u8]) -> Model {
    Model::from_safetensors(file, &SafetensorsOptions::new()).unwrap()
}

/// A session that the model does not outlive.
fn session(model: Model) -> Session {
    let plan = Plan::with_threads(&model, 1, 10, 2);
    Session::new(&model, &plan).unwrap()
}

/// Starts the system's count of the most that was resident anew. Where that cannot be done, says so
/// once.
///
/// # Panics
/// Where it cannot be done, and [`REQUIRE_VARIABLE`] is set.
fn reset_peak() -> bool {
    static SAID: Once = Once::new();
    let Err(why) = std::fs::write(RESET, "5") else {
        return true;
    };
    let line = format!("peaks of memory cannot be checked: {RESET}: {why}");
    let required = std::env::var_os(REQUIRE_VARIABLE).is_some_and(|value| !value.is_empty());
    assert!(!required, "{REQUIRE_VARIABLE} is set, and {line}");
    SAID.call_once(|| {
        // Not `eprintln!`, which a test that passes keeps to itself.
        let _ = writeln!(std::io::stderr(), "skipped: {line}");
    });
    false
}

/// The result of `make`, the allocated bytes that are resident since, and the most that were
/// resident meanwhile (`None` where the system does not let its own count be reset).
fn measured<T>(make: impl FnOnce() -> T) -> (T, f64, Option<f64>) {
    let is_reset = reset_peak();
    let (before, resident_before) = (allocated(), resident());
    let made = make();
    let most = is_reset.then(|| peak() - resident_before);
    (made, allocated() - before, most)
}

#[test]
fn lower_precisions_take_their_own_bytes_only() {
    let stacks = [
        ("LSTM 1024", Lstm::new(1024, 1024).layers(2).random(1)),
        ("GRU 256", Gru::new(256, 256).layers(32).random(1)),
    ];
    for (name, model) in stacks {
        let model = model.unwrap();
        let values: usize = (model.layers().iter().flat_map(|l| l.directions()))
            .map(|d| d.weights().values())
            .sum();
        let of_f32 = 4.0 * values as f64;
        let [wide, half, whole] = Precision::ALL.map(|p| file(&model.in_precision(p).unwrap()));
        drop(model);
        // Threads that widen are started, the caches are measured, and the allocator has its first
        // blocks.
        drop(session(load(&wide)));

        let mut packed = Vec::new();
        for (file, share) in [(&wide, 1.0), (&half, 0.51), (&whole, 0.27)] {
            let (model, held, most) = measured(|| load(file));
            println!(
                "{name}: a file of {:.2} MiB, model {:.2} MiB ({:.4}), peak {:.2?} MiB",
                file.len() as f64 / MIB,
                held / MIB,
                held / of_f32,
                most.map(|most| most / MIB),
            );
            if share == 1.0 {
                assert!(held >= 0.99 * of_f32, "the count counts");
            }
            let beside = if share == 1.0 { 0.01 * of_f32 } else { 0.0 };
            assert!(held <= share * of_f32 + beside, "{held}");
            // Nothing of the file's size stands beside the model meanwhile.
            if let Some(most) = most {
                assert!(most <= 1.02 * file.len() as f64 + LAG, "{most}");
            }

            let of_model = held;
            let (session, held, _) = measured(|| session(model));
            let bytes = session.packed().bytes() as f64;
            packed.push(bytes);
            println!(
                "{name}: packed {:.2} MiB ({:.4})",
                bytes / MIB,
                bytes / packed[0]
            );
            assert!(bytes <= share * packed[0], "{bytes}");
            // The model has gone, and nothing else came.
            assert!(held <= bytes - 0.95 * of_model + 4.0 * MIB, "{held}");
        }

        let (model, ..) = measured(|| load(&wide));
        let (small, held, most) = measured(|| model.in_precision(Precision::Int8).unwrap());
        assert!(held <= 0.27 * of_f32, "{held}");
        if let Some(most) = most {
            assert!(
                most <= 0.27 * of_f32 + LAG,
                "{most}: a copy of the model was made"
            );
        }
        drop(small);
        let (small, held, most) = measured(|| model.into_precision(Precision::Int8).unwrap());
        println!(
            "{name}: given away {:.2} MiB, peak {:.2?} MiB",
            held / MIB,
            most.map(|most| most / MIB)
        );
        assert!(held <= (0.27 - 0.99) * of_f32, "{held}");
        let of_matrix = small.layers()[0].directions()[0].weights().input.bytes() as f64;
        if let Some(most) = most {
            assert!(most <= of_matrix + LAG, "{most}");
        }
    }
}
