//! The header of a safetensors file.
//!
//! ```text
//! file = header length (8 bytes, little-endian) · header (JSON) · data
//! header = { "__metadata__": { key: text … }, name: { dtype, shape, data_offsets: [from, to] } … }
//! ```
//!
//! The `safetensors` crate checks that the byte ranges start at 0, are contiguous and have the
//! length that shape and dtype require. Its reader of whole files is not used, because it
//! - keeps the last of two tensors with the same name (here both are refused);
//! - adds the header's length to the end of the last range, which can overflow and panic in builds
//!   that check arithmetic (here the data lengths are compared without adding);
//! - builds a generic JSON tree of up to 16 bytes for each byte of the header (here the header is
//!   read directly into its entries).

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::model::LoadError;

/// The largest header that is read. It has room for about 30 000 tensors, many more than a
/// recurrent model has, and parsing it takes no more memory than a small model.
pub(super) const MAX_HEADER: usize = 4 << 20;

/// The header's JSON, with the tensors in the order of their bytes.
pub(super) struct Header {
    pub tensors: Vec<(String, TensorInfo)>,
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// The header of a file, and its data.
    ///
    /// # Errors
    /// Those of [`Tensors::from_bytes`](super::Tensors::from_bytes).
    pub fn read(bytes: &[u8]) -> Result<(Header, &[u8]), LoadError> {
        let (length, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or_else(|| malformed("shorter than the 8 bytes of a header length"))?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER as u64 {
            return Err(malformed(format!(
                "a header of {length} bytes; at most {MAX_HEADER} are supported; is this a \
                 safetensors file?"
            )));
        }
        let (header, data) = rest.split_at_checked(length as usize).ok_or_else(|| {
            malformed(format!(
                "a header of {length} bytes in a file of {}",
                bytes.len()
            ))
        })?;
        let invalid = |why: &dyn fmt::Display| malformed(format!("header: {why}"));
        let mut header: Header = serde_json::from_slice(header).map_err(|why| invalid(&why))?;
        let mut names: Vec<&str> = header.tensors.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(malformed(two_of(pair[0])));
        }
        // `Metadata::new` requires the order of the ranges.
        header.tensors.sort_by_key(|(_, info)| info.data_offsets);
        let checked = Metadata::new(None, header.tensors.clone()).map_err(|why| invalid(&why))?;
        if checked.data_len() != data.len() {
            return Err(malformed(format!(
                "{} bytes of data, but the header describes {}; a download may have been cut short",
                data.len(),
                checked.data_len()
            )));
        }
        Ok((header, data))
    }
}

pub(super) fn two_of(name: &str) -> String {
    format!("two tensors are named {name:?}; names must differ")
}

pub(super) fn malformed(reason: impl Into<String>) -> LoadError {
    LoadError::Malformed {
        format: "safetensors",
        reason: reason.into(),
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = Vec::new();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        let info = map
                            .next_value()
                            .map_err(|e| A::Error::custom(format!("tensor {name:?}: {e}")))?;
                        tensors.push((name, info));
                    } else if metadata.is_none() {
                        let TextMap(texts) = map.next_value()?;
                        metadata = Some(texts);
                    } else {
                        return Err(A::Error::custom("__metadata__ is given twice"));
                    }
                }
                Ok(Header {
                    tensors,
                    metadata: metadata.unwrap_or_default(),
                })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The entries of `__metadata__`; duplicate keys are refused.
struct TextMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextMap, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = TextMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TextMap, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if texts.contains_key(&key) {
                        let twice = format!("metadata {key:?} is given twice");
                        return Err(A::Error::custom(twice));
                    }
                    texts.insert(key, text);
                }
                Ok(TextMap(texts))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
