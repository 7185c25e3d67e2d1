//! The program `gatestream` as a user runs it: output, files, errors in one line that name the fix,
//! exit statuses. One test program, because each is linked with the library.

#[path = "../../../../tests/common/mod.rs"]
mod common;
#[cfg(target_os = "linux")]
mod interrupt;
mod npy;

mod auto_precision;
mod explain;
mod inspect;
mod load;
mod machine;
mod network;
mod plan_file;
mod quantize;
mod run;
mod serve;
mod simulate;
mod tune;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// The program, with the instruction set of this machine and without a trace.
fn program(arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gatestream"));
    command.args(arguments);
    command.env_remove("GATESTREAM_ISA");
    command.env_remove("GATESTREAM_TRACE");
    command
}

fn run_in(folder: &Path, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Output {
    program(arguments).current_dir(folder).output().unwrap()
}

/// Standard output of a success.
fn stdout(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    text(&out.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
