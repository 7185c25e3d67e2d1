//! The settings that policies are tried with: batch sizes as they are typed, and what each policy makes of them.

use std::str::FromStr;

use crate::sweep::compare::Contender;
use crate::target::{Rows, Settings};
use crate::workload::Network;
use cellstream_command::Failure;
use cellstream_serve::engine::Calibration;
use cellstream_serve::policy::PolicyKind;

/// One entry of `--batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOption {
    /// `64`: of every cell.
    Each(usize),
    /// `64:32`: of each cell, in the order of the cells.
    Cells(Vec<usize>),
    /// `calibrated`: of each cell what is measured to be enough.
    Calibrated,
}

/// Most rows that are asked for.
const MOST: usize = 4096;

/// The greatest size that calibration tries where none is listed.
const DEFAULT_MOST: usize = 64;

impl FromStr for BatchOption {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchOption, String> {
        let rows = |text: &str| text.parse().ok().filter(|rows| (1..=MOST).contains(rows));
        if text == "calibrated" {
            return Ok(BatchOption::Calibrated);
        }
        let cells: Option<Vec<usize>> = text.split(':').map(rows).collect();
        match cells.as_deref() {
            Some(&[rows]) => Ok(BatchOption::Each(rows)),
            Some(cells) => Ok(BatchOption::Cells(cells.to_vec())),
            None => Err(format!(
                "expected rows, 1 to {MOST}: of every cell (64), or of each in their order (64:32); or calibrated"
            )),
        }
    }
}

/// Batch sizes and bucket widths that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Ascending, none twice.
    batches: Vec<Rows>,
    /// Of [`PolicyKind::Bucketing`] alone.
    widths: Vec<usize>,
    /// Whether what calibration finds is to be added.
    calibrated: bool,
    cells: usize,
}

impl Grid {
    /// Of what was typed, for the cells of `network`.
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
                BatchOption::Each(rows) => grid.batches.push(Rows::each(*rows, names.len())),
                BatchOption::Cells(rows) if rows.len() == names.len() => {
                    grid.batches.push(Rows::new(rows.clone()));
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
        grid.tidy();
        Ok(grid)
    }

    fn tidy(&mut self) {
        self.batches.sort_unstable();
        self.batches.dedup();
    }

    /// Whether some policy has more than one setting.
    pub fn is_several(&self) -> bool {
        self.batches.len() + usize::from(self.calibrated) > 1 || self.widths.len() > 1
    }

    /// Whether [`Grid::add_calibrated`] is waited for.
    pub fn wants_calibration(&self) -> bool {
        self.calibrated
    }

    /// The greatest size.
    pub fn most(&self) -> usize {
        let most = self.batches.iter().map(Rows::most).max();
        most.unwrap_or(DEFAULT_MOST)
    }

    /// What calibration tries: 1, 2, 4 … and the greatest size.
    pub fn to_calibrate(&self) -> Vec<usize> {
        let most = self.most();
        let powers = std::iter::successors(Some(1), |rows| Some(2 * rows));
        let below = powers.take_while(|rows| *rows < most);
        below.chain([most]).collect()
    }

    /// Adds the setting at which each cell has its own best size; which it is.
    pub fn add_calibrated(&mut self, found: &[Calibration]) -> Rows {
        let best = found.iter().map(|calibration| calibration.cost.rows.max);
        let rows = Rows::new(best.collect());
        self.batches.push(rows.clone());
        self.tidy();
        rows
    }

    /// All settings of all policies. Policies alternate, so that a slow phase of the machine meets all of them.
    pub fn contenders(&self, policies: &[PolicyKind]) -> Vec<Contender> {
        let all: Vec<_> = policies.iter().map(|&p| self.candidates(p)).collect();
        let most = all.iter().map(Vec::len).max().unwrap_or(0);
        let turn = |turn: usize| all.iter().filter_map(move |of_policy| of_policy.get(turn));
        (0..most).flat_map(turn).cloned().collect()
    }

    fn candidates(&self, policy: PolicyKind) -> Vec<Contender> {
        let batches = match policy {
            // Rows of a call are another thing than requests of a group: merged levels may have any.
            PolicyKind::Cellular | PolicyKind::Shortest | PolicyKind::Merge => self.batches.clone(),
            // Padded requests are as many at one cell as at the next.
            _ => {
                let widest = self.batches.iter();
                let widest = widest.map(|rows| Rows::each(rows.most(), self.cells));
                let mut widest: Vec<_> = widest.collect();
                widest.sort_unstable();
                widest.dedup();
                widest
            }
        };
        let widths: Vec<Option<usize>> = match policy {
            PolicyKind::Bucketing => self.widths.iter().copied().map(Some).collect(),
            _ => vec![None],
        };
        let of_batch = |batch: &Rows| {
            let settings = widths.iter().map(|&bucket_width| Settings {
                batch: batch.clone(),
                bucket_width,
            });
            let all: Vec<_> = settings
                .map(|settings| Contender { policy, settings })
                .collect();
            all
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

    fn shown(contenders: &[Contender]) -> Vec<String> {
        let all = contenders.iter();
        all.map(|c| format!("{} {}", c.policy, c.settings))
            .collect()
    }

    #[test]
    fn sizes_are_read() {
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
        assert!(grid.is_several() && !grid.wants_calibration());
        assert_eq!(grid.most(), 64);
        // Who groups requests has groups of one size; only bucketing has widths.
        use PolicyKind::{Bucketing, Cellular, Padding};
        assert_eq!(
            shown(&grid.contenders(&[Cellular, Padding, Bucketing])),
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
    fn what_is_calibrated_is_one_more_setting() {
        let mut grid = grid("24,calibrated", Network::Seq2seq).unwrap();
        assert!(grid.is_several() && grid.wants_calibration());
        assert_eq!(grid.to_calibrate(), [1, 2, 4, 8, 16, 24]);
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
            shown(&grid.contenders(&[PolicyKind::Cellular, PolicyKind::Merge])),
            [
                "cellular batch 4:8",
                "merge batch 4:8",
                "cellular batch 24",
                "merge batch 24"
            ]
        );
        let alone = Grid::new(&[BatchOption::Calibrated], &[10], Network::Lstm).unwrap();
        assert_eq!((alone.is_several(), alone.most()), (false, 64));
        assert_eq!(alone.to_calibrate(), [1, 2, 4, 8, 16, 32, 64]);
    }
}
