//! The plan: for each size of request, which worker owns which slice of the weights, and when each
//! product is executed.
//!
//! A plan is plain data. It can change the time of a run, never its answer. It comes from an
//! estimate ([`Plan::estimate`]) or from a search that measured the same data.

mod arrange;
mod blocking;
mod bound;
mod check;
mod chunks;
mod cost;
mod describe;
mod estimate;
mod file;
mod load;
mod phases;
mod rates;
mod split;
mod stamp;
mod traffic;
mod tree;

use std::ops::Range;

use crate::model::Model;
use crate::schedule::{DirectionSchedule, PanelOrder};
use gatestream_kernels::Blocking;

pub(crate) use arrange::{arrangements, with_owners_share};
pub use bound::{flops, operations};
pub use check::PlanError;
pub use file::PlanFileError;
pub use load::Loaded;
pub use phases::{PlannedPhase, PlannedProduct};
pub use split::{UNIT_GRANULE, split_units};
pub use stamp::{KERNEL_SET, Stamp};
pub use traffic::{CoreTraffic, IntoCache, LayerTraffic};
pub(crate) use tree::tree_arrangements;

/// Maximum number of workers of a plan.
pub const MAX_THREADS: usize = 4096;

/// How a model is run: a configuration for each size of request that was planned for.
///
/// A session has room for the largest of these sizes and runs each request by the entry nearest to
/// its actual size ([`Plan::nearest`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// At least one; no two for the same size.
    pub entries: Vec<Entry>,
}

/// The plan for one size of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Sequences.
    pub batch: usize,
    /// Steps of the longest sequence.
    pub steps: usize,
    /// How requests near this size are run.
    pub configuration: Configuration,
    /// The time that tuning measured; `None` for an estimate.
    pub measured: Option<Measured>,
}

/// The result of tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Time of the configuration.
    pub cost: Cost,
    /// The second best, in words, and its time; `None` where there was only one candidate.
    pub runner_up: Option<(String, Cost)>,
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Median, in nanoseconds.
    pub median_ns: u64,
    /// Distance between the first and the third quartile, in nanoseconds.
    pub spread_ns: u64,
}

/// How a model is run for one size of request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Workers, each on a core of its own; a multiple of `row_groups`.
    pub threads: usize,
    /// Groups of workers (X_i of deepcpu Theorem 5.2). Each runs the whole model on its own
    /// sequences without a barrier between groups, at the price of reading more weights.
    pub row_groups: usize,
    /// One entry per layer of the model.
    pub layers: Vec<LayerPlan>,
}

/// How one layer is run by a group of workers.
///
/// Where a layer and the one above belong to different workers, they run at the same time, the
/// upper one a chunk of steps behind: the layer × time wavefront needs no more than that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerPlan {
    /// Steps of one chunk of the hoisted input projection. At least 1.
    pub chunk_steps: usize,
    /// Which workers compute the hoisted input projection.
    pub ahead: InputProjectionBy,
    /// The order of panels from step to step.
    pub order: PanelOrder,
    /// One entry per direction. Directions of different workers run at the same time.
    pub directions: Vec<DirectionPlan>,
}

/// How one direction of a layer is run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DirectionPlan {
    /// The phase of each product.
    pub schedule: DirectionSchedule,
    /// The slice of each worker.
    pub partition: Partition,
    /// How the products of a step read their weights.
    pub blocking: Blocking,
}

/// Which workers compute the hoisted input projection: the input products that are executed ahead
/// of their steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputProjectionBy {
    /// The owner of each unit, without a barrier.
    #[default]
    Owners,
    /// The first `workers` workers of the group, each a part of the rows. Allows another degree of
    /// parallelism than the steps, at the cost of two barriers per chunk. A chunk is computed
    /// during the steps of the previous one.
    Rows {
        /// The first workers of the group, as many as this, take rows.
        workers: usize,
        /// The share of those of them that also own units, and so have steps to run meanwhile.
        owners_share: OwnersShare,
    },
}

/// The part of a chunk's rows that owners take together, in eighths of an even share, which has as
/// many rows for each worker. The first chunk is shared evenly, since no steps run beside it.
/// Without meaning where all takers are owners, or none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnersShare {
    eighths: u8,
}

impl OwnersShare {
    /// No rows.
    pub const NONE: OwnersShare = OwnersShare { eighths: 0 };
    /// Half of an even share.
    pub const HALF: OwnersShare = OwnersShare { eighths: 4 };
    /// As many rows for each worker.
    pub const EVEN: OwnersShare = OwnersShare { eighths: 8 };

    /// So many eighths of an even share, at most 8.
    #[must_use]
    pub fn of_eighths(eighths: u8) -> Option<OwnersShare> {
        (eighths <= 8).then_some(OwnersShare { eighths })
    }

    /// The number of eighths, from 0 to 8.
    #[must_use]
    pub fn eighths(self) -> u8 {
        self.eighths
    }

    /// All shares, ascending.
    pub fn all() -> impl Iterator<Item = OwnersShare> {
        (0..=8).map(|eighths| OwnersShare { eighths })
    }

    /// Of `rows`, those of `owners` of the `workers`.
    pub(crate) fn of(self, rows: usize, owners: usize, workers: usize) -> usize {
        part(part(rows, owners, workers), self.eighths.into(), 8)
    }
}

/// A fraction of `rows`, of which a plan file may name as many as a usize can count.
fn part(rows: usize, numerator: usize, denominator: usize) -> usize {
    (rows as u128 * numerator as u128 / denominator as u128) as usize
}

impl InputProjectionBy {
    /// Rows taken by the first `workers` workers of a group, each as many.
    pub fn even_rows(workers: usize) -> InputProjectionBy {
        InputProjectionBy::Rows {
            workers,
            owners_share: OwnersShare::EVEN,
        }
    }

    /// Which of a chunk's `rows` fall to `worker`; none where owners take their own.
    pub(crate) fn share(
        self,
        rows: usize,
        worker: usize,
        is_first_chunk: bool,
        is_owner: impl Fn(usize) -> bool,
    ) -> Range<usize> {
        let InputProjectionBy::Rows {
            workers,
            owners_share,
        } = self
        else {
            return 0..0;
        };
        if worker >= workers {
            return rows..rows;
        }
        let owners = (0..workers).filter(|&w| is_owner(w)).count();
        if is_first_chunk || owners == 0 || owners == workers {
            return part(rows, worker, workers)..part(rows, worker + 1, workers);
        }
        let alike = is_owner(worker);
        let place = (0..worker).filter(|&w| is_owner(w) == alike).count();
        let cut = owners_share.of(rows, owners, workers);
        let (first, len, count) = if alike {
            (0, cut, owners)
        } else {
            (cut, rows - cut, workers - owners)
        };
        first + part(len, place, count)..first + part(len, place + 1, count)
    }
}

/// The slices of one direction, among the workers of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Hidden units of each worker, in order, together `0..hidden`; may be empty. A worker that
    /// owns a unit owns all its gates, so nothing is exchanged before the activation.
    pub units: Vec<Range<usize>>,
    /// Rows of the projection of each worker, likewise; all empty where there is no projection.
    pub projected: Vec<Range<usize>>,
}

impl Partition {
    /// The workers that take part.
    pub fn owners(&self) -> impl Iterator<Item = usize> + '_ {
        let parts = self.units.iter().zip(&self.projected).enumerate();
        parts
            .filter(|(_, (units, rows))| !(units.is_empty() && rows.is_empty()))
            .map(|(worker, _)| worker)
    }

    /// Whether more than one worker takes part, so that they must meet at every step.
    pub fn is_shared(&self) -> bool {
        // Units and projection rows together: each side reads what the other writes.
        self.owners().count() > 1
    }
}

impl LayerPlan {
    /// Whether a group of this size takes all steps of one direction before those of the other: a
    /// worker alone does, so that the weights of one of them may stay in its caches.
    pub(crate) fn takes_directions_in_turn(&self, group_size: usize) -> bool {
        group_size == 1 && self.directions.len() == 2 && self.ahead == InputProjectionBy::Owners
    }

    /// Whether the worker owns a part of the layer.
    pub fn is_owner(&self, worker: usize) -> bool {
        let mut partitions = self.directions.iter().map(|d| &d.partition);
        partitions.any(|p| p.owners().any(|owner| owner == worker))
    }
}

impl Configuration {
    /// Workers of a group.
    pub fn group_size(&self) -> usize {
        self.threads / self.row_groups.max(1)
    }
}

impl Plan {
    /// A plan of one configuration, for up to `batch` sequences of up to `steps` steps.
    pub fn of(configuration: Configuration, batch: usize, steps: usize) -> Plan {
        Plan::of_candidates(&[configuration], batch, steps)
    }

    /// An entry for each of `all`, all of one size.
    pub(crate) fn of_candidates(all: &[Configuration], batch: usize, steps: usize) -> Plan {
        let entries = all.iter().map(|configuration| Entry {
            batch,
            steps,
            configuration: configuration.clone(),
            measured: None,
        });
        Plan {
            entries: entries.collect(),
        }
    }

    /// Workers of the team: the most that any entry asks for.
    pub fn threads(&self) -> usize {
        let threads = self.entries.iter().map(|e| e.configuration.threads);
        threads.max().unwrap_or(1)
    }

    /// Most sequences that were planned for.
    pub fn batch(&self) -> usize {
        self.entries.iter().map(|e| e.batch).max().unwrap_or(0)
    }

    /// Most steps that were planned for.
    pub fn steps(&self) -> usize {
        self.entries.iter().map(|e| e.steps).max().unwrap_or(0)
    }

    /// The index of the entry for a request: the one whose batch and steps differ from it by the
    /// smallest factors, the first of equals.
    pub fn nearest(&self, batch: usize, steps: usize) -> usize {
        let apart = |a: usize, b: usize| (a.max(1) as f64 / b.max(1) as f64).log2().abs();
        // Time is about proportional to steps whatever the configuration; the batch decides more.
        let distance = |e: &Entry| 2.0 * apart(e.batch, batch) + apart(e.steps, steps);
        let entries = self.entries.iter().enumerate();
        let nearest = entries.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        nearest.map_or(0, |(index, _)| index)
    }

    /// Whether the plan was tuned, not estimated.
    pub fn is_tuned(&self) -> bool {
        self.entries.iter().all(|e| e.measured.is_some())
    }

    /// Checks that every entry covers every unit of `model` exactly once and schedules each product
    /// after what it needs.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        self.check_sizes()?;
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| entry.configuration.check(model))
    }

    /// Checks that there are entries, of different sizes.
    fn check_sizes(&self) -> Result<(), PlanError> {
        if self.entries.is_empty() {
            return Err(PlanError::Empty);
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let same = |e: &Entry| (e.batch, e.steps) == (entry.batch, entry.steps);
            if self.entries[..index].iter().any(same) {
                return Err(PlanError::Repeated {
                    batch: entry.batch,
                    steps: entry.steps,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;

    #[test]
    fn a_request_gets_the_entry_nearest_to_it() {
        let model = Lstm::new(4, 16).random(1).unwrap();
        let sizes = [(1, 1), (1, 100), (20, 100)];
        let entries =
            sizes.map(|(batch, steps)| Plan::estimate(&model, batch, steps, 1).entries.remove(0));
        let plan = Plan {
            entries: entries.to_vec(),
        };
        for (index, (batch, steps)) in sizes.into_iter().enumerate() {
            assert_eq!(plan.nearest(batch, steps), index);
        }
        assert_eq!(plan.nearest(0, 0), 0);
        assert_eq!(plan.nearest(2, 60), 1);
        assert_eq!(plan.nearest(1, 4), 0);
        assert_eq!(plan.nearest(64, 1000), 2);
        assert_eq!((plan.batch(), plan.steps(), plan.threads()), (20, 100, 1));
    }

    #[test]
    fn a_plan_without_entries_or_with_two_for_one_size_is_refused() {
        let model = Lstm::new(4, 16).random(1).unwrap();
        assert_eq!(
            Plan { entries: vec![] }.check(&model),
            Err(PlanError::Empty)
        );
        let mut plan = Plan::estimate(&model, 2, 3, 1);
        plan.entries.push(plan.entries[0].clone());
        let repeated = PlanError::Repeated { batch: 2, steps: 3 };
        assert_eq!(plan.check(&model), Err(repeated));
    }

    #[test]
    fn shares_of_rows_are_all_rows_once_however_many() {
        for rows in [0, 1, 7, 1000, usize::MAX] {
            for owners in [vec![], vec![0], vec![1, 2], vec![0, 1, 2, 3]] {
                let shares = OwnersShare::all();
                for (owners_share, is_first) in shares.flat_map(|s| [(s, false), (s, true)]) {
                    let ahead = InputProjectionBy::Rows {
                        workers: 4,
                        owners_share,
                    };
                    let share = |w| ahead.share(rows, w, is_first, |w| owners.contains(&w));
                    let mut shares: Vec<_> = (0..4).map(share).collect();
                    assert!(share(4).is_empty());
                    let of_owners: u128 = owners.iter().map(|&w| shares[w].len() as u128).sum();
                    if !is_first && (1..4).contains(&owners.len()) {
                        let even = rows as u128 * owners.len() as u128 / 4;
                        let expected = even * u128::from(owners_share.eighths()) / 8;
                        assert_eq!(of_owners, expected);
                    }
                    shares.sort_by_key(|share| (share.start, share.end));
                    let ends = [0].into_iter().chain(shares.iter().map(|share| share.end));
                    assert!(shares.iter().map(|share| share.start).eq(ends.take(4)));
                    assert_eq!(shares[3].end, rows);
                }
            }
        }
    }
}
