//! How many rows a cell's batches have, from measured times.
//!
//! More rows share one pass over the weights, up to where the arithmetic binds; from there on they only make everybody
//! wait longer (BatchMaker, Figure 3). So the most rows of a batch are the fewest that come close to the best rate.

use std::time::Duration;

use cellstream::plan::Plan;

/// How many rows a cell's batches have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Fewer are not worth a task, unless it is the first that a worker gets.
    pub min: usize,
    /// At most so many.
    pub max: usize,
}

/// What counts as close to the best rate.
const CLOSE: f64 = 0.97;

impl BatchSizes {
    /// From what batches of some sizes took: `(rows, time)`. `None` without one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use cellstream_serve::policy::BatchSizes;
    ///
    /// let micros = Duration::from_micros;
    /// let measured = [(1, micros(200)), (8, micros(400)), (16, micros(700)), (32, micros(1390))];
    /// assert_eq!(BatchSizes::measured(&measured), Some(BatchSizes { min: 1, max: 16 }));
    /// ```
    pub fn measured(times: &[(usize, Duration)]) -> Option<BatchSizes> {
        let rate = |&(rows, time): &(usize, Duration)| rows as f64 / time.as_secs_f64().max(1e-9);
        let best = times.iter().map(rate).fold(0.0, f64::max);
        let close = times.iter().filter(|t| t.0 > 0 && rate(t) >= CLOSE * best);
        let max = close.map(|&(rows, _)| rows).min()?;
        Some(BatchSizes { min: 1, max })
    }

    /// From a plan that was tuned for single steps of several batch sizes (`cellstream tune MODEL --steps 1,4 --batch
    /// 1,2,4,8,16,32,64 -o PLAN`). `None` unless several sizes were measured with one step.
    pub fn of_plan(plan: &Plan) -> Option<BatchSizes> {
        let steps = plan.entries.iter().filter(|entry| entry.steps == 1);
        let times = steps.filter_map(|entry| {
            let measured = entry.measured.as_ref()?;
            Some((entry.batch, Duration::from_nanos(measured.cost.median_ns)))
        });
        let times: Vec<_> = times.collect();
        // One size says nothing of others.
        (times.len() > 1).then(|| BatchSizes::measured(&times))?
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cellstream::model::{Lstm, Model};
    use cellstream::plan::{Cost, Measured};

    /// A plan on one core with these measured entries: batch, steps, nanoseconds.
    pub fn measured_plan(model: &Model, entries: &[(usize, usize, u64)]) -> Plan {
        let entries = entries.iter().map(|&(batch, steps, median_ns)| {
            let mut entry = Plan::with_threads(model, batch, steps, 1).entries.remove(0);
            entry.measured = Some(Measured {
                cost: Cost {
                    median_ns,
                    spread_ns: 0,
                },
                runner_up: None,
            });
            entry
        });
        Plan {
            entries: entries.collect(),
        }
    }

    #[test]
    fn the_fewest_rows_that_come_close_to_the_best_rate_are_taken() {
        let times = |all: &[(usize, u64)]| -> Vec<_> {
            let time = |&(rows, us): &(usize, u64)| (rows, Duration::from_micros(us));
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
    fn plans_tell_where_they_were_measured_for_single_steps() {
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
