//! A run of a team, alone or shared, allocates nothing.

#[path = "common/counting.rs"]
mod counting;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use counting::calls;
use gatestream::execute::team::{SharedTeam, Team, Track};

/// Allocations in 200 runs; every tenth is waited for, so that the team has parked.
fn count(mut run: impl FnMut()) -> usize {
    run();
    let before = calls();
    for round in 0..200 {
        if round % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        run();
    }
    calls() - before
}

fn main() {
    for threads in 1..=4 {
        let mut team = Team::with_threads(threads).unwrap();
        let work = AtomicU64::new(0);
        let allocations = count(|| {
            team.run(|worker| {
                for _ in 0..10 {
                    work.fetch_add(1, Relaxed);
                    worker.barrier();
                }
                worker.advance(Track::Marks);
                worker.wait_for((worker.index + 1) % threads, Track::Marks, 1);
            })
            .unwrap();
            team.run_on(threads.div_ceil(2), |worker| worker.barrier())
                .unwrap();
        });
        assert_eq!(allocations, 0, "{threads} threads");
        assert_eq!(work.into_inner(), 201 * 10 * threads as u64);

        let shared = SharedTeam::new(team);
        assert_eq!(
            count(|| shared.run(|worker| worker.barrier()).unwrap()),
            0,
            "{threads} threads, shared"
        );

        // The count does count.
        assert_ne!(
            count(|| shared
                .run(|_| drop(std::hint::black_box(Box::new(1))))
                .unwrap()),
            0
        );
    }
}
