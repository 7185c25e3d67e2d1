//! The arguments of `load`, and the settings of runs that follow from them.

use std::path::PathBuf;
use std::time::Duration;

use super::policy_option::{PolicyOption, policy};
use crate::in_process::{EngineSpec, ServedRequests, ServedShape, policies_for};
use crate::machines::Routing;
use crate::policy::ComparedPolicy;
use crate::report::{Context, EngineContext};
use crate::sweep::{BatchOption, Conditions, Grid};
#[cfg(feature = "wire")]
use crate::wire::{AxisOption, Contents, InputOptions, ServerAddress, ValueOption, WireModel};
use crate::workload::{Arrivals, LengthsOption, Network, TreesOption, Workload};
use gatestream_command::{Failure, seconds, threads};
use gatestream_serve::engine::EngineOptions;
use gatestream_serve::policy::BatchSteps;

/// Measures latency and throughput under load, by batching policy.
///
/// Serves random weights of the network's shape in this process and sends requests: at Poisson
/// times (--rates, or --load as fractions of the peak, which is measured first), at the times of a
/// file (--trace), or in a closed loop of users, each with one request in flight (--closed). Every
/// policy receives the same requests at the same times and has the machine alone. The policies
/// alternate within each round.
///
/// Latencies count from the time when a request was DUE, not from its submission. A server that
/// stalls for a second delays all requests of that second, and all are counted (no coordinated
/// omission). The generator sleeps between requests; its delays are part of the latencies and are
/// shown ("late"). Requests due during the warm-up are not counted. After a run, the command waits
/// for the remaining requests (--drain-timeout); a request without a response counts with the time
/// until then.
///
/// queued: from due to the start of the first cell; subm.: the part of it after submission, which
/// is the server's; comp.: from the start of the first cell to the response. answered/s: responses
/// per second in the window, from the first to the last. requests: number of latencies in all
/// rounds. unanswered: rejected because the queue was full, past their --deadline, failed, or not
/// finished; only the last kind is in the latencies. A step is a step of a whole batch; steps that
/// ran together (--steps-at-once) share the time equally.
///
/// With --sweep and several --batch or --bucket-width, each policy is measured with all of them at
/// every load. Its best settings are measured again with other requests, and reported: of the
/// settings that sustain the load (93 % answered, and no growing backlog) the one with the lowest
/// p90, otherwise the one with the highest throughput. All results follow below. Settings that do
/// not sustain a load are skipped at higher loads, except those with the highest peak of a policy.
///
/// Ctrl-C (or SIGTERM) ends the command after the current run or calibration; loads that all
/// policies have completed are reported and written. A second one ends it immediately.
///
/// With --json, prints one object per line; "kind" is "calibration", "peak", "run" or "skipped",
/// "best" marks the reported results.
#[derive(Debug, clap::Args)]
// Otherwise the error for `--seconds -5` names the dash, not the value. Lists need an option each.
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// Network to serve; without it, requests have the inputs that the metadata of the --server's
    /// model lists
    #[arg(value_enum)]
    #[cfg_attr(feature = "wire", arg(required_unless_present = "server"))]
    #[cfg_attr(not(feature = "wire"), arg(required = true))]
    pub network: Option<Network>,
    // A doc comment would replace the help text of the command.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub shape: ServedShape,
    /// Send the requests to a server of the Open Inference Protocol v2, over HTTP or gRPC, with TLS
    /// if the address begins with https or grpcs
    #[cfg(feature = "wire")]
    #[arg(long, value_name = "http[s]|grpc[s]://HOST:PORT", requires = "model",
        conflicts_with_all = ["hidden", "input", "layers", "precision", "threads", "policies",
            "workers", "batch", "bucket_width", "tasks_at_once", "steps_at_once", "batch_steps",
            "sweep", "calibrate", "machines"])]
    pub server: Option<ServerAddress>,
    /// The server's model
    #[cfg(feature = "wire")]
    #[arg(long, value_name = "NAME", requires = "server")]
    pub model: Option<String>,
    /// Requests are steps of this number of sequences in turn, whose states the server holds
    #[cfg(feature = "wire")]
    #[arg(long, value_name = "N", requires = "server",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub sequences: Option<u64>,
    /// Send requests as messages of streams of gRPC (ModelStreamInfer), one for each sequence
    #[cfg(feature = "wire")]
    #[arg(long, requires = "server")]
    pub streaming: bool,
    /// File with the token for the server
    #[cfg(feature = "wire")]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token: Option<PathBuf>,
    /// File with the certificates, as PEM, that sign the server's (default: those of the system)
    #[cfg(feature = "wire")]
    #[arg(long, value_name = "CERT", requires = "server")]
    pub ca: Option<PathBuf>,
    /// Without a network: the size of an open axis of an input, counted from 0: a number,
    /// LOW:HIGH for a size that is drawn for each request, or length, which --lengths draws for the
    /// request (default: 1 for the first of several open axes of an input, length for others)
    #[cfg(feature = "wire")]
    #[arg(
        long,
        value_name = "INPUT.AXIS=SIZE",
        requires = "server",
        conflicts_with = "network"
    )]
    pub axis: Vec<AxisOption>,
    /// Without a network: the values of an input: a number, LOW:HIGH for values that are drawn,
    /// length, or a text (default: floats from -0.5 to 0.5, integers and conditions 1)
    #[cfg(feature = "wire")]
    #[arg(
        long,
        value_name = "INPUT=VALUE",
        requires = "server",
        conflicts_with = "network",
        allow_hyphen_values = true
    )]
    pub value: Vec<ValueOption>,
    /// Simulate these numbers of machines instead, each with the workers of this one. The times of
    /// batches, and the peak of one machine, are measured here first. For chains and pairs; batches
    /// of one step, so without the policy ebatch. The network is left out
    #[arg(long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        conflicts_with_all = ["calibrate", "steps_at_once", "batch_steps"])]
    pub machines: Vec<u32>,
    /// The machine that gets a request
    #[arg(long, value_enum, requires = "machines", default_value_t)]
    pub routing: Routing,
    /// Sequence lengths: paper (mean 24, 99 % below 100, none above 330), paper:MAX, a number, or a
    /// CSV file with a header; for seq2seq two columns, as in FILE:source,target (default: paper)
    #[arg(long, value_name = "L|FILE[:COLUMN]")]
    pub lengths: Option<LengthsOption>,
    /// Trees: complete:LEAVES, or a file with one sentence per line, as the heads of its words:
    /// `[2,0,2]`; for treelstm they become phrases with one leaf per word (default: complete:16)
    #[arg(long, value_name = "TREES")]
    pub trees: Option<TreesOption>,
    /// Batching policies, or all that support the requests (default: all)
    #[arg(long, value_parser = policy(), value_name = "POLICY,…", value_delimiter = ',')]
    pub policies: Vec<PolicyOption>,
    /// Poisson arrivals: requests per second
    #[arg(long, value_name = "R,…", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = rate)]
    pub rates: Vec<f64>,
    /// Poisson arrivals: fractions of the best baseline's peak (default: 0.2,0.5,0.8)
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_hyphen_values = true,
        conflicts_with = "rates", value_parser = fraction)]
    pub load: Vec<f64>,
    /// Closed loop: number of users, each with one request in flight
    #[arg(long, value_name = "N", conflicts_with_all = ["rates", "load"],
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub closed: Option<u32>,
    /// File of arrival times in seconds, one per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "load", "closed"])]
    pub trace: Option<PathBuf>,
    /// Seconds of measurement at each load, in each round
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds of load before each measurement, not counted
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = not_negative)]
    pub warm_up: f64,
    /// Rounds at each load
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Maximum requests of a run, including the warm-up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Seed of arrival times and requests; each round derives its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Deadline of each request, after the time when it is due
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub deadline: Option<f64>,
    /// Seconds to wait after a run for requests without a response
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub drain_timeout: f64,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Number of workers, which share the cores; each has a copy of the weights
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Serve lstm, gru and seq2seq on these CUDA devices, which workers use in turn; 0 if the
    /// option has no value
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "DEVICE,…", value_delimiter = ',', num_args = 0..=1,
        default_missing_value = "0", require_equals = true)]
    #[cfg_attr(feature = "wire", arg(conflicts_with = "server"))]
    pub cuda: Vec<usize>,
    /// Maximum rows of a batch; several values with --sweep. One number applies to all cells; 64:32
    /// has one for each cell in order (encoder and decoder, tree leaf and node, child and node).
    /// calibrated: measure each cell first, as --calibrate does. Policies that group whole requests
    /// use the largest value as the group size
    #[arg(
        long,
        value_name = "N|N:N|calibrated,…",
        value_delimiter = ',',
        default_value = "64"
    )]
    pub batch: Vec<BatchOption>,
    /// Lengths in one bucket; several values with --sweep
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [10],
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub bucket_width: Vec<u32>,
    /// Maximum tasks of a worker at once (BatchMaker's MaxTasksToSubmit), without further steps
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().tasks_at_once as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tasks_at_once: u32,
    /// Maximum steps of chains and encoders in one batch, for all policies but ebatch and up to 16
    /// rows in total; 1: requests join and leave at every step
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().steps_at_once as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub steps_at_once: u32,
    /// Steps of a batch under the policy ebatch: by-load, by-load:MAX, or a number
    #[arg(long, value_name = "N", default_value_t)]
    pub batch_steps: BatchSteps,
    /// Measure all settings of each policy at every load, and report the best
    #[arg(long)]
    pub sweep: bool,
    /// Only measure the time of each cell for batches of 1, 2, 4 … rows up to the largest --batch
    /// (default: 64), and print the recommended maximum: the fewest rows within 3 % of the best
    /// rate
    #[arg(long, conflicts_with_all = ["lengths", "trees", "policies", "rates", "load", "closed",
        "trace", "seconds", "warm_up", "rounds", "requests", "deadline", "drain_timeout", "sweep",
        "bucket_width", "tasks_at_once", "steps_at_once", "batch_steps", "csv", "cdf", "chart",
        "cdf_chart"])]
    pub calibrate: bool,
    /// Concurrent requests for measuring the peak of a machine: with --load, and with a --sweep
    /// over several --rates (default: four times the largest batch)
    #[arg(long, value_name = "N", conflicts_with = "calibrate",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub saturation: Option<u32>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Write one line per policy, setting and load
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Write the distributions of latency, queueing and computing
    #[arg(long, value_name = "FILE.csv")]
    pub cdf: Option<PathBuf>,
    /// Draw latency against the rate of requests
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,
    /// Draw the distributions of queueing and computing at the first load (with --sweep: the
    /// lowest)
    #[arg(long, value_name = "FILE.svg")]
    pub cdf_chart: Option<PathBuf>,
}

/// The default of --load.
const DEFAULT_LOAD: [f64; 3] = [0.2, 0.5, 0.8];

fn number(text: &str, accepted: std::ops::RangeInclusive<f64>, words: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|number| accepted.contains(number));
    number.ok_or_else(|| format!("expected {words}"))
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1e-3..=1e7, "requests per second, 0.001 to 10^7")
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, 1e-3..=100.0, "a fraction of the peak, 0.001 to 100")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, 0.0..=3600.0, "seconds from 0 to 3600")
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, 1e-3..=3.6e6, "milliseconds, 0.001 to 3600000")
}

impl Arguments {
    /// The distribution of requests; reads files.
    pub fn workload(&self) -> Result<Workload, Failure> {
        let network = self.network();
        if network != Network::Seq2seq && self.shape.vocabulary.is_some() {
            return Err(Failure::usage(format!(
                "--vocabulary is for seq2seq; {} has no words",
                self.network_name()
            )));
        }
        if network.is_tree() {
            if self.shape.layers > 1 {
                return Err(Failure::usage(format!(
                    "--layers is for lstm, gru and seq2seq; {} has one cell",
                    network.name()
                )));
            }
            if self.lengths.is_some() {
                return Err(Failure::usage(format!(
                    "--lengths is for chains and pairs; {} takes --trees",
                    network.name()
                )));
            }
            return Ok(Workload::Trees(self.trees_option().read(network)?));
        }
        if self.trees.is_some() {
            return Err(Failure::usage(format!(
                "--trees is for treelstm and tree-child-sum; {} takes --lengths",
                self.network_name()
            )));
        }
        let pairs = network == Network::Seq2seq;
        let lengths = self.lengths_option().read(pairs)?;
        let workload = if pairs {
            Workload::Pairs
        } else {
            Workload::Chains
        };
        Ok(workload(lengths))
    }

    /// The network; a request to any model of a server has a length, as one of a chain.
    fn network(&self) -> Network {
        self.network.unwrap_or(Network::Lstm)
    }

    fn network_name(&self) -> &'static str {
        self.network.map_or("a model of any kind", Network::name)
    }

    fn lengths_option(&self) -> LengthsOption {
        self.lengths.clone().unwrap_or(LengthsOption::PAPER)
    }

    fn trees_option(&self) -> TreesOption {
        self.trees.clone().unwrap_or(TreesOption::Complete(16))
    }

    /// The policies of the command line, or all that can serve the workload.
    pub fn policies(&self, workload: &Workload) -> Result<Vec<ComparedPolicy>, Failure> {
        let possible = policies_for(ServedRequests {
            network: self.network(),
            is_identical: workload.is_identical(),
            is_simulated: !self.machines.is_empty(),
        });
        if self.policies.is_empty() || self.policies.contains(&PolicyOption::All) {
            return Ok(possible);
        }
        let mut policies = Vec::new();
        for option in &self.policies {
            let PolicyOption::One(policy) = option else {
                continue;
            };
            if !possible.contains(policy) {
                let possible: Vec<_> = possible.iter().map(|p| p.name()).collect();
                let hint = if *policy == ComparedPolicy::Ideal {
                    " (ideal needs identical requests: --lengths 24, --trees complete:16)"
                } else if !self.machines.is_empty() {
                    " (--machines simulates batches of one step)"
                } else {
                    ""
                };
                return Err(Failure::usage(format!(
                    "--policies {policy} does not serve such requests; {} do{hint}",
                    possible.join(", ")
                )));
            }
            if !policies.contains(policy) {
                policies.push(*policy);
            }
        }
        Ok(policies)
    }

    /// The settings that --sweep tries, or the only ones.
    pub fn grid(&self) -> Result<Grid, Failure> {
        let grid = Grid::new(&self.batch, &self.bucket_width, self.network())?;
        // Calibration uses the largest size only.
        if grid.has_choices() && !self.sweep && !self.calibrate {
            return Err(Failure::usage(
                "several values of --batch or --bucket-width need --sweep, which finds the best at \
                 every load",
            ));
        }
        Ok(grid)
    }

    /// Whether loads are fractions of a peak.
    pub fn is_by_load(&self) -> bool {
        self.trace.is_none() && self.rates.is_empty() && self.closed.is_none()
    }

    /// Whether peaks are measured first: loads are fractions of one, and a sweep over several rates
    /// always measures the candidates with the highest peaks.
    pub fn measures_peaks(&self) -> Result<bool, Failure> {
        let measures = self.is_by_load() || self.sweep && self.rates.len() > 1;
        match self.saturation {
            Some(_) if !measures => Err(Failure::usage(
                "--saturation needs --load or a --sweep over several --rates: only these measure \
                 peaks",
            )),
            _ => Ok(measures),
        }
    }

    /// Number of points to measure.
    pub fn point_count(&self) -> usize {
        if self.is_by_load() {
            self.load().len()
        } else {
            self.rates.len().max(1)
        }
    }

    /// The closed loop that measures peaks of this number of machines.
    pub fn saturation(&self, grid: &Grid, machines: usize) -> Arrivals {
        let users = self.saturation.map(|users| users as usize);
        Arrivals::Closed {
            outstanding: users.unwrap_or(4 * grid.max_rows()) * machines,
        }
    }

    fn load(&self) -> &[f64] {
        if self.load.is_empty() {
            &DEFAULT_LOAD
        } else {
            &self.load
        }
    }

    /// The points of --load, for a peak in requests per second.
    pub fn loads_of(&self, peak: f64) -> Vec<Arrivals> {
        let rates = self.load().iter().map(|load| load * peak);
        rates.map(|rate| Arrivals::Poisson { rate }).collect()
    }

    /// The points of --closed or --rates.
    pub fn points(&self) -> Vec<Arrivals> {
        if let Some(users) = self.closed {
            let outstanding = users as usize;
            return vec![Arrivals::Closed { outstanding }];
        }
        let rates = self.rates.iter();
        rates.map(|&rate| Arrivals::Poisson { rate }).collect()
    }

    /// The network and the options of all engines.
    pub fn engine_spec(&self) -> EngineSpec {
        EngineSpec {
            network: self.network(),
            shape: self.shape.clone(),
            seed: self.seed,
            threads: threads(self.threads),
            workers: self.workers as usize,
            tasks_at_once: self.tasks_at_once as usize,
            steps_at_once: self.steps_at_once as usize,
            batch_steps: self.batch_steps,
            cuda: self.cuda_devices(),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_devices(&self) -> Vec<usize> {
        self.cuda.clone()
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_devices(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Checks whether the requests can be simulated, and the results written.
    pub fn check_machines(&self) -> Result<(), Failure> {
        if !self.machines.is_empty() && self.network().is_tree() {
            return Err(Failure::usage(
                "--machines is for lstm, gru and seq2seq; trees are not simulated",
            ));
        }
        if self.machines.len() > 1 && self.writes_files() {
            return Err(Failure::usage(
                "files have the results of one number of --machines; give one, or take --json",
            ));
        }
        Ok(())
    }

    /// The server that gets the requests, instead of engines in this process.
    ///
    /// # Errors
    /// The file of the token cannot be read.
    #[cfg(feature = "wire")]
    pub fn wire_model(&self) -> Result<Option<WireModel>, Failure> {
        let (Some(server), Some(name)) = (&self.server, &self.model) else {
            return Ok(None);
        };
        if self.network == Some(Network::Treelstm) {
            return Err(Failure::usage(
                "a server takes trees of words: choose tree-child-sum instead of treelstm",
            ));
        }
        if self.streaming && !server.is_grpc() {
            return Err(Failure::usage(format!(
                "--streaming needs grpc://; {server} has no streams"
            )));
        }
        if !server.is_secure() && self.ca.is_some() {
            return Err(Failure::usage(format!(
                "--ca needs https:// or grpcs://; {server} has no TLS"
            )));
        }
        let read = |path: &PathBuf| {
            let bytes = std::fs::read(path);
            bytes.map_err(|why| Failure::from(why).of(path))
        };
        let token = self.token.as_ref().map(read).transpose()?;
        let token = token.map(|token| String::from_utf8_lossy(&token).trim().to_owned());
        let contents = match self.network {
            Some(_) => Contents::Network {
                symbols: self.shape.vocabulary() as usize,
            },
            None => Contents::Any(InputOptions {
                axes: self.axis.clone(),
                values: self.value.clone(),
                longest: self.workload()?.max_rows(),
            }),
        };
        Ok(Some(WireModel {
            server: server.clone(),
            name: name.clone(),
            token,
            authorities: self.ca.as_ref().map(read).transpose()?,
            contents,
            sequences: self.sequences,
            is_streaming: self.streaming,
        }))
    }

    /// The conditions of all runs.
    pub fn conditions(&self, workload: Workload) -> Conditions {
        Conditions {
            workload,
            seed: self.seed,
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
            requests: self.requests.unwrap_or(u64::MAX),
            deadline: self.deadline.map(|ms| Duration::from_secs_f64(ms / 1e3)),
            drain_timeout: Duration::from_secs_f64(self.drain_timeout),
            rounds: self.rounds as usize,
        }
    }

    /// The columns that are equal in all rows.
    pub fn context(&self) -> Context {
        let requests = if self.network().is_tree() {
            self.trees_option().to_string()
        } else {
            self.lengths_option().to_string()
        };
        Context {
            network: self.network_name().into(),
            engines: (!self.is_on_server()).then(|| EngineContext {
                input: self.shape.input as usize,
                hidden: self.shape.hidden as usize,
                layers: self.shape.layers as usize,
                precision: self.shape.precision.to_string(),
                workers: self.workers as usize,
                threads: threads(self.threads),
                tasks_at_once: self.tasks_at_once as usize,
                // Simulated machines take one step after the other.
                steps_at_once: if self.machines.is_empty() {
                    self.steps_at_once as usize
                } else {
                    1
                },
                batch_steps: self.batch_steps.to_string(),
                cuda: self.cuda_devices(),
            }),
            machines: None,
            stretch: None,
            requests,
            seed: self.seed,
        }
    }

    fn is_on_server(&self) -> bool {
        #[cfg(feature = "wire")]
        return self.server.is_some();
        #[cfg(not(feature = "wire"))]
        false
    }
}
