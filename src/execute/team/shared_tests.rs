//! Turns of the sessions that share a team.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::tests::fall;
use super::*;

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
fn a_turn_that_panics_ends_and_the_next_one_is_served() {
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    std::thread::scope(|scope| {
        let first = team.clone();
        let falls = scope.spawn(move || {
            first.turn(|_| {
                while first.callers() < 2 {
                    std::thread::yield_now();
                }
                fall()
            })
        });
        while team.callers() < 1 {
            std::thread::yield_now();
        }
        // Waits for the turn that falls.
        assert_eq!(team.turn(|team| team.threads()), Ok(2));
        assert!(falls.join().is_err());
    });
    assert_eq!(team.callers(), 0);
}

#[test]
fn a_shared_team_survives_a_panic() {
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    assert!(team.run(|_| fall()).is_err());
    assert_eq!(team.run(|worker| worker.barrier()), Ok(()));
}
