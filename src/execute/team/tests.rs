use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::progress::Counter;
use super::*;
use crate::machine::allowed_cpus;

/// Teams in all states of rest: patient, and parking at every chance.
fn teams(threads: usize) -> [Team; 2] {
    let cores: Vec<usize> = allowed_cpus()
        .iter()
        .copied()
        .cycle()
        .take(threads)
        .collect();
    [
        Team::with_threads(threads).unwrap(),
        Team::with_patience(
            &cores,
            SpinBudget {
                spin: Duration::ZERO,
            },
        )
        .unwrap(),
    ]
}

/// Fewer rounds where an emulator or checker makes each a thousand times slower.
pub(super) const PHASES: u64 = if cfg!(miri) { 20 } else { 10_000 };

/// Ends a panic without the hook's message.
pub(super) fn fall() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}

/// At every phase each worker adds a number of its own, and all must see the whole sum.
pub(super) fn phases(team: &mut Team, phases: u64) {
    let threads = team.threads() as u64;
    let slots: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let checked = AtomicU64::new(0);
    team.run(|worker| {
        assert_eq!(worker.threads() as u64, threads);
        for phase in 1..=phases {
            let own = worker.index as u64 + phase;
            slots[worker.index].store(own, Relaxed);
            worker.barrier();
            let sum: u64 = slots.iter().map(|slot| slot.load(Relaxed)).sum();
            assert_eq!(
                sum,
                threads * phase + threads * (threads - 1) / 2,
                "phase {phase}"
            );
            worker.barrier();
        }
        checked.fetch_add(1, Relaxed);
    })
    .unwrap();
    assert_eq!(checked.into_inner(), threads);
}

#[test]
fn every_phase_sees_what_all_wrote_before_the_barrier() {
    for threads in 1..=4 {
        let [mut patient, mut parking] = teams(threads);
        assert_eq!((patient.threads(), parking.threads()), (threads, threads));
        phases(&mut patient, PHASES);
        phases(&mut parking, PHASES / 10);
    }
}

#[test]
fn more_threads_than_cores_finish() {
    let mut team = Team::with_threads(8).unwrap();
    phases(&mut team, PHASES / 10);
}

#[test]
fn a_core_may_be_named_twice() {
    let core = allowed_cpus()[0];
    let mut team = Team::new(&[core, core, core]).unwrap();
    phases(&mut team, PHASES / 10);
}

#[test]
fn each_worker_runs_each_job_once() {
    for threads in 1..=4 {
        for mut team in teams(threads) {
            let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for run in 0..if cfg!(miri) { 5 } else { 2_000 } {
                // No barrier: the end of the region alone must order the runs.
                team.run(|worker| {
                    let seen = calls[worker.index].load(Relaxed);
                    assert_eq!(seen, run);
                    calls[worker.index].store(seen + 1, Relaxed);
                })
                .unwrap();
                assert!(calls.iter().all(|calls| calls.load(Relaxed) == run + 1));
            }
        }
    }
}

#[test]
fn worker_zero_is_the_caller_and_the_others_are_not() {
    let caller = std::thread::current().id();
    let mut team = Team::with_threads(3).unwrap();
    for _ in 0..10 {
        team.run(|worker| assert_eq!(std::thread::current().id() == caller, worker.index == 0))
            .unwrap();
    }
}

#[test]
fn impossible_sizes_are_refused() {
    assert!(matches!(Team::new(&[]), Err(TeamError::Empty)));
    assert!(matches!(Team::with_threads(0), Err(TeamError::Empty)));
    for asked in [barrier::MAX_WORKERS + 1, 1 << 32, usize::MAX] {
        assert!(matches!(
            Team::with_threads(asked),
            Err(TeamError::TooLarge { asked: a, .. }) if a == asked
        ));
    }
}

#[test]
fn a_panic_frees_the_others_and_names_its_worker() {
    for threads in 1..=4 {
        for mut team in teams(threads) {
            for culprit in 0..threads {
                for at in [0, 1, 5] {
                    let past = AtomicU64::new(0);
                    let outcome = team.run(|worker| {
                        for phase in 0..10 {
                            if worker.index == culprit && phase == at {
                                fall();
                            }
                            worker.barrier();
                        }
                        past.fetch_add(1, Relaxed);
                    });
                    assert_eq!(outcome, Err(TeamPanicked::Job { worker: culprit }));
                    assert_eq!(
                        past.into_inner(),
                        0,
                        "somebody passed a barrier the culprit never came to"
                    );
                    phases(&mut team, 10);
                }
            }
        }
    }
}

#[test]
fn everybody_may_panic_at_once() {
    for mut team in teams(3) {
        assert!(matches!(
            team.run(|_| fall()),
            Err(TeamPanicked::Job { .. })
        ));
        phases(&mut team, 10);
    }
}

#[test]
fn a_job_that_swallows_the_unwinding_cannot_open_a_barrier() {
    for mut team in teams(3) {
        let past = AtomicU64::new(0);
        let outcome = team.run(|worker| {
            if worker.index == 1 {
                fall();
            }
            for _ in 0..100 {
                let barrier = std::panic::AssertUnwindSafe(|| worker.barrier());
                if std::panic::catch_unwind(barrier).is_ok() {
                    past.fetch_add(1, Relaxed);
                }
            }
        });
        assert_eq!(outcome, Err(TeamPanicked::Job { worker: 1 }));
        assert_eq!(past.into_inner(), 0);
        phases(&mut team, 10);
    }
}

#[test]
fn unequal_barriers_end_in_an_error_instead_of_waiting_for_ever() {
    for threads in 2..=4 {
        for mut team in teams(threads) {
            for short in 0..threads {
                let outcome = team.run(|worker| {
                    worker.barrier();
                    if worker.index != short {
                        worker.barrier();
                    }
                });
                assert_eq!(outcome, Err(TeamPanicked::Barrier));
                phases(&mut team, 10);
            }
        }
    }
}

#[test]
fn a_payload_that_panics_when_dropped_is_survived() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                fall();
            }
        }
    }
    let mut team = Team::with_threads(2).unwrap();
    let outcome = team.run(|worker| {
        if worker.index == 1 {
            std::panic::resume_unwind(Box::new(Bomb));
        }
        worker.barrier();
    });
    assert_eq!(outcome, Err(TeamPanicked::Job { worker: 1 }));
    phases(&mut team, 10);
}

#[test]
fn a_parked_team_wakes_up() {
    let mut team = Team::with_threads(2).unwrap();
    for _ in 0..3 {
        // Longer than any budget; that it is over is not what is tested.
        std::thread::sleep(4 * SpinBudget::default().spin);
        phases(&mut team, 3);
    }
}

#[test]
fn dropping_a_team_ends_its_threads() {
    struct Ends<'a>(&'a AtomicUsize);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static AT_EXIT: RefCell<Option<Ends<'static>>> = const { RefCell::new(None) };
    }
    let mut team = Team::with_threads(3).unwrap();
    team.run(|worker| {
        if worker.index > 0 {
            AT_EXIT.with_borrow_mut(|slot| *slot = Some(Ends(&ENDED)));
        }
    })
    .unwrap();
    assert_eq!(ENDED.load(Relaxed), 0);
    drop(team);
    assert_eq!(ENDED.load(Relaxed), 2);
}

#[test]
fn a_team_may_move_between_callers() {
    let mut team = Team::with_threads(2).unwrap();
    for _ in 0..4 {
        team = std::thread::spawn(move || {
            phases(&mut team, 10);
            team
        })
        .join()
        .unwrap();
    }
}

#[test]
fn each_worker_sees_what_the_others_wrote_before_they_advanced() {
    for threads in [1, 2, 3, 8] {
        for (mut team, count) in teams(threads).into_iter().zip([PHASES / 4, PHASES / 40]) {
            let slots: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
            team.run(|worker| {
                for step in 1..=count as u32 {
                    // Written before anybody asks for it, overwritten after all have read it.
                    slots[worker.index].store(u64::from(step), Relaxed);
                    for (track, expected) in [(Track::Steps, true), (Track::Marks, false)] {
                        worker.advance(track);
                        for (other, slot) in slots.iter().enumerate() {
                            worker.wait_for(other, track, step);
                            if expected {
                                assert_eq!(slot.load(Relaxed), u64::from(step), "worker {other}");
                            }
                        }
                    }
                }
            })
            .unwrap();
        }
    }
}

#[test]
fn tracks_are_apart_and_start_at_zero_in_each_region() {
    for mut team in teams(2) {
        for _ in 0..100 {
            let marked = AtomicU64::new(0);
            team.run(|worker| {
                worker.wait_for(1 - worker.index, Track::Steps, 0);
                if worker.index == 0 {
                    for _ in 0..3 {
                        worker.advance(Track::Steps);
                    }
                    worker.wait_for(1, Track::Steps, 1);
                    marked.store(1, Relaxed);
                    worker.advance(Track::Marks);
                } else {
                    worker.wait_for(0, Track::Steps, 3);
                    assert_eq!(marked.load(Relaxed), 0);
                    worker.advance(Track::Steps);
                    worker.wait_for(0, Track::Marks, 1);
                    assert_eq!(marked.load(Relaxed), 1);
                }
            })
            .unwrap();
        }
    }
}

#[test]
fn counts_wrap() {
    let spin_policy = SpinPolicy::new(SpinBudget::default(), true);
    for start in [u32::MAX - 1, (1 << 30) - 2, (1 << 31) - 2, 5] {
        let counter = Counter::at(start);
        for more in 0..5 {
            let now = start.wrapping_add(more);
            for (ahead, reached) in [(0, true), (1, false), (1 << 28, false)] {
                assert_eq!(counter.has(now.wrapping_add(ahead)), reached);
            }
            counter.wait(now, spin_policy).unwrap();
            counter
                .wait(now.wrapping_sub(1 << 28), spin_policy)
                .unwrap();
            counter.advance();
        }
        counter.close();
        counter.wait(start.wrapping_add(5), spin_policy).unwrap();
        counter
            .wait(start.wrapping_add(6), spin_policy)
            .unwrap_err();
    }
}

#[test]
fn waiting_in_vain_ends_in_an_error() {
    for threads in 2..=4 {
        for mut team in teams(threads) {
            let last = threads - 1;
            for (name, worker, count) in [("oneself", 0, 2), ("another", last, 2), ("none", 9, 0)] {
                let past = AtomicU64::new(0);
                let outcome = team.run(|me| {
                    me.advance(Track::Steps);
                    me.wait_for(me.index, Track::Steps, 1);
                    if me.index == 0 {
                        me.wait_for(worker, Track::Steps, count);
                        past.fetch_add(1, Relaxed);
                    }
                });
                assert_eq!(outcome, Err(TeamPanicked::Barrier), "{name}");
                assert_eq!(past.into_inner(), 0, "{name}");
                phases(&mut team, 10);
            }
        }
    }
}

/// Each waits for its neighbour or at the barrier; one panic goes through all of them.
#[test]
fn a_panic_goes_from_one_wait_to_the_next() {
    for threads in 2..=4 {
        for mut team in teams(threads) {
            for culprit in 0..threads {
                let past = AtomicU64::new(0);
                let outcome = team.run(|worker| {
                    if worker.index == culprit {
                        fall();
                    }
                    let before = (worker.index + threads - 1) % threads;
                    if worker.index % 2 == 0 {
                        worker.wait_for(before, Track::Marks, 1);
                    } else {
                        worker.barrier();
                    }
                    past.fetch_add(1, Relaxed);
                    worker.advance(Track::Marks);
                });
                assert_eq!(outcome, Err(TeamPanicked::Job { worker: culprit }));
                assert_eq!(past.into_inner(), 0);
                phases(&mut team, 10);
            }
        }
    }
}

#[test]
fn a_region_runs_on_the_workers_asked_for() {
    for threads in [1, 2, 3, 6] {
        for mut team in teams(threads) {
            let mut random = fastrand::Rng::with_seed(threads as u64);
            for _ in 0..if cfg!(miri) { 10 } else { 500 } {
                let workers = random.usize(1..=threads);
                let calls: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
                team.run_on(workers, |worker| {
                    assert_eq!(worker.threads(), workers);
                    calls[worker.index].fetch_add(1, Relaxed);
                    worker.barrier();
                    let called = calls.iter().filter(|calls| calls.load(Relaxed) == 1);
                    assert_eq!(called.count(), workers);
                })
                .unwrap();
                for (index, calls) in calls.into_iter().enumerate() {
                    assert_eq!(calls.into_inner(), u64::from(index < workers));
                }
            }
            phases(&mut team, 10);
        }
    }
}

#[test]
fn a_failure_in_a_part_of_the_team_ends_with_its_region() {
    for mut team in teams(4) {
        for workers in 1..=4 {
            for culprit in 0..workers {
                let outcome = team.run_on(workers, |worker| {
                    if worker.index == culprit {
                        fall();
                    }
                    worker.barrier();
                });
                assert_eq!(outcome, Err(TeamPanicked::Job { worker: culprit }));
                phases(&mut team, 10);
            }
        }
    }
}

#[test]
fn regions_of_impossible_sizes_are_refused() {
    for threads in [1, 3] {
        let team = SharedTeam::new(Team::with_threads(threads).unwrap());
        for asked in [0, threads + 1, 1 << 32, usize::MAX] {
            let outcome = team.run_on(asked, |_| unreachable!("the job must not be called"));
            assert_eq!(outcome, Err(TeamPanicked::Workers { asked, threads }));
        }
        let calls = AtomicUsize::new(0);
        let count = |_: Worker<'_>| {
            calls.fetch_add(1, Relaxed);
        };
        assert_eq!(team.run_on(1, count), Ok(()));
        assert_eq!(team.run(count), Ok(()));
        assert_eq!(calls.into_inner(), 1 + threads);
    }
}

/// Times that a thread of this process has gone to sleep, and whether it sleeps.
#[cfg(target_os = "linux")]
fn sleeps(thread: u32) -> (u64, bool) {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("a field of every Linux").trim().to_owned()
    };
    (
        field("voluntary_ctxt_switches:").parse().unwrap(),
        field("State:").starts_with('S'),
    )
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn who_does_not_take_part_is_not_woken() {
    let [_, mut team] = teams(3);
    let ids = [const { AtomicUsize::new(0) }; 3];
    team.run(|worker| {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        let id = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
        ids[worker.index].store(id, Relaxed);
    })
    .unwrap();
    let ids = ids.map(|id| id.into_inner() as u32);
    let mut runs = |workers: usize| {
        let parked = || {
            while !ids[1..].iter().all(|&id| sleeps(id).1) {
                std::thread::yield_now();
            }
        };
        parked();
        let before = ids.map(|id| sleeps(id).0);
        for _ in 0..100 {
            team.run_on(workers, |_| {}).unwrap();
            parked();
        }
        [1, 2].map(|index| sleeps(ids[index]).0 - before[index])
    };
    // A thread shows as asleep shortly before its going to sleep is counted: 1 is as good as 0.
    let [one, two] = runs(1);
    assert!(one <= 1 && two <= 1, "{one}, {two}");
    let [one, two] = runs(2);
    assert!(one >= 50 && two <= 1, "{one}, {two}");
    let [one, two] = runs(3);
    assert!(one >= 50 && two >= 50, "{one}, {two}");
}

/// Each worker advances, then all wait for all; the smallest number of threads in these regions.
pub(super) fn meet_in_shares(team: &mut Team, regions: usize) -> usize {
    let workers = team.threads();
    let fewest = AtomicUsize::new(workers);
    for _ in 0..regions {
        team.run_shares(workers, |share| {
            assert_eq!(share.workers(), workers);
            assert!(share.iter().all(|worker| share.has(worker)));
            fewest.fetch_min(share.threads(), Relaxed);
            for step in 1..=20 {
                share.iter().for_each(|w| share.advance(w, Track::Steps));
                (0..workers).for_each(|w| share.wait_for(w, Track::Steps, step));
            }
        })
        .unwrap();
    }
    fewest.into_inner()
}

#[test]
fn shares_cover_each_worker_once_whoever_is_left_out() {
    let mut random = fastrand::Rng::with_seed(1);
    for threads in 1..=5 {
        let mut team = Team::with_threads(threads).unwrap();
        for _ in 0..50 {
            let out: Vec<usize> = (1..threads).filter(|_| random.bool()).collect();
            team.leave_out(out.iter().copied());
            let workers = random.usize(1..=threads);
            let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            team.run_shares(workers, |share| {
                share.iter().for_each(|worker| {
                    calls[worker].fetch_add(1, Relaxed);
                });
                share.barrier();
                let done = calls.iter().map(|calls| calls.load(Relaxed));
                assert!(done.eq((0..threads).map(|w| usize::from(w < workers))));
            })
            .unwrap();
            let left = (0..workers).filter(|t| !out.contains(t)).count();
            // With nobody left out, the team may leave out a thread that is late.
            let fewest = if out.is_empty() { 1 } else { left };
            team.run_shares(workers, |share| {
                assert!((fewest..=left).contains(&share.threads()));
            })
            .unwrap();
            // Jobs of workers get a thread each.
            phases(&mut team, 3);
        }
    }
}

#[test]
fn waiting_in_vain_for_a_worker_of_the_same_thread_ends_in_an_error() {
    let mut team = Team::with_threads(3).unwrap();
    for out in [vec![1, 2], vec![2], vec![1]] {
        team.leave_out(out);
        let outcome = team.run_shares(3, |share| {
            for worker in 0..3 {
                share.wait_for(worker, Track::Steps, 1);
            }
        });
        assert_eq!(outcome, Err(TeamPanicked::Barrier));
        let outcome = team.run_shares(3, |share| {
            if share.has(0) {
                fall();
            }
            share.barrier();
        });
        assert_eq!(outcome, Err(TeamPanicked::Job { worker: 0 }));
    }
    team.leave_out([]);
    phases(&mut team, 10);
}
