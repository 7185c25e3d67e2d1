//! How evenly this machine lets the plainest of programs run: a chain of multiply-adds in one
//! register on each core, with no memory and no library; a call ends when the last core is through.
//! Its p99 over its median is what the machine adds by itself to any call as long on as many cores.
//!
//! ```text
//! caller:     start = n;  chain;  until done = n × companions: spin
//! companion:  until start = n: spin;  chain;  done += 1
//! ```

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// Links of the chain by which its speed is found.
const SAMPLE: u64 = 200_000;

/// One turn of calls.
struct Turn {
    start: AtomicUsize,
    done: AtomicUsize,
    runs: usize,
    links: u64,
}

/// A thread for each core but the caller's. Made before the caller is pinned, whose core they would
/// get else.
pub struct Companions(Vec<Sender<Arc<Turn>>>);

impl Companions {
    /// For the cores that this process may use.
    pub fn new() -> Companions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let companion = |_| {
            let (turns, taken) = channel::<Arc<Turn>>();
            std::thread::spawn(move || taken.into_iter().for_each(|turn| turn.accompany()));
            turns
        };
        Companions((1..cores).map(companion).collect())
    }

    /// Seconds of each of `runs` calls with chains of about `seconds`.
    pub fn times(&self, runs: usize, seconds: f64) -> Vec<f64> {
        let timed = |links: u64| {
            let start = Instant::now();
            chain(links);
            start.elapsed().as_secs_f64()
        };
        // The fastest of a few, since one may be cut in two.
        let fastest = (0..5).map(|_| timed(SAMPLE)).fold(f64::INFINITY, f64::min);
        let turn = Arc::new(Turn {
            start: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            runs: runs + 1,
            links: (seconds / fastest * SAMPLE as f64).max(1.0) as u64,
        });
        // One that has ended would be missed below; it cannot, there is nothing in it to fail.
        let sent = self
            .0
            .iter()
            .filter(|turns| turns.send(turn.clone()).is_ok());
        let companions = sent.count();
        // The first wakes the companions, and is not counted.
        let calls = (1..=turn.runs).map(|run| turn.call(run, companions));
        calls.skip(1).collect()
    }
}

impl Turn {
    /// Seconds of one call.
    fn call(&self, run: usize, companions: usize) -> f64 {
        let start = Instant::now();
        self.start.store(run, Ordering::Release);
        chain(self.links);
        while self.done.load(Ordering::Acquire) < run * companions {
            std::hint::spin_loop();
        }
        start.elapsed().as_secs_f64()
    }

    fn accompany(&self) {
        for run in 1..=self.runs {
            while self.start.load(Ordering::Acquire) < run {
                std::hint::spin_loop();
            }
            chain(self.links);
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

fn chain(links: u64) {
    // Each link needs the one before; 0.5 x + 0.5 stays where it is.
    let start = black_box(1.0f32);
    black_box((0..black_box(links)).fold(start, |x, _| x * 0.5 + 0.5));
}
