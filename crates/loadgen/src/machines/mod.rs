//! Several machines with one entrance, simulated from measured times of batches.
//!
//! Each machine has the scheduler and the policy of an engine, its own queue and its own workers;
//! [`Routing`] chooses the machine of a request. The times of batches are those that calibration
//! measures on this machine. Only the network is left out.

mod machine;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use gatestream_serve::cell_graph::{
    Cell, CellCost, CellError, CellId, Cells, Graph, Ports, PreparedCell, RequestGraph, Source,
    WorkerEnv,
};
use gatestream_serve::engine::Calibration;

use crate::candidate::{Candidate, Launch};
use crate::drive::EventClock;
use crate::in_process::EngineSpec;
use crate::policy::Groups;
use crate::record::CellRuns;
use crate::target::{About, Completion, Target};
use crate::workload::{RequestShape, RequestSpec};
use gatestream_command::Failure;
use machine::{Begun, Ending, Machine};

/// The choice of the machine for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Routing {
    /// Of two random machines the one with fewer unanswered requests, as Ray Serve does
    #[default]
    ShorterOfTwo,
    /// The machines in turn
    InTurn,
    /// A random machine, as a hash of names of sequences chooses
    Random,
}

/// Simulated machines, each with the workers of this one.
pub struct Machines {
    spec: EngineSpec,
    count: usize,
    routing: Routing,
    calibrated: Vec<Calibration>,
}

impl Machines {
    /// One machine. `calibrated`: the times of each cell, in the order of the cells.
    pub fn one(spec: EngineSpec, routing: Routing, calibrated: Vec<Calibration>) -> Machines {
        Machines {
            spec,
            count: 1,
            routing,
            calibrated,
        }
    }

    /// The same machines, with batches that take `factor` times as long.
    pub fn stretched(mut self, factor: f64) -> Machines {
        let costs = self.calibrated.iter_mut().map(|of| &mut of.cost);
        for batch in costs.flat_map(|cost| &mut cost.times) {
            batch.time = batch.time.mul_f64(factor);
        }
        self
    }

    /// This number of such machines.
    pub fn of(self, count: usize) -> Machines {
        Machines { count, ..self }
    }
}

impl Launch for Machines {
    type Target = Simulation;
    type Clock = Simulation;

    fn launch(&self, candidate: &Candidate) -> Result<(Simulation, Simulation), Failure> {
        let policy = candidate.policy.unwrap_or_default();
        let batch = candidate.max_batch();
        let mut costs: Vec<CellCost> = self.calibrated.iter().map(|of| of.cost.clone()).collect();
        let sizes = candidate.batch.iter().flat_map(|batch| batch.cells());
        for (cost, &rows) in costs.iter_mut().zip(sizes) {
            cost.rows.max = rows;
        }
        let groups = Groups {
            requests: batch,
            width: candidate.bucket_width.unwrap_or(Groups::WIDTH),
        };
        let EngineSpec {
            workers,
            tasks_at_once,
            batch_steps,
            seed,
            ..
        } = self.spec;
        let machine = |_| {
            let policy = policy.build(workers, groups, batch_steps);
            Machine::new(policy, workers, tasks_at_once, &costs)
        };
        let mut cells = Cells::new();
        let step = |_| cells.add(Step(Ports::new().input("x", 1).state("h", 1)));
        let simulation = Simulation(Arc::new(Mutex::new(State {
            origin: Instant::now(),
            now: Duration::ZERO,
            machines: (0..self.count).map(machine).collect::<Result<_, _>>()?,
            events: BinaryHeap::new(),
            routing: self.routing,
            random: Rng::with_seed(seed),
            submitted: 0,
            about: About {
                capacity: batch * workers * self.count,
                ..About::new(policy.name())
            },
            ids: self.calibrated.iter().map(step).collect(),
            names: self.calibrated.iter().map(|of| of.cell.clone()).collect(),
            cells,
        })));
        Ok((simulation.clone(), simulation))
    }

    fn calibrate(&self, _: &[usize]) -> Result<Vec<Calibration>, Failure> {
        Ok(self.calibrated.clone())
    }
}

/// The machines and their clock; clones are the same.
#[derive(Clone)]
pub struct Simulation(Arc<Mutex<State>>);

struct State {
    /// The instant of time 0 for schedulers.
    origin: Instant,
    now: Duration,
    machines: Vec<Machine>,
    events: BinaryHeap<Reverse<Event>>,
    routing: Routing,
    random: Rng,
    submitted: usize,
    about: About,
    /// The cells of requests, their ids and names.
    cells: Cells,
    ids: Vec<CellId>,
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Duration,
    machine: usize,
    /// The worker whose batch ends; `None`: the deadline of a request.
    worker: Option<usize>,
}

impl Simulation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventClock for Simulation {
    fn time(&self) -> Duration {
        self.state().now
    }

    fn step(&self, until: Duration) -> bool {
        let mut state = self.state();
        let next = state.events.peek().filter(|next| next.0.at <= until);
        let Some(&Reverse(event)) = next else {
            state.now = state.now.max(until);
            return false;
        };
        state.events.pop();
        state.now = state.now.max(event.at);
        let now = state.instant();
        if let Some(worker) = event.worker {
            state.machines[event.machine].finish(now, worker);
        }
        let endings = state.advance(event.machine);
        // The completion reads the clock.
        drop(state);
        report(endings);
        true
    }
}

impl State {
    fn instant(&self) -> Instant {
        self.origin + self.now
    }

    fn advance(&mut self, machine: usize) -> Vec<Ending> {
        let now = self.instant();
        let (begun, endings) = self.machines[machine].advance(now);
        for Begun { worker, time } in begun {
            self.events.push(Reverse(Event {
                at: self.now + time,
                machine,
                worker: Some(worker),
            }));
        }
        endings
    }

    /// The machine of the next request.
    fn route(&mut self) -> usize {
        let count = self.machines.len();
        self.submitted += 1;
        match self.routing {
            Routing::InTurn => self.submitted % count,
            Routing::Random => self.random.usize(..count),
            Routing::ShorterOfTwo => {
                let one = self.random.usize(..count);
                let further = self.random.usize(1..count.max(2));
                let other = (one + further) % count;
                let live = |machine: usize| self.machines[machine].live();
                if live(other) < live(one) { other } else { one }
            }
        }
    }

    /// The cells of a request, in their order.
    fn graph(&self, shape: &RequestShape) -> RequestGraph {
        let parts = match *shape {
            RequestShape::Chain { steps } => vec![steps],
            RequestShape::Pair { source, target } => vec![source, target],
            RequestShape::Tree(_) => unreachable!("checked with the arguments"),
        };
        let mut graph = Graph::new();
        let x = graph.give(&[0.0]);
        let mut before = Source::Zeros;
        for (&cell, steps) in self.ids.iter().zip(parts) {
            for _ in 0..steps {
                before = graph.node(cell, &[x, before]).output(0);
            }
        }
        graph.answer(before);
        match graph.unfold(&self.cells) {
            Ok(graph) => graph,
            Err(why) => unreachable!("{why}"),
        }
    }
}

fn report(endings: Vec<Ending>) {
    for Ending {
        completion,
        outcome,
    } in endings
    {
        completion.report(outcome);
    }
}

impl Target for Simulation {
    type Prepared = RequestGraph;

    fn about(&self) -> About {
        self.state().about.clone()
    }

    fn prepare(&self, request: &RequestSpec) -> RequestGraph {
        self.state().graph(&request.shape)
    }

    fn submit(&self, graph: RequestGraph, time_left: Option<Duration>, completion: Completion) {
        let mut state = self.state();
        let machine = state.route();
        let now = state.instant();
        if let Some(left) = time_left {
            let at = state.now + left;
            let worker = None;
            state.events.push(Reverse(Event {
                at,
                machine,
                worker,
            }));
        }
        let deadline = time_left.map(|left| now + left);
        let refused = state.machines[machine].submit(now, &graph, deadline, completion);
        let mut endings = state.advance(machine);
        endings.extend(refused.err());
        drop(state);
        report(endings);
    }

    fn cells(&self) -> CellRuns {
        let state = self.state();
        let mut all = CellRuns::new();
        for machine in &state.machines {
            let runs = state
                .names
                .iter()
                .cloned()
                .zip(machine.runs.iter().cloned());
            crate::record::add(&mut all, &runs.collect());
        }
        all
    }
}

/// A cell that is scheduled and never computed.
struct Step(Ports);

impl Cell for Step {
    fn name(&self) -> &str {
        "step"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Err(CellError::new("it is simulated"))
    }
}

#[cfg(test)]
mod tests;
