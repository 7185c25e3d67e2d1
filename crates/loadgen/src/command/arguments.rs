//! The arguments of `load`, and what follows from them before any run.

use std::path::PathBuf;
use std::time::Duration;

use crate::in_process::{EngineSpec, ServedShape, policies_for};
use crate::report::Context;
use crate::sweep::{BatchOption, Conditions, Grid};
use crate::workload::{Arrivals, LengthsOption, Network, TreesOption, Workload};
use cellstream_command::{Failure, seconds, threads};
use cellstream_serve::engine::EngineOptions;
use cellstream_serve::policy::PolicyKind;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Measures latency and throughput under load, by batching policy.
///
/// Serves random weights of the network's shape in this process and sends requests: at Poisson
/// times (--rates, or --load as fractions of the peak, which is measured first), at the times of a
/// file (--trace), or from a number of users, each of whom waits for an answer before the next
/// request (--closed). Every policy gets the same requests at the same times and has the machine
/// alone; rounds take the policies in turn.
///
/// Latencies count from the time when a request was DUE, not from its submission. A server that
/// stalls for a second delays all requests of that second, and all are counted (no coordinated
/// omission). The generator sleeps between requests; its delays are part of the latencies and are
/// shown ("late"). Requests due during the warm-up are not counted. All later requests are waited
/// for (--patience); one without an answer then counts with the time that it was waited for.
///
/// queued: from due to the start of the first cell; subm.: the part of it after submission, which
/// is the server's; comp.: from there to the answer. answered/s: answers in the window per second,
/// from the first to the last of them. requests: number of latencies in all rounds. unanswered:
/// refused because the queue was full, past their --deadline, failed, or not finished; only the
/// last kind is in the latencies. A step is one of a whole batch of cells; steps that ran together
/// (--steps-at-once) share the time equally.
///
/// With --sweep and several --batch or --bucket-width, each policy is measured with all of them at
/// every load. Its best settings there are measured again, with other requests, and reported: of
/// the settings that sustain the load (93 % answered, and no growing backlog) the one with the
/// lowest p90, otherwise the one with the highest throughput. All results are shown below. Settings
/// that do not sustain a load are skipped at higher ones, except those with the highest peak of a
/// policy.
///
/// Ctrl-C (or a signal to terminate) ends the command after the current run or calibration: loads
/// that all policies have completed are reported and written. A second one ends it at once.
///
/// With --json, prints one object a line; "kind" is "calibration", "peak", "run" or "skipped",
/// "best" marks the results to read.
#[derive(Debug, clap::Args)]
// Else what is refused about `--seconds -5` is the dash; about a list, too, which needs more than that.
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// What is served
    #[arg(value_enum)]
    pub network: Network,
    // A doc comment would replace the help text of the command.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub shape: ServedShape,
    /// Lengths: paper (mean 24, 99 % below 100, none above 330), paper:LONGEST, a number, or a CSV file whose first
    /// line names its columns; for seq2seq two columns, as in FILE:source,target (default: paper)
    #[arg(long, value_name = "L|FILE[:COLUMN]")]
    pub lengths: Option<LengthsOption>,
    /// Trees: complete:LEAVES, or a file with the head of each word of a sentence in each line, as
    /// in `[2,0,2]`; treelstm takes phrases made of them, a leaf for each word (default:
    /// complete:16)
    #[arg(long, value_name = "TREES")]
    pub trees: Option<TreesOption>,
    /// Policies (default: all that serve such requests)
    #[arg(long, value_parser = policy(), value_name = "POLICY,…", value_delimiter = ',')]
    pub policies: Vec<PolicyKind>,
    /// Poisson arrivals: requests a second
    #[arg(long, value_name = "R,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = rate)]
    pub rates: Vec<f64>,
    /// Poisson arrivals: fractions of the best baseline's peak (default: 0.2,0.5,0.8)
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_hyphen_values = true, conflicts_with = "rates",
        value_parser = fraction)]
    pub load: Vec<f64>,
    /// Users, each of whom waits for an answer before asking again
    #[arg(long, value_name = "N", conflicts_with_all = ["rates", "load"],
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub closed: Option<u32>,
    /// A file of times of arrival in seconds, one a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "load", "closed"])]
    pub trace: Option<PathBuf>,
    /// Measure this long at each point, in each round
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,
    /// Before that, so long
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = not_negative)]
    pub warm_up: f64,
    /// Rounds at each point
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Requests of a run at most, those of the warm-up included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Of arrivals and requests; each round has its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Requests end without an answer this long after they were due
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub deadline: Option<f64>,
    /// After a run, wait so long for what has no answer yet
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub patience: f64,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Workers, among whom the cores are divided; each has its own weights
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Rows of a batch at most; several to --sweep. One number is of every cell. 64:32 is of each, in their order:
    /// encoder and decoder, tree leaf and tree node, tree child and tree node. calibrated: each cell is timed first, as
    /// --calibrate does, and gets the rows that are found. Policies that group whole requests have groups of the
    /// greatest
    #[arg(
        long,
        value_name = "N|N:N|calibrated,…",
        value_delimiter = ',',
        default_value = "64"
    )]
    pub batch: Vec<BatchOption>,
    /// Lengths in a bucket; several to --sweep
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [10],
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub bucket_width: Vec<u32>,
    /// Tasks that a worker gets at once at most (BatchMaker's MaxTasksToSubmit), each with further steps of its rows
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().tasks_at_once as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tasks_at_once: u32,
    /// Steps that chains and encoders take in one batch at most, under every policy, while all together have no more
    /// than 16 rows; 1: requests join and leave at every step
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().steps_at_once as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub steps_at_once: u32,
    /// Try all settings of each policy at every load, and report its best there
    #[arg(long)]
    pub sweep: bool,
    /// Only measure how long each cell takes for batches of 1, 2, 4 … rows up to the largest --batch (64 if it lists
    /// none), and say how many to take at most: the fewest within 3 % of the best rate
    #[arg(long, conflicts_with_all = ["lengths", "trees", "policies", "rates", "load", "closed", "trace", "seconds", "warm_up",
        "rounds", "requests", "deadline", "patience", "bucket_width", "tasks_at_once", "steps_at_once", "sweep", "csv", "cdf",
        "chart", "cdf_chart"])]
    pub calibrate: bool,
    /// Users who saturate the server where its peak is measured: with --load, and with a --sweep over several --rates
    /// (default: four times the largest batch)
    #[arg(long, value_name = "N", conflicts_with = "calibrate",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub saturation: Option<u32>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Write a line for each policy, setting and point
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Write the distributions of latency, queueing and computing
    #[arg(long, value_name = "FILE.csv")]
    pub cdf: Option<PathBuf>,
    /// Draw latency against throughput
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,
    /// Draw the distributions of queueing and computing at the first point, with a sweep at the lowest
    #[arg(long, value_name = "FILE.svg")]
    pub cdf_chart: Option<PathBuf>,
}

/// Fractions of the peak if none are given.
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
        if self.network != Network::Seq2seq && self.shape.vocabulary.is_some() {
            return Err(Failure::usage(format!(
                "--vocabulary is for seq2seq; {} has no words",
                self.network.name()
            )));
        }
        if self.network.is_tree() {
            if self.lengths.is_some() {
                return Err(Failure::usage(format!(
                    "--lengths is for chains and pairs; {} takes --trees",
                    self.network.name()
                )));
            }
            return Ok(Workload::Trees(self.trees_option().read(self.network)?));
        }
        if self.trees.is_some() {
            return Err(Failure::usage(format!(
                "--trees is for treelstm and tree-child-sum; {} takes --lengths",
                self.network.name()
            )));
        }
        let pairs = self.network == Network::Seq2seq;
        let lengths = self.lengths_option().read(pairs)?;
        Ok(match pairs {
            true => Workload::Pairs(lengths),
            false => Workload::Chains(lengths),
        })
    }

    fn lengths_option(&self) -> LengthsOption {
        self.lengths.clone().unwrap_or(LengthsOption::PAPER)
    }

    fn trees_option(&self) -> TreesOption {
        self.trees.clone().unwrap_or(TreesOption::Complete(16))
    }

    /// The policies that were typed, or all that can serve the workload.
    pub fn policies(&self, workload: &Workload) -> Result<Vec<PolicyKind>, Failure> {
        let possible = policies_for(self.network, workload.is_identical());
        if self.policies.is_empty() {
            return Ok(possible);
        }
        for policy in &self.policies {
            if !possible.contains(policy) {
                let possible: Vec<_> = possible.iter().map(|p| p.name()).collect();
                let hint = match policy {
                    PolicyKind::Ideal => {
                        " (ideal needs identical requests: --lengths 24, --trees complete:16)"
                    }
                    _ => "",
                };
                return Err(Failure::usage(format!(
                    "--policies {policy} does not serve such requests; {} do{hint}",
                    possible.join(", ")
                )));
            }
        }
        let mut policies = Vec::new();
        for &policy in &self.policies {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        Ok(policies)
    }

    /// The settings that --sweep tries, or the only ones.
    pub fn grid(&self) -> Result<Grid, Failure> {
        let grid = Grid::new(&self.batch, &self.bucket_width, self.network)?;
        // Calibration uses the largest size only.
        if grid.has_choices() && !self.sweep && !self.calibrate {
            return Err(Failure::usage(
                "several --batch or --bucket-width need --sweep, which finds the best of them at every \
                 load",
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
                "--saturation is of peaks, which are measured for --load and for a --sweep over several \
                 --rates",
            )),
            _ => Ok(measures),
        }
    }

    /// Number of points that are to be measured.
    pub fn point_count(&self) -> usize {
        match self.is_by_load() {
            true => self.load().len(),
            false => self.rates.len().max(1),
        }
    }

    /// The closed loop by which peaks are measured.
    pub fn saturation(&self, grid: &Grid) -> Arrivals {
        let users = self.saturation.map(|users| users as usize);
        Arrivals::Closed {
            outstanding: users.unwrap_or(4 * grid.max_rows()),
        }
    }

    fn load(&self) -> &[f64] {
        match self.load.is_empty() {
            true => &DEFAULT_LOAD,
            false => &self.load,
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
            network: self.network,
            shape: self.shape.clone(),
            seed: self.seed,
            threads: threads(self.threads),
            workers: self.workers as usize,
            tasks_at_once: self.tasks_at_once as usize,
            steps_at_once: self.steps_at_once as usize,
        }
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
            patience: Duration::from_secs_f64(self.patience),
            rounds: self.rounds as usize,
        }
    }

    /// What all rows have in common.
    pub fn context(&self) -> Context {
        let requests = match self.network.is_tree() {
            true => self.trees_option().to_string(),
            false => self.lengths_option().to_string(),
        };
        Context {
            network: self.network.name().into(),
            input: self.shape.input as usize,
            hidden: self.shape.hidden as usize,
            precision: self.shape.precision.to_string(),
            requests,
            workers: self.workers as usize,
            threads: threads(self.threads),
            tasks_at_once: self.tasks_at_once as usize,
            steps_at_once: self.steps_at_once as usize,
            seed: self.seed,
        }
    }
}

/// Reads a policy by its name.
fn policy() -> impl TypedValueParser<Value = PolicyKind> {
    let possible = PolicyKind::ALL.map(|policy| {
        let help = match policy {
            PolicyKind::Cellular => "Requests join and leave at every batch of cells",
            PolicyKind::Shortest => "As cellular, those with the fewest cells left first",
            PolicyKind::Padding => "Whole requests, padded to the longest",
            PolicyKind::Bucketing => "Whole requests of similar length, buckets in turn",
            PolicyKind::Merge => "Whole graphs, merged level by level",
            PolicyKind::Ideal => "Full batches of requests known to be identical",
        };
        PossibleValue::new(policy.name()).help(help)
    });
    PossibleValuesParser::new(possible).try_map(|name| name.parse::<PolicyKind>())
}
