//! Random schedules of `advance` and `wait_for`, sound ones and ones in which a worker drops out,
//! against a sequential simulation that knows how far each worker can come.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::*;

const TRACKS: [Track; 2] = [Track::Steps, Track::Marks];

/// One thing a worker does: wait for all of these, then advance.
struct Event {
    /// Worker, track (its index), count.
    waits: Vec<(usize, usize, u32)>,
    advances: usize,
}

/// What each worker does, one event after the other.
type Schedule = Vec<Vec<Event>>;

/// How a worker may leave its schedule before the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Drop {
    Return,
    Panic,
}

/// Events are drawn in one order of time and wait only for earlier ones, so there is no circle.
fn schedule(random: &mut fastrand::Rng, workers: usize, events: usize) -> Schedule {
    let mut schedule: Schedule = (0..workers).map(|_| Vec::new()).collect();
    let mut counts = vec![[0_u32; 2]; workers];
    for _ in 0..events {
        let worker = random.usize(..workers);
        let waits = (0..random.usize(..4))
            .map(|_| {
                let (other, track) = (random.usize(..workers), random.usize(..2));
                // Mostly the newest, sometimes one long reached.
                let newest = counts[other][track];
                let count = match random.u8(..4) {
                    0 => random.u32(..=newest),
                    _ => newest,
                };
                (other, track, count)
            })
            .collect();
        let advances = random.usize(..2);
        counts[worker][advances] += 1;
        schedule[worker].push(Event { waits, advances });
    }
    schedule
}

/// How many events each worker finishes when `who` drops out before its event `at`; whether anybody
/// waits in vain.
fn simulate(schedule: &Schedule, dropped: Option<(usize, usize)>) -> (Vec<usize>, bool) {
    let mut finished = vec![0; schedule.len()];
    let mut counts = vec![[0_u32; 2]; schedule.len()];
    loop {
        let mut moved = false;
        for (worker, events) in schedule.iter().enumerate() {
            while let Some(event) = events.get(finished[worker])
                && dropped != Some((worker, finished[worker]))
                && (event.waits.iter()).all(|&(other, track, count)| counts[other][track] >= count)
            {
                counts[worker][event.advances] += 1;
                finished[worker] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let in_vain = schedule.iter().enumerate().any(|(worker, events)| {
        finished[worker] < events.len() && dropped != Some((worker, finished[worker]))
    });
    (finished, in_vain)
}

/// Runs it; returns the outcome and how many events each worker finished.
fn execute(
    team: &mut Team,
    schedule: &Schedule,
    dropped: Option<(usize, usize, Drop)>,
) -> (Result<(), TeamPanicked>, Vec<usize>) {
    let zeros = || -> Vec<AtomicU32> { schedule.iter().map(|_| AtomicU32::new(0)).collect() };
    let finished = zeros();
    // A worker's own counts, written before it advances: who has waited must find them.
    let written = [zeros(), zeros()];
    let outcome = team.run_on(schedule.len(), |worker| {
        for (at, event) in schedule[worker.index].iter().enumerate() {
            match dropped {
                Some((who, when, Drop::Return)) if (who, when) == (worker.index, at) => return,
                Some((who, when, Drop::Panic)) if (who, when) == (worker.index, at) => {
                    std::panic::resume_unwind(Box::new("on purpose"))
                }
                _ => {}
            }
            for &(other, track, count) in &event.waits {
                worker.wait_for(other, TRACKS[track], count);
                assert!(written[track][other].load(Relaxed) >= count);
            }
            written[event.advances][worker.index].fetch_add(1, Relaxed);
            worker.advance(TRACKS[event.advances]);
            finished[worker.index].fetch_add(1, Relaxed);
        }
    });
    let finished = finished.into_iter().map(|n| n.into_inner() as usize);
    (outcome, finished.collect())
}

fn teams(threads: usize) -> [Team; 2] {
    let cores: Vec<usize> = (0..threads).collect();
    [Duration::ZERO, Duration::from_micros(80)]
        .map(|spin| Team::with_patience(&cores, SpinBudget { spin }).unwrap())
}

#[test]
fn random_schedules_end_as_simulated() {
    let draws = if cfg!(miri) { 3 } else { 300 };
    for threads in [1, 2, 3, 6] {
        for (budget, mut team) in teams(threads).into_iter().enumerate() {
            for seed in 0..draws {
                let mut random = fastrand::Rng::with_seed(seed);
                let (workers, events) = (random.usize(1..=threads), random.usize(1..120));
                let schedule = schedule(&mut random, workers, events);
                let case = format!("{workers} of {threads}, budget {budget}, seed {seed}");

                let whole: Vec<usize> = schedule.iter().map(Vec::len).collect();
                assert_eq!(simulate(&schedule, None), (whole.clone(), false));
                assert_eq!(
                    execute(&mut team, &schedule, None),
                    (Ok(()), whole),
                    "{case}"
                );

                let who = random.usize(..workers);
                if schedule[who].is_empty() {
                    continue;
                }
                let when = random.usize(..schedule[who].len());
                let (finished, in_vain) = simulate(&schedule, Some((who, when)));
                for how in [Drop::Return, Drop::Panic] {
                    let expected = match how {
                        Drop::Panic => Err(TeamPanicked::Job { worker: who }),
                        Drop::Return if in_vain => Err(TeamPanicked::Barrier),
                        Drop::Return => Ok(()),
                    };
                    let got = execute(&mut team, &schedule, Some((who, when, how)));
                    assert_eq!(
                        got,
                        (expected, finished.clone()),
                        "{case}, {who} drops out at {when}: {how:?}"
                    );
                }
            }
        }
    }
}
