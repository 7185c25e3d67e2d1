//! `NAME=FILE` on the command line.

use std::path::PathBuf;
use std::str::FromStr;

/// A name and the file of its array.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub path: PathBuf,
}

impl FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Named, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(Named {
                name: name.into(),
                path: path.into(),
            }),
            _ => Err("expected NAME=FILE.npy".into()),
        }
    }
}
