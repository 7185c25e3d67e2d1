//! `NAME=FILE` on the command line.

use std::path::PathBuf;
use std::str::FromStr;

/// A name and the file of its array. A `=` within the name is written `\=`.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub name: String,
    pub path: PathBuf,
}

impl FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Named, String> {
        let (mut name, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('=') {
            rest = after;
            if let Some(escaped) = before.strip_suffix('\\') {
                name = name + escaped + "=";
                continue;
            }
            name += before;
            if name.is_empty() || rest.is_empty() {
                break;
            }
            return Ok(Named {
                name,
                path: rest.into(),
            });
        }
        Err("expected NAME=FILE.npy; a = within NAME is written \\=".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_equals_signs() {
        for (text, name, path) in [
            ("x=x.npy", "x", "x.npy"),
            ("x=day=1/x.npy", "x", "day=1/x.npy"),
            ("a\\=b=x.npy", "a=b", "x.npy"),
            ("\\=\\==x.npy", "==", "x.npy"),
            ("a\\b=x.npy", "a\\b", "x.npy"),
        ] {
            let (name, path) = (name.to_owned(), path.into());
            assert_eq!(text.parse(), Ok(Named { name, path }));
        }
        for text in ["", "x", "=x.npy", "x=", "x\\=y.npy"] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }
}
