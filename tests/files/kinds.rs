//! Kinds of model files: their bytes tell them, and files of other programs name the way to a
//! model.

use std::path::{Path, PathBuf};

use gatestream::model::{FileKind, LoadError, Model, SafetensorsOptions, TensorFile};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// A file with this name and these bytes in a folder of its own.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn the_ending_does_not_matter() {
    for (original, kind) in [
        ("onnx/gru_last.script.onnx", FileKind::Onnx),
        ("onnx/gru_last.dynamo.onnx", FileKind::Onnx),
        ("layers/layers.safetensors", FileKind::Safetensors),
        ("checkpoints/module.pt", FileKind::PyTorch),
        ("checkpoints/legacy.pt", FileKind::PyTorch),
        ("checkpoints/numpy.pkl", FileKind::PyTorch),
    ] {
        let expected = Model::open(fixture(original)).map_err(|why| why.to_string());
        for name in [
            "epoch=1.ckpt",
            "pytorch_model.bin",
            "a.pth.tar",
            "a.th",
            "model",
            "a.onnx",
            "a.pt",
            "a.safetensors",
            "a.h5",
        ] {
            let (_folder, path) = file(name, &bytes(original));
            assert_eq!(FileKind::of(&path).unwrap(), kind, "{original} as {name}");
            let found = Model::open(&path).map_err(|why| why.to_string());
            assert_eq!(found, expected, "{original} as {name}");
        }
    }
    assert!(Model::open(fixture("checkpoints/legacy.pt")).is_ok());
}

/// The lengths of headers may be those of other files' first bytes.
#[test]
fn a_safetensors_file_is_one_whatever_the_length_of_its_header() {
    let original = bytes("layers/layers.safetensors");
    let (length, rest) = original.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    for length in [0x08_8b1f, 0x4b50, 0x01_0280, 0x3a_0208, 0x203c] {
        let mut header = header.to_vec();
        assert!(header.len() <= length);
        header.resize(length, b' ');
        let all = [&(length as u64).to_le_bytes()[..], &header, data].concat();
        let (_folder, path) = file("model.bin", &all);
        assert_eq!(
            FileKind::of(&path).unwrap(),
            FileKind::Safetensors,
            "{length:#x}"
        );
    }
}

#[test]
fn what_is_no_model_is_named_with_the_way_to_one() {
    let zip = |name: &str| {
        let mut start = b"PK\x03\x04".to_vec();
        start.resize(26, 0);
        start.extend((name.len() as u16).to_le_bytes());
        start.extend([0, 0]);
        start.extend(name.as_bytes());
        start
    };
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for (name, content, told, way) in [
        ("a.onnx", lfs.to_vec(), "git-lfs", "git lfs pull"),
        ("a.safetensors", lfs.to_vec(), "git-lfs", "git lfs pull"),
        (
            "a.pt",
            b"<!DOCTYPE html><html></html>".to_vec(),
            "web page",
            "/resolve/",
        ),
        (
            "a.onnx",
            b"\n<html><head>".to_vec(),
            "web page",
            "/resolve/",
        ),
        (
            "a.bin",
            b"\xef\xbb\xbf<!DOCTYPE html>".to_vec(),
            "web page",
            "/resolve/",
        ),
        (
            "a.pt",
            b"<?xml version=\"1.0\"?><Error><Code>AccessDenied".to_vec(),
            "XML",
            "again",
        ),
        ("a.onnx", b"Entry not found".to_vec(), "text", "again"),
        ("a.safetensors", vec![0; 4000], "zeros", "again"),
        ("a.bin", Vec::new(), "empty", "again"),
        (
            "a.pt.gz",
            b"\x1f\x8b\x08\0\0\0\0\0".to_vec(),
            "gzip",
            "unpack",
        ),
        ("a.keras", zip("metadata.json"), "Keras", "model.onnx"),
        (
            "a.h5",
            b"\x89HDF\r\n\x1a\n\0\0".to_vec(),
            "Keras",
            "tf_keras",
        ),
        (
            "a.tflite",
            b"\x1c\0\0\0TFL3\x14\0\x20\0".to_vec(),
            "TensorFlow Lite",
            "tf2onnx",
        ),
        (
            "a.ort",
            b"\x1c\0\0\0ORTM\x14\0\x20\0".to_vec(),
            "ONNX Runtime",
            ".onnx file",
        ),
        ("a.npz", zip("weight_ih_l0.npy"), "NumPy", "save_file"),
        (
            "a.npy",
            b"\x93NUMPY\x01\0v\0".to_vec(),
            "NumPy",
            "save_file",
        ),
        (
            "a.nam",
            b"{\"version\": \"0.5.4\", \"architecture\": \"LSTM\"".to_vec(),
            "Neural Amp",
            "state_dict()",
        ),
        ("a.json", b"{\"layers\": []}".to_vec(), "JSON", "save_file"),
        (
            "a.mlmodel",
            b"\x08\x05\x12\x00\xa2\x1f\x00".to_vec(),
            "Core ML",
            ".onnx",
        ),
        ("a.pdparams", paddle(), "PaddlePaddle", "paddle.onnx.export"),
        (
            "a.pdiparams",
            b"\0\0\0\0\x01\0\0\0".to_vec(),
            "PaddlePaddle",
            "paddle.onnx.export",
        ),
        (
            "a.pb",
            b"\x0a\x10\x0a\x01x\x12\x0b".to_vec(),
            "TensorFlow",
            "tf2onnx",
        ),
        (
            "a.gguf",
            b"GGUF\x03\0\0\0\0\0\0\0".to_vec(),
            "GGUF",
            ".safetensors",
        ),
    ] {
        let (_folder, path) = file(name, &content);
        match Model::open(&path) {
            Err(error @ LoadError::Foreign { .. }) => {
                let line = error.to_string();
                assert!(line.contains(told) && line.contains(way), "{name}: {line}");
                assert!(line.contains(name), "{line}");
                assert!(!line.contains('\n'), "{line}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = Model::open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("folder"), "{refused}");
}

/// `{"StructuredToParameterName@@": {}}`
fn paddle() -> Vec<u8> {
    let mut pickle = b"\x80\x02}X\x1b\0\0\0StructuredToParameterName@@}s.".to_vec();
    pickle.extend([0; 4]);
    pickle
}

#[test]
fn unknown_bytes_are_refused_with_the_kinds_that_are_read() {
    let (_folder, path) = file("model.xyz", &[7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 200, 201]);
    match Model::open(&path) {
        Err(error @ LoadError::UnknownFormat { .. }) => {
            assert!(error.to_string().contains(".safetensors"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_graph_is_no_file_of_tensors() {
    match TensorFile::read(fixture("onnx/gru_last.script.onnx")) {
        Err(error @ LoadError::Foreign { .. }) => {
            assert!(error.to_string().contains("an ONNX graph"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_of_a_state_dict_are_refused_for_a_graph() {
    let path = fixture("onnx/gru_last.script.onnx");
    let options = SafetensorsOptions::new().prefix("rnn.");
    assert!(matches!(
        Model::open_with(&path, &options),
        Err(LoadError::Options)
    ));
    assert!(Model::open_with(&path, &SafetensorsOptions::new()).is_ok());
}

const SET: [&str; 5] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model-00002-of-00002.bin",
];

fn copy_set(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let from = fixture("checkpoints/set").join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn any_file_of_a_set_stands_for_all() {
    let whole = Model::open(fixture("checkpoints/module.pt")).unwrap();
    assert_eq!(whole.layers().len(), 2);
    for name in SET {
        let found = Model::open(fixture("checkpoints/set").join(name)).unwrap();
        assert_eq!(found, whole, "{name}");
    }
    // Without the index, by their names.
    let folder = copy_set(&SET[..2]);
    for name in &SET[..2] {
        assert_eq!(Model::open(folder.path().join(name)).unwrap(), whole);
    }
    // By an index alone.
    let folder = copy_set(&SET[..2]);
    let map = std::fs::read_to_string(fixture("checkpoints/set").join(SET[2])).unwrap();
    let map = map.replace("model-0000", "part").replace("-of-00002", "");
    std::fs::write(folder.path().join("x.index.json"), map).unwrap();
    for (number, name) in SET[..2].iter().enumerate() {
        let part = folder
            .path()
            .join(format!("part{}.safetensors", number + 1));
        std::fs::rename(folder.path().join(name), part).unwrap();
    }
    assert_eq!(
        Model::open(folder.path().join("part1.safetensors")).unwrap(),
        whole
    );
    let file = TensorFile::read(folder.path().join("part2.safetensors")).unwrap();
    assert_eq!(file.tensors().unwrap().names().count(), 16);
}

#[test]
fn a_set_that_is_not_whole_is_refused() {
    for (present, opened, missing) in [
        (&[SET[0]][..], SET[0], SET[1]),
        (&[SET[1]], SET[1], SET[0]),
        (&[SET[0], SET[2]], SET[0], SET[1]),
        (&[SET[0], SET[2]], SET[2], SET[1]),
        (&[SET[3]], SET[3], SET[4]),
    ] {
        let folder = copy_set(present);
        let refused = Model::open(folder.path().join(opened)).unwrap_err();
        assert!(matches!(refused, LoadError::Set { .. }), "{refused}");
        let line = refused.to_string();
        assert!(line.contains("set") && line.contains(missing), "{line}");
    }
}

#[test]
fn an_index_that_does_not_fit_its_files_is_refused() {
    let map = std::fs::read_to_string(fixture("checkpoints/set").join(SET[2])).unwrap();
    for (from, to, told) in [
        ("\"weight_ih_l0\"", "\"weight_ih_l7\"", "weight_ih_l7"),
        ("model-00002", "../model-00002", "folder"),
        ("model-00002", "/etc/model-00002", "folder"),
    ] {
        let folder = copy_set(&SET[..2]);
        std::fs::write(folder.path().join(SET[2]), map.replace(from, to)).unwrap();
        let refused = Model::open(folder.path().join(SET[2])).unwrap_err();
        assert!(matches!(refused, LoadError::Set { .. }), "{refused}");
        assert!(refused.to_string().contains(told), "{refused}");
    }
    // The same tensors in both files.
    let folder = copy_set(&SET[..2]);
    std::fs::copy(folder.path().join(SET[0]), folder.path().join(SET[1])).unwrap();
    let refused = Model::open(folder.path().join(SET[0])).unwrap_err();
    assert!(refused.to_string().contains("two tensors"), "{refused}");
}
