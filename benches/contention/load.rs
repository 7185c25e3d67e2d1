//! The load of the cases: users, busy cores, and the distribution of times.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Processes that compute without end, each on one core, until they are dropped.
pub struct BusyCores(Vec<Child>);

impl BusyCores {
    /// One process on each of `cores`; a core may be named more than once.
    pub fn new(cores: &[usize]) -> BusyCores {
        let busy = |core: &usize| {
            Command::new("taskset")
                .args(["-c", &core.to_string(), "sh", "-c", "while :; do :; done"])
                .stdout(Stdio::null())
                .spawn()
        };
        let all: Result<_, _> = cores.iter().map(busy).collect();
        let all = BusyCores(all.expect("`taskset` runs"));
        // The system needs some time to see that the cores are busy.
        std::thread::sleep(Duration::from_millis(300));
        all
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Threads that repeat a call until they are dropped.
pub struct Users {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Users {
    /// `count` threads; thread `i` repeats what `user(i)` returns, which says how many calls
    /// succeeded.
    pub fn start<F: FnMut() -> u64 + Send + 'static>(
        count: usize,
        mut user: impl FnMut(usize) -> F,
    ) -> Users {
        let (stop, calls) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let threads = (0..count).map(|index| {
            let (mut call, stop, calls) = (user(index), Arc::clone(&stop), Arc::clone(&calls));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    calls.fetch_add(call(), Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Users {
            stop,
            calls,
            threads,
        }
    }

    /// Calls that have succeeded.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Times in milliseconds.
#[derive(Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// Times of `call`, repeated for so long, with `pause` between two calls.
    pub fn of(lasting: Duration, pause: Duration, mut call: impl FnMut()) -> Times {
        let (mut times, begin) = (Times::default(), Instant::now());
        while begin.elapsed() < lasting {
            times.add(call_time(&mut call));
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        times
    }

    pub fn add(&mut self, time: Duration) {
        self.0.push(1e3 * time.as_secs_f64());
    }

    pub fn merge(&mut self, others: Times) {
        self.0.extend(others.0);
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The value below which `share` of all times are.
    pub fn quantile(&mut self, share: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        let at = (share * last as f64).round() as usize;
        self.0.get(at).copied().unwrap_or(f64::NAN)
    }

    /// The percentage of times above `limit` milliseconds.
    pub fn percent_above(&self, limit: f64) -> f64 {
        let above = self.0.iter().filter(|&&time| time > limit).count();
        100.0 * above as f64 / self.0.len().max(1) as f64
    }
}

/// The time of one call.
pub fn call_time(call: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    call();
    begin.elapsed()
}
