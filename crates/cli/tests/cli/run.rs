//! `gatestream run` and `bench` as a user sees them: answers of PyTorch and ONNX Runtime from
//! model files and arrays, refusals in one line that name what to change, exit statuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gatestream::kernels::Isa;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use tempfile::TempDir;

use crate::{npy, program, run_in, text};

/// What the peers' answers may differ by.
const TOLERANCE: f32 = 1e-5;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

/// A folder with a model and its input arrays, and the arrays that the peer answered.
struct Case {
    folder: TempDir,
    /// Inputs and answers by name; axes as in the file.
    tensors: Vec<u8>,
    prefix: &'static str,
    /// Name of the model file in the folder.
    model: String,
}

impl Case {
    /// PyTorch's 3-layer bidirectional LSTM, its weights exported as `state_dict` names them, with
    /// initial states.
    fn pytorch_lstm() -> Case {
        const PREFIX: &str = "three_layers_bidirectional/";
        let tensors = std::fs::read(fixture("peers/torch_lstm.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&tensors).unwrap();
        let weights: Vec<(String, TensorView)> = (file.tensors().into_iter())
            .filter_map(|(name, view)| Some((name.strip_prefix(PREFIX)?.to_string(), view)))
            .filter(|(name, _)| name.starts_with("weight_") || name.starts_with("bias_"))
            .collect();
        assert_eq!(weights.len(), 3 * 2 * 4);
        let folder = tempfile::tempdir().unwrap();
        let model = serialize(weights, None).unwrap();
        std::fs::write(folder.path().join("lstm.safetensors"), model).unwrap();
        let case = Case {
            folder,
            tensors,
            prefix: PREFIX,
            model: "lstm.safetensors".into(),
        };
        case.export(&["input", "h0", "c0"]);
        case
    }

    /// A case of `tests/fixtures/onnx`.
    fn onnx(name: &str, inputs: &[&str]) -> Case {
        let tensors = fixture(&format!("onnx/{name}.safetensors"));
        let case = Case {
            folder: tempfile::tempdir().unwrap(),
            tensors: std::fs::read(tensors).unwrap(),
            prefix: "",
            model: format!("{name}.onnx"),
        };
        let model = fixture(&format!("onnx/{name}.onnx"));
        std::fs::copy(model, case.path(&case.model)).unwrap();
        case.export(inputs);
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes these inputs as `NAME.npy`.
    fn export(&self, names: &[&str]) {
        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        for name in names {
            let view = file.tensor(&format!("{}{name}", self.prefix)).unwrap();
            let kind = match view.dtype() {
                Dtype::F32 => "<f4",
                Dtype::I32 => "<i4",
                Dtype::I64 => "<i8",
                other => panic!("{other:?}"),
            };
            let array = npy::bytes(kind, view.shape(), view.data());
            std::fs::write(self.path(&format!("{name}.npy")), array).unwrap();
        }
    }

    /// `run`, in the case's folder.
    fn run(&self, arguments: &[&str]) -> Output {
        run_in(self.folder.path(), &[&["run"], arguments].concat())
    }

    /// Runs the model over all its inputs and holds all its outputs against the peer's answers.
    fn answers(&self, inputs: &[&str], outputs: &[&str]) {
        let inputs = inputs
            .iter()
            .map(|name| format!("--input={name}={name}.npy"));
        let outputs_to = outputs
            .iter()
            .map(|name| format!("--output={name}={name}_out.npy"));
        let given: Vec<String> = inputs.chain(outputs_to).collect();
        let mut arguments = vec![self.model.as_str()];
        arguments.extend(given.iter().map(String::as_str));
        let out = self.run(&arguments);
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        assert!(out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");

        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        for name in outputs {
            let (shape, found) = npy::read_floats(&self.path(&format!("{name}_out.npy")));
            let expected = file.tensor(&format!("{}{name}", self.prefix)).unwrap();
            assert_eq!(shape, expected.shape(), "{name}");
            let expected = expected.data().as_chunks().0;
            for (at, (found, &expected)) in found.iter().zip(expected).enumerate() {
                let expected = f32::from_le_bytes(expected);
                let close = (found - expected).abs() <= TOLERANCE;
                assert!(close, "{name}[{at}] is {found}, the peer says {expected}");
            }
        }
    }

    /// Runs, expecting a refusal: exit status 1, nothing written, one line that holds all `parts`.
    fn refuses(&self, arguments: &[&str], parts: &[&str]) {
        let arguments = [&[self.model.as_str()], arguments].concat();
        refused(&self.run(&arguments), parts);
        assert!(!self.path("y.npy").exists(), "{arguments:?}");
        self.assert_nothing_pending();
    }

    fn assert_nothing_pending(&self) {
        for entry in std::fs::read_dir(self.path(".")).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(!name.to_string_lossy().ends_with(".partial"), "{name:?}");
        }
    }
}

fn refused(out: &Output, parts: &[&str]) {
    refused_with(1, out, parts);
}

fn refused_with(status: i32, out: &Output, parts: &[&str]) {
    assert_eq!(out.status.code(), Some(status), "{out:?}");
    assert!(out.stdout.is_empty(), "{out:?}");
    let text = text(&out.stderr);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("gatestream: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn pytorch_bidirectional_lstm() {
    let case = Case::pytorch_lstm();
    case.answers(&["input", "h0", "c0"], &["output", "hn", "cn"]);
}

/// PyTorch would refuse one of two; here, as in ONNX, the other is zero, and `--help` says so.
#[test]
fn one_initial_state() {
    let case = Case::pytorch_lstm();
    let (shape, values) = npy::read_floats(&case.path("h0.npy"));
    let zeros = npy::floats(&shape, &vec![0.0; values.len()]);
    std::fs::write(case.path("zeros.npy"), zeros).unwrap();
    let run = |states: &[&str]| {
        let asked = ["output", "hn", "cn"].map(|name| format!("--output={name}={name}_out.npy"));
        let asked = asked.iter().map(String::as_str);
        let given = [case.model.as_str(), "--input=input=input.npy"].into_iter();
        let arguments: Vec<&str> = given.chain(states.iter().copied()).chain(asked).collect();
        let out = case.run(&arguments);
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        assert!(out.stderr.is_empty(), "{out:?}");
        ["output", "hn", "cn"]
            .map(|name| std::fs::read(case.path(&format!("{name}_out.npy"))).unwrap())
    };
    let neither = run(&[]);
    for (given, other) in [("h0", "c0"), ("c0", "h0")] {
        let given = format!("--input={given}={given}.npy");
        let alone = run(&[&given]);
        assert!(alone == run(&[&given, &format!("--input={other}=zeros.npy")]));
        assert!(alone != neither);
    }
    let help = case.run(&["--help"]);
    let help = text(&help.stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let promise = "Omitted states are zero, also if only one of h0 and c0 is omitted.";
    assert!(help.contains(promise), "{help}");
}

#[test]
fn batch_first_by_file_and_option() {
    let case = Case::pytorch_lstm();
    let (shape, values) = npy::read_floats(&case.path("input.npy"));
    let [steps, batch, features] = shape[..] else {
        panic!("{shape:?}");
    };
    assert_ne!(steps, batch);
    let turned: Vec<f32> = (0..batch * steps * features)
        .map(|i| {
            let (b, t, f) = (i / features / steps, i / features % steps, i % features);
            values[(t * batch + b) * features + f]
        })
        .collect();
    std::fs::write(
        case.path("turned.npy"),
        npy::floats(&[batch, steps, features], &turned),
    )
    .unwrap();
    let plain = std::fs::read(case.path(&case.model)).unwrap();
    let tensors = SafeTensors::deserialize(&plain).unwrap();
    let metadata = [("gatestream.batch_first".to_string(), "true".to_string())];
    let told = serialize(tensors.tensors(), Some(metadata.into())).unwrap();
    std::fs::write(case.path("told.safetensors"), told).unwrap();

    let out = case.run(&[
        &case.model,
        "--input=input=input.npy",
        "--output=output=y.npy",
    ]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let (_, expected) = npy::read_floats(&case.path("y.npy"));
    let size = expected.len() / (steps * batch);
    for (model, option) in [
        (&*case.model, &["--batch-first"][..]),
        ("told.safetensors", &[]),
        ("told.safetensors", &["--batch-first"]),
    ] {
        let ask = ["--input=input=turned.npy", "--output=output=y.npy"];
        let out = case.run(&[&[model], &ask[..], option].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let (shape, found) = npy::read_floats(&case.path("y.npy"));
        assert_eq!(shape, [batch, steps, size], "{model} {option:?}");
        for (at, found) in found.iter().enumerate() {
            let (b, t, f) = (at / size / steps, at / size % steps, at % size);
            assert_eq!(
                *found,
                expected[(t * batch + b) * size + f],
                "{model} {option:?}"
            );
        }
    }
}

#[test]
fn onnx_exporters() {
    for exporter in ["script", "dynamo"] {
        let case = Case::onnx(&format!("lstm_bidirectional.{exporter}"), &["x"]);
        case.answers(&["x"], &["output", "hn", "cn"]);
    }
}

#[test]
fn onnx_gru_with_lengths() {
    let case = Case::onnx("gru_packed.script", &["x", "lengths"]);
    case.answers(&["x", "lengths"], &["output", "hn"]);
    let case = Case::onnx("gru_reset_0", &["x", "lengths"]);
    case.answers(&["lengths", "x"], &["Y_h", "Y"]);
}

/// With a clip of 0.9 on the input of its output activation, no output of an LSTM is larger than
/// sigmoid(0.9) tanh(0.9).
#[test]
fn clip_of_the_output_activation() {
    let case = Case::onnx("lstm_peephole", &["x", "lengths"]);
    let ones = npy::floats(&[40, 3, 5], &[20.0; 40 * 3 * 5]);
    std::fs::write(case.path("ones.npy"), ones).unwrap();
    let lengths: Vec<u8> = [40i32; 3].iter().flat_map(|l| l.to_le_bytes()).collect();
    std::fs::write(case.path("all.npy"), npy::bytes("<i4", &[3], &lengths)).unwrap();
    let largest = |option: &[&str]| {
        let inputs = ["--input=x=ones.npy", "--input=lengths=all.npy"];
        let ask = [&*case.model, inputs[0], inputs[1], "--output=Y=y.npy"];
        let out = case.run(&[&ask[..], option].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let (_, values) = npy::read_floats(&case.path("y.npy"));
        values
            .into_iter()
            .fold(0f32, |most, value| most.max(value.abs()))
    };
    let most = 0.9f32.tanh() / (1.0 + (-0.9f32).exp());
    assert!(largest(&["--clip-output"]) <= most + 1e-6);
    assert!(largest(&[]) > most + 1e-3);
}

#[test]
fn onnx_states_by_name() {
    let case = Case::onnx("lstm_states.script", &["x", "h0", "c0"]);
    case.answers(&["c0", "x", "h0"], &["cn", "hn", "output"]);
}

#[test]
fn same_bytes_on_every_isa_and_thread_count() {
    let case = Case::pytorch_lstm();
    let mut expected: Option<Vec<Vec<u8>>> = None;
    for isa in Isa::available() {
        for threads in ["1", "2"] {
            let mut command = program(["run", &case.model, "--threads", threads]);
            for array in ["input=input.npy", "h0=h0.npy", "c0=c0.npy"] {
                command.args(["--input", array]);
            }
            for array in ["output=y.npy", "hn=h.npy", "cn=c.npy"] {
                command.args(["--output", array]);
            }
            command.env("GATESTREAM_ISA", isa.to_string());
            let out = command.current_dir(case.folder.path()).output().unwrap();
            assert_eq!(out.status.code(), Some(0), "{out:?}");
            let found = ["y.npy", "h.npy", "c.npy"].map(|name| {
                let bytes = std::fs::read(case.path(name)).unwrap();
                std::fs::remove_file(case.path(name)).unwrap();
                bytes
            });
            let expected = expected.get_or_insert_with(|| found.to_vec());
            assert!(found[..] == expected[..], "{isa}, {threads} threads");
        }
    }
}

/// NumPy's default type, and a checkpoint.
#[test]
fn float64_is_rounded_and_said_so() {
    let case = Case::pytorch_lstm();
    let (shape, values) = npy::read_floats(&case.path("input.npy"));
    let doubles: Vec<u8> = values
        .iter()
        .flat_map(|&v| f64::from(v).to_le_bytes())
        .collect();
    std::fs::write(case.path("double.npy"), npy::bytes("<f8", &shape, &doubles)).unwrap();
    let run = |input: &str, output: &str| {
        case.run(&[
            case.model.as_str(),
            &format!("--input=input={input}"),
            &format!("--output=output={output}"),
        ])
    };
    let out = run("double.npy", "rounded.npy");
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let told = "gatestream: double.npy: float64 is rounded to float32\n";
    assert_eq!(text(&out.stderr), told);
    assert!(run("input.npy", "exact.npy").stderr.is_empty());
    let bytes = |name: &str| std::fs::read(case.path(name)).unwrap();
    assert!(bytes("rounded.npy") == bytes("exact.npy"));
}

#[test]
fn unreadable_models() {
    let case = Case::pytorch_lstm();
    let ask = ["--input=input=input.npy", "--output=output=y.npy"];
    let run = |model: &str, more: &[&str]| case.run(&[&[model], &ask[..], more].concat());

    refused(
        &run("absent.safetensors", &[]),
        &["absent.safetensors: No such file"],
    );
    // The bytes tell what a file is, not its ending.
    for name in ["lstm.bin", "lstm.pt"] {
        std::fs::copy(case.path(&case.model), case.path(name)).unwrap();
        let out = run(name, &[]);
        assert_eq!(out.status.code(), Some(0), "{name}: {out:?}");
        std::fs::remove_file(case.path("y.npy")).unwrap();
    }
    std::fs::write(case.path("noise.bin"), [7; 64]).unwrap();
    for more in [&[][..], &["--cell", "lstm"]] {
        refused(&run("noise.bin", more), &["noise.bin: "]);
    }
    refused(
        &run("absent.safetensors", &["--cell", "lstm"]),
        &["absent.safetensors: No such file"],
    );

    let whole = std::fs::read(case.path(&case.model)).unwrap();
    std::fs::write(case.path("cut.safetensors"), &whole[..whole.len() - 1]).unwrap();
    for more in [&[][..], &["--cell", "lstm"]] {
        refused(
            &run("cut.safetensors", more),
            &["cut.safetensors: ", "bytes of data, but"],
        );
    }
    let whole = std::fs::read(fixture("onnx/lstm_states.script.onnx")).unwrap();
    std::fs::write(case.path("cut.onnx"), &whole[..whole.len() / 2]).unwrap();
    refused(
        &run("cut.onnx", &[]),
        &["cut.onnx: ", "not a readable ONNX file"],
    );
    std::fs::write(case.path("WHOLE.ONNX"), &whole).unwrap();
    refused_with(
        2,
        &run("WHOLE.ONNX", &["--cell", "lstm"]),
        &["--cell", "for files of tensors"],
    );

    let shapes = ["weight_ih_l0", "4 (lstm), 3 (gru), 2 (light_gru)"];
    let odd = TensorView::new(Dtype::F32, vec![5, 2], &[0; 40]).unwrap();
    let file = serialize([("weight_ih_l0", &odd), ("weight_hh_l0", &odd)], None).unwrap();
    std::fs::write(case.path("odd.safetensors"), file).unwrap();
    refused(
        &run("odd.safetensors", &[]),
        &[&["odd.safetensors: "], &shapes[..]].concat(),
    );
    refused(
        &run(&case.model, &["--cell", "gru"]),
        &["weight_ih_l0", "the options require gru"],
    );
}

#[test]
fn mismatched_arrays() {
    let case = Case::pytorch_lstm();
    let to = "--output=output=y.npy";
    let given = "--input=input=input.npy";
    let write = |name: &str, bytes: &[u8]| std::fs::write(case.path(name), bytes).unwrap();
    let (shape, _) = npy::read_floats(&case.path("input.npy"));
    let [steps, batch, features] = shape[..] else {
        panic!("{shape:?}");
    };

    case.refuses(
        &["--input=x=input.npy", to],
        &["\"x\" is not an input", "input, lengths, h0, c0"],
    );
    case.refuses(
        &[given, "--output=y=y.npy"],
        &["\"y\" is not an output", "output, hn, cn"],
    );
    case.refuses(
        &["--input=h0=h0.npy", to],
        &["\"input\" is missing", "[steps, batch, features="],
    );
    case.refuses(&[given, given, to], &["\"input\" is given twice"]);
    case.refuses(&["--input=input=no.npy", to], &["no.npy: No such file"]);
    case.refuses(
        &[given, to, "--output=hn=y.npy"],
        &["y.npy", "\"output\" and \"hn\""],
    );
    case.refuses(
        &[given, to, "--output=hn=./y.npy"],
        &["y.npy", "\"output\" and \"hn\""],
    );

    write("flat.npy", &npy::floats(&[4], &[0.0; 4]));
    let axes = format!("features={features}]");
    case.refuses(
        &["--input=input=flat.npy", to],
        &["\"input\" has shape [4]", &axes],
    );
    write(
        "wide.npy",
        &npy::floats(&[1, 1, features + 1], &vec![0.0; features + 1]),
    );
    case.refuses(
        &["--input=input=wide.npy", to],
        &["\"input\" has shape [1, 1, ", &axes],
    );
    case.refuses(
        &[given, "--input=h0=wide.npy", to],
        &["\"h0\" has shape", "layers*directions=6"],
    );

    write(
        "half.npy",
        &npy::bytes("<f2", &[1, 1, features], &vec![0; 2 * features]),
    );
    case.refuses(
        &["--input=input=half.npy", to],
        &["half.npy: holds", "must be float32 (.astype('float32'))"],
    );
    // A value that float32 has not.
    let large = [1e300f64.to_le_bytes(), 0f64.to_le_bytes()].concat();
    write("large.npy", &npy::bytes("<f8", &[1, 1, 2], &large));
    case.refuses(
        &["--input=input=large.npy", to],
        &["large.npy: holds 1", "no float32"],
    );
    write(
        "whole.npy",
        &npy::bytes("<i4", &[1, 1, features], &vec![0; 4 * features]),
    );
    case.refuses(
        &["--input=input=whole.npy", to],
        &["\"input\" must hold floats"],
    );
    write("cut.npy", &npy::floats(&[99, 99, features], &[0.0]));
    case.refuses(
        &["--input=input=cut.npy", to],
        &["cut.npy: ", "fewer elements than its shape"],
    );
    write("text.npy", b"1.0 2.0\n");
    case.refuses(
        &["--input=input=text.npy", to],
        &["text.npy: not a readable .npy file"],
    );
    write("void.npy", &npy::floats(&[0, 1 << 40, features], &[]));
    case.refuses(&["--input=input=void.npy", to], &["void.npy: ", "is empty"]);

    let lengths = |values: &[i64]| {
        let elements: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        write(
            "lengths.npy",
            &npy::bytes("<i8", &[values.len()], &elements),
        );
    };
    let with_lengths = [given, "--input=lengths=lengths.npy", to];
    let mut all = vec![steps as i64; batch];
    all[batch - 1] += 1;
    lengths(&all);
    let long = format!("has {} steps but the input has {steps}", steps + 1);
    case.refuses(
        &with_lengths,
        &[&format!("lengths: sequence {}", batch - 1), &long],
    );
    all[batch - 1] = -1;
    lengths(&all);
    case.refuses(&with_lengths, &["\"lengths\": sequence", "has length -1"]);
    lengths(&all[..1]);
    case.refuses(
        &with_lengths,
        &["\"lengths\" has shape [1]", &format!("[batch={batch}]")],
    );
    case.refuses(&[given, "--input=lengths=flat.npy", to], &["\"lengths\""]);
}

#[test]
fn inputs_are_not_overwritten() {
    let case = Case::pytorch_lstm();
    let (given, model) = ("--input=input=input.npy", case.path("lstm.safetensors"));
    let before = std::fs::read(&model).unwrap();
    case.refuses(
        &[given, "--output=output=lstm.safetensors"],
        &["lstm.safetensors: is the model itself"],
    );
    assert_eq!(std::fs::read(&model).unwrap(), before);
    let dot = [
        "explain",
        "lstm.safetensors",
        "--no-measure",
        "--dot=./lstm.safetensors",
    ];
    refused(&run_in(case.folder.path(), &dot), &["is the model itself"]);
    assert_eq!(std::fs::read(&model).unwrap(), before);
    // A state may take the place of the one before.
    let out = case.run(&[
        "lstm.safetensors",
        given,
        "--input=h0=h0.npy",
        "--output=hn=h0.npy",
    ]);
    assert!(out.status.success(), "{out:?}");
}

/// A pipe stays a pipe, and a link a link.
#[cfg(unix)]
#[test]
fn outputs_to_special_files() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let case = Case::pytorch_lstm();
    let made = Command::new("mkfifo").arg(case.path("pipe")).status();
    assert!(made.unwrap().success());
    std::fs::write(case.path("led_to.npy"), "before").unwrap();
    symlink("led_to.npy", case.path("link.npy")).unwrap();
    let pipe = case.path("pipe");
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    let outputs = ["output=pipe", "hn=link.npy", "cn=/dev/null"].map(|o| format!("--output={o}"));
    let mut arguments = vec!["lstm.safetensors", "--input=input=input.npy"];
    arguments.extend(outputs.iter().map(String::as_str));
    let out = case.run(&arguments);
    assert!(out.status.success(), "{out:?}");
    let plain = ["--output=output=y.npy", "--output=hn=h.npy"];
    assert!(
        case.run(&[&arguments[..2], &plain[..]].concat())
            .status
            .success()
    );
    assert_eq!(
        reader.join().unwrap(),
        std::fs::read(case.path("y.npy")).unwrap()
    );
    let read = |name: &str| std::fs::read(case.path(name)).unwrap();
    assert_eq!(read("led_to.npy"), read("h.npy"));
    assert!(case.path("link.npy").is_symlink());
    let kind = |path: &Path| std::fs::metadata(path).unwrap().file_type();
    assert!(kind(&case.path("pipe")).is_fifo());
    assert!(kind(Path::new("/dev/null")).is_char_device());
}

#[test]
fn unwritable_outputs() {
    let case = Case::pytorch_lstm();
    let given = "--input=input=input.npy";
    case.refuses(
        &[given, "--output=output=no/y.npy"],
        &["no/y.npy: --output must name a file in an existing directory"],
    );
    std::fs::create_dir(case.path("folder.npy")).unwrap();
    case.refuses(&[given, "--output=output=folder.npy"], &["folder.npy: "]);
    // The one that could be written is not left behind alone.
    for second in ["--output=hn=no/h.npy", "--output=hn=folder.npy"] {
        case.refuses(&[given, "--output=output=y.npy", second], &[".npy: "]);
    }
}

#[test]
fn usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "run",
        "run m.onnx --input x=x.npy",
        "run m.onnx --output y=y.npy",
        "run m.onnx --input x --output y=y.npy",
        "run m.onnx --input x=x.npy --output y=y.npy --threads 0",
        "run m.onnx --input x=x.npy --output y=y.npy --cell tree",
        "bench --cell lstm --input 0 --hidden 4",
        "bench --cell lstm --input 4 --hidden 4 --precision f64",
        "bench --cell lstm --input 4 --hidden 4 --seconds 0",
        "bench --suite table1 --cell gru",
        "bench",
        "bench --suite table1 --layers 2",
        "bench --cell lstm --input 4 --hidden 4 --batch-first",
        "bench --cell lstm --input 4 --hidden 4 --clip-output",
        "bench --cell lstm --input 4",
    ] {
        let arguments: Vec<_> = line.split(' ').collect();
        let out = run_in(folder.path(), &arguments);
        assert_eq!(out.status.code(), Some(2), "{line}: {out:?}");
        assert!(!out.stderr.is_empty() && out.stdout.is_empty(), "{line}");
    }
}

const SMALL: [&str; 15] = [
    "bench",
    "--cell",
    "lstm",
    "--input",
    "16",
    "--hidden",
    "16",
    "--batch",
    "1",
    "--steps",
    "5",
    "--threads",
    "2",
    "--seconds",
    "0.05",
];

#[test]
fn bench_fields() {
    let folder = tempfile::tempdir().unwrap();
    let out = run_in(folder.path(), &[&SMALL[..], &["--json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = text(&out.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    let row: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, value) in [
        ("input", 16),
        ("hidden", 16),
        ("layers", 1),
        ("batch", 1),
        ("steps", 5),
    ] {
        assert_eq!(row[field], value, "{field} in {text}");
    }
    for (field, value) in [("cell", "lstm"), ("precision", "f32"), ("plan", "estimate")] {
        assert_eq!(row[field], value, "{field} in {text}");
    }
    assert_eq!(row["bidirectional"], false);
    assert!([1, 2].contains(&row["threads"].as_u64().unwrap()), "{text}");
    assert!(row["runs"].as_u64().unwrap() > 0, "{text}");
    let levels = ["compute", "l1", "l2", "l3", "memory"];
    assert!(
        levels.contains(&row["bound_by"].as_str().unwrap()),
        "{text}"
    );
    let number = |field: &str| {
        row[field]
            .as_f64()
            .unwrap_or_else(|| panic!("{field} in {text}"))
    };
    for field in [
        "median_ms",
        "p99_ms",
        "gflops",
        "bound_ms",
        "fraction_of_bound",
    ] {
        assert!(
            number(field) > 0.0 && number(field).is_finite(),
            "{field} in {text}"
        );
    }
    assert!(number("p99_ms") >= number("median_ms"), "{text}");
    // How the figures follow from each other: one product of 4 x 16 outputs over 32 inputs a step.
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.2;
    let flops = 5.0 * 2.0 * (4.0 * 16.0) * 32.0;
    assert!(
        close(number("gflops"), flops / number("median_ms") / 1e6),
        "{text}"
    );
    let fraction = number("bound_ms") / number("median_ms");
    assert!(close(number("fraction_of_bound"), fraction), "{text}");
}

/// Lines of a table of activities: name and share of the time in percent. Names may have two words.
fn shares(table: &str) -> Vec<(String, f64)> {
    let lines = table.lines().filter_map(|line| {
        let name = line.get(..16)?.trim().to_string();
        let share = line.get(16..)?.split('%').next()?.split_whitespace();
        Some((name, share.last()?.parse().ok()?))
    });
    lines.collect()
}

fn sum_to_the_whole(shares: &[(String, f64)]) {
    let activities = shares.iter().filter(|(name, _)| !name.starts_with("layer"));
    let sum: f64 = activities.map(|(_, share)| share).sum();
    // Each is rounded to a tenth.
    assert!((sum - 100.0).abs() < 1.0, "{shares:?}");
}

fn names(shares: &[(String, f64)]) -> Vec<&str> {
    shares.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn traced_run() {
    let case = Case::pytorch_lstm();
    let run = |trace: &str| {
        let mut command = program(["run", &case.model, "--input=input=input.npy"]);
        command.args(["--output=output=y.npy", "--threads=1"]);
        command.current_dir(case.folder.path());
        command.env("GATESTREAM_TRACE", trace).output().unwrap()
    };
    let out = run("yes");
    refused(&out, &["GATESTREAM_TRACE", "\"yes\"", "set it to 1"]);
    assert!(!case.path("y.npy").exists());
    let mut written = Vec::new();
    for off in ["", "0"] {
        let out = run(off);
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        assert!(out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
        written.push(std::fs::read(case.path("y.npy")).unwrap());
    }
    let out = run("1");
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(out.stdout.is_empty(), "{out:?}");
    written.push(std::fs::read(case.path("y.npy")).unwrap());
    assert!(written.iter().all(|w| *w == written[0]));
    let table = std::str::from_utf8(&out.stderr).unwrap();
    assert!(table.contains("\nactivity  "), "{table}");
    let shares = shares(table);
    // Three layers of one worker, without barriers.
    let (activities, layers) = (names(&shares), ["layer 0", "layer 1", "layer 2"]);
    for activity in ["products", "gates", "states", "other"]
        .iter()
        .chain(&layers)
    {
        assert!(
            activities.contains(activity),
            "{activity} in {activities:?}"
        );
    }
    assert!(!activities.contains(&"meeting"), "{activities:?}");
    sum_to_the_whole(&shares);
}

#[test]
fn bench_profile() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |more: &[&str]| {
        let out = run_in(folder.path(), &[&SMALL[..], more].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        text(&out.stdout)
    };
    let text = bench(&["--profile"]);
    let table = text.split_once("of time").unwrap().1;
    let (table, _) = table.split_once("products take").unwrap();
    let shares = shares(table);
    for activity in ["products", "gates", "other"] {
        assert!(names(&shares).contains(&activity), "{activity} in {text}");
    }
    sum_to_the_whole(&shares);
    assert!(text.contains("at the peak of arithmetic"), "{text}");

    let text = bench(&["--profile", "--json"]);
    assert_eq!(text.lines().count(), 1, "{text}");
    let row: serde_json::Value = serde_json::from_str(&text).unwrap();
    let profile = &row["profile"];
    let wall = profile["wall_ms"].as_f64().unwrap();
    let workers = profile["workers_ms"].as_array().unwrap();
    assert_eq!(workers.len() as u64, row["threads"].as_u64().unwrap());
    for worker in workers {
        let times = worker.as_object().unwrap().values();
        let times: Vec<f64> = times.map(|time| time.as_f64().unwrap()).collect();
        assert!(times.iter().all(|&time| time >= 0.0), "{text}");
        assert!(
            (times.iter().sum::<f64>() / wall - 1.0).abs() < 1e-6,
            "{text}"
        );
    }
    for (activity, calls) in [("products", 5), ("gates", 5), ("summing", 0)] {
        assert_eq!(profile["calls"][activity], calls, "{text}");
    }
    assert!(profile["runs"].as_u64().unwrap() > 0, "{text}");
    assert!(
        profile["products_at_peak_ms"].as_f64().unwrap() > 0.0,
        "{text}"
    );

    let row: serde_json::Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    assert!(row.get("profile").is_none());
}

#[test]
fn bench_beyond_memory() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |text: &str| {
        let arguments: Vec<&str> = text.split(' ').collect();
        run_in(folder.path(), &arguments)
    };
    refused(
        &bench("bench --cell lstm --input 1048576 --hidden 65536"),
        &["weights need 2176.0 GiB", "--input, --hidden, --layers"],
    );
    refused(
        &bench("bench --cell rnn --input 1 --hidden 65536 --layers 1024 --bidirectional"),
        &["weights need ", "--layers"],
    );
    refused(
        &bench("bench --cell gru --input 16 --hidden 16 --batch 65536 --steps 1048576"),
        &["need 8192.0 GiB", "--batch and --steps"],
    );
}

#[test]
fn output_beyond_memory() {
    let case = Case::pytorch_lstm();
    // One input feature and many outputs: a small array asks for terabytes.
    let tall = |rows: usize| vec![0; rows * 4];
    let (size, states) = (4096, vec![0; 4096 * 4096 * 4]);
    let input = tall(size);
    let tensors = [
        ("weight_ih_l0", vec![size, 1], &input),
        ("weight_hh_l0", vec![size, size], &states),
    ]
    .map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape, data).unwrap()));
    std::fs::write(
        case.path("tall.safetensors"),
        serialize(tensors, None).unwrap(),
    )
    .unwrap();
    // Written as a hole: 256 MiB of zeros on no disk.
    let steps = 1 << 26;
    std::fs::write(
        case.path("long.npy"),
        npy::bytes("<f4", &[steps, 1, 1], &[]),
    )
    .unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(case.path("long.npy"));
    let file = file.unwrap();
    file.set_len(file.metadata().unwrap().len() + 4 * steps as u64)
        .unwrap();
    let ask = ["--input=input=long.npy", "--output=output=y.npy"];
    refused(
        &case.run(&[&["tall.safetensors"], &ask[..]].concat()),
        &["need 1024.3 GiB", "--input input"],
    );
}

#[test]
fn bench_of_a_file() {
    let case = Case::pytorch_lstm();
    let bench = |more: &[&str]| {
        let fixed = [
            "bench",
            &case.model,
            "--steps",
            "4",
            "--seconds",
            "0.01",
            "--json",
        ];
        run_in(case.folder.path(), &[&fixed, more].concat())
    };
    let out = bench(&[]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&row["layers"], &row["bidirectional"]),
        (&3.into(), &true.into())
    );
    for contradiction in [["--hidden", "4"], ["--layers", "2"]] {
        let out = bench(&contradiction);
        assert_eq!(out.status.code(), Some(2), "{out:?}");
        let text = text(&out.stderr);
        assert!(text.contains("a model file has its own"), "{text}");
    }
}

#[test]
fn invalid_instruction_set() {
    let case = Case::pytorch_lstm();
    let arguments = [
        "run",
        &case.model,
        "--input=input=input.npy",
        "--output=output=y.npy",
    ];
    let absent = Isa::ALL
        .into_iter()
        .find(|isa| !isa.is_available())
        .unwrap();
    for command in [&arguments[..], &SMALL] {
        let with = |isa: &str| {
            let mut command = program(command);
            command.current_dir(case.folder.path());
            command.env("GATESTREAM_ISA", isa).output().unwrap()
        };
        refused(
            &with("nonsense"),
            &[
                "GATESTREAM_ISA=\"nonsense\"",
                "use avx512, avx2, neon or portable",
            ],
        );
        refused(
            &with(&absent.to_string()),
            &[&format!("this CPU has no {absent}; it has "), "portable"],
        );
    }
}
