use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

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
            Patience {
                spin: Duration::ZERO,
            },
        )
        .unwrap(),
    ]
}

/// Fewer rounds where an emulator or checker makes each a thousand times slower.
const PHASES: u64 = if cfg!(miri) { 20 } else { 10_000 };

/// Ends a panic without the hook's message.
fn fall() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}

/// At every phase each worker adds a number of its own, and all must see the whole sum.
fn phases(team: &mut Team, phases: u64) {
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
fn workers_are_where_they_were_pinned() {
    let cores = allowed_cpus();
    let mut team = Team::new(cores).unwrap();
    assert!(team.pinned());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(team.pin_caller());
            team.run(|worker| {
                let mine: Vec<usize> = core_affinity::get_core_ids()
                    .unwrap()
                    .iter()
                    .map(|core| core.id)
                    .collect();
                assert_eq!(mine, [cores[worker.index]]);
            })
            .unwrap();
        });
    });
}

#[test]
fn a_core_that_does_not_exist_is_reported_and_the_team_works() {
    for core in [777, 1023, 1024, usize::MAX] {
        let mut team = Team::new(&[core, core]).unwrap();
        assert!(!team.pinned());
        assert!(!team.pin_caller());
        phases(&mut team, PHASES / 100);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    assert!(matches!(Team::new(&[]), Err(TeamError::Empty)));
    assert!(matches!(Team::with_threads(0), Err(TeamError::Empty)));
    for asked in [barrier::MOST + 1, 1 << 32, usize::MAX] {
        assert!(
            matches!(Team::with_threads(asked), Err(TeamError::TooLarge { asked: a, .. }) if a == asked)
        );
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
        // Longer than any patience; that it is over is not what is tested.
        std::thread::sleep(4 * Patience::default().spin);
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
    thread_local!(static AT_EXIT: std::cell::RefCell<Option<Ends<'static>>> = const { std::cell::RefCell::new(None) });
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
fn sessions_of_a_shared_team_take_turns_in_the_order_they_asked() {
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    let order = std::sync::Mutex::new(Vec::new());
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for session in 0..4 {
            let (team, order, inside) = (team.clone(), &order, &inside);
            scope.spawn({
                let team = team.clone();
                move || {
                    team.run(|worker| {
                        if worker.index == 0 {
                            assert_eq!(inside.fetch_add(1, Relaxed), 0);
                            order.lock().unwrap().push(session);
                            // The first holds the team until all others have asked.
                            while session == 0 && team.callers() < 4 {
                                std::thread::yield_now();
                            }
                        }
                        worker.barrier();
                        if worker.index == 0 {
                            assert_eq!(inside.fetch_sub(1, Relaxed), 1);
                        }
                    })
                    .unwrap();
                }
            });
            // The last may be served at once.
            while session < 3 && team.callers() < session + 1 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    assert_eq!(team.callers(), 0);
}

#[test]
fn a_shared_team_survives_a_panic() {
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    assert!(team.run(|_| fall()).is_err());
    assert_eq!(team.run(|worker| worker.barrier()), Ok(()));
}
