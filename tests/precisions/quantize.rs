//! Models written to safetensors files in every precision: what is read back, what is refused, and
//! the command `quantize`.
//!
//! What a file must hold is read by the `safetensors` crate; the answers are the reference's.

use std::collections::HashMap;

use crate::common::{ACTIVATIONS, Batch, Options, Random, Results, usual_cells};
use gatestream::model::{
    Activation, Axis, Cell, Gru, Layer, LoadError, Lstm, Merge, Model, Precision, ResetForm,
    SafetensorsOptions, SaveError,
};
use gatestream::{Plan, Session};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The model as it comes back from a file, which is all that the folder then holds.
fn through_a_file(model: &Model) -> Model {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    model.save_safetensors(&path).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    Model::open(&path).unwrap_or_else(|error| panic!("{error}: {model:?}"))
}

/// Equal models, and what equality of floats passes over: the bits of the answers.
fn assert_kept(model: &Model, random: &mut Random) {
    let read = through_a_file(model);
    assert_eq!(read, *model);
    let batch = Batch::ragged(random, model, 3, 5);
    let expected = Results::reference(model, &batch);
    Results::reference(&read, &batch).assert_same(&expected, "reference");
    let mut session = Session::new(&read, &Plan::estimate(&read, 3, 5, 2)).unwrap();
    let mut found = Results::dirty(&read, &batch);
    session.run(&batch.input(), &mut found.output()).unwrap();
    found.assert_same(&expected, "session");
}

#[test]
fn every_cell_in_every_precision_and_way_is_read_back() {
    let mut random = Random::new(1);
    let lstm = |gate, input_forget| Cell::Lstm {
        gate,
        candidate: Activation::Tanh,
        output: Activation::Tanh,
        input_forget,
    };
    let plain = Options::default();
    let all = Options {
        projection: true,
        peepholes: true,
        clip: true,
    };
    let mut cells = usual_cells();
    cells.push((lstm(Activation::Sigmoid, true), all));
    cells.push((
        Cell::LSTM,
        Options {
            peepholes: true,
            ..plain
        },
    ));
    cells.push((
        Cell::GRU,
        Options {
            clip: true,
            ..plain
        },
    ));
    for activation in ACTIVATIONS {
        cells.push((lstm(activation, false), plain));
        cells.push((Cell::Rnn { activation }, plain));
    }
    for (cell, options) in cells {
        for precision in Precision::ALL {
            for way in 0..4 {
                let below = random.layer(cell, 5, 7, options, way);
                let above = random.layer(cell, below.output_size(), 3, options, way);
                let model = Model::new(vec![below, above]).unwrap();
                assert_kept(&model.in_precision(precision).unwrap(), &mut random);
            }
        }
    }
}

#[test]
fn stacks_of_different_layers_and_precisions_are_read_back() {
    let mut random = Random::new(2);
    for _ in 0..150 {
        let model = random.stack(20);
        let model = random.in_some_precision(model);
        let model = if random.0.bool() {
            model.batch_first()
        } else {
            model
        };
        if model.signature().input > 0 {
            assert_kept(&model, &mut random);
        } else {
            let path = folder().path().join("m.safetensors");
            let error = model.save_safetensors(path).unwrap_err();
            assert!(matches!(error, SaveError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("layer 0"), "{error}");
        }
    }
}

/// Two directions of one layer need not have the same activations or clip.
#[test]
fn directions_that_differ_are_read_back() {
    let mut random = Random::new(3);
    let gru = |candidate, reset| Cell::Gru {
        gate: Activation::HardSigmoid {
            alpha: 0.2,
            beta: 1.0 / 3.0,
        },
        candidate,
        reset,
    };
    let mut one = |cell, clip| {
        let options = Options {
            clip,
            ..Options::default()
        };
        random.direction(cell, 4, 6, options)
    };
    let forward = one(gru(Activation::Softplus, ResetForm::Before), true);
    let reverse = one(gru(Activation::Tanh, ResetForm::After), false);
    let layer = Layer::bidirectional(forward, reverse, Merge::Concat).unwrap();
    let model = Model::new(vec![layer]).unwrap();
    assert_kept(&model, &mut random);
}

#[test]
fn ports_with_names_of_their_own_are_read_back() {
    let model = Lstm::new(3, 4).layers(2).random(1).unwrap();
    let mut interface = model.interface().clone();
    interface.inputs[0].name = "X \"quoted\"\n".into();
    interface.inputs[0].axes = vec![
        vec![Axis::Batch],
        vec![Axis::One],
        vec![Axis::Time, Axis::Feature],
    ];
    interface.outputs.truncate(2);
    let model = Model::with_interface(model.layers().to_vec(), interface).unwrap();
    assert_kept(&model, &mut Random::new(4));
}

/// Names, dtypes and numbers, to another reader.
#[test]
fn the_file_holds_pytorchs_names_in_the_precision_of_each() {
    let mut random = Random::new(5);
    let options = Options {
        projection: true,
        peepholes: true,
        clip: false,
    };
    let layer = random.layer(Cell::LSTM, 5, 6, options, 2);
    let model = Model::new(vec![layer]).unwrap();
    for precision in Precision::ALL {
        let model = model.in_precision(precision).unwrap();
        let bytes = bytes(&model);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut names = Vec::new();
        for direction in model.layers()[0].directions() {
            let suffix = if direction.is_reverse() {
                "_reverse"
            } else {
                ""
            };
            let weights = direction.weights();
            let matrices = [
                ("weight_ih", &weights.input),
                ("weight_hh", &weights.recurrent),
                ("weight_hr", weights.projection.as_ref().unwrap()),
            ];
            for (part, matrix) in matrices {
                let name = format!("{part}_l0{suffix}");
                let view = file.tensor(&name).unwrap();
                assert_eq!(view.shape(), [matrix.rows(), matrix.cols()], "{name}");
                let scales = file.tensor(&format!("{name}_scale"));
                let found: Vec<f32> = match (precision, view.dtype()) {
                    (Precision::F32, Dtype::F32) => floats(&view),
                    (Precision::Bf16, Dtype::BF16) => (view.data().as_chunks().0.iter())
                        .map(|b| bf16::from_le_bytes(*b).to_f32())
                        .collect(),
                    (Precision::Int8, Dtype::I8) => {
                        let scales = scales.as_ref().unwrap();
                        assert_eq!(scales.shape(), [matrix.rows()]);
                        let scales = floats(scales);
                        let scale = |at: usize| scales[at / matrix.cols()];
                        let values = view.data().iter().enumerate();
                        values
                            .map(|(at, &q)| scale(at) * f32::from(q as i8))
                            .collect()
                    }
                    other => panic!("{name}: {other:?}"),
                };
                assert_eq!(found[..], matrix.data()[..], "{name}");
                names.push(name.clone());
                if precision == Precision::Int8 {
                    names.push(format!("{name}_scale"));
                } else {
                    assert!(scales.is_err());
                }
            }
            let peepholes = weights.peepholes.as_ref().unwrap();
            let peepholes = [&peepholes.input[..], &peepholes.forget, &peepholes.output].concat();
            for (part, values) in [
                ("bias_ih", &weights.input_bias),
                ("bias_hh", &weights.recurrent_bias),
                ("peephole", &peepholes),
            ] {
                let name = format!("{part}_l0{suffix}");
                let view = file.tensor(&name).unwrap();
                assert_eq!(
                    (view.dtype(), &floats(&view)),
                    (Dtype::F32, values),
                    "{name}"
                );
                names.push(name);
            }
        }
        let mut found: Vec<&str> = file.names().into_iter().collect();
        found.sort_unstable();
        names.sort_unstable();
        assert_eq!(found, names);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        assert_eq!(metadata["gatestream.precision"], precision.name());
        assert_eq!(metadata["gatestream.cell"], "lstm");
    }
}

#[test]
fn equal_models_give_equal_bytes() {
    let model = Lstm::new(3, 4).layers(3).clip(0.5).random(1).unwrap();
    assert_eq!(bytes(&model), bytes(&model.clone()));
}

#[test]
fn an_int8_file_is_about_a_quarter_as_large() {
    for layers in [1, 3] {
        let model = Lstm::new(256, 256).layers(layers).random(1).unwrap();
        let sizes = Precision::ALL.map(|p| bytes(&model.in_precision(p).unwrap()).len() as f64);
        assert!(sizes[2] <= 0.27 * sizes[0], "{sizes:?}");
        assert!(sizes[1] <= 0.51 * sizes[0], "{sizes:?}");
    }
}

#[test]
fn what_cannot_be_written_leaves_what_stood_there() {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, b"before").unwrap();
    let good = Lstm::new(3, 2);
    let endless = Activation::Affine {
        alpha: f32::INFINITY,
        beta: 0.0,
    };
    for (model, part) in [
        (
            good.clone().activations([endless; 3]).random(1),
            "number inf",
        ),
        (good.clone().clip(f32::INFINITY).random(1), "clip"),
    ] {
        let error = model.unwrap().save_safetensors(&path).unwrap_err();
        assert!(matches!(error, SaveError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let nowhere = folder.path().join("absent").join("m.safetensors");
    let error = good
        .random(1)
        .unwrap()
        .save_safetensors(nowhere)
        .unwrap_err();
    assert!(matches!(error, SaveError::Io { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn bytes(model: &Model) -> Vec<u8> {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    model.save_safetensors(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn floats(view: &TensorView<'_>) -> Vec<f32> {
    let values = view.data().as_chunks().0;
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// A file of this crate, taken apart.
#[derive(Clone)]
struct File {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    metadata: HashMap<String, String>,
}

impl File {
    fn of(model: &Model) -> File {
        let bytes = bytes(model);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (
                name,
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        };
        File {
            tensors: file.tensors().into_iter().map(tensor).collect(),
            metadata: header.metadata().clone().unwrap_or_default(),
        }
    }

    fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> File {
        self.tensors.retain(|(n, ..)| n != name);
        self.tensors
            .push((name.into(), dtype, shape.into(), data.into()));
        self
    }

    fn without(mut self, name: &str) -> File {
        let before = self.tensors.len();
        self.tensors.retain(|(n, ..)| n != name);
        assert!(self.tensors.len() < before, "{name} was not there");
        self
    }

    fn saying(mut self, key: &str, value: &str) -> File {
        self.metadata
            .insert(format!("gatestream.{key}"), value.into());
        self
    }

    fn silent(mut self, key: &str) -> File {
        assert!(self.metadata.remove(&format!("gatestream.{key}")).is_some());
        self
    }

    fn load(&self) -> Result<Model, LoadError> {
        self.load_with(&SafetensorsOptions::new())
    }

    fn load_with(&self, options: &SafetensorsOptions) -> Result<Model, LoadError> {
        let views = self.tensors.iter().map(|(name, dtype, shape, data)| {
            let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
            (name.as_str(), view)
        });
        let bytes = serialize(views, Some(self.metadata.clone())).unwrap();
        Model::from_safetensors(&bytes, options)
    }
}

#[test]
fn bf16_of_others_is_widened_and_int8_of_others_is_taken() {
    let model = Gru::new(3, 4).random(1).unwrap();
    let half = model.in_precision(Precision::Bf16).unwrap();
    let file = File::of(&half);
    assert_eq!(file.load().unwrap(), half);
    for foreign in [
        file.clone().silent("precision"),
        file.saying("precision", "f32"),
    ] {
        let read = foreign.load().unwrap();
        assert_eq!(read.precision(), Some(Precision::F32));
        assert_eq!(read, half.in_precision(Precision::F32).unwrap());
    }
    let whole = model.in_precision(Precision::Int8).unwrap();
    let file = File::of(&whole).silent("precision");
    assert_eq!(file.load().unwrap(), whole);
}

#[test]
fn damaged_files_are_refused_by_name() {
    let random = |precision| {
        let model = Lstm::new(3, 2).random(1).unwrap();
        File::of(&model.in_precision(precision).unwrap())
    };
    let (whole, half, full) = (
        random(Precision::Int8),
        random(Precision::Bf16),
        random(Precision::F32),
    );
    let scales =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let scaled = |values: &[f32]| {
        let data = scales(values);
        whole
            .clone()
            .with("weight_ih_l0_scale", Dtype::F32, &[values.len()], &data)
    };
    let with_nan = [0.5, f32::NAN, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
    let negative = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, -0.5];
    let lowest = [&[1; 23][..], &[0x80]].concat();
    let cases: Vec<(File, &str, &str)> = vec![
        (
            whole.clone().without("weight_ih_l0_scale"),
            "weight_ih_l0",
            "I8 but no scales",
        ),
        (
            whole.clone().without("weight_hh_l0"),
            "weight_hh_l0_scale",
            "is not a tensor of I8",
        ),
        (scaled(&[0.5; 7]), "weight_ih_l0_scale", "must be [8]"),
        (scaled(&[]), "weight_ih_l0_scale", "[0]"),
        (scaled(&with_nan), "weight_ih_l0", "found NaN"),
        (scaled(&negative), "weight_ih_l0", "found -0.5"),
        (
            whole
                .clone()
                .with("weight_ih_l0_scale", Dtype::I8, &[8], &[1; 8]),
            "weight_ih_l0_scale",
            "I8",
        ),
        (
            whole.clone().with(
                "weight_ih_l0_scale",
                Dtype::F32,
                &[8, 1],
                &scales(&[0.5; 8]),
            ),
            "weight_ih_l0_scale",
            "one axis",
        ),
        (
            whole
                .clone()
                .with("weight_ih_l0", Dtype::I8, &[8, 3], &lowest),
            "weight_ih_l0",
            "found -128",
        ),
        (
            full.clone()
                .with("weight_hh_l0_scale", Dtype::F32, &[8], &scales(&[0.5; 8])),
            "weight_hh_l0_scale",
            "is not a tensor of I8",
        ),
        (
            full.clone()
                .with("weight_hr_l0_scale", Dtype::F32, &[8], &scales(&[0.5; 8])),
            "weight_hr_l0_scale",
            "is not a tensor of I8",
        ),
        (
            full.clone()
                .with("bias_ih_l0_scale", Dtype::F32, &[8], &scales(&[0.5; 8])),
            "bias_ih_l0_scale",
            "not part of a recurrent layer",
        ),
        (
            full.clone().with("bias_ih_l0", Dtype::I8, &[8], &[1; 8]),
            "bias_ih_l0",
            "I8",
        ),
        (
            whole.clone().saying("precision", "bf16"),
            "weight_ih_l0",
            "has dtype I8",
        ),
        (
            half.saying("precision", "int8"),
            "weight_ih_l0",
            "has dtype BF16",
        ),
        (
            full.clone().saying("precision", "bf16"),
            "weight_ih_l0",
            "has dtype F32",
        ),
        (
            full.clone()
                .with("peephole_l0", Dtype::F32, &[3, 3], &[0; 36]),
            "peephole_l0",
            "must be [3, 2]",
        ),
        (
            File::of(&Gru::new(3, 2).random(1).unwrap()).with(
                "peephole_l0",
                Dtype::F32,
                &[3, 2],
                &[0; 24],
            ),
            "peephole_l0",
            "on gru",
        ),
    ];
    for (file, tensor, part) in cases {
        match file.load() {
            Err(LoadError::Tensor { name, reason }) => {
                assert_eq!(name, tensor, "{reason}");
                assert!(reason.contains(part), "{tensor}: {part:?} in {reason:?}");
                assert!(!reason.contains('\n'), "{reason:?}");
            }
            other => panic!("{tensor} ({part}): {other:?}"),
        }
    }
}

#[test]
fn refused_metadata() {
    let plain = File::of(&Lstm::new(3, 2).random(1).unwrap());
    let both = Lstm::new(3, 2).clip(0.5).bidirectional(Merge::Sum);
    let both = File::of(&both.random(1).unwrap());
    let said = both.metadata["gatestream.layers"].clone();
    assert!(said.contains("\"sum\"") && said.contains("0.5"), "{said}");
    let layers = |from: &str, to: &str| {
        assert!(said.contains(from), "{from} in {said}");
        both.clone().saying("layers", &said.replacen(from, to, 1))
    };
    let ports = |text: &str| {
        plain
            .clone()
            .silent("batch_first")
            .saying("interface", text)
    };
    for (file, key, part) in [
        (
            plain.clone().saying("precision", "int4"),
            "precision",
            "int4",
        ),
        (
            plain.clone().saying("precision", "F32"),
            "precision",
            "f32, bf16, int8 or mixed",
        ),
        (
            plain.clone().saying("layers", "[]"),
            "cell",
            "only one of this entry",
        ),
        (layers("\"sum\"", "\"product\""), "layers", "product"),
        (
            layers(",\"merge\":\"sum\"", ""),
            "layers",
            "both with merge",
        ),
        (layers("\"tanh\"", "\"tanx\""), "layers", "tanx"),
        (layers("\"clip\"", "\"clap\""), "layers", "clap"),
        (layers("0.5", "1e99"), "layers", "too large"),
        (
            both.clone().saying("layers", "[{}]"),
            "layers",
            "forward or reverse",
        ),
        (
            both.clone().saying("layers", &"[".repeat(5000)),
            "layers",
            "expected value",
        ),
        (ports("{}"), "interface", "inputs"),
        (
            plain
                .clone()
                .saying("interface", "{\"inputs\":[],\"outputs\":[]}"),
            "batch_first",
            "only one of this entry",
        ),
    ] {
        let error = file.load().expect_err(part);
        let LoadError::Metadata { key: found, .. } = error else {
            panic!("{part}: {error}");
        };
        assert_eq!(found, format!("gatestream.{key}"), "{error}");
        let text = error.to_string();
        assert!(text.contains(part), "{part:?} in {text}");
        assert!(!text.contains('\n') && text.len() < 500, "{text}");
    }
    // Well formed, but of other layers than the tensors are.
    let forward = format!("[{{\"forward\":{{\"cell\":{{\"gru\":{GRU}}}}}}}]");
    let reverse = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
    let one_way = (reverse.iter()).fold(both.clone(), |file, part| {
        file.without(&format!("{part}_l0_reverse"))
    });
    for (file, tensor) in [
        (both.clone().saying("layers", "[]"), "weight_ih_l0"),
        (one_way, "weight_ih_l0_reverse"),
        (
            both.clone().saying("layers", &forward),
            "weight_ih_l0_reverse",
        ),
        (
            plain.clone().silent("cell").saying("layers", &forward),
            "weight_ih_l0",
        ),
    ] {
        match file.load() {
            Err(LoadError::Tensor { name, .. }) => assert_eq!(name, tensor),
            other => panic!("{tensor}: {other:?}"),
        }
    }
    assert!(matches!(
        ports("{\"inputs\":[],\"outputs\":[]}").load(),
        Err(LoadError::Model(_))
    ));
    // Options that ask for another thing.
    let gru = SafetensorsOptions::new().cell(Cell::GRU);
    for file in [&plain, &both] {
        let error = file.load_with(&gru).unwrap_err();
        assert!(matches!(error, LoadError::Metadata { .. }), "{error}");
    }
    let lstm = SafetensorsOptions::new().cell(Cell::LSTM);
    assert_eq!(both.load_with(&lstm).unwrap(), both.load().unwrap());
}

const GRU: &str = "{\"gate\":\"sigmoid\",\"candidate\":\"tanh\",\"reset\":\"after\"}";
