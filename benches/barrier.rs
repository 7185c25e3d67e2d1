//! What meetings cost, and what opening a region costs: `cargo bench --bench barrier`.
//!
//! One iteration of `barrier/N` is one barrier of N threads; of `counters/N` one meeting of all N
//! by progress counters (each advances its own, then waits for every other's); of `region/N` one
//! empty run; of `region/1 of N` one on the caller alone. Before that, a table compares the two
//! meetings in rounds that take turns, so that a change of the machine's clock or load hits both.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gatestream::execute::team::{Team, Track, Worker};

/// `count` meetings of all, one way or the other.
type Meetings = fn(&Worker<'_>, u64);

fn central(worker: &Worker<'_>, count: u64) {
    for _ in 0..count {
        worker.barrier();
    }
}

fn counters(worker: &Worker<'_>, count: u64) {
    for met in 1..=count {
        worker.advance(Track::Steps);
        for other in (0..worker.threads()).filter(|&other| other != worker.index) {
            worker.wait_for(other, Track::Steps, met as u32);
        }
    }
}

fn time(team: &mut Team, meetings: Meetings, count: u64) -> Duration {
    let start = Instant::now();
    team.run(|worker| meetings(&worker, count))
        .expect("no panic");
    start.elapsed()
}

/// The median over rounds, and how far apart the quartiles are, in ns per meeting.
fn median(mut rounds: Vec<f64>) -> (f64, f64) {
    rounds.sort_unstable_by(f64::total_cmp);
    let at = |quarter: usize| rounds[(rounds.len() - 1) * quarter / 4];
    (at(2), at(3) - at(1))
}

fn turns(team: &mut Team, count: u64) {
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..41 {
        for (took, meetings) in took.iter_mut().zip([central as Meetings, counters]) {
            took.push(time(team, meetings, count).as_nanos() as f64 / count as f64);
        }
    }
    let [(central, central_spread), (counters, counters_spread)] = took.map(median);
    println!(
        "{:>7} {central:>10.0} ±{central_spread:<5.0} {counters:>10.0} ±{counters_spread:<5.0} \
         {:>6.2}",
        team.threads(),
        central / counters
    );
}

fn barrier(criterion: &mut Criterion) {
    // Asked once: `pin_caller` makes it 1.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Beyond the number of cores it is the system's scheduler that is measured.
    let sizes: Vec<usize> = [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|&threads| threads <= cores)
        .chain([2 * cores])
        .collect();
    println!("ns per meeting, median of 41 rounds that take turns, ± distance of the quartiles");
    println!(
        "{:>7} {:>17} {:>17} {:>6}",
        "threads", "barrier", "counters", "ratio"
    );
    for &threads in sizes.iter().filter(|&&threads| threads > 1) {
        let mut team = Team::with_threads(threads).expect("a team");
        team.pin_caller();
        turns(&mut team, if threads > cores { 200 } else { 20_000 });
    }
    for threads in sizes {
        let mut team = Team::with_threads(threads).expect("a team");
        team.pin_caller();
        for (name, meetings) in [("barrier", central as Meetings), ("counters", counters)] {
            criterion.bench_function(&format!("{name}/{threads}"), |bencher| {
                bencher.iter_custom(|iterations| time(&mut team, meetings, iterations));
            });
        }
        criterion.bench_function(&format!("region/{threads}"), |bencher| {
            bencher.iter(|| team.run(|_| {}).expect("no panic"));
        });
        if threads > 1 {
            criterion.bench_function(&format!("region/1 of {threads}"), |bencher| {
                bencher.iter(|| team.run_on(1, |_| {}).expect("no panic"));
            });
        }
    }
}

criterion_group!(benches, barrier);
criterion_main!(benches);
