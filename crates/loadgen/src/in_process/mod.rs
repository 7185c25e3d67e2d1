//! Targets in this process: an engine of `gatestream-serve` for each candidate, all with one set of
//! random weights.
//!
//! The cost of a request does not depend on its values. So values are slices of one pool of random
//! numbers, at an offset that follows from the seed of the request: equal for every candidate, and
//! cheap for a generator that shares the machine.

mod memory;
mod served;
mod weights;

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::candidate::{Candidate, Launch};
use crate::drive::{WallClock, priority};
use crate::policy::{ComparedPolicy, Groups};
use crate::workload::{Network, Workload};
use gatestream::execute::Backend;
use gatestream::machine::Topology;
use gatestream::model::Precision;
use gatestream_command::{Failure, afford, available_memory};
use gatestream_serve::cell_graph::{BatchSizes, Cells};
use gatestream_serve::engine::{Calibration, Engine, EngineOptions, Workers, calibrate};
use gatestream_serve::networks::NetworkError;
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use memory::{Memory, limits};
use served::Served;
use weights::{Unfold, Weights};

/// What decides which policies can serve requests.
#[derive(Clone, Copy, Debug)]
pub struct ServedRequests {
    /// The network that serves them.
    pub network: Network,
    /// Whether all have one shape.
    pub is_identical: bool,
    /// Whether machines are simulated, whose batches have one step.
    pub is_simulated: bool,
}

/// The policies that can serve the requests.
pub fn policies_for(requests: ServedRequests) -> Vec<ComparedPolicy> {
    let is_tree = requests.network.is_tree();
    let serves = |policy: &ComparedPolicy| match policy {
        ComparedPolicy::Engine(PolicyKind::Cellular | PolicyKind::Shortest)
        | ComparedPolicy::Merge => true,
        // With batches of one step, as those of trees, ebatch is cellular.
        ComparedPolicy::Engine(PolicyKind::EBatch) => !is_tree && !requests.is_simulated,
        ComparedPolicy::Padding | ComparedPolicy::Bucketing => !is_tree,
        ComparedPolicy::Ideal => requests.is_identical,
    };
    ComparedPolicy::ALL.into_iter().filter(serves).collect()
}

/// Sizes and precision of the served network.
#[derive(Clone, Debug, clap::Args)]
pub struct ServedShape {
    /// Hidden size
    #[arg(long, value_name = "H", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub hidden: u32,
    /// Input size: of embedded words, where words are embedded
    #[arg(long, value_name = "E", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub input: u32,
    /// Layers of lstm, gru and seq2seq
    #[arg(long, value_name = "L", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub layers: u32,
    /// Vocabulary of seq2seq (default: 30000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub vocabulary: Option<u32>,
    /// Precision of weights and products: f32, bf16, int8
    #[arg(long, value_name = "P", default_value_t)]
    pub precision: Precision,
}

impl ServedShape {
    /// Number of words, for networks that have words.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary.unwrap_or(30_000)
    }
}

/// The network and the part of an engine's options that all candidates share.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// The served network.
    pub network: Network,
    /// Its sizes.
    pub shape: ServedShape,
    /// Seed of weights and values.
    pub seed: u64,
    /// Cores of all workers.
    pub threads: usize,
    /// Number of workers.
    pub workers: usize,
    /// See [`EngineOptions::tasks_at_once`].
    pub tasks_at_once: usize,
    /// See [`EngineOptions::steps_at_once`].
    pub steps_at_once: usize,
    /// See [`EngineOptions::batch_steps`].
    pub batch_steps: BatchSteps,
    /// Numbers of CUDA devices, which workers use in turn; the cores without any.
    pub cuda: Vec<usize>,
}

impl EngineSpec {
    /// Opens the devices.
    fn backends(&self) -> Result<Vec<Arc<dyn Backend>>, Failure> {
        if !self.cuda.is_empty() && self.network.is_tree() {
            return Err(Failure::usage(
                "--cuda serves lstm, gru and seq2seq; trees run on the CPU",
            ));
        }
        self.cuda.iter().map(|device| open(*device)).collect()
    }
}

#[cfg(feature = "cuda")]
fn open(device: usize) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(gatestream_cuda::Cuda::open(device)?))
}

#[cfg(not(feature = "cuda"))]
fn open(device: usize) -> Result<Arc<dyn Backend>, Failure> {
    Err(Failure::new(format!(
        "CUDA device {device}: this program was built without the feature cuda"
    )))
}

/// Starts engines.
pub struct Engines {
    weights: Weights,
    backends: Vec<Arc<dyn Backend>>,
    input: usize,
    /// Cores of each worker.
    workers: Vec<Vec<usize>>,
    /// Options of all engines; limits do not depend on the memory that earlier engines used.
    options: EngineOptions,
    pool: Arc<[f32]>,
}

impl Engines {
    /// Makes random weights, and values for the requests of `workload`.
    ///
    /// # Errors
    /// Weights and values do not fit into memory; the network does not have the precision; there
    /// are fewer cores than workers; a CUDA device cannot be opened.
    pub fn new(spec: &EngineSpec, workload: &Workload) -> Result<Engines, Failure> {
        let EngineSpec {
            threads, workers, ..
        } = *spec;
        if workers > threads {
            return Err(Failure::usage(format!(
                "--workers {workers} on {threads} core(s): each worker needs a core; ask for fewer"
            )));
        }
        let backends = spec.backends()?;
        let memory = Memory::of(spec, workload);
        afford(
            memory.total().checked_mul(4),
            "--hidden, --input, --vocabulary, --workers, --lengths and --trees",
            "weights and the values of requests",
        )?;
        let weights = Weights::random(spec.network, &spec.shape, spec.seed)?;
        let mut random = fastrand::Rng::with_seed(spec.seed);
        let pool = (0..memory.pool).map(|_| random.f32() - 0.5).collect();
        let workers = divide(&Topology::detect().cpus_for_team(threads), workers);
        let options = EngineOptions {
            workers: Workers::Cores(workers.clone()),
            tasks_at_once: spec.tasks_at_once,
            steps_at_once: spec.steps_at_once,
            batch_steps: spec.batch_steps,
            limits: limits(available_memory(), memory.packed),
            ..EngineOptions::default()
        };
        Ok(Engines {
            weights,
            backends,
            input: spec.shape.input as usize,
            workers,
            options,
            pool,
        })
    }

    fn unfold(&self, cells: &mut Cells) -> Result<Unfold, NetworkError> {
        self.weights
            .unfold(cells, &self.backends, &self.pool, self.input)
    }
}

impl Launch for Engines {
    type Target = Served<Unfold>;
    type Clock = WallClock;

    fn launch(&self, candidate: &Candidate) -> Result<(Served<Unfold>, WallClock), Failure> {
        let policy = candidate.policy.unwrap_or_default();
        let sizes = candidate.batch.iter().flat_map(|batch| batch.cells());
        let sizes: Vec<_> = sizes.map(|&max| BatchSizes { min: 1, max }).collect();
        let capacity = sizes.iter().map(|sizes| sizes.max).max().unwrap_or(1);
        let options = EngineOptions {
            sizes,
            ..self.options.clone()
        };
        let groups = Groups {
            requests: capacity,
            width: candidate.bucket_width.unwrap_or(Groups::WIDTH),
        };
        let mut cells = Cells::new();
        let unfold = self.unfold(&mut cells)?;
        // Threads inherit the priority of the thread that starts them.
        priority::lower();
        let build = |workers| policy.build(workers, groups, options.batch_steps);
        let engine = Engine::with_policy(cells, &options, build)?;
        priority::raise();
        Ok((
            Served::new(engine, unfold, policy, capacity),
            WallClock::new(),
        ))
    }

    /// Uses the cores of the first worker.
    fn calibrate(&self, rows: &[usize]) -> Result<Vec<Calibration>, Failure> {
        let mut cells = Cells::new();
        drop(self.unfold(&mut cells)?);
        // On another thread, because that thread stays pinned.
        let cores = &self.workers[0];
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| calibrate(&cells, cores, rows));
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        Ok(found?)
    }
}

/// Divides cores evenly among workers; a remainder is not used.
fn divide(cores: &[usize], workers: usize) -> Vec<Vec<usize>> {
    let each = cores.len() / workers;
    (cores.chunks_exact(each).take(workers))
        .map(<[usize]>::to_vec)
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use crate::workload::{Lengths, RequestSpec, Tree};
    use clap::ValueEnum;
    use gatestream_serve::scheduler::Limits;

    pub fn shape(input: u32, hidden: u32) -> ServedShape {
        ServedShape {
            hidden,
            input,
            layers: 1,
            vocabulary: Some(9),
            precision: Precision::F32,
        }
    }

    fn spec(network: Network, input: u32, hidden: u32) -> EngineSpec {
        let options = EngineOptions::default();
        EngineSpec {
            network,
            shape: shape(input, hidden),
            seed: 1,
            threads: 1,
            workers: 1,
            tasks_at_once: options.tasks_at_once,
            steps_at_once: options.steps_at_once,
            batch_steps: options.batch_steps,
            cuda: Vec::new(),
        }
    }

    /// Chains of `rows` steps, or complete trees of `rows` leaves.
    fn workload(network: Network, rows: usize) -> Workload {
        match network {
            Network::Lstm | Network::Gru => Workload::Chains(Lengths::Fixed(rows)),
            Network::Seq2seq => Workload::Pairs(Lengths::Fixed(rows)),
            _ => Workload::Trees([Tree::complete(rows, network).unwrap()].into()),
        }
    }

    #[test]
    fn cells_are_named_in_their_order() {
        for &network in Network::value_variants() {
            let mut cells = Cells::new();
            let engines = Engines::new(&spec(network, 4, 8), &workload(network, 4)).unwrap();
            drop(engines.unfold(&mut cells).unwrap());
            let names: Vec<_> = cells.iter().map(|(_, cell)| cell.name()).collect();
            assert_eq!(names, network.cells());
        }
    }

    #[test]
    fn the_largest_request_fits_into_the_estimate() {
        for (network, rows) in [
            (Network::Lstm, 65),
            (Network::Gru, 128),
            (Network::Treelstm, 64),
            (Network::TreeChildSum, 32),
        ] {
            let (spec, workload) = (spec(network, 256, 128), workload(network, rows));
            let memory = Memory::of(&spec, &workload);
            // These are allocated, or freed again, before an engine starts.
            let left = memory.total() - memory.weights - memory.temporary - memory.pool;
            let enough = limits(4 * left, memory.packed);

            let engines = Engines::new(&spec, &workload).unwrap();
            let request = workload.draw(&mut fastrand::Rng::with_seed(1));
            let is_accepted = |bytes: usize| {
                let mut cells = Cells::new();
                let unfold = engines.unfold(&mut cells).unwrap();
                let options = EngineOptions {
                    workers: Workers::OneOver(1),
                    limits: Limits { bytes, ..enough },
                    ..EngineOptions::default()
                };
                let engine = Engine::start(cells, &options).unwrap();
                engine.submit(unfold(&request)).is_ok()
            };
            // The estimate covers values only; nodes are small beside them.
            let nodes = 300 * 2 * workload.max_rows();
            assert!(is_accepted(enough.bytes + nodes), "{network:?}");
            assert!(!is_accepted(enough.bytes / 4), "{network:?}");
        }
    }

    /// Answers of some requests, as bits; every third request is cancelled.
    fn answers(engines: &Engines, requests: &[RequestSpec], case: &Case) -> Vec<Vec<u32>> {
        let options = EngineOptions {
            workers: case.workers.clone(),
            tasks_at_once: 2,
            ..EngineOptions::default()
        };
        let groups = Groups {
            requests: 7,
            width: 3,
        };
        let mut cells = Cells::new();
        let unfold = engines.unfold(&mut cells).unwrap();
        let build = |workers| case.policy.build(workers, groups, options.batch_steps);
        let engine = Engine::with_policy(cells, &options, build).unwrap();
        let mut tickets = engine.submit_all(requests.iter().map(unfold)).unwrap();
        let mut number = 0;
        tickets.retain(|_| {
            number += 1;
            number % 3 > 0
        });
        let values = tickets
            .into_iter()
            .map(|ticket| ticket.wait().unwrap().values);
        let answers = values.map(|values| values.iter().map(|v| v.to_bits()).collect());
        let answers = answers.collect();
        assert_eq!(engine.drain(), 0);
        let counts = engine.stats().counts;
        assert_eq!(
            (counts.submitted, counts.live()),
            (requests.len() as u64, 0)
        );
        answers
    }

    /// How requests are served.
    #[derive(Clone, Debug, PartialEq)]
    struct Case {
        policy: ComparedPolicy,
        workers: Workers,
    }

    /// The oracle is cellular batching on one worker, which the tests of the engine compare with
    /// each request computed alone.
    #[test]
    fn every_policy_gives_the_same_bits() {
        let lengths = Lengths::paper(12).unwrap();
        let trees = (1..7).map(|leaves| Tree::complete(leaves, Network::Treelstm).unwrap());
        let workers = [
            Workers::OneOver(1),
            Workers::OneOver(2),
            Workers::Cores(vec![vec![0], vec![1]]),
        ];
        let oracle = Case {
            policy: ComparedPolicy::CELLULAR,
            workers: workers[0].clone(),
        };
        let cases = ComparedPolicy::ALL.into_iter().flat_map(|policy| {
            let of = |workers: &Workers| Case {
                policy,
                workers: workers.clone(),
            };
            workers.each_ref().map(of)
        });
        let cases: Vec<Case> = cases.filter(|case| *case != oracle).collect();
        let workloads = [
            (Network::Lstm, Workload::Chains(lengths.clone())),
            (Network::Seq2seq, Workload::Pairs(lengths)),
            (Network::Treelstm, Workload::Trees(trees.collect())),
        ];
        for precision in [Precision::F32, Precision::Int8] {
            for (network, workload) in &workloads {
                let mut spec = spec(*network, 4, 8);
                spec.shape.precision = precision;
                let engines = Engines::new(&spec, workload).unwrap();
                let mut rng = fastrand::Rng::with_seed(1);
                let requests: Vec<_> = (0..100).map(|_| workload.draw(&mut rng)).collect();
                let expected = answers(&engines, &requests, &oracle);
                assert!(expected.iter().all(|values| !values.is_empty()));
                for case in &cases {
                    let found = answers(&engines, &requests, case);
                    assert_eq!(found, expected, "{case:?}, {network:?}, {precision}");
                }
            }
        }
    }

    #[test]
    fn policies_serve_what_they_can() {
        let names = |network, is_identical, is_simulated| {
            let policies = policies_for(ServedRequests {
                network,
                is_identical,
                is_simulated,
            });
            let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
            names.join(" ")
        };
        assert_eq!(
            names(Network::Lstm, false, false),
            "cellular shortest ebatch padding bucketing merge"
        );
        assert_eq!(
            names(Network::Lstm, false, true),
            "cellular shortest padding bucketing merge"
        );
        assert_eq!(
            names(Network::Treelstm, false, false),
            "cellular shortest merge"
        );
        assert_eq!(
            names(Network::TreeChildSum, true, false),
            "cellular shortest merge ideal"
        );
        let all = ComparedPolicy::ALL.map(ComparedPolicy::name).join(" ");
        assert_eq!(names(Network::Seq2seq, true, false), all);
    }

    #[test]
    fn cores_are_divided_evenly() {
        assert_eq!(divide(&[4, 5, 6], 1), [vec![4, 5, 6]]);
        assert_eq!(divide(&[4, 5, 6], 2), [vec![4], vec![5]]);
        assert_eq!(divide(&[4, 5, 6, 7], 2), [vec![4, 5], vec![6, 7]]);
    }
}
