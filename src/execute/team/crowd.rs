//! Which threads of a team run regions while others use their processors.
//!
//! ```text
//!           a thread was late             long enough, and often enough
//!   Apart ───────────────────► Narrow ──────────────────────────────► Apart, on trial
//!     ▲     leave it out         the others do its part                  │       │
//!     └────────────────────── nobody late for TRIAL ◄────────────────────┘       │
//!                              Narrow, for twice as long ◄── late again ─────────┘
//! ```
//!
//! No clock, no threads: the team tells the time, and who was late. A thread that is late makes all
//! others wait, so one that gets half of a processor costs more than doing its part elsewhere. The
//! caller's thread cannot be left out: when it is late, another one is, so that a processor is free
//! for the caller.

use std::time::Duration;

/// Lateness that leaves a thread out; what is older than [`HALF_LIFE`] counts half.
const LATE: Duration = Duration::from_micros(300);

/// It must also have been late for more than this part of the time in regions, of late. Leaving a
/// thread out costs the others its part of the work: with two threads, half of the time. So a
/// thread whose core does something else now and then, such as the clients of a server, stays.
const PART: u32 = 3;
const HALF_LIFE: Duration = Duration::from_millis(50);
/// What a sum of the time in regions comes to, if they follow each other without a pause.
const FULL: Duration = Duration::from_micros(72_135);

/// Time on trial that counts as without lateness, so that one short delay ends none.
const CREDIT: Duration = Duration::from_millis(5);
/// After this time on trial, nobody is expected to be late.
const TRIAL: Duration = Duration::from_millis(200);

/// Time before a trial: at first, and at most.
const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Apart,
    /// Since when.
    Trial(Duration),
    /// Until when.
    Narrow(Duration),
}

/// See the [module](self). Times count from any moment.
pub(super) struct Crowd {
    state: State,
    /// Time before the next trial.
    rest: Duration,
    threads: Box<[Thread]>,
    /// Time in regions that counts, as of `at`, and since then.
    ran: Duration,
    ran_since: Duration,
    at: Duration,
}

#[derive(Clone, Copy, Default)]
struct Thread {
    is_out: bool,
    /// Lateness that counts.
    late: Duration,
}

/// How the next region starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// On all threads.
    Apart,
    /// On all threads again: each looks first whether its core is still there.
    Trial,
    /// Without those that are [out](Crowd::is_out).
    Narrow,
}

impl Crowd {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            state: State::Apart,
            rest: FIRST,
            threads: vec![Thread::default(); threads].into(),
            ran: Duration::ZERO,
            ran_since: Duration::ZERO,
            at: Duration::ZERO,
        }
    }

    /// Whether a thread is left out of narrow regions.
    #[inline]
    pub(super) fn is_out(&self, thread: usize) -> bool {
        self.threads[thread].is_out
    }

    /// Whether some are.
    pub(super) fn is_narrow(&self) -> bool {
        matches!(self.state, State::Narrow(_))
    }

    /// Before a region.
    #[inline]
    pub(super) fn begin(&mut self, now: Duration) -> Next {
        match self.state {
            State::Apart | State::Trial(_) => Next::Apart,
            State::Narrow(until) if now < until => Next::Narrow,
            State::Narrow(_) => {
                self.state = State::Trial(now);
                self.forget();
                self.ran = CREDIT;
                Next::Trial
            }
        }
    }

    /// A region took so long.
    #[inline]
    pub(super) fn ran(&mut self, time: Duration) {
        self.ran_since += time;
    }

    fn forget(&mut self) {
        self.threads.fill(Thread::default());
        (self.ran, self.ran_since) = (Duration::ZERO, Duration::ZERO);
    }

    /// After a region in which threads were late for so long, or have lost their cores.
    #[cold]
    pub(super) fn end(
        &mut self,
        now: Duration,
        late: impl Iterator<Item = Duration>,
        is_lost: impl Fn(usize) -> bool,
    ) {
        if let State::Trial(since) = self.state
            && now.saturating_sub(since) > TRIAL
        {
            self.state = State::Apart;
            self.rest = (self.rest / 2).max(FIRST);
        }
        let age = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        let fade = (-age).exp2();
        self.at = now;
        let since = std::mem::take(&mut self.ran_since);
        self.ran = (self.ran.mul_f64(fade) + since).min(since.max(FULL));
        let mut leave = false;
        let mut caller_late = false;
        for (index, (thread, late)) in self.threads.iter_mut().zip(late).enumerate() {
            thread.late = thread.late.mul_f64(fade) + late;
            let is_late = thread.late >= LATE && thread.late * PART >= self.ran;
            if index == 0 {
                caller_late = is_late;
            } else if !thread.is_out && (is_late || is_lost(index)) {
                thread.is_out = true;
                leave = true;
            }
        }
        if caller_late && !leave {
            let last = self.threads.iter_mut().skip(1).rfind(|t| !t.is_out);
            if let Some(thread) = last {
                thread.is_out = true;
                leave = true;
            }
        }
        if leave {
            self.threads
                .iter_mut()
                .for_each(|t| t.late = Duration::ZERO);
            if let State::Trial(_) = self.state {
                self.rest = (self.rest * 2).min(LONGEST);
            }
            self.state = State::Narrow(now + self.rest);
        }
    }

    /// Leaves these threads out until the next trial.
    #[cfg(test)]
    pub(super) fn leave_out(&mut self, threads: impl IntoIterator<Item = usize>) {
        self.forget();
        for thread in threads {
            self.threads[thread].is_out = true;
        }
        self.state = if self.threads.iter().any(|t| t.is_out) {
            State::Narrow(Duration::MAX)
        } else {
            State::Apart
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    /// A machine on which threads are late as `late` says.
    struct Simulation {
        crowd: Crowd,
        now: Duration,
        /// The time of a region in which no thread is late.
        on_time: Duration,
        threads: usize,
    }

    impl Simulation {
        fn new(threads: usize) -> Self {
            Self {
                crowd: Crowd::new(threads),
                now: Duration::ZERO,
                on_time: MICROS(300),
                threads,
            }
        }

        /// The threads that ran the region; how late each was is asked of those.
        fn region(&mut self, mut late: impl FnMut(usize) -> Duration) -> Vec<usize> {
            let next = self.crowd.begin(self.now);
            let threads = 0..self.threads;
            let ran: Vec<usize> = match next {
                Next::Narrow => threads.filter(|&t| !self.crowd.is_out(t)).collect(),
                _ => threads.collect(),
            };
            let mut lates = vec![Duration::ZERO; self.threads];
            for &thread in &ran {
                lates[thread] = late(thread);
            }
            let took = self.on_time + lates.iter().max().copied().unwrap_or_default();
            self.now += took;
            self.crowd.ran(took);
            if lates.iter().any(|late| !late.is_zero()) {
                self.crowd.end(self.now, lates.into_iter(), |_| false);
            }
            ran
        }
    }

    #[test]
    fn on_a_quiet_machine_nobody_is_left_out() {
        let mut simulation = Simulation::new(4);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            // A thread of the system, now and then.
            let hit = random.u32(..100) == 0;
            let ran = simulation.region(|t| MICROS(if hit && t == 2 { 60 } else { 0 }));
            assert_eq!(ran, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn short_delays_of_long_regions_leave_nobody_out() {
        let mut simulation = Simulation::new(2);
        simulation.on_time = MICROS(150_000);
        for _ in 0..1_000 {
            let ran = simulation.region(|t| MICROS(if t == 1 { 20_000 } else { 0 }));
            assert_eq!(ran, [0, 1]);
        }
        // Half of the processor.
        let late = |t| MICROS(if t == 1 { 150_000 } else { 0 });
        assert_eq!(simulation.region(late), [0, 1]);
        assert_eq!(simulation.region(late), [0]);
        // The trial comes soon, however long a region is.
        assert_eq!(simulation.region(|_| Duration::ZERO), [0, 1]);
    }

    /// As a server's clients do.
    #[test]
    fn a_thread_that_shares_a_sixth_of_its_core_stays() {
        let mut simulation = Simulation::new(2);
        let mut random = fastrand::Rng::with_seed(7);
        let regions = 50_000;
        let mut apart = 0;
        for _ in 0..regions {
            let hit = random.u32(..6) == 0;
            let late = |t| MICROS(if hit && t == 1 { 350 } else { 0 });
            apart += usize::from(simulation.region(late).len() == 2);
        }
        assert!(apart * 20 >= regions * 19, "{apart} of {regions}");
    }

    #[test]
    fn a_thread_on_a_busy_core_is_left_out_of_all_but_few_regions() {
        for busy in 1..4 {
            let mut simulation = Simulation::new(4);
            let mut random = fastrand::Rng::with_seed(busy as u64);
            let mut slow = 0;
            let regions = 50_000;
            for _ in 0..regions {
                // Half of the processor, in slices: late in one of ten regions.
                let hit = random.u32(..10) == 0;
                let late = |t| MICROS(if hit && t == busy { 3_000 } else { 0 });
                let ran = simulation.region(late);
                slow += usize::from(hit && ran.contains(&busy));
                let others = (0..4).filter(|&t| t != busy);
                assert!(others.clone().all(|t| ran.contains(&t)), "{ran:?}");
            }
            // Fewer than the hundredth, of which the 99th percentile would tell.
            assert!(slow > 0 && slow < regions / 200, "{slow}");
        }
    }

    #[test]
    fn it_comes_back_when_the_core_is_free() {
        let mut simulation = Simulation::new(2);
        while simulation.now < Duration::from_secs(20) {
            simulation.region(|t| MICROS(if t == 1 { 1_000 } else { 0 }));
        }
        let free = simulation.now;
        while simulation.region(|_| Duration::ZERO).len() == 1 {}
        assert!(simulation.now - free <= LONGEST + MICROS(300));
        for _ in 0..10_000 {
            assert_eq!(simulation.region(|_| Duration::ZERO).len(), 2);
        }
    }

    #[test]
    fn a_late_caller_gets_a_processor_of_another() {
        let mut simulation = Simulation::new(3);
        // It is late for as long as all others run.
        for _ in 0..100 {
            let all = !(0..3).any(|t| simulation.crowd.is_out(t));
            simulation.region(|t| MICROS(if t == 0 && all { 500 } else { 0 }));
        }
        assert!(!simulation.crowd.is_out(0));
        let out: Vec<_> = (0..3).filter(|&t| simulation.crowd.is_out(t)).collect();
        assert!(out.is_empty() || out == [2]);
        // With everybody late, the caller does all.
        for _ in 0..3 {
            simulation.region(|_| MICROS(5_000));
        }
        assert_eq!(simulation.region(|_| Duration::ZERO), [0]);
    }

    #[test]
    fn a_thread_without_a_core_is_left_out() {
        let mut crowd = Crowd::new(3);
        let late = [Duration::ZERO; 3];
        crowd.end(Duration::ZERO, late.into_iter(), |thread| thread == 2);
        assert_eq!(crowd.begin(Duration::ZERO), Next::Narrow);
        assert_eq!([0, 1, 2].map(|t| crowd.is_out(t)), [false, false, true]);
    }
}
