//! One run: requests are submitted when they are due, and their ends are counted.

mod clock;
mod inbox;
pub(crate) mod priority;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;

use crate::record::{CellRuns, ErrorKind, Outcome, Recording, RequestRecord, between};
use crate::target::{Completion, Target};
use crate::workload::{Arrivals, Workload};
pub use clock::{Clock, EventClock, WallClock};
pub use inbox::{Inbox, Outbox, inbox};

/// Conditions of a run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// When requests are due.
    pub arrivals: &'a Arrivals,
    /// Distribution of requests.
    pub workload: &'a Workload,
    /// Seed of arrivals and requests.
    pub seed: u64,
    /// Time before the window.
    pub warm_up: Duration,
    /// Maximum length of the window; it ends with the last request if that is earlier.
    pub window: Duration,
    /// Maximum number of requests, including those of the warm-up.
    pub requests: u64,
    /// Counted from the time when a request is due.
    pub deadline: Option<Duration>,
    /// How long the driver waits for requests in flight after the window.
    pub drain_timeout: Duration,
}

impl<'a> Run<'a> {
    /// A window of 10 s without warm-up, limit or deadline, and a drain timeout of 30 s.
    pub fn new(arrivals: &'a Arrivals, workload: &'a Workload) -> Run<'a> {
        Run {
            arrivals,
            workload,
            seed: 1,
            warm_up: Duration::ZERO,
            window: Duration::from_secs(10),
            requests: u64::MAX,
            deadline: None,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A user of a closed loop whose request failed waits this long, so that refusals do not take all
/// time of the generator.
const RETRY: Duration = Duration::from_millis(10);

/// Sends the requests of a run to `target` and records how they end.
///
/// Equal seeds produce equal requests, and in an open loop equal times, for every target.
pub fn drive<T: Target, C: Clock>(target: &T, clock: &C, run: &Run<'_>) -> Recording {
    let (sender, ended) = inbox();
    let start = clock.now();
    let window = start + run.warm_up.max(target.about().warm_up);
    let mut driver = Driver {
        target,
        clock,
        run,
        start,
        window,
        end: window + run.window,
        random: Rng::with_seed(run.seed),
        sender,
        ended,
        in_flight: BTreeMap::new(),
        submitted: 0,
        recording: Recording::default(),
        before: None,
    };
    match run.arrivals {
        Arrivals::Closed { outstanding } => driver.closed(*outstanding),
        open => driver.open(open),
    }
    driver.finish()
}

struct Driver<'a, T: Target, C: Clock> {
    target: &'a T,
    clock: &'a C,
    run: &'a Run<'a>,
    start: Duration,
    /// Start and end of the window.
    window: Duration,
    end: Duration,
    random: Rng,
    sender: Outbox<RequestRecord>,
    ended: Inbox<RequestRecord>,
    /// Times when the requests in flight were due and submitted.
    in_flight: BTreeMap<u64, (Duration, Duration)>,
    submitted: u64,
    recording: Recording,
    /// Counters of the target at the start of the window.
    before: Option<CellRuns>,
}

impl<T: Target, C: Clock> Driver<'_, T, C> {
    fn open(&mut self, arrivals: &Arrivals) {
        // Another seed than that of requests; otherwise lengths would depend on the gaps.
        let mut times = arrivals.times(!self.run.seed);
        let mut last = self.start;
        while self.submitted < self.run.requests {
            let Some(due) = times.next().map(|time| self.start + time) else {
                break;
            };
            if due >= self.end {
                last = self.end;
                break;
            }
            last = due;
            let request = self.prepare();
            self.clock.sleep_until(due);
            // Not woken for each response, which would slow down the workers.
            while let Some(one) = self.ended.take() {
                self.count(one);
            }
            self.submit(request, due);
        }
        self.end = last.max(self.window);
        self.clock.sleep_until(self.end);
    }

    fn closed(&mut self, users: usize) {
        let mut due: BinaryHeap<Reverse<Duration>> = std::iter::repeat_n(self.start, users)
            .map(Reverse)
            .collect();
        // One request is prepared ahead.
        let mut ready = self.prepare();
        while self.submitted < self.run.requests {
            let now = self.clock.now();
            match due.peek() {
                Some(&Reverse(time)) if time <= now && time < self.end => {
                    due.pop();
                    self.submit(ready, time);
                    ready = self.prepare();
                    continue;
                }
                _ if now >= self.end => return,
                _ => {}
            }
            let next = due.peek().map_or(self.end, |&Reverse(time)| time);
            if let Some(one) = self.clock.receive(&self.ended, next.min(self.end)) {
                let pause = match one.outcome {
                    Outcome::Answered(_) => Duration::ZERO,
                    Outcome::Failed(..) => RETRY,
                };
                due.push(Reverse(one.ended + pause));
                self.count(one);
            }
        }
        // The limit of requests ends the window with the last submission.
        self.end = self.end.min(self.clock.now()).max(self.window);
    }

    fn prepare(&mut self) -> T::Prepared {
        self.target
            .prepare(&self.run.workload.draw(&mut self.random))
    }

    fn submit(&mut self, request: T::Prepared, due: Duration) {
        if self.before.is_none() && due >= self.window {
            self.before = Some(self.target.cells());
        }
        let (id, submitted) = (self.submitted, self.clock.now());
        let deadline = self.run.deadline.map(|deadline| due + deadline);
        let time_left = deadline.map(|deadline| deadline.saturating_sub(submitted));
        self.submitted += 1;
        self.in_flight.insert(id, (due, submitted));
        let (sender, clock) = (self.sender.clone(), self.clock.clone());
        let completion = Completion::new(move |outcome| {
            let ended = clock.now();
            sender.send(RequestRecord {
                id,
                due,
                submitted,
                ended,
                outcome,
            });
        });
        self.target.submit(request, time_left, completion);
    }

    fn count(&mut self, one: RequestRecord) {
        self.in_flight.remove(&one.id);
        self.recording.count(&one, self.window, self.end);
    }

    /// Waits for the requests in flight: without them the slowest would be left out.
    fn finish(mut self) -> Recording {
        let after = self.target.cells();
        // Without a request in the window, nothing was executed for it.
        let before = self.before.as_ref().unwrap_or(&after);
        self.recording.cells = between(before, &after);
        self.recording.window = self.end - self.window;
        let give_up = self.clock.now() + self.run.drain_timeout;
        while !self.in_flight.is_empty() {
            match self.clock.receive(&self.ended, give_up) {
                Some(one) => self.count(one),
                None => break,
            }
        }
        let ended = self.clock.now();
        for (id, (due, submitted)) in std::mem::take(&mut self.in_flight) {
            let outcome = ErrorKind::Unfinished.into();
            self.count(RequestRecord {
                id,
                due,
                submitted,
                ended,
                outcome,
            });
        }
        self.recording
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::record::ServerTimes;
    use crate::simulated::Simulated;
    use crate::target::About;
    use crate::workload::{Lengths, RequestSpec};

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    const WORKLOAD: Workload = Workload::Chains(Lengths::Fixed(1));

    fn run(arrivals: &Arrivals) -> Run<'_> {
        Run {
            warm_up: SECOND,
            window: 1000 * SECOND,
            drain_timeout: 10 * SECOND,
            ..Run::new(arrivals, &WORKLOAD)
        }
    }

    fn near(found: f64, expected: f64, within: f64) {
        assert!(
            (found / expected - 1.0).abs() < within,
            "{found} for {expected}"
        );
    }

    #[test]
    fn one_server_waits_as_pollaczek_and_khinchine_say() {
        // M/D/1: the mean wait is rho / (2 mu (1 - rho)); a share of 1 - rho do not wait at all.
        for load in [0.3, 0.6, 0.8] {
            let server = Simulated::new(1, 10 * MS);
            let arrivals = Arrivals::Poisson { rate: 100.0 * load };
            let recording = drive(&server, &server, &run(&arrivals));
            let expected = load * 10.0 / (2.0 * (1.0 - load));
            near(recording.queueing.mean(), expected, 0.06);
            near(recording.latency.mean(), expected + 10.0, 0.04);
            near(recording.throughput(), 100.0 * load, 0.02);
            near(recording.computing.quantile(0.999), 10.0, 1e-3);
            assert!(recording.queueing.quantile(0.97 * (1.0 - load)) < 1e-3);
            assert!(recording.queueing.quantile(1.03 * (1.0 - load)) > 1e-3);
            assert_eq!(recording.lateness.max(), 0.0);
            let cell = &recording.cells["simulated"];
            assert_eq!(cell.batches.len(), 1);
            near(cell.batches[&1] as f64, recording.completed as f64, 1e-3);
            near(cell.steps.quantile(0.5), 10.0, 1e-3);
            assert_eq!(cell.steps.count(), cell.batches[&1]);
        }
    }

    #[test]
    fn a_closed_loop_keeps_all_servers_busy() {
        let server = Simulated::new(2, 10 * MS);
        let arrivals = Arrivals::Closed { outstanding: 6 };
        let recording = drive(&server, &server, &run(&arrivals));
        // Six users, two served at a time: each is answered every third round of 10 ms.
        near(recording.throughput(), 200.0, 1e-3);
        near(recording.latency.quantile(0.5), 30.0, 1e-3);
        near(recording.latency.max(), 30.0, 1e-3);
        let one = Arrivals::Closed { outstanding: 1 };
        let server = Simulated::new(2, 10 * MS);
        near(
            drive(&server, &server, &run(&one)).throughput(),
            100.0,
            1e-3,
        );
    }

    #[test]
    fn a_stall_delays_all_requests_due_in_it() {
        // A request every 10 ms, answered at once; the submission at 5 s lasts a second.
        let times: Vec<_> = (0..1000).map(|index| 10 * MS * index).collect();
        let arrivals = Arrivals::Trace(times.into());
        let server = Simulated::new(1, Duration::ZERO).stalls(5 * SECOND, SECOND);
        let recording = drive(&server, &server, &run(&arrivals));
        assert_eq!((recording.due, recording.unanswered()), (900, 0));
        // Those due from 5.00 s to 5.99 s wait until 6 s: from 1000 ms down to 10 ms.
        let waited = |ms: f64| {
            let all = 900.0;
            let share = (0..=900).map(|n| f64::from(n) / all);
            let below = share
                .filter(|&share| recording.latency.quantile(share) <= ms)
                .count() as f64
                - 1.0;
            (all - below).round()
        };
        assert_eq!(
            [waited(1.0), waited(505.0), waited(995.0)],
            [100.0, 50.0, 1.0]
        );
        near(recording.latency.max(), 1000.0, 1e-3);
        // The request that stalled went out on time, the next was 990 ms late.
        near(recording.lateness.max(), 990.0, 1e-3);
        // Counted from submission, one request of 900 would have been slow.
    }

    #[test]
    fn all_servers_get_the_same_requests() {
        let arrivals = Arrivals::Poisson { rate: 40.0 };
        let workload = Workload::Chains(Lengths::paper(330).unwrap());
        let seen = |service: Duration, seed| {
            let server = Simulated::new(1, service).remembers();
            let run = Run {
                workload: &workload,
                window: 10 * SECOND,
                seed,
                ..run(&arrivals)
            };
            drive(&server, &server, &run);
            server.seen()
        };
        let first = seen(MS, 1);
        assert!(first.len() > 300);
        assert_eq!(first, seen(70 * MS, 1));
        assert_ne!(first, seen(MS, 2));
    }

    #[test]
    fn lengths_are_independent_of_arrivals() {
        let arrivals = Arrivals::Poisson { rate: 1.0 };
        let workload = Workload::Chains(Lengths::paper(330).unwrap());
        let first = |seed| {
            let server = Simulated::new(1, MS).remembers();
            let one = Run {
                workload: &workload,
                requests: 1,
                seed,
                ..run(&arrivals)
            };
            drive(&server, &server, &one);
            let (time, (length, _)) = server.seen()[0];
            // How far the length is from the median: a draw far out is far on either side.
            (time.as_secs_f64(), ((length as f64).ln() - 2.9).abs())
        };
        let pairs: Vec<(f64, f64)> = (0..2000).map(first).collect();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / 2000.0;
        let (a, b) = (mean(&|p| p.0), mean(&|p| p.1));
        let variances = mean(&|p| (p.0 - a).powi(2)) * mean(&|p| (p.1 - b).powi(2));
        let correlation = mean(&|p| (p.0 - a) * (p.1 - b)) / variances.sqrt();
        // Five standard errors.
        assert!(correlation.abs() < 0.11, "{correlation}");
    }

    #[test]
    fn failed_and_unfinished_requests_are_counted() {
        // Twice as much as can be served, of which at most 5 wait.
        let arrivals = Arrivals::Poisson { rate: 200.0 };
        let server = Simulated::new(1, 10 * MS).holds(5);
        let recording = drive(&server, &server, &run(&arrivals));
        near(recording.throughput(), 100.0, 0.01);
        let refused = recording.errors[ErrorKind::Overloaded as usize];
        near(refused as f64, recording.due as f64 / 2.0, 0.03);
        assert_eq!(recording.due, recording.latency.count() + refused);
        assert!(
            recording.latency.max() < 60.1,
            "{}",
            recording.latency.max()
        );

        // A deadline of 25 ms: requests that would start later are not answered.
        let server = Simulated::new(1, 10 * MS);
        let late = Run {
            deadline: Some(25 * MS),
            ..run(&arrivals)
        };
        let recording = drive(&server, &server, &late);
        assert!(recording.errors[ErrorKind::Deadline as usize] > recording.due / 3);
        assert!(recording.queueing.max() <= 25.1);

        // No response within the drain timeout.
        let server = Simulated::new(1, 100 * SECOND);
        let times: Vec<_> = [2, 3, 4].map(|s| s * SECOND).into();
        let arrivals = Arrivals::Trace(times.into());
        let recording = drive(&server, &server, &run(&arrivals));
        assert_eq!((recording.due, recording.errors), (3, [0, 0, 0, 3]));
        near(recording.latency.max(), 12e3, 1e-3);
    }

    #[test]
    fn a_closed_loop_goes_on_when_all_is_refused() {
        let server = Simulated::new(1, 10 * MS).holds(0);
        let arrivals = Arrivals::Closed { outstanding: 4 };
        let short = Run {
            window: 2 * SECOND,
            ..run(&arrivals)
        };
        let recording = drive(&server, &server, &short);
        assert!(recording.errors[ErrorKind::Overloaded as usize] >= 3 * 200 - 10);
        near(recording.throughput(), 100.0, 0.01);
    }

    /// A thread that answers, one request after the other.
    struct Thread(Sender<Completion>);

    impl Target for Thread {
        type Prepared = ();

        fn about(&self) -> About {
            About::new("thread")
        }

        fn prepare(&self, _: &RequestSpec) {}

        fn submit(&self, _: (), _: Option<Duration>, completion: Completion) {
            self.0.send(completion).unwrap();
        }
    }

    #[test]
    fn a_target_may_answer_on_its_own_threads() {
        for arrivals in [
            Arrivals::Poisson { rate: 2000.0 },
            Arrivals::Closed { outstanding: 2 },
        ] {
            let (send, receive) = channel::<Completion>();
            let server = std::thread::spawn(move || {
                for completion in receive {
                    std::thread::sleep(MS);
                    completion.report(Outcome::Answered(Some(ServerTimes {
                        queueing: Duration::ZERO,
                        computing: MS,
                    })));
                }
            });
            let target = Thread(send);
            let some = Run {
                warm_up: Duration::ZERO,
                window: 60 * SECOND,
                requests: 40,
                ..run(&arrivals)
            };
            let clock = WallClock::new();
            let recording = drive(&target, &clock, &some);
            drop(target);
            server.join().unwrap();
            assert_eq!((recording.due, recording.unanswered()), (40, 0));
            assert!(recording.latency.quantile(0.0) >= 0.999 && recording.window > Duration::ZERO);
            assert!(recording.cells.is_empty());
        }
    }

    #[test]
    fn a_limit_of_requests_ends_a_run() {
        let arrivals = Arrivals::Poisson { rate: 100.0 };
        let some = Run {
            requests: 500,
            ..run(&arrivals)
        };
        let server = Simulated::new(1, MS).remembers();
        let recording = drive(&server, &server, &some);
        let seen = server.seen();
        assert_eq!(seen.len(), 500);
        let after = seen.iter().filter(|(time, _)| *time >= SECOND).count();
        assert_eq!(recording.due, after as u64);
        assert_eq!(recording.window, seen[499].0 - SECOND);
        let closed = Arrivals::Closed { outstanding: 3 };
        let server = Simulated::new(1, 10 * MS).remembers();
        let some = Run {
            requests: 500,
            ..run(&closed)
        };
        let recording = drive(&server, &server, &some);
        assert_eq!(server.seen().len(), 500);
        near(recording.throughput(), 100.0, 0.01);
    }

    /// A target that needs a warm-up lengthens that of the run.
    #[test]
    fn the_longer_warm_up_counts() {
        let times: Vec<_> = (0..10).map(|index| SECOND * index).collect();
        let arrivals = Arrivals::Trace(times.into());
        for (warm_up, due) in [(0, 9), (4, 6)] {
            let server = Simulated::new(1, MS).warm_up(warm_up * SECOND);
            assert_eq!(drive(&server, &server, &run(&arrivals)).due, due);
        }
    }
}
