//! The servers that are driven: an engine for each policy, all on one set of weights.
//!
//! What requests compute does not depend on their values, so those are slices of one pool of random numbers, at a place
//! that a request's seed says: the same for every policy, and cheap for a generator that shares the machine.

mod served;

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::command::Arguments;
use crate::drive::clock::WallClock;
use crate::drive::priority;
use crate::in_process::served::Served;
use crate::target::{Launch, Settings};
use crate::workload::trees::Tree;
use crate::workload::{Network, Request, Work, Workload};
use cellstream::layers::Embedding;
use cellstream::machine::Topology;
use cellstream::model::{Gru, Lstm, Matrix, Model};
use cellstream_command::{Failure, threads};
use cellstream_command::{afford, available_memory};
use cellstream_serve::cell_graph::{BatchSizes, Cells};
use cellstream_serve::engine::{self, Calibration, Engine, EngineOptions, Workers, calibrate};
use cellstream_serve::networks::{
    self, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, ChildSumTreeLstm, ChildSumWeights,
    DecoderCell, EncoderCell, NetworkError, Seq2Seq, Until,
};
use cellstream_serve::policy::{Groups, PolicyKind};
use cellstream_serve::scheduler::Limits;

/// Places in the pool where the values of the largest request may begin; there are more for the others.
const PLACES: u64 = 1 << 22;

/// Starts engines.
pub struct Engines {
    weights: Weights,
    input: usize,
    workers: Vec<Vec<usize>>,
    tasks_at_once: usize,
    steps_at_once: usize,
    /// The same for all engines, whatever those before them have left of the memory.
    limits: Limits,
    pool: Arc<[f32]>,
}

/// The weights, which each engine packs anew.
enum Weights {
    Chain(Arc<Model>),
    Seq2Seq(Arc<Translation>),
    Tree(Arc<BinaryTreeWeights>),
    ChildSum(Arc<ChildSumWeights>),
}

/// Numbers of values, known before any is made; those of bf16 and int8 are counted as f32.
struct Sizes {
    /// Weights, embedded words among them.
    weights: u64,
    /// Weights as all workers pack them, at most.
    packed: u64,
    /// What is there only while weights are made and packed: as much as the cells have of them (measured).
    passing: u64,
    /// What requests' values are slices of.
    pool: u64,
    /// Of the largest request, while it is served.
    request: u64,
}

impl Sizes {
    fn of(arguments: &Arguments, workload: &Workload) -> Sizes {
        let shape = &arguments.shape;
        let [input, hidden, vocabulary] =
            [shape.input, shape.hidden, shape.vocabulary()].map(u64::from);
        let cells = match arguments.network {
            Network::Lstm | Network::Gru | Network::TreeChildSum => 4 * hidden * (input + hidden),
            Network::Seq2seq => 8 * hidden * (input + hidden),
            Network::Treelstm => 3 * hidden * input + 10 * hidden * hidden,
        };
        let (projection, embedded) = match arguments.network {
            Network::Seq2seq => (vocabulary * hidden, 2 * vocabulary * input),
            _ => (0, 0),
        };
        // What nodes of a tree leave for nodes above them; steps of a chain follow each other in place. Cells that take several of
        // them at once may be packed for those and for one.
        let (kept, copies) = match arguments.network.is_tree() {
            true => (4 * hidden, 1),
            false => (0, 2),
        };
        let rows = workload.most_rows() as u64;
        Sizes {
            weights: cells + projection + embedded,
            // A projection of f32 may be packed in int8, too.
            packed: (copies * cells + projection * 5 / 4) * u64::from(arguments.workers),
            passing: cells,
            // Of words, requests have the numbers alone.
            pool: match arguments.network {
                Network::Seq2seq => 0,
                _ => PLACES + rows * input,
            },
            // The list of inputs grows, and may have room for twice as many.
            request: rows * (2 * input + kept),
        }
    }

    /// All that must fit into memory; [`limits`] keep requests in half of what the others leave.
    fn all(&self) -> u64 {
        self.weights + self.packed + self.passing + self.pool + 2 * self.request
    }
}

/// An overload is to be seen as waiting, not as refusals: a million requests, as far as memory holds them. Of the
/// `available` bytes, an engine packs so many weights in some; half of the others is for what is not counted as a request's:
/// the one that comes next, the scheduler's tables, buffers.
fn limits(available: u64, packed: u64) -> Limits {
    let packed = packed * size_of::<f32>() as u64;
    Limits {
        requests: 1 << 20,
        nodes: usize::MAX,
        bytes: (available.saturating_sub(packed) / 2) as usize,
    }
}

struct Translation {
    source: Arc<Embedding>,
    encoder: Arc<Model>,
    target: Arc<Embedding>,
    decoder: Arc<Model>,
    projection: Arc<Matrix>,
}

/// What requests are answered with; not to be confused with [`engine::Response`].
const ANSWER: networks::Outputs = networks::Outputs::Last;

type Unfold = Box<dyn Fn(&Request) -> engine::Request>;

impl Engines {
    /// Random weights of the shape that was asked for, and values for the requests of `workload`.
    ///
    /// # Errors
    /// More of both than there is memory for, precisions that the network does not have.
    pub fn new(arguments: &Arguments, workload: &Workload) -> Result<Engines, Failure> {
        let threads = threads(arguments.threads);
        let workers = arguments.workers as usize;
        if workers > threads {
            return Err(Failure::usage(format!(
                "--workers {workers} on {threads} core(s): each worker needs a core; ask for fewer"
            )));
        }
        let sizes = Sizes::of(arguments, workload);
        afford(
            sizes.all().checked_mul(4),
            "--hidden, --input, --vocabulary, --workers, --lengths and --trees",
            "weights and the values of requests",
        )?;
        let shape = &arguments.shape;
        let (input, hidden) = (shape.input as usize, shape.hidden as usize);
        let vocabulary = shape.vocabulary() as usize;
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
        let cores = Topology::detect().cpus_for_team(threads);
        let mut random = fastrand::Rng::with_seed(seed);
        let pool = (0..sizes.pool).map(|_| random.f32() - 0.5).collect();
        Ok(Engines {
            weights,
            input,
            workers: divide(&cores, workers),
            tasks_at_once: arguments.tasks_at_once as usize,
            steps_at_once: arguments.steps_at_once as usize,
            limits: limits(available_memory(), sizes.packed),
            pool,
        })
    }

    fn unfold(&self, cells: &mut Cells) -> Result<Unfold, NetworkError> {
        let (pool, input) = (Arc::clone(&self.pool), self.input);
        let values = move |request: &Request, rows: usize| {
            let count = rows * input;
            let first = request.seed as usize % (pool.len() - count + 1);
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
                    let Work::Tree(Tree::Binary(tree)) = &request.work else {
                        unreachable!("requests are of the network");
                    };
                    let (pool, at) = values(request, tree.leaves());
                    let graph = network.unfold(tree, &pool[at], ANSWER);
                    engine::Request::new(expect(graph))
                })
            }
            Weights::ChildSum(weights) => {
                let network = ChildSumTreeLstm::add(cells, Arc::clone(weights))?;
                Box::new(move |request| {
                    let Work::Tree(Tree::Dependencies(words)) = &request.work else {
                        unreachable!("requests are of the network");
                    };
                    let (pool, at) = values(request, words.len());
                    let graph = network.unfold(words, &pool[at], ANSWER);
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
        policy: PolicyKind,
        settings: &Settings,
    ) -> Result<(Served<Unfold>, WallClock), Failure> {
        let mut cells = Cells::new();
        let unfold = self.unfold(&mut cells)?;
        let sizes = settings.batch.cells().iter();
        let options = EngineOptions {
            policy,
            groups: Groups {
                requests: settings.batch.most(),
                width: settings.bucket_width.unwrap_or(10),
            },
            workers: Workers::Cores(self.workers.clone()),
            sizes: sizes.map(|&max| BatchSizes { min: 1, max }).collect(),
            tasks_at_once: self.tasks_at_once,
            steps_at_once: self.steps_at_once,
            limits: self.limits,
        };
        // Threads have the rank of who starts them.
        priority::lower();
        let engine = Engine::start(cells, &options)?;
        // Whether it may was said before anything is measured.
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

#[cfg(test)]
mod tests {
    use super::*;

    use clap::{Parser, ValueEnum};

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn typed(line: &str) -> (Arguments, Workload) {
        let words = ["load"].into_iter().chain(line.split_whitespace());
        let arguments = Typed::try_parse_from(words).unwrap().arguments;
        let workload = arguments.workload().unwrap();
        (arguments, workload)
    }

    #[test]
    fn cells_are_named_in_their_order() {
        for network in Network::value_variants() {
            let words = match network {
                Network::Seq2seq => "--vocabulary 9",
                _ => "",
            };
            let name = network.name();
            let (arguments, workload) = typed(&format!("{name} --hidden 8 --input 4 {words}"));
            let mut cells = Cells::new();
            let engines = Engines::new(&arguments, &workload).unwrap();
            drop(engines.unfold(&mut cells).unwrap());
            let names: Vec<_> = cells.iter().map(|(_, cell)| cell.name()).collect();
            assert_eq!(names, network.cells());
        }
    }

    #[test]
    fn where_all_just_fits_the_largest_request_is_accepted() {
        for line in [
            "lstm --lengths 65",
            "gru --lengths 128",
            "treelstm --trees complete:64 --workers 1",
            "tree-child-sum --trees complete:32",
        ] {
            let (arguments, workload) = typed(&format!("{line} --input 256 --hidden 128"));
            let sizes = Sizes::of(&arguments, &workload);
            // When an engine is started, the system has given what is made before.
            let left = sizes.all() - sizes.weights - sizes.passing - sizes.pool;
            let enough = limits(4 * left, sizes.packed);

            let engines = Engines::new(&arguments, &workload).unwrap();
            let request = workload.draw(&mut fastrand::Rng::with_seed(1));
            let is_accepted = |limits: Limits| {
                let mut cells = Cells::new();
                let unfold = engines.unfold(&mut cells).unwrap();
                let options = EngineOptions {
                    workers: Workers::OneOver(1),
                    limits,
                    ..EngineOptions::default()
                };
                let engine = Engine::start(cells, &options).unwrap();
                engine.submit(unfold(&request)).is_ok()
            };
            // Values are all that is estimated; nodes are small beside these.
            let bytes = enough.bytes + 300 * 2 * workload.most_rows();
            assert!(is_accepted(Limits { bytes, ..enough }), "{line}");
            let bytes = enough.bytes / 4;
            assert!(!is_accepted(Limits { bytes, ..enough }), "{line}");
        }
    }

    #[test]
    fn cores_are_divided_evenly() {
        assert_eq!(divide(&[4, 5, 6], 1), [vec![4, 5, 6]]);
        assert_eq!(divide(&[4, 5, 6], 2), [vec![4], vec![5]]);
        assert_eq!(divide(&[4, 5, 6, 7], 2), [vec![4, 5], vec![6, 7]]);
    }
}
