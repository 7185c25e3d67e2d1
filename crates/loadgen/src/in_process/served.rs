//! The engine as a server that is driven.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::record::Times;
use crate::target::{CellRan, Done, ErrorKind, Outcome, Ran, Target};
use crate::workload::Request;
use cellstream_serve::RequestError;
use cellstream_serve::engine::{self, Engine, SubmitError};
use cellstream_serve::scheduler::Refused;

/// An engine, and how a request unfolds into a graph of its cells.
pub struct Served<U> {
    engine: Engine,
    unfold: U,
}

impl<U: Fn(&Request) -> engine::Request> Served<U> {
    /// This engine, with `unfold`.
    pub fn new(engine: Engine, unfold: U) -> Served<U> {
        Served { engine, unfold }
    }
}

impl<U: Fn(&Request) -> engine::Request> Target for Served<U> {
    type Prepared = engine::Request;

    fn prepare(&self, request: &Request) -> engine::Request {
        (self.unfold)(request)
    }

    fn submit(&self, request: engine::Request, left: Option<Duration>, done: Done) {
        let request = match left {
            Some(left) => request.deadline(Instant::now() + left),
            None => request,
        };
        // The engine drops the callback of a request that it refuses, which is to be told, too.
        let done = Arc::new(Mutex::new(Some(done)));
        let tell = {
            let done = Arc::clone(&done);
            move |outcome| {
                let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(done) = done {
                    done(outcome);
                }
            }
        };
        let told = tell.clone();
        let answered = move |answer: Result<engine::Response, RequestError>| {
            told(match answer {
                Ok(answer) => Outcome::Done {
                    queueing: answer.timing.queueing,
                    computing: answer.timing.computing,
                },
                Err(error) => Outcome::Failed(kind(&error)),
            });
        };
        if let Err(error) = self.engine.submit_with(request, answered) {
            let kind = match error {
                SubmitError::Refused(Refused::Overloaded { .. }) => ErrorKind::Overloaded,
                _ => ErrorKind::Failed,
            };
            tell(Outcome::Failed(kind));
        }
    }

    fn ran(&self) -> Ran {
        let cells = self.engine.cells().iter().map(|(_, cell)| cell.name());
        let stats = self.engine.stats().cells.into_iter();
        let ran = stats.map(|cell| {
            let tasks = cell.batches.into_iter().enumerate();
            CellRan {
                batches: tasks.filter(|(_, tasks)| *tasks > 0).collect(),
                steps: Times::from(cell.steps),
            }
        });
        cells.map(String::from).zip(ran).collect()
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
    use crate::drive::clock::WallClock;
    use crate::drive::{Run, drive};
    use crate::record::Recording;
    use crate::workload::arrivals::Arrivals;
    use crate::workload::lengths::Lengths;
    use crate::workload::{Work, Workload};
    use cellstream_serve::cell_graph::{
        Batch, Cell, CellError, CellId, Cells, Graph, Place, Ports, PreparedCell, Source,
    };
    use cellstream_serve::engine::{EngineOptions, Workers};
    use cellstream_serve::scheduler::Limits;

    /// Adds its input to its state; fails if the input is not a number.
    struct Sum(Ports);

    impl Cell for Sum {
        fn name(&self) -> &str {
            "sum"
        }

        fn ports(&self) -> &Ports {
            &self.0
        }

        fn prepare(&self, _: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
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
    fn served(limits: Limits, value: f32) -> Served<impl Fn(&Request) -> engine::Request> {
        let mut cells = Cells::new();
        let sum: CellId = cells.add(Sum(Ports::new().input("x", 1).state("sum", 1)));
        let options = EngineOptions {
            workers: Workers::OneOver(1),
            limits,
            ..EngineOptions::default()
        };
        Served::new(Engine::start(cells, &options).unwrap(), move |request| {
            let Work::Chain { steps } = request.work else {
                panic!("{:?} is no chain", request.work);
            };
            let mut graph = Graph::new();
            let mut before = Source::Zeros;
            for _ in 0..steps {
                let x = graph.give(&[value]);
                before = graph.node(sum, &[x, before]).output(0);
            }
            graph.answer(before);
            engine::Request::new(graph)
        })
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
            patience: Duration::from_secs(60),
        };
        drive(target, &WallClock::new(), &run)
    }

    const OPEN: Arrivals = Arrivals::Poisson { rate: 2000.0 };

    #[test]
    fn the_engine_answers_and_says_what_it_ran() {
        for arrivals in [OPEN, Arrivals::Closed { outstanding: 3 }] {
            let target = served(Limits::default(), 1.0);
            let recording = run(&target, &arrivals, None);
            assert_eq!((recording.due, recording.unanswered()), (REQUESTS, 0));
            assert_eq!(recording.computing.len(), REQUESTS);
            // A request's time is in its parts: nothing is counted twice.
            assert!(
                recording.computing.mean() + recording.queueing.mean()
                    <= 1.001 * recording.latency.mean()
            );
            // Every step of every request is a row of some task.
            let ran = &target.ran()["sum"];
            let rows = ran.batches.iter();
            let rows = rows.map(|(&rows, &tasks)| rows as u64 * tasks);
            assert_eq!(rows.sum::<u64>(), REQUESTS * STEPS as u64);
            // And every task has its time, which is shorter than its requests'.
            assert_eq!(ran.steps.len(), ran.batches.values().sum::<u64>());
            assert!(0.0 < ran.steps.mean() && ran.steps.mean() < recording.latency.max());
        }
    }

    #[test]
    fn what_the_engine_refuses_or_gives_up_is_told() {
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
    }
}
