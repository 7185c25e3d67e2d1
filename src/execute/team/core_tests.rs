//! Teams on their cores: pinned, moved, taken from them and given back.

use super::tests::{PHASES, phases};
use super::*;
use crate::machine::allowed_cpus;
#[cfg(all(target_os = "linux", not(miri)))]
use {
    super::tests::{fall, meet_in_shares},
    crate::machine::Mask,
    std::sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

#[test]
fn workers_are_where_they_were_pinned() {
    let cores = allowed_cpus();
    let mut team = Team::new(&cores).unwrap();
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
fn teams_that_meet_on_a_core_are_told() {
    // Cores that no machine of this kind has, so that no other test takes them.
    let first = Team::new(&[1000, 1001]).unwrap();
    let unpinned = |core| TeamWarning::NotPinned { worker: 1, core };
    assert_eq!(first.warnings(), [unpinned(1001)]);
    let second = Team::new(&[1001, 1002]).unwrap();
    let shared = TeamWarning::SharedCore { core: 1001 };
    assert_eq!(first.warnings(), [shared, unpinned(1001)]);
    assert_eq!(second.warnings(), [shared, unpinned(1002)]);
    drop(second);
    assert_eq!(first.warnings(), [unpinned(1001)]);
    let twice = Team::new(&[1003, 1003]).unwrap();
    assert_eq!(twice.warnings(), [unpinned(1003)]);
    assert!(Team::with_threads(1).unwrap().pinned());
}

/// As after a set of CPUs has shrunk, and grown again.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_team_on_one_core_runs_on_one_thread_and_comes_back() {
    let cores = allowed_cpus();
    if cores.len() < 2 {
        return;
    }
    // A thread of its own, as its CPUs change.
    let on_one_core = move |left: usize| {
        let mut team = Team::new(&cores[..2]).unwrap();
        let allow = |team: &mut Team, cpus: &[usize]| {
            team.run(|_| assert!(Mask::of(cpus.iter().copied()).apply()))
                .unwrap();
        };
        allow(&mut team, &cores[left..=left]);
        let narrows = (0..100).any(|_| meet_in_shares(&mut team, 20) == 1);
        assert!(narrows, "two threads meet on one core");
        // Once it has looked, it knows.
        let knows = |team: &Team| team.region.home(1).is_lost() == (left == 0);
        for _ in 0..1000 {
            meet_in_shares(&mut team, 20);
            if knows(&team) {
                break;
            }
        }
        assert!(knows(&team));
        allow(&mut team, &cores);
        let is_home = || {
            let mask = Mask::of_this_thread().unwrap();
            mask.is_only(cores[1])
        };
        let pinned_again = (0..1000).any(|_| {
            meet_in_shares(&mut team, 20);
            let found = AtomicUsize::new(0);
            team.run(|w| {
                found.fetch_add(usize::from(w.index == 1 && is_home()), Relaxed);
            })
            .unwrap();
            found.into_inner() == 1
        });
        assert!(pinned_again);
        assert!(!team.region.home(1).is_lost());
    };
    for left in [0, 1] {
        let on_one_core = on_one_core.clone();
        std::thread::spawn(move || on_one_core(left))
            .join()
            .unwrap();
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn an_unpinned_caller_is_moved_off_a_workers_core() {
    let cores = allowed_cpus();
    if cores.len() < 2 {
        return;
    }
    std::thread::spawn(move || {
        let all = Mask::of(cores.iter().copied());
        let mut team = Team::new(&cores[..2]).unwrap();
        // The system may move it in between.
        let is_moved = (0..1000).any(|_| {
            team.caller = CallerPlace::default();
            team.leave_out([]);
            assert!(Mask::of([cores[1]]).apply() && all.apply());
            let found = AtomicUsize::new(usize::MAX);
            let was = current_cpu();
            team.run(|worker| {
                if worker.index == 0 {
                    found.store(current_cpu().unwrap(), Relaxed);
                }
            })
            .unwrap();
            let was_there = was == Some(cores[1]) && team.caller != CallerPlace::default();
            was_there && found.into_inner() == cores[0]
        });
        assert!(is_moved);
        let mask: Vec<usize> = Mask::of_this_thread().unwrap().cpus().collect();
        assert_eq!(mask, cores);
    })
    .join()
    .unwrap();
}

/// What is started without the pin runs anywhere; the pin is there again afterwards, also of a
/// panic.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn threads_started_without_the_pin_do_not_inherit_it() {
    let cores = allowed_cpus();
    let cpus = || -> Vec<usize> { Mask::of_this_thread().unwrap().cpus().collect() };
    let started = move || std::thread::spawn(cpus).join().unwrap();
    std::thread::spawn(move || {
        assert_eq!(without_pin(started), cores);
        let team = Team::new(&cores[..1]).unwrap();
        assert!(team.pin_caller());
        assert_eq!(started(), cores[..1]);
        assert_eq!(without_pin(started), cores);
        assert!(catch_panic(|| without_pin(|| fall())).is_err());
        // A team that runs in the meantime leaves it so.
        let settled = || {
            pin::settle(cores[0]);
            started()
        };
        assert_eq!(without_pin(settled), cores);
        assert_eq!(cpus(), cores[..1]);
    })
    .join()
    .unwrap();
}
