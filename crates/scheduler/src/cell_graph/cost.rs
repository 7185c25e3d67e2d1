//! The cost sheet of a cell: the facts that a policy decides by.

use std::time::Duration;

use gatestream::plan::Plan;

/// Number of rows of a cell's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// A smaller batch is formed only as the first of a worker's round.
    pub min: usize,
    /// Maximum number of rows.
    pub max: usize,
}

/// The median time of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTime {
    /// Rows of the batch.
    pub rows: usize,
    /// Steps of each row.
    pub steps: usize,
    /// Time of the whole batch.
    pub time: Duration,
}

/// The costs of the batches of a cell, from its plan or measured by
/// `gatestream_serve::engine::calibrate`.
///
/// An engine hands the costs of all cells to its policy once, at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellCost {
    /// Number of rows of its batches.
    pub rows: BatchSizes,
    /// Bytes of weights that a batch reads; 0 if unknown.
    pub weight_bytes: usize,
    /// Measured batches; empty if none was measured.
    pub times: Vec<BatchTime>,
}

/// A size is chosen if its rate is at least this fraction of the best rate.
const CLOSE: f64 = 0.97;

impl Default for BatchSizes {
    /// 1 to 32 rows.
    fn default() -> BatchSizes {
        BatchSizes { min: 1, max: 32 }
    }
}

impl BatchSizes {
    /// Chooses from measured batches of one step: the fewest rows within 3 % of the best rate. More
    /// rows would only add latency (BatchMaker, Figure 3). `None` if no such batch was measured.
    ///
    /// ```
    /// use std::time::Duration;
    /// use gatestream_scheduler::cell_graph::{BatchSizes, BatchTime};
    ///
    /// let measured = [(1, 200), (8, 400), (16, 700), (32, 1390)].map(|(rows, micros)| BatchTime {
    ///     rows,
    ///     steps: 1,
    ///     time: Duration::from_micros(micros),
    /// });
    /// assert_eq!(BatchSizes::measured(&measured), Some(BatchSizes { min: 1, max: 16 }));
    /// ```
    pub fn measured(times: &[BatchTime]) -> Option<BatchSizes> {
        let rate = |batch: &BatchTime| batch.rows as f64 / batch.time.as_secs_f64().max(1e-9);
        let single = || {
            times
                .iter()
                .filter(|batch| batch.steps == 1 && batch.rows > 0)
        };
        let best = single().map(rate).fold(0.0, f64::max);
        let close = single().filter(|batch| rate(batch) >= CLOSE * best);
        let max = close.map(|batch| batch.rows).min()?;
        Some(BatchSizes { min: 1, max })
    }

    /// Chooses from a plan that was tuned for single steps of several batch sizes (`gatestream tune
    /// MODEL --steps 1,4 --batch 1,2,4,8,16,32,64 -o PLAN`). `None` if fewer than two sizes were
    /// measured with one step.
    pub fn of_plan(plan: &Plan) -> Option<BatchSizes> {
        let times = BatchTime::of_plan(plan);
        let single = times.iter().filter(|batch| batch.steps == 1);
        (single.count() > 1).then(|| BatchSizes::measured(&times))?
    }
}

impl BatchTime {
    fn of_plan(plan: &Plan) -> Vec<BatchTime> {
        let times = plan.entries.iter().filter_map(|entry| {
            let measured = entry.measured.as_ref()?;
            Some(BatchTime {
                rows: entry.batch,
                steps: entry.steps,
                time: Duration::from_nanos(measured.cost.median_ns),
            })
        });
        times.collect()
    }
}

impl CellCost {
    /// The measured times of a plan. The number of rows is the default if the plan does not
    /// [determine](BatchSizes::of_plan) it.
    pub fn of_plan(plan: &Plan) -> CellCost {
        CellCost {
            rows: BatchSizes::of_plan(plan).unwrap_or_default(),
            times: BatchTime::of_plan(plan),
            ..CellCost::default()
        }
    }

    /// The default, with so many bytes of weights.
    pub fn of_weight_bytes(weight_bytes: usize) -> CellCost {
        CellCost {
            weight_bytes,
            ..CellCost::default()
        }
    }
}

impl From<BatchSizes> for CellCost {
    /// Batches of these sizes, with no other costs.
    fn from(rows: BatchSizes) -> CellCost {
        CellCost {
            rows,
            ..CellCost::default()
        }
    }
}

#[cfg(test)]
#[path = "../../../../tests/common/measured_plan.rs"]
mod measured_plan;

#[cfg(test)]
mod tests {
    use super::measured_plan::measured_plan;
    use super::*;
    use gatestream::model::Lstm;

    #[test]
    fn the_fewest_rows_close_to_the_best_rate_are_chosen() {
        let times = |all: &[(usize, u64)]| -> Vec<_> {
            let time = |&(rows, micros): &(usize, u64)| BatchTime {
                rows,
                steps: 1,
                time: Duration::from_micros(micros),
            };
            all.iter().map(time).collect()
        };
        let max = |all: &[(usize, u64)]| BatchSizes::measured(&times(all)).map(|sizes| sizes.max);
        assert_eq!(max(&[]), None);
        assert_eq!(max(&[(4, 10)]), Some(4));
        // Rates 1, 2, 3.9 and 4: the third is close.
        assert_eq!(
            max(&[(1, 1000), (2, 1000), (39, 10_000), (64, 16_000)]),
            Some(39)
        );
        // A size that is slower than the one before, in whatever order.
        assert_eq!(max(&[(64, 3000), (16, 520), (32, 990)]), Some(32));
    }

    #[test]
    fn a_plan_gives_sizes_if_single_steps_were_measured() {
        let model = Lstm::new(4, 8).random(1).unwrap();
        let of = |entries: &[_]| BatchSizes::of_plan(&measured_plan(&model, entries));
        assert_eq!(BatchSizes::of_plan(&Plan::estimate(&model, 1, 1, 1)), None);
        assert_eq!(of(&[(1, 1, 100), (64, 50, 1)]), None);
        assert_eq!(
            of(&[(1, 1, 100), (8, 1, 200), (16, 1, 398), (64, 50, 1)]),
            Some(BatchSizes { min: 1, max: 8 })
        );
    }
}
