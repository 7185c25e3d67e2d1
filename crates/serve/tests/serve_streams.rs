//! Streams: each step gets the outputs of its chain, whatever else runs. Gates hold the workers,
//! not the clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gate::{Gate, Gated, PATIENCE};
use gated::scene;
use gatestream::model::{Lstm, Precision};
use gatestream_serve::cell_graph::{Batch, BatchSizes, CellError, CellId, Cells, Graph, Ports};
use gatestream_serve::engine::{
    EngineOptions, Request, StepOptions, Stream, StreamError, SubmitError, Workers,
};
use gatestream_serve::networks::{Chain, ChainCell};
use gatestream_serve::scheduler::{LimitOf, Limits, Reason, Refused};
use gatestream_serve::{Engine, RequestError};
use simple_cells::{POISON, SLOW, cells, outputs, random_options, random_request};

#[test]
fn streams_give_the_outputs_of_their_chains_whatever_else_runs() {
    let mut rng = fastrand::Rng::with_seed(2);
    for case in 0..12 {
        let (cells, ids) = cells();
        let engine = Engine::start(cells, &random_options(&mut rng)).unwrap();
        let mut streams: Vec<_> = (0..5)
            .map(|_| {
                (
                    engine.stream(ids.chain, None).unwrap(),
                    Vec::new(),
                    Vec::new(),
                )
            })
            .collect();
        let mut others = Vec::new();
        for _ in 0..rng.usize(1..3500) {
            let (stream, xs, steps) = &mut streams[rng.usize(0..5)];
            let x = rng.f32() - 0.5;
            let step = loop {
                match stream.push(&[x]) {
                    Ok(step) => break step,
                    // As many wait as may.
                    Err(StreamError::Submit(_)) => std::thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            };
            xs.push(x);
            match rng.usize(0..3) {
                0 => assert_eq!(step.wait().unwrap(), [outputs(xs)[xs.len() - 1]]),
                _ => steps.push((xs.len() - 1, step)),
            }
            if rng.usize(0..20) == 0 {
                let (request, expected) = random_request(&ids, &mut rng);
                others.push((engine.submit(request).unwrap(), expected));
            }
        }
        for (stream, xs, steps) in streams {
            stream.close();
            let expected = outputs(&xs);
            for (at, step) in steps {
                assert_eq!(
                    step.wait().unwrap(),
                    [expected[at]],
                    "case {case}, step {at}"
                );
            }
        }
        for (ticket, expected) in others {
            assert_eq!(ticket.wait().unwrap().values, expected);
        }
        engine.drain();
        assert_eq!(engine.stats().counts.live(), 0);
    }
}

#[test]
fn a_stream_goes_on_from_states_and_ends_with_its_cell() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let mut stream = engine.stream(ids.chain, Some(&[4.0, 2.0])).unwrap();
    assert_eq!(stream.push(&[1.0]).unwrap().wait().unwrap(), [4.0 * 3.0]);
    let wrong = stream.push(&[1.0, 2.0]).err().unwrap();
    assert_eq!(
        wrong.to_string(),
        "inputs of cell `chain` are 1 values, not 2"
    );
    assert_eq!(stream.push(&[1.0]).unwrap().wait().unwrap(), [4.0 * 4.0]);
    let poisoned = stream.push(&[POISON]).unwrap().wait();
    assert!(matches!(poisoned, Err(RequestError::CellPanicked { .. })));
    let ended = loop {
        match stream.push(&[1.0]) {
            Err(ended) => break ended,
            Ok(step) => assert!(step.wait().is_err()),
        }
    };
    assert!(matches!(ended, StreamError::Ended(_)), "{ended}");

    let no_state = engine.stream(ids.pair, None).err().unwrap();
    assert!(matches!(no_state, StreamError::NoState { .. }));
    let states = engine.stream(ids.chain, Some(&[1.0])).err().unwrap();
    assert!(matches!(
        states,
        StreamError::Values {
            what: "states",
            expected: 2,
            found: 1,
            ..
        }
    ));

    // One that is dropped frees its rows; one whose engine goes is told.
    let mut dropped = engine.stream(ids.chain, None).unwrap();
    let step = dropped.push(&[SLOW]).unwrap();
    drop(dropped);
    let _ = step.wait();
    let mut stream = engine.stream(ids.chain, None).unwrap();
    drop(engine);
    assert!(matches!(
        stream.push(&[1.0]),
        Err(StreamError::Ended(RequestError::ShutDown))
    ));
}

/// Requests take all of the limits at each of its steps.
#[test]
fn requests_do_not_take_the_room_of_a_stream() {
    let limits = Limits {
        requests: 1,
        nodes: 1,
        ..Limits::default()
    };
    let scene = scene(2, 4, 1, limits);
    let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
    let held = scene.submit(scene.gated(1.0));
    let xs: Vec<f32> = (0..600).map(|x| (x % 7) as f32).collect();
    for (x, y) in xs.iter().zip(outputs(&xs)) {
        assert_eq!(stream.push(&[*x]).unwrap().wait(), Ok(vec![y]));
    }
    let refused = scene.engine.submit(scene.gated(1.0)).err().unwrap();
    assert!(matches!(
        refused,
        SubmitError::Refused(Refused::Overloaded { have: 1, .. })
    ));
    scene.gate.let_all_go();
    assert!(held.wait().is_ok());
}

#[test]
fn streams_beyond_the_limit_are_refused_when_they_are_opened() {
    let (cells, ids) = cells();
    let limits = Limits {
        streams: 2,
        ..Limits::default()
    };
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let open = || engine.stream(ids.chain, None);
    let (mut first, second) = (open().unwrap(), open().unwrap());
    let refused = open().err().unwrap();
    let overloaded = Refused::Overloaded {
        of: LimitOf::Engine,
        what: Reason::Streams,
        have: 2,
        needs: 1,
        most: 2,
    };
    assert_eq!(refused, StreamError::Submit(overloaded.into()));
    drop(second);
    drop(open().unwrap());
    let step = first.push(&[1.0]).unwrap();
    // The room is returned before the reply.
    assert_eq!(first.close().wait(), Ok(vec![1.0, 1.0]));
    assert_eq!(step.wait(), Ok(vec![1.0]));
    let _two = (open().unwrap(), open().unwrap());
    assert!(open().is_err());
}

/// Adds its input to its state behind the gate.
fn sum(gate: &Gate, batch: &mut Batch<'_>) -> Result<(), CellError> {
    let ([x], [state], [y]) = batch.split();
    gate.pass(x)?;
    for ((x, state), y) in x.iter().zip(state).zip(y) {
        *state += x;
        *y = *state;
    }
    Ok(())
}

/// One worker, whose only cell has batches of two rows behind a gate.
struct Held {
    engine: Engine,
    cell: CellId,
    gate: Arc<Gate>,
}

impl Held {
    fn new() -> Held {
        Held::with(EngineOptions::default())
    }

    fn with(options: EngineOptions) -> Held {
        let gate: Arc<Gate> = Arc::default();
        let mut cells = Cells::new();
        let cell = cells.add(Gated {
            ports: Ports::new().input("x", 1).state("state", 1).output("y", 1),
            gate: Arc::clone(&gate),
            supports_multiple_steps: false,
            run: sum,
            prepared: Arc::default(),
        });
        let options = EngineOptions {
            workers: Workers::Cores(vec![vec![0]]),
            sizes: vec![BatchSizes { min: 1, max: 2 }],
            ..options
        };
        let engine = Engine::start(cells, &options).unwrap();
        Held { engine, cell, gate }
    }

    fn stream(&self) -> Stream {
        self.engine.stream(self.cell, None).unwrap()
    }

    /// Requests of many steps of -1, more than batches have rows.
    fn backlog(&self, priority: u8) -> Vec<gatestream_serve::engine::Ticket> {
        let request = || {
            let mut graph = Graph::new();
            let x = graph.give(&[-1.0]);
            let mut state = graph.give(&[0.0]);
            for _ in 0..1000 {
                state = graph.node(self.cell, &[x, state]).output(0);
            }
            graph.answer(state);
            Request::new(graph).priority(priority)
        };
        let submit = || self.engine.submit(request()).unwrap();
        (0..5).map(|_| submit()).collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gate.let_all_go();
    }
}

/// Also after 256 steps.
#[test]
fn a_step_is_in_the_next_batch_beside_requests_that_came_after_its_stream() {
    let held = Held::new();
    let mut stream = held.stream();
    let backlog = held.backlog(0);
    for step in 0..300 {
        // A batch of the backlog.
        held.gate.wait_for(2 * step + 1);
        let pushed = stream.push(&[step as f32]).unwrap();
        held.gate.let_go(2 * step + 1);
        held.gate.wait_for(2 * step + 2);
        assert_eq!(held.gate.came()[2 * step + 1], [-1.0, step as f32]);
        held.gate.let_go(2 * step + 2);
        assert_eq!(pushed.wait(), Ok(vec![(step * (step + 1) / 2) as f32]));
    }
    drop(backlog);
}

#[test]
fn a_step_runs_by_its_priority() {
    let held = Held::new();
    let mut stream = held.stream();
    let backlog = held.backlog(1);
    held.gate.wait_for(1);
    let mut push = |x: f32, priority| {
        let options = StepOptions {
            priority,
            ..StepOptions::default()
        };
        stream.push_with(&[x], options).unwrap()
    };
    let first = push(2.0, 2);
    held.gate.let_go(1);
    held.gate.wait_for(2);
    assert_eq!(held.gate.came()[1], [-1.0, 2.0]);
    held.gate.let_go(2);
    assert_eq!(first.wait(), Ok(vec![2.0]));
    held.gate.wait_for(3);
    let second = push(3.0, 0);
    held.gate.let_go(4);
    held.gate.wait_for(5);
    assert_eq!(held.gate.came()[3..], [[-1.0, -1.0], [-1.0, -1.0]]);
    drop(backlog);
    held.gate.let_all_go();
    assert_eq!(second.wait(), Ok(vec![5.0]));
}

#[test]
fn a_late_step_and_those_after_it_change_no_state() {
    let held = Held::new();
    let mut stream = held.stream();
    let first = stream.push(&[1.0]).unwrap();
    held.gate.wait_for(1);
    let late = StepOptions {
        deadline: Some(Instant::now()),
        ..StepOptions::default()
    };
    let late = stream.push_with(&[2.0], late).unwrap();
    let after = stream.push(&[4.0]).unwrap();
    held.gate.let_all_go();
    assert_eq!(first.wait(), Ok(vec![1.0]));
    assert_eq!(late.wait(), Err(RequestError::Late));
    assert_eq!(after.wait(), Err(RequestError::Late));
    assert_eq!(stream.push(&[8.0]).unwrap().wait(), Ok(vec![9.0]));
    assert_eq!(stream.state(), [9.0]);
}

/// The segment that runs has room: the next step is refused nevertheless.
#[test]
fn a_drain_answers_the_steps_before_it_and_refuses_the_next() {
    let held = Held::new();
    let mut stream = held.stream();
    let steps = [1.0, 2.0, 4.0].map(|x| stream.push(&[x]).unwrap());
    held.gate.wait_for(1);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| held.engine.drain());
        let begin = Instant::now();
        while held.engine.stream(held.cell, None).is_ok() {
            assert!(begin.elapsed() < PATIENCE, "the drain has not begun");
            std::thread::yield_now();
        }
        let refused = stream.push(&[8.0]).err().unwrap();
        assert_eq!(refused, StreamError::Submit(Refused::ShuttingDown.into()));
        held.gate.let_all_go();
        // The stream is open.
        drained.join().unwrap();
    });
    let answers = steps.map(|step| step.wait().unwrap());
    assert_eq!(answers, [[1.0], [3.0], [7.0]]);
    let refused = stream.push(&[8.0]).err().unwrap();
    assert_eq!(refused, StreamError::Submit(Refused::ShuttingDown.into()));
}

#[test]
fn a_stream_that_starts_from_the_states_of_another_continues_it() {
    for precision in Precision::ALL {
        let model = Lstm::new(3, 20).layers(2).random(7).unwrap();
        let model = model.into_precision(precision).unwrap();
        let mut cells = Cells::new();
        let chain = Chain::add(&mut cells, ChainCell::new(model).unwrap());
        let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
        let open = |states: &[f32]| engine.stream(chain.cell(), Some(states)).unwrap();
        let mut whole = engine.stream(chain.cell(), None).unwrap();
        let mut part = open(&whole.state());
        let mut rng = fastrand::Rng::with_seed(3);
        for step in 0..40 {
            let x = [(); 3].map(|()| rng.f32() - 0.5);
            let expected = whole.push(&x).unwrap().wait().unwrap();
            let found = part.push(&x).unwrap().wait().unwrap();
            assert_eq!(simple_cells::bits(&found), simple_cells::bits(&expected));
            let states = part.state();
            match step % 3 {
                0 => part = open(&states),
                1 => {
                    let last = part.close().wait().unwrap();
                    assert_eq!(last, states);
                    part = open(&last);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn streams_that_are_dropped_at_any_moment_leave_nothing() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    for _ in 0..60 {
        let mut stream = engine.stream(ids.chain, None).unwrap();
        for _ in 0..rng.usize(0..700) {
            // Not more steps may wait.
            let _ = stream.push(&[1.0]);
        }
        drop(stream);
    }
    engine.drain();
    assert_eq!(engine.stats().counts.live(), 0);
}

#[test]
fn steps_that_were_accepted_are_computed_while_the_engine_drains() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let mut stream = engine.stream(ids.chain, None).unwrap();
    let xs: Vec<f32> = (0..Stream::AHEAD)
        .map(|at| at as f32 / 300.0 - 0.5)
        .collect();
    // The last ones belong to segments that begin when the first has ended.
    let steps: Vec<_> = xs.iter().map(|&x| stream.push(&[x]).unwrap()).collect();
    stream.close();
    engine.drain();
    let expected = outputs(&xs);
    for (step, expected) in steps.into_iter().zip(expected) {
        assert_eq!(step.wait(), Ok(vec![expected]));
    }
}

/// Waits until the engine has ended the stream.
fn expired(stream: &mut Stream, answered: &mut usize) {
    let begin = Instant::now();
    loop {
        match stream.push(&[1.0]) {
            Ok(step) => assert_eq!(step.wait().map(|y| y.len()), Ok(1)),
            Err(error) => {
                assert_eq!(error, StreamError::Ended(RequestError::Idle));
                return;
            }
        }
        *answered += 1;
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        // Longer than it may be idle.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Silent streams take all of the limit.
#[test]
fn a_newcomer_gets_the_room_of_streams_that_are_idle_for_too_long() {
    for reply_thread in [true, false] {
        let (cells, ids) = cells();
        let limits = Limits {
            streams: 3,
            ..Limits::default()
        };
        let options = EngineOptions {
            limits,
            reply_thread,
            idle_streams: Some(Duration::from_millis(20)),
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let open = |states: Option<&[f32]>| engine.stream(ids.chain, states);
        let mut silent = [(); 3].map(|()| open(None).unwrap());
        let mut answered = 0;
        expired(&mut silent[0], &mut answered);
        let begin = Instant::now();
        let newcomers = [(); 3].map(|()| {
            loop {
                assert!(begin.elapsed() < PATIENCE, "the room is not returned");
                if let Ok(stream) = open(None) {
                    break stream;
                }
                std::thread::yield_now();
            }
        });
        for silent in &mut silent[1..] {
            let ended = silent.push(&[1.0]).err();
            assert_eq!(ended, Some(StreamError::Ended(RequestError::Idle)));
        }
        drop(newcomers);
        // From its states the first goes on as if it had not ended.
        let states = silent[0].state();
        drop(silent);
        let mut again = open(Some(&states)).unwrap();
        let expected = outputs(&vec![1.0; answered + 1]);
        let found = again.push(&[1.0]).unwrap().wait();
        assert_eq!(found, Ok(vec![expected[answered]]));
    }
}

#[test]
fn a_stream_with_an_unanswered_step_is_not_idle() {
    let limits = Limits {
        streams: 2,
        ..Limits::default()
    };
    let held = Held::with(EngineOptions {
        limits,
        idle_streams: Some(Duration::from_millis(5)),
        ..EngineOptions::default()
    });
    let mut stream = held.stream();
    let step = stream.push(&[1.0]).unwrap();
    held.gate.wait_for(1);
    // Each silent one that is opened later has ended when another is opened.
    for _ in 0..3 {
        let begin = Instant::now();
        while let Err(refused) = held.engine.stream(held.cell, None).map(std::mem::forget) {
            assert!(begin.elapsed() < PATIENCE, "{refused}");
            std::thread::yield_now();
        }
    }
    held.gate.let_all_go();
    assert_eq!(step.wait(), Ok(vec![1.0]));
}
