//! Faults beside others: whatever is slow, panics or finds no room, everybody else is answered as
//! if alone. Who runs when is held by gates, not by the clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use gate::PATIENCE;
use gated::{Scene, ended, scene};
use gatestream::execute::team::{SharedTeam, Worker};
use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, Cells, Graph, Ports, PreparedCell, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request, StreamError, SubmitError, Workers};
use gatestream_serve::scheduler::{End, LimitOf, Limits, Reason, Refused};
use simple_cells::{POISON, bits, chain, outputs, random_request};

#[test]
fn a_worker_in_a_slow_cell_holds_up_no_other_nor_the_lateness_of_its_own_rows() {
    let scene = scene(2, 4, 1, Limits::default());
    let slow = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let mut rng = fastrand::Rng::with_seed(1);
    let others: Vec<_> = (0..40)
        .map(|_| {
            let (request, expected) = random_request(&scene.ids, &mut rng);
            (scene.submit(request), expected)
        })
        .collect();
    for (ticket, expected) in others {
        assert_eq!(bits(&ended(ticket).unwrap()), bits(&expected));
    }
    scene.gate.let_go(1);
    assert_eq!(ended(slow), Ok(vec![2.0]));

    // Nobody lets it go, but its end is told: by the other worker, which slept already when it
    // came, as both did.
    std::thread::sleep(Duration::from_millis(50));
    let deadline = Instant::now() + Duration::from_millis(200);
    let late = scene.submit(scene.gated(2.0).deadline(deadline));
    assert_eq!(ended(late), Err(RequestError::Late));
    scene.gate.let_go(3);
    assert_eq!(ended(scene.submit(scene.gated(5.0))), Ok(vec![6.0]));
    scene.drained(&[(End::Completed, 42), (End::Late, 1)]);
}

#[test]
fn what_is_late_after_a_slow_cell_ends_and_its_mates_are_answered() {
    let scene = scene(1, 32, 2, Limits::default());
    let first = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    // A batch of two comes next, and full ones come first.
    let deadline = Instant::now() + Duration::from_millis(300);
    let mate = scene.submit(scene.gated(2.0));
    let late = scene.submit(scene.gated_steps(3.0, 2).deadline(deadline));
    let mut rng = fastrand::Rng::with_seed(2);
    let others: Vec<_> = (0..16)
        .map(|index| {
            let xs: Vec<f32> = (0..5).map(|_| rng.f32()).collect();
            let (request, expected) = chain(&scene.ids, &xs);
            match index % 2 {
                0 => (scene.submit(request), Ok(expected)),
                _ => (
                    scene.submit(request.deadline(deadline)),
                    Err(RequestError::Late),
                ),
            }
        })
        .collect();
    scene.gate.let_go(1);
    scene.gate.wait_for(2);
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.gate.let_go(2);
    assert_eq!(ended(first), Ok(vec![2.0]));
    assert_eq!(ended(mate), Ok(vec![3.0]));
    assert_eq!(ended(late), Err(RequestError::Late));
    for (ticket, expected) in others {
        assert_eq!(ended(ticket), expected);
    }
    // Nothing was computed of what was late before its first cell.
    let stats = scene.engine.stats();
    assert_eq!(stats.models[0].cells[scene.ids.chain.index()].rows, 8 * 5);
    scene.drained(&[(End::Completed, 10), (End::Late, 9)]);
}

#[test]
fn a_panic_on_one_worker_leaves_the_others_cell_and_both_go_on() {
    let scene = scene(2, 4, 1, Limits::default());
    let rounds = 20;
    for round in 0..rounds {
        let poisoned = scene.submit(scene.gated(POISON));
        let fine = scene.submit(scene.gated(round as f32));
        // Both are in their cells, so on both workers.
        scene.gate.wait_for(2 * round + 2);
        scene.gate.let_go(2 * round + 2);
        let panicked = RequestError::CellPanicked {
            cell: "gated".into(),
            message: "poisoned".into(),
        };
        assert_eq!(ended(poisoned), Err(panicked));
        assert_eq!(ended(fine), Ok(vec![round as f32 + 1.0]));
    }
    // At the start by each worker, and by whoever panicked when it is asked again.
    let before = scene.prepared.load(Ordering::Relaxed);
    assert!(
        (rounds + 1..=rounds + 2).contains(&before),
        "{before} times"
    );
    scene.drained(&[
        (End::Completed, rounds as u64),
        (End::Failed, rounds as u64),
    ]);
}

#[test]
fn who_shares_no_batch_with_a_panic_is_answered_as_if_alone() {
    // UnbatchedRunner in their batches, nobody else may end; else at most three mates of each.
    for (rows, mates) in [(1, 0), (4, 3)] {
        let scene = scene(2, rows, 1, Limits::default());
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut poisoned, mut failed) = (0, 0);
        let tickets: Vec<_> = (0..200)
            .map(|index| {
                if index % 10 > 0 {
                    let (request, expected) = random_request(&scene.ids, &mut rng);
                    return (scene.submit(request), Some(expected));
                }
                poisoned += 1;
                let mut xs = [0.5; 6];
                xs[rng.usize(..6)] = POISON;
                (scene.submit(chain(&scene.ids, &xs).0), None)
            })
            .collect();
        for (ticket, expected) in tickets {
            match (ended(ticket), expected) {
                (Ok(answer), Some(expected)) => assert_eq!(bits(&answer), bits(&expected)),
                (Ok(_), None) => panic!("the poisoned are not answered"),
                (Err(RequestError::CellPanicked { .. }), _) => failed += 1,
                (Err(other), _) => panic!("{other}"),
            }
        }
        assert!(
            (poisoned..=poisoned * (1 + mates)).contains(&failed),
            "{failed} of {poisoned}"
        );
        let ends = [(End::Completed, 200 - failed), (End::Failed, failed)];
        scene.drained(&ends);
    }
}

/// What a request takes of the limit, as its refusal says.
fn bytes_of(request: impl Fn(&Scene) -> Request) -> usize {
    let limits = Limits {
        bytes: 0,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let refused = scene.engine.submit(request(&scene)).err().unwrap();
    let SubmitError::Refused(Refused::Overloaded {
        of: LimitOf::Engine,
        what: Reason::Bytes,
        have: 0,
        needs,
        most: 0,
    }) = refused
    else {
        panic!("{refused}")
    };
    needs
}

#[test]
fn more_bytes_than_the_limit_are_refused_until_others_end() {
    let long = |scene: &Scene| chain(&scene.ids, &[0.5; 30]).0;
    let gated = |scene: &Scene| scene.gated(1.0);
    let (long_bytes, gated_bytes) = (bytes_of(long), bytes_of(gated));
    // At least what came with it and its answer.
    assert!(long_bytes >= 2 * 30 * size_of::<f32>(), "{long_bytes}");
    assert!(long_bytes > gated_bytes);

    let limits = Limits {
        bytes: long_bytes + gated_bytes,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let overloaded = |have, needs| {
        SubmitError::Refused(Refused::Overloaded {
            of: LimitOf::Engine,
            what: Reason::Bytes,
            have,
            needs,
            most: limits.bytes,
        })
    };
    let refused = |request| scene.engine.submit(request).err().unwrap();
    let holds = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    for round in 0..10 {
        let waiting = scene.submit(long(&scene));
        let have = limits.bytes;
        assert_eq!(refused(gated(&scene)), overloaded(have, gated_bytes));
        assert_eq!(refused(long(&scene)), overloaded(have, long_bytes));
        let counts = scene.engine.stats().counts;
        assert_eq!((counts.live(), counts.refused()), (2, 2 * (round + 1)));
        // Cancelled, it gives its room back at once.
        drop(waiting);
    }
    let waiting = scene.submit(long(&scene));
    scene.gate.let_go(1);
    assert_eq!(ended(holds), Ok(vec![2.0]));
    assert!(ended(waiting).is_ok());
    // Answered, too: all of the room is there again.
    let again = [gated(&scene), long(&scene)].map(|request| scene.submit(request));
    scene.gate.let_go(2);
    assert!(again.into_iter().all(|ticket| ended(ticket).is_ok()));
    scene.drained(&[(End::Completed, 4), (End::Cancelled, 10)]);
}

#[test]
fn a_stream_reserves_its_bytes_when_it_is_opened_and_returns_them() {
    let limits = Limits {
        bytes: 0,
        ..Limits::default()
    };
    let none = scene(1, 4, 1, limits);
    let refused = none.engine.stream(none.ids.chain, None).err().unwrap();
    let StreamError::Submit(SubmitError::Refused(Refused::Overloaded {
        what: Reason::Bytes,
        needs: reserved,
        ..
    })) = refused
    else {
        panic!("{refused}")
    };
    // More than a request of one step, since many may be unanswered.
    assert!(reserved > 10 * bytes_of(|scene| chain(&scene.ids, &[1.0]).0));

    let limits = Limits {
        bytes: reserved,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    for round in 0..3 {
        let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
        assert_eq!(stream.push(&[2.0]).unwrap().wait(), Ok(vec![2.0]));
        let other = scene.engine.stream(scene.ids.chain, None).err().unwrap();
        let StreamError::Submit(SubmitError::Refused(Refused::Overloaded { what, needs, .. })) =
            other
        else {
            panic!("{other}")
        };
        assert_eq!((what, needs), (Reason::Bytes, reserved));
        match round {
            0 => drop(stream),
            _ => assert_eq!(stream.close().wait(), Ok(vec![2.0, 1.0])),
        }
    }
    scene.engine.drain();
    let counts = scene.engine.stats().counts;
    assert_eq!(counts.refused(), 3);
    assert_eq!(counts.live(), 0);
}

/// What a panic carries, and panics itself when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

/// Does this when it is woken.
struct OnWake(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        let job = self.0.lock().unwrap().take();
        job.into_iter().for_each(|job| job());
    }
}

fn on_wake(job: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(OnWake(Mutex::new(Some(Box::new(job))))))
}

#[test]
fn who_is_woken_by_a_stream_may_panic_or_drop_it() {
    let scene = scene(1, 4, 1, Limits::default());
    for (round, second) in [0.25, POISON].into_iter().enumerate() {
        let held = scene.submit(scene.gated(1.0));
        scene.gate.wait_for(round + 1);
        let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
        let steps = [0.5, second, 0.125].map(|x| stream.push(&[x]).unwrap());
        let stream = Arc::new(Mutex::new(Some(stream)));
        let (told, tells) = mpsc::channel();
        let wakers = [
            on_wake(|| std::panic::resume_unwind(Box::new(Panics))),
            on_wake({
                let stream = Arc::clone(&stream);
                move || drop(stream.lock().unwrap().take())
            }),
            on_wake(move || told.send(()).unwrap()),
        ];
        let mut steps = steps.map(|step| Box::pin(step.into_future()));
        for (step, waker) in steps.iter_mut().zip(&wakers) {
            let polled = step.as_mut().poll(&mut Context::from_waker(waker));
            assert_eq!(polled, Poll::Pending);
        }
        scene.gate.let_go(round + 1);
        tells.recv_timeout(PATIENCE).expect("all are told");
        assert!(stream.lock().unwrap().is_none());
        let told = steps.map(|step| {
            let polled = pin!(step).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(told) = polled else {
                panic!("a step has not been told");
            };
            told
        });
        let expected = outputs(&[0.5, second, 0.125]);
        assert_eq!(told[0], Ok(vec![expected[0]]));
        if second == POISON {
            for told in &told[1..] {
                assert!(matches!(told, Err(RequestError::CellPanicked { .. })));
            }
        } else {
            assert_eq!(told[1], Ok(vec![expected[1]]));
            // The waker runs beside the third step.
            let computed = Ok(vec![expected[2]]);
            assert!(told[2] == computed || told[2] == Err(RequestError::Cancelled));
        }
        assert_eq!(ended(held), Ok(vec![2.0]));
    }
    scene.engine.drain();
    assert_eq!(scene.engine.stats().counts.live(), 0);
}

/// Gives its input; where that is [`POISON`], the last member of its team panics, or, where it has
/// that for itself, it does, and once more when it is dropped after that.
struct Bomb(Ports);

impl Cell for Bomb {
    fn name(&self) -> &str {
        "bomb"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready {
            team: SharedTeam,
            panicked: bool,
        }
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let ([x], [], [y]) = batch.split();
                let last = self.team.threads() - 1;
                let is_poisoned = x.contains(&POISON);
                if is_poisoned && last == 0 {
                    self.panicked = true;
                    std::panic::resume_unwind(Box::new(Panics));
                }
                let job = |member: Worker<'_>| {
                    if is_poisoned && member.index == last {
                        std::panic::resume_unwind(Box::new("poisoned"));
                    }
                };
                self.team.run(job).map_err(CellError::new)?;
                y.copy_from_slice(x);
                Ok(())
            }
        }
        impl Drop for Ready {
            fn drop(&mut self) {
                if self.panicked {
                    std::panic::resume_unwind(Box::new("dropped"));
                }
            }
        }
        Ok(Box::new(Ready {
            team: env.team.clone(),
            panicked: false,
        }))
    }
}

/// One cell of one input and one output, and a request of it.
fn echo(cell: impl Cell + 'static) -> (Cells, impl Fn(f32) -> Request) {
    let mut cells = Cells::new();
    let id = cells.add(cell);
    let request = move |x: f32| {
        let mut graph = Graph::new();
        let x = graph.give(&[x]);
        let node = graph.node(id, &[x]);
        graph.answer(node.output(0));
        Request::new(graph)
    };
    (cells, request)
}

fn bomb() -> Bomb {
    Bomb(Ports::new().input("x", 1).output("y", 1))
}

fn one_worker(rows: usize, cells: usize) -> EngineOptions {
    EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: rows }; cells],
        ..EngineOptions::default()
    }
}

#[test]
fn a_cell_that_panics_when_it_is_dropped_after_a_panic_is_prepared_anew() {
    let (cells, request) = echo(bomb());
    let engine = Engine::start(cells, &one_worker(1, 1)).unwrap();
    for _ in 0..3 {
        let poisoned = ended(engine.submit(request(POISON)).unwrap());
        assert!(matches!(poisoned, Err(RequestError::CellPanicked { .. })));
        assert_eq!(ended(engine.submit(request(4.0)).unwrap()), Ok(vec![4.0]));
    }
    gate::drained(&engine, &[(End::Completed, 3), (End::Failed, 3)]);
}

#[test]
fn a_panic_on_a_member_of_the_team_ends_its_batch_and_the_team_goes_on() {
    let (cells, request) = echo(bomb());
    let options = EngineOptions {
        workers: Workers::OneOver(2),
        ..one_worker(1, 1)
    };
    let engine = Engine::start(cells, &options).unwrap();
    for _ in 0..3 {
        let poisoned = ended(engine.submit(request(POISON)).unwrap());
        let Err(RequestError::Cell { why, .. }) = poisoned else {
            panic!("{poisoned:?}")
        };
        assert!(why.to_string().contains("panicked"), "{why}");
        assert_eq!(ended(engine.submit(request(4.0)).unwrap()), Ok(vec![4.0]));
    }
    gate::drained(&engine, &[(End::Completed, 3), (End::Failed, 3)]);
}
