//! Names of symbols, for inputs and outputs of strings.

use std::collections::HashMap;

use bytes::Bytes;
use gatestream::model::Tensors;

use super::input;
use crate::error::InferError;
use crate::wire::{Data, Datatype, InferRequest, Tensor};

/// The names of the symbols `0..`.
#[derive(Clone, Debug)]
pub struct Symbols {
    names: Vec<Bytes>,
    numbers: HashMap<Bytes, usize>,
}

/// Before the name of an entry of the file's metadata.
const METADATA: &str = "metadata:";

impl Symbols {
    /// Reads names that are separated by spaces.
    ///
    /// # Errors
    /// The file's metadata lacks the entry; a name is given twice.
    pub fn read(text: &str, tensors: &Tensors<'_>) -> Result<Symbols, String> {
        let text = match text.strip_prefix(METADATA) {
            Some(key) => {
                let entry = tensors.metadata(key);
                entry.ok_or_else(|| format!("the file's metadata has no entry {key:?}"))?
            }
            None => text,
        };
        let name = |name: &str| Bytes::copy_from_slice(name.as_bytes());
        let names: Vec<Bytes> = text.split(' ').map(name).collect();
        let numbers: HashMap<Bytes, usize> = names.iter().cloned().zip(0..).collect();
        if numbers.len() == names.len() {
            Ok(Symbols { names, numbers })
        } else {
            Err("a name of a symbol is given twice".into())
        }
    }

    pub fn first(&self) -> Option<&Bytes> {
        self.names.first()
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }
}

/// The type of a tensor of symbols.
pub fn datatype(symbols: Option<&Symbols>) -> Datatype {
    match symbols {
        Some(_) => Datatype::Bytes,
        None => Datatype::I64,
    }
}

/// The symbols of an input: their numbers, or their names.
///
/// # Errors
/// The input is missing, or has an unknown symbol.
pub fn numbers(
    request: &InferRequest,
    name: &str,
    symbols: Option<&Symbols>,
) -> Result<Vec<usize>, InferError> {
    let tensor = input(request, name)
        .ok_or_else(|| InferError::invalid(format!("input {name:?} is missing")))?;
    let (Data::Bytes(names), Some(symbols)) = (&tensor.data, symbols) else {
        return tensor.indices();
    };
    let number = |symbol: &Bytes| {
        let found = symbols.numbers.get(symbol).copied();
        found.ok_or_else(|| {
            let symbol = String::from_utf8_lossy(symbol);
            InferError::invalid(format!("input {name:?} has the unknown symbol {symbol:?}"))
        })
    };
    names.iter().map(number).collect()
}

/// A tensor of symbols `[n]`.
pub fn tensor(name: &str, values: &[f32], symbols: Option<&Symbols>) -> Tensor {
    let data = match symbols {
        Some(symbols) => {
            let name = |&value: &f32| {
                symbols
                    .names
                    .get(value as usize)
                    .cloned()
                    .unwrap_or_default()
            };
            Data::Bytes(values.iter().map(name).collect())
        }
        None => Data::I64(values.iter().map(|&value| value as i64).collect()),
    };
    Tensor {
        name: name.to_owned(),
        shape: vec![values.len()],
        data,
    }
}
