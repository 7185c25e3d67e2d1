//! A target for tests, in simulated time: a number of servers with a constant service time and one
//! queue, whose expected times follow from queueing theory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::drive::{Clock, EventClock};
use crate::record::{CellRun, CellRuns, ErrorKind, Outcome, ServerTimes, Times};
use crate::target::{About, Completion, Target};
use crate::workload::{RequestShape, RequestSpec};

/// The server and its clock; clones are the same.
#[derive(Clone)]
pub struct Simulated(Arc<Mutex<State>>);

struct State {
    now: Duration,
    name: &'static str,
    service: Duration,
    warm_up: Duration,
    /// When each server is free.
    free: BinaryHeap<Reverse<Duration>>,
    /// Requests that may wait.
    room: usize,
    waiting: BinaryHeap<Reverse<Duration>>,
    /// Ends of requests, with their numbers.
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    ends: HashMap<u64, (Completion, Outcome)>,
    submitted: u64,
    served: u64,
    steps: Times,
    /// One submission from this time on lasts this long.
    stall: Option<(Duration, Duration)>,
    seen: Option<Vec<(Duration, RequestSpec)>>,
}

impl Simulated {
    /// A number of servers, each with `service` time per request.
    pub fn new(servers: usize, service: Duration) -> Simulated {
        Simulated(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            name: "simulated",
            service,
            warm_up: Duration::ZERO,
            free: std::iter::repeat_n(Reverse(Duration::ZERO), servers).collect(),
            room: usize::MAX,
            waiting: BinaryHeap::new(),
            events: BinaryHeap::new(),
            ends: HashMap::new(),
            submitted: 0,
            served: 0,
            steps: Times::default(),
            stall: None,
            seen: None,
        })))
    }

    /// Has this name.
    pub fn named(self, name: &'static str) -> Simulated {
        self.state().name = name;
        self
    }

    /// Says that it needs a warm-up.
    pub fn warm_up(self, warm_up: Duration) -> Simulated {
        self.state().warm_up = warm_up;
        self
    }

    /// Refuses requests while `room` wait.
    pub fn holds(self, room: usize) -> Simulated {
        self.state().room = room;
        self
    }

    /// The first submission from `from` on lasts `time`.
    pub fn stalls(self, from: Duration, time: Duration) -> Simulated {
        self.state().stall = Some((from, time));
        self
    }

    /// Records the submitted requests.
    pub fn remembers(self) -> Simulated {
        self.state().seen = Some(Vec::new());
        self
    }

    /// The submitted requests: time, length and seed.
    pub fn seen(&self) -> Vec<(Duration, (usize, u64))> {
        let state = self.state();
        let seen = state.seen.iter().flatten();
        seen.map(|(time, request)| match request.shape {
            RequestShape::Chain { steps } => (*time, (steps, request.seed)),
            _ => panic!("only chains are remembered"),
        })
        .collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl EventClock for Simulated {
    fn time(&self) -> Duration {
        self.state().now
    }

    fn step(&self, until: Duration) -> bool {
        let mut state = self.state();
        match state.events.peek() {
            Some(&Reverse((time, id))) if time <= until => {
                state.events.pop();
                state.now = time.max(state.now);
                let (completion, outcome) = state.ends.remove(&id).unwrap();
                // The completion reads the clock.
                drop(state);
                completion.report(outcome);
                true
            }
            _ => {
                state.now = state.now.max(until);
                false
            }
        }
    }
}

impl Target for Simulated {
    type Prepared = RequestSpec;

    fn about(&self) -> About {
        let state = self.state();
        About {
            warm_up: state.warm_up,
            capacity: state.free.len(),
            ..About::new(state.name)
        }
    }

    fn prepare(&self, request: &RequestSpec) -> RequestSpec {
        request.clone()
    }

    fn submit(&self, request: RequestSpec, time_left: Option<Duration>, completion: Completion) {
        let mut state = self.state();
        let now = state.now;
        if let Some(seen) = &mut state.seen {
            seen.push((now, request));
        }
        while state.waiting.peek().is_some_and(|start| start.0 <= now) {
            state.waiting.pop();
        }
        let free = state.free.peek().map_or(Duration::MAX, |free| free.0);
        let start = free.max(now);
        let (end, outcome) = if start > now && state.waiting.len() >= state.room {
            (now, ErrorKind::Overloaded.into())
        } else if time_left.is_some_and(|left| start > now + left) {
            (now + time_left.unwrap(), ErrorKind::Deadline.into())
        } else {
            let end = start + state.service;
            state.free.pop();
            state.free.push(Reverse(end));
            state.waiting.push(Reverse(start));
            state.served += 1;
            state.steps.record(end - start);
            let outcome = Outcome::Answered(Some(ServerTimes {
                queueing: start - now,
                computing: end - start,
            }));
            (end, outcome)
        };
        let id = state.submitted;
        state.submitted += 1;
        state.events.push(Reverse((end, id)));
        state.ends.insert(id, (completion, outcome));
        let stall = state.stall.filter(|(from, _)| now >= *from);
        if let Some((_, time)) = stall {
            state.stall = None;
            // The caller is blocked, and the answer comes after that.
            state.events.retain(|Reverse((_, event))| *event != id);
            state.events.push(Reverse((end.max(now + time), id)));
            drop(state);
            self.sleep_until(now + time);
        }
    }

    fn cells(&self) -> CellRuns {
        let state = self.state();
        let run = CellRun {
            batches: BTreeMap::from([(1, state.served)]),
            steps: state.steps.clone(),
        };
        CellRuns::from([("simulated".into(), run)])
    }
}
