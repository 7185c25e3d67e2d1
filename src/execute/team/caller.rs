//! Keeps the caller's thread off the cores of the team's workers.
//!
//! The caller's thread is not the team's, so it is pinned only on request: threads that it starts
//! would inherit the pin, and pinning it for each region would cost two system calls. The workers
//! cannot give way either: their weights are in the caches of their cores. So a caller that is
//! found on a worker's core when a region starts is moved to worker 0's core, and may leave it
//! again. The system seldom moves it back, because that core was its last. Finding it costs a read
//! of the number of the present core, which is no system call.
//!
//! Where another process uses worker 0's core, the system moves the caller away again and again.
//! So it is moved at most once in a [`PAUSE`]; what remains is lateness (`crowd.rs`).

use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(10);

/// See the [module](self). Times count from any moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallerPlace {
    /// The core on which it was found last, if that is no worker's.
    free: Option<usize>,
    /// It is not moved before.
    until: Duration,
}

impl CallerPlace {
    /// Before a region, with the caller on `core`: whether to move it to the first of the team's
    /// `cores`.
    #[inline]
    pub(super) fn must_move(&mut self, core: usize, cores: &[usize], now: Duration) -> bool {
        self.free != Some(core) && self.is_on_worker(core, cores, now)
    }

    #[cold]
    fn is_on_worker(&mut self, core: usize, cores: &[usize], now: Duration) -> bool {
        let Some((&first, others)) = cores.split_first() else {
            return false;
        };
        if core == first || !others.contains(&core) {
            self.free = Some(core);
            return false;
        }
        let may_move = now >= self.until;
        if may_move {
            self.until = now + PAUSE;
        }
        may_move
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_caller_on_a_workers_core_is_moved_once_in_a_while() {
        let mut place = CallerPlace::default();
        let cores = [4, 2, 6];
        let mut at = |core, now| place.must_move(core, &cores, now);
        let (start, soon) = (Duration::from_secs(1), Duration::from_secs(1) + PAUSE / 2);
        // Worker 0's core, and one that is not the team's.
        assert!(!at(4, start) && !at(5, start));
        assert!(at(2, start));
        assert!(!at(2, soon) && !at(6, soon));
        assert!(at(6, start + PAUSE));
        assert!(!at(5, start + 2 * PAUSE) && !at(5, start + 2 * PAUSE));
        assert!(at(2, start + 2 * PAUSE));
    }

    #[test]
    fn a_caller_is_not_moved_to_a_core_that_is_a_workers_too() {
        let mut place = CallerPlace::default();
        assert!(!place.must_move(4, &[4, 4], Duration::ZERO));
        assert!(!place.must_move(4, &[], Duration::ZERO));
    }
}
