//! The program `gatestream`, as a function for packages that have it ([`run`]). Each subcommand is
//! one file with its arguments and a `run`; to add one, add its file, a variant of `Command` and
//! an arm in [`run`]. The subcommands `load`, `simulate` and `serve` are in the crates
//! `gatestream-loadgen`, `gatestream-accelerator-sim` and `gatestream-server`.
//!
//! Exit status: 0 done; 1 the input was refused, with one line on standard error that names the
//! correction (`Failure`); 2 usage (from clap, or a `Failure` about arguments that clap cannot
//! check).

mod bench;
#[cfg(feature = "network")]
mod cut;
mod explain;
#[cfg(feature = "network")]
mod inspect;
mod machine;
mod memory;
mod model;
mod named;
#[cfg(feature = "network")]
mod network;
mod npy;
mod plan;
mod precision;
mod profile;
mod quantize;
mod run;
mod sample;
mod tune;

use std::ffi::OsString;

use clap::Parser;
use gatestream_accelerator_sim::command as simulate;
use gatestream_command::{Failure, FailureKind};
use gatestream_loadgen as load;
#[cfg(feature = "server")]
use gatestream_server::command as serve;

/// Runs recurrent networks (LSTM, GRU, RNN) on CPUs at the lowest latency, exact to the last bit.
#[derive(Debug, Parser)]
#[command(name = "gatestream", version)]
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
    #[cfg(feature = "server")]
    Serve(Box<serve::Arguments>),
    Simulate(Box<simulate::Arguments>),
    Tune(tune::Arguments),
    Quantize(quantize::Arguments),
    #[cfg(feature = "network")]
    Inspect(inspect::Arguments),
    #[cfg(feature = "network")]
    Cut(cut::Arguments),
}

/// Runs the program with these arguments, of which the first is its name, and returns the exit
/// status. Help texts and errors of usage end the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let done = match Arguments::parse_from(arguments).command {
        Command::Machine(arguments) => machine::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        #[cfg(feature = "server")]
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Quantize(arguments) => quantize::run(&arguments),
        #[cfg(feature = "network")]
        Command::Inspect(arguments) => inspect::run(&arguments),
        #[cfg(feature = "network")]
        Command::Cut(arguments) => cut::run(&arguments),
    };
    match done {
        Ok(()) => 0,
        // The reader of standard output has closed it (`gatestream machine | head -1`).
        Err(failure) if failure.kind() == FailureKind::ClosedPipe => 0,
        Err(failure) => {
            eprintln!("gatestream: {failure}");
            let is_usage = failure.kind() == FailureKind::Usage;
            1 + u8::from(is_usage)
        }
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
}
