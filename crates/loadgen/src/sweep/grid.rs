//! The candidates of a sweep: each policy with the batch sizes and bucket widths that it uses.

use std::str::FromStr;

use crate::candidate::{Candidate, MaxRows};
use crate::policy::ComparedPolicy;
use crate::workload::Network;
use gatestream_command::Failure;
use gatestream_serve::engine::Calibration;

/// One entry of `--batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOption {
    /// `64`: for every cell.
    Each(usize),
    /// `64:32`: for each cell, in the order of the cells.
    Cells(Vec<usize>),
    /// `calibrated`: for each cell the size that calibration finds.
    Calibrated,
}

/// The largest size that can be typed.
const MAX_ROWS: usize = 4096;

/// The largest size of a calibration if none is listed.
const DEFAULT_MAX_ROWS: usize = 64;

impl FromStr for BatchOption {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchOption, String> {
        let rows = |text: &str| {
            text.parse()
                .ok()
                .filter(|rows| (1..=MAX_ROWS).contains(rows))
        };
        if text == "calibrated" {
            return Ok(BatchOption::Calibrated);
        }
        let cells: Option<Vec<usize>> = text.split(':').map(rows).collect();
        match cells.as_deref() {
            Some(&[rows]) => Ok(BatchOption::Each(rows)),
            Some(cells) => Ok(BatchOption::Cells(cells.to_vec())),
            None => Err(format!(
                "expected rows, 1 to {MAX_ROWS}: of every cell (64), or of each in their order \
                 (64:32); or calibrated"
            )),
        }
    }
}

/// Batch sizes and bucket widths that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Ascending, none twice.
    batches: Vec<MaxRows>,
    /// For [`ComparedPolicy::Bucketing`].
    widths: Vec<usize>,
    /// Whether [`Grid::add_calibrated`] is still to be called.
    calibrated: bool,
    cells: usize,
}

impl Grid {
    /// From the options, for the cells of `network`.
    ///
    /// # Errors
    /// Sizes for another number of cells.
    pub fn new(batches: &[BatchOption], widths: &[u32], network: Network) -> Result<Grid, Failure> {
        let names = network.cells();
        let mut grid = Grid {
            batches: Vec::new(),
            widths: widths.iter().map(|&width| width as usize).collect(),
            calibrated: batches.contains(&BatchOption::Calibrated),
            cells: names.len(),
        };
        for option in batches {
            match option {
                BatchOption::Calibrated => {}
                BatchOption::Each(rows) => grid.batches.push(MaxRows::uniform(*rows, names.len())),
                BatchOption::Cells(rows) if rows.len() == names.len() => {
                    grid.batches.push(MaxRows::new(rows.clone()));
                }
                BatchOption::Cells(rows) => {
                    let typed: Vec<_> = rows.iter().map(usize::to_string).collect();
                    return Err(Failure::usage(format!(
                        "--batch {}: sizes for {} cells; {} has {}: {}",
                        typed.join(":"),
                        rows.len(),
                        network.name(),
                        names.len(),
                        names.join(":")
                    )));
                }
            }
        }
        grid.widths.sort_unstable();
        grid.widths.dedup();
        grid.sort();
        Ok(grid)
    }

    fn sort(&mut self) {
        self.batches.sort_unstable();
        self.batches.dedup();
    }

    /// Whether some policy has several candidates.
    pub fn has_choices(&self) -> bool {
        self.batches.len() + usize::from(self.calibrated) > 1 || self.widths.len() > 1
    }

    /// Whether the sizes that calibration finds are to be added.
    pub fn needs_calibration(&self) -> bool {
        self.calibrated
    }

    /// The largest size.
    pub fn max_rows(&self) -> usize {
        let max = self.batches.iter().map(MaxRows::largest).max();
        max.unwrap_or(DEFAULT_MAX_ROWS)
    }

    /// Sizes of a calibration: 1, 2, 4 … and the largest size.
    pub fn calibration_rows(&self) -> Vec<usize> {
        let max = self.max_rows();
        let powers = std::iter::successors(Some(1), |rows| Some(2 * rows));
        let below = powers.take_while(|rows| *rows < max);
        below.chain([max]).collect()
    }

    /// Adds the sizes that calibration found, and returns them.
    pub fn add_calibrated(&mut self, found: &[Calibration]) -> MaxRows {
        let best = found.iter().map(|calibration| calibration.cost.rows.max);
        let rows = MaxRows::new(best.collect());
        self.batches.push(rows.clone());
        self.sort();
        rows
    }

    /// All candidates. Policies alternate, so that a slow phase of the machine affects all.
    pub fn candidates(&self, policies: &[ComparedPolicy]) -> Vec<Candidate> {
        let all: Vec<_> = policies.iter().map(|&p| self.of_policy(p)).collect();
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        let turn = |turn: usize| all.iter().filter_map(move |of_policy| of_policy.get(turn));
        (0..longest).flat_map(turn).cloned().collect()
    }

    fn of_policy(&self, policy: ComparedPolicy) -> Vec<Candidate> {
        let batches = match policy {
            // These batch cells, which may have different sizes.
            ComparedPolicy::Engine(_) | ComparedPolicy::Merge => self.batches.clone(),
            // These batch whole requests, so all cells have the same size.
            ComparedPolicy::Padding | ComparedPolicy::Bucketing | ComparedPolicy::Ideal => {
                let uniform = |rows: &MaxRows| MaxRows::uniform(rows.largest(), self.cells);
                let mut uniform: Vec<_> = self.batches.iter().map(uniform).collect();
                uniform.sort_unstable();
                uniform.dedup();
                uniform
            }
        };
        let widths: Vec<Option<usize>> = if policy == ComparedPolicy::Bucketing {
            self.widths.iter().copied().map(Some).collect()
        } else {
            vec![None]
        };
        let of_batch = |batch: &MaxRows| {
            let candidate = |&bucket_width: &Option<usize>| Candidate {
                policy: Some(policy),
                batch: Some(batch.clone()),
                bucket_width,
            };
            widths.iter().map(candidate).collect::<Vec<_>>()
        };
        batches.iter().flat_map(of_batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sweep::compare::tests::calibration;

    fn grid(batches: &str, network: Network) -> Result<Grid, Failure> {
        let options: Vec<BatchOption> = batches.split(',').map(|b| b.parse().unwrap()).collect();
        Grid::new(&options, &[10, 5, 10], network)
    }

    fn shown(candidates: &[Candidate]) -> Vec<String> {
        let all = candidates.iter();
        all.map(|c| format!("{} {}", c.policy.unwrap(), c.settings()))
            .collect()
    }

    #[test]
    fn sizes_are_parsed() {
        use BatchOption::{Calibrated, Cells, Each};
        for (text, option) in [
            ("1", Each(1)),
            ("4096", Each(4096)),
            ("64:32", Cells(vec![64, 32])),
            ("1:2:3", Cells(vec![1, 2, 3])),
            ("calibrated", Calibrated),
        ] {
            assert_eq!(text.parse(), Ok(option));
        }
        for text in [
            "",
            "0",
            "4097",
            "-1",
            "64:",
            ":64",
            "64:0",
            "64;32",
            "x",
            "calibrate",
        ] {
            let error = text.parse::<BatchOption>().unwrap_err();
            assert!(
                error.contains("64:32") && error.contains("calibrated"),
                "{text}: {error}"
            );
        }
        let error = |batches, network| grid(batches, network).unwrap_err().to_string();
        assert_eq!(
            error("1:2:3", Network::Seq2seq),
            "--batch 1:2:3: sizes for 3 cells; seq2seq has 2: encoder:decoder"
        );
        // Equal sizes are named as they were typed.
        assert_eq!(
            error("8:8", Network::Lstm),
            "--batch 8:8: sizes for 2 cells; lstm has 1: chain"
        );
    }

    #[test]
    fn policies_alternate_and_have_their_own_settings() {
        let grid = grid("64:32,16,32,64:64,32:64", Network::Seq2seq).unwrap();
        assert!(grid.has_choices() && !grid.needs_calibration());
        assert_eq!(grid.max_rows(), 64);
        // Groups of requests have one size; only bucketing has widths.
        use ComparedPolicy::{Bucketing, Padding};
        assert_eq!(
            shown(&grid.candidates(&[ComparedPolicy::CELLULAR, Padding, Bucketing])),
            [
                "cellular batch 16",
                "padding batch 16",
                "bucketing batch 16, buckets of 5",
                "cellular batch 32",
                "padding batch 32",
                "bucketing batch 16, buckets of 10",
                "cellular batch 32:64",
                "padding batch 64",
                "bucketing batch 32, buckets of 5",
                "cellular batch 64:32",
                "bucketing batch 32, buckets of 10",
                "cellular batch 64",
                "bucketing batch 64, buckets of 5",
                "bucketing batch 64, buckets of 10",
            ]
        );
    }

    #[test]
    fn calibrated_sizes_are_added() {
        let mut grid = grid("24,calibrated", Network::Seq2seq).unwrap();
        assert!(grid.has_choices() && grid.needs_calibration());
        assert_eq!(grid.calibration_rows(), [1, 2, 4, 8, 16, 24]);
        // Rates per ms: 1, 2, 4, 4 and 1, 2, 4, 8.
        let measured = |cell: &str, micros: [u64; 4]| {
            let time = |rows: usize| Duration::from_micros(micros[rows.ilog2() as usize]);
            calibration(cell, &[1, 2, 4, 8], time)
        };
        let found = [
            measured("encoder", [1000, 1000, 1000, 2000]),
            measured("decoder", [1000, 1000, 1000, 1000]),
        ];
        assert_eq!(grid.add_calibrated(&found).to_string(), "4:8");
        assert_eq!(
            shown(&grid.candidates(&[ComparedPolicy::CELLULAR, ComparedPolicy::Merge])),
            [
                "cellular batch 4:8",
                "merge batch 4:8",
                "cellular batch 24",
                "merge batch 24"
            ]
        );
        let alone = Grid::new(&[BatchOption::Calibrated], &[10], Network::Lstm).unwrap();
        assert_eq!((alone.has_choices(), alone.max_rows()), (false, 64));
        assert_eq!(alone.calibration_rows(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
