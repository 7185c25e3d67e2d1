//! Parts of a layer's work, dealt over a team: a worker takes the next part when it has finished
//! one.
//!
//! The parts are disjoint slices that an iterator gives. The iterator is under a lock, which a
//! worker holds while it takes a part, not while it computes it. So no part is computed twice, and
//! the end of the region orders all writes before the caller's reads.

use std::sync::{Mutex, PoisonError};

use super::LayerError;
use crate::execute::team::SharedTeam;

/// Multiply-adds below which the caller computes alone: starting a region takes longer.
const ALONE: usize = 1 << 15;
/// The most rows of a part: enough for several tiles of a product, few enough that the parts of
/// workers with a slow core are taken by others.
const PART_ROWS: usize = 24;

/// The workers that compute, and the size of the work.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub team: &'a SharedTeam,
    /// The most workers that may take part.
    pub workers: usize,
    /// Multiply-adds of all parts.
    pub size: usize,
}

impl<'a> Work<'a> {
    /// Work for all workers of `team`.
    pub fn new(team: &'a SharedTeam, size: usize) -> Work<'a> {
        let workers = team.threads();
        Work {
            team,
            workers,
            size,
        }
    }

    /// Rows of each part, if there are `rows` in all.
    pub fn part_rows(&self, rows: usize) -> usize {
        rows.div_ceil(self.workers).clamp(1, PART_ROWS)
    }

    /// Calls `compute` once with each of `parts`, and the index of the worker that computes it.
    /// Allocates nothing.
    pub fn deal<T: Send>(
        self,
        parts: impl Iterator<Item = T> + Send,
        compute: impl Fn(usize, T) + Sync,
    ) -> Result<(), LayerError> {
        if self.workers == 1 || self.size < ALONE {
            parts.for_each(|part| compute(0, part));
            return Ok(());
        }
        let parts = Mutex::new(parts);
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        self.team.run_on(self.workers, |worker| {
            while let Some(part) = next() {
                compute(worker.index, part);
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::team::Team;

    #[test]
    fn each_part_is_computed_once() {
        for threads in [1, 2, 3] {
            let team = SharedTeam::new(Team::with_threads(threads).unwrap());
            for size in [0, ALONE] {
                for count in [0, 1, 2, 100] {
                    let mut values = vec![0u32; count];
                    let work = Work::new(&team, size);
                    work.deal(values.iter_mut(), |worker, value| {
                        assert!(worker < threads);
                        *value += 1;
                    })
                    .unwrap();
                    assert_eq!(values, vec![1; count], "{threads} threads, {size}");
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_is_an_error() {
        let team = SharedTeam::new(Team::with_threads(2).unwrap());
        let failed = Work::new(&team, ALONE).deal(0..9, |_, part| assert!(part < 8));
        assert!(matches!(failed, Err(LayerError::Team(_))));
    }
}
