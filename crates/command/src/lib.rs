//! Shared by the subcommands of the program `gatestream`: the error of a command, standard output,
//! Ctrl-C, and the checks of arguments.

mod arguments;
mod failure;
pub mod interrupt;
mod memory;
mod output;
mod printer;

pub use arguments::{seconds, threads};
pub use failure::{Failure, FailureKind};
pub use memory::{afford, available_memory};
pub use output::{in_existing_directory, keep_originals};
pub use printer::Printer;
