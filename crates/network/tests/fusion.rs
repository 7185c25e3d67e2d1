//! Layers that exporters write out as loops or as single operators, with the outputs of ONNX
//! Runtime (`tests/fusion/make.py`).

#[path = "common/npz.rs"]
mod npz;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gatestream_network::{Network, NetworkTuning, RegionRun, Tensor};
use npz::{Case, difference};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fusion")
}

/// Largest difference from ONNX Runtime.
const TOLERANCE: f64 = 2e-6;

/// Runs a case twice, compares its outputs, and returns the runs of its regions.
fn check(name: &str) -> Vec<RegionRun> {
    let case = Case::open(&folder().join(format!("{name}.npz")));
    let network = Network::open(folder().join(format!("{name}.onnx"))).unwrap();
    let once = network.run(&case.borrowed()).unwrap();
    let run = network.profile(&case.borrowed()).unwrap();
    assert_eq!(run.outputs, once, "{name}: two runs differ");
    assert_eq!(run.outputs.len(), case.outputs.len());
    for (found, expected) in run.outputs.iter().zip(&case.outputs) {
        assert_eq!(found.tensor.shape(), expected.tensor.shape(), "{name}");
        let apart = difference(&found.tensor, &expected.tensor);
        assert!(
            apart <= TOLERANCE,
            "{name}: {} differs by {apart}",
            found.name
        );
    }
    run.profile.regions
}

/// Checks a case and that its regions are these: operators with the number of steps.
fn check_layers(name: &str, expected: &[(&str, usize)]) {
    let regions = check(name);
    let found: Vec<(&str, usize)> = (regions.iter())
        .map(|region| (region.operator.as_str(), region.steps))
        .collect();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn loops_over_the_steps_are_layers() {
    check_layers("loop_lstm", &[("LSTM", 7)]);
    check_layers("loop_gru_reset_after", &[("GRU", 7)]);
    check_layers("loop_gru_reset_before", &[("GRU", 7)]);
    check_layers("loop_rnn", &[("RNN", 7)]);
}

#[test]
fn loops_of_keras_are_layers() {
    let keras = |name: &str| format!("../cases/02_keras_exports_{name}");
    check_layers(&keras("GRU_seq"), &[("GRU", 7)]);
    check_layers(&keras("LSTM_masked"), &[("LSTM", 7)]);
    check_layers(&keras("LSTM_hard_sigmoid"), &[("LSTM", 7)]);
}

#[test]
fn any_steps_may_be_masked() {
    check_layers("loop_masked_zero", &[("LSTM", 7)]);
    check_layers("loop_masked_held", &[("LSTM", 7)]);
    check_layers("loop_masked_state", &[("GRU", 7)]);
}

#[test]
fn scans_are_layers_in_both_directions() {
    check_layers("scan_lstm", &[("LSTM", 7)]);
    check_layers("scan_lstm_reversed", &[("LSTM", 7)]);
}

#[test]
fn unrolled_cells_with_the_same_weights_are_one_layer() {
    check_layers("unrolled_lstm", &[("LSTM", 7), ("LSTM", 7)]);
    check_layers("unrolled_gru", &[("GRU", 7), ("GRU", 7)]);
    check_layers("unrolled_rnn", &[("RNN", 7), ("RNN", 7)]);
}

#[test]
fn a_decoder_runs_step_by_step() {
    check_layers("unrolled_feedback", &[("LSTM", 1); 4]);
    check_layers("step_gru", &[("GRU", 1)]);
}

#[test]
fn a_mode_chooses_a_branch_before_a_run() {
    check_layers("branch_by_mode", &[("GRU", 1)]);
    let case = Case::open(&folder().join("branch_by_mode.npz"));
    let network = Network::open(folder().join("branch_by_mode.onnx")).unwrap();
    let input = |name: &str| {
        let mut inputs = case.inputs.iter();
        &inputs.find(|input| input.name == name).unwrap().tensor
    };
    let mut with_regions = 0;
    for mode in [1i64, 200, 2, 3, 4, 201, 5, 1] {
        let mode_value = Tensor::new(&[], vec![mode]).unwrap();
        let inputs = [("x", input("x")), ("h", input("h")), ("mode", &mode_value)];
        let run = network.profile(&inputs).unwrap();
        let expected = if mode < 100 {
            &case.outputs[0].tensor
        } else {
            input("h")
        };
        let apart = difference(&run.outputs[0].tensor, expected);
        assert!(apart <= TOLERANCE, "mode {mode}: differs by {apart}");
        with_regions += run.profile.regions.len();
    }
    // Values 1, 2 and 3 have plans; those after the fourth value share one that has both branches.
    assert_eq!(with_regions, 4);
}

#[test]
fn plans_of_such_layers_are_found_again() {
    for name in ["loop_masked_held", "unrolled_lstm", "branch_by_mode"] {
        let case = Case::open(&folder().join(format!("{name}.npz")));
        let network = Network::open(folder().join(format!("{name}.onnx"))).unwrap();
        let options = NetworkTuning {
            budget: Duration::from_millis(50),
            ..NetworkTuning::default()
        };
        let inputs = case.borrowed();
        let tuned = network.tune(&inputs, options, |_| ControlFlow::Continue(()));
        let plan = tuned.unwrap().plan;
        assert_ne!(plan.regions().count(), 0, "{name}");
        let expected = network.run(&inputs).unwrap();
        network.use_plan(Some(plan)).unwrap();
        assert_eq!(network.run(&inputs).unwrap(), expected, "{name}");
    }
}

#[test]
fn similar_bodies_stay_as_they_are() {
    for name in ["other_peephole", "other_coupled_gates", "other_cell_states"] {
        check_layers(name, &[]);
    }
}

#[test]
fn each_case_is_checked() {
    let source = include_str!("fusion.rs");
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            name == "make" || source.contains(&format!("\"{name}\"")),
            "{name}"
        );
    }
}
