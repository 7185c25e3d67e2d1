//! Arrays of NumPy in a pickle.
//!
//! ```text
//! _reconstruct(ndarray, (0,), b'b') · BUILD (version, shape, dtype, is in Fortran's order, bytes)
//! _frombuffer(bytes, dtype, shape, order)                                        since protocol 5
//! dtype('f4', False, True) · BUILD (3, '<', …)
//! ```

use std::borrow::Cow;

use safetensors::tensor::Dtype;

use super::pickle::{Call, Id, Pickle, Value};
use super::storage::Missing;
use super::width;
use crate::model::safetensors::Entry;

/// The array that a call makes; `None`: it makes none. `copied` grows by the bytes that are copied.
pub(super) fn array<'a>(
    pickle: &Pickle<'a>,
    call: &Call,
    copied: &mut usize,
) -> Option<Result<Entry<'a>, Missing>> {
    let (module, name) = pickle.global(call.callable)?;
    if !module.starts_with("numpy") {
        return None;
    }
    let fields = match name {
        "_reconstruct" => {
            // Before NumPy 1.0 the state had no version.
            let state = pickle.elements(call.state?)?;
            let &[shape, dtype, order, bytes] = state.last_chunk()?;
            Fields {
                bytes,
                dtype,
                shape,
                is_fortran: matches!(pickle.get(order), Value::Bool(true) | Value::Int(1)),
            }
        }
        "_frombuffer" => {
            let &[bytes, dtype, shape, order] = pickle.elements(call.arguments)?.first_chunk()?;
            Fields {
                bytes,
                dtype,
                shape,
                is_fortran: pickle.text(order) == Some("F"),
            }
        }
        _ => return None,
    };
    let unread = || Missing::Unread(format!("{module}.ndarray of objects or another type"));
    Some(of_fields(pickle, fields, copied).ok_or_else(unread))
}

/// What an array is made of.
struct Fields {
    bytes: Id,
    dtype: Id,
    shape: Id,
    is_fortran: bool,
}

fn of_fields<'a>(pickle: &Pickle<'a>, fields: Fields, copied: &mut usize) -> Option<Entry<'a>> {
    let (dtype, is_big_endian) = of_dtype(pickle, fields.dtype)?;
    let shape = pickle.sizes(fields.shape)?;
    let mut bytes = self::bytes(pickle, fields.bytes, copied)?;
    if is_big_endian && width(dtype) > 1 {
        *copied = copied.saturating_add(bytes.len());
        let values = bytes.to_mut().chunks_exact_mut(width(dtype));
        values.for_each(<[u8]>::reverse);
    }
    let mut strides = vec![1; shape.len()];
    let mut expected = 1usize;
    for axis in 0..shape.len() {
        let axis = if fields.is_fortran {
            axis
        } else {
            shape.len() - 1 - axis
        };
        strides[axis] = expected;
        expected = expected.saturating_mul(shape[axis]);
    }
    Entry::strided(dtype, shape, strides, bytes)
}

/// The type that a value names, and whether its values have their most significant byte first.
fn of_dtype(pickle: &Pickle<'_>, id: Id) -> Option<(Dtype, bool)> {
    let Value::Call(call) = pickle.get(id) else {
        return None;
    };
    if pickle.global(call.callable)?.1 != "dtype" {
        return None;
    }
    let &first = pickle.elements(call.arguments)?.first()?;
    let name = match pickle.get(first) {
        Value::Global { name, .. } => *name,
        _ => pickle.text(first)?,
    };
    let state = call.state.and_then(|state| pickle.elements(state));
    let order = state.and_then(|state| pickle.text(*state.get(1)?));
    let is_big_endian = order == Some(">") || name.starts_with('>');
    let dtype = match name.trim_start_matches(['<', '>', '=', '|']) {
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        "bfloat16" => Dtype::BF16,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "b1" => Dtype::BOOL,
        _ => return None,
    };
    Some((dtype, is_big_endian))
}

/// The bytes that a value is. Protocol 2 has none: they are a text in Latin 1, and a call, which is
/// decoded and adds to `copied`.
pub(super) fn bytes<'a>(pickle: &Pickle<'a>, id: Id, copied: &mut usize) -> Option<Cow<'a, [u8]>> {
    match pickle.get(id) {
        Value::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
        // Of Python 2.
        Value::Text(text) => Some(Cow::Borrowed(text.as_bytes())),
        Value::Call(call) => {
            let arguments = pickle.elements(call.arguments)?;
            match (pickle.global(call.callable)?, arguments) {
                (("_codecs", "encode"), &[text, ..]) => {
                    let Value::Text(text) = pickle.get(text) else {
                        return None;
                    };
                    *copied = copied.saturating_add(text.len());
                    let bytes = text.chars().map(|character| u8::try_from(character).ok());
                    bytes.collect::<Option<Vec<u8>>>().map(Cow::Owned)
                }
                ((_, "bytearray"), &[inner]) => match pickle.get(inner) {
                    Value::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
                    _ => None,
                },
                ((_, "bytes" | "bytearray"), []) => Some(Cow::Borrowed(&[])),
                _ => None,
            }
        }
        _ => None,
    }
}
