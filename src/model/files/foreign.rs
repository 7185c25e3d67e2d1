//! Files that are no models, or are those of other programs, and how they become models.

use std::path::Path;

use crate::model::LoadError;

/// What a file is, and the way to a model.
pub(super) type Foreign = (&'static str, &'static str);

pub(super) const EMPTY: Foreign = ("an empty file", "get or save it again");

/// Where a file of tensors is wanted.
#[cfg(feature = "safetensors")]
pub(super) const GRAPH: Foreign = (
    "an ONNX graph, not a file of tensors",
    "name a .safetensors file or a checkpoint",
);

const GIT_LFS: Foreign = (
    "a pointer of git-lfs, which stands for the model",
    "`git lfs pull` in its repository gets the model itself",
);
const WEB_PAGE: Foreign = (
    "a web page (HTML) instead of the model",
    "download the file itself: of Hugging Face, the address with /resolve/ in place of /blob/",
);
const XML: Foreign = (
    "an XML document, as servers send instead of a file that they refuse",
    "download the model again, or, if it is one of OpenVINO, export the original to .onnx",
);
const TEXT: Foreign = (
    "a text, perhaps the message of a server that has refused the file",
    "look at it, and download or save the model again",
);
const ZEROS: Foreign = (
    "a file of zeros, as broken downloads leave",
    "get or save it again",
);
const PACKED: Foreign = (
    "a compressed file (gzip, bzip2, xz, zstd, 7-Zip or RAR)",
    "unpack it first",
);
const KERAS: Foreign = (
    "a file of Keras (HDF5 or .keras)",
    "in Keras 3, `keras.models.load_model(FILE).export(\"model.onnx\", format=\"onnx\")` writes \
     .onnx; a file of Keras 1 or 2 is loaded by the package tf_keras and written by \
     `tf2onnx.convert.from_keras`",
);
const TFLITE: Foreign = (
    "a file of TensorFlow Lite",
    "`python -m tf2onnx.convert --tflite FILE --output model.onnx` writes .onnx",
);
const TENSORFLOW: Foreign = (
    "a model of TensorFlow",
    "`python -m tf2onnx.convert --saved-model FOLDER --output model.onnx` writes .onnx",
);
const ORT: Foreign = (
    "a file in ONNX Runtime's own format (.ort)",
    "use the .onnx file that it was made from",
);
const NUMPY: Foreign = (
    "a file of NumPy arrays (.npz or .npy)",
    "in Python, `safetensors.numpy.save_file(dict(numpy.load(FILE)), \"model.safetensors\")` \
     writes .safetensors; its tensors must have the names of PyTorch's modules",
);
const NAM: Foreign = (
    "a file of Neural Amp Modeler (.nam)",
    "load it in the Python package nam, and save the state_dict() of its network by torch.save, \
     or export it by torch.onnx.export",
);
const JSON: Foreign = (
    "a JSON file without the index of a set (weight_map)",
    "give its weights the names of PyTorch's modules (weight_ih_l0, …) and write them in Python by \
     `safetensors.numpy.save_file`, or export the original model to .onnx",
);
const CORE_ML: Foreign = (
    "a model of Core ML",
    "export the model that it was made from to .onnx",
);
const PADDLE: Foreign = (
    "a file of PaddlePaddle",
    "`paddle.onnx.export` writes .onnx",
);
const GGUF: Foreign = (
    "a file of llama.cpp (GGUF)",
    "use the original model as .safetensors or .onnx",
);
const FLAX: Foreign = (
    "a file of msgpack, as Flax writes",
    "give its weights the names of PyTorch's modules (weight_ih_l0, …) and write them in Python by \
     `safetensors.numpy.save_file`",
);
const EXECUTORCH: Foreign = (
    "a program of ExecuTorch (.pte)",
    "save the state_dict() of the original model by torch.save, or export it by torch.onnx.export",
);
const MXNET: Foreign = ("a file of MXNet", "`mxnet.onnx.export_model` writes .onnx");

pub(super) fn error(path: &Path, (found, way): Foreign) -> LoadError {
    LoadError::Foreign {
        path: path.into(),
        found: found.into(),
        way: way.into(),
    }
}

/// What a folder is.
pub(super) fn of_folder(path: &Path) -> Foreign {
    if path.join("saved_model.pb").exists() {
        return TENSORFLOW;
    }
    if path.extension().is_some_and(|ending| ending == "mlpackage") {
        return CORE_ML;
    }
    ("a folder", "name the model's file in it")
}

/// What the first bytes of a file show, if that is no model.
pub(super) fn of_content(head: &[u8], ending: &str) -> Option<Foreign> {
    const STARTS: [(&[u8], Foreign); 13] = [
        (b"version https://git-lfs.github.com/", GIT_LFS),
        (b"\x1f\x8b\x08", PACKED),
        (b"BZh", PACKED),
        (b"\xfd7zXZ\0", PACKED),
        (b"\x28\xb5\x2f\xfd", PACKED),
        (b"7z\xbc\xaf\x27\x1c", PACKED),
        (b"Rar!\x1a\x07", PACKED),
        (b"\x89HDF\r\n\x1a\n", KERAS),
        (b"\x93NUMPY", NUMPY),
        (b"GGUF", GGUF),
        // A list of arrays.
        (b"\x12\x01\0\0\0\0\0\0", MXNET),
        (b"\xef\xbb\xbf<!DOCTYPE", WEB_PAGE),
        (b"\xef\xbb\xbf<html", WEB_PAGE),
    ];
    if let Some((_, found)) = STARTS.iter().find(|(start, _)| head.starts_with(start)) {
        return Some(*found);
    }
    match head.get(4..8) {
        Some(b"TFL3") => return Some(TFLITE),
        Some(b"ORTM") => return Some(ORT),
        Some(b"ET12" | b"ET13") => return Some(EXECUTORCH),
        _ => {}
    }
    if head.starts_with(b"PK\x03\x04") {
        return of_archive(head);
    }
    let text = head.trim_ascii_start();
    if text.starts_with(b"<") {
        let start = text[..text.len().min(512)].to_ascii_lowercase();
        let is_page = [&b"<!doctype html"[..], b"<html", b"<head", b"<body"];
        let is_xml = start.starts_with(b"<?xml") && !has(&start, b"<html");
        let is_page = is_page.iter().any(|tag| has(&start, tag)) && !is_xml;
        return Some(if is_page { WEB_PAGE } else { XML });
    }
    if text.starts_with(b"{") || text.starts_with(b"[") {
        return (!has(text, b"\"weight_map\"")).then(|| match ending {
            "nam" => NAM,
            _ if has(text, b"\"architecture\"") && has(text, b"\"config\"") => NAM,
            _ => JSON,
        });
    }
    if head.len() >= 16 && head.iter().all(|&byte| byte == 0) {
        return Some(ZEROS);
    }
    is_text(head).then_some(TEXT)
}

/// What the ending says of a file whose bytes are unknown.
pub(super) fn of_ending(ending: &str) -> Option<Foreign> {
    Some(match ending {
        "keras" | "h5" | "hdf5" => KERAS,
        "tflite" | "lite" => TFLITE,
        "pb" => TENSORFLOW,
        "mlmodel" | "mlmodelc" => CORE_ML,
        "pdparams" | "pdmodel" | "pdiparams" | "pdopt" => PADDLE,
        "msgpack" => FLAX,
        "ort" => ORT,
        "params" => MXNET,
        _ => return None,
    })
}

/// The name of the first entry tells what wrote an archive.
fn of_archive(head: &[u8]) -> Option<Foreign> {
    let length = head.get(26..28)?;
    let length = usize::from(u16::from_le_bytes(length.try_into().ok()?));
    let name = head.get(30..)?.get(..length)?;
    if name.ends_with(b".npy") {
        return Some(NUMPY);
    }
    let is_keras = matches!(
        name,
        b"metadata.json" | b"config.json" | b"model.weights.h5"
    );
    is_keras.then_some(KERAS)
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Whether these are words, and no pickle of protocol 0 or binary data.
fn is_text(head: &[u8]) -> bool {
    let is_cut = |error: std::str::Utf8Error| error.error_len().is_none();
    let is_utf8 = std::str::from_utf8(head).map_or_else(is_cut, |_| true);
    let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t');
    let is_pickle = head.starts_with(b"(") || head.starts_with(b"c");
    head.len() >= 4 && is_utf8 && !is_pickle && !head.iter().any(is_control)
}
