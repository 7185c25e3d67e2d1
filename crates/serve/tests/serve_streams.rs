//! Streams: each step is told what its chain gives there, whatever else runs, and none is left
//! behind.

#[path = "common/simple_cells.rs"]
mod simple_cells;

use cellstream_serve::Engine;
use cellstream_serve::RequestError;
use cellstream_serve::engine::{EngineOptions, StreamError, SubmitError};
use cellstream_serve::scheduler::Limits;
use simple_cells::{POISON, SLOW, cells, chain, outputs, random_options, random_request};

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
        // Some are longer than two segments.
        for _ in 0..rng.usize(1..3500) {
            let (stream, xs, steps) = &mut streams[rng.usize(0..5)];
            let x = rng.f32() - 0.5;
            let step = loop {
                match stream.push(&[x]) {
                    Ok(step) => break step,
                    // As many wait for the next segment as may.
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

#[test]
fn a_stream_that_is_refused_a_step_goes_on_when_there_is_room() {
    let (cells, ids) = cells();
    let options = EngineOptions {
        limits: Limits {
            nodes: 12,
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let mut stream = engine.stream(ids.chain, None).unwrap();
    let xs: Vec<f32> = (0..6).map(|x| x as f32).collect();
    let expected = outputs(&xs);
    for (x, y) in xs[..4].iter().zip(&expected) {
        assert_eq!(stream.push(&[*x]).unwrap().wait().unwrap(), [*y]);
    }
    let slow = engine.submit(chain(&ids, &[SLOW; 8]).0).unwrap();
    let refused = stream.push(&[xs[4]]).err().unwrap();
    assert!(
        matches!(refused, StreamError::Submit(SubmitError::Refused(_))),
        "{refused}"
    );
    slow.wait().unwrap();
    for (x, y) in xs[4..].iter().zip(&expected[4..]) {
        assert_eq!(stream.push(&[*x]).unwrap().wait().unwrap(), [*y]);
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
            // More than a segment may not wait for the next.
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
    let xs: Vec<f32> = (0..300).map(|at| at as f32 / 300.0 - 0.5).collect();
    // More than a segment: the last ones belong to a request that begins when the first has ended.
    let steps: Vec<_> = xs.iter().map(|&x| stream.push(&[x]).unwrap()).collect();
    stream.close();
    engine.drain();
    let expected = outputs(&xs);
    for (step, expected) in steps.into_iter().zip(expected) {
        assert_eq!(step.wait(), Ok(vec![expected]));
    }
}
