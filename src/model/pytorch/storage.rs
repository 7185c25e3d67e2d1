//! Storages: the runs of values that tensors are views of.

use std::borrow::Cow;

use safetensors::tensor::Dtype;

use super::container::{Checkpoint, Storages};
use super::pickle::{Id, Pickle, Value};
use super::width;

/// A storage that lies outside of the pickle: `('storage', class, key, device, values, view)`.
pub(super) struct Reference<'a> {
    pub key: Option<&'a str>,
    /// `None`: bytes of no type, or of one that is not read.
    pub dtype: Option<Dtype>,
    class: &'a str,
    /// Values before those of a view.
    offset: usize,
}

impl<'a> Reference<'a> {
    /// `None`: it is no storage.
    pub fn read(pickle: &Pickle<'a>, id: Id) -> Option<Reference<'a>> {
        let fields = pickle.elements(id)?;
        let [tag, class, key, ..] = *fields else {
            return None;
        };
        if pickle.text(tag) != Some("storage") {
            return None;
        }
        let (_, class) = pickle.global(class)?;
        // The last field of old files: the view's key, offset and size.
        let view = fields.get(5).and_then(|&view| pickle.elements(view));
        let offset = view.and_then(|view| pickle.size(*view.get(1)?));
        Some(Reference {
            key: pickle.text(key),
            dtype: of_class(class),
            class,
            offset: offset.unwrap_or(0),
        })
    }
}

/// The bytes of a storage, and the type of their values.
pub(super) struct Storage<'a> {
    pub bytes: Cow<'a, [u8]>,
    pub dtype: Option<Dtype>,
}

/// Why there are no values.
pub(super) enum Missing {
    /// They have this type.
    Unread(String),
    /// The file contradicts itself.
    Malformed(String),
}

impl<'a> Storage<'a> {
    /// The storage that a value of a pickle is; `None`: it is none. `copied` grows by the bytes
    /// that are decoded or parsed for it.
    pub fn read(
        pickle: &Pickle<'a>,
        storages: &Storages<'a>,
        id: Id,
        copied: &mut usize,
    ) -> Option<Result<Storage<'a>, Missing>> {
        match pickle.get(id) {
            Value::Persistent(id) => {
                let reference = Reference::read(pickle, *id)?;
                Some(of_reference(&reference, storages))
            }
            Value::Call(call) => {
                let (_, name) = pickle.global(call.callable)?;
                if name != "_load_from_bytes" {
                    return None;
                }
                let &bytes = pickle.elements(call.arguments)?.first()?;
                let bytes = super::arrays::bytes(pickle, bytes, copied)?;
                *copied = copied.saturating_add(bytes.len());
                Some(of_bytes(bytes))
            }
            _ => None,
        }
    }
}

fn of_reference<'a>(
    reference: &Reference<'a>,
    storages: &Storages<'a>,
) -> Result<Storage<'a>, Missing> {
    let Reference {
        key,
        dtype,
        class,
        offset,
    } = *reference;
    if dtype.is_none() && class != "UntypedStorage" {
        return Err(Missing::Unread(format!("torch.{class}")));
    }
    let absent = || Missing::Malformed(format!("storage {:?} is missing", key.unwrap_or("?")));
    let bytes = key.and_then(|key| storages.get(key)).ok_or_else(absent)?;
    let skipped = offset.checked_mul(dtype.map_or(1, width));
    let bytes = skipped.and_then(|skipped| bytes.get(skipped..));
    Ok(Storage {
        bytes: bytes.ok_or_else(absent)?.into(),
        dtype,
    })
}

/// The storage of `pickle.dump`, which is a file of `torch.save` within the pickle.
fn of_bytes(bytes: Cow<'_, [u8]>) -> Result<Storage<'_>, Missing> {
    match bytes {
        Cow::Borrowed(bytes) => of_file(bytes),
        Cow::Owned(bytes) => of_file(&bytes).map(|storage| Storage {
            bytes: storage.bytes.into_owned().into(),
            dtype: storage.dtype,
        }),
    }
}

fn of_file(bytes: &[u8]) -> Result<Storage<'_>, Missing> {
    let malformed =
        || Missing::Malformed("the storage of a tensor is no file of torch.save".into());
    let file = Checkpoint::read(bytes).map_err(|_| malformed())?;
    let Value::Persistent(id) = file.pickle.get(file.pickle.root) else {
        return Err(malformed());
    };
    let reference = Reference::read(&file.pickle, *id).ok_or_else(malformed)?;
    of_reference(&reference, &file.storages)
}

/// The type of the values of a class of storages.
fn of_class(name: &str) -> Option<Dtype> {
    Some(match name.strip_suffix("Storage")? {
        "Float" => Dtype::F32,
        "Double" => Dtype::F64,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::BOOL,
        _ => return None,
    })
}

/// The type of the values of `torch.NAME`.
pub(super) fn of_dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "float32" | "float" => Dtype::F32,
        "float64" | "double" => Dtype::F64,
        "float16" | "half" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "int64" | "long" => Dtype::I64,
        "int32" | "int" => Dtype::I32,
        "int16" | "short" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "bool" => Dtype::BOOL,
        _ => return None,
    })
}
