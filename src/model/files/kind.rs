//! The kind of a model file, by its bytes.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::{foreign, unknown};
use crate::model::LoadError;

/// Bytes at the start of a file that tell its kind.
const HEAD: u64 = 4096;

/// The kind of a model file. Its bytes tell it; the ending counts only where they tell nothing.
///
/// ```no_run
/// use gatestream::model::FileKind;
/// let kind = FileKind::of("epoch=7.ckpt")?;
/// assert_eq!(kind, FileKind::PyTorch);
/// assert!(kind.holds_tensors());
/// # Ok::<(), gatestream::model::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A graph of operators with its weights.
    Onnx,
    /// Named tensors.
    Safetensors,
    /// A checkpoint of `torch.save` or `pickle.dump`.
    PyTorch,
    /// The index of a set of files of tensors (`model.safetensors.index.json`).
    Index,
}

impl FileKind {
    /// The kind of the file at `path`.
    ///
    /// # Errors
    /// [`LoadError::Io`]: it cannot be read. [`LoadError::Foreign`]: it is something else that is
    /// known, such as a web page, the pointer of git-lfs, or a file of another framework; the error
    /// says how it becomes a model. [`LoadError::UnknownFormat`]: it is nothing that is known.
    pub fn of(path: impl AsRef<Path>) -> Result<FileKind, LoadError> {
        let path = path.as_ref();
        let failed = |source| LoadError::Io {
            path: path.into(),
            source,
        };
        if path.is_dir() {
            return Err(foreign::error(path, foreign::of_folder(path)));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut head = Vec::new();
        let read = file.by_ref().take(HEAD).read_to_end(&mut head);
        read.map_err(failed)?;
        let ending = path.extension().and_then(|ending| ending.to_str());
        let ending = ending.unwrap_or("").to_ascii_lowercase();
        // Its first byte may be any.
        if is_safetensors(&head) {
            return Ok(FileKind::Safetensors);
        }
        if let Some(found) = foreign::of_content(&head, &ending) {
            return Err(foreign::error(path, found));
        }
        if let Some(kind) = of_head(&head) {
            return Ok(kind);
        }
        if is_onnx(BufReader::new(file)).map_err(failed)? {
            return Ok(FileKind::Onnx);
        }
        if let Some(found) = foreign::of_ending(&ending) {
            return Err(foreign::error(path, found));
        }
        // Their readers say what is wrong.
        match ending.as_str() {
            "onnx" => Ok(FileKind::Onnx),
            "safetensors" => Ok(FileKind::Safetensors),
            "pt" | "pth" | "ckpt" => Ok(FileKind::PyTorch),
            _ if head.is_empty() => Err(foreign::error(path, foreign::EMPTY)),
            _ => Err(unknown(path)),
        }
    }

    /// Whether files of this kind hold tensors without a graph.
    pub fn holds_tensors(self) -> bool {
        self != FileKind::Onnx
    }
}

/// The kind that the first bytes tell, of files that are nothing else.
fn of_head(head: &[u8]) -> Option<FileKind> {
    let text = head.trim_ascii_start();
    if text.starts_with(b"{") {
        return Some(FileKind::Index);
    }
    // An archive, a tar file, a pickle; of protocol 0, a dictionary, a list or a class.
    let is_pickle = matches!(head, [0x80, 2..=5, ..])
        || [&b"(dp"[..], b"(lp", b"ccollections\n", b"ccopy_reg\n"]
            .iter()
            .any(|start| head.starts_with(start));
    let is_checkpoint =
        is_pickle || head.starts_with(b"PK") || head.get(257..262) == Some(b"ustar");
    is_checkpoint.then_some(FileKind::PyTorch)
}

/// The length of the header, and the header: an object.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk() else {
        return false;
    };
    u64::from_le_bytes(*length) <= 100 << 20 && rest.starts_with(b"{")
}

/// Whether a file has the fields of an ONNX model, a graph among them.
///
/// ```text
/// field  = key (number of the field · 8 + type of its value) · value
/// fields = 1 IR version, 2–6 producer and texts, 7 graph, 8 opsets, 14, 20, 25, 26
/// ```
fn is_onnx(mut file: BufReader<File>) -> io::Result<bool> {
    let length = file.get_ref().metadata()?.len();
    file.seek(SeekFrom::Start(0))?;
    // Many more than a model has before its graph.
    for _ in 0..1000 {
        let Some(key) = varint(&mut file)? else {
            return Ok(false);
        };
        let size = match (key >> 3, key & 7) {
            (7, 2) => return Ok(true),
            (1 | 5, 0) => {
                varint(&mut file)?;
                continue;
            }
            (2..=4 | 6 | 8 | 14 | 20 | 25 | 26, 2) => varint(&mut file)?,
            _ => return Ok(false),
        };
        let end = size.and_then(|size| file.stream_position().ok()?.checked_add(size));
        match end.filter(|&end| end < length) {
            Some(end) => drop(file.seek(SeekFrom::Start(end))?),
            None => return Ok(false),
        }
    }
    Ok(false)
}

/// `None`: the file ends, or this is no number.
fn varint(file: &mut impl Read) -> io::Result<Option<u64>> {
    let mut number = 0;
    for place in 0..10 {
        let mut byte = [0];
        if file.read(&mut byte)? == 0 {
            return Ok(None);
        }
        number |= u64::from(byte[0] & 0x7f)
            .checked_shl(7 * place)
            .unwrap_or(0);
        if byte[0] & 0x80 == 0 {
            return Ok(Some(number));
        }
    }
    Ok(None)
}
