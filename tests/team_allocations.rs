//! A run of a team, alone or shared, allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use cellstream::execute::team::{SharedTeam, Team};

/// The system's allocator, counting what is asked of it on any thread.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is the same one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations in 200 runs; every tenth is waited for, so that the team has parked.
fn count(mut run: impl FnMut()) -> usize {
    run();
    let before = ALLOCATIONS.load(Relaxed);
    for round in 0..200 {
        if round % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        run();
    }
    ALLOCATIONS.load(Relaxed) - before
}

// One test only: others in this process would be counted too.
#[test]
fn a_run_allocates_nothing() {
    for threads in 1..=4 {
        let mut team = Team::with_threads(threads).unwrap();
        let work = AtomicU64::new(0);
        let allocations = count(|| {
            team.run(|worker| {
                for _ in 0..10 {
                    work.fetch_add(1, Relaxed);
                    worker.barrier();
                }
            })
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
