//! Counters of the batches that a target has executed, by cell.

use std::collections::BTreeMap;

use super::times::Times;

/// The counters of each cell, by the name of the cell.
pub type CellRuns = BTreeMap<String, CellRun>;

/// The executed batches of one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellRun {
    /// Number of batches by their rows.
    pub batches: BTreeMap<usize, u64>,
    /// Time of a step of a batch; steps of one batch share its time equally.
    pub steps: Times,
}

impl CellRun {
    /// Mean number of rows of a batch; 0 without batches.
    pub fn mean_batch(&self) -> f64 {
        let batches: u64 = self.batches.values().sum();
        let rows = self.batches.iter();
        let rows: f64 = rows.map(|(&rows, &count)| rows as f64 * count as f64).sum();
        rows / batches.max(1) as f64
    }
}

/// Adds the runs of `more` to those of `all`.
pub(crate) fn add(all: &mut CellRuns, more: &CellRuns) {
    for (cell, run) in more {
        let sum = all.entry(cell.clone()).or_default();
        for (&rows, &batches) in &run.batches {
            *sum.batches.entry(rows).or_default() += batches;
        }
        sum.steps.add(&run.steps);
    }
}

/// The difference of two states of the counters, without cells that did not run.
pub(crate) fn between(before: &CellRuns, after: &CellRuns) -> CellRuns {
    let of_cell = |(cell, after): (&String, &CellRun)| {
        let Some(before) = before.get(cell) else {
            return (cell.clone(), after.clone());
        };
        let new = |(&rows, &batches): (&usize, &u64)| {
            let earlier = before.batches.get(&rows).copied().unwrap_or(0);
            (rows, batches.saturating_sub(earlier))
        };
        let batches = after.batches.iter().map(new);
        let run = CellRun {
            batches: batches.filter(|(_, batches)| *batches > 0).collect(),
            steps: after.steps.since(&before.steps),
        };
        (cell.clone(), run)
    };
    let all = after.iter().map(of_cell);
    all.filter(|(_, run)| !run.batches.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Counters of a cell whose batches last one millisecond per row.
    fn runs(batches: &[(usize, u64)]) -> CellRuns {
        let mut run = CellRun::default();
        for &(rows, count) in batches {
            let time = Duration::from_millis(rows as u64);
            (0..count).for_each(|_| run.steps.record(time));
            run.batches.insert(rows, count);
        }
        CellRuns::from([("cell".to_string(), run)])
    }

    #[test]
    fn counters_are_added_and_subtracted() {
        let mut sum = runs(&[(1, 2), (4, 1)]);
        add(&mut sum, &runs(&[(4, 5)]));
        assert_eq!(sum, runs(&[(1, 2), (4, 6)]));
        assert_eq!(sum["cell"].mean_batch(), 26.0 / 8.0);
        let after = runs(&[(1, 2), (4, 6), (8, 3)]);
        let new = between(&runs(&[(1, 2), (4, 5)]), &after);
        assert_eq!(new, runs(&[(4, 1), (8, 3)]));
        assert_eq!(between(&CellRuns::new(), &after), after);
        assert_eq!(between(&after, &after), CellRuns::new());
    }
}
