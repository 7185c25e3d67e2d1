//! The error of a command: one line, with the exit status it leads to.

use std::fmt;
use std::path::Path;

/// The error of a command, in one line that names the correction.
///
/// Every error converts into it, so subcommands use `?`.
#[derive(Debug)]
pub struct Failure {
    line: String,
    kind: FailureKind,
}

/// The kind of a [`Failure`]; it decides the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The input was refused: exit status 1.
    Refused,
    /// The arguments contradict each other: exit status 2.
    Usage,
    /// The reader of standard output has closed it: exit status 0.
    ClosedPipe,
}

impl Failure {
    /// A refusal with this message.
    pub fn new(line: impl Into<String>) -> Failure {
        Failure::one_line(line.into(), FailureKind::Refused)
    }

    /// Arguments that contradict each other, whatever the files contain.
    pub fn usage(line: impl Into<String>) -> Failure {
        Failure::one_line(line.into(), FailureKind::Usage)
    }

    /// Replaces line breaks of file names and library messages, so that a message is one line.
    fn one_line(line: String, kind: FailureKind) -> Failure {
        let line = line.replace(['\n', '\r'], " ");
        Failure { line, kind }
    }

    /// The kind, which decides the exit status.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The same failure with the name of the file, unless the message contains it already.
    #[must_use]
    pub fn of(self, path: &Path) -> Failure {
        let named = Failure::one_line(path.display().to_string(), self.kind);
        if self.line.contains(&named.line) {
            self
        } else {
            Failure::one_line(format!("{}: {}", named.line, self.line), self.kind)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let closed_pipe = (&error as &dyn std::error::Error)
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe);
        // The line names every cause.
        let mut line = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let inner_line = inner.to_string();
            if !line.contains(&inner_line) {
                line = format!("{line}: {inner_line}");
            }
            cause = inner.source();
        }
        let kind = if closed_pipe {
            FailureKind::ClosedPipe
        } else {
            FailureKind::Refused
        };
        Failure::one_line(line, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load\nx.onnx")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn a_failure_is_one_line_with_its_causes() {
        let inner = "q".parse::<i32>().unwrap_err();
        let failure = Failure::from(Outer(inner));
        assert_eq!(
            failure.to_string(),
            "cannot load x.onnx: invalid digit found in string"
        );
    }

    #[test]
    fn a_path_of_two_lines_is_named_once_in_one() {
        let path = Path::new("a\nb.npy");
        let failure = Failure::new(format!("{}: is empty", path.display())).of(path);
        assert_eq!(failure.to_string(), "a b.npy: is empty");
        let failure = Failure::usage("give\r\none").of(path);
        assert_eq!(failure.to_string(), "a b.npy: give  one");
        assert_eq!(failure.kind, FailureKind::Usage);
    }
}
