//! `gatestream cut`: the recurrent core of an ONNX file as a file of its own.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use super::inspect::{layers, port};
use gatestream::atomic_file;
use gatestream_command::{Failure, in_existing_directory, keep_originals};
use gatestream_network::Core;

/// Writes the recurrent core of an ONNX file to a file that all commands take.
///
/// The core is the stack of recurrent nodes with the most weights, with the shape operators between
/// its layers; --node chooses one node instead (`inspect` lists them). Weights are stored inside,
/// also those of external data and those that constants compute. Initial states that are zero are
/// omitted; other states and lengths become inputs, constant ones too. Inputs and outputs keep the
/// names that they have in the whole model.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .onnx
    model: PathBuf,
    /// This recurrent node alone
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Write the core to this .onnx file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

/// Cuts, writes, prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (path, output) = (&arguments.model, &arguments.output);
    in_existing_directory(output, "--output")?;
    keep_originals(output, &[(Some(path.as_path()), "the model")])?;
    let core = Core::cut(path, arguments.node.as_deref());
    let core = core.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
    let written = atomic_file::write(output, |file| file.write_all(&core.bytes));
    written.map_err(|why| Failure::new(format!("{}: {why}", output.display())))?;
    let mut text = layers(&core.model)?;
    for input in &core.inputs {
        writeln!(text, "input    {}", port(input))?;
    }
    for output in &core.outputs {
        writeln!(text, "output   {}", port(output))?;
    }
    for other in &core.others {
        writeln!(text, "not in   {other:?} (--node)")?;
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
