//! Model files: their kinds, and those that hold tensors.

mod foreign;
mod kind;
#[cfg(feature = "safetensors")]
mod set;
#[cfg(feature = "safetensors")]
mod tensor_file;

use std::path::Path;

pub use kind::FileKind;
#[cfg(feature = "safetensors")]
pub use tensor_file::TensorFile;

use super::LoadError;

/// The bytes of a file.
#[cfg(any(feature = "onnx", feature = "safetensors"))]
pub(super) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|source| LoadError::Io {
        path: path.into(),
        source,
    })
}

/// The error for a file of a kind that this build does not read.
pub(super) fn unknown(path: &Path) -> LoadError {
    let kinds: &[&str] = &[
        #[cfg(feature = "onnx")]
        "ONNX (.onnx)",
        #[cfg(feature = "safetensors")]
        "safetensors (.safetensors)",
        #[cfg(feature = "pytorch")]
        "a state_dict of PyTorch (.pt)",
    ];
    LoadError::UnknownFormat {
        path: path.into(),
        supported: match kinds {
            [] => "a build with the feature safetensors or onnx (this one reads no files)".into(),
            _ => kinds.join(" or "),
        },
    }
}
