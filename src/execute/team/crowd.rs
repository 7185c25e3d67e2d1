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

/// It must also have been late for this part of the region, or leaving it out would cost more than
/// it saves: in a long region the system always takes some time for itself.
const PART: u32 = 4;
const HALF_LIFE: Duration = Duration::from_millis(10);

/// After this time on trial, nobody is expected to be late.
const TRIAL: Duration = Duration::from_millis(200);

/// Regions and time before a trial: at first, and at most.
const FIRST: Rest = Rest {
    regions: 16,
    time: Duration::from_millis(2),
};
const LONGEST: Rest = Rest {
    regions: 1024,
    time: Duration::from_secs(1),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    regions: u32,
    time: Duration,
}

impl Rest {
    fn doubled(self) -> Rest {
        Rest {
            regions: (self.regions * 2).min(LONGEST.regions),
            time: (self.time * 2).min(LONGEST.time),
        }
    }

    fn halved(self) -> Rest {
        Rest {
            regions: (self.regions / 2).max(FIRST.regions),
            time: (self.time / 2).max(FIRST.time),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Apart,
    /// Since when.
    Trial(Duration),
    /// Regions still to run, and until when.
    Narrow(u32, Duration),
}

/// See the [module](self). Times count from any moment.
pub(super) struct Crowd {
    state: State,
    rest: Rest,
    threads: Box<[Thread]>,
}

#[derive(Clone, Copy, Default)]
struct Thread {
    is_out: bool,
    /// Lateness that counts, as of `at`.
    late: Duration,
    at: Duration,
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
        }
    }

    /// Whether a thread is left out of narrow regions.
    #[inline]
    pub(super) fn is_out(&self, thread: usize) -> bool {
        self.threads[thread].is_out
    }

    /// Whether some are.
    pub(super) fn is_narrow(&self) -> bool {
        matches!(self.state, State::Narrow(..))
    }

    /// Before a region.
    #[inline]
    pub(super) fn begin(&mut self, now: Duration) -> Next {
        match self.state {
            State::Apart | State::Trial(_) => Next::Apart,
            State::Narrow(regions, until) => self.begin_narrow(regions, until, now),
        }
    }

    #[cold]
    fn begin_narrow(&mut self, regions: u32, until: Duration, now: Duration) -> Next {
        // A few long regions take as long as many short ones.
        if (regions == 0 && now >= until) || now >= until.saturating_add(LONGEST.time) {
            self.state = State::Trial(now);
            self.threads.fill(Thread::default());
            return Next::Trial;
        }
        self.state = State::Narrow(regions.saturating_sub(1), until);
        Next::Narrow
    }

    /// After a region from `begun` to `now` in which threads were late for so long, or have lost
    /// their cores.
    #[cold]
    pub(super) fn end(
        &mut self,
        begun: Duration,
        now: Duration,
        late: impl Iterator<Item = Duration>,
        is_lost: impl Fn(usize) -> bool,
    ) {
        if let State::Trial(since) = self.state
            && now.saturating_sub(since) > TRIAL
        {
            self.state = State::Apart;
            self.rest = self.rest.halved();
        }
        let took = now.saturating_sub(begun);
        let mut leave = false;
        let mut caller_late = false;
        for (index, (thread, late)) in self.threads.iter_mut().zip(late).enumerate() {
            let age = now.saturating_sub(thread.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
            thread.late = thread.late.mul_f64((-age).exp2()) + late;
            thread.at = now;
            let is_late = thread.late >= LATE && late * PART >= took;
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
                self.rest = self.rest.doubled();
            }
            self.state = State::Narrow(self.rest.regions, now + self.rest.time);
        }
    }

    /// Leaves these threads out until the next trial.
    #[cfg(test)]
    pub(super) fn leave_out(&mut self, threads: impl IntoIterator<Item = usize>) {
        self.threads.fill(Thread::default());
        for thread in threads {
            self.threads[thread].is_out = true;
        }
        self.state = match self.threads.iter().any(|t| t.is_out) {
            true => State::Narrow(u32::MAX, Duration::MAX),
            false => State::Apart,
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
            let begun = self.now;
            self.now += self.on_time + lates.iter().max().copied().unwrap_or_default();
            if lates.iter().any(|late| !late.is_zero()) {
                self.crowd
                    .end(begun, self.now, lates.into_iter(), |_| false);
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
        // The trial comes after few of them.
        let mut regions = 0;
        while simulation.region(|_| Duration::ZERO).len() == 1 {
            regions += 1;
        }
        assert!(regions < 16, "{regions}");
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
        assert!(simulation.now - free <= LONGEST.time + MICROS(300 * 1024));
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
        crowd.end(Duration::ZERO, Duration::ZERO, late.into_iter(), |thread| {
            thread == 2
        });
        assert_eq!(crowd.begin(Duration::ZERO), Next::Narrow);
        assert_eq!([0, 1, 2].map(|t| crowd.is_out(t)), [false, false, true]);
    }
}
