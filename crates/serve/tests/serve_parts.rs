//! Parts of responses: in order, on the reply thread, before the answer or the error. Gates and
//! channels hold threads, not the clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::mpsc;

use gate::PATIENCE;
use gated::{ended, scene};
use gatestream::layers::Embedding;
use gatestream::model::{Lstm, Matrix};
use gatestream_serve::cell_graph::{
    CellId, Cells, DynamicGraph, Graph, Growth, NodeId, NodeOutputs,
};
use gatestream_serve::engine::{EngineOptions, Request, Response, Workers};
use gatestream_serve::networks::{DecoderCell, EncoderCell, Seq2Seq, Until, run_unbatched};
use gatestream_serve::scheduler::Limits;
use gatestream_serve::{Engine, RequestError};
use simple_cells::bits;

/// What a request's user is told.
#[derive(Debug, PartialEq)]
enum Told {
    Part(Vec<f32>),
    End(Result<Vec<f32>, RequestError>),
}

fn values(answer: Result<Response, RequestError>) -> Result<Vec<f32>, RequestError> {
    answer.map(|answer| answer.values)
}

/// The request, with its parts sent to a channel.
fn telling(request: Request, told: &mpsc::Sender<Told>) -> Request {
    let told = told.clone();
    request.on_part(move |part| told.send(Told::Part(part.to_vec())).unwrap())
}

/// An encoder and a decoder of eleven symbols.
fn seq2seq() -> (Cells, Seq2Seq) {
    let (symbols, hidden) = (11, 8);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut random = |count: usize| (0..count).map(|_| rng.f32() - 0.5).collect::<Vec<f32>>();
    let mut table = || Embedding::new(Matrix::new(symbols, 3, random(symbols * 3)).unwrap());
    let (source, target) = (table(), table());
    let encoder = EncoderCell::new(source, Lstm::new(3, hidden).random(1).unwrap()).unwrap();
    let weights = Matrix::new(symbols, hidden, random(symbols * hidden)).unwrap();
    let recurrent = Lstm::new(3, hidden).random(2).unwrap();
    let decoder = DecoderCell::new(target, recurrent, weights, vec![0.0; symbols]).unwrap();
    let mut cells = Cells::new();
    let network = Seq2Seq::add(&mut cells, encoder, decoder, 0).unwrap();
    (cells, network)
}

/// The symbols of a decoder come one by one and are its answer, whatever else is in the batches.
#[test]
fn parts_of_a_decoder_are_its_answer() {
    for (reply_thread, workers) in [(true, 1), (true, 2), (false, 1)] {
        let (cells, network) = seq2seq();
        let options = EngineOptions {
            workers: Workers::Cores((0..workers).map(|core| vec![core]).collect()),
            reply_thread,
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let mut rng = fastrand::Rng::with_seed(9);
        let requests = (0..40).map(|_| {
            let source: Vec<usize> = (0..rng.usize(1..6)).map(|_| rng.usize(0..11)).collect();
            let until = if rng.bool() {
                Until::Steps(rng.usize(0..9))
            } else {
                Until::Eos { eos: 3, limit: 9 }
            };
            let (graph, decoding) = network.unfold(&source, until).unwrap();
            let grow = Some(Box::new(decoding.clone()) as Box<dyn DynamicGraph>);
            let alone = run_unbatched(engine.cells(), graph.clone(), grow).unwrap();
            let (told, tells) = mpsc::channel();
            let request = telling(Request::new(graph).grow(decoding), &told);
            let done = move |answer| told.send(Told::End(values(answer))).unwrap();
            engine.submit_with(request, done).unwrap();
            (tells, alone)
        });
        let requests: Vec<_> = requests.collect();
        for (tells, alone) in requests {
            for symbol in &alone {
                let part = tells.recv_timeout(PATIENCE).unwrap();
                assert_eq!(part, Told::Part(vec![*symbol]));
            }
            let Told::End(Ok(answer)) = tells.recv_timeout(PATIENCE).unwrap() else {
                panic!("more parts, or an error")
            };
            assert_eq!(bits(&answer), bits(&alone));
            assert!(
                tells.recv_timeout(PATIENCE).is_err(),
                "the callbacks are dropped"
            );
        }
    }
}

/// Calls the gated cell this number of times, with a part after each call.
struct Steps(CellId, usize);

impl DynamicGraph for Steps {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        more.part(outputs.port(0));
        self.1 -= 1;
        match self.1 {
            0 => more.answer(node.output(0)),
            _ => {
                let next = more.node(self.0, &[node.output(0)]);
                more.watch(next);
            }
        }
    }
}

fn steps(cell: CellId, count: usize) -> Request {
    let mut graph = Graph::new();
    let x = graph.give(&[0.0]);
    let first = graph.node(cell, &[x]);
    graph.watch(first);
    Request::new(graph).grow(Steps(cell, count))
}

/// A part is there while the next step is held; the end comes after the parts.
#[test]
fn parts_come_before_the_next_step_and_before_an_error() {
    let scene = scene(1, 4, 4, Limits::default());
    let (told, tells) = mpsc::channel();
    let ticket = scene.submit(telling(steps(scene.gated, 3), &told));
    for step in 1..3 {
        scene.gate.wait_for(step);
        assert!(tells.try_recv().is_err(), "the step is held");
        scene.gate.let_go(step);
        let part = tells.recv_timeout(PATIENCE).unwrap();
        assert_eq!(part, Told::Part(vec![step as f32]));
    }
    scene.gate.wait_for(3);
    ticket.cancel();
    scene.gate.let_all_go();
    assert_eq!(ended(ticket), Err(RequestError::Cancelled));
    drop(told);
    assert!(
        tells.recv_timeout(PATIENCE).is_err(),
        "no part after the end"
    );
}

/// The answer of a ticket waits for the parts before it.
#[test]
fn a_ticket_is_answered_after_the_parts() {
    let scene = scene(1, 4, 4, Limits::default());
    scene.gate.let_all_go();
    let (held, holds) = mpsc::channel::<()>();
    let (told, tells) = mpsc::channel();
    let request = steps(scene.gated, 2).on_part(move |part| {
        told.send(part.to_vec()).unwrap();
        let _ = holds.recv_timeout(PATIENCE);
    });
    let mut ticket = scene.submit(request);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), [1.0]);
    // The engine has computed all; the user has the first part.
    while scene.engine.stats().counts.live() > 0 {
        std::thread::yield_now();
    }
    assert!(ticket.wait_timeout(std::time::Duration::ZERO).is_none());
    assert!(scene.engine.drain_for(std::time::Duration::ZERO) > 0);
    drop(held);
    assert_eq!(ended(ticket), Ok(vec![2.0]));
    assert_eq!(tells.try_recv(), Ok(vec![2.0]));
    assert_eq!(scene.engine.drain(), 0);
}

#[test]
fn a_panic_in_a_part_loses_no_answer() {
    for reply_thread in [true, false] {
        let (cells, network) = seq2seq();
        let options = EngineOptions {
            reply_thread,
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let (graph, decoding) = network.unfold(&[1, 2], Until::Steps(5)).unwrap();
        let request = Request::new(graph).grow(decoding);
        let request = request.on_part(|_| std::panic::resume_unwind(Box::new("part")));
        let answer = engine.submit(request).unwrap().wait().unwrap();
        assert_eq!(answer.values.len(), 5);
    }
}

/// The user cancels from a part, without a reply thread on the worker itself.
#[test]
fn a_part_may_cancel_its_request() {
    for reply_thread in [true, false] {
        let (cells, network) = seq2seq();
        let options = EngineOptions {
            reply_thread,
            ..EngineOptions::default()
        };
        let engine = std::sync::Arc::new(Engine::start(cells, &options).unwrap());
        let (graph, decoding) = network.unfold(&[1, 2], Until::Steps(100_000)).unwrap();
        let (ids, id) = mpsc::channel();
        let of = std::sync::Arc::downgrade(&engine);
        let (told, tells) = mpsc::channel();
        let request = Request::new(graph).grow(decoding).on_part(move |_| {
            if let (Ok(id), Some(engine)) = (id.try_recv(), of.upgrade()) {
                engine.cancel(id);
            }
        });
        let done = move |answer| told.send(values(answer)).unwrap();
        ids.send(engine.submit_with(request, done).unwrap())
            .unwrap();
        let end = tells.recv_timeout(PATIENCE).unwrap();
        assert_eq!(end, Err(RequestError::Cancelled));
    }
}
