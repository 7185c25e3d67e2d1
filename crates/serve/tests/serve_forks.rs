//! A child made by `fork` is refused the parent's engine, streams and tickets, and may start an
//! engine of its own.
#![cfg(unix)]

#[path = "../../../tests/common/fork.rs"]
mod fork;

use std::time::Duration;

use fork::returns_in_child;
use gatestream::model::Lstm;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine::{EngineOptions, Request, StreamError, SubmitError};
use gatestream_serve::networks::{Chain, ChainCell, Outputs};
use gatestream_serve::{Engine, RequestError};

fn engine() -> (Engine, Chain) {
    let mut cells = Cells::new();
    let model = Lstm::new(2, 8).random(1).unwrap();
    let chain = Chain::add(&mut cells, ChainCell::new(model).unwrap());
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    (engine, chain)
}

fn answer(engine: &Engine, chain: &Chain) -> Vec<f32> {
    let graph = chain
        .unfold(&[0.1, 0.2, 0.3, 0.4], None, Outputs::Last)
        .unwrap();
    let ticket = engine.submit(Request::new(graph)).unwrap();
    ticket.wait().unwrap().values
}

#[test]
fn a_child_is_refused_what_the_parent_started() {
    let (mut engine, chain) = engine();
    let expected = answer(&engine, &chain);
    let graph = || chain.unfold(&[0.5; 2000], None, Outputs::Last).unwrap();
    // The workers are somewhere in these requests at the forks.
    for _ in 0..8 {
        let mut tickets: Vec<_> = (0..20)
            .map(|_| Some(engine.submit(Request::new(graph())).unwrap()))
            .collect();
        let mut stream = Some(engine.stream(chain.cell(), None).unwrap());
        let mut step = Some(stream.as_mut().unwrap().push(&[0.1, 0.2]).unwrap());
        let mut parents = Some(engine);
        assert!(returns_in_child(|| {
            let engine = parents.take().unwrap();
            assert!(matches!(
                engine.submit(Request::new(graph())),
                Err(SubmitError::Forked)
            ));
            let key = tickets[0].as_ref().unwrap().id();
            engine.cancel(key);
            engine.drain();
            engine.stats();
            assert!(matches!(
                engine.stream(chain.cell(), None),
                Err(StreamError::Submit(SubmitError::Forked))
            ));
            let mut stream = stream.take().unwrap();
            assert!(matches!(
                stream.push(&[0.1, 0.2]),
                Err(StreamError::Submit(SubmitError::Forked))
            ));
            let ended = |error: RequestError| error == RequestError::Forked;
            assert!(step.take().unwrap().wait().err().is_none_or(ended));
            let mut waited = tickets.drain(..).flatten();
            assert!(waited.next().unwrap().wait().err().is_none_or(ended));
            let mut timed = waited.next().unwrap();
            let told = timed.wait_timeout(Duration::from_secs(3600)).unwrap();
            assert!(told.err().is_none_or(ended));
            waited.next().unwrap().cancel();
            drop(waited);
            drop(stream);
            drop(engine);
            let (own, chain) = self::engine();
            assert_eq!(answer(&own, &chain), expected);
        }));
        engine = parents.unwrap();
        assert!(step.unwrap().wait().is_ok());
        for ticket in tickets.into_iter().flatten() {
            assert!(ticket.wait().is_ok());
        }
        stream.unwrap().close();
        assert_eq!(answer(&engine, &chain), expected);
    }
}
