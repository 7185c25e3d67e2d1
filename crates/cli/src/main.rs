//! The program `cellstream`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cellstream_cli::run(std::env::args_os()))
}
