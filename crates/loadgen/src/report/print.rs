//! What is printed, in which order: tables for those who read, or objects for those who go on computing.

use std::io::Write;

use crate::report::{self, Context, Row};
use crate::sweep::Swept;
use cellstream_command::Failure;

/// How it is printed.
pub struct Report<'a> {
    /// An object a line; else tables.
    pub json: bool,
    /// What all rows have in common.
    pub context: &'a Context,
}

impl Report<'_> {
    /// What is measured, and how it is counted.
    pub fn title(&self, out: &mut impl Write) -> Result<(), Failure> {
        if !self.json {
            let (title, at_once) = (self.context.title(), self.context.at_once());
            writeln!(
                out,
                "{title}, {at_once}\n({}; --help says what the columns are)\n",
                report::COUNTED
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

    /// What each setting bears at most.
    pub fn peaks(&self, rows: &[Row<'_>], out: &mut impl Write) -> Result<(), Failure> {
        match self.json {
            true => Report::objects(rows, out),
            false if rows.is_empty() => Ok(()),
            false => {
                let rows: Vec<_> = rows.iter().collect();
                writeln!(
                    out,
                    "peaks (*: the greatest of each policy)\n{}",
                    report::table(&rows, true)
                )?;
                Ok(())
            }
        }
    }

    /// The best of all; and all, where there was a sweep.
    pub fn measured(
        &self,
        rows: &[Row<'_>],
        swept: Option<&Swept>,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        if self.json {
            Report::objects(rows, out)?;
            if let Some(swept) = swept {
                write!(out, "{}", report::skipped_json(self.context, swept)?)?;
            }
            return Ok(());
        }
        let best: Vec<_> = rows.iter().filter(|row| row.best).collect();
        if swept.is_some() {
            writeln!(out, "each policy with its best settings at each load")?;
        }
        writeln!(out, "{}", report::table(&best, false))?;
        writeln!(out, "{}", report::notes(&best))?;
        if let Some(swept) = swept {
            let all: Vec<_> = rows.iter().collect();
            writeln!(
                out,
                "all that was tried (*: the best of its policy at that load)\n{}",
                report::table(&all, true)
            )?;
            writeln!(out, "{}", report::skipped(swept))?;
        }
        Ok(())
    }
}
