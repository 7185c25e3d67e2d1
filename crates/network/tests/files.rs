//! Files that contradict themselves, or want more than a model should get: typed errors.

#[path = "common/graphs.rs"]
mod graphs;

use std::path::Path;

use gatestream_network::{Network, NetworkError, NetworkOptions, Tensor};
use graphs::{constant, model, node, value};
use prost::Message;
use tract_onnx::pb::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto,
    TensorProto,
};

/// `y = x + w`, with these opsets.
fn sum(w: TensorProto, opsets: &[i64]) -> ModelProto {
    let graph = GraphProto {
        node: vec![node("Add", &["x", "w"], "y")],
        initializer: vec![w],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    model(graph, opsets)
}

fn weights() -> TensorProto {
    constant("w", &[2], &[1.0, 2.0])
}

fn open(model: &ModelProto) -> Result<Network, NetworkError> {
    Network::from_bytes(&model.encode_to_vec(), NetworkOptions::default())
}

fn run(network: &Network) -> Result<Vec<f32>, NetworkError> {
    let x = Tensor::new(&[2], vec![10.0f32, 20.0])?;
    let outputs = network.run(&[("x", &x)])?;
    Ok(outputs[0].tensor.floats().unwrap().to_vec())
}

#[test]
fn two_equal_opsets_are_one() {
    for opsets in [&[17][..], &[17, 17], &[7], &[26]] {
        let network = open(&sum(weights(), opsets)).unwrap();
        assert_eq!(run(&network).unwrap(), [11.0, 22.0]);
    }
    for opsets in [&[][..], &[17, 18]] {
        let refused = open(&sum(weights(), opsets)).err().unwrap();
        assert!(matches!(refused, NetworkError::Malformed(_)), "{refused}");
    }
    for opset in [6, 27] {
        let refused = open(&sum(weights(), &[opset])).err().unwrap();
        assert!(matches!(refused, NetworkError::Opset { found, .. } if found == opset));
    }
}

/// Weights of 8 bytes in a file of this name, from this byte.
fn external(location: &str, offset: &str, length: &str) -> TensorProto {
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: key.into(),
        value: value.into(),
    };
    TensorProto {
        float_data: Vec::new(),
        data_location: Some(1),
        external_data: vec![
            entry("location", location),
            entry("offset", offset),
            entry("length", length),
        ],
        ..weights()
    }
}

fn refused(folder: &Path, location: &str, offset: &str, length: &str) -> String {
    let path = folder.join("model.onnx");
    let model = sum(external(location, offset, length), &[17]);
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    match Network::open(&path) {
        Err(NetworkError::ExternalData { tensor, why }) => {
            assert_eq!(tensor, "w");
            why
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{location} is accepted"),
    }
}

#[test]
fn external_data_stays_in_the_folder_of_the_model() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    let bytes: Vec<u8> = [1.0f32, 2.0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    std::fs::write(folder.join("w"), &bytes).unwrap();
    std::fs::write(outside.path().join("secret"), &bytes).unwrap();
    let secret = outside.path().join("secret");
    for location in ["../secret", "a/../../secret", secret.to_str().unwrap()] {
        assert!(
            refused(&folder, location, "0", "8").contains("outside"),
            "{location}"
        );
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&secret, folder.join("link")).unwrap();
        assert!(refused(&folder, "link", "0", "8").contains("links to a file outside"));
    }
    for (offset, length) in [
        ("1", "8"),
        ("0", "9"),
        ("18446744073709551615", "8"),
        ("9", "0"),
    ] {
        assert!(refused(&folder, "w", offset, length).contains("which has 8 bytes"));
    }
    assert!(refused(&folder, "w", "-1", "8").contains("no number"));
    assert!(refused(&folder, "none", "0", "8").contains("none"));

    let path = folder.join("model.onnx");
    std::fs::write(&path, sum(external("./w", "0", "8"), &[17]).encode_to_vec()).unwrap();
    assert_eq!(run(&Network::open(&path).unwrap()).unwrap(), [11.0, 22.0]);
    let bytes = std::fs::read(&path).unwrap();
    let refused = Network::from_bytes(&bytes, NetworkOptions::default())
        .err()
        .unwrap();
    assert!(matches!(refused, NetworkError::ExternalData { .. }));
}

/// A model whose only constant is in another file, and large enough that all plans share it.
fn of_large(location: &str, offset: usize, length: usize) -> Vec<u8> {
    let w = TensorProto {
        dims: vec![LARGE as i64],
        ..external(location, &offset.to_string(), &length.to_string())
    };
    sum(w, &[17]).encode_to_vec()
}

const LARGE: usize = 1000;

#[test]
fn large_external_data_has_the_values_of_the_file_when_it_was_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (path, data) = (folder.path().join("model.onnx"), folder.path().join("w"));
    let values: Vec<f32> = (0..LARGE).map(|index| index as f32 * 0.37).collect();
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let padded = [&[7; 12][..], &bytes].concat();
    std::fs::write(&data, &padded).unwrap();
    let x = Tensor::new(&[LARGE], vec![0.25f32; LARGE]).unwrap();
    let run = |network: &Network| {
        let outputs = network.run(&[("x", &x)]).unwrap();
        outputs[0].tensor.floats().unwrap().to_vec()
    };
    let inside = open(&sum(constant("w", &[LARGE], &values), &[17])).unwrap();
    std::fs::write(&path, of_large("w", 12, 4 * LARGE)).unwrap();
    let network = Network::open(&path).unwrap();
    assert_eq!(run(&network), run(&inside));
    // Replaced and cut off beneath the network; a plan for another shape is made afterwards.
    std::fs::write(&data, vec![9; padded.len()]).unwrap();
    assert_eq!(run(&network), run(&inside));
    std::fs::File::create(&data).unwrap();
    let rows = Tensor::new(&[2, LARGE], vec![0.25f32; 2 * LARGE]).unwrap();
    let outputs = network.run(&[("x", &rows)]).unwrap();
    let expected = run(&inside);
    assert_eq!(
        outputs[0].tensor.floats().unwrap(),
        [expected.clone(), expected].concat()
    );
}

#[test]
fn large_external_data_must_be_there_and_have_the_length_of_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(folder.path().join("w"), vec![0; 4 * LARGE]).unwrap();
    for (offset, length, why) in [
        (1, 4 * LARGE, "which has 4000 bytes"),
        (0, 4 * LARGE + 4, "which has 4000 bytes"),
        (usize::MAX, 4 * LARGE, "which has 4000 bytes"),
        (0, 4 * LARGE - 4, "are not a tensor of the shape [1000]"),
    ] {
        std::fs::write(&path, of_large("w", offset, length)).unwrap();
        let refused = Network::open(&path).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(matches!(refused, NetworkError::ExternalData { .. }));
    }
}

/// `y = table[ids] + table[ids]` with a table of 64 MiB in the file `table`; integers of 64 bits.
fn of_table() -> Vec<u8> {
    let table = TensorProto {
        name: "table".into(),
        dims: vec![ROWS as i64, 4],
        ..external("table", "0", &(16 * ROWS).to_string())
    };
    let graph = GraphProto {
        node: vec![
            node("Gather", &["table", "ids"], "rows"),
            node("Gather", &["table", "ids"], "again"),
            node("Add", &["rows", "again"], "y"),
        ],
        initializer: vec![table],
        input: vec![graphs::value_of("ids", 7)],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    graphs::file(graph)
}

const ROWS: usize = 4 << 20;

#[test]
fn rows_of_a_large_table_are_read_from_its_file() {
    use std::io::{Seek, SeekFrom, Write};

    let folder = tempfile::tempdir().unwrap();
    let (path, data) = (
        folder.path().join("model.onnx"),
        folder.path().join("table"),
    );
    std::fs::write(&path, of_table()).unwrap();
    let write = |path: &Path, of_row: &dyn Fn(usize) -> f32| {
        let mut file = std::fs::File::create(path).unwrap();
        for row in [0, 5, ROWS - 1] {
            file.seek(SeekFrom::Start(16 * row as u64)).unwrap();
            (0..4).for_each(|_| file.write_all(&of_row(row).to_le_bytes()).unwrap());
        }
        file
    };
    let file = write(&data, &|row| row as f32 + 0.5);
    let network = Network::open(&path).unwrap();
    let run = |ids: &[i64], shape: &[usize]| {
        let ids = Tensor::new(shape, ids.to_vec()).unwrap();
        let outputs = network.run(&[("ids", &ids)]);
        outputs.map(|outputs| outputs[0].tensor.clone())
    };
    let twice = |ids: &[usize]| {
        let rows = ids.iter().map(|&row| 2.0 * (row as f32 + 0.5));
        rows.flat_map(|value| [value; 4]).collect::<Vec<f32>>()
    };
    let found = run(&[5, -1, 0, 5], &[2, 2]).unwrap();
    assert_eq!(found.shape(), [2, 2, 4]);
    assert_eq!(found.floats().unwrap(), twice(&[5, ROWS - 1, 0, 5]));
    assert_eq!(run(&[1], &[1]).unwrap().floats().unwrap(), [0.0; 4]);
    let too_large = [ROWS as i64, -(ROWS as i64) - 1, 1 << 57, i64::MIN];
    for index in too_large {
        let refused = run(&[index], &[1]).unwrap_err();
        assert!(
            refused.to_string().contains(&index.to_string()),
            "{refused}"
        );
    }
    // Another file takes its place: the network has the one that it opened.
    let other = folder.path().join("other");
    write(&other, &|_| 7.0);
    std::fs::rename(&other, &data).unwrap();
    assert_eq!(run(&[5], &[1]).unwrap().floats().unwrap(), twice(&[5]));
    // It is cut off: the rows that are left are there.
    file.set_len(1000).unwrap();
    assert_eq!(run(&[5], &[1]).unwrap().floats().unwrap(), twice(&[5]));
    let refused = run(&[ROWS as i64 - 1], &[1]).unwrap_err();
    // The file is at fault, not the inputs.
    let is_of_file = matches!(&refused, NetworkError::Read { path, .. } if *path == data);
    assert!(is_of_file, "{refused}");
}

/// `y` of an operator of `x` `[1, SIDE]` and a matrix of 64 MiB in the file `matrix`.
fn of_matrix(operator: NodeProto) -> Vec<u8> {
    let matrix = TensorProto {
        name: "matrix".into(),
        dims: vec![SIDE as i64; 2],
        ..external("matrix", "0", &(4 * SIDE * SIDE).to_string())
    };
    let graph = GraphProto {
        node: vec![operator],
        initializer: vec![matrix],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    graphs::file(graph)
}

const SIDE: usize = 4096;

#[test]
fn a_large_matrix_is_packed_from_its_file() {
    use std::io::{Seek, SeekFrom, Write};

    let folder = tempfile::tempdir().unwrap();
    let (path, data) = (
        folder.path().join("model.onnx"),
        folder.path().join("matrix"),
    );
    // All others are zeros.
    let entries = [
        (0, 0, 2.0_f32),
        (0, 4095, -3.0),
        (17, 1000, 0.5),
        (4094, 511, 7.0),
        (4095, 512, 1.5),
    ];
    let mut file = std::fs::File::create(&data).unwrap();
    file.set_len((4 * SIDE * SIDE) as u64).unwrap();
    for (row, column, value) in entries {
        let at = 4 * (row * SIDE + column) as u64;
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&value.to_le_bytes()).unwrap();
    }
    let x: Vec<f32> = (0..SIDE).map(|at| (at % 13) as f32 + 1.0).collect();
    let input = Tensor::new(&[1, SIDE], x.clone()).unwrap();
    let transposed = AttributeProto {
        name: "transB".into(),
        r#type: 2,
        i: 1,
        ..AttributeProto::default()
    };
    let gemm = NodeProto {
        attribute: vec![transposed],
        ..node("Gemm", &["x", "matrix"], "y")
    };
    for operator in [node("MatMul", &["x", "matrix"], "y"), gemm] {
        let mut expected = vec![0.0; SIDE];
        for (row, column, value) in entries {
            let (from, to) = if operator.op_type == "Gemm" {
                (column, row)
            } else {
                (row, column)
            };
            expected[to] += x[from] * value;
        }
        std::fs::write(&path, of_matrix(operator)).unwrap();
        for threads in [1, 2] {
            let options = NetworkOptions {
                threads: Some(threads),
                ..NetworkOptions::default()
            };
            let network = Network::open_with(&path, options).unwrap();
            let outputs = network.run(&[("x", &input)]).unwrap();
            assert_eq!(outputs[0].tensor.floats().unwrap(), expected);
        }
    }
    let network = Network::open(&path).unwrap();
    file.set_len(1000).unwrap();
    let refused = network.run(&[("x", &input)]).unwrap_err();
    let is_of_file = matches!(&refused, NetworkError::Read { path, .. } if *path == data);
    assert!(is_of_file, "{refused}");
}

#[test]
fn a_reference_to_a_shared_constant_in_a_file_is_refused() {
    let mut w = TensorProto {
        data_location: Some(1),
        ..weights()
    };
    w.external_data.push(StringStringEntryProto {
        key: "gatestream.index".into(),
        value: "0".into(),
    });
    // Also one of a function's body.
    let value = AttributeProto {
        name: "value".into(),
        r#type: 4,
        t: Some(w.clone()),
        ..AttributeProto::default()
    };
    let function = FunctionProto {
        name: Some("Weights".into()),
        domain: Some("my.own".into()),
        output: vec!["w".into()],
        node: vec![NodeProto {
            attribute: vec![value],
            ..node("Constant", &[], "w")
        }],
        ..FunctionProto::default()
    };
    let mut of_function = sum(weights(), &[17]);
    of_function.functions.push(function);
    let graph = of_function.graph.as_mut().unwrap();
    graph.initializer.clear();
    let call = NodeProto {
        domain: "my.own".into(),
        ..node("Weights", &[], "w")
    };
    graph.node.insert(0, call);
    for model in [sum(w, &[17]), of_function] {
        let refused = open(&model).err().unwrap();
        assert!(
            matches!(refused, NetworkError::ExternalData { .. }),
            "{refused}"
        );
    }
}

#[test]
fn the_beginning_of_a_file_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let bytes = std::fs::read(folder.join("45_control_flow_If.onnx")).unwrap();
    for end in (0..bytes.len()).step_by(7) {
        // Fields that are left out may leave a model that can be read.
        if let Ok(network) = Network::from_bytes(&bytes[..end], NetworkOptions::default()) {
            let _ = run(&network);
        }
    }
    assert!(Network::from_bytes(&[], NetworkOptions::default()).is_err());
    assert!(Network::from_bytes(b"PK\x03\x04", NetworkOptions::default()).is_err());
}

#[test]
fn deep_graphs_are_refused() {
    let mut graph = sum(weights(), &[17]).graph.unwrap();
    for _ in 0..200 {
        let attribute = AttributeProto {
            name: "then_branch".into(),
            r#type: 5,
            g: Some(graph),
            ..AttributeProto::default()
        };
        graph = GraphProto {
            node: vec![NodeProto {
                op_type: "If".into(),
                input: vec!["x".into()],
                output: vec!["y".into()],
                attribute: vec![attribute],
                ..NodeProto::default()
            }],
            input: vec![value("x")],
            output: vec![value("y")],
            ..GraphProto::default()
        };
    }
    let model = ModelProto {
        graph: Some(graph),
        ..sum(weights(), &[17])
    };
    assert!(matches!(
        open(&model).err(),
        Some(NetworkError::Malformed(_))
    ));
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let network = open(&sum(weights(), &[17])).unwrap();
    let x = Tensor::new(&[2], vec![1.0f32; 2]).unwrap();
    let integers = Tensor::new(&[2], vec![1i64; 2]).unwrap();
    let name = |inputs: &[(&str, &Tensor)]| match network.run(inputs) {
        Err(NetworkError::Input { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(&[]), "x");
    assert_eq!(name(&[("x", &integers)]), "x");
    assert_eq!(name(&[("z", &x)]), "z");
    assert_eq!(name(&[("x", &x), ("x", &x)]), "x");
    let long = Tensor::new(&[3], vec![1.0f32; 3]).unwrap();
    // The node is named.
    let unfit = network.run(&[("x", &long)]).unwrap_err().to_string();
    assert!(unfit.contains("\"y\" Add"), "{unfit}");
    assert!(Tensor::new(&[3], vec![1.0f32; 2]).is_err());
}

#[test]
fn operators_of_this_crate_are_refused_in_files() {
    for operator in ["gatestream.Dense", "gatestream.CompactSteps"] {
        let mut model = sum(weights(), &[17]);
        model.graph.as_mut().unwrap().node[0].op_type = operator.into();
        let refused = open(&model).err().unwrap();
        assert!(
            matches!(refused, NetworkError::Unsupported { .. }),
            "{refused}"
        );
    }
}
