//! One run: requests are submitted when they are due, and what becomes of them is counted.

pub mod clock;
pub mod inbox;
pub mod priority;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;

use crate::drive::clock::Clock;
use crate::drive::inbox::{Inbox, Outbox, inbox};
use crate::record::{Ended, Recording, between};
use crate::target::{ErrorKind, Outcome, Ran, Target};
use crate::workload::Workload;
use crate::workload::arrivals::Arrivals;

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// When requests are due.
    pub arrivals: &'a Arrivals,
    /// What they ask for.
    pub workload: &'a Workload,
    /// Of arrivals and requests.
    pub seed: u64,
    /// Before the window.
    pub warm_up: Duration,
    /// The window at most: it ends with the last request if there are no more.
    pub window: Duration,
    /// Requests at most, those of the warm-up included.
    pub requests: u64,
    /// From when a request is due.
    pub deadline: Option<Duration>,
    /// How long requests are waited for after the window.
    pub patience: Duration,
}

/// A closed loop's user whose request failed asks again after this, lest he does nothing else.
const RETRY: Duration = Duration::from_millis(10);

/// Runs.
pub fn drive<T: Target, C: Clock>(target: &T, clock: &C, run: &Run<'_>) -> Recording {
    let (send, ended) = inbox();
    let start = clock.now();
    let window = start + run.warm_up;
    let mut driven = Driven {
        target,
        clock,
        run,
        start,
        window,
        end: window + run.window,
        random: Rng::with_seed(run.seed),
        send,
        ended,
        outstanding: BTreeMap::new(),
        submitted: 0,
        recording: Recording::new(),
        before: None,
    };
    match run.arrivals {
        Arrivals::Closed { outstanding } => driven.closed(*outstanding),
        open => driven.open(open),
    }
    driven.finish()
}

struct Driven<'a, T: Target, C: Clock> {
    target: &'a T,
    clock: &'a C,
    run: &'a Run<'a>,
    start: Duration,
    /// The window's start and end.
    window: Duration,
    end: Duration,
    random: Rng,
    send: Outbox<Ended>,
    ended: Inbox<Ended>,
    /// When requests that have not ended were due and submitted.
    outstanding: BTreeMap<u64, (Duration, Duration)>,
    submitted: u64,
    recording: Recording,
    /// What was run before the window.
    before: Option<Ran>,
}

impl<T: Target, C: Clock> Driven<'_, T, C> {
    fn open(&mut self, arrivals: &Arrivals) {
        // Of a seed of its own: else lengths would depend on the times between requests.
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
            // Ended requests are taken up here: being woken for each would cost the workers more.
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
        // There are few users, and each asks for one request at a time: one is kept ready.
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
                    Outcome::Done { .. } => Duration::ZERO,
                    Outcome::Failed(_) => RETRY,
                };
                due.push(Reverse(one.ended + pause));
                self.count(one);
            }
        }
        // The window of so many requests is over when the last of them goes out.
        self.end = self.end.min(self.clock.now()).max(self.window);
    }

    fn prepare(&mut self) -> T::Prepared {
        self.target
            .prepare(&self.run.workload.draw(&mut self.random))
    }

    fn submit(&mut self, request: T::Prepared, due: Duration) {
        if self.before.is_none() && due >= self.window {
            self.before = Some(self.target.ran());
        }
        let (id, submitted) = (self.submitted, self.clock.now());
        let left = self.run.deadline;
        let left = left.map(|deadline| (due + deadline).saturating_sub(submitted));
        self.submitted += 1;
        self.outstanding.insert(id, (due, submitted));
        let (send, clock) = (self.send.clone(), self.clock.clone());
        let done = move |outcome| {
            let ended = clock.now();
            send.send(Ended {
                id,
                due,
                submitted,
                ended,
                outcome,
            });
        };
        self.target.submit(request, left, Box::new(done));
    }

    fn count(&mut self, one: Ended) {
        self.outstanding.remove(&one.id);
        self.recording.count(&one, self.window, self.end);
    }

    /// Waits for what is outstanding: were it left out, the slowest would be.
    fn finish(mut self) -> Recording {
        let ran = self.target.ran();
        // Without a request in the window, there is nothing in it.
        let before = self.before.as_ref().unwrap_or(&ran);
        self.recording.ran = between(before, &ran);
        self.recording.window = self.end - self.window;
        let give_up = self.clock.now() + self.run.patience;
        while !self.outstanding.is_empty() {
            match self.clock.receive(&self.ended, give_up) {
                Some(one) => self.count(one),
                None => break,
            }
        }
        let ended = self.clock.now();
        for (id, (due, submitted)) in std::mem::take(&mut self.outstanding) {
            let outcome = Outcome::Failed(ErrorKind::Unfinished);
            self.count(Ended {
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
    use crate::simulated::Simulated;
    use crate::workload::lengths::Lengths;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    const WORKLOAD: Workload = Workload::Chains(Lengths::Fixed(1));

    fn run(arrivals: &Arrivals) -> Run<'_> {
        Run {
            arrivals,
            workload: &WORKLOAD,
            seed: 1,
            warm_up: SECOND,
            window: 1000 * SECOND,
            requests: u64::MAX,
            deadline: None,
            patience: 10 * SECOND,
        }
    }

    fn near(found: f64, expected: f64, within: f64) {
        assert!(
            (found / expected - 1.0).abs() < within,
            "{found} for {expected}"
        );
    }

    #[test]
    fn a_queue_with_one_server_waits_as_pollaczek_and_khinchine_say() {
        // M/D/1: the mean wait is rho / (2 mu (1 - rho)); a share of 1 - rho do not wait at all.
        for load in [0.3, 0.6, 0.8] {
            let server = Simulated::new(1, 10 * MS);
            let arrivals = Arrivals::Poisson { rate: 100.0 * load };
            let recording = drive(&server, &server, &run(&arrivals));
            let expected = load * 10.0 / (2.0 * (1.0 - load));
            near(recording.queueing.mean(), expected, 0.06);
            near(recording.latency.mean(), expected + 10.0, 0.04);
            near(recording.throughput(), 100.0 * load, 0.02);
            near(recording.computing.at(0.999), 10.0, 1e-3);
            assert!(recording.queueing.at(0.97 * (1.0 - load)) < 1e-3);
            assert!(recording.queueing.at(1.03 * (1.0 - load)) > 1e-3);
            assert_eq!(recording.lateness.max(), 0.0);
            let ran = &recording.ran["simulated"];
            assert_eq!(ran.batches.len(), 1);
            near(ran.batches[&1] as f64, recording.completed as f64, 1e-3);
            near(ran.steps.at(0.5), 10.0, 1e-3);
            assert_eq!(ran.steps.len(), ran.batches[&1]);
        }
    }

    #[test]
    fn a_closed_loop_keeps_all_servers_busy() {
        let server = Simulated::new(2, 10 * MS);
        let arrivals = Arrivals::Closed { outstanding: 6 };
        let recording = drive(&server, &server, &run(&arrivals));
        // Six users, two served at a time: each is answered every third round of 10 ms.
        near(recording.throughput(), 200.0, 1e-3);
        near(recording.latency.at(0.5), 30.0, 1e-3);
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
    fn a_second_of_standstill_is_charged_to_all_who_were_due_in_it() {
        // A request every 10 ms, answered at once; submitting that of 5 s takes a second.
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
                .filter(|&share| recording.latency.at(share) <= ms)
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
        // A generator that counts from submission would have seen one slow request of 900.
    }

    #[test]
    fn arrivals_and_requests_are_the_same_for_all_servers() {
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
    fn lengths_do_not_depend_on_the_times_of_arrival() {
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
    fn what_fails_is_counted_and_what_does_not_end_is_given_up() {
        // Twice as much as can be served, of which at most 5 wait.
        let arrivals = Arrivals::Poisson { rate: 200.0 };
        let server = Simulated::new(1, 10 * MS).holds(5);
        let recording = drive(&server, &server, &run(&arrivals));
        near(recording.throughput(), 100.0, 0.01);
        let refused = recording.errors[ErrorKind::Overloaded as usize];
        near(refused as f64, recording.due as f64 / 2.0, 0.03);
        assert_eq!(recording.due, recording.latency.len() + refused);
        assert!(
            recording.latency.max() < 60.1,
            "{}",
            recording.latency.max()
        );

        // A deadline of 25 ms: who would start later ends without an answer.
        let server = Simulated::new(1, 10 * MS);
        let late = Run {
            deadline: Some(25 * MS),
            ..run(&arrivals)
        };
        let recording = drive(&server, &server, &late);
        assert!(recording.errors[ErrorKind::Deadline as usize] > recording.due / 3);
        assert!(recording.queueing.max() <= 25.1);

        // No answer within the patience.
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
    struct Thread(Sender<crate::target::Done>);

    impl Target for Thread {
        type Prepared = ();

        fn prepare(&self, _: &crate::workload::Request) {}

        fn submit(&self, _: (), _: Option<Duration>, done: crate::target::Done) {
            self.0.send(done).unwrap();
        }

        fn ran(&self) -> Ran {
            Ran::new()
        }
    }

    #[test]
    fn threads_answer_by_the_walls_clock() {
        for arrivals in [
            Arrivals::Poisson { rate: 2000.0 },
            Arrivals::Closed { outstanding: 2 },
        ] {
            let (send, receive) = channel::<crate::target::Done>();
            let server = std::thread::spawn(move || {
                for done in receive {
                    std::thread::sleep(MS);
                    done(Outcome::Done {
                        queueing: Duration::ZERO,
                        computing: MS,
                    });
                }
            });
            let target = Thread(send);
            let some = Run {
                warm_up: Duration::ZERO,
                window: 60 * SECOND,
                requests: 40,
                ..run(&arrivals)
            };
            let clock = crate::drive::clock::WallClock::new();
            let recording = drive(&target, &clock, &some);
            drop(target);
            server.join().unwrap();
            assert_eq!((recording.due, recording.unanswered()), (40, 0));
            assert!(recording.latency.at(0.0) >= 0.999 && recording.window > Duration::ZERO);
            assert!(recording.ran.is_empty());
        }
    }

    #[test]
    fn a_number_of_requests_ends_a_run_too() {
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
}
