//! The files that are written: checks before the runs, and the writing after them.

use std::path::{Path, PathBuf};

use super::Arguments;
use crate::report::{Row, chart, csv};
use crate::sweep::Measurement;
use crate::workload::{LengthsOption, TreesOption};
use gatestream_command::{Failure, keep_originals};

impl Arguments {
    /// Whether results are written to files.
    pub fn writes_files(&self) -> bool {
        let outputs = [&self.csv, &self.cdf, &self.chart, &self.cdf_chart];
        outputs.iter().any(|output| output.is_some())
    }

    /// Refuses outputs that cannot be written, that are one file, or that are inputs.
    pub fn check_outputs(&self) -> Result<(), Failure> {
        let outputs = [
            (&self.csv, "what --csv writes"),
            (&self.cdf, "what --cdf writes"),
            (&self.chart, "what --chart draws"),
            (&self.cdf_chart, "what --cdf-chart draws"),
        ];
        let lengths = self.lengths.as_ref().and_then(LengthsOption::file);
        let trees = self.trees.as_ref().and_then(TreesOption::file);
        let inputs = [
            (lengths, "the file of --lengths"),
            (trees, "the file of --trees"),
            (self.trace.as_deref(), "the file of --trace"),
        ];
        for (index, (output, _)) in outputs.iter().enumerate() {
            let Some(output) = output.as_deref() else {
                continue;
            };
            let is_chart = index >= 2;
            if is_chart && output.extension().is_some_and(|named| named != "svg") {
                let why = "charts are drawn as SVG; expected a name that ends in .svg";
                return Err(Failure::usage(why).of(output));
            }
            let folder = output.parent().filter(|p| !p.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) || output.is_dir() {
                return Err(Failure::new("expected a file in an existing directory").of(output));
            }
            keep_originals(output, &inputs)?;
            let same =
                |other: &Option<PathBuf>| other.as_deref().is_some_and(|o| one_file(o, output));
            if let Some((_, what)) = outputs[..index].iter().find(|(other, _)| same(other)) {
                let why = format!("is {what} already; write to another file");
                return Err(Failure::usage(why).of(output));
            }
        }
        Ok(())
    }

    /// Writes the files: of `all` rows, and of the `best`, which has one for each of the `policies`
    /// at each load, the lowest load first.
    pub fn write_files(
        &self,
        title: &str,
        all: &[&Row<'_>],
        best: &[&Measurement],
        policies: usize,
    ) -> Result<(), Failure> {
        let curves = all.iter().copied();
        let curves: Vec<_> = curves.filter(|row| row.best && row.kind == "run").collect();
        let first = &best[..policies];
        let written = [
            (self.csv.as_ref()).map(|path| csv::write_curves(path, all)),
            (self.cdf.as_ref()).map(|path| csv::write_distributions(path, best)),
            (self.chart.as_ref()).map(|path| chart::write_curves(path, title, &curves)),
            (self.cdf_chart.as_ref()).map(|path| chart::write_distributions(path, title, first)),
        ];
        // All are tried; the first error is returned.
        written.into_iter().flatten().collect()
    }
}

/// Whether two paths name one file, which need not exist.
fn one_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        path.canonicalize()
            .ok()
            .or(Some(folder.join(path.file_name()?)))
    };
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}
