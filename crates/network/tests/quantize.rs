//! Graphs with recurrent weights in 8 bits.

#[path = "common/npz.rs"]
mod npz;

use std::path::{Path, PathBuf};

use gatestream::model::Precision;
use gatestream_network::{Network, NetworkError, NetworkOptions, QuantizedGraph};
use npz::{Case, difference};

fn case(name: &str) -> (PathBuf, Case) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let case = Case::open(&folder.join(format!("{name}.npz")));
    (folder.join(format!("{name}.onnx")), case)
}

/// The largest difference of the outputs of two networks.
fn apart(one: &Network, other: &Network, case: &Case) -> f64 {
    let run = |network: &Network| network.run(&case.borrowed()).unwrap();
    let (one, other) = (run(one), run(other));
    let pairs = one.iter().zip(&other);
    pairs.fold(0.0, |most, (a, b)| {
        difference(&a.tensor, &b.tensor).max(most)
    })
}

#[test]
fn a_quantized_graph_has_the_integers_of_int8() {
    for name in [
        "application_bidaf",
        "application_attention_sum_reader",
        "05_manual_bidirectional_t_last_step_script",
    ] {
        let (path, case) = case(name);
        let quantized = QuantizedGraph::of(&path).unwrap();
        assert!(!quantized.reduced.is_empty());
        assert_eq!(quantized.kept, Vec::<String>::new(), "{name}");
        let open = |precision| {
            let options = NetworkOptions {
                precision,
                ..NetworkOptions::default()
            };
            let original = Network::open_with(&path, options).unwrap();
            let reduced = Network::from_bytes(&quantized.bytes, options).unwrap();
            (original, reduced)
        };
        let (original, widened) = open(None);
        let of_weights = apart(&original, &widened, &case);
        assert!(
            of_weights > 0.0 && of_weights < 0.02,
            "{name}: {of_weights}"
        );
        let (original, reduced) = open(Some(Precision::Int8));
        assert!(apart(&original, &reduced, &case) < 1e-5, "{name}");
    }
}

#[test]
fn weights_take_a_fourth_of_the_bytes() {
    let (path, _) = case("application_bidaf");
    let whole = std::fs::metadata(&path).unwrap().len() as f64;
    let quantized = QuantizedGraph::of(&path).unwrap();
    assert!((quantized.bytes.len() as f64) < 0.6 * whole);
}

#[test]
fn a_graph_without_float_weights_is_refused() {
    let (path, _) = case("18_dqlstm_layout_GRU_qdq");
    let refused = QuantizedGraph::of(&path).unwrap_err();
    assert!(
        matches!(refused, NetworkError::Quantize { .. }),
        "{refused}"
    );
}
