//! Random joins, cancels, deadlines, failures and streams for as long as one likes, with flat memory and nobody lost.
//!
//!     CELLSTREAM_SOAK_SECONDS=600 cargo test --release --test serve_soak

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellstream::model::{Gru, Lstm};
use cellstream::serve::Engine;
use cellstream::serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Graph, Place, Ports, PreparedCell,
};
use cellstream::serve::engine::{EngineOptions, Request, RequestError, StreamError, SubmitError};
use cellstream::serve::networks::{
    Answer, BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell,
};
use cellstream::serve::scheduler::{End, Limits, Refused};

/// Fails at 1, panics at 2, else gives its input.
struct Fragile(Ports);

impl Cell for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let ([x], [], [y]) = batch.split();
                if x.contains(&2.0) {
                    // As a panic, without a line on standard error for each.
                    std::panic::resume_unwind(Box::new("two"));
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

struct Network {
    lstm: Chain,
    gru: Chain,
    tree: BinaryTreeLstm,
    fragile: CellId,
}

const E: usize = 8;

fn network() -> (Cells, Network) {
    let mut cells = Cells::new();
    let chain = |cells: &mut Cells, model| Chain::add(cells, ChainCell::new(model).unwrap());
    let lstm = chain(&mut cells, Lstm::new(E, 16).layers(2).random(1).unwrap());
    let gru = chain(&mut cells, Gru::new(E, 24).random(2).unwrap());
    let weights = BinaryTreeWeights::random(E, 16, 3).unwrap();
    let tree = BinaryTreeLstm::add(&mut cells, weights).unwrap();
    let fragile = cells.add(Fragile(Ports::new().input("x", 1).output("y", 1)));
    let network = Network {
        lstm,
        gru,
        tree,
        fragile,
    };
    (cells, network)
}

fn random_graph(network: &Network, random: &mut fastrand::Rng) -> Graph {
    let values = |random: &mut fastrand::Rng, count: usize| -> Vec<f32> {
        (0..count).map(|_| random.f32() - 0.5).collect()
    };
    match random.usize(0..20) {
        0 => {
            let mut graph = Graph::new();
            let x = graph.give(&[random.usize(0..3) as f32]);
            let node = graph.node(network.fragile, &[x]);
            graph.answer(node.gives(0));
            graph
        }
        1..=8 => {
            let steps = random.usize(1..40);
            let words = values(random, E * steps);
            network.lstm.unfold(&words, None, Answer::Last).unwrap()
        }
        9..=14 => {
            let steps = random.usize(1..20);
            let words = values(random, E * steps);
            network.gru.unfold(&words, None, Answer::Each).unwrap()
        }
        _ => {
            let leaves = 1 << random.usize(0..5);
            let words = values(random, E * leaves);
            let tree = BinaryTree::complete(leaves).unwrap();
            network.tree.unfold(&tree, &words, Answer::Last).unwrap()
        }
    }
}

/// Bytes of memory that the process has in use; `None` where the system does not say.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

#[test]
fn memory_stays_flat_and_every_request_ends_once() {
    let seconds = std::env::var("CELLSTREAM_SOAK_SECONDS").ok();
    let seconds = seconds.map_or(3.0, |s| s.parse().expect("seconds"));
    let (cells, network) = network();
    let options = EngineOptions {
        limits: Limits {
            requests: 300,
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let (stop, submitted, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let user = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        let mut ends = [0u64; 4];
        let mut stream = engine.stream(network.lstm.cell(), None).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let mut request = Request::new(random_graph(&network, &mut random));
            request = request.priority(random.u8(0..4));
            if random.usize(0..4) == 0 {
                request =
                    request.deadline(Instant::now() + Duration::from_micros(random.u64(0..3000)));
            }
            match engine.submit(request) {
                Ok(ticket) => {
                    submitted.fetch_add(1, Ordering::Relaxed);
                    open.push(ticket);
                }
                Err(SubmitError::Refused(Refused::Overloaded { .. })) => {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(other) => panic!("{other}"),
            }
            match random.usize(0..6) {
                0 if !open.is_empty() => drop(open.swap_remove(random.usize(..open.len()))),
                // Where there is no room for a stream's next segment, it ends; another is opened.
                1 => match stream.push(&[0.25; E]) {
                    Ok(step) if random.bool() => drop(step.wait()),
                    Ok(_) | Err(StreamError::Submit(_)) => {}
                    Err(_) => stream = engine.stream(network.lstm.cell(), None).unwrap(),
                },
                _ => {}
            }
            while open.len() > 200 {
                let at = random.usize(..open.len());
                let kind = match open.swap_remove(at).wait() {
                    Ok(answer) => {
                        assert!(answer.values.iter().all(|v| v.is_finite()));
                        0
                    }
                    Err(RequestError::Late) => 1,
                    Err(RequestError::Cell { .. } | RequestError::CellPanicked { .. }) => 2,
                    Err(other) => panic!("{other}"),
                };
                ends[kind] += 1;
            }
            if random.usize(0..50_000) == 0 {
                stream = engine.stream(network.lstm.cell(), None).unwrap();
            }
        }
        ends[3] = open.len() as u64;
        ends
    };
    let begin = Instant::now();
    let (mut early, mut late) = (None, None);
    let ends = std::thread::scope(|scope| {
        let users: Vec<_> = (0..2).map(|seed| scope.spawn(move || user(seed))).collect();
        while begin.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_millis(50));
            let done = begin.elapsed().as_secs_f64() / seconds;
            if done > 0.4 && early.is_none() {
                early = resident();
            }
            late = resident();
        }
        stop.store(true, Ordering::Relaxed);
        let ends = users.into_iter().map(|user| user.join().unwrap());
        ends.fold([0; 4], |sum: [u64; 4], ends| {
            std::array::from_fn(|k| sum[k] + ends[k])
        })
    });
    engine.drain();
    let counts = engine.stats().counts;
    println!(
        "{} submitted, ends {ends:?}, {counts:?}, {early:?} to {late:?} bytes",
        submitted.load(Ordering::Relaxed)
    );
    assert_eq!(counts.live(), 0);
    assert!(counts.submitted >= submitted.load(Ordering::Relaxed));
    assert!(counts.refused >= refused.load(Ordering::Relaxed));
    assert_eq!(
        End::ALL.iter().map(|end| counts.of(*end)).sum::<u64>(),
        counts.submitted
    );
    for (kind, end) in [End::Completed, End::Cancelled, End::Late, End::Failed]
        .iter()
        .enumerate()
    {
        assert!(counts.of(*end) > 0, "{kind}: {counts:?}");
    }
    if let (Some(early), Some(late)) = (early, late) {
        // What an allocator keeps varies by some megabytes; a request leaked a second would be more in minutes.
        assert!(
            late < early + early / 10 + (4 << 20),
            "from {early} to {late} bytes"
        );
    }
}
