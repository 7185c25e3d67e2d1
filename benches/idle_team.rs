//! What a team costs while it has nothing to do, and what it gets on a machine that is not its own:
//! `cargo bench --bench idle_team`. Linux only (reads /proc).
//!
//! * Processor time that an idle team of 2 threads uses in 5 s.
//! * The same job on 2 threads alone, and beside 2 threads that only spin. With twice as many
//!   runnable threads as cores, the fair share of the machine is half: twice the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gatestream::execute::team::Team;

/// User and system time of this process so far, in seconds (fields 14 and 15, in 1/100 s).
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

/// `work` multiplications per worker between two barriers; returns what it took.
fn steps(team: &mut Team, count: u32, work: u32) -> Duration {
    let start = Instant::now();
    team.run(|worker| {
        for _ in 0..count {
            let mut value = 1.0_f64;
            for _ in 0..work {
                value = std::hint::black_box(value * 1.000_000_1);
            }
            worker.barrier();
        }
    })
    .expect("no panic");
    start.elapsed()
}

fn main() {
    let mut team = Team::with_threads(2).expect("a team");
    steps(&mut team, 1000, 100);
    match processor_seconds() {
        None => println!("idle: no /proc/self/stat on this system"),
        Some(before) => {
            std::thread::sleep(Duration::from_secs(5));
            let used = processor_seconds().unwrap_or(f64::NAN) - before;
            println!(
                "idle team of 2, 5 s: {used:.2} s of processor time, {:.2} % of a core",
                used * 20.0
            );
        }
    }

    // Oversubscription the team cannot know of: what spins are foreign threads.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores; 2 workers, {cores} spinners: the fair share is twice the time");
    println!(
        "{:>22} {:>10} {:>12} {:>16}",
        "work between barriers", "alone, ms", "beside, ms", "x the fair share"
    );
    // Some 1, 10, 100 µs and 1 ms of work between barriers.
    for (name, count, work) in [
        ("1 us", 20_000, 800),
        ("10 us", 6_000, 8_000),
        ("100 us", 2_000, 80_000),
        ("1 ms", 300, 800_000),
    ] {
        let alone = steps(&mut team, count, work);
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let beside = steps(&mut team, count, work);
            stop.store(true, Ordering::Relaxed);
            beside
        });
        let ratio = beside.as_secs_f64() / alone.as_secs_f64() / 2.0;
        println!(
            "{name:>22} {:>10.1} {:>12.1} {ratio:>16.2}",
            alone.as_secs_f64() * 1e3,
            beside.as_secs_f64() * 1e3
        );
    }
}
