//! Models written to safetensors files in every precision: what is read back, what is refused, and the
//! command `quantize`.
//!
//! What a file must hold is read by the `safetensors` crate; the answers are the reference's.
#![cfg(feature = "safetensors")]

mod common;
#[path = "common/npy.rs"]
mod npy;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cellstream::model::{
    Activation, Axis, Cell, Gru, Layer, LoadError, Lstm, Matrix, Merge, Model, Precision,
    ResetForm, SafetensorsOptions, SaveError, Weights,
};
use cellstream::{Plan, Session};
use common::{ACTIVATIONS, Batch, Options, Random, Results, usual_cells};
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
        let model = match random.0.bool() {
            true => model.batch_first(),
            false => model,
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
        assert_eq!(metadata["cellstream.precision"], precision.name());
        assert_eq!(metadata["cellstream.cell"], "lstm");
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
            .insert(format!("cellstream.{key}"), value.into());
        self
    }

    fn silent(mut self, key: &str) -> File {
        assert!(self.metadata.remove(&format!("cellstream.{key}")).is_some());
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
            "I8 without scales",
        ),
        (
            whole.clone().without("weight_hh_l0"),
            "weight_hh_l0_scale",
            "no tensor of I8",
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
            "no tensor of I8",
        ),
        (
            full.clone()
                .with("weight_hr_l0_scale", Dtype::F32, &[8], &scales(&[0.5; 8])),
            "weight_hr_l0_scale",
            "no tensor of I8",
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
fn metadata_that_is_undefined_or_contradicts_is_refused_by_key() {
    let plain = File::of(&Lstm::new(3, 2).random(1).unwrap());
    let both = Lstm::new(3, 2).clip(0.5).bidirectional(Merge::Sum);
    let both = File::of(&both.random(1).unwrap());
    let said = both.metadata["cellstream.layers"].clone();
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
            "it, or the entry",
        ),
        (layers("\"sum\"", "\"product\""), "layers", "product"),
        (layers(",\"merge\":\"sum\"", ""), "layers", "how they merge"),
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
            "it, or the entry",
        ),
    ] {
        let error = file.load().expect_err(part);
        let LoadError::Metadata { key: found, .. } = error else {
            panic!("{part}: {error}");
        };
        assert_eq!(found, format!("cellstream.{key}"), "{error}");
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

/// The command, in a folder of its own.
#[cfg(all(feature = "cli", feature = "onnx"))]
mod command {
    use super::*;
    use std::process::{Command, Output};

    fn cellstream(folder: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cellstream"));
        command.args(arguments).current_dir(folder);
        command.env_remove("CELLSTREAM_ISA");
        command.env_remove("CELLSTREAM_TRACE");
        command.output().unwrap()
    }

    fn done(out: &Output) -> String {
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        assert!(out.stderr.is_empty(), "{out:?}");
        String::from_utf8(out.stdout.clone()).unwrap()
    }

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    /// The words of the line that starts with this one.
    fn line<'r>(report: &'r str, first: &str) -> Vec<&'r str> {
        let words = |line: &'r str| line.split_whitespace().collect::<Vec<_>>();
        let found = report
            .lines()
            .map(words)
            .find(|line| line.first() == Some(&first));
        found.unwrap_or_else(|| panic!("{first} in {report}"))
    }

    #[test]
    fn a_safetensors_model_is_written_and_reported() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let model = Lstm::new(24, 64).layers(2).bidirectional(Merge::Concat);
        let model = model.random(3).unwrap();
        model.save_safetensors(at("m.safetensors")).unwrap();
        let (steps, batch) = (6, 2);
        let values = Random::new(9).values(steps * batch * 24);
        std::fs::write(at("x.npy"), npy::floats(&[steps, batch, 24], &values)).unwrap();
        let report = done(&cellstream(
            folder.path(),
            &[
                "quantize",
                "m.safetensors",
                "--precision",
                "int8",
                "--sample",
                "x.npy",
                "-o",
                "q.safetensors",
            ],
        ));

        // The file.
        let whole = model.in_precision(Precision::Int8).unwrap();
        assert_eq!(Model::open(at("q.safetensors")).unwrap(), whole);
        let run = |model: &str, precision: &[&str]| {
            let ask = ["run", model, "--input=input=x.npy", "--output=output=y.npy"];
            done(&cellstream(folder.path(), &[&ask[..], precision].concat()));
            std::fs::read(at("y.npy")).unwrap()
        };
        let found = run("q.safetensors", &[]);
        assert!(found == run("m.safetensors", &["--precision=int8"]));
        assert!(found != run("m.safetensors", &[]));

        // The report, against what was computed here.
        let size = |name: &str| std::fs::metadata(at(name)).unwrap().len().to_string();
        let (before, after) = (size("m.safetensors"), size("q.safetensors"));
        assert_eq!(line(&report, "file")[1..3], [&before[..], &after]);
        let (before, after) = (model.weight_bytes(), whole.weight_bytes());
        let ratio = format!("{:.3}", after as f64 / before as f64);
        let sizes = [before.to_string(), after.to_string(), ratio];
        assert_eq!(line(&report, "weights")[1..], sizes);
        let input = Batch {
            values,
            ..Batch::full(&mut Random::new(1), &model, batch, steps)
        };
        let exact = Results::reference(&model, &input).values;
        let errors = Results::reference(&whole, &input).values;
        let errors = errors
            .iter()
            .zip(&exact)
            .map(|(a, b)| f64::from(*a) - f64::from(*b));
        let errors: Vec<f64> = errors.map(f64::abs).collect();
        let most = errors.iter().fold(0.0, |most, error| error.max(most));
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        assert!(most > 0.0);
        let output = line(&report, "max");
        assert_eq!(output[1], format!("{most:.3e}"));
        assert_eq!(output[3], format!("{rms:.3e}"));
        assert!(report.contains("x.npy"), "{report}");
        let rows = |way: &str| report.lines().filter(|l| l.contains(way)).count();
        assert_eq!((rows(" forward "), rows(" reverse ")), (4, 4), "{report}");
        for precision in ["f32", "int8"] {
            let times = line(&report, precision);
            assert!(
                times[1..3].iter().all(|t| t.parse::<f64>().unwrap() > 0.0),
                "{report}"
            );
        }
        assert_eq!(files(folder.path()), 4);
    }

    /// As it is asked for, and with its figures below it, however long it is.
    #[test]
    fn a_mix_has_the_name_of_its_layers_in_the_report() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let model = Lstm::new(5, 8).layers(4).random(3).unwrap();
        model.save_safetensors(at("m.safetensors")).unwrap();
        let mix = "int8,bf16,f32,int8";
        let arguments = ["quantize", "m.safetensors", "--precision", mix];
        let to = ["-o", "q.safetensors"];
        let report = done(&cellstream(folder.path(), &[&arguments[..], &to].concat()));
        assert_eq!(line(&report, "bytes")[1..], ["original", mix, "ratio"]);
        assert_eq!(line(&report, mix).len(), 4, "{report}");
        let length = |first: &str| {
            let line = report.lines().find(|line| line.starts_with(first));
            line.unwrap().trim_end().len()
        };
        for lines in [["bytes", "file", "weights"], ["  ", "f32", mix]] {
            let lengths = lines.map(length);
            assert!(lengths.iter().all(|l| *l == lengths[0]), "{report}");
        }
    }

    #[test]
    fn an_onnx_model_keeps_its_names_and_axes() {
        let folder = folder();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx");
        let original = fixtures.join("gru_reset_0.onnx");
        let name = original.to_str().unwrap();
        let report = done(&cellstream(
            folder.path(),
            &["quantize", name, "--precision=bf16", "-o", "q.safetensors"],
        ));
        assert!(report.contains("64 steps of random values"), "{report}");
        assert!(!report.contains("8-bit"), "{report}");
        let expected = Model::open(&original).unwrap();
        let expected = expected.in_precision(Precision::Bf16).unwrap();
        let found = Model::open(folder.path().join("q.safetensors")).unwrap();
        assert_eq!(found, expected);
    }

    /// The first direction's zero points are in the middle, the second's are not.
    #[test]
    fn what_became_of_the_8_bit_weights_of_an_onnx_model_is_reported() {
        let folder = folder();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx_quantised");
        let original = fixtures.join("mixed.onnx");
        let name = original.to_str().unwrap();
        let quantize = |precision: &str, output: &str| {
            let arguments = ["quantize", name, "--precision", precision, "-o", output];
            done(&cellstream(folder.path(), &arguments))
        };
        // Whatever it becomes: what is said is of the original.
        for precision in ["int8", "f32"] {
            let report = quantize(precision, "q.safetensors");
            let lines = report
                .lines()
                .skip_while(|l| !l.starts_with("8-bit weights"));
            let rows: Vec<Vec<&str>> = lines
                .skip(2)
                .take(5)
                .map(|line| line.split_whitespace().take(5).collect())
                .collect();
            let expected: [&[&str]; 5] = [
                &["0", "forward", "input", "kept", "\"W\""],
                &["0", "forward", "recurrent", "kept", "\"R\""],
                &["0", "reverse", "input", "requantised", "\"W\":"],
                &["0", "reverse", "recurrent", "requantised", "\"R\":"],
                &[],
            ];
            assert_eq!(rows, expected, "{report}");
            assert_eq!(report.matches("zero points").count(), 2, "{report}");
            let expected = Model::open(&original).unwrap();
            let precision = Precision::ALL.into_iter().find(|p| p.name() == precision);
            let expected = expected.in_precision(precision.unwrap()).unwrap();
            let found = Model::open(folder.path().join("q.safetensors")).unwrap();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn refusals_leave_nothing_behind() {
        let folder = folder();
        let at = |name: &str| -> PathBuf { folder.path().join(name) };
        let model = Lstm::new(3, 4).random(1).unwrap();
        model.save_safetensors(at("m.safetensors")).unwrap();
        let before = std::fs::read(at("m.safetensors")).unwrap();
        std::fs::write(at("x.npy"), npy::floats(&[5, 1, 4], &[0.0; 20])).unwrap();
        std::fs::write(at("none.npy"), npy::floats(&[0, 1, 3], &[])).unwrap();
        let infinite = good_but_for_one_weight(f32::INFINITY);
        infinite.save_safetensors(at("i.safetensors")).unwrap();
        let there = files(folder.path());
        let int8 = |model| vec!["quantize", model, "--precision=int8", "-o"];
        for (arguments, status, part) in [
            (
                [int8("m.safetensors"), vec!["m.safetensors"]],
                1,
                "the model itself",
            ),
            (
                [int8("m.safetensors"), vec!["./m.safetensors"]],
                1,
                "the model itself",
            ),
            ([int8("m.safetensors"), vec!["q.onnx"]], 1, ".safetensors"),
            (
                [int8("absent.safetensors"), vec!["q.safetensors"]],
                1,
                "absent.safetensors",
            ),
            (
                [int8("i.safetensors"), vec!["q.safetensors"]],
                1,
                "found inf",
            ),
            (
                [
                    int8("m.safetensors"),
                    vec!["q.safetensors", "--sample=x.npy"],
                ],
                1,
                "x.npy",
            ),
            (
                [
                    int8("m.safetensors"),
                    vec!["q.safetensors", "--sample=none.npy"],
                ],
                1,
                "is empty",
            ),
            (
                [int8("m.safetensors"), vec!["no/q.safetensors"]],
                1,
                "no/q.safetensors",
            ),
            (
                [int8("m.safetensors"), vec!["q.safetensors", "--cell=gru"]],
                1,
                "cellstream.cell",
            ),
            (
                [
                    vec!["quantize", "m.safetensors", "-o"],
                    vec!["q.safetensors"],
                ],
                2,
                "--precision",
            ),
        ] {
            let arguments = arguments.concat();
            let out = cellstream(folder.path(), &arguments);
            assert_eq!(out.status.code(), Some(status), "{arguments:?}: {out:?}");
            assert!(out.stdout.is_empty(), "{out:?}");
            let text = String::from_utf8(out.stderr).unwrap();
            assert!(text.contains(part), "{part:?} in {text}");
            assert!(status == 2 || text.lines().count() == 1, "{text}");
            assert_eq!(files(folder.path()), there, "{arguments:?}");
        }
        assert!(std::fs::read(at("m.safetensors")).unwrap() == before);
    }

    /// Whoever asks for int8 is told which file's weights cannot become that.
    #[test]
    fn a_file_that_cannot_be_quantised_is_named() {
        let folder = folder();
        let path = folder.path().join("i.safetensors");
        good_but_for_one_weight(f32::INFINITY)
            .save_safetensors(path)
            .unwrap();
        let x = npy::floats(&[1, 1, 3], &[0.0; 3]);
        std::fs::write(folder.path().join("x.npy"), x).unwrap();
        for command in [
            &["run", "--input=input=x.npy", "--output=output=y.npy"][..],
            &["bench"],
            &["tune"],
            &["explain"],
        ] {
            let arguments = [command, &["i.safetensors", "--precision=int8"]].concat();
            let out = cellstream(folder.path(), &arguments);
            assert_eq!(out.status.code(), Some(1), "{arguments:?}: {out:?}");
            let text = String::from_utf8(out.stderr).unwrap();
            let is_named = text.contains("i.safetensors") && text.contains("found inf");
            assert!(is_named && text.lines().count() == 1, "{text}");
        }
    }

    fn good_but_for_one_weight(value: f32) -> Model {
        Lstm::new(3, 2)
            .build(|slot| {
                let mut input = vec![0.5; 8 * slot.input];
                input[7] = value;
                Weights {
                    input: Matrix::new(8, slot.input, input).unwrap(),
                    recurrent: Matrix::new(8, 2, vec![0.5; 16]).unwrap(),
                    input_bias: vec![0.0; 8],
                    recurrent_bias: vec![0.0; 8],
                    peepholes: None,
                    projection: None,
                }
            })
            .unwrap()
    }
}
