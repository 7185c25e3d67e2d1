//! Random joins, cancels, deadlines, failures, growth, streams, parts and reloads of a second model
//! for as long as one likes, on one worker and then on two, with flat memory, nobody lost, and each
//! answer that of the request alone.
//!
//!     CELLSTREAM_SOAK_SECONDS=600 cargo test --release --test serve_soak

#[path = "../../../tests/common/resident.rs"]
mod resident;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cellstream::layers::Embedding;
use cellstream::model::{Gru, Lstm, Matrix};
use cellstream_serve::Engine;
use cellstream_serve::RequestError;
use cellstream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Ports,
    PreparedCell, WorkerEnv,
};
use cellstream_serve::engine::{
    EngineOptions, ModelOptions, Request, StreamError, SubmitError, Workers,
};
use cellstream_serve::networks::{
    BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, DecoderCell, EncoderCell,
    FeedPrevious, Outputs, Seq2Seq, UnbatchedRunner, Until,
};
use cellstream_serve::policy::PolicyKind;
use cellstream_serve::scheduler::{End, Limits, Refused};

/// Fails at 1, panics at 2, takes its time at 3; else gives its input.
struct Fragile(Ports);

impl Cell for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let ([x], [], [y]) = batch.split();
                if x.contains(&3.0) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if x.contains(&2.0) {
                    // As a panic, without a line on standard error for each.
                    resume_unwind(Box::new("two"));
                }
                y.copy_from_slice(x);
                match x.contains(&1.0) {
                    true => Err(CellError::new("one")),
                    false => Ok(()),
                }
            }
        }
        Ok(Box::new(Ready))
    }
}

/// What goes on at a watched node.
#[derive(Clone)]
enum Growing {
    Decodes(FeedPrevious),
    Panics,
    Fails,
    /// Adds a node that takes nothing.
    Malformed(CellId),
}

impl DynamicGraph for Growing {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        match self {
            Growing::Decodes(decoding) => decoding.grow(node, outputs, more),
            Growing::Panics => resume_unwind(Box::new("told to")),
            Growing::Fails => more.fail("told to"),
            Growing::Malformed(cell) => {
                more.node(*cell, &[]);
            }
        }
    }
}

struct Network {
    lstm: Chain,
    gru: Chain,
    tree: BinaryTreeLstm,
    translation: Seq2Seq,
    fragile: CellId,
}

const E: usize = 8;
const SYMBOLS: usize = 40;
const EOS: usize = 1;

fn values(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.f32() - 0.5).collect()
}

fn network() -> (Cells, Network) {
    let mut cells = Cells::new();
    let chain = |cells: &mut Cells, model| Chain::add(cells, ChainCell::new(model).unwrap());
    let lstm = chain(&mut cells, Lstm::new(E, 16).layers(2).random(1).unwrap());
    let gru = chain(&mut cells, Gru::new(E, 24).random(2).unwrap());
    let weights = BinaryTreeWeights::random(E, 16, 3).unwrap();
    let tree = BinaryTreeLstm::add(&mut cells, weights).unwrap();
    let mut random = fastrand::Rng::with_seed(4);
    let mut matrix = |rows, cols| Matrix::new(rows, cols, values(&mut random, rows * cols));
    let table = Arc::new(Embedding::new(matrix(SYMBOLS, E).unwrap()));
    let model = Arc::new(Lstm::new(E, 16).random(5).unwrap());
    let encoder = EncoderCell::new(table.clone(), model.clone()).unwrap();
    let mut bias = vec![0.0; SYMBOLS];
    bias[EOS] = 0.3; // ends some answers
    let decoder = DecoderCell::new(table, model, matrix(SYMBOLS, 16).unwrap(), bias).unwrap();
    let translation = Seq2Seq::add(&mut cells, encoder, decoder, 0).unwrap();
    let fragile = cells.add(Fragile(Ports::new().input("x", 1).output("y", 1)));
    let network = Network {
        lstm,
        gru,
        tree,
        translation,
        fragile,
    };
    (cells, network)
}

/// What users ask for, and how that may end beside being cancelled or late.
struct Asked {
    graph: Graph,
    growing: Option<Growing>,
    answer: Option<Vec<f32>>,
    fails: Fails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Never,
    /// By its cell, or a mate's.
    Cell,
    GrowPanicked,
    GrowFailed,
    Malformed,
}

fn random_asked(
    network: &Network,
    alone: &mut UnbatchedRunner,
    random: &mut fastrand::Rng,
) -> Asked {
    let mut fails = Fails::Never;
    let mut growing = None;
    let graph = match random.usize(0..24) {
        0 => {
            fails = Fails::Cell;
            let mut graph = Graph::new();
            let x = graph.give(&[random.usize(0..4) as f32]);
            let node = graph.node(network.fragile, &[x]);
            graph.answer(node.output(0));
            graph
        }
        1..=2 => {
            let (kind, grow) = match random.usize(..3) {
                0 => (Fails::GrowPanicked, Growing::Panics),
                1 => (Fails::GrowFailed, Growing::Fails),
                _ => (Fails::Malformed, Growing::Malformed(network.gru.cell())),
            };
            (fails, growing) = (kind, Some(grow));
            let words = values(random, E * 3);
            let mut graph = network.gru.unfold(&words, None, Outputs::Each).unwrap();
            graph.watch(NodeId::new(random.usize(..3)));
            graph
        }
        3..=6 => {
            let length = random.usize(1..12);
            let source: Vec<usize> = (0..length).map(|_| random.usize(..SYMBOLS)).collect();
            let limit = random.usize(1..20);
            let until = Until::Eos { eos: EOS, limit };
            let (graph, decoding) = network.translation.unfold(&source, until).unwrap();
            growing = Some(Growing::Decodes(decoding));
            graph
        }
        7..=13 => {
            let steps = random.usize(1..40);
            let words = values(random, E * steps);
            network.lstm.unfold(&words, None, Outputs::Last).unwrap()
        }
        14..=18 => {
            let steps = random.usize(1..20);
            let words = values(random, E * steps);
            network.gru.unfold(&words, None, Outputs::Each).unwrap()
        }
        _ => {
            let leaves = 1 << random.usize(0..5);
            let words = values(random, E * leaves);
            let tree = BinaryTree::complete(leaves).unwrap();
            network.tree.unfold(&tree, &words, Outputs::Last).unwrap()
        }
    };
    let answer = match fails {
        Fails::GrowPanicked | Fails::GrowFailed | Fails::Malformed => None,
        Fails::Never | Fails::Cell => {
            let grow = growing
                .clone()
                .map(|grow| Box::new(grow) as Box<dyn DynamicGraph>);
            // What its own cell fails at has none.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                alone.run(graph.clone(), grow).ok()
            }))
            .unwrap_or(None)
        }
    };
    assert!(fails != Fails::Never || answer.is_some());
    Asked {
        graph,
        growing,
        answer,
        fails,
    }
}

impl Asked {
    fn request(&self) -> Request {
        let request = Request::new(self.graph.clone());
        match &self.growing {
            Some(grow) => request.grow(grow.clone()),
            None => request,
        }
    }

    /// Checks how it ended. How it failed, if so.
    fn check(
        &self,
        ended: &Result<cellstream_serve::engine::Response, RequestError>,
    ) -> Option<Fails> {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let failed = match ended {
            Ok(answer) => {
                let alone = self.answer.as_ref().expect("what fails alone fails");
                assert_eq!(bits(&answer.values), bits(alone));
                return None;
            }
            Err(RequestError::Late | RequestError::Cancelled) => return None,
            Err(RequestError::Cell { .. } | RequestError::CellPanicked { .. }) => Fails::Cell,
            Err(RequestError::GrowPanicked { .. }) => Fails::GrowPanicked,
            Err(RequestError::GrowFailed { .. }) => Fails::GrowFailed,
            Err(RequestError::Graph(_)) => Fails::Malformed,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(failed, self.fails);
        Some(failed)
    }
}

#[test]
fn memory_stays_flat_and_every_request_ends_once() {
    let seconds = std::env::var("CELLSTREAM_SOAK_SECONDS").ok();
    let seconds: f64 = seconds.map_or(3.0, |s| s.parse().expect("seconds"));
    let (cells, network) = network();
    let mut random = fastrand::Rng::with_seed(6);
    let mut alone = UnbatchedRunner::new(&cells).unwrap();
    // Enough that each kind is among them.
    let asked: Vec<_> = (0..400)
        .map(|_| random_asked(&network, &mut alone, &mut random))
        .collect();
    for (workers, policy) in [
        (Workers::OneOverAll, PolicyKind::Cellular),
        (Workers::Cores(vec![vec![0], vec![1]]), PolicyKind::Shortest),
    ] {
        let options = EngineOptions {
            limits: Limits {
                requests: 300,
                ..Limits::default()
            },
            workers,
            policy,
            ..EngineOptions::default()
        };
        soak(options, &cells, &network, &asked, seconds / 2.0);
    }
}

#[derive(Default)]
struct Seen {
    submitted: AtomicU64,
    refused: AtomicU64,
    /// Submitted with a callback, and told by it.
    by_call: AtomicU64,
    called: AtomicU64,
    /// By [`Fails`].
    failed: [AtomicU64; 5],
}

fn soak(options: EngineOptions, cells: &Cells, network: &Network, asked: &[Asked], seconds: f64) {
    let engine = Engine::start(cells.clone(), &options).unwrap();
    let (stop, seen) = (AtomicBool::new(false), Arc::new(Seen::default()));
    let add = |count: &AtomicU64| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let user = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        let mut stream = engine.stream(network.lstm.cell(), None).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let asked = &asked[random.usize(..asked.len())];
            let mut request = asked.request().priority(random.u8(0..4));
            if random.usize(0..4) == 0 {
                request =
                    request.deadline(Instant::now() + Duration::from_micros(random.u64(0..3000)));
            }
            let submitted = match random.usize(0..8) {
                0 => {
                    let told = Arc::clone(&seen);
                    let done = move |_| {
                        told.called.fetch_add(1, Ordering::Relaxed);
                    };
                    engine.submit_with(request, done).map(|key| {
                        add(&seen.by_call);
                        if random.usize(0..4) == 0 {
                            engine.cancel(key);
                        }
                    })
                }
                _ => engine
                    .submit(request)
                    .map(|ticket| open.push((ticket, asked))),
            };
            match submitted {
                Ok(()) => add(&seen.submitted),
                Err(SubmitError::Refused(Refused::Overloaded { .. })) => add(&seen.refused),
                Err(other) => panic!("{other}"),
            }
            match random.usize(0..6) {
                0 if !open.is_empty() => drop(open.swap_remove(random.usize(..open.len()))),
                1 => match stream.push(&[0.25; E]) {
                    Ok(step) if random.bool() => drop(step.wait()),
                    Ok(_) | Err(StreamError::Submit(_)) => {}
                    Err(_) => stream = engine.stream(network.lstm.cell(), None).unwrap(),
                },
                _ => {}
            }
            while open.len() > 200 {
                let (ticket, asked) = open.swap_remove(random.usize(..open.len()));
                if let Some(failed) = asked.check(&ticket.wait()) {
                    add(&seen.failed[failed as usize]);
                }
            }
            if random.usize(0..50_000) == 0 {
                stream = engine.stream(network.lstm.cell(), None).unwrap();
            }
        }
    };
    // A second model comes and goes; the symbols of its decoders come as parts.
    let reload = || {
        let mut random = fastrand::Rng::with_seed(9);
        let mut reloads = 0;
        while !stop.load(Ordering::Relaxed) {
            let options = ModelOptions::default();
            let model = engine.add_model(cells.clone(), &options).unwrap();
            let mut stream = model.stream(network.lstm.cell(), None).unwrap();
            let mut accepted = Vec::new();
            for _ in 0..50 {
                let asked = &asked[random.usize(..asked.len())];
                let parts: Arc<Mutex<Vec<f32>>> = Arc::default();
                let told = Arc::clone(&parts);
                let part = move |part: &[f32]| told.lock().unwrap().extend_from_slice(part);
                match model.submit(asked.request().on_part(part)) {
                    Ok(ticket) => {
                        add(&seen.submitted);
                        accepted.push((ticket, asked, parts));
                    }
                    Err(SubmitError::Refused(Refused::Overloaded { .. })) => add(&seen.refused),
                    Err(other) => panic!("{other}"),
                }
            }
            let step = stream.push(&[0.25; E]).unwrap();
            let cancels = random.usize(0..4) == 0;
            if cancels {
                model.cancel_all();
            }
            model.remove();
            assert!(step.wait().is_ok() || cancels);
            for (ticket, asked, parts) in accepted {
                let ended = ticket.wait();
                if let (Ok(answer), Some(Growing::Decodes(_))) = (&ended, &asked.growing) {
                    assert_eq!(*parts.lock().unwrap(), answer.values);
                }
                let failed = asked.check(&ended);
                assert!(ended != Err(RequestError::Cancelled) || cancels);
                if let Some(failed) = failed {
                    add(&seen.failed[failed as usize]);
                }
            }
            let gone = model.submit(asked[0].request()).err();
            assert_eq!(gone, Some(SubmitError::Refused(Refused::NoModel)));
            drop(stream);
            assert!(model.stats().is_none());
            reloads += 1;
        }
        reloads
    };
    let resident = || cfg!(target_os = "linux").then(resident::resident);
    let begin = Instant::now();
    let (mut early, mut late) = (None, None);
    std::thread::scope(|scope| {
        let user = &user;
        let users: Vec<_> = (0..2).map(|seed| scope.spawn(move || user(seed))).collect();
        let reloader = scope.spawn(reload);
        while begin.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_millis(50));
            let done = begin.elapsed().as_secs_f64() / seconds;
            if done > 0.4 && early.is_none() {
                early = resident();
            }
            late = resident();
            assert!(engine.health().workers.iter().all(|worker| worker.is_alive));
            assert!(engine.stats().models.len() <= 2);
        }
        stop.store(true, Ordering::Relaxed);
        for user in users {
            user.join().unwrap();
        }
        assert!(reloader.join().unwrap() > 0);
    });
    engine.drain();
    let counts = engine.stats().counts;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let failed: Vec<u64> = seen.failed.iter().map(of).collect();
    println!(
        "{:?}: {} submitted, {} by call, failed {failed:?}, {counts:?}, {early:?} to {late:?} bytes",
        options.workers,
        of(&seen.submitted),
        of(&seen.by_call)
    );
    assert_eq!(counts.live(), 0);
    assert!(counts.submitted >= of(&seen.submitted));
    assert!(counts.refused() >= of(&seen.refused));
    assert_eq!(of(&seen.called), of(&seen.by_call));
    assert_eq!(
        End::ALL.iter().map(|end| counts.of(*end)).sum::<u64>(),
        counts.submitted
    );
    for end in [End::Completed, End::Cancelled, End::Late, End::Failed] {
        assert!(counts.of(end) > 0, "{end:?}: {counts:?}");
    }
    // Each way to fail was taken.
    assert!(failed[1..].iter().all(|&count| count > 0), "{failed:?}");
    if let (Some(early), Some(late)) = (early, late) {
        // What an allocator keeps varies by some megabytes; a request leaked a second would be more
        // in minutes.
        assert!(
            late < 1.1 * early + 4.0 * 1024.0 * 1024.0,
            "from {early} to {late} bytes"
        );
    }
}
