//! Recurrent stacks in safetensors files: what is read, where it ends up, and what is refused.
//!
//! The files are written by the `safetensors` crate from values that a formula gives for each
//! tensor's name and index; the same formula says what the model must hold.

use gatestream::model::{
    Activation, Axis, Cell, CellKind, LoadError, Model, SafetensorsOptions, Tensors, Weights,
};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Sixteenths below 8 in magnitude, which f16 and bf16 hold exactly.
fn value(name: &str, index: usize) -> f32 {
    let seed: usize = name.bytes().map(usize::from).sum();
    ((seed * 31 + index * 37) % 255) as f32 / 16.0 - 127.0 / 16.0
}

fn values(name: &str, count: usize) -> Vec<f32> {
    (0..count).map(|i| value(name, i)).collect()
}

#[derive(Clone, Default)]
struct File {
    tensors: Vec<(String, Dtype, Vec<usize>)>,
    metadata: Vec<(&'static str, &'static str)>,
}

impl File {
    fn with(mut self, name: &str, shape: &[usize]) -> File {
        self.tensors.push((name.into(), Dtype::F32, shape.into()));
        self
    }

    fn without(mut self, name: &str) -> File {
        let before = self.tensors.len();
        self.tensors.retain(|(n, ..)| n != name);
        assert!(self.tensors.len() < before, "{name} was not there");
        self
    }

    fn shape(self, name: &str, shape: &[usize]) -> File {
        self.without(name).with(name, shape)
    }

    fn dtype(mut self, dtype: Dtype) -> File {
        self.tensors.iter_mut().for_each(|(_, d, _)| *d = dtype);
        self
    }

    fn metadata(mut self, key: &'static str, value: &'static str) -> File {
        self.metadata.push((key, value));
        self
    }

    /// Both weights and both biases of one direction.
    fn place(self, prefix: &str, suffix: &str, gates: usize, input: usize, hidden: usize) -> File {
        self.projected(prefix, suffix, gates, input, hidden, hidden)
    }

    fn projected(
        self,
        prefix: &str,
        suffix: &str,
        gates: usize,
        input: usize,
        hidden: usize,
        state: usize,
    ) -> File {
        let rows = gates * hidden;
        let name = |part: &str| format!("{prefix}{part}_{suffix}");
        let file = self
            .with(&name("weight_ih"), &[rows, input])
            .with(&name("weight_hh"), &[rows, state])
            .with(&name("bias_ih"), &[rows])
            .with(&name("bias_hh"), &[rows]);
        if state == hidden {
            file
        } else {
            file.with(&name("weight_hr"), &[state, hidden])
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let data: Vec<Vec<u8>> = self
            .tensors
            .iter()
            .map(|(name, dtype, shape)| {
                let values = values(name, shape.iter().product());
                let narrow = |v: &f32| match dtype {
                    Dtype::F32 => v.to_le_bytes().to_vec(),
                    Dtype::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
                    Dtype::BF16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
                    other => vec![0; other.bitsize() / 8],
                };
                values.iter().flat_map(narrow).collect()
            })
            .collect();
        let views = self.tensors.iter().zip(&data).map(|((n, d, s), bytes)| {
            let view = TensorView::new(*d, s.clone(), bytes).expect("consistent");
            (n.as_str(), view)
        });
        let metadata = self.metadata.iter().map(|&(k, v)| (k.into(), v.into()));
        let metadata = (!self.metadata.is_empty()).then(|| metadata.collect());
        safetensors::serialize(views, metadata).expect("serialises")
    }

    fn load(&self) -> Result<Model, LoadError> {
        self.load_with(&SafetensorsOptions::new())
    }

    fn load_with(&self, options: &SafetensorsOptions) -> Result<Model, LoadError> {
        Model::from_safetensors(&self.bytes(), options)
    }
}

fn lstm() -> File {
    File::default().place("", "l0", 4, 3, 2)
}

/// Every value of `weights` is the one that the tensors' names ask for.
fn assert_weights(weights: &Weights, prefix: &str, suffix: &str) {
    let name = |part: &str| format!("{prefix}{part}_{suffix}");
    let projection = weights.projection.as_ref().map(|p| p.data());
    for (part, found) in [
        ("weight_ih", &weights.input.data()[..]),
        ("weight_hh", &weights.recurrent.data()),
        ("bias_ih", &weights.input_bias),
        ("bias_hh", &weights.recurrent_bias),
        ("weight_hr", projection.as_deref().unwrap_or_default()),
    ] {
        let name = name(part);
        assert_eq!(found, values(&name, found.len()), "{name}");
    }
    assert!(weights.peepholes.is_none());
}

#[test]
fn the_kind_follows_from_the_shapes() {
    for (gates, cell) in [(4, Cell::LSTM), (3, Cell::GRU), (1, Cell::RNN)] {
        // Hidden sizes at which rows and columns are easy to take for another kind's.
        for hidden in [1, 2, 3, 4, 12] {
            let file = File::default().place("", "l0", gates, 5, hidden);
            let model = file.load().expect("loads");
            let [layer] = model.layers() else {
                panic!("one layer")
            };
            let [direction] = layer.directions() else {
                panic!("one direction")
            };
            assert_eq!(*direction.cell(), cell);
            assert!(!direction.is_reverse());
            assert_eq!(
                (model.signature().input, model.signature().output),
                (5, hidden)
            );
            assert_weights(direction.weights(), "", "l0");
        }
    }
}

#[test]
fn bidirectional_layers_of_different_sizes() {
    let sizes = [(3, 2), (4, 5), (10, 1)];
    let mut file = File::default();
    for (layer, (input, hidden)) in sizes.into_iter().enumerate() {
        for reverse in ["", "_reverse"] {
            let suffix = format!("l{layer}{reverse}");
            file = file.place("encoder.rnn.", &suffix, 3, input, hidden);
        }
    }
    let model = file.load().expect("loads");
    assert_eq!(model.layers().len(), 3);
    for (number, layer) in model.layers().iter().enumerate() {
        assert_eq!(
            (layer.input_size(), layer.hidden_size()),
            sizes[number],
            "layer {number}"
        );
        assert_eq!(layer.output_size(), 2 * layer.hidden_size());
        for (direction, reverse) in layer.directions().iter().zip(["", "_reverse"]) {
            assert_eq!(direction.is_reverse(), !reverse.is_empty());
            let suffix = format!("l{number}{reverse}");
            assert_weights(direction.weights(), "encoder.rnn.", &suffix);
        }
    }
}

#[test]
fn twelve_layers_are_in_the_order_of_their_numbers() {
    let mut file = File::default();
    for layer in 0..12 {
        file = file.place("", &format!("l{layer}"), 1, layer + 1, layer + 2);
    }
    let model = file.load().expect("loads");
    assert_eq!(model.layers().len(), 12);
    assert_eq!((model.signature().input, model.signature().output), (1, 13));
}

#[test]
fn projection() {
    let model = File::default()
        .projected("", "l0", 4, 3, 4, 2)
        .projected("", "l1", 4, 2, 4, 2)
        .load()
        .expect("loads");
    for (number, layer) in model.layers().iter().enumerate() {
        assert_eq!(layer.kind(), CellKind::Lstm);
        assert_eq!((layer.hidden_size(), layer.output_size()), (4, 2));
        let weights = layer.directions()[0].weights();
        assert!(weights.projection.is_some());
        assert_weights(weights, "", &format!("l{number}"));
    }
}

#[test]
fn without_biases_they_are_zero() {
    let file = lstm().without("bias_ih_l0").without("bias_hh_l0");
    let model = file.load().expect("loads");
    let weights = model.layers()[0].directions()[0].weights();
    assert_eq!(weights.input_bias, [0.0; 8]);
    assert_eq!(weights.recurrent_bias, [0.0; 8]);
}

#[test]
fn half_precision_is_widened() {
    let full = lstm().load().expect("loads");
    for dtype in [Dtype::F16, Dtype::BF16] {
        assert_eq!(lstm().dtype(dtype).load().expect("loads"), full, "{dtype}");
    }
}

/// Those are read in parts, of which the last is smaller.
#[test]
fn tensors_of_a_megabyte_and_more() -> Result<(), LoadError> {
    let stack = File::default().place("", "l0", 4, 1100, 123);
    for dtype in [Dtype::F32, Dtype::BF16] {
        let model = stack.clone().dtype(dtype).load()?;
        assert_weights(model.layers()[0].directions()[0].weights(), "", "l0");
    }
    Ok(())
}

/// Values that other widening gets wrong: subnormals, infinities, the sign of zero.
#[test]
fn half_precision_is_widened_exactly_at_the_edges() {
    // 300 007 values: more than one part, and no multiple of any lane count.
    let bits: Vec<u16> = (0..300_007u32).map(|i| (i % 65_536) as u16).collect();
    let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    // From the definition of the format: sign, exponent of bias 15, 10 bits of fraction.
    let f16_value = |bits: u16| -> f32 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let fraction = f32::from(bits & 0x3ff);
        sign * match i32::from(bits >> 10 & 31) {
            0 => fraction * 2f32.powi(-24),
            31 if fraction == 0.0 => f32::INFINITY,
            31 => f32::NAN,
            exponent => (1024.0 + fraction) * 2f32.powi(exponent - 25),
        }
    };
    let bf16_value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    let cases: [(Dtype, &dyn Fn(u16) -> f32); 2] =
        [(Dtype::F16, &f16_value), (Dtype::BF16, &bf16_value)];
    for (dtype, expected) in cases {
        let view = TensorView::new(dtype, vec![bits.len()], &bytes).expect("consistent");
        let file = safetensors::serialize([("v", view)], None).expect("serialises");
        let tensors = Tensors::from_bytes(&file).expect("reads");
        let found = tensors.vector("v").expect("reads");
        assert_eq!(found.len(), bits.len());
        for (&bits, found) in bits.iter().zip(found) {
            let expected = expected(bits);
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{dtype} {bits:#06x}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn a_prefix_chooses_and_ignores_the_rest() {
    let file = File::default()
        .place("encoder.rnn.", "l0", 3, 4, 2)
        .place("decoder.rnn.", "l0", 4, 4, 3)
        .with("encoder.embedding.weight", &[7, 4])
        .with("encoder.rnn.norm.weight", &[2])
        .with("dense.weight", &[7, 3]);
    for (prefix, full, kind) in [
        ("encoder.rnn.", "encoder.rnn.", CellKind::Gru),
        ("encoder.rnn", "encoder.rnn.", CellKind::Gru),
        ("decoder.rnn.", "decoder.rnn.", CellKind::Lstm),
    ] {
        let options = SafetensorsOptions::new().prefix(prefix);
        let model = file.load_with(&options).expect("loads");
        assert_eq!(model.layers()[0].kind(), kind);
        assert_weights(model.layers()[0].directions()[0].weights(), full, "l0");
    }
    let bytes = file.bytes();
    let tensors = Tensors::from_bytes(&bytes).expect("reads");
    let dense = tensors.matrix("dense.weight").expect("reads");
    assert_eq!((dense.rows(), dense.cols()), (7, 3));
    assert_eq!(dense.data(), values("dense.weight", 21));
    let names: Vec<&str> = tensors.names().collect();
    assert_eq!(names.len(), 11);
    assert!(names.is_sorted());
}

#[test]
fn the_empty_prefix_is_a_prefix() {
    let file = lstm().place("other.", "l0", 3, 4, 2);
    let model = file.load_with(&SafetensorsOptions::new().prefix(""));
    assert_eq!(model.expect("loads").layers()[0].kind(), CellKind::Lstm);
}

#[test]
fn metadata_and_options_say_what_shapes_cannot() {
    let rnn = File::default().place("", "l0", 1, 3, 2);
    let relu = Cell::Rnn {
        activation: Activation::Relu,
    };
    let cell = |model: Model| *model.layers()[0].directions()[0].cell();
    let first_axis = |model: &Model| model.interface().input("input").expect("port").axes[0][0];

    let plain = rnn.load().expect("loads");
    assert_eq!(first_axis(&plain), Axis::Time);
    assert_eq!(cell(plain), Cell::RNN);

    let former = rnn.clone().metadata("cellstream.cell", "rnn_relu");
    let error = former.load().expect_err("has the former name").to_string();
    assert!(error.contains("former name of gatestream"), "{error}");

    let told = rnn
        .clone()
        .metadata("gatestream.cell", "rnn_relu")
        .metadata("gatestream.batch_first", "true")
        .metadata("format", "pt");
    let model = told.load().expect("loads");
    assert_eq!(first_axis(&model), Axis::Batch);
    assert_eq!(cell(model), relu);

    let options = SafetensorsOptions::new().batch_first(false);
    let model = told.load_with(&options).expect("loads");
    assert_eq!(first_axis(&model), Axis::Time);
    let options = SafetensorsOptions::new().cell(Cell::RNN);
    let error = told
        .load_with(&options)
        .expect_err("contradicts")
        .to_string();
    assert!(
        error.contains("\"gatestream.cell\" is \"rnn_relu\""),
        "{error}"
    );
    let model = told.load_with(&options.cell(relu)).expect("agrees");
    assert_eq!(cell(model), relu);

    for (name, expected, gates) in [
        ("lstm", Cell::LSTM, 4),
        ("gru", Cell::GRU, 3),
        ("rnn_tanh", Cell::RNN, 1),
    ] {
        let file = File::default().place("", "l0", gates, 3, 2);
        let model = file.metadata("gatestream.cell", name).load();
        assert_eq!(cell(model.expect("loads")), expected);
    }
}

/// What is refused is named, and so is what would be accepted.
#[test]
fn refusals() {
    let two = || lstm().place("", "l1", 4, 2, 3);
    let both = || lstm().place("", "l0_reverse", 4, 3, 2);
    let plain = SafetensorsOptions::new;
    let cases: Vec<(File, SafetensorsOptions, &[&str])> = vec![
        // Not part of the stack.
        (
            lstm().with("dense.weight", &[2, 2]),
            plain(),
            &[
                "\"dense.weight\"",
                "supported names are weight_ih_l0",
                "prefix \"\"",
            ],
        ),
        (
            lstm().with("norm", &[2]),
            plain().prefix(""),
            &["\"norm\"", "supported names are weight_ih_l0"],
        ),
        (
            lstm().with("weight_ih_l01", &[8, 2]),
            plain(),
            &["\"weight_ih_l01\"", "supported"],
        ),
        // Which stack.
        (
            File::default()
                .place("a.", "l0", 4, 3, 2)
                .place("b.", "l0", 4, 3, 2),
            plain(),
            &["\"a.\", \"b.\"", "select one by its prefix"],
        ),
        (
            File::default().place("a.", "l0", 4, 3, 2),
            plain().prefix("b."),
            &["\"b.\"", "found prefixes \"a.\"", "weight_ih_l0"],
        ),
        (
            File::default().with("dense.weight", &[2, 2]),
            plain(),
            &["no recurrent stack", "weight_ih_l0"],
        ),
        // Which layers.
        (
            lstm().place("", "l2", 4, 2, 2),
            plain(),
            &["\"weight_ih_l1\"", "without gaps"],
        ),
        (
            File::default().place("", "l1", 4, 2, 2),
            plain(),
            &["\"weight_ih_l0\"", "without gaps"],
        ),
        (
            lstm().with("weight_ih_l18446744073709551615_reverse", &[8, 2]),
            plain(),
            &["\"weight_ih_l0_reverse\"", "is missing"],
        ),
        (
            both().with("weight_ih_l18446744073709551615_reverse", &[8, 2]),
            plain(),
            &["\"weight_ih_l1\"", "is missing"],
        ),
        (
            both().place("", "l1", 4, 4, 2),
            plain(),
            &["\"weight_ih_l1_reverse\"", "all or none have a _reverse"],
        ),
        (
            two().place("", "l1_reverse", 4, 2, 3),
            plain(),
            &["\"weight_ih_l0_reverse\"", "all or none have a _reverse"],
        ),
        // Missing tensors.
        (
            lstm().without("weight_ih_l0"),
            plain(),
            &["\"weight_ih_l0\"", "not in the file"],
        ),
        (
            lstm().without("weight_hh_l0"),
            plain(),
            &["\"weight_hh_l0\"", "not in the file"],
        ),
        (
            lstm().without("bias_hh_l0"),
            plain(),
            &["\"bias_hh_l0\"", "both biases, or none"],
        ),
        (
            two().without("bias_ih_l1").without("bias_hh_l1"),
            plain(),
            &["\"bias_ih_l1\"", "both biases, or none"],
        ),
        // Kinds.
        (
            lstm().shape("weight_ih_l0", &[4, 3]),
            plain(),
            &["\"weight_ih_l0\"", "4 rows", "3 (gru), 2 (light_gru)"],
        ),
        (
            lstm(),
            plain().cell(Cell::GRU),
            &["\"weight_ih_l0\"", "as lstm has", "options require gru"],
        ),
        (
            lstm().metadata("gatestream.cell", "rnn_tanh"),
            plain(),
            &["\"weight_ih_l0\"", "as lstm has", "metadata says rnn"],
        ),
        (
            lstm().place("", "l1", 3, 2, 2),
            plain(),
            &["\"weight_ih_l1\"", "as gru has", "first layer is lstm"],
        ),
        (
            File::default().projected("", "l0", 3, 3, 4, 2),
            plain(),
            &[
                "\"weight_hr_l0\"",
                "projection on gru",
                "only lstm supports",
            ],
        ),
        (
            lstm().metadata("gatestream.cell", "mgu"),
            plain(),
            &[
                "\"gatestream.cell\"",
                "\"mgu\"",
                "lstm, gru, light_gru, rnn_tanh or rnn_relu",
            ],
        ),
        (
            lstm().metadata("gatestream.batch_first", "yes"),
            plain(),
            &["\"gatestream.batch_first\"", "\"yes\"", "true or false"],
        ),
        // Shapes.
        (
            two().shape("weight_ih_l1", &[12, 5]),
            plain(),
            &["\"weight_ih_l1\"", "[12, 5]", "must be [12, 2]"],
        ),
        (
            lstm().shape("weight_hh_l0", &[9, 2]),
            plain(),
            &["\"weight_hh_l0\"", "[9, 2]", "must be [8, 2]"],
        ),
        (
            lstm().shape("bias_hh_l0", &[7]),
            plain(),
            &["\"bias_hh_l0\"", "[7]", "must be [8]"],
        ),
        (
            File::default()
                .projected("", "l0", 4, 3, 4, 2)
                .shape("weight_hr_l0", &[3, 4]),
            plain(),
            &["\"weight_hr_l0\"", "[3, 4]", "must be [2, 4]"],
        ),
        (
            lstm().place("", "l0_reverse", 4, 3, 5),
            plain(),
            &["\"weight_ih_l0_reverse\"", "[20, 3]", "must be [8, 3]"],
        ),
        (
            lstm().shape("weight_ih_l0", &[8, 3, 1]),
            plain(),
            &["\"weight_ih_l0\"", "[8, 3, 1]", "two axes"],
        ),
        (
            lstm().shape("bias_ih_l0", &[8, 1]),
            plain(),
            &["\"bias_ih_l0\"", "[8, 1]", "one axis"],
        ),
        (
            lstm().shape("weight_ih_l0", &[8, 0]),
            plain(),
            &["\"weight_ih_l0\"", "[8, 0]", "length 1 or more"],
        ),
        (
            lstm().shape("weight_hh_l0", &[0, 0]),
            plain(),
            &["\"weight_hh_l0\"", "[0, 0]", "length 1 or more"],
        ),
        // Types.
        (
            lstm().dtype(Dtype::I32),
            plain(),
            &["\"weight_ih_l0\"", "I32", "F32, F16, BF16, F64 and I8"],
        ),
        (
            lstm().dtype(Dtype::I8),
            plain(),
            &["\"weight_ih_l0\"", "I8", "F32, F16, BF16 and F64"],
        ),
    ];
    for (number, (file, options, expected)) in cases.into_iter().enumerate() {
        let error = file.load_with(&options).expect_err(expected[0]).to_string();
        for text in expected {
            assert!(
                error.contains(text),
                "case {number}: {error:?} lacks {text:?}"
            );
        }
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn a_hundred_stacks_are_still_one_line() {
    let file = (0..100).fold(File::default(), |file, n| {
        file.place(&format!("m{n}."), "l0", 1, 1, 1)
    });
    let error = file.load().expect_err("several").to_string();
    assert!(error.contains("92 more"), "{error}");
}

#[test]
fn open_goes_by_the_bytes() {
    let folder = std::env::temp_dir().join(format!("gatestream-open-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("creates");
    for name in [
        "model.safetensors",
        "MODEL.SafeTensors",
        "model.bin",
        "safetensors",
        "model.safetensors.bak",
    ] {
        let path = folder.join(name);
        std::fs::write(&path, lstm().bytes()).expect("writes");
        assert_eq!(
            Model::open(&path).expect("loads"),
            lstm().load().expect("loads")
        );
    }
    let error = Model::open(folder.join("absent.safetensors")).expect_err("absent");
    assert!(matches!(error, LoadError::Io { .. }), "{error}");
    std::fs::remove_dir_all(folder).expect("removes");
}
