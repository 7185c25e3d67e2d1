//! The program `gatestream`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(gatestream_cli::run(std::env::args_os()))
}
