//! Files that hold tensors, in memory.

use std::path::{Path, PathBuf};

use super::set::Set;
use super::{FileKind, foreign, read, unknown};
use crate::model::{LoadError, Tensors};

/// A file of tensors in memory: safetensors, a checkpoint of PyTorch, or all files of a set.
///
/// A set is one state dict in several files: `model-00001-of-00002.safetensors` and its like, or
/// those that an index names (`model.safetensors.index.json`). Any file of a set, or its index,
/// stands for all of them.
///
/// ```no_run
/// use gatestream::model::{Model, SafetensorsOptions, TensorFile};
/// let file = TensorFile::read("model-00001-of-00002.safetensors")?;
/// let tensors = file.tensors()?;
/// for name in tensors.names() {
///     println!("{name} {:?} {:?}", tensors.dtype(name), tensors.shape(name));
/// }
/// let options = SafetensorsOptions::new().prefix("encoder.");
/// let model = Model::from_tensors(&tensors, &options)?;
/// # Ok::<(), gatestream::model::LoadError>(())
/// ```
#[derive(Debug)]
pub struct TensorFile {
    set: Set,
    parts: Vec<Part>,
}

/// A file.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    kind: FileKind,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Reads a file, and the others of its set.
    ///
    /// # Errors
    /// Those of [`FileKind::of`]; [`LoadError::Io`]: a file cannot be read; [`LoadError::Set`]: a
    /// file of the set is missing; [`LoadError::Foreign`]: it holds a graph.
    pub fn read(path: impl AsRef<Path>) -> Result<TensorFile, LoadError> {
        let path = path.as_ref();
        TensorFile::of_kind(path, FileKind::of(path)?)
    }

    /// Reads a checkpoint of PyTorch, whatever its first bytes are.
    #[cfg(feature = "pytorch")]
    pub(in crate::model) fn read_pytorch(path: &Path) -> Result<TensorFile, LoadError> {
        TensorFile::of_kind(path, FileKind::PyTorch)
    }

    fn of_kind(path: &Path, kind: FileKind) -> Result<TensorFile, LoadError> {
        let set = match kind {
            FileKind::Index => Set::of_index(path)?,
            _ => Set::of(path)?,
        };
        let is_alone = set.files.len() == 1 && kind != FileKind::Index;
        let part = |file: &PathBuf| {
            let kind = if is_alone { kind } else { FileKind::of(file)? };
            let is_readable = kind == FileKind::Safetensors
                || (cfg!(feature = "pytorch") && kind == FileKind::PyTorch);
            if is_readable {
                return Ok(Part {
                    path: file.clone(),
                    kind,
                    bytes: read(file)?,
                });
            }
            Err(match kind {
                FileKind::Onnx => foreign::error(file, foreign::GRAPH),
                _ => unknown(file),
            })
        };
        let parts = set.files.iter().map(part);
        let parts = parts.collect::<Result<_, LoadError>>()?;
        Ok(TensorFile { set, parts })
    }

    /// Its tensors, without a copy of their values.
    ///
    /// # Errors
    /// [`LoadError::Malformed`]: a file is not readable; [`LoadError::Foreign`]: it holds a
    /// program; [`LoadError::Set`]: the files of a set do not agree with each other or with their
    /// index.
    pub fn tensors(&self) -> Result<Tensors<'_>, LoadError> {
        let mut parts = Vec::new();
        for part in &self.parts {
            let tensors = part.tensors()?;
            if let Some((index, map)) = &self.set.index {
                let name = part.path.file_name().and_then(|name| name.to_str());
                let of_part = map.iter().filter(|(_, file)| Some(file.as_str()) == name);
                let mut names = of_part.map(|(tensor, _)| tensor);
                if let Some(absent) = names.find(|tensor| tensors.shape(tensor).is_none()) {
                    return Err(LoadError::Set {
                        path: index.clone(),
                        why: format!(
                            "tensor {absent:?} is not in the file {:?}",
                            name.unwrap_or_default()
                        ),
                    });
                }
            }
            parts.push(tensors);
        }
        match (parts.len(), self.parts.first()) {
            (1, _) => Ok(parts.remove(0)),
            (_, first) => Tensors::of_set(parts).map_err(|why| LoadError::Set {
                path: first.map(|part| part.path.clone()).unwrap_or_default(),
                why,
            }),
        }
    }
}

impl Part {
    fn tensors(&self) -> Result<Tensors<'_>, LoadError> {
        match self.kind {
            #[cfg(feature = "pytorch")]
            FileKind::PyTorch => crate::model::pytorch::tensors(&self.path, &self.bytes),
            _ => Tensors::from_bytes(&self.bytes),
        }
    }
}
