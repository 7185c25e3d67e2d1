//! Checkpoints of `torch.save`, as tensors by name. No code of a pickle is executed.

use std::fs::File;
use std::path::Path;

use pytorch_reader::{DType, PytorchError, PytorchReader};
use safetensors::tensor::{Dtype, TensorInfo};
use zip::ZipArchive;

use super::SafetensorsOptions;
use super::tensors::Tensors;
use crate::model::{LoadError, Model};

/// Largest description of the tensors, in bytes.
const MAX_PICKLE: u64 = 64 << 20;

impl Model {
    /// Reads the recurrent stack of a checkpoint that `torch.save` wrote: a `state_dict`, by itself
    /// or within other dictionaries. The name of a tensor is the path of keys to it, joined by
    /// dots. Names and options are those of [`Model::from_safetensors`]; no code of the file is
    /// executed, and values that are no tensors are ignored.
    ///
    /// # Errors
    /// [`LoadError::Io`] if the file cannot be read, [`LoadError::Malformed`] if it is no
    /// checkpoint, and those of [`Model::from_tensors`].
    pub fn from_pytorch(
        path: impl AsRef<Path>,
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        let path = path.as_ref();
        let failed = |source| LoadError::Io {
            path: path.into(),
            source,
        };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        check_sizes(path, length)?;
        let reader = PytorchReader::new(path).map_err(|why| match why {
            PytorchError::Io(source) => failed(source),
            why => malformed(why.to_string()),
        })?;
        let mut all: Vec<_> = reader.into_tensors().into_values().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        let (mut infos, mut data) = (Vec::new(), Vec::new());
        for tensor in all {
            let begin = data.len();
            // Views may share a storage, so that together they are larger than the file.
            if (begin + tensor.byte_len()) as u64 > length {
                return Err(malformed("its tensors together are larger than the file"));
            }
            let bytes = tensor.read().map_err(|why| malformed(why.to_string()))?;
            data.extend(bytes);
            let info = TensorInfo {
                dtype: dtype(tensor.dtype()),
                shape: tensor.shape().to_vec(),
                data_offsets: (begin, data.len()),
            };
            infos.push((tensor.name, info));
        }
        Model::from_tensors(&Tensors::from_parts(infos, &data)?, options)
    }
}

/// Checks what an archive says about its sizes, before anything is read into memory.
fn check_sizes(path: &Path, length: u64) -> Result<(), LoadError> {
    let open = || ZipArchive::new(File::open(path).ok()?).ok();
    // Older checkpoints are no archives.
    let Some(mut archive) = open() else {
        return Ok(());
    };
    let mut all = 0u64;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index);
        let entry = entry.map_err(|why| malformed(why.to_string()))?;
        all = all.saturating_add(entry.size());
        if entry.name().is_ok_and(|name| name.ends_with("data.pkl")) && entry.size() > MAX_PICKLE {
            return Err(malformed(format!(
                "its description of the tensors has {} bytes; the maximum is {MAX_PICKLE}",
                entry.size()
            )));
        }
    }
    match all > length {
        true => Err(malformed(format!(
            "its entries unpack to {all} bytes, more than the file has; torch.save packs none"
        ))),
        false => Ok(()),
    }
}

/// In one line: the reader's errors repeat bytes of the file.
fn malformed(reason: impl Into<String>) -> LoadError {
    LoadError::Malformed {
        format: "PyTorch",
        reason: reason.into().replace(char::is_control, " "),
    }
}

fn dtype(of: DType) -> Dtype {
    match of {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
