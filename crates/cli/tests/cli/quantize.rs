//! `gatestream quantize`, run as a program.

use gatestream::model::{Lstm, Matrix, Merge, Model, Precision, Weights};
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

use crate::common::{Batch, Random, Results};
use crate::{npy, run_in, stdout, text};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn done(out: &Output) -> String {
    assert!(out.stderr.is_empty(), "{out:?}");
    stdout(out)
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
fn safetensors_model() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let model = Lstm::new(24, 64).layers(2).bidirectional(Merge::Concat);
    let model = model.random(3).unwrap();
    model.save_safetensors(at("m.safetensors")).unwrap();
    let (steps, batch) = (6, 2);
    let values = Random::new(9).values(steps * batch * 24);
    std::fs::write(at("x.npy"), npy::floats(&[steps, batch, 24], &values)).unwrap();
    let report = done(&run_in(
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
        done(&run_in(folder.path(), &[&ask[..], precision].concat()));
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
fn report_of_mixed_precisions() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let model = Lstm::new(5, 8).layers(4).random(3).unwrap();
    model.save_safetensors(at("m.safetensors")).unwrap();
    let mix = "int8,bf16,f32,int8";
    let arguments = ["quantize", "m.safetensors", "--precision", mix];
    let to = ["-o", "q.safetensors"];
    let report = done(&run_in(folder.path(), &[&arguments[..], &to].concat()));
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
fn onnx_names_and_axes() {
    let folder = folder();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/onnx");
    let original = fixtures.join("gru_reset_0.onnx");
    let name = original.to_str().unwrap();
    let report = done(&run_in(
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
fn report_of_onnx_int8_weights() {
    let folder = folder();
    let fixtures =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/onnx_quantised");
    let original = fixtures.join("mixed.onnx");
    let name = original.to_str().unwrap();
    let quantize = |precision: &str, output: &str| {
        let arguments = ["quantize", name, "--precision", precision, "-o", output];
        done(&run_in(folder.path(), &arguments))
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
        let expected = expected.in_precision(precision.parse().unwrap()).unwrap();
        let found = Model::open(folder.path().join("q.safetensors")).unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn refusals_write_no_file() {
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
            "gatestream.cell",
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
        let out = run_in(folder.path(), &arguments);
        assert_eq!(out.status.code(), Some(status), "{arguments:?}: {out:?}");
        assert!(out.stdout.is_empty(), "{out:?}");
        let text = text(&out.stderr);
        assert!(text.contains(part), "{part:?} in {text}");
        assert!(status == 2 || text.lines().count() == 1, "{text}");
        assert_eq!(files(folder.path()), there, "{arguments:?}");
    }
    assert!(std::fs::read(at("m.safetensors")).unwrap() == before);
}

/// The error names the file whose weights cannot become int8.
#[test]
fn failure_names_the_file() {
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
        let out = run_in(folder.path(), &arguments);
        assert_eq!(out.status.code(), Some(1), "{arguments:?}: {out:?}");
        let text = text(&out.stderr);
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
