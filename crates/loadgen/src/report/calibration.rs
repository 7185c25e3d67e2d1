//! The result of a calibration: time and rate of each cell by batch size (figure 3 of the paper).

use std::io::Write;

use gatestream_command::Failure;
use gatestream_serve::cell_graph::BatchTime;
use gatestream_serve::engine::Calibration;

/// Prints a table, or JSON objects; the chosen size of each cell is marked.
///
/// # Errors
/// Those of writing.
pub fn print(found: &[Calibration], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    if !json {
        writeln!(
            out,
            "{:<12} {:>6} {:>12} {:>12}",
            "cell", "rows", "µs", "rows/s"
        )?;
    }
    for Calibration { cell, cost } in found {
        for &BatchTime { rows, time, .. } in &cost.times {
            let (micros, rate) = (time.as_secs_f64() * 1e6, rows as f64 / time.as_secs_f64());
            let chosen = rows == cost.rows.max;
            if json {
                let row = serde_json::json!({
                    "kind": "calibration", "cell": cell, "rows": rows, "us": micros,
                    "rows_per_s": rate,
                    "chosen": chosen,
                });
                writeln!(out, "{row}")?;
                continue;
            }
            let mark = if chosen { " *" } else { "" };
            writeln!(
                out,
                "{cell:<12} {rows:>6} {micros:>12.1} {rate:>12.0}{mark}"
            )?;
        }
    }
    if !json {
        writeln!(
            out,
            "*: the fewest rows within 3 % of the best rate, which --batch calibrated takes"
        )?;
    }
    Ok(())
}
