//! The servers that are driven: an engine for each policy, all on one set of weights.
//!
//! What requests compute does not depend on their values, so those are slices of one pool of random numbers, at a place
//! that a request's seed says: the same for every policy, and cheap for a generator that shares the machine.

use std::panic::resume_unwind;
use std::sync::Arc;

use super::arguments::Arguments;
use super::clock::WallClock;
use super::priority;
use super::request::{Network, Request, Work};
use super::served::Served;
use super::target::{Launch, Policy, Settings};
use super::trees::Tree;
use crate::cli::memory::afford_weights;
use crate::cli::{Failure, model};
use crate::layers::Embedding;
use crate::machine::Topology;
use crate::model::{Gru, Lstm, Matrix, Model};
use crate::serve::cell_graph::Cells;
use crate::serve::engine::{self, Calibration, Engine, EngineOptions, Workers, calibrate};
use crate::serve::networks::{
    self, BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, ChildSumTreeLstm,
    ChildSumWeights, DecoderCell, Dependencies, EncoderCell, NetworkError, Seq2Seq, TreeChild,
    Until,
};
use crate::serve::policy::{BatchSizes, Choice};
use crate::serve::scheduler::Limits;

/// Random numbers that requests' values are slices of: more than any request takes.
const POOL: usize = 1 << 22;

/// Starts engines.
pub struct Engines {
    weights: Weights,
    input: usize,
    workers: Vec<Vec<usize>>,
    tasks_at_once: usize,
    steps_at_once: usize,
    pool: Arc<[f32]>,
}

/// The weights, which each engine packs anew.
enum Weights {
    Chain(Arc<Model>),
    Seq2Seq(Arc<Translation>),
    Tree(Arc<BinaryTreeWeights>),
    ChildSum(Arc<ChildSumWeights>),
}

struct Translation {
    source: Arc<Embedding>,
    encoder: Arc<Model>,
    target: Arc<Embedding>,
    decoder: Arc<Model>,
    projection: Arc<Matrix>,
}

/// What requests are answered with; not to be confused with [`engine::Answer`].
const ANSWER: networks::Answer = networks::Answer::Last;

type Unfold = Box<dyn Fn(&Request) -> engine::Request>;

impl Engines {
    /// Random weights of the shape that was asked for.
    ///
    /// # Errors
    /// More weights than there is memory for, precisions that the network does not have.
    pub fn new(arguments: &Arguments) -> Result<Engines, Failure> {
        let shape = &arguments.shape;
        let (input, hidden) = (shape.input as usize, shape.hidden as usize);
        let vocabulary = shape.vocabulary as usize;
        let values = match arguments.network {
            Network::Lstm | Network::Gru => 4 * hidden * (input + hidden),
            Network::Seq2seq => 8 * hidden * (input + hidden) + vocabulary * (2 * input + hidden),
            Network::Treelstm => 3 * hidden * input + 10 * hidden * hidden,
            Network::TreeChildSum => 4 * hidden * (input + hidden),
        };
        afford_weights(Some(values as u64))?;
        let (seed, precision) = (arguments.seed, shape.precision);
        let mut random = fastrand::Rng::with_seed(seed);
        let lstm = |seed| Ok::<_, Failure>(Lstm::new(input, hidden).random(seed)?);
        let reduced = |model: Model| Ok::<_, Failure>(Arc::new(model.into_precision(precision)?));
        let weights = match arguments.network {
            Network::Lstm => Weights::Chain(reduced(lstm(seed)?)?),
            Network::Gru => Weights::Chain(reduced(Gru::new(input, hidden).random(seed)?)?),
            Network::Seq2seq => {
                let mut matrix = |columns: usize| {
                    let values = (0..vocabulary * columns).map(|_| random.f32() - 0.5);
                    Matrix::new(vocabulary, columns, values.collect())
                };
                Weights::Seq2Seq(Arc::new(Translation {
                    source: Arc::new(Embedding::new(matrix(input)?)),
                    encoder: reduced(lstm(seed)?)?,
                    target: Arc::new(Embedding::new(matrix(input)?)),
                    decoder: reduced(lstm(seed + 1)?)?,
                    projection: Arc::new(matrix(hidden)?.into_precision(shape.precision)?),
                }))
            }
            Network::Treelstm => {
                let mut weights = BinaryTreeWeights::random(input, hidden, seed)?;
                let BinaryTreeWeights {
                    leaf, left, right, ..
                } = &mut weights;
                for matrix in [leaf, left, right] {
                    *matrix = matrix.in_precision(precision)?;
                }
                Weights::Tree(Arc::new(weights))
            }
            Network::TreeChildSum => {
                let mut weights = ChildSumWeights::random(input, hidden, seed)?;
                let ChildSumWeights {
                    input,
                    sum,
                    forget_input,
                    forget_state,
                    ..
                } = &mut weights;
                for matrix in [input, sum, forget_input, forget_state] {
                    *matrix = matrix.in_precision(precision)?;
                }
                Weights::ChildSum(Arc::new(weights))
            }
        };
        let threads = model::threads(arguments.threads);
        let workers = arguments.workers as usize;
        if workers > threads {
            return Err(Failure::usage(format!(
                "--workers {workers} on {threads} core(s): each worker needs a core; ask for fewer"
            )));
        }
        let cores = Topology::detect().cpus_for_team(threads);
        let mut random = fastrand::Rng::with_seed(seed);
        Ok(Engines {
            weights,
            input,
            workers: divide(&cores, workers),
            tasks_at_once: arguments.tasks_at_once as usize,
            steps_at_once: arguments.steps_at_once as usize,
            pool: (0..POOL).map(|_| random.f32() - 0.5).collect(),
        })
    }

    fn unfold(&self, cells: &mut Cells) -> Result<Unfold, NetworkError> {
        let (pool, input) = (Arc::clone(&self.pool), self.input);
        let values = move |request: &Request, rows: usize| {
            let count = (rows * input).min(POOL);
            let first = request.seed as usize % (POOL - count + 1);
            // Clones the handle, not the values: the slice outlives this call.
            (Arc::clone(&pool), first..first + count)
        };
        Ok(match &self.weights {
            Weights::Chain(model) => {
                let chain = Chain::add(cells, ChainCell::new(Arc::clone(model))?);
                Box::new(move |request| {
                    let Work::Chain { steps } = request.work else {
                        unreachable!("requests are of the network");
                    };
                    let (pool, at) = values(request, steps);
                    let graph = chain.unfold(&pool[at], None, ANSWER);
                    engine::Request::new(expect(graph))
                })
            }
            Weights::Seq2Seq(parts) => {
                let encoder =
                    EncoderCell::new(Arc::clone(&parts.source), Arc::clone(&parts.encoder))?;
                let decoder = DecoderCell::new(
                    Arc::clone(&parts.target),
                    Arc::clone(&parts.decoder),
                    Arc::clone(&parts.projection),
                    vec![0.0; parts.projection.rows()],
                )?;
                let network = Seq2Seq::add(cells, encoder, decoder, 0)?;
                let symbols = parts.source.symbols();
                Box::new(move |request| {
                    let Work::Pair { source, target } = request.work else {
                        unreachable!("requests are of the network");
                    };
                    let mut random = fastrand::Rng::with_seed(request.seed);
                    let source: Vec<_> = (0..source).map(|_| random.usize(..symbols)).collect();
                    let unfolded = network.unfold(&source, Until::Steps(target));
                    let (graph, decoding) = expect(unfolded);
                    engine::Request::new(graph).grow(decoding)
                })
            }
            Weights::Tree(weights) => {
                let network = BinaryTreeLstm::add(cells, Arc::clone(weights))?;
                Box::new(move |request| {
                    let Work::Tree(tree) = &request.work else {
                        unreachable!("requests are of the network");
                    };
                    let tree = binary(tree);
                    let (pool, at) = values(request, tree.leaves());
                    let graph = network.unfold(&tree, &pool[at], ANSWER);
                    engine::Request::new(expect(graph))
                })
            }
            Weights::ChildSum(weights) => {
                let network = ChildSumTreeLstm::add(cells, Arc::clone(weights))?;
                Box::new(move |request| {
                    let Work::Tree(tree) = &request.work else {
                        unreachable!("requests are of the network");
                    };
                    let (pool, at) = values(request, tree.len());
                    let graph = network.unfold(&dependencies(tree), &pool[at], ANSWER);
                    engine::Request::new(expect(graph))
                })
            }
        })
    }
}

impl Launch for Engines {
    type Target = Served<Unfold>;
    type Clock = WallClock;

    fn launch(
        &self,
        policy: Policy,
        settings: &Settings,
    ) -> Result<(Served<Unfold>, WallClock), Failure> {
        let mut cells = Cells::new();
        let unfold = self.unfold(&mut cells)?;
        let batch = settings.batch.most();
        let sizes = settings.batch.cells().iter();
        let options = EngineOptions {
            policy: match policy {
                Policy::Cellular => Choice::Cellular,
                Policy::Shortest => Choice::Shortest,
                Policy::Padding => Choice::Padding { batch },
                Policy::Bucketing => Choice::Bucketing {
                    batch,
                    width: settings.bucket_width.unwrap_or(10),
                },
                Policy::Merge => Choice::Merge { batch },
                Policy::Ideal => Choice::Ideal { batch },
            },
            workers: Workers::Cores(self.workers.clone()),
            sizes: sizes.map(|&max| BatchSizes { min: 1, max }).collect(),
            tasks_at_once: self.tasks_at_once,
            steps_at_once: self.steps_at_once,
            // An overload is to be seen as waiting, not as refusals: as much as memory holds.
            limits: Limits {
                requests: 1 << 20,
                nodes: 1 << 26,
                bytes: 4 << 30,
            },
        };
        // Threads have the rank of who starts them.
        priority::lower();
        let engine = Engine::start(cells, &options)?;
        priority::raise();
        Ok((Served::new(engine, unfold), WallClock::new()))
    }

    /// On the first worker's cores.
    fn calibrate(&self, rows: &[usize]) -> Result<Vec<Calibration>, Failure> {
        let mut cells = Cells::new();
        drop(self.unfold(&mut cells)?);
        // On a thread of its own, as it stays pinned: the generator must not.
        let cores = &self.workers[0];
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| calibrate(&cells, cores, rows));
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        Ok(found?)
    }
}

/// Lengths, trees and symbols were checked when they were read.
fn expect<T>(unfolded: Result<T, NetworkError>) -> T {
    match unfolded {
        Ok(graph) => graph,
        Err(error) => unreachable!("{error}"),
    }
}

/// Cores for each worker, as many as there are for each.
fn divide(cores: &[usize], workers: usize) -> Vec<Vec<usize>> {
    let each = cores.len() / workers;
    (cores.chunks_exact(each).take(workers))
        .map(<[usize]>::to_vec)
        .collect()
}

/// A tree of which each node has two children or none.
fn binary(tree: &Tree) -> BinaryTree {
    let (mut leaves, mut nodes) = (0, Vec::new());
    let mut places = Vec::with_capacity(tree.len());
    for node in 0..tree.len() {
        places.push(match *tree.children(node) {
            [left, right] => {
                nodes.push([places[left as usize], places[right as usize]]);
                TreeChild::Node(nodes.len() - 1)
            }
            _ => {
                leaves += 1;
                TreeChild::Leaf(leaves - 1)
            }
        });
    }
    expect(BinaryTree::new(leaves, nodes))
}

/// The heads of the nodes, as a treebank writes them.
fn dependencies(tree: &Tree) -> Dependencies {
    let mut heads = vec![0; tree.len()];
    for node in 0..tree.len() {
        for &child in tree.children(node) {
            heads[child as usize] = node + 1;
        }
    }
    expect(Dependencies::new(&heads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_in_their_order() {
        use clap::{Parser, ValueEnum};
        #[derive(Parser)]
        struct Typed {
            #[command(flatten)]
            arguments: Arguments,
        }
        for network in Network::value_variants() {
            let line = format!(
                "load {} --hidden 8 --input 4 --vocabulary 9",
                network.name()
            );
            let typed = Typed::try_parse_from(line.split_whitespace()).unwrap();
            let mut cells = Cells::new();
            let engines = Engines::new(&typed.arguments).unwrap();
            drop(engines.unfold(&mut cells).unwrap());
            let names: Vec<_> = cells.iter().map(|(_, cell)| cell.name()).collect();
            assert_eq!(names, network.cells());
        }
    }

    #[test]
    fn cores_are_divided_evenly() {
        assert_eq!(divide(&[4, 5, 6], 1), [vec![4, 5, 6]]);
        assert_eq!(divide(&[4, 5, 6], 2), [vec![4], vec![5]]);
        assert_eq!(divide(&[4, 5, 6, 7], 2), [vec![4, 5], vec![6, 7]]);
    }

    #[test]
    fn trees_keep_their_shape() {
        let tree = Tree::complete(4).unwrap();
        assert_eq!(binary(&tree), BinaryTree::complete(4).unwrap());
        let tree = Tree::dependencies(&[2, 0, 2, 3]).unwrap();
        let words = dependencies(&tree);
        let fans: Vec<_> = (0..4).map(|word| words.children(word).len()).collect();
        let mut sorted = fans.clone();
        sorted.sort_unstable();
        assert_eq!((words.len(), sorted), (4, vec![0, 0, 1, 2]));
    }
}
