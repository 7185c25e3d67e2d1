//! How evenly this machine lets the plainest of programs run: a chain of multiply-adds in one register on
//! one core, with no memory, no other thread and no library. Its p99 over its median is what the machine
//! adds by itself to any call as long.

use std::hint::black_box;
use std::time::Instant;

/// Links of the chain by which its speed is found.
const SAMPLE: u64 = 200_000;

/// Seconds of each of `runs` chains that take about `seconds`.
pub fn times(runs: usize, seconds: f64) -> Vec<f64> {
    let timed = |links: u64| {
        let start = Instant::now();
        black_box(chain(black_box(links)));
        start.elapsed().as_secs_f64()
    };
    // The fastest of a few, since one may be cut in two.
    let fastest = (0..5).map(|_| timed(SAMPLE)).fold(f64::INFINITY, f64::min);
    let links = (seconds / fastest * SAMPLE as f64).max(1.0) as u64;
    (0..runs).map(|_| timed(links)).collect()
}

fn chain(links: u64) -> f32 {
    // Each link needs the one before; 0.5 x + 0.5 stays where it is.
    (0..links).fold(black_box(1.0), |x, _| x * 0.5 + 0.5)
}
