//! Regions on a host's threads: any number of them, called in any way.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::host::HostThreads;
use super::{Share, Team, TeamPanicked, Track};

/// Calls on a thread each.
struct Scoped;

impl HostThreads for Scoped {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        std::thread::scope(|scope| {
            for _ in 1..count {
                scope.spawn(task);
            }
            task();
        });
    }
}

/// Calls one after the other, on the calling thread.
struct Alone;

impl HostThreads for Alone {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        (0..count).for_each(|_| task());
    }
}

/// Calls on some threads, each several times.
struct Few(usize);

impl HostThreads for Few {
    fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
        let left = AtomicUsize::new(count);
        let take = || {
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                task();
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.0 {
                scope.spawn(take);
            }
            take();
        });
    }
}

/// Calls nothing.
struct Idle;

impl HostThreads for Idle {
    fn call(&self, _: usize, _: &(dyn Fn() + Sync)) {}
}

fn hosts() -> Vec<Box<dyn HostThreads>> {
    vec![
        Box::new(Scoped),
        Box::new(Alone),
        Box::new(Few(2)),
        Box::new(Few(3)),
        Box::new(Idle),
    ]
}

/// A job whose workers wait for each other at every step: worker w adds what all had before.
fn relay(share: &Share<'_>, values: &[AtomicUsize], steps: u32) {
    let workers = share.workers();
    for step in 0..steps {
        for worker in share.iter() {
            values[worker].fetch_add(1, Ordering::Relaxed);
            share.advance(worker, Track::Steps);
        }
        for (other, value) in values.iter().enumerate().take(workers) {
            share.wait_for(other, Track::Steps, step + 1);
            assert!(value.load(Ordering::Relaxed) > step as usize);
        }
        share.barrier();
    }
}

#[test]
fn all_workers_run_on_every_kind_of_host() {
    for host in hosts() {
        let mut team = Team::for_host(4).unwrap();
        for workers in [4, 1, 3, 2, 4] {
            let values: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
            let job = |share: &Share<'_>| relay(share, &values, 50);
            team.run_on_host(&*host, workers, job).unwrap();
            let values: Vec<_> = values.iter().map(|v| v.load(Ordering::Relaxed)).collect();
            let expected: Vec<_> = (0..4).map(|w| if w < workers { 50 } else { 0 }).collect();
            assert_eq!(values, expected);
        }
    }
}

#[test]
fn many_teams_share_a_host_with_fewer_threads_than_they_ask_for() {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut team = Team::for_host(3).unwrap();
                for _ in 0..100 {
                    let values: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
                    team.run_on_host(&Few(2), 3, |share| relay(share, &values, 3))
                        .unwrap();
                }
            });
        }
    });
}

#[test]
fn a_panic_is_reported_and_the_team_goes_on() {
    for host in hosts() {
        let mut team = Team::for_host(2).unwrap();
        let failed = team.run_on_host(&*host, 2, |share| {
            if share.has(1) {
                panic!("expected by this test");
            }
            share.barrier();
        });
        assert!(
            matches!(failed, Err(TeamPanicked::Job { .. })),
            "{failed:?}"
        );
        team.run_on_host(&*host, 2, |share| share.barrier())
            .unwrap();
    }
}

#[test]
fn without_a_host_the_caller_runs_all() {
    let mut team = Team::for_host(3).unwrap();
    let values: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    team.run_shares(3, |share| {
        assert_eq!(share.threads(), 1);
        relay(share, &values, 2);
    })
    .unwrap();
    assert!(
        values
            .iter()
            .all(|value| value.load(Ordering::Relaxed) == 2)
    );
    let refused = team.run(|_| ());
    assert_eq!(
        refused,
        Err(TeamPanicked::Workers {
            asked: 3,
            threads: 1
        })
    );
    let refused = team.run_on_host(&Alone, 4, |_| ());
    assert_eq!(
        refused,
        Err(TeamPanicked::Workers {
            asked: 4,
            threads: 3
        })
    );
}
