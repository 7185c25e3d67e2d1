//! The command line. Each subcommand is one file with its arguments and a `run`; to add one, add its
//! file, a variant of `Command` and an arm in [`main`].
//!
//! Exit status: 0 done; 1 the input was refused, with one line on standard error that says what to
//! change ([`Failure`]); 2 usage (from clap, or a [`Failure`] about arguments that clap cannot see).

mod bench;
mod explain;
mod interrupt;
mod load;
mod machine;
mod memory;
mod model;
mod npy;
mod output;
mod plan;
mod precision;
mod printer;
mod profile;
#[cfg(feature = "safetensors")]
mod quantize;
mod run;
mod sample;
mod tune;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// Runs recurrent networks (LSTM, GRU, RNN) on CPUs at the lowest latency, exact to the last bit.
#[derive(Debug, Parser)]
#[command(name = "cellstream", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Machine(machine::Arguments),
    Run(run::Arguments),
    Bench(bench::Arguments),
    Explain(explain::Arguments),
    Load(Box<load::Arguments>),
    Tune(tune::Arguments),
    #[cfg(feature = "safetensors")]
    Quantize(quantize::Arguments),
}

/// Reads the process's arguments and does what they say.
pub fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Machine(arguments) => machine::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        #[cfg(feature = "safetensors")]
        Command::Quantize(arguments) => quantize::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough (`cellstream machine | head -1`).
        Err(failure) if failure.kind == Kind::ClosedPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cellstream: {failure}");
            ExitCode::from(if failure.kind == Kind::Usage { 2 } else { 1 })
        }
    }
}

/// A time given as an argument.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("expected seconds above 0, at most 3600".into()),
    }
}

/// Why a command was refused, in one line that says what to change.
///
/// Every error converts into one, so that `?` is all a subcommand needs.
#[derive(Debug)]
pub struct Failure {
    line: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Refused,
    Usage,
    ClosedPipe,
}

impl Failure {
    /// A refusal in the command line's own words.
    fn new(line: impl Into<String>) -> Failure {
        Failure::one_line(line.into(), Kind::Refused)
    }

    /// Arguments that make no sense together, whatever is in the files.
    fn usage(line: impl Into<String>) -> Failure {
        Failure::one_line(line.into(), Kind::Usage)
    }

    /// Every failure is made here: one line, whatever a file name or a library put in.
    fn one_line(line: String, kind: Kind) -> Failure {
        let line = line.replace(['\n', '\r'], " ");
        Failure { line, kind }
    }

    /// The same refusal, of this file: for errors that do not say which.
    fn of(self, path: &Path) -> Failure {
        let named = Failure::one_line(path.display().to_string(), self.kind);
        match self.line.contains(&named.line) {
            true => self,
            false => Failure::one_line(format!("{}: {}", named.line, self.line), self.kind),
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
        let kind = match closed_pipe {
            true => Kind::ClosedPipe,
            false => Kind::Refused,
        };
        Failure::one_line(line, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

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
        assert_eq!(failure.kind, Kind::Usage);
    }
}
