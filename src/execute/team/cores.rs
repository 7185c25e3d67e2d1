//! Hands out the cores of the process to its teams.
//!
//! Each core has a count of the teams that use it. A team takes the cores with the lowest counts by
//! compare-exchange; the loser of a race retries. There is no lock, which a fork could leave
//! locked. Other processes are not seen.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{TeamError, check_threads};
use crate::machine::Topology;

/// Cores with a larger number are not counted.
const MOST: usize = 1024;

/// Teams by core.
struct Table([AtomicU32; MOST]);

static TABLE: Table = Table::new();

impl Table {
    const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; MOST])
    }

    fn count(&self, core: usize) -> u32 {
        // Relaxed, here and below: the counts order nothing but themselves.
        self.0.get(core).map_or(0, |count| count.load(Relaxed))
    }

    fn add(&self, core: usize) {
        if let Some(count) = self.0.get(core) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn remove(&self, core: usize) {
        if let Some(count) = self.0.get(core) {
            count.fetch_sub(1, Relaxed);
        }
    }

    /// Takes one of these that fewest count on, the first of such; `None` if there is none.
    fn take(&self, from: &[usize]) -> Option<usize> {
        loop {
            let counts = from.iter().map(|&core| (self.count(core), core));
            let (count, core) = counts.min_by_key(|&(count, _)| count)?;
            let Some(entry) = self.0.get(core) else {
                return Some(core);
            };
            let taken = entry.compare_exchange(count, count + 1, Relaxed, Relaxed);
            if taken.is_ok() {
                return Some(core);
            }
        }
    }
}

/// Cores that were handed out, until this is dropped.
#[derive(Debug)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// A core for each of so many threads: those that fewest teams of this process have, in the
    /// order of [`Topology::cpus_for_team`]. So two teams share one only where none is free.
    ///
    /// # Errors
    /// What no team can have: 0 threads, or too many.
    pub fn free(threads: usize) -> Result<Cores, TeamError> {
        check_threads(threads)?;
        let topology = Topology::detect();
        let order = topology.cpus_for_team(topology.cpus());
        Ok(Cores(
            (0..threads).filter_map(|_| TABLE.take(&order)).collect(),
        ))
    }

    /// These, whoever else has them.
    #[must_use]
    pub fn named(cores: &[usize]) -> Cores {
        cores.iter().for_each(|&core| TABLE.add(core));
        Cores(cores.to_vec())
    }

    /// The operating system's numbers, one for each thread.
    #[must_use]
    pub fn list(&self) -> &[usize] {
        &self.0
    }

    /// Those that others have, too, now.
    pub(super) fn shared(&self) -> impl Iterator<Item = usize> {
        let own = |core| self.0.iter().filter(|&&other| other == core).count();
        let is_shared = move |&core: &usize| TABLE.count(core) as usize > own(core);
        self.0.iter().copied().filter(is_shared)
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.0.iter().for_each(|&core| TABLE.remove(core));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Teams come and go; no core is ever taken twice while another is free.
    #[test]
    fn no_core_is_shared_while_another_is_free() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let table = Table::new();
            let mut order: Vec<usize> = (0..random.usize(1..9)).map(|c| 3 * c).collect();
            random.shuffle(&mut order);
            let mut taken: Vec<usize> = Vec::new();
            for _ in 0..60 {
                if random.bool() || taken.is_empty() {
                    let core = table.take(&order).unwrap();
                    let times = |core| taken.iter().filter(|&&t| t == core).count();
                    let fewest = order.iter().map(|&core| times(core)).min().unwrap();
                    let first = order.iter().find(|&&core| times(core) == fewest);
                    assert_eq!(Some(&core), first);
                    taken.push(core);
                } else {
                    table.remove(taken.swap_remove(random.usize(..taken.len())));
                }
            }
            for &core in &order {
                let times = taken.iter().filter(|&&t| t == core).count();
                assert_eq!(table.count(core) as usize, times);
            }
        }
        assert_eq!(Table::new().take(&[]), None);
        assert_eq!(Table::new().take(&[MOST]), Some(MOST));
    }

    #[test]
    fn threads_that_take_at_once_get_different_cores() {
        let order: Vec<usize> = (0..8).collect();
        for _ in 0..100 {
            let table = Table::new();
            let take = || [(); 2].map(|()| table.take(&order).unwrap());
            let mut taken: Vec<usize> = std::thread::scope(|scope| {
                let takers = [(); 4].map(|()| scope.spawn(take));
                takers.map(|taker| taker.join().unwrap()).concat()
            });
            taken.sort_unstable();
            assert_eq!(taken, order);
        }
    }
}
