//! Submissions that wait for room, and those of several requests at once. A gate holds the batches
//! until the test opens it.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use gate::PATIENCE;
use gated::{Scene, ended, scene};
use gatestream_serve::engine::{Model, ModelOptions, Request, SubmitError, Submitting, Ticket};
use gatestream_serve::scheduler::{ClientId, End, LimitOf, Limits, Reason, Refused};

/// A scene of one worker, whose gated cell has batches of up to four rows.
fn limited(limits: Limits) -> Scene {
    scene(1, 4, 4, limits)
}

fn of_nodes(nodes: usize) -> Limits {
    Limits {
        nodes,
        ..Limits::default()
    }
}

/// Number of submissions of the model that wait for room.
fn waiting(model: &Model) -> usize {
    model.stats().unwrap().waiting
}

/// Starts a submission, and returns once it waits as the `number`th.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    scene: &'scope Scene,
    request: Request,
    number: usize,
) -> ScopedJoinHandle<'scope, Result<Ticket, SubmitError>> {
    let submitted = scope.spawn(move || scene.engine.submit_wait(request, PATIENCE));
    let begin = Instant::now();
    while waiting(scene.engine.model()) < number {
        assert!(begin.elapsed() < PATIENCE, "it does not wait");
        std::thread::yield_now();
    }
    submitted
}

#[test]
fn submissions_get_room_in_the_order_of_their_arrival() {
    let scene = limited(of_nodes(4));
    let held = scene.submit(scene.gated_steps(1.0, 3));
    scene.gate.wait_for(1);
    std::thread::scope(|scope| {
        // The large one does not fit; the small ones would.
        let large = start(scope, &scene, scene.gated_steps(10.0, 4), 1);
        let small = start(scope, &scene, scene.gated(20.0), 2);
        let refused = scene.engine.submit(scene.gated(30.0)).err().unwrap();
        let queued = Refused::Queued { waiting: 2 };
        assert_eq!(refused, SubmitError::Refused(queued));
        scene.gate.let_all_go();
        assert_eq!(ended(large.join().unwrap().unwrap()), Ok(vec![14.0]));
        assert_eq!(ended(small.join().unwrap().unwrap()), Ok(vec![21.0]));
    });
    assert_eq!(ended(held), Ok(vec![4.0]));
    let came: Vec<f32> = scene.gate.came().concat();
    assert_eq!(came, [1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 20.0]);
    assert!(ended(scene.submit(scene.gated(0.0))).is_ok());
}

#[test]
fn a_submission_waits_only_behind_those_for_the_same_limit() {
    let scene = limited(Limits {
        client_requests: 1,
        ..Limits::default()
    });
    let options = ModelOptions {
        limits: Limits {
            requests: 1,
            ..Limits::NONE
        },
        ..ModelOptions::default()
    };
    let full = scene
        .engine
        .add_model(scene.cells.clone(), &options)
        .unwrap();
    let of_client = |x, client| scene.gated(x).client(ClientId(client));
    let _held = scene.submit(of_client(1.0, 1));
    let _full = full.submit(scene.gated(2.0)).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| scene.engine.submit_wait(of_client(3.0, 1), PATIENCE));
        let model = scope.spawn(|| full.submit_wait(scene.gated(4.0), PATIENCE));
        let begin = Instant::now();
        while waiting(scene.engine.model()) == 0 || waiting(&full) == 0 {
            assert!(begin.elapsed() < PATIENCE, "they do not wait");
        }
        // Another client, and another model.
        let other = scene.submit(of_client(5.0, 2));
        let none = scene.submit(scene.gated(6.0));
        scene.gate.let_all_go();
        for ticket in [other, none] {
            assert!(ended(ticket).is_ok());
        }
        assert_eq!(ended(client.join().unwrap().unwrap()), Ok(vec![4.0]));
        assert_eq!(ended(model.join().unwrap().unwrap()), Ok(vec![5.0]));
    });
}

#[test]
fn without_room_in_time_it_is_refused_and_leaves_the_line() {
    let scene = limited(of_nodes(1));
    let held = scene.submit(scene.gated(1.0));
    let short = Duration::from_millis(5);
    let refused = scene.engine.submit_wait(scene.gated(2.0), short).err();
    let overloaded = Refused::Overloaded {
        of: LimitOf::Engine,
        what: Reason::Nodes,
        have: 1,
        needs: 1,
        most: 1,
    };
    assert_eq!(refused, Some(SubmitError::Refused(overloaded)));
    // The deadline of the request bounds the wait, too.
    let late = scene.gated(2.0).deadline(Instant::now() + short);
    assert!(scene.engine.submit_wait(late, PATIENCE).is_err());
    assert_eq!(waiting(scene.engine.model()), 0);
    scene.gate.let_all_go();
    assert!(ended(held).is_ok());
    assert_eq!(ended(scene.submit(scene.gated(3.0))), Ok(vec![4.0]));
    assert_eq!(scene.engine.stats().counts.refused(), 2);
}

#[test]
fn a_request_that_can_never_be_accepted_does_not_wait() {
    let scene = limited(Limits {
        nodes: 3,
        request_nodes: 5,
        ..Limits::default()
    });
    let submit = |steps| {
        scene
            .engine
            .submit_wait(scene.gated_steps(1.0, steps), PATIENCE)
    };
    let begin = Instant::now();
    let refused = |steps| match submit(steps) {
        Err(SubmitError::Refused(refused)) => refused,
        _ => panic!("refused"),
    };
    assert!(matches!(
        refused(4),
        Refused::Overloaded {
            needs: 4,
            most: 3,
            ..
        }
    ));
    let nodes = Refused::RequestNodes { nodes: 6, most: 5 };
    assert_eq!(refused(6), nodes);
    scene.engine.drain();
    assert_eq!(refused(1), Refused::ShuttingDown);
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn drains_end_the_wait() {
    for drains_model in [true, false] {
        let scene = limited(of_nodes(1));
        let _held = scene.submit(scene.gated(1.0));
        std::thread::scope(|scope| {
            let first = start(scope, &scene, scene.gated(2.0), 1);
            let second = start(scope, &scene, scene.gated(3.0), 2);
            let expected = if drains_model {
                scene.engine.model().drain_for(Duration::ZERO);
                Refused::ModelDrains
            } else {
                scene.engine.drain_for(Duration::ZERO);
                Refused::ShuttingDown
            };
            for waits in [first, second] {
                let refused = waits.join().unwrap().err();
                assert_eq!(refused, Some(SubmitError::Refused(expected)));
            }
        });
    }
}

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn a_task_waits_for_room() {
    let scene = limited(of_nodes(1));
    let held = scene.submit(scene.gated(1.0));
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut poll = |submitting: &mut Submitting| pin!(submitting).poll(&mut context);
    let mut first = scene.engine.submit_async(scene.gated(2.0));
    let mut second = scene.engine.submit_async(scene.gated(3.0));
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    assert_eq!(waiting(scene.engine.model()), 2);
    // Withdrawn.
    drop(first);
    assert_eq!(waiting(scene.engine.model()), 1);
    scene.gate.let_all_go();
    assert!(ended(held).is_ok());
    let begin = Instant::now();
    let ticket = loop {
        let before = woken.0.load(Ordering::Acquire);
        match poll(&mut second) {
            Poll::Ready(ticket) => break ticket.unwrap(),
            Poll::Pending => {
                while woken.0.load(Ordering::Acquire) == before {
                    assert!(begin.elapsed() < PATIENCE, "the task is not woken");
                    std::thread::yield_now();
                }
            }
        }
    };
    assert_eq!(ended(ticket), Ok(vec![4.0]));
    let again = poll(&mut second).map(|again| again.err());
    assert_eq!(again, Poll::Ready(Some(SubmitError::Returned)));
    scene.drained(&[(End::Completed, 2)]);
}

/// A future that returned an error has left the line before it is dropped.
#[test]
fn a_refused_submission_holds_nobody_up() {
    let scene = limited(of_nodes(1));
    let second = scene
        .engine
        .add_model(scene.cells.clone(), &ModelOptions::default())
        .unwrap();
    let held = scene.submit(scene.gated(1.0));
    let context = &mut Context::from_waker(Waker::noop());
    let mut refused = scene.engine.submit_async(scene.gated(2.0));
    assert!(pin!(&mut refused).poll(context).is_pending());
    let mut behind = second.submit_async(scene.gated(3.0));
    assert!(pin!(&mut behind).poll(context).is_pending());
    scene.engine.model().drain_for(Duration::ZERO);
    scene.gate.let_all_go();
    assert!(ended(held).is_ok());
    let error = SubmitError::Refused(Refused::ModelDrains);
    let polled = pin!(&mut refused).poll(context);
    assert_eq!(
        polled.map(|submitted| submitted.err()),
        Poll::Ready(Some(error))
    );
    let Poll::Ready(ticket) = pin!(&mut behind).poll(context) else {
        panic!("it waits");
    };
    assert_eq!(ended(ticket.unwrap()), Ok(vec![4.0]));
    drop(refused);
}

#[test]
fn all_requests_are_accepted_or_none() {
    let scene = limited(Limits {
        nodes: 6,
        client_requests: 2,
        ..Limits::default()
    });
    let submit = |requests: Vec<Request>| scene.engine.submit_all(requests);
    let refused = |requests| submit(requests).err().unwrap();
    assert!(submit(vec![]).unwrap().is_empty());
    // The third one does not fit.
    let three = [2, 2, 3].map(|steps| scene.gated_steps(1.0, steps));
    let overloaded = refused(three.into());
    assert_eq!(overloaded.index, 2);
    assert_eq!(
        overloaded.to_string(),
        "request 2: overloaded: 4 nodes of 6 are taken and the request needs 3; try again later, \
         or raise the limit; none of the requests was accepted"
    );
    // The third one of a client.
    let of_client = |x| scene.gated(x).client(ClientId(7));
    let client = refused([1.0, 2.0, 3.0].map(of_client).into());
    let of_limit = Refused::Overloaded {
        of: LimitOf::Client,
        what: Reason::Requests,
        have: 2,
        needs: 1,
        most: 2,
    };
    assert_eq!((client.index, client.why), (2, of_limit.into()));
    // An invalid one.
    let invalid = Request::new(gatestream_serve::cell_graph::Graph::new());
    let invalid = refused(vec![scene.gated(1.0), invalid]);
    assert!(matches!(invalid.why, SubmitError::Graph(_)) && invalid.index == 1);
    assert_eq!(scene.engine.stats().counts.submitted, 0);
    // All are in the first batch.
    let all = submit([1.0, 2.0, 3.0, 4.0].map(|x| scene.gated(x)).into()).unwrap();
    scene.gate.wait_for(1);
    assert_eq!(scene.gate.came(), [[1.0, 2.0, 3.0, 4.0]]);
    scene.gate.let_all_go();
    for (ticket, expected) in all.into_iter().zip([2.0, 3.0, 4.0, 5.0]) {
        assert_eq!(ended(ticket), Ok(vec![expected]));
    }
    scene.drained(&[(End::Completed, 4)]);
}

/// Threads and limits at random: each submission that waits gets its answer.
#[test]
fn every_submission_that_waits_is_answered() {
    let scene = limited(Limits {
        requests: 3,
        nodes: 12,
        client_requests: 2,
        ..Limits::default()
    });
    scene.gate.let_all_go();
    let (answered, withdrawn) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (scene, answered, withdrawn) = (&scene, &answered, &withdrawn);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..300 {
                    let (x, steps) = (random.u8(..) as f32, random.usize(1..=12));
                    let request = scene.gated_steps(x, steps);
                    let request = request.client(ClientId(random.u64(0..3)));
                    if random.usize(0..8) == 0 {
                        let mut submitting = scene.engine.submit_async(request);
                        let noop = &mut Context::from_waker(Waker::noop());
                        drop(pin!(&mut submitting).poll(noop));
                        withdrawn.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let ticket = scene.engine.submit_wait(request, PATIENCE).unwrap();
                    assert_eq!(ended(ticket), Ok(vec![x + steps as f32]));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let of = |count: AtomicUsize| count.into_inner() as u64;
    let (answered, withdrawn) = (of(answered), of(withdrawn));
    assert_eq!(answered + withdrawn, 8 * 300);
    scene.engine.drain();
    let counts = scene.engine.stats().counts;
    assert_eq!(counts.refused(), 0);
    assert!((answered..=answered + withdrawn).contains(&counts.submitted));
}
