//! Requests of all kinds with their answers, each computed alone.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use gatestream::layers::Embedding;
use gatestream::model::{Gru, Lstm, Matrix};
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Ports,
    PreparedCell, WorkerEnv,
};
use gatestream_serve::engine::Request;
use gatestream_serve::networks::{
    BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, DecoderCell, EncoderCell,
    FeedPrevious, Outputs, Seq2Seq, UnbatchedRunner, Until,
};

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
                if x.contains(&1.0) {
                    Err(CellError::new("one"))
                } else {
                    Ok(())
                }
            }
        }
        Ok(Box::new(Ready))
    }
}

/// What goes on at a watched node.
#[derive(Clone)]
pub enum Growing {
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

pub struct Network {
    pub lstm: Chain,
    gru: Chain,
    tree: BinaryTreeLstm,
    translation: Seq2Seq,
    fragile: CellId,
}

pub const E: usize = 8;
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
pub struct Asked {
    graph: Graph,
    pub growing: Option<Growing>,
    answer: Option<Vec<f32>>,
    fails: Fails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
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
    pub fn request(&self) -> Request {
        let request = Request::new(self.graph.clone());
        match &self.growing {
            Some(grow) => request.grow(grow.clone()),
            None => request,
        }
    }

    /// Checks how it ended. How it failed, if so.
    pub fn check(
        &self,
        ended: &Result<gatestream_serve::engine::Response, RequestError>,
    ) -> Option<Fails> {
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

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The models and their requests.
pub struct Workload {
    pub cells: Cells,
    pub network: Network,
    pub asked: Vec<Asked>,
    pub long: LongStream,
}

impl Workload {
    pub fn new() -> Workload {
        let (cells, network) = network();
        let mut random = fastrand::Rng::with_seed(6);
        let mut alone = UnbatchedRunner::new(&cells).unwrap();
        // Enough that each kind is among them.
        let asked = (0..400).map(|_| random_asked(&network, &mut alone, &mut random));
        Workload {
            asked: asked.collect(),
            long: LongStream::new(&network, &mut alone),
            cells,
            network,
        }
    }
}

/// The steps of a long stream of the LSTM and their outputs, computed alone.
pub struct LongStream {
    inputs: Vec<f32>,
    pub expected: Vec<Vec<f32>>,
}

impl LongStream {
    pub const STEPS: usize = 600;

    fn new(network: &Network, alone: &mut UnbatchedRunner) -> LongStream {
        let mut random = fastrand::Rng::with_seed(8);
        let inputs = values(&mut random, E * LongStream::STEPS);
        let graph = network.lstm.unfold(&inputs, None, Outputs::Each).unwrap();
        let outputs = alone.run(graph, None).unwrap();
        let width = outputs.len() / LongStream::STEPS;
        LongStream {
            expected: outputs.chunks(width).map(<[f32]>::to_vec).collect(),
            inputs,
        }
    }

    pub fn input(&self, step: usize) -> &[f32] {
        let step = step % LongStream::STEPS;
        &self.inputs[E * step..][..E]
    }
}
