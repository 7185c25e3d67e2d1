//! Replies: users' code runs on the reply thread, which holds up neither workers nor tickets. Gates
//! and channels hold threads, not the clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use gate::PATIENCE;
use gated::{Scene, ended, scene};
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{DynamicGraph, Graph, Growth, NodeId, NodeOutputs};
use gatestream_serve::engine::{Request, Response, SubmitError};
use gatestream_serve::scheduler::{LimitOf, Limits, Reason, Refused};
use simple_cells::{POISON, bits, count_down, outputs, random_request};

/// The name of this thread.
fn here() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Sends the name of its thread when it is woken.
struct Woken(mpsc::Sender<String>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.send(here()).unwrap();
    }
}

/// Sends the name of its thread when it is dropped.
struct Dropped(mpsc::Sender<String>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(here()).unwrap();
    }
}

impl DynamicGraph for Dropped {
    fn grow(&mut self, _: NodeId, _: NodeOutputs<'_>, _: &mut Growth<'_>) {}
}

/// A gated request that owns a [`Dropped`].
fn owning(scene: &Scene, told: &mpsc::Sender<String>) -> Request {
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node(scene.gated, &[x]);
    graph.watch(node);
    graph.answer(node.output(0));
    Request::new(graph).grow(Dropped(told.clone()))
}

/// Polls once, with a waker that sends the name of its thread.
fn poll<F: Future>(future: Pin<&mut F>, told: &mpsc::Sender<String>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(Woken(told.clone())));
    future.poll(&mut Context::from_waker(&waker))
}

#[test]
fn users_code_runs_on_the_reply_thread() {
    let scene = scene(1, 4, 4, Limits::default());
    let (told, tells) = mpsc::channel();
    let next = || tells.recv_timeout(PATIENCE).unwrap();
    let called = told.clone();
    let done = move |answer: Result<Response, _>| {
        assert_eq!(answer.unwrap().values, [2.0]);
        called.send(here()).unwrap();
    };
    scene
        .engine
        .submit_with(owning(&scene, &told), done)
        .unwrap();
    scene.gate.wait_for(1);
    scene.gate.let_go(1);
    // The callback, and the drop of what the request owns.
    assert_eq!([next(), next()], ["gatestream-replies"; 2]);

    // The only worker is held, so all are pending.
    let held = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(2);
    let mut ticket = pin!(scene.submit(scene.gated(1.0)).into_future());
    assert!(poll(ticket.as_mut(), &told).is_pending());
    let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
    let steps = [1.0, POISON].map(|x| stream.push(&[x]).unwrap().into_future());
    let mut steps = steps.map(Box::pin);
    for step in &mut steps {
        assert!(poll(step.as_mut(), &told).is_pending());
    }
    scene.gate.let_all_go();
    assert_eq!([(); 3].map(|()| next()), ["gatestream-replies"; 3]);
    assert_eq!(ended(held), Ok(vec![2.0]));
}

#[test]
fn a_callback_that_waits_holds_up_no_batch_and_no_ticket() {
    let scene = scene(1, 4, 1, Limits::default());
    scene.gate.let_all_go();
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let done = move |_| {
        begun.send(()).unwrap();
        released.recv_timeout(PATIENCE).unwrap();
    };
    scene.engine.submit_with(scene.gated(1.0), done).unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..40 {
        let (request, expected) = random_request(&scene.ids, &mut rng);
        assert_eq!(
            bits(&ended(scene.submit(request)).unwrap()),
            bits(&expected)
        );
    }
    let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
    for y in outputs(&[0.5; 10]) {
        assert_eq!(stream.push(&[0.5]).unwrap().wait(), Ok(vec![y]));
    }
    assert!(scene.engine.drain_for(Duration::ZERO) > 0);
    assert!(scene.engine.is_draining());
    release.send(()).unwrap();
    assert_eq!(scene.engine.drain(), 0);
}

#[test]
fn a_callback_may_wait_for_tickets_and_does_not_drain() {
    let scene = Arc::new(scene(1, 4, 1, Limits::default()));
    scene.gate.let_all_go();
    let (told, tells) = mpsc::channel();
    let own = Arc::clone(&scene);
    let done = move |_| {
        let (request, expected) = count_down(&own.ids, 9, -1.0);
        let found = ended(own.submit(request)).unwrap();
        told.send((found == expected, own.engine.drain() > 0))
            .unwrap();
    };
    scene.engine.submit_with(scene.gated(1.0), done).unwrap();
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), (true, true));
    assert_eq!(scene.engine.drain(), 0);
}

/// Also those of requests that end in one batch.
#[test]
fn callbacks_are_called_in_the_order_of_the_ends() {
    let scene = scene(1, 4, 2, Limits::default());
    let held = scene.submit(scene.gated(0.0));
    scene.gate.wait_for(1);
    let (told, tells) = mpsc::channel();
    for request in 0..5 {
        let told = told.clone();
        let done = move |_| told.send(request).unwrap();
        let gated = scene.gated(request as f32);
        scene.engine.submit_with(gated, done).unwrap();
    }
    scene.gate.let_all_go();
    let next = |_| tells.recv_timeout(PATIENCE).unwrap();
    assert_eq!([0; 5].map(next), [0, 1, 2, 3, 4]);
    assert_eq!(ended(held), Ok(vec![1.0]));
}

#[test]
fn requests_are_refused_while_the_reply_thread_is_far_behind() {
    let limits = Limits {
        requests: 2,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    scene.gate.let_all_go();
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let done = move |_| {
        begun.send(()).unwrap();
        released.recv_timeout(PATIENCE).unwrap();
    };
    scene.engine.submit_with(scene.gated(1.0), done).unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    let (mut callbacks, begin) = (0, Instant::now());
    let refused = loop {
        assert!(begin.elapsed() < PATIENCE, "nothing is refused");
        if callbacks < 4 {
            scene.engine.submit_with(scene.gated(1.0), |_| ()).unwrap();
            callbacks += 1;
        }
        // When it has been answered, the callback waits.
        match scene.engine.submit(scene.gated(1.0)) {
            Ok(ticket) => assert_eq!(ended(ticket), Ok(vec![2.0])),
            Err(refused) => break refused,
        }
    };
    let expected = Refused::Overloaded {
        of: LimitOf::Engine,
        what: Reason::Replies,
        have: 4,
        needs: 1,
        most: 4,
    };
    assert_eq!(refused, SubmitError::Refused(expected));
    release.send(()).unwrap();
    assert_eq!(scene.engine.drain(), 0);
}

#[test]
fn the_outputs_of_a_step_are_returned_once() {
    let scene = scene(1, 4, 1, Limits::default());
    let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
    let mut step = pin!(stream.push(&[1.0]).unwrap().into_future());
    scene.engine.drain();
    let mut poll = || step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(poll(), Poll::Ready(Ok(vec![1.0])));
    assert_eq!(poll(), Poll::Ready(Err(RequestError::Returned)));
}
