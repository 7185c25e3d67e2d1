//! An engine as a target.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::policy::ComparedPolicy;
use crate::record::{CellRun, CellRuns, ErrorKind, Outcome, ServerTimes, Times};
use crate::target::{About, Completion, Target};
use crate::workload::RequestSpec;
use gatestream_serve::RequestError;
use gatestream_serve::engine::{Engine, Request, Response, SubmitError};
use gatestream_serve::scheduler::Refused;

/// An engine, and how a request unfolds into a graph of its cells.
pub struct Served<U> {
    engine: Engine,
    unfold: U,
    about: About,
}

impl<U: Fn(&RequestSpec) -> Request> Served<U> {
    /// An engine with this policy, which answers up to `capacity` requests together.
    pub fn new(engine: Engine, unfold: U, policy: ComparedPolicy, capacity: usize) -> Served<U> {
        let about = About {
            capacity,
            ..About::new(policy.name())
        };
        Served {
            engine,
            unfold,
            about,
        }
    }
}

impl<U: Fn(&RequestSpec) -> Request> Target for Served<U> {
    type Prepared = Request;

    fn about(&self) -> About {
        self.about.clone()
    }

    fn prepare(&self, request: &RequestSpec) -> Request {
        (self.unfold)(request)
    }

    fn submit(&self, request: Request, time_left: Option<Duration>, completion: Completion) {
        let request = match time_left {
            Some(left) => request.deadline(Instant::now() + left),
            None => request,
        };
        // The engine drops the callback of a request that it refuses; so two places hold it.
        let completion = Arc::new(Mutex::new(Some(completion)));
        let take = |shared: &Mutex<Option<Completion>>| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let shared = Arc::clone(&completion);
        let answered = move |answer: Result<Response, RequestError>| {
            let outcome = match answer {
                Ok(answer) => Outcome::Answered(Some(ServerTimes {
                    queueing: answer.timing.queueing,
                    computing: answer.timing.computing,
                })),
                Err(error) => Outcome::Failed(kind(&error), error.to_string()),
            };
            if let Some(completion) = take(&shared) {
                completion.report(outcome);
            }
        };
        if let Err(error) = self.engine.submit_with(request, answered)
            && let Some(completion) = take(&completion)
        {
            let kind = match error {
                SubmitError::Refused(Refused::Overloaded { .. }) => ErrorKind::Overloaded,
                _ => ErrorKind::Failed,
            };
            completion.report(Outcome::Failed(kind, error.to_string()));
        }
    }

    fn cells(&self) -> CellRuns {
        let cells = self.engine.cells().iter().map(|(_, cell)| cell.name());
        let stats = self.engine.model().stats();
        let stats = stats.into_iter().flat_map(|model| model.cells);
        let runs = stats.map(|cell| {
            let batches = cell.batches.into_iter().enumerate();
            CellRun {
                batches: batches.filter(|(_, count)| *count > 0).collect(),
                steps: Times::from(cell.steps),
            }
        });
        cells.map(String::from).zip(runs).collect()
    }
}

fn kind(error: &RequestError) -> ErrorKind {
    match error {
        RequestError::Late => ErrorKind::Deadline,
        RequestError::Refused(Refused::Overloaded { .. }) => ErrorKind::Overloaded,
        _ => ErrorKind::Failed,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::drive::{Run, WallClock, drive};
    use crate::record::Recording;
    use crate::workload::{Arrivals, Lengths, RequestShape, Workload};
    use gatestream_serve::cell_graph::{
        Batch, Cell, CellError, CellId, Cells, Graph, Ports, PreparedCell, Source, WorkerEnv,
    };
    use gatestream_serve::engine::{EngineOptions, Workers};
    use gatestream_serve::scheduler::Limits;

    /// Adds its input to its state; fails if the input is not a number.
    struct Sum(Ports);

    impl Cell for Sum {
        fn name(&self) -> &str {
            "sum"
        }

        fn ports(&self) -> &Ports {
            &self.0
        }

        fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
            Ok(Box::new(PreparedSum))
        }
    }

    struct PreparedSum;

    impl PreparedCell for PreparedSum {
        fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
            let ([x], [sum], []) = batch.split();
            for (sum, x) in sum.iter_mut().zip(x) {
                *sum += x;
            }
            if x.iter().any(|x| x.is_nan()) {
                return Err(CellError::new("not a number"));
            }
            Ok(())
        }
    }

    /// Chains of `value`.
    fn served(limits: Limits, value: f32) -> Served<impl Fn(&RequestSpec) -> Request> {
        let mut cells = Cells::new();
        let sum: CellId = cells.add(Sum(Ports::new().input("x", 1).state("sum", 1)));
        let options = EngineOptions {
            workers: Workers::OneOver(1),
            limits,
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let unfold = move |request: &RequestSpec| {
            let RequestShape::Chain { steps } = request.shape else {
                panic!("{:?} is no chain", request.shape);
            };
            let mut graph = Graph::new();
            let mut before = Source::Zeros;
            for _ in 0..steps {
                let x = graph.give(&[value]);
                before = graph.node(sum, &[x, before]).output(0);
            }
            graph.answer(before);
            Request::new(graph)
        };
        Served::new(engine, unfold, ComparedPolicy::default(), 64)
    }

    const REQUESTS: u64 = 60;
    const STEPS: usize = 7;

    fn run(target: &impl Target, arrivals: &Arrivals, deadline: Option<Duration>) -> Recording {
        let run = Run {
            arrivals,
            workload: &Workload::Chains(Lengths::Fixed(STEPS)),
            seed: 4,
            warm_up: Duration::ZERO,
            window: Duration::from_secs(60),
            requests: REQUESTS,
            deadline,
            drain_timeout: Duration::from_secs(60),
        };
        drive(target, &WallClock::new(), &run)
    }

    const OPEN: Arrivals = Arrivals::Poisson { rate: 2000.0 };

    #[test]
    fn the_engine_answers_and_reports_its_batches() {
        for arrivals in [OPEN, Arrivals::Closed { outstanding: 3 }] {
            let target = served(Limits::default(), 1.0);
            let recording = run(&target, &arrivals, None);
            assert_eq!((recording.due, recording.unanswered()), (REQUESTS, 0));
            assert_eq!(recording.computing.count(), REQUESTS);
            // A request's time is in its parts: nothing is counted twice.
            assert!(
                recording.computing.mean() + recording.queueing.mean()
                    <= 1.001 * recording.latency.mean()
            );
            // Every step of every request is a row of some task.
            let cell = &target.cells()["sum"];
            let rows = cell.batches.iter();
            let rows = rows.map(|(&rows, &tasks)| rows as u64 * tasks);
            assert_eq!(rows.sum::<u64>(), REQUESTS * STEPS as u64);
            // And every task has its time, which is shorter than its requests'.
            assert_eq!(cell.steps.count(), cell.batches.values().sum::<u64>());
            assert!(0.0 < cell.steps.mean() && cell.steps.mean() < recording.latency.max());
        }
    }

    #[test]
    fn errors_of_the_engine_are_reported() {
        let errors = |target: &dyn Fn() -> Recording| target().errors;
        let no_room = Limits {
            requests: 0,
            ..Limits::default()
        };
        let refused = errors(&|| run(&served(no_room, 1.0), &OPEN, None));
        assert_eq!(refused, [REQUESTS, 0, 0, 0]);
        let late = errors(&|| run(&served(Limits::default(), 1.0), &OPEN, Some(Duration::ZERO)));
        assert_eq!(late, [0, REQUESTS, 0, 0]);
        let failed = errors(&|| run(&served(Limits::default(), f32::NAN), &OPEN, None));
        assert_eq!(failed, [0, 0, REQUESTS, 0]);
        let failed = run(&served(Limits::default(), f32::NAN), &OPEN, None);
        let [(reason, REQUESTS)] = failed.reasons.most_frequent()[..] else {
            panic!("{:?}", failed.reasons);
        };
        assert!(reason.contains("not a number"), "{reason}");
    }
}
