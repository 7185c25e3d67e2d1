//! One machine: the scheduler of an engine, and workers whose batches take the measured times.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use gatestream_serve::cell_graph::{CellCost, RequestGraph};
use gatestream_serve::scheduler::{
    End, Ended, Limits, ModelShare, Policy, RequestKey, Requirements, Scheduler, Task, WorkerId,
};

use crate::record::{CellRun, ErrorKind, Outcome, ServerTimes};
use crate::target::Completion;
use gatestream_command::Failure;

/// A batch that a worker has begun.
pub struct Begun {
    pub worker: usize,
    /// The time that it takes.
    pub time: Duration,
}

/// A request that has ended, to be reported.
pub struct Ending {
    pub completion: Completion,
    pub outcome: Outcome,
}

/// One machine.
pub struct Machine {
    scheduler: Scheduler,
    /// Of each cell.
    times: Vec<BatchTimes>,
    workers: Vec<Worker>,
    completions: HashMap<RequestKey, Completion>,
    /// Of each cell.
    pub runs: Vec<CellRun>,
}

#[derive(Default)]
struct Worker {
    /// The batch under way, and its time.
    running: Option<(Task, Duration)>,
    /// Batches that follow.
    tasks: VecDeque<Task>,
}

impl Machine {
    /// # Errors
    /// There are no cells.
    pub fn new(
        policy: Box<dyn Policy>,
        workers: usize,
        tasks_at_once: usize,
        costs: &[CellCost],
    ) -> Result<Machine, Failure> {
        let mut scheduler = Scheduler::new(policy, workers, tasks_at_once, Limits::default());
        scheduler
            .add_model(costs, ModelShare::default())
            .map_err(|why| Failure::new(why.to_string()))?;
        Ok(Machine {
            scheduler,
            times: costs.iter().map(BatchTimes::new).collect(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            completions: HashMap::new(),
            runs: vec![CellRun::default(); costs.len()],
        })
    }

    /// Requests without an answer.
    pub fn live(&self) -> u64 {
        self.scheduler.counts().live()
    }

    /// A request arrives. `Err` if it is refused.
    pub fn submit(
        &mut self,
        now: Instant,
        graph: &RequestGraph,
        deadline: Option<Instant>,
        completion: Completion,
    ) -> Result<(), Ending> {
        let requirements = Requirements {
            deadline,
            ..Requirements::default()
        };
        match self.scheduler.handle_submit(now, graph, requirements) {
            Ok(key) => {
                self.completions.insert(key, completion);
                Ok(())
            }
            Err(_) => Err(Ending {
                completion,
                outcome: ErrorKind::Overloaded.into(),
            }),
        }
    }

    /// The batch of a worker has ended.
    pub fn finish(&mut self, now: Instant, worker: usize) {
        let Some((task, took)) = self.workers[worker].running.take() else {
            return;
        };
        let run = &mut self.runs[task.cell.index()];
        *run.batches.entry(task.batch()).or_default() += 1;
        run.steps.record(took);
        self.scheduler.handle_done(now, task, Some(took));
    }

    /// Ends late requests, begins batches on idle workers, and returns what has ended.
    pub fn advance(&mut self, now: Instant) -> (Vec<Begun>, Vec<Ending>) {
        let mut begun = Vec::new();
        self.scheduler.handle_timeout(now);
        // A worker may release requests that another one waits for.
        loop {
            let (mut released, before) = (false, begun.len());
            for worker in 0..self.workers.len() {
                if self.workers[worker].running.is_none() {
                    released |= self.poll(now, worker);
                    begun.extend(self.begin(worker));
                }
            }
            if !released && begun.len() == before {
                break;
            }
        }
        let ended = std::iter::from_fn(|| self.scheduler.poll_ended());
        let ended: Vec<_> = ended.collect();
        let endings = ended.iter().filter_map(|ended| self.ending(ended));
        let endings = endings.collect();
        (begun, endings)
    }

    /// Gets the next tasks of an idle worker. Whether it has released requests to other workers.
    fn poll(&mut self, now: Instant, worker: usize) -> bool {
        if !self.workers[worker].tasks.is_empty() {
            return false;
        }
        let (mut tasks, mut evict) = (Vec::new(), Vec::new());
        self.scheduler.poll_tasks(now, WorkerId(worker), &mut tasks);
        self.workers[worker].tasks.extend(tasks);
        self.scheduler.poll_evictions(WorkerId(worker), &mut evict);
        for &key in &evict {
            self.scheduler.handle_evicted(key);
        }
        !evict.is_empty()
    }

    fn begin(&mut self, worker: usize) -> Option<Begun> {
        let task = self.workers[worker].tasks.pop_front()?;
        let time = self.times[task.cell.index()].of(task.batch());
        self.workers[worker].running = Some((task, time));
        Some(Begun { worker, time })
    }

    fn ending(&mut self, ended: &Ended) -> Option<Ending> {
        let completion = self.completions.remove(&ended.request)?;
        let outcome = match ended.end {
            End::Completed => Outcome::Answered(Some(ServerTimes {
                queueing: ended.timing.queueing,
                computing: ended.timing.computing,
            })),
            End::Late => ErrorKind::Deadline.into(),
            _ => ErrorKind::Failed.into(),
        };
        Some(Ending {
            completion,
            outcome,
        })
    }
}

/// The measured seconds of batches of one step, by their rows.
pub struct BatchTimes(BTreeMap<usize, f64>);

impl BatchTimes {
    pub fn new(cost: &CellCost) -> BatchTimes {
        let single = cost.times.iter().filter(|batch| batch.steps == 1);
        BatchTimes(
            single
                .map(|batch| (batch.rows, batch.time.as_secs_f64()))
                .collect(),
        )
    }

    /// Between measured numbers of rows in proportion, beyond the largest at its rate.
    pub fn of(&self, rows: usize) -> Duration {
        let below = self.0.range(..=rows).next_back();
        let above = self.0.range(rows..).next();
        let seconds = match (below, above) {
            (Some((&fewer, &least)), Some((&more, &most))) if more > fewer => {
                least + (most - least) * (rows - fewer) as f64 / (more - fewer) as f64
            }
            (Some((_, &time)), Some(_)) | (None, Some((_, &time))) => time,
            (Some((&measured, &time)), None) => time * rows as f64 / measured as f64,
            (None, None) => 0.0,
        };
        Duration::from_secs_f64(seconds)
    }
}
