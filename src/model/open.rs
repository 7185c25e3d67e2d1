//! From a path to a model: the name's ending chooses the loader.

use std::path::Path;

use super::{LoadError, Model};

impl Model {
    /// The model in the file at `path`, whose ending says what it is: `.onnx`
    /// (`Model::from_onnx`) or `.safetensors` (`Model::from_safetensors`, default options). Upper
    /// and lower case are the same. What a state dict cannot say (a prefix, relu, batch-first) is for
    /// `Model::from_safetensors` and its options; sequences are taken in [`Model::layout`]. A format is
    /// read only where this crate's feature of that name is on.
    ///
    /// # Errors
    /// [`LoadError::UnknownFormat`] for another ending, [`LoadError::Io`] when the file cannot be
    /// read, and what the loader refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, LoadError> {
        let path = path.as_ref();
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        #[cfg(feature = "onnx")]
        if ending.eq_ignore_ascii_case("onnx") {
            return Model::from_onnx(&read(path)?);
        }
        #[cfg(feature = "safetensors")]
        if ending.eq_ignore_ascii_case("safetensors") {
            return Model::from_safetensors(&read(path)?, &super::SafetensorsOptions::default());
        }
        let _ = ending;
        Err(LoadError::UnknownFormat {
            path: path.into(),
            supported: supported(),
        })
    }
}

#[cfg(any(feature = "onnx", feature = "safetensors"))]
fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|source| LoadError::Io {
        path: path.into(),
        source,
    })
}

/// The endings that this build reads, for people.
fn supported() -> String {
    let endings: &[&str] = &[
        #[cfg(feature = "onnx")]
        ".onnx",
        #[cfg(feature = "safetensors")]
        ".safetensors",
    ];
    match endings {
        [] => "a build with the feature safetensors or onnx (this one reads no files)".into(),
        _ => endings.join(" or "),
    }
}
