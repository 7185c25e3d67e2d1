//! Limits the memory that a file can make the loader allocate.
//!
//! An empty submessage takes two bytes in the file and a hundred or more after decoding, so a
//! hostile file could grow by a factor of fifty. Before decoding, [`check_size`] walks the wire
//! format without allocating and counts the messages and strings that the decoder would create.
//! Afterwards a [`Budget`] limits the constants that nodes compute from other constants.

use crate::model::LoadError;

/// Number of messages and strings that every file may have. An exported stack of ten layers has
/// about a thousand.
const FREE_MESSAGES: usize = 1024;
/// Bytes of the file for each message beyond those.
const BYTES_PER_MESSAGE: usize = 8;
/// Largest number of messages and strings.
const MAX_MESSAGES: usize = 100_000;

/// The message types of `proto.rs` that contain other messages.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    /// Contains nothing that is counted.
    Leaf,
}

impl Kind {
    /// The message or string that the decoder makes of a length-delimited field; `None` if it skips
    /// the field or copies it to one buffer of the same size.
    fn child(self, field: u64) -> Option<Kind> {
        match (self, field) {
            (Kind::Model, 7) => Some(Kind::Graph),
            (Kind::Graph, 1) => Some(Kind::Node),
            (Kind::Graph, 11 | 12) => Some(Kind::ValueInfo),
            (Kind::Node, 5) => Some(Kind::Attribute),
            (Kind::ValueInfo, 2) => Some(Kind::Type),
            (Kind::Type, 1) => Some(Kind::TensorType),
            (Kind::TensorType, 2) => Some(Kind::Shape),
            (Kind::Model, 8 | 25)
            | (Kind::Graph, 5)
            | (Kind::Node, 1 | 2)
            | (Kind::Attribute, 5 | 9)
            | (Kind::Shape, 1) => Some(Kind::Leaf),
            _ => None,
        }
    }
}

/// Refuses a file whose decoded form would be much larger than the file.
pub(super) fn check_size(bytes: &[u8]) -> Result<(), LoadError> {
    let max = (FREE_MESSAGES + bytes.len() / BYTES_PER_MESSAGE).min(MAX_MESSAGES);
    let mut left = max;
    match count(bytes, Kind::Model, &mut left) {
        Some(()) => Ok(()),
        None if left == 0 => Err(malformed(format!(
            "more than {max} messages in {} bytes; a graph of recurrent layers has fewer",
            bytes.len()
        ))),
        None => Err(malformed(
            "the bytes end inside a field; is the file complete?",
        )),
    }
}

/// Counts down `left`; `None` if the count or the bytes run out. Recurses as deep as `Kind` nests:
/// eight levels.
fn count(mut bytes: &[u8], kind: Kind, left: &mut usize) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        match key & 7 {
            0 => {
                varint(&mut bytes)?;
            }
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let body = bytes.get(..length)?;
                bytes = &bytes[length..];
                if let Some(child) = kind.child(key >> 3) {
                    *left -= 1;
                    if *left == 0 {
                        return None;
                    }
                    if !matches!(child, Kind::Leaf) {
                        count(body, child, left)?;
                    }
                }
            }
            5 => bytes = bytes.get(4..)?,
            // ONNX has no groups.
            _ => return None,
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The error for a file that is not well-formed ONNX.
pub(super) fn malformed(reason: impl Into<String>) -> LoadError {
    LoadError::Malformed {
        format: "ONNX",
        reason: reason.into(),
    }
}

/// Number of values that may still be allocated: for constants computed from constants, and for the
/// weights of layers (many nodes may share one tensor).
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    /// Eight values for each byte: in real files each weight is sliced, reordered and joined a few
    /// times.
    pub(super) fn of_file(bytes: usize) -> Budget {
        Budget {
            left: bytes.saturating_mul(8).saturating_add(1 << 16),
        }
    }

    /// Takes `values` from the budget, or fails if too few are left.
    pub(super) fn charge(&mut self, values: usize) -> Result<(), String> {
        match self.left.checked_sub(values) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(
                "the constants computed in this graph exceed eight values per byte of the file; \
                 fold constants before exporting"
                    .into(),
            ),
        }
    }
}
