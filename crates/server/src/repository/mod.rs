//! The folder of models.
//!
//! ```text
//! REPOSITORY/NAME/config.toml                          optional
//! REPOSITORY/NAME/VERSION/model.onnx | .safetensors    VERSION: a number of 1 or more
//!                         | .pt | …
//! ```
//!
//! A name in a request is looked up among the names found here. It is never part of a path.

mod config;

use std::collections::BTreeMap;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

pub use config::{Kind, ModelConfig, Seq2SeqConfig, WarmUpConfig};

/// The option for a single file that is the entry `safetensors.prefix` of a folder.
pub const PREFIX_OPTION: &str = "--prefix";

/// Why a repository or a model's entry cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct RepositoryError {
    pub path: String,
    pub why: String,
}

impl RepositoryError {
    fn new(path: &Path, why: impl ToString) -> RepositoryError {
        RepositoryError {
            path: path.display().to_string(),
            why: why.to_string(),
        }
    }
}

/// The place of the models.
#[derive(Clone, Debug)]
pub enum Repository {
    Folder(PathBuf),
    /// A single model, with the prefix of its tensors if it has several stacks.
    File(PathBuf, Option<String>),
}

/// A model of the repository.
#[derive(Clone, Debug)]
pub struct Entry {
    pub config: ModelConfig,
    /// The file of each version that is loaded.
    pub versions: BTreeMap<u64, PathBuf>,
}

/// The files that may hold a model, in the order of preference. The index of a set stands for its
/// files.
const FILES: [&str; 9] = [
    "model.onnx",
    "model.safetensors",
    "model.safetensors.index.json",
    "model.pt",
    "model.pth",
    "model.ckpt",
    "model.bin",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

impl Repository {
    /// The repository at this path: a folder, or the file of one model.
    ///
    /// # Errors
    /// There is neither.
    pub fn open(path: &Path) -> Result<Repository, RepositoryError> {
        let failed = |why| RepositoryError::new(path, why);
        let found = std::fs::metadata(path).map_err(failed)?;
        // Errors have this path: that of a relative folder may be a word of any text.
        let absolute = std::path::absolute(path).map_err(failed)?;
        let absolute = absolute.components().collect();
        Ok(if found.is_dir() {
            Repository::Folder(absolute)
        } else {
            Repository::File(absolute, None)
        })
    }

    /// A text without the path of the repository before those of its files.
    pub fn without_paths(&self, text: &str) -> String {
        let folder = match self {
            Repository::Folder(path) => path,
            Repository::File(path, _) => path.parent().unwrap_or(path),
        };
        text.replace(&format!("{}{MAIN_SEPARATOR}", folder.display()), "")
    }

    /// The same with a prefix of the tensors of a single model.
    ///
    /// # Errors
    /// It is a folder.
    pub fn with_prefix(self, prefix: &str) -> Result<Repository, RepositoryError> {
        match self {
            Repository::File(path, _) => Ok(Repository::File(path, Some(prefix.to_owned()))),
            Repository::Folder(path) => Err(RepositoryError::new(
                &path,
                "a prefix applies to the file of one model; in a folder, config.toml of each model \
                 has it",
            )),
        }
    }

    /// The names of the models.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, RepositoryError> {
        match self {
            Repository::File(path, _) => Ok(vec![name_of(path)]),
            Repository::Folder(path) => {
                let named = |name: &String| is_name(name);
                Ok(folders(path)?.into_iter().filter(named).collect())
            }
        }
    }

    /// The model of this name; `None`: there is none.
    ///
    /// # Errors
    /// Its configuration is invalid, or it has no file.
    pub fn entry(&self, name: &str) -> Result<Option<Entry>, RepositoryError> {
        if !self.names()?.iter().any(|found| found == name) {
            return Ok(None);
        }
        let folder = match self {
            Repository::File(path, prefix) => {
                let mut config = ModelConfig::default();
                config.safetensors.prefix.clone_from(prefix);
                // Kinds without prefixes refuse it.
                let given = prefix.iter().map(|_| PREFIX_OPTION.to_owned());
                config.given.extend(given);
                return Ok(Some(Entry {
                    config,
                    versions: BTreeMap::from([(1, path.clone())]),
                }));
            }
            Repository::Folder(path) => path.join(name),
        };
        let config = read_config(&folder)?;
        let mut files = BTreeMap::new();
        for version in folders(&folder)? {
            let Some(number) = version_number(&version) else {
                continue;
            };
            let exists = |file: &PathBuf| file.is_file();
            let files_of = FILES.iter().map(|file| folder.join(&version).join(file));
            if let Some(file) = { files_of }.find(exists) {
                files.insert(number, file);
            }
        }
        let existing: Vec<u64> = files.keys().copied().collect();
        let loaded = config.versions.of(&existing);
        files.retain(|version, _| loaded.contains(version));
        if files.is_empty() {
            Err(RepositoryError::new(
                &folder,
                "no version to load; a version is a folder such as 1 with model.onnx, \
                 model.safetensors or model.pt",
            ))
        } else {
            Ok(Some(Entry {
                config,
                versions: files,
            }))
        }
    }
}

/// The number of a version's folder.
fn version_number(name: &str) -> Option<u64> {
    let number = name.parse().ok().filter(|&number| number > 0)?;
    (u64::to_string(&number) == name).then_some(number)
}

/// Whether a folder is a model: others are hidden, or have names that a path of a request cannot
/// have.
fn is_name(name: &str) -> bool {
    !name.starts_with('.') && !name.contains(['/', '\\', '\n'])
}

/// The model's name is that of its file.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

fn folders(path: &Path) -> Result<Vec<String>, RepositoryError> {
    let failed = |why| RepositoryError::new(path, why);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_config(folder: &Path) -> Result<ModelConfig, RepositoryError> {
    let path = folder.join("config.toml");
    match std::fs::read_to_string(&path) {
        Ok(text) => ModelConfig::parse(&text).map_err(|why| RepositoryError::new(&path, why)),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(ModelConfig::default()),
        Err(why) => Err(RepositoryError::new(&path, why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lose_the_path_of_a_relative_repository_only() {
        let repository = Repository::open(Path::new("src/")).expect("a folder");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/a/1/model.onnx");
        let told = repository.without_paths(&format!("{}: src/a of a client", file.display()));
        let file = Path::new("a/1/model.onnx").display();
        assert_eq!(told, format!("{file}: src/a of a client"));
    }
}
