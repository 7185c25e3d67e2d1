//! Every order in which the threads may step, and every value that the memory model lets them read.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib team::loom_tests`
//!
//! Data that the protocol must order lies in loom's own cells, which fail the test when two threads
//! may touch them at once; a lost wake-up shows as a deadlock.

use loom::cell::UnsafeCell;
use loom::thread;

use super::barrier::Barrier;
use super::gate::{Gate, Passed};
use super::*;

/// All interleavings with at most this many preemptions; `None`: all there are.
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

fn awake() -> Awake {
    Awake::new(Patience::default(), true)
}

/// One value per worker, as the slices of a hidden state are.
struct Slots(Vec<UnsafeCell<usize>>);

// SAFETY: that this is sound is what the tests find out; loom's cells detect when it is not.
unsafe impl Sync for Slots {}
// SAFETY: as above.
unsafe impl Send for Slots {}

impl Slots {
    fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| UnsafeCell::new(0)).collect())
    }

    fn set(&self, worker: usize, value: usize) {
        // SAFETY: the pointer is valid; exclusiveness is loom's to check.
        self.0[worker].with_mut(|slot| unsafe { *slot = value });
    }

    fn sum(&self) -> usize {
        // SAFETY: as in `set`.
        self.0
            .iter()
            .map(|slot| slot.with(|slot| unsafe { *slot }))
            .sum()
    }
}

/// Threads 0..workers, the first of them here.
fn together(workers: usize, part: impl Fn(usize) + Clone + Send + 'static) {
    let others: Vec<_> = (1..workers)
        .map(|index| {
            let part = part.clone();
            thread::spawn(move || part(index))
        })
        .collect();
    part(0);
    for other in others {
        other.join().unwrap();
    }
}

#[test]
fn a_gate_loses_no_wake_up_and_publishes() {
    explore(None, || {
        let shared = Arc::new((Gate::new(), Slots::new(1)));
        let seen = shared.0.epoch().unwrap();
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                assert_eq!(shared.0.wait(seen, awake()), Passed::Open);
                assert_eq!(shared.1.sum(), 7);
            })
        };
        shared.1.set(0, 7);
        shared.0.open(seen);
        waiter.join().unwrap();
    });
}

#[test]
fn a_gate_wakes_two_sleepers() {
    explore(Some(3), || {
        let shared = Arc::new((Gate::new(), Slots::new(1)));
        let seen = shared.0.epoch().unwrap();
        together(3, move |index| {
            if index == 0 {
                shared.1.set(0, 7);
                shared.0.open(seen);
            } else {
                assert_eq!(shared.0.wait(seen, awake()), Passed::Open);
                assert_eq!(shared.1.sum(), 7);
            }
        });
    });
}

#[test]
fn a_broken_gate_keeps_nobody() {
    explore(Some(3), || {
        let gate = Arc::new(Gate::new());
        let seen = gate.epoch().unwrap();
        together(3, move |index| {
            if index == 0 {
                gate.break_down();
            } else {
                assert_eq!(gate.wait(seen, awake()), Passed::Broken);
            }
        });
    });
}

fn barrier_phases(workers: usize, phases: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let shared = Arc::new((Barrier::new(workers as u32), Slots::new(workers)));
        together(workers, move |index| {
            let (barrier, slots) = &*shared;
            for phase in 1..=phases {
                slots.set(index, phase);
                barrier.arrive(awake()).unwrap();
                assert_eq!(slots.sum(), workers * phase);
                // The reads must be over before the next writes.
                if phase < phases {
                    barrier.arrive(awake()).unwrap();
                }
            }
        });
    });
}

#[test]
fn two_workers_meet_at_each_barrier() {
    barrier_phases(2, 2, Some(4));
}

#[test]
fn three_workers_meet_at_each_barrier() {
    barrier_phases(3, 1, Some(3));
}

#[test]
fn a_break_frees_two_workers_wherever_they_are() {
    explore(Some(3), || {
        let barrier = Arc::new(Barrier::new(3));
        together(3, move |index| {
            if index == 0 {
                barrier.break_down();
            } else {
                assert!(barrier.arrive(awake()).is_err());
                assert!(barrier.arrive(awake()).is_err());
            }
            barrier.leave().unwrap();
        });
    });
}

/// Regions on a team, then its end; each worker's writes reach the caller, and the next region.
fn runs(threads: usize, jobs: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let mut team = Team::start(threads, Patience::default(), true).unwrap();
        let slots = Slots::new(threads);
        let slots = &slots;
        for run in 1..=jobs {
            team.run(|worker| slots.set(worker.index, run)).unwrap();
            assert_eq!(slots.sum(), threads * run);
        }
    });
}

#[test]
fn two_workers_run_two_jobs_and_go_home() {
    runs(2, 2, Some(3));
}

#[test]
fn three_workers_run_a_job_and_go_home() {
    runs(3, 1, Some(1));
}

#[test]
fn a_region_with_barriers_orders_its_steps() {
    explore(Some(2), || {
        let mut team = Team::start(2, Patience::default(), true).unwrap();
        let slots = Slots::new(2);
        let slots = &slots;
        team.run(|worker| {
            slots.set(worker.index, 1);
            worker.barrier();
            assert_eq!(slots.sum(), 2);
            worker.barrier();
            slots.set(1 - worker.index, 2);
        })
        .unwrap();
        assert_eq!(slots.sum(), 4);
    });
}

/// A failing job, then a sound one: the failure must not reach into the next region.
fn fails(preemptions: Option<usize>, error: TeamPanicked, job: fn(&Worker<'_>)) {
    explore(preemptions, move || {
        let mut team = Team::start(2, Patience::default(), true).unwrap();
        let slots = Slots::new(2);
        let slots = &slots;
        let outcome = team.run(|worker| {
            slots.set(worker.index, 1);
            job(&worker);
        });
        assert_eq!(outcome, Err(error));
        assert_eq!(slots.sum(), 2);
        team.run(|worker| {
            slots.set(worker.index, 2);
            worker.barrier();
        })
        .unwrap();
        assert_eq!(slots.sum(), 4);
    });
}

#[test]
fn a_panicking_worker_frees_the_caller() {
    fails(Some(2), TeamPanicked::Job { worker: 1 }, |worker| {
        if worker.index == 1 {
            std::panic::resume_unwind(Box::new(()));
        }
        worker.barrier();
    });
}

#[test]
fn a_panicking_caller_frees_the_worker() {
    fails(Some(2), TeamPanicked::Job { worker: 0 }, |worker| {
        if worker.index == 0 {
            std::panic::resume_unwind(Box::new(()));
        }
        worker.barrier();
    });
}

#[test]
fn a_worker_that_ends_early_is_not_waited_for() {
    fails(Some(2), TeamPanicked::Barrier, |worker| {
        if worker.index == 0 {
            worker.barrier();
        }
    });
}
