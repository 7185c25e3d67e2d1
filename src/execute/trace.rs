//! Where the time of a run goes.
//!
//! Workers report each boundary between two activities to a [`Probe`]. [`Off`] has nothing
//! in it and does nothing, so a run that is not traced is compiled to the code that it would be
//! without probes. [`Laps`] reads the clock once per boundary and adds the time since the boundary
//! before to a table of its worker, which was allocated before the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a worker spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Input products that are taken ahead of the steps. A call covers one direction's chunk of
    /// steps, for one owner of units.
    Ahead,
    /// Products of a step's first phase. A call covers all of one direction's.
    Products,
    /// Gates and states of the first phase.
    Gates,
    /// Products of a step's second phase (a GRU that resets before the product, a projection).
    SecondProducts,
    /// Gates and states of the second phase.
    SecondGates,
    /// Meetings of the workers that share a direction.
    Meeting,
    /// Waiting for what other workers write: the layer below, rows taken ahead, outputs to be
    /// summed.
    Waiting,
    /// Loading initial states, storing final ones, zeroing output past the ends of sequences.
    States,
    /// Adding the outputs of two directions.
    Summing,
}

impl Activity {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All, in the order in which a step goes through them.
    pub const ALL: [Activity; Activity::COUNT] = [
        Activity::Ahead,
        Activity::Products,
        Activity::Gates,
        Activity::SecondProducts,
        Activity::SecondGates,
        Activity::Meeting,
        Activity::Waiting,
        Activity::States,
        Activity::Summing,
    ];

    /// For people and as a key: lower case, words joined by `_`.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Ahead => "ahead",
            Activity::Products => "products",
            Activity::Gates => "gates",
            Activity::SecondProducts => "second_products",
            Activity::SecondGates => "second_gates",
            Activity::Meeting => "meeting",
            Activity::Waiting => "waiting",
            Activity::States => "states",
            Activity::Summing => "summing",
        }
    }
}

/// Time and calls of one activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// From the boundary before each call to its end, added up.
    pub time: Duration,
    /// How often.
    pub calls: u64,
}

/// What one worker did for one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerTrace {
    spent: [Spent; Activity::COUNT],
}

impl LayerTrace {
    /// What was spent on an activity.
    pub fn spent(&self, activity: Activity) -> Spent {
        self.spent[activity as usize]
    }
}

/// What one worker did in a run.
///
/// `started`, the activities of all layers, and `wall - ended` add up to the wall time of the run,
/// with nothing left out and nothing counted twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTrace {
    /// From the call of the run to the worker's first deed: checks, and waking the team.
    pub started: Duration,
    /// From the call of the run to the worker's last deed.
    pub ended: Duration,
    /// One per layer of the model, the lowest first.
    pub layers: Vec<LayerTrace>,
}

impl WorkerTrace {
    /// What was spent on an activity, in all layers.
    pub fn spent(&self, activity: Activity) -> Spent {
        let mut sum = Spent::default();
        for layer in &self.layers {
            let spent = layer.spent(activity);
            sum.time += spent.time;
            sum.calls += spent.calls;
        }
        sum
    }
}

/// Where the time of one run went, from [`Session::run_traced`](super::Session::run_traced).
///
/// The clock is read a few times per step and direction, so a traced run is slower, by little where
/// a step takes microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// From the call of the run to its return.
    pub wall: Duration,
    /// One per worker that took part, by its index in the team; the first is the caller.
    pub workers: Vec<WorkerTrace>,
}

/// Where a worker reports the boundaries between its activities.
pub(super) trait Probe: Copy {
    /// Nothing is recorded.
    const IS_OFF: bool = false;
    /// The same worker's probe for a layer's activities.
    fn of_layer(self, layer: usize) -> Self;
    /// The worker begins.
    fn begin(self);
    /// One call of an activity ends here; what came since the last boundary belongs to it.
    fn lap(self, activity: Activity);
}

/// No trace.
#[derive(Clone, Copy)]
pub(super) struct Off;

impl Probe for Off {
    const IS_OFF: bool = true;
    #[inline(always)]
    fn of_layer(self, _: usize) -> Off {
        Off
    }
    #[inline(always)]
    fn begin(self) {}
    #[inline(always)]
    fn lap(self, _: Activity) {}
}

/// The tables of one run's workers.
pub(super) struct Tables {
    origin: Instant,
    workers: Vec<Table>,
}

/// One worker's table. Atomic only so that it may be shared at all: one worker writes it, and
/// its reader has waited for the run to end.
#[repr(align(128))] // two lines: each worker's laps stay on its own
struct Table {
    started: AtomicU64,
    /// The last boundary. Times are nanoseconds since the origin.
    last: AtomicU64,
    /// Time and calls, per layer and activity.
    layers: Vec<[[AtomicU64; 2]; Activity::COUNT]>,
}

fn add(to: &AtomicU64, value: u64) {
    to.store(to.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

impl Tables {
    /// Empty tables; the run begins now.
    pub fn new(workers: usize, layers: usize) -> Tables {
        let table = || Table {
            started: AtomicU64::new(0),
            last: AtomicU64::new(0),
            layers: (0..layers).map(|_| Default::default()).collect(),
        };
        Tables {
            workers: (0..workers).map(|_| table()).collect(),
            origin: Instant::now(),
        }
    }

    /// The probe of one worker, for layer 0.
    pub fn probe(&self, worker: usize) -> Laps<'_> {
        Laps {
            origin: self.origin,
            table: &self.workers[worker],
            layer: 0,
        }
    }

    /// The trace of the first so many workers; the run ends now.
    pub fn finish(&self, workers: usize) -> Trace {
        let wall = self.origin.elapsed();
        let time = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        let layer = |layer: &[[AtomicU64; 2]; Activity::COUNT]| LayerTrace {
            spent: layer.each_ref().map(|[spent, calls]| Spent {
                time: time(spent),
                calls: calls.load(Ordering::Relaxed),
            }),
        };
        let worker = |table: &Table| WorkerTrace {
            started: time(&table.started),
            ended: time(&table.last),
            layers: table.layers.iter().map(layer).collect(),
        };
        Trace {
            wall,
            workers: self.workers[..workers].iter().map(worker).collect(),
        }
    }
}

/// One worker's probe.
#[derive(Clone, Copy)]
pub(super) struct Laps<'t> {
    origin: Instant,
    table: &'t Table,
    layer: usize,
}

impl Laps<'_> {
    fn now(self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

impl Probe for Laps<'_> {
    fn of_layer(self, layer: usize) -> Self {
        Laps { layer, ..self }
    }

    fn begin(self) {
        let now = self.now();
        self.table.started.store(now, Ordering::Relaxed);
        self.table.last.store(now, Ordering::Relaxed);
    }

    fn lap(self, activity: Activity) {
        let now = self.now();
        let since = now - self.table.last.load(Ordering::Relaxed);
        self.table.last.store(now, Ordering::Relaxed);
        let [time, calls] = &self.table.layers[self.layer][activity as usize];
        add(time, since);
        add(calls, 1);
    }
}
