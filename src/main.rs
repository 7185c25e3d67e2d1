//! The `cellstream` program.

fn main() -> std::process::ExitCode {
    cellstream::cli::main()
}
