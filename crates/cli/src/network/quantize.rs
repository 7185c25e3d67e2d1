//! `gatestream quantize` of a whole graph.

use std::io::Write;
use std::path::Path;

use super::failed;
use gatestream::atomic_file;
use gatestream_command::{Failure, Printer};
use gatestream_network::QuantizedGraph;

/// Stores the weights of recurrent nodes in 8 bits.
pub fn quantize(model: &Path, output: &Path) -> Result<(), Failure> {
    let graph = QuantizedGraph::of(model).map_err(failed(model))?;
    let written = atomic_file::write(output, |file| file.write_all(&graph.bytes));
    written.map_err(|error| Failure::new(error.to_string()).of(output))?;
    let mut out = Printer::new(true);
    let (before, after) = (std::fs::metadata(model)?.len(), graph.bytes.len());
    writeln!(out, "bytes    {before} before, {after} after")?;
    writeln!(out, "int8     {} weights", graph.reduced.len())?;
    if !graph.kept.is_empty() {
        let nodes = graph.kept.join(", ");
        writeln!(out, "kept     the weights of {nodes}: not constant float32")?;
    }
    writeln!(
        out,
        "\nwritten to {}; run it with --precision int8",
        output.display()
    )?;
    Ok(())
}
