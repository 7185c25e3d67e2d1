//! A table: printed as it fills, and written as CSV with the stamp above it.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::settings::Settings;
use crate::stamp::stamp;

/// The results of one experiment.
pub struct Report {
    folder: PathBuf,
    name: String,
    stamp: Vec<String>,
    columns: Vec<String>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Report {
    /// Prints the question, the stamp and the heading. The first column is text, the others
    /// numbers.
    ///
    /// # Errors
    /// The record has no folder for this machine.
    pub fn new(
        settings: &Settings,
        name: &str,
        question: &str,
        columns: &[&str],
    ) -> Result<Report, Box<dyn std::error::Error>> {
        let mut lines = vec![question.to_string()];
        lines.extend(stamp());
        for line in &lines {
            println!("# {line}");
        }
        let report = Report {
            folder: settings.folder()?,
            name: name.to_string(),
            stamp: lines,
            columns: columns.iter().map(|c| c.to_string()).collect(),
            widths: columns.iter().map(|c| c.chars().count().max(10)).collect(),
            rows: Vec::new(),
        };
        report.print(&report.columns);
        Ok(report)
    }

    /// Adds a row and prints it.
    ///
    /// # Panics
    /// If it has another number of cells than there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        self.print(&cells);
        self.rows.push(cells);
    }

    fn print(&self, cells: &[String]) {
        let cells = cells.iter().zip(&self.widths).enumerate();
        let text: Vec<String> = cells
            .map(|(index, (cell, &width))| match index {
                0 => format!("{cell:<22}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        println!("{}", text.join("  ").trim_end());
        let _ = std::io::stdout().flush();
    }

    /// A line below the table, also kept in the file.
    pub fn note(&mut self, line: String) {
        println!("{line}");
        self.stamp.push(line);
    }

    /// Writes `NAME.csv`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result<(), Box<dyn std::error::Error>> {
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(format!("{}.csv", self.name));
        let mut file = std::fs::File::create(&path)?;
        for line in &self.stamp {
            writeln!(file, "# {line}")?;
        }
        let mut csv = csv::Writer::from_writer(file);
        csv.write_record(&self.columns)?;
        for row in &self.rows {
            csv.write_record(row)?;
        }
        csv.flush()?;
        println!("# written: {}", short(&path));
        Ok(())
    }
}

/// The file and the folder it is in.
fn short(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).collect();
    let parts = parts
        .iter()
        .rev()
        .map(|part| part.as_os_str().to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}

/// Seconds as milliseconds with three digits.
pub fn ms(seconds: f64) -> String {
    format!("{:.3}", 1e3 * seconds)
}

/// Two digits after the point.
pub fn two(value: f64) -> String {
    format!("{value:.2}")
}
