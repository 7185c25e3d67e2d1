//! Who runs when, as a test says.

#![allow(dead_code)] // each test target needs some of it

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{Batch, Cell, CellError, Ports, PreparedCell, WorkerEnv};
use gatestream_serve::engine::{Response, Ticket};
use gatestream_serve::scheduler::End;

/// Nothing waits longer for what must happen, so that a fault fails a test and does not hang it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Holds those up that come to it until the test lets them go, in the order in which they came.
#[derive(Default)]
pub struct Gate {
    passed: Mutex<Passed>,
    changed: Condvar,
}

#[derive(Default)]
struct Passed {
    /// What each that came had in its rows, in ascending order: rows have no order of their own.
    came: Vec<Vec<f32>>,
    /// How many may go.
    may_go: usize,
}

impl Gate {
    /// An error if nobody let it go.
    pub fn pass(&self, rows: &[f32]) -> Result<(), CellError> {
        let mut rows = rows.to_vec();
        rows.sort_by(f32::total_cmp);
        let mut passed = self.passed.lock().unwrap();
        passed.came.push(rows);
        let number = passed.came.len();
        self.changed.notify_all();
        let held = |passed: &mut Passed| passed.may_go < number;
        let wait = self.changed.wait_timeout_while(passed, PATIENCE, held);
        if wait.unwrap().1.timed_out() {
            Err(CellError::new("nobody let it go"))
        } else {
            Ok(())
        }
    }

    pub fn wait_for(&self, count: usize) {
        let passed = self.passed.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(passed, PATIENCE, |passed| passed.came.len() < count);
        assert!(!wait.unwrap().1.timed_out(), "{count} did not come");
    }

    pub fn let_go(&self, count: usize) {
        self.passed.lock().unwrap().may_go = count;
        self.changed.notify_all();
    }

    pub fn let_all_go(&self) {
        self.let_go(usize::MAX);
    }

    pub fn came(&self) -> Vec<Vec<f32>> {
        self.passed.lock().unwrap().came.clone()
    }
}

/// A cell whose batches are held up: `run` passes the gate with what it has in its rows, and
/// computes them.
pub struct Gated {
    pub ports: Ports,
    pub gate: Arc<Gate>,
    pub supports_multiple_steps: bool,
    pub run: fn(&Gate, &mut Batch<'_>) -> Result<(), CellError>,
    /// How often a worker has prepared it.
    pub prepared: Arc<AtomicUsize>,
}

impl Cell for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn supports_multiple_steps(&self) -> bool {
        self.supports_multiple_steps
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        struct Ready {
            gate: Arc<Gate>,
            run: fn(&Gate, &mut Batch<'_>) -> Result<(), CellError>,
        }
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                (self.run)(&self.gate, batch)
            }
        }
        let (gate, run) = (Arc::clone(&self.gate), self.run);
        Ok(Box::new(Ready { gate, run }))
    }
}

pub fn ended(mut ticket: Ticket) -> Result<Response, RequestError> {
    ticket.wait_timeout(PATIENCE).expect("an end in a minute")
}

/// All requests of an engine have ended, those that are told among them, and each once.
pub fn drained(engine: &Engine, ends: &[(End, u64)]) {
    engine.drain();
    let counts = engine.stats().counts;
    for end in End::ALL {
        let expected = ends.iter().find(|(e, _)| *e == end);
        let expected = expected.map_or(0, |e| e.1);
        assert_eq!(counts.of(end), expected, "{end:?}: {counts:?}");
    }
    assert_eq!(counts.live(), 0);
}
