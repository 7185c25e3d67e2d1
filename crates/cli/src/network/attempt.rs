//! A run of a graph for `inspect`, on made-up inputs.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::{Source, open, without_file};
use crate::model::FileOptions;
use crate::named::Named;
use gatestream_network::Attempt;
use serde_json::{Value, json};

/// A longer preparation is not waited for.
const LONGEST: Duration = Duration::from_secs(20);

/// Of the thread that prepares the graph, as of the main thread.
const STACK_BYTES: usize = 8 << 20;

/// `NAME=N,N,…`
#[derive(Clone, Debug, PartialEq)]
pub struct NamedShape(String, Vec<usize>);

impl FromStr for NamedShape {
    type Err = String;
    fn from_str(text: &str) -> Result<NamedShape, String> {
        let expected =
            "expected NAME=N,N,… with the size of each axis; a = within NAME is written \\=";
        // A scalar has no sizes.
        let (text, is_scalar) = if text.ends_with('=') {
            (format!("{text}-"), true)
        } else {
            (text.to_owned(), false)
        };
        let Named { name, path } = text.parse().map_err(|_| expected.to_owned())?;
        if is_scalar {
            return Ok(NamedShape(name, Vec::new()));
        }
        let sizes = path.to_string_lossy();
        let sizes = sizes.split(',').map(|size| size.trim().parse());
        let sizes = sizes.collect::<Result<_, _>>();
        Ok(NamedShape(name, sizes.map_err(|_| expected.to_owned())?))
    }
}

/// What came of a run.
#[derive(Debug)]
pub enum Tried {
    Ran(Attempt),
    /// The graph was not loaded, for this reason.
    Refused(String),
    TookLong,
}

impl Tried {
    pub fn has_failed(&self) -> bool {
        match self {
            Tried::Ran(attempt) => attempt.failure.is_some(),
            Tried::Refused(_) => true,
            Tried::TookLong => false,
        }
    }

    /// For `--json`.
    pub fn object(&self) -> Value {
        let shapes = match self {
            Tried::Ran(attempt) => attempt.shapes.as_slice(),
            _ => &[],
        };
        let shapes = shapes.iter().cloned();
        let shapes: std::collections::BTreeMap<_, _> = shapes.collect();
        let failure = match self {
            Tried::Ran(attempt) => attempt.failure.clone(),
            Tried::Refused(why) => Some(why.clone()),
            Tried::TookLong => Some(self.to_string()),
        };
        json!({"shapes": shapes, "failure": failure})
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = match self {
            Tried::Ran(attempt) => attempt,
            Tried::Refused(why) => return write!(f, "no: {why}"),
            Tried::TookLong => {
                return write!(f, "not known: its preparation takes more than {LONGEST:?}");
            }
        };
        let shapes = attempt.shapes.iter();
        let shapes: Vec<String> = shapes.map(|(name, of)| format!("{name} {of:?}")).collect();
        let shapes = shapes.join(", ");
        match &attempt.failure {
            None if shapes.is_empty() => write!(f, "yes"),
            None => write!(f, "yes (tried with {shapes})"),
            Some(why) if shapes.is_empty() => {
                write!(f, "not tried: {why}; give its shape by --shape NAME=N,N,…")
            }
            Some(why) => write!(
                f,
                "no with ones of these shapes: {shapes}: {why}; --shape NAME=N,N,… tries others"
            ),
        }
    }
}

/// Runs a graph once.
pub fn attempt(model: &Path, options: &FileOptions, shapes: &[NamedShape]) -> Tried {
    let shapes = shapes
        .iter()
        .map(|NamedShape(name, of)| (name.clone(), of.clone()));
    let (model, shapes) = (model.to_owned(), shapes.collect::<Vec<_>>());
    let (clip_output, unchecked) = (options.clip_output, options.unchecked);
    let (sender, receiver) = channel();
    let run = move || {
        let source = Source {
            model: &model,
            threads: None,
            precision: None,
            clip_output,
            unchecked,
        };
        let tried = match open(source, None) {
            Ok(network) => Tried::Ran(network.attempt(&shapes)),
            Err(why) => Tried::Refused(without_file(&why, &model)),
        };
        let _ = sender.send(tried);
    };
    let thread = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(run);
    if let Err(why) = thread {
        return Tried::Refused(format!("no thread could be started: {why}"));
    }
    match receiver.recv_timeout(LONGEST) {
        Ok(tried) => tried,
        Err(RecvTimeoutError::Timeout) => Tried::TookLong,
        Err(RecvTimeoutError::Disconnected) => Tried::Refused("its preparation panicked".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_names() {
        for (text, name, shape) in [
            ("x=1,2,3", "x", vec![1, 2, 3]),
            ("x=7", "x", vec![7]),
            ("sr=", "sr", vec![]),
            ("a\\=b=0, 2", "a=b", vec![0, 2]),
        ] {
            assert_eq!(text.parse(), Ok(NamedShape(name.into(), shape)), "{text}");
        }
        for text in ["x", "=1", "x=a", "x=-1", "x=1,,2"] {
            assert!(text.parse::<NamedShape>().is_err(), "{text}");
        }
    }
}
