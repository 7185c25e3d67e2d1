//! Standard output: tables, or JSON objects.

use std::io::Write;

use super::table::{COUNTED, notes, skipped, skipped_json, table};
use super::{Context, Row};
use crate::sweep::SweepResult;
use gatestream_command::Failure;

/// Prints results.
pub struct Printer<'a> {
    /// One object a line instead of tables.
    pub json: bool,
    /// The columns that are equal in all rows.
    pub context: &'a Context,
}

impl Printer<'_> {
    /// Prints the conditions of the measurement and the definition of latency.
    pub fn title(&self, out: &mut impl Write) -> Result<(), Failure> {
        if !self.json {
            let title = self.context.long_title();
            writeln!(
                out,
                "{title}\n({}; --help says what the columns are)\n",
                COUNTED
            )?;
        }
        Ok(())
    }

    fn objects(rows: &[Row<'_>], out: &mut impl Write) -> Result<(), Failure> {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        Ok(())
    }

    /// Prints the peak of each candidate.
    pub fn peaks(&self, rows: &[Row<'_>], out: &mut impl Write) -> Result<(), Failure> {
        if self.json {
            return Printer::objects(rows, out);
        }
        if !rows.is_empty() {
            let rows: Vec<_> = rows.iter().collect();
            writeln!(
                out,
                "peaks (*: the greatest of each policy)\n{}",
                table(&rows, true)
            )?;
        }
        Ok(())
    }

    /// Prints the best candidates; and all of them after a sweep, which has a `result`.
    pub fn measured(
        &self,
        rows: &[Row<'_>],
        result: Option<&SweepResult>,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        if self.json {
            Printer::objects(rows, out)?;
            if let Some(result) = result {
                write!(out, "{}", skipped_json(self.context, result)?)?;
            }
            return Ok(());
        }
        let best: Vec<_> = rows.iter().filter(|row| row.best).collect();
        if result.is_some() {
            writeln!(out, "each policy with its best settings at each load")?;
        }
        writeln!(out, "{}", table(&best, false))?;
        writeln!(out, "{}", notes(&best))?;
        if let Some(result) = result {
            let all: Vec<_> = rows.iter().collect();
            writeln!(
                out,
                "all settings measured (*: best of its policy at that load)\n{}",
                table(&all, true)
            )?;
            writeln!(out, "{}", skipped(result))?;
        }
        Ok(())
    }
}
