//! Every order in which the threads may step, and every value that the memory model lets them read.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p gatestream --lib team::loom_tests`
//!
//! Data that the protocol must order lies in loom's own cells, which fail the test when two threads
//! may touch them at once; a lost wake-up shows as a deadlock.

use loom::cell::UnsafeCell;
use loom::thread;

use super::barrier::Barrier;
use super::gate::{Gate, Passed};
use super::progress::Counter;
use super::*;

/// All interleavings with at most this many preemptions; `None`: all there are.
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

fn spin() -> SpinPolicy<'static> {
    SpinPolicy::new(SpinBudget::default(), true)
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

    fn get(&self, worker: usize) -> usize {
        // SAFETY: as in `set`.
        self.0[worker].with(|slot| unsafe { *slot })
    }

    fn sum(&self) -> usize {
        (0..self.0.len()).map(|worker| self.get(worker)).sum()
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
                assert_eq!(shared.0.wait(seen, spin()), Passed::Open);
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
                assert_eq!(shared.0.wait(seen, spin()), Passed::Open);
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
                assert_eq!(gate.wait(seen, spin()), Passed::Broken);
            }
        });
    });
}

fn barrier_phases(workers: usize, phases: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let shared = Arc::new((Barrier::new(), Slots::new(workers)));
        together(workers, move |index| {
            let (barrier, slots) = &*shared;
            for phase in 1..=phases {
                slots.set(index, phase);
                barrier.arrive(workers as u32, spin()).unwrap();
                assert_eq!(slots.sum(), workers * phase);
                // The reads must be over before the next writes.
                if phase < phases {
                    barrier.arrive(workers as u32, spin()).unwrap();
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
        let barrier = Arc::new(Barrier::new());
        together(3, move |index| {
            if index == 0 {
                barrier.break_down();
            } else {
                assert!(barrier.arrive(3, spin()).is_err());
                assert!(barrier.arrive(3, spin()).is_err());
            }
            barrier.leave(3).unwrap();
        });
    });
}

/// Regions on a team, then its end; each worker's writes reach the caller, and the next region.
fn runs(threads: usize, jobs: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let mut team = Team::start(threads, SpinBudget::default(), true).unwrap();
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
        let mut team = Team::start(2, SpinBudget::default(), true).unwrap();
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
        let mut team = Team::start(2, SpinBudget::default(), true).unwrap();
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

/// A counter that has already counted to `FAR`: its next advances wrap within the model.
const FAR: u32 = u32::MAX;

#[test]
fn a_count_reaches_its_sleeper_and_publishes() {
    explore(None, || {
        let shared = Arc::new((Counter::at(FAR), Slots::new(1)));
        together(2, move |index| {
            let (counter, slots) = &*shared;
            if index == 0 {
                slots.set(0, 7);
                counter.advance();
                counter.advance();
            } else {
                counter
                    .wait(FAR.wrapping_add(1), spin())
                    .expect("not closed");
                assert_eq!(slots.sum(), 7);
                counter
                    .wait(FAR.wrapping_add(2), spin())
                    .expect("not closed");
            }
        });
    });
}

/// The wake-up at the first count must not leave who waits for the second asleep for ever.
#[test]
fn two_sleepers_wait_for_different_counts() {
    explore(Some(3), || {
        let shared = Arc::new((Counter::new(), Slots::new(2)));
        together(3, move |index| {
            let (counter, slots) = &*shared;
            if index == 0 {
                slots.set(0, 7);
                counter.advance();
                slots.set(1, 1);
                counter.advance();
            } else {
                counter.wait(index as u32, spin()).expect("not closed");
                assert_eq!(slots.get(0), 7);
                if index == 2 {
                    assert_eq!(slots.sum(), 8);
                }
            }
        });
    });
}

#[test]
fn a_closed_counter_gives_what_it_has_and_keeps_nobody() {
    explore(Some(3), || {
        let shared = Arc::new((Counter::new(), Slots::new(1)));
        together(3, move |index| {
            let (counter, slots) = &*shared;
            if index == 0 {
                slots.set(0, 7);
                counter.advance();
                counter.close();
            } else {
                // Worker 1 passes, worker 2 does not; both have seen the write.
                let wanted = index as u32;
                assert_eq!(counter.wait(wanted, spin()).is_ok(), wanted == 1);
                assert_eq!(slots.sum(), 7);
            }
        });
    });
}

/// Two workers that exchange their slots by counters alone, as the steps of a sequence do.
#[test]
fn two_workers_exchange_by_counters() {
    explore(Some(4), || {
        let shared = Arc::new(([Counter::new(), Counter::new()], Slots::new(2)));
        together(2, move |index| {
            let (counters, slots) = &*shared;
            let meet = |count| {
                counters[index].advance();
                counters[1 - index].wait(count, spin()).expect("open");
            };
            slots.set(index, 1);
            meet(1);
            assert_eq!(slots.sum(), 2);
            meet(2);
            // After the other has read.
            slots.set(1 - index, 2);
        });
    });
}

#[test]
fn a_wait_on_a_worker_that_leaves_early_ends() {
    fails(Some(2), TeamPanicked::Barrier, |worker| {
        worker.advance(Track::Steps);
        if worker.index == 0 {
            worker.wait_for(1, Track::Steps, 1);
            worker.wait_for(1, Track::Steps, 2);
            unreachable!("worker 1 never counts to 2");
        }
    });
}

#[test]
fn a_wait_on_a_caller_that_panics_ends() {
    fails(Some(2), TeamPanicked::Job { worker: 0 }, |worker| {
        if worker.index == 0 {
            std::panic::resume_unwind(Box::new(()));
        }
        worker.wait_for(0, Track::Marks, 1);
    });
}

#[test]
fn a_region_starts_with_new_counters() {
    explore(Some(1), || {
        let mut team = Team::start(2, SpinBudget::default(), true).unwrap();
        let slots = Slots::new(2);
        let slots = &slots;
        for run in 1..=2 {
            team.run(|worker| {
                if worker.index == 0 {
                    slots.set(0, run);
                    worker.advance(Track::Steps);
                } else {
                    // A count left over from the first region would let it pass too early.
                    worker.wait_for(0, Track::Steps, 1);
                    assert_eq!(slots.sum(), run);
                }
            })
            .unwrap();
        }
    });
}

/// Regions on the sizes given, one after the other.
fn sizes(threads: usize, regions: &'static [usize], preemptions: Option<usize>) {
    explore(preemptions, move || {
        let mut team = Team::start(threads, SpinBudget::default(), true).unwrap();
        let slots = Slots::new(threads);
        let slots = &slots;
        for &workers in regions {
            team.run_on(workers, |worker| {
                assert_eq!(worker.threads(), workers);
                slots.set(worker.index, workers);
            })
            .unwrap();
            for index in 0..workers {
                assert_eq!(slots.get(index), workers);
            }
        }
    });
}

#[test]
fn both_then_one_then_both() {
    sizes(2, &[2, 1, 2], Some(3));
}

#[test]
fn two_of_three_then_all() {
    sizes(3, &[2, 3], Some(1));
}

#[test]
fn all_then_two_of_three() {
    sizes(3, &[3, 2], Some(1));
}

/// Threads that stand for several workers exchange by counters.
#[test]
fn two_threads_stand_for_three_workers() {
    explore(Some(0), || {
        let mut team = Team::start(3, SpinBudget::default(), true).unwrap();
        let slots = Slots::new(3);
        let slots = &slots;
        team.leave_out([1]);
        team.run_shares(3, |share| {
            for worker in share.iter() {
                slots.set(worker, 1);
                share.advance(worker, Track::Steps);
            }
            for worker in 0..3 {
                share.wait_for(worker, Track::Steps, 1);
            }
            assert_eq!(slots.sum(), 3);
        })
        .unwrap();
    });
}

#[test]
fn a_thread_that_stands_for_two_meets_another() {
    explore(Some(1), || {
        let mut team = Team::start(3, SpinBudget::default(), true).unwrap();
        let slots = Slots::new(3);
        let slots = &slots;
        team.leave_out([2]);
        team.run_shares(3, |share| {
            share.iter().for_each(|worker| slots.set(worker, 1));
            share.barrier();
            assert_eq!(slots.sum(), 3);
        })
        .unwrap();
    });
}

#[test]
fn a_failure_ends_the_waits_for_all_workers_of_its_thread() {
    explore(Some(0), || {
        let mut team = Team::start(3, SpinBudget::default(), true).unwrap();
        team.leave_out([2]);
        let outcome = team.run_shares(3, |share| {
            if share.has(2) {
                std::panic::resume_unwind(Box::new(()));
            }
            share.wait_for(2, Track::Steps, 1);
        });
        assert_eq!(outcome, Err(TeamPanicked::Job { worker: 0 }));
    });
}

/// A host that starts a thread for each further task.
struct Threads;

impl HostThreads for Threads {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        // SAFETY: all threads are joined before this returns.
        let task: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(task) };
        let others: Vec<_> = (1..count).map(|_| thread::spawn(task)).collect();
        task();
        for other in others {
            other.join().unwrap();
        }
    }
}

/// In the model a leader waits for nobody, so the second thread comes in time, or too late, or
/// first.
#[test]
fn hosted_regions_run_each_worker_once_whoever_comes() {
    explore(Some(3), || {
        let mut team = Team::for_host(2).unwrap();
        let slots = Slots::new(2);
        for region in 1..3 {
            let job = |share: &Share<'_>| {
                for worker in share.iter() {
                    slots.set(worker, slots.get(worker) + region);
                }
                share.barrier();
                assert_eq!(slots.sum(), if region == 1 { 2 } else { 6 });
                share.barrier();
            };
            team.run_on_host(&Threads, 2, job).unwrap();
        }
        assert_eq!(slots.sum(), 6);
    });
}
