//! Trees and whole graphs over the wire, and configurations that do not fit.

mod common;

use std::path::Path;

use common::{Running, output};
use gatestream::layers::Embedding;
use gatestream::model::Matrix;
use gatestream_network::{Network, Tensor};
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::networks::{
    ChildSumTreeLstm, ChildSumWeights, Dependencies, Outputs, run_unbatched,
};
use serde_json::json;

const WORDS: usize = 6;
const FEATURES: usize = 3;
const HIDDEN: usize = 4;

/// A safetensors file of these matrices; a bias has one row.
fn write(path: &Path, tensors: &[(&str, &Matrix)]) {
    let mut data = Vec::new();
    let mut header = serde_json::Map::new();
    for (name, matrix) in tensors {
        let from = data.len();
        data.extend(matrix.data().iter().flat_map(|value| value.to_le_bytes()));
        let shape = if name.ends_with("bias") {
            vec![matrix.cols()]
        } else {
            vec![matrix.rows(), matrix.cols()]
        };
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], header.as_bytes(), &data].concat()).expect("written");
}

#[test]
fn a_tree_has_the_states_of_the_plain_loops() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random = |rows: usize, cols: usize| {
        let values = (0..rows * cols).map(|_| rng.f32() - 0.5).collect();
        Matrix::new(rows, cols, values).expect("a matrix")
    };
    let words = random(WORDS, FEATURES);
    let [ioux, iouh] = [FEATURES, HIDDEN].map(|cols| random(3 * HIDDEN, cols));
    let [fx, fh] = [FEATURES, HIDDEN].map(|cols| random(HIDDEN, cols));
    let [ioux_bias, iouh_bias] = [(); 2].map(|()| random(1, 3 * HIDDEN));
    let [fx_bias, fh_bias] = [(); 2].map(|()| random(1, HIDDEN));
    let running = Running::with(&common::options(), |folder| {
        let folder = folder.join("tree");
        std::fs::create_dir_all(folder.join("1")).expect("a folder");
        let config = "[tree]\nprefix = \"cell.\"\nembedding = \"words.weight\"\n";
        std::fs::write(folder.join("config.toml"), config).expect("written");
        let tensors = [
            ("words.weight", &words),
            ("cell.ioux.weight", &ioux),
            ("cell.ioux.bias", &ioux_bias),
            ("cell.iouh.weight", &iouh),
            ("cell.iouh.bias", &iouh_bias),
            ("cell.fx.weight", &fx),
            ("cell.fx.bias", &fx_bias),
            ("cell.fh.weight", &fh),
            ("cell.fh.bias", &fh_bias),
        ];
        write(&folder.join("1").join("model.safetensors"), &tensors);
    });
    let sum = |a: &Matrix, b: &Matrix| {
        let (a, b) = (a.data(), b.data());
        a.iter().zip(b.iter()).map(|(a, b)| a + b).collect()
    };
    let weights = ChildSumWeights {
        input: ioux.clone(),
        sum: iouh.clone(),
        bias: sum(&ioux_bias, &iouh_bias),
        forget_input: fx.clone(),
        forget_state: fh.clone(),
        forget_bias: sum(&fx_bias, &fh_bias),
    };
    let mut cells = Cells::new();
    let network = ChildSumTreeLstm::add(&mut cells, weights).expect("a network");
    let (heads, tokens) = ([2usize, 5, 2, 5, 0], [0usize, 5, 3, 3, 1]);
    let mut features = vec![0.0; tokens.len() * FEATURES];
    Embedding::new(words.clone())
        .run(&tokens, &mut features)
        .expect("known words");
    let tree = Dependencies::new(&heads).expect("a tree");
    let graph = network
        .unfold(&tree, &features, Outputs::Each)
        .expect("a graph");
    let expected = run_unbatched(&cells, graph, None).expect("an answer");
    let ask = |heads: &[usize], tokens: &[usize], outputs: &[&str]| {
        let input = |name: &str, values: &[usize]| {
            let shape = [values.len()];
            json!({ "name": name, "datatype": "INT64", "shape": shape, "data": values })
        };
        let outputs: Vec<_> = outputs.iter().map(|name| json!({ "name": name })).collect();
        let inputs = [input("tokens", tokens), input("heads", heads)];
        running.infer("tree", &json!({ "inputs": inputs, "outputs": outputs }))
    };
    let both = ask(&heads, &tokens, &["root", "output"]);
    assert_eq!(output(&both, "output"), expected);
    assert_eq!(output(&both, "root"), expected[4 * HIDDEN..]);
    assert_eq!(
        output(&ask(&heads, &tokens, &["root"]), "root"),
        expected[4 * HIDDEN..]
    );
    for (heads, tokens) in [
        (&[1usize][..], &[0usize][..]),
        (&[2, 1], &[0, 0]),
        (&[0, 0], &[0, 0]),
        (&[0], &[WORDS]),
        (&[0], &[0, 0]),
        (&[], &[]),
    ] {
        let answer = ask(heads, tokens, &[]);
        assert_eq!(answer.status, 400, "{heads:?} {tokens:?}: {answer:?}");
    }
    // Refused before rows of the embedding are copied: they would be told first.
    let answer = ask(&[0], &[WORDS; 2], &[]);
    assert_eq!(
        answer.error(),
        "\"tokens\" has 2 elements and \"heads\" 1; give one head for each token"
    );
}

#[test]
fn a_whole_graph_has_the_outputs_of_the_library() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../network/tests/cases");
    let names = [
        "05_manual_bidirectional_t_dense_behind_dynamo",
        "02_keras_exports_LSTM_last",
    ];
    let running = Running::with(&common::options(), |folder| {
        for name in names {
            let folder = folder.join(name).join("1");
            std::fs::create_dir_all(&folder).expect("a folder");
            let file = cases.join(format!("{name}.onnx"));
            std::fs::copy(file, folder.join("model.onnx")).expect("copied");
        }
    });
    for name in names {
        let network = Network::open(cases.join(format!("{name}.onnx"))).expect("a network");
        let [port] = network.inputs() else {
            panic!("{name} has one input");
        };
        let axes = port.shape.as_ref().expect("axes").iter();
        let shape: Vec<usize> = axes.map(|axis| axis.unwrap_or(2)).collect();
        let mut rng = fastrand::Rng::with_seed(2);
        let values = |_| rng.f32() - 0.5;
        let values: Vec<f32> = (0..shape.iter().product()).map(values).collect();
        let tensor = Tensor::new(&shape, values.clone()).expect("fits");
        let expected = network.run(&[(&port.name, &tensor)]).expect("an answer");
        let metadata = running.get(&format!("/v2/models/{name}")).json;
        assert_eq!(metadata["inputs"][0]["name"], port.name.as_str());
        let input = |shape: &[usize]| {
            json!({ "inputs": [{
                "name": port.name, "datatype": "FP32", "shape": shape, "data": values,
            }]})
        };
        let answer = running.infer(name, &input(&shape));
        for output in expected {
            let found = common::output(&answer, &output.name);
            assert_eq!(Some(&found[..]), output.tensor.floats(), "{name}");
        }
        let wrong = running.infer(name, &input(&[values.len()]));
        assert_eq!(wrong.status, 400, "{wrong:?}");
        let sequence = json!({ "sequence_id": 1, "sequence_start": true });
        let mut part = input(&shape);
        part["parameters"] = sequence;
        assert_eq!(running.infer(name, &part).status, 400);
    }
}

#[test]
fn a_configuration_of_another_kind_is_refused_by_name() {
    let cases = [
        ("plan", "kind = \"tree\"\nplan = \"p\"\n[tree]\n"),
        (
            "precision",
            "kind = \"tree\"\nprecision = \"bf16\"\n[tree]\n",
        ),
        ("tree", "kind = \"stack\"\n[tree]\n"),
        (
            "sequences",
            "kind = \"tree\"\n[tree]\n[sequences]\nonly = true\n",
        ),
        ("beside", "plan = \"../other.plan\"\n"),
        ("[seq2seq]", "kind = \"seq2seq\"\n"),
        ("in reverse", "[sequences]\nonly = true\n"),
        ("in reverse", "[limits]\nsequences = 3\n"),
        ("plan_bytes", "plan_bytes = 1\n"),
        (
            "limits.sequences",
            "kind = \"tree\"\n[tree]\n[limits]\nsequences = 3\n",
        ),
        // Also with the values that they have without an entry.
        ("weight", "kind = \"graph\"\nweight = 1\n"),
        ("max_batch", "kind = \"graph\"\nmax_batch = 64\n"),
        ("max_steps", "kind = \"graph\"\nmax_steps = 10\n"),
        ("policy", "kind = \"graph\"\npolicy = \"cellular\"\n"),
        (
            "limits.sequences",
            "kind = \"graph\"\n[limits]\nsequences = 3\n",
        ),
        (
            "sequences.only",
            "kind = \"graph\"\n[sequences]\nonly = false\n",
        ),
        (
            "safetensors.prefix",
            "kind = \"graph\"\n[safetensors]\nprefix = \"a\"\n",
        ),
        ("tree", "kind = \"graph\"\n[tree]\n"),
    ];
    let running = Running::with(&common::options(), |folder| {
        for (index, (_, config)) in cases.iter().enumerate() {
            let name = format!("case{index:02}");
            common::save(folder, &name, 1, &common::bidirectional());
            common::configure(folder, &name, config);
        }
    });
    let failures = running.server.failures();
    assert_eq!(failures.len(), cases.len(), "{failures:?}");
    for ((named, _), failure) in cases.iter().zip(failures) {
        assert!(failure.why.contains(named), "{named}: {failure:?}");
    }
}

/// A checkpoint of PyTorch in a repository, and one file with a prefix.
#[test]
fn checkpoints_of_pytorch_are_served() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/checkpoints");
    let expected = std::fs::read_to_string(fixtures.join("expected.json")).expect("a file");
    let expected: serde_json::Value = serde_json::from_str(&expected).expect("JSON");
    // [steps, batch, features] of the file as [batch, steps, features] of the server.
    let (steps, batch) = (5, 2);
    let exchanged = |values: &serde_json::Value, rows: usize, columns: usize| -> Vec<f64> {
        let values = values.as_array().expect("values");
        let width = values.len() / (rows * columns);
        let places =
            (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
        let values = places.flat_map(|place| &values[place * width..(place + 1) * width]);
        values
            .map(|value| value.as_f64().expect("a number"))
            .collect()
    };
    let x = exchanged(&expected["x"], steps, batch);
    let body = json!({"inputs": [{"name": "input", "datatype": "FP32", "shape": [batch, steps, 3],
        "data": x}]});
    let check = |running: &Running, name: &str| {
        let answer = running.post(&format!("/v2/models/{name}/infer"), &body);
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let found = output(&answer, "output");
        let of_file = &expected["cases"]["module"]["output"];
        for (found, expected) in found.iter().zip(exchanged(of_file, steps, batch)) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-6,
                "{name}: {found}, {expected}"
            );
        }
    };
    let running = Running::with(&common::options(), |folder| {
        for (model, from, name) in [
            ("state", "module.pt", "model.pt"),
            ("checkpoint", "legacy.pt", "model.ckpt"),
            ("part", "training.pt", "model.pth"),
            ("arrays", "numpy.pkl", "model.bin"),
        ] {
            let folder = folder.join(model).join("1");
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::copy(fixtures.join(from), folder.join(name)).expect("copied");
        }
        let prefix = "[safetensors]\nprefix = \"state_dict.encoder.\"\n";
        common::configure(folder, "part", prefix);
        let set = folder.join("set").join("1");
        std::fs::create_dir_all(&set).expect("a folder");
        for file in std::fs::read_dir(fixtures.join("set")).expect("a folder") {
            let file = file.expect("a file");
            std::fs::copy(file.path(), set.join(file.file_name())).expect("copied");
        }
    });
    for name in ["state", "checkpoint", "part", "arrays", "set"] {
        check(&running, name);
    }
    drop(running);

    let options = gatestream_server::ServerOptions {
        prefix: Some("state_dict.encoder".into()),
        ..common::options()
    };
    let server = |path: &Path| gatestream_server::Server::start(path, &options);
    let started = server(&fixtures.join("training.pt")).expect("starts");
    assert_eq!(started.models().len(), 1, "{:?}", started.failures());
    let graph =
        fixtures.join("../../../crates/network/tests/cases/02_keras_exports_LSTM_last.onnx");
    let failures = server(&graph).expect("starts").failures();
    assert!(
        failures[0].why.contains("--prefix has no effect"),
        "{failures:?}"
    );
    let refused = server(&fixtures).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("prefix") && refused.contains("config.toml"),
        "{refused}"
    );
}

#[test]
fn a_file_that_is_no_model_tells_the_way_to_one_without_its_path() {
    let running = Running::with(&common::options(), |folder| {
        let folder = folder.join("pointer").join("1");
        std::fs::create_dir_all(&folder).expect("a folder");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n";
        std::fs::write(folder.join("model.onnx"), pointer).expect("written");
    });
    let failure = &running.server.failures()[0];
    assert!(failure.why.contains("git lfs pull"), "{failure:?}");
    let folder = running.folder.path().display().to_string();
    assert!(!failure.why.contains(&folder), "{failure:?}");
}
