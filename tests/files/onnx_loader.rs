//! Files made by `tests/fixtures/onnx/make.py`: what PyTorch's two exporters and `onnx.helper`
//! write.

use gatestream::model::{
    Activation, Axis, Cell, CellKind, LoadError, Merge, Model, Port, ResetForm, Role,
};

fn bytes(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/tests/fixtures/onnx/{name}.onnx",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn load(name: &str) -> Model {
    Model::from_onnx(&bytes(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Name, role, axes of a port, in one line: `x Input T.B.F`, folded axes joined.
fn line(port: &Port) -> String {
    let letter = |axis: &Axis| match axis {
        Axis::Time => 'T',
        Axis::Batch => 'B',
        Axis::Direction => 'D',
        Axis::LayerDirection => 'L',
        Axis::Feature => 'F',
        Axis::One => '1',
    };
    let axes: Vec<String> = port
        .axes
        .iter()
        .map(|group| group.iter().map(letter).collect())
        .collect();
    let role = match &port.role {
        Role::Input => "Input".into(),
        Role::Lengths => "Lengths".into(),
        Role::Output => "Output".into(),
        Role::InitialHidden(layers) => format!("h0{layers:?}"),
        Role::InitialCell(layers) => format!("c0{layers:?}"),
        Role::FinalHidden(layers) => format!("hn{layers:?}"),
        Role::FinalCell(layers) => format!("cn{layers:?}"),
    };
    format!("{} {role} {}", port.name, axes.join("."))
}

/// Checks kind, layers as (inputs, hidden, directions), and ports.
fn check(
    name: &str,
    kind: CellKind,
    layers: &[(usize, usize, usize)],
    inputs: &[&str],
    outputs: &[&str],
) -> Model {
    let model = load(name);
    let found: Vec<_> = model
        .layers()
        .iter()
        .map(|l| (l.input_size(), l.hidden_size(), l.directions().len()))
        .collect();
    assert_eq!(found, layers, "{name}");
    assert!(model.layers().iter().all(|l| l.kind() == kind), "{name}");
    let ports = model.interface();
    let lines = |ports: &[Port]| ports.iter().map(line).collect::<Vec<_>>();
    assert_eq!(lines(&ports.inputs), inputs, "{name}");
    assert_eq!(lines(&ports.outputs), outputs, "{name}");
    assert!(ports.inputs.iter().all(|p| !p.optional), "{name}");
    assert!(ports.outputs.iter().all(|p| p.optional), "{name}");
    model
}

#[test]
fn both_pytorch_exporters_give_the_same_model() {
    use CellKind::{Gru, Lstm};
    type Case<'a> = (
        &'a str,
        CellKind,
        &'a [(usize, usize, usize)],
        &'a [&'a str],
        &'a [&'a str],
    );
    let cases: [Case; 6] = [
        (
            "lstm_bidirectional",
            Lstm,
            &[(5, 4, 2), (8, 4, 2), (8, 4, 2)],
            &["x Input T.B.F"],
            &[
                "output Output T.B.DF",
                "hn hn[0, 1, 2] L.B.F",
                "cn cn[0, 1, 2] L.B.F",
            ],
        ),
        (
            "gru_batch_first",
            Gru,
            &[(5, 4, 1)],
            &["x Input B.T.F"],
            &["output Output B.T.F", "hn hn[0] L.B.F"],
        ),
        (
            "lstm_states",
            Lstm,
            &[(5, 4, 1), (4, 4, 1)],
            &["x Input T.B.F", "h0 h0[0, 1] L.B.F", "c0 c0[0, 1] L.B.F"],
            &[
                "output Output T.B.F",
                "hn hn[0, 1] L.B.F",
                "cn cn[0, 1] L.B.F",
            ],
        ),
        (
            "gru_fixed_sizes",
            Gru,
            &[(5, 4, 2), (8, 4, 2)],
            &["x Input T.B.F"],
            &["output Output T.B.DF", "hn hn[0, 1] L.B.F"],
        ),
        (
            "gru_last",
            Gru,
            &[(5, 4, 1), (4, 4, 1)],
            &["x Input T.B.F"],
            &["hn hn[1] B.F"],
        ),
        (
            "lstm_sum",
            Lstm,
            &[(5, 4, 2), (4, 4, 1)],
            &["x Input T.B.F"],
            &["output Output T.B.F"],
        ),
    ];
    for (name, kind, layers, inputs, outputs) in cases {
        let [script, dynamo] = ["script", "dynamo"]
            .map(|exporter| check(&format!("{name}.{exporter}"), kind, layers, inputs, outputs));
        assert_eq!(script, dynamo, "{name}");
        let merge = if name == "lstm_sum" {
            Merge::Sum
        } else {
            Merge::Concat
        };
        assert_eq!(script.layers()[0].merge(), merge, "{name}");
    }
}

#[test]
fn pytorch_rnn_and_packed_sequences() {
    let rnn = check(
        "rnn_relu.script",
        CellKind::Rnn,
        &[(5, 4, 2), (8, 4, 2)],
        &["x Input B.T.F"],
        &["output Output B.T.DF", "hn hn[0, 1] L.B.F"],
    );
    let relu = Cell::Rnn {
        activation: Activation::Relu,
    };
    assert_eq!(*rnn.layers()[1].directions()[1].cell(), relu);
    check(
        "gru_packed.script",
        CellKind::Gru,
        &[(5, 4, 2), (8, 4, 2)],
        &["x Input T.B.F", "lengths Lengths B"],
        &["output Output T.B.DF", "hn hn[0, 1] L.B.F"],
    );
}

#[test]
fn onnx_node_forms() {
    use CellKind::{Gru, Lstm, Rnn};
    let (x, lengths) = ("x Input T.B.F", "lengths Lengths B");
    let states = ["Y_h hn[0] L.B.F", "Y_c cn[0] L.B.F"];
    let all = ["Y Output T.D.B.F", states[0], states[1]];

    let model = check("lstm_peephole", Lstm, &[(5, 4, 2)], &[x, lengths], &all);
    for direction in model.layers()[0].directions() {
        assert_eq!(direction.clip(), Some(0.9));
        assert!(direction.weights().peepholes.is_some());
    }

    let model = check("lstm_coupled", Lstm, &[(5, 4, 1)], &[x], &all);
    let direction = &model.layers()[0].directions()[0];
    assert!(direction.is_reverse());
    let Cell::Lstm { input_forget, .. } = direction.cell() else {
        panic!("not an LSTM");
    };
    assert!(input_forget);

    // Parameters are consumed in order, by the activations that have them only.
    let model = check("lstm_activations", Lstm, &[(5, 4, 2)], &[x, lengths], &all);
    let cells = model.layers()[0].directions().iter().map(|d| *d.cell());
    let expected = [
        Cell::Lstm {
            gate: Activation::HardSigmoid {
                alpha: 0.3,
                beta: 0.4,
            },
            candidate: Activation::LeakyRelu { alpha: 0.05 },
            output: Activation::Tanh,
            input_forget: false,
        },
        Cell::Lstm {
            gate: Activation::Sigmoid,
            candidate: Activation::Affine {
                alpha: 0.7,
                beta: 0.1,
            },
            output: Activation::Elu { alpha: 0.9 },
            input_forget: false,
        },
    ];
    assert_eq!(cells.collect::<Vec<_>>(), expected);

    for (name, form) in [
        ("gru_reset_0", ResetForm::Before),
        ("gru_reset_1", ResetForm::After),
    ] {
        let model = check(name, Gru, &[(5, 4, 2)], &[x, lengths], &all[..2]);
        for direction in model.layers()[0].directions() {
            let Cell::Gru { reset, .. } = direction.cell() else {
                panic!("not a GRU");
            };
            assert_eq!(*reset, form, "{name}");
        }
    }
    check("rnn_softsign", Rnn, &[(5, 4, 1)], &[x], &all[..2]);
    check("gru_half", Gru, &[(5, 4, 1)], &[x], &all[..2]);

    let model = check(
        "lstm_reduce_sum",
        Lstm,
        &[(5, 4, 2)],
        &[x],
        &["sum Output T.B.F"],
    );
    assert_eq!(model.layers()[0].merge(), Merge::Sum);

    check(
        "lstm_layout",
        Lstm,
        &[(5, 4, 2)],
        &["x Input B.T.F"],
        &["Y Output B.T.D.F", "Y_h hn[0] B.L.F", "Y_c cn[0] B.L.F"],
    );
}

#[test]
fn no_truncation_and_no_flipped_bytes_panic() {
    for name in [
        "lstm_peephole",
        "lstm_states.dynamo",
        "lstm_sum.script",
        "../onnx_quantised/peephole_channel",
        "../onnx_quantised/unsigned",
    ] {
        let whole = bytes(name);
        for length in 0..whole.len() {
            // A cut at a field's end leaves a valid message, but never this model's outputs.
            if let Ok(model) = Model::from_onnx(&whole[..length]) {
                assert!(model.weight_bytes() < whole.len(), "{name} cut at {length}");
            }
        }
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..=4) {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }
            if let Err(error) = Model::from_onnx(&bytes) {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}

#[test]
fn refusals_name_the_format() {
    for bytes in [&b""[..], b"\x08", b"no protobuf at all"] {
        let error = Model::from_onnx(bytes).unwrap_err();
        assert!(
            matches!(error, LoadError::Malformed { format: "ONNX", .. }),
            "{error}"
        );
    }
}
