//! Files with changed bytes: an error or an answer, never a panic.

#[path = "common/npz.rs"]
mod npz;

use std::path::Path;

use gatestream_network::{Network, NetworkOptions};
use npz::Case;

#[test]
fn changed_bytes_are_answers_or_errors() {
    let mut random = fastrand::Rng::with_seed(23);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = [
        "cases/02_keras_exports_GRU_seq",
        "cases/07_unsorted_pack_s_lengths_returned",
        "cases/18_dqlstm_layout_GRU_qdq",
        "cases/45_control_flow_If",
        "cores/among_others",
        "loops/counter_of_the_exporter",
    ];
    let (mut opened, mut ran) = (0, 0);
    for file in files {
        let path = folder.join(file);
        let bytes = std::fs::read(path.with_extension("onnx")).unwrap();
        let case = Case::open(&path.with_extension("npz"));
        for _ in 0..150 {
            let mut changed = bytes.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..changed.len());
                changed[at] = if random.bool() {
                    random.u8(..)
                } else {
                    changed[at] ^ (1 << random.u8(0..8))
                };
            }
            let options = NetworkOptions {
                threads: Some(1),
                ..NetworkOptions::default()
            };
            if let Ok(network) = Network::from_bytes(&changed, options) {
                opened += 1;
                ran += usize::from(network.run(&case.borrowed()).is_ok());
            }
        }
    }
    assert!(opened > ran && ran > 0, "{opened} opened, {ran} ran");
}
