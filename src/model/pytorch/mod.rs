//! Checkpoints of PyTorch, as tensors by name. No code of a pickle is executed.
//!
//! ```text
//! container   the pickle of a file, and the bytes of its storages
//! pickle      the values of a pickle; calls are recorded, never made
//! objects     the tensors among them, with their names
//! storage     the bytes that a tensor is a view of
//! arrays      arrays of NumPy
//! ```
//!
//! A file is read into memory once; tensors are slices of it.

mod arrays;
mod container;
mod objects;
mod pickle;
mod storage;

use std::collections::BTreeMap;
use std::path::Path;

use self::container::{Checkpoint, Refusal};
use self::pickle::{Pickle, Value};
use super::safetensors::{SafetensorsOptions, Tensors, width};
use super::{LoadError, Model, TensorFile};

impl Model {
    /// Reads the recurrent stack of a checkpoint that `torch.save` or `pickle.dump` wrote: a
    /// `state_dict` of tensors or NumPy arrays, by itself or within other dictionaries, lists and
    /// objects, or a whole module. The name of a tensor is the path of keys to it, joined by dots.
    /// Names and options are those of [`Model::from_safetensors`]; a whole module also says its
    /// `nonlinearity` and `batch_first`. No code of the file is executed, and other values that are
    /// no tensors are ignored. A file of a set
    /// (`pytorch_model-00001-of-00002.bin`) is read with the others ([`TensorFile`]).
    ///
    /// # Errors
    /// [`LoadError::Io`] if the file cannot be read, [`LoadError::Foreign`] for programs such as
    /// TorchScript, [`LoadError::Malformed`] if it is no checkpoint, and those of
    /// [`Model::from_tensors`].
    pub fn from_pytorch(
        path: impl AsRef<Path>,
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        let file = TensorFile::read_pytorch(path.as_ref())?;
        Model::from_tensors(&file.tensors()?, options)
    }
}

/// The tensors of a checkpoint in memory.
pub(super) fn tensors<'a>(path: &Path, bytes: &'a [u8]) -> Result<Tensors<'a>, LoadError> {
    let file = Checkpoint::read(bytes).map_err(|refusal| match refusal {
        Refusal::Malformed(why) => malformed(why),
        Refusal::Foreign(found, way) => LoadError::Foreign {
            path: path.into(),
            found: found.into(),
            way,
        },
    })?;
    let found = objects::tensors(&file).map_err(malformed)?;
    if is_of_paddle(&file.pickle) {
        return Err(LoadError::Foreign {
            path: path.into(),
            found: "a checkpoint of PaddlePaddle".into(),
            way: "`paddle.onnx.export` writes .onnx".into(),
        });
    }
    let tensors = Tensors::from_entries(found.entries, BTreeMap::new(), bytes.len());
    Ok(tensors
        .map_err(malformed)?
        .with_objects(found.unread, found.modules))
}

/// Whether the dictionary is one of PaddlePaddle: it has an item with this name.
fn is_of_paddle(pickle: &Pickle<'_>) -> bool {
    let Value::Dict(items) = pickle.get(pickle.root) else {
        return false;
    };
    let mut names = items.iter().filter_map(|(key, _)| pickle.text(*key));
    names.any(|name| name == "StructuredToParameterName@@")
}

/// In one line: names are the file's.
fn malformed(reason: String) -> LoadError {
    LoadError::Malformed {
        format: "PyTorch",
        reason: reason.replace(char::is_control, " "),
    }
}
