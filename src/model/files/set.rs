//! Sets of files that hold one state dict together.
//!
//! ```text
//! model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
//! model.safetensors.index.json      { "weight_map": { name of a tensor: file, … } }
//! ```
//!
//! One file of a set is never read alone: a stack whose upper layers are in another file would be a
//! shorter stack.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::LoadError;

/// Largest index, in bytes: many more than a set with a recurrent stack has.
const MAX_INDEX: u64 = 64 << 20;

const INDEX_ENDING: &str = ".index.json";

/// The files of a set.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub files: Vec<PathBuf>,
    /// The index, and the file of each tensor in it.
    pub index: Option<(PathBuf, BTreeMap<String, String>)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Set {
    /// The set that a file belongs to; a set of one if it is alone.
    ///
    /// # Errors
    /// [`LoadError::Set`]: other files of the set are missing.
    pub fn of(path: &Path) -> Result<Set, LoadError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        for index in indices_beside(path) {
            // Another one may be broken, or too large.
            let Ok(map) = read_index(&index) else {
                continue;
            };
            if map.values().any(|file| file == name) && map.values().any(|file| file != name) {
                return Set::of_map(index, map);
            }
        }
        let Some(numbered) = Numbered::parse(name) else {
            return Ok(Set {
                files: vec![path.into()],
                index: None,
            });
        };
        let Numbered { before, after, .. } = numbered;
        let width = numbered.number.len();
        let total: usize = numbered.total.parse().unwrap_or(usize::MAX);
        let mut files = Vec::new();
        for member in 1..=total {
            let file = format!("{before}-{member:0width$}-of-{total:0width$}{after}");
            let file = path.with_file_name(&file);
            if !file.is_file() {
                return Err(missing(path, &file));
            }
            files.push(file);
        }
        Ok(Set { files, index: None })
    }

    /// The set of an index.
    ///
    /// # Errors
    /// [`LoadError::Set`]: the index cannot be read, or a file of the set is missing.
    pub fn of_index(index: &Path) -> Result<Set, LoadError> {
        Set::of_map(index.into(), read_index(index)?)
    }

    fn of_map(index: PathBuf, map: BTreeMap<String, String>) -> Result<Set, LoadError> {
        let names: BTreeSet<&String> = map.values().collect();
        let mut files = Vec::new();
        for name in names {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                let why = format!("the file {name:?} of the set is not in the folder of its index");
                return Err(LoadError::Set { path: index, why });
            }
            let file = index.with_file_name(name);
            if !file.is_file() {
                return Err(missing(&index, &file));
            }
            files.push(file);
        }
        Ok(Set {
            files,
            index: Some((index, map)),
        })
    }
}

fn missing(path: &Path, file: &Path) -> LoadError {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    LoadError::Set {
        path: path.into(),
        why: format!(
            "the model is a set of files, of which {name:?} is missing; put all of them into one \
             folder"
        ),
    }
}

/// The parts of `model-00001-of-00002.safetensors`, the name of a file of a set.
#[derive(Debug, PartialEq)]
struct Numbered<'n> {
    before: &'n str,
    number: &'n str,
    total: &'n str,
    after: &'n str,
}

impl<'n> Numbered<'n> {
    /// `None`: it is no name of one of several files.
    fn parse(name: &'n str) -> Option<Numbered<'n>> {
        let (first, rest) = name.rsplit_once("-of-")?;
        let (before, number) = first.rsplit_once('-')?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (total, after) = rest.split_at(end);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let of_several = total.parse::<usize>().is_ok_and(|total| total > 1);
        // As Hugging Face writes them: fold-1-of-5.pt is no part of a model.
        let are_numbers = is_number(number) && number.len() == total.len() && total.len() >= 5;
        (are_numbers && of_several).then_some(Numbered {
            before,
            number,
            total,
            after,
        })
    }
}

/// The indices in the folder of a file.
fn indices_beside(path: &Path) -> Vec<PathBuf> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names = names.filter(|name| name.ends_with(INDEX_ENDING));
    let mut found: Vec<PathBuf> = names.map(|name| path.with_file_name(name)).collect();
    found.sort();
    found
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let failed = |source| LoadError::Io {
        path: path.into(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_INDEX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    let index: Index = serde_json::from_str(&text).map_err(|why| LoadError::Set {
        path: path.into(),
        why: format!("this index of a set of files cannot be read: {why}"),
    })?;
    Ok(index.weight_map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sets_are_recognised() {
        let found = Numbered::parse("a-of-b-00002-of-00003.safetensors");
        let expected = Numbered {
            before: "a-of-b",
            number: "00002",
            total: "00003",
            after: ".safetensors",
        };
        assert_eq!(found, Some(expected));
        assert!(Numbered::parse("pytorch_model-00001-of-00002.bin").is_some());
        for alone in [
            "model.safetensors",
            "model-00001-of-00001.safetensors",
            "best-of-2.pt",
            "fold-1-of-5.pt",
            "epoch-3-of-9.ckpt",
            "epoch-3-of-10.ckpt",
            "-of-",
        ] {
            assert_eq!(Numbered::parse(alone), None, "{alone}");
        }
    }
}
