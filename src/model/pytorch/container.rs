//! The containers of `torch.save`: where a file has its pickle and the bytes of its storages.
//!
//! ```text
//! archive (since 1.6)   ZIP, entries stored: NAME/data.pkl, NAME/data/KEY, NAME/byteorder
//! legacy (0.1.10–1.5)   pickles: magic number, 1001, system · pickle · pickle of keys
//!                       · for each key: number of values (8 bytes), values
//! plain                 a pickle alone, of NumPy arrays, or of tensors that `pickle.dump` wrote
//! ```

use std::collections::HashMap;
use std::io::Cursor;

use zip::{CompressionMethod, ZipArchive};

use super::pickle::{Pickle, Value};

/// The first pickle of a legacy file is this number.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// A checkpoint: its pickle, and the bytes of its storages.
pub(super) struct Checkpoint<'a> {
    pub pickle: Pickle<'a>,
    pub storages: Storages<'a>,
    /// Bytes of the file.
    pub length: usize,
}

/// The bytes of storages.
pub(super) enum Storages<'a> {
    None,
    ByKey(HashMap<&'a str, &'a [u8]>),
    OfArchive(HashMap<String, &'a [u8]>),
}

impl<'a> Storages<'a> {
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        match self {
            Storages::None => None,
            Storages::ByKey(all) => all.get(key).copied(),
            Storages::OfArchive(all) => all.get(key).copied(),
        }
    }
}

/// Why a file is not read.
pub(super) enum Refusal {
    /// It is something else: this, and the way to a model.
    Foreign(&'static str, String),
    Malformed(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Malformed(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Refusal {
        Refusal::Malformed(why.into())
    }
}

impl<'a> Checkpoint<'a> {
    /// Reads a file of any container.
    ///
    /// # Errors
    /// It is none, or contradicts itself.
    pub fn read(bytes: &'a [u8]) -> Result<Checkpoint<'a>, Refusal> {
        if bytes.starts_with(b"PK") {
            return archive(bytes);
        }
        if bytes.get(257..262) == Some(b"ustar") {
            return Err(Refusal::Foreign(
                "a tar archive",
                "unpack it and name the file in it; one of PyTorch before 0.1.10 is read by \
                 torch.load, and torch.save writes it anew"
                    .into(),
            ));
        }
        if let Some(found) = legacy(bytes)? {
            return Ok(found);
        }
        Ok(Checkpoint {
            pickle: Pickle::read(bytes)?,
            storages: Storages::None,
            length: bytes.len(),
        })
    }
}

fn archive(bytes: &[u8]) -> Result<Checkpoint<'_>, Refusal> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| {
        "the directory at the end of its archive is missing; the file may have been cut short, so \
         get or save it again"
    })?;
    let mut entries: HashMap<String, &[u8]> = HashMap::new();
    let mut packed = None;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index);
        let entry = entry.map_err(|why| format!("entry {index} of its archive: {why}"))?;
        let name = entry
            .name()
            .map_err(|_| "a name in its archive is not UTF-8")?;
        let name = name.into_owned();
        if entry.compression() != CompressionMethod::Stored {
            packed = Some(name.clone());
        }
        let data = (entry.data_start())
            .and_then(|start| bytes.get(usize::try_from(start).ok()?..))
            .and_then(|rest| rest.get(..usize::try_from(entry.size()).ok()?));
        let data = match packed {
            // The size is that of the unpacked bytes.
            Some(_) => &[],
            None => data.ok_or_else(|| {
                let size = entry.size();
                format!("entry {name:?} has {size} bytes, which lie beyond the archive's end")
            })?,
        };
        entries.insert(name, data);
    }
    let has = |name: &str| entries.keys().any(|entry| in_folder(entry) == name);
    let has_folder = |folder: &str| {
        let mut inner = entries.keys().map(|entry| in_folder(entry));
        inner.any(|name| name.starts_with(folder))
    };
    if has("constants.pkl") || has_folder("code/") || has("model.json") && has_folder("tensors/") {
        return Err(Refusal::Foreign(
            "a TorchScript archive (torch.jit.save), which holds a program",
            "in Python, `torch.save(torch.jit.load(FILE).state_dict(), \"model.pt\")` writes its \
             weights, `model.state_dict()`, to a file that is read here"
                .into(),
        ));
    }
    if has("archive_format") || has_folder("models/") && has_folder("data/weights") {
        return Err(Refusal::Foreign(
            "an archive of torch.export, which holds a program",
            "in Python, `torch.save(torch.export.load(FILE).state_dict, \"model.pt\")` writes its \
             weights, and torch.onnx.export an .onnx file"
                .into(),
        ));
    }
    let Some(pickle) = entries.keys().find(|entry| in_folder(entry) == "data.pkl") else {
        let mut names: Vec<&str> = entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names.truncate(3);
        return Err(Refusal::Foreign(
            "a ZIP archive without a checkpoint (data.pkl)",
            format!(
                "unpack it and name the model in it; it holds {}",
                names.join(", ")
            ),
        ));
    };
    if let Some(name) = packed {
        return Err(format!(
            "entry {name:?} of its archive is compressed, which torch.save never does; load it in \
             Python and save it again"
        )
        .into());
    }
    let folder = pickle.strip_suffix("data.pkl").unwrap_or_default();
    if entries.get(&format!("{folder}byteorder")) == Some(&&b"big"[..]) {
        return Err(BIG_ENDIAN.into());
    }
    let read = Pickle::read(entries[pickle])?;
    let folder = format!("{folder}data/");
    let storages = entries.into_iter().filter_map(|(name, bytes)| {
        let key = name.strip_prefix(&folder)?;
        Some((key.to_owned(), bytes))
    });
    Ok(Checkpoint {
        pickle: read,
        storages: Storages::OfArchive(storages.collect()),
        length: bytes.len(),
    })
}

const BIG_ENDIAN: &str =
    "it was saved on a big-endian machine; load it in Python and save it again";

/// The name within the folder that all entries of an archive have.
fn in_folder(entry: &str) -> &str {
    entry.split_once('/').map_or(entry, |(_, name)| name)
}

/// `None`: it is a plain pickle.
fn legacy(bytes: &[u8]) -> Result<Option<Checkpoint<'_>>, String> {
    let head = &bytes[..bytes.len().min(64)];
    if !head.windows(MAGIC.len()).any(|window| window == MAGIC) {
        return Ok(None);
    }
    let mut rest = bytes;
    let mut next = || -> Result<Pickle<'_>, String> {
        let pickle = Pickle::read(rest)?;
        rest = &rest[pickle.length..];
        Ok(pickle)
    };
    // The magic number is wider than an integer here.
    next()?;
    let protocol = next()?;
    if !matches!(protocol.get(protocol.root), Value::Int(1001)) {
        return Err("its protocol is not 1001".into());
    }
    let system = next()?;
    if let Value::Dict(items) = system.get(system.root) {
        let order = items
            .iter()
            .find(|(key, _)| system.text(*key) == Some("little_endian"));
        if order.is_some_and(|&(_, value)| matches!(system.get(value), Value::Bool(false))) {
            return Err(BIG_ENDIAN.into());
        }
    }
    let pickle = next()?;
    let keys = next()?;
    let widths = widths(&pickle);
    let mut storages = HashMap::new();
    for &key in keys
        .elements(keys.root)
        .ok_or("its storages have no list")?
    {
        let key = keys.text(key).ok_or("a storage has no name")?;
        let cut = || format!("it is cut short: storage {key:?} is missing");
        let (count, values) = rest.split_first_chunk().ok_or_else(cut)?;
        let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| cut())?;
        let length = count.checked_mul(widths.get(key).copied().unwrap_or(1));
        let (values, left) = length
            .and_then(|length| values.split_at_checked(length))
            .ok_or_else(cut)?;
        storages.insert(key, values);
        rest = left;
    }
    Ok(Some(Checkpoint {
        pickle,
        storages: Storages::ByKey(storages),
        length: bytes.len(),
    }))
}

/// Bytes of a value of each storage.
fn widths<'a>(pickle: &Pickle<'a>) -> HashMap<&'a str, usize> {
    let of = |value: &Value<'a>| match value {
        Value::Persistent(id) => {
            let storage = super::storage::Reference::read(pickle, *id)?;
            Some((storage.key?, storage.dtype.map_or(1, super::width)))
        }
        _ => None,
    };
    pickle.values().filter_map(of).collect()
}
