//! A server for tests, in simulated time: so many servers with a constant time of service and one queue, of which
//! queueing theory knows what must come out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::drive::clock::Clock;
use crate::drive::inbox::Inbox;
use crate::record::Times;
use crate::target::{CellRan, Done, ErrorKind, Outcome, Ran, Target};
use crate::workload::{Request, Work};

/// The server and its clock; clones are the same.
#[derive(Clone)]
pub struct Simulated(Arc<Mutex<State>>);

struct State {
    now: Duration,
    service: Duration,
    /// When each server is free.
    free: BinaryHeap<Reverse<Duration>>,
    /// Requests that may wait.
    room: usize,
    waiting: BinaryHeap<Reverse<Duration>>,
    /// What ends when, in order of submission.
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    ends: HashMap<u64, (Done, Outcome)>,
    submitted: u64,
    served: u64,
    steps: Times,
    /// From when submission takes how long, once.
    stall: Option<(Duration, Duration)>,
    seen: Option<Vec<(Duration, Request)>>,
}

impl Simulated {
    /// So many servers, each of which takes `service` for a request.
    pub fn new(servers: usize, service: Duration) -> Simulated {
        Simulated(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            service,
            free: std::iter::repeat_n(Reverse(Duration::ZERO), servers).collect(),
            room: usize::MAX,
            waiting: BinaryHeap::new(),
            events: BinaryHeap::new(),
            ends: HashMap::new(),
            submitted: 0,
            served: 0,
            steps: Times::new(),
            stall: None,
            seen: None,
        })))
    }

    /// Refuses requests while so many wait.
    pub fn holds(self, room: usize) -> Simulated {
        self.state().room = room;
        self
    }

    /// The first submission from `from` on takes `time`.
    pub fn stalls(self, from: Duration, time: Duration) -> Simulated {
        self.state().stall = Some((from, time));
        self
    }

    /// Remembers what is submitted when.
    pub fn remembers(self) -> Simulated {
        self.state().seen = Some(Vec::new());
        self
    }

    /// What was submitted when: time, length and seed.
    pub fn seen(&self) -> Vec<(Duration, (usize, u64))> {
        let state = self.state();
        let seen = state.seen.iter().flatten();
        seen.map(|(time, request)| match request.work {
            Work::Chain { steps } => (*time, (steps, request.seed)),
            _ => panic!("only chains are remembered"),
        })
        .collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Goes on to the next event, if it is not after `until`.
    fn step(&self, until: Duration) -> bool {
        let mut state = self.state();
        match state.events.peek() {
            Some(&Reverse((time, id))) if time <= until => {
                state.events.pop();
                state.now = time.max(state.now);
                let (done, outcome) = state.ends.remove(&id).unwrap();
                // It asks for the time.
                drop(state);
                done(outcome);
                true
            }
            _ => {
                state.now = state.now.max(until);
                false
            }
        }
    }
}

impl Clock for Simulated {
    fn now(&self) -> Duration {
        self.state().now
    }

    fn sleep_until(&self, time: Duration) {
        while self.step(time) {}
    }

    fn receive<M>(&self, from: &Inbox<M>, until: Duration) -> Option<M> {
        loop {
            if let Some(message) = from.take() {
                return Some(message);
            }
            if !self.step(until) {
                return from.take();
            }
        }
    }
}

impl Target for Simulated {
    type Prepared = Request;

    fn prepare(&self, request: &Request) -> Request {
        request.clone()
    }

    fn submit(&self, request: Request, left: Option<Duration>, done: Done) {
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
            (now, Outcome::Failed(ErrorKind::Overloaded))
        } else if left.is_some_and(|left| start > now + left) {
            (now + left.unwrap(), Outcome::Failed(ErrorKind::Deadline))
        } else {
            let end = start + state.service;
            state.free.pop();
            state.free.push(Reverse(end));
            state.waiting.push(Reverse(start));
            state.served += 1;
            state.steps.record(end - start);
            let outcome = Outcome::Done {
                queueing: start - now,
                computing: end - start,
            };
            (end, outcome)
        };
        let id = state.submitted;
        state.submitted += 1;
        state.events.push(Reverse((end, id)));
        state.ends.insert(id, (done, outcome));
        let stall = state.stall.filter(|(from, _)| now >= *from);
        if let Some((_, time)) = stall {
            state.stall = None;
            // Whoever submits stands still; the answer comes when that is over.
            state.events.retain(|Reverse((_, event))| *event != id);
            state.events.push(Reverse((end.max(now + time), id)));
            drop(state);
            self.sleep_until(now + time);
        }
    }

    fn ran(&self) -> Ran {
        let state = self.state();
        let ran = CellRan {
            batches: BTreeMap::from([(1, state.served)]),
            steps: state.steps.clone(),
        };
        Ran::from([("simulated".into(), ran)])
    }
}
