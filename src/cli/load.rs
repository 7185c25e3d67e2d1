//! `cellstream load`: requests as users send them, to one policy after the other, and how long they wait.
//!
//! The server is behind two small traits ([`target::Launch`], [`target::Target`]); all else is here: what requests ask
//! for ([`request`], [`lengths`], [`trees`]), when they are due ([`arrivals`]), the loop that submits them ([`drive`]),
//! what is counted ([`record`]), who runs when ([`compare`]), each policy's settings ([`sweep`]), and what is said and
//! drawn ([`report`], [`chart`]).

mod arrivals;
mod chart;
mod clock;
mod compare;
mod drive;
mod lengths;
mod record;
mod report;
mod request;
#[cfg(test)]
mod simulated;
mod sweep;
mod target;
mod trees;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use self::arrivals::{Arrivals, read_trace};
use self::compare::{Conditions, Contender, Measured, Next, compare, peak_of_baselines};
use self::lengths::LengthsOption;
use self::report::{Context, Row};
use self::request::{Network, Workload};
use self::sweep::{Goal, Grid, sweep};
use self::target::{Launch, Policy};
use self::trees::TreesOption;
use super::output::keep_originals;
use super::{Failure, seconds};

/// How long requests wait under load, by batching policy.
///
/// Serves random weights of the network's shape in this process and sends it requests: at Poisson times (--rates, or
/// --load as fractions of the peak, which is measured first), at those of a file (--trace), or as so many users who each
/// wait for an answer before they ask again (--closed). Every policy gets the same requests at the same times, each on
/// the machine alone, in rounds that take them in turn.
///
/// Latencies count from when a request was DUE, not from when it could be submitted: a server that stands still for a
/// second delays all who come in that second, and all of them are counted (no coordinated omission). The generator sleeps
/// between requests, as spinning would take a core from the server; how late it woke is in the latencies and is shown
/// ("late"). Requests due during the warm-up are not counted; all that are due later are waited for (--patience), however
/// late they end, and those that still have no answer then count with the time that they were waited for.
///
/// queued: from due to the start of the first cell; comp.: from there to the answer. unanswered: refused as the queue was
/// full, late for their --deadline, failed, or given up.
///
/// With several --batch or --bucket-width and --sweep, each policy first tries all of them, and goes on with its best.
///
/// With --json, one object a line, "kind" being "sweep" or "run".
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What is served
    #[arg(value_enum)]
    network: Network,
    #[command(flatten)]
    shape: ServedShape,
    /// Lengths: paper (mean 24, 99 % below 100, none above 330), paper:LONGEST, a number, or a CSV file whose first line
    /// names its columns; for seq2seq two columns, as in FILE:source,target (default: paper)
    #[arg(long, value_name = "L|FILE[:COLUMN]")]
    lengths: Option<LengthsOption>,
    /// Trees: complete:LEAVES, or a file with the head of each word of a sentence in each line, as in [2,0,2]; treelstm
    /// takes phrases made of them, a leaf for each word (default: complete:16)
    #[arg(long, value_name = "TREES")]
    trees: Option<TreesOption>,
    /// Policies (default: all that serve such requests)
    #[arg(long, value_enum, value_name = "POLICY,…", value_delimiter = ',')]
    policies: Vec<Policy>,
    /// Poisson arrivals: requests a second
    #[arg(long, value_name = "R,…", value_delimiter = ',', value_parser = rate)]
    rates: Vec<f64>,
    /// Poisson arrivals: fractions of the best baseline's peak (default: 0.2,0.5,0.8)
    #[arg(long, value_name = "F,…", value_delimiter = ',', conflicts_with = "rates", value_parser = fraction)]
    load: Vec<f64>,
    /// Users, each of whom waits for an answer before asking again
    #[arg(long, value_name = "N", conflicts_with_all = ["rates", "load"],
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    closed: Option<u32>,
    /// A file of times of arrival in seconds, one a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "load", "closed"])]
    trace: Option<PathBuf>,
    /// Measure this long at each point, in each round
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Before that, so long
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = not_negative)]
    warm_up: f64,
    /// Rounds at each point
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests of a run at most, those of the warm-up included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Of arrivals and requests; each round has its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Requests end without an answer this long after they were due
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    deadline: Option<f64>,
    /// After a run, wait so long for what has no answer yet
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    patience: f64,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Workers, among whom the cores are divided; each has its own weights
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: u32,
    /// Rows of a batch at most; several to --sweep
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [64],
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Lengths in a bucket; several to --sweep
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [10],
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    bucket_width: Vec<u32>,
    /// First find each policy's best settings, all being tried: by latency at half of the best baseline's peak, or by
    /// throughput
    #[arg(long, value_enum, value_name = "BY", num_args = 0..=1, default_missing_value = "p90")]
    sweep: Option<Goal>,
    /// Users who saturate the server where its peak is measured (default: four times the largest batch)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    saturation: Option<u32>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Write a line for each policy and point
    #[arg(long, value_name = "FILE.csv")]
    csv: Option<PathBuf>,
    /// Write the distributions of latency, queueing and computing
    #[arg(long, value_name = "FILE.csv")]
    cdf: Option<PathBuf>,
    /// Draw latency against throughput
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// Draw the distributions of queueing and computing at the first point
    #[arg(long, value_name = "FILE.svg")]
    cdf_chart: Option<PathBuf>,
}

/// Sizes of what is served.
#[derive(Clone, Debug, clap::Args)]
pub struct ServedShape {
    /// Hidden size
    #[arg(long, value_name = "H", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    hidden: u32,
    /// Input size: of embedded words, where words are embedded
    #[arg(long, value_name = "E", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    input: u32,
    /// Words that seq2seq knows
    #[arg(long, value_name = "N", default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    vocabulary: u32,
    /// Precision of weights and products: f32, bf16, int8
    #[arg(long, value_name = "P", default_value = "f32", value_parser = precision)]
    precision: crate::model::Precision,
}

fn precision(name: &str) -> Result<crate::model::Precision, String> {
    let all = crate::model::Precision::ALL;
    let found = all.into_iter().find(|p| p.name() == name);
    found.ok_or_else(|| format!("is none of {}", all.map(|p| p.name()).join(", ")))
}

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
    fn workload(&self) -> Result<Workload, Failure> {
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

    /// The policies that were asked for, or all that fit.
    fn policies(&self, workload: &Workload) -> Result<Vec<Policy>, Failure> {
        let possible = Policy::of(self.network, workload.is_identical());
        if self.policies.is_empty() {
            return Ok(possible);
        }
        for policy in &self.policies {
            if !possible.contains(policy) {
                let possible: Vec<_> = possible.iter().map(|p| p.name()).collect();
                let hint = match policy {
                    Policy::Ideal => {
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

    fn grid(&self) -> Result<Grid, Failure> {
        let several = self.batch.len() > 1 || self.bucket_width.len() > 1;
        if several && self.sweep.is_none() {
            return Err(Failure::usage(
                "several --batch or --bucket-width need --sweep, which finds the best of them",
            ));
        }
        let sizes = |list: &[u32]| {
            let mut sizes: Vec<usize> = list.iter().map(|&size| size as usize).collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes
        };
        Ok(Grid {
            batches: sizes(&self.batch),
            widths: sizes(&self.bucket_width),
        })
    }

    fn conditions(&self, workload: Workload) -> Conditions {
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

    fn context(&self) -> Context {
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
            threads: super::model::threads(self.threads),
            seed: self.seed,
        }
    }

    /// Refuses, before any time is spent, outputs that cannot be written, that are one file, or that are read.
    fn check_outputs(&self) -> Result<(), Failure> {
        let outputs = [
            (&self.csv, "what --csv writes"),
            (&self.cdf, "what --cdf writes"),
            (&self.chart, "what --chart draws"),
            (&self.cdf_chart, "what --cdf-chart draws"),
        ];
        let lengths = self.lengths.as_ref().and_then(LengthsOption::file);
        let trees = self.trees.as_ref().and_then(TreesOption::file);
        let inputs = [
            (lengths, "the file of --lengths"),
            (trees, "the file of --trees"),
            (self.trace.as_deref(), "the file of --trace"),
        ];
        for (index, (output, _)) in outputs.iter().enumerate() {
            let Some(output) = output.as_deref() else {
                continue;
            };
            let folder = output.parent().filter(|p| !p.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) || output.is_dir() {
                return Err(Failure::new("expected a file in a folder that exists").of(output));
            }
            keep_originals(output, &inputs)?;
            let same =
                |other: &Option<PathBuf>| other.as_deref().is_some_and(|o| one_file(o, output));
            if let Some((_, what)) = outputs[..index].iter().find(|(other, _)| same(other)) {
                let why = format!("is {what} already; write to another file");
                return Err(Failure::usage(why).of(output));
            }
        }
        Ok(())
    }
}

/// Whether two names are of one file, there or not yet.
fn one_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        path.canonicalize()
            .ok()
            .or(Some(folder.join(path.file_name()?)))
    };
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}

/// Measures on servers that `launch` starts, prints to `out`, writes files.
fn measure<L: Launch>(
    arguments: &Arguments,
    launch: &L,
    out: &mut impl Write,
) -> Result<(), Failure> {
    arguments.check_outputs()?;
    let grid = arguments.grid()?;
    let trace = arguments.trace.as_deref().map(read_trace).transpose()?;
    let workload = arguments.workload()?;
    let policies = arguments.policies(&workload)?;
    let (conditions, context) = (arguments.conditions(workload), arguments.context());
    let candidates: Vec<Contender> = policies.iter().flat_map(|&p| grid.candidates(p)).collect();

    let by_load = trace.is_none() && arguments.rates.is_empty() && arguments.closed.is_none();
    let largest = grid.batches.last().copied().unwrap_or(1);
    let users = arguments
        .saturation
        .map_or(4 * largest, |users| users as usize);
    let points_to_come = match (by_load, arguments.load.len()) {
        (true, 0) => DEFAULT_LOAD.len(),
        (true, loads) => loads,
        (false, _) => arguments.rates.len().max(1),
    };
    let first = match (arguments.sweep, by_load) {
        // Twice, though some will drop out after the first time.
        (Some(_), _) => 2 * candidates.len(),
        (None, true) => candidates.len(),
        (None, false) => 0,
    };
    let runs = (first + points_to_come * policies.len()) * conditions.rounds;
    let bar = bar(runs as u64);
    let mut next = |next: Next<'_>| show(&bar, next);

    let (contenders, peak) = match arguments.sweep {
        Some(goal) => {
            let swept = sweep(launch, &candidates, goal, users, &conditions, &mut next)?;
            bar.suspend(|| match arguments.json {
                true => Ok(write!(out, "{}", report::sweep_json(&context, &swept)?)?),
                false => Ok::<_, Failure>(writeln!(out, "{}", report::sweep_table(&swept))?),
            })?;
            (swept.best(), swept.peak())
        }
        None if by_load => {
            let closed = [Arrivals::Closed { outstanding: users }];
            let peaks = compare(launch, &candidates, &closed, &conditions, &mut next)?;
            bar.suspend(|| print(arguments, &context, &peaks, out))?;
            let peaks = peaks.iter().map(|m| (m.contender, m.all().throughput()));
            let peak = peak_of_baselines(&peaks.collect::<Vec<_>>());
            (candidates, peak)
        }
        None => (candidates, 0.0),
    };
    let points: Vec<Arrivals> = match (trace, arguments.closed) {
        (Some(trace), _) => vec![trace],
        (None, Some(users)) => vec![Arrivals::Closed {
            outstanding: users as usize,
        }],
        (None, None) if by_load => {
            if peak <= 0.0 {
                return Err(Failure::new(
                    "nothing was answered where the peak was to be measured; give --rates, longer --seconds or a \
                     shorter --warm-up",
                ));
            }
            let load = match arguments.load.is_empty() {
                true => &DEFAULT_LOAD[..],
                false => &arguments.load,
            };
            let rates = load.iter().map(|load| load * peak);
            rates.map(|rate| Arrivals::Poisson { rate }).collect()
        }
        (None, None) => (arguments.rates.iter())
            .map(|&rate| Arrivals::Poisson { rate })
            .collect(),
    };
    let measured = compare(launch, &contenders, &points, &conditions, &mut next)?;
    bar.finish_and_clear();
    print(arguments, &context, &measured, out)?;

    let rows: Vec<_> = measured.iter().map(|m| Row::new(&context, m)).collect();
    let title = format!(
        "{} {}, {}, requests: {}, {} worker(s), {} core(s)",
        context.network,
        context.hidden,
        context.precision,
        context.requests,
        context.workers,
        context.threads
    );
    if let Some(path) = &arguments.csv {
        report::write_curves(path, &rows)?;
    }
    if let Some(path) = &arguments.cdf {
        report::write_distributions(path, &measured)?;
    }
    if let Some(path) = &arguments.chart {
        chart::write_curves(path, &title, &rows)?;
    }
    if let Some(path) = &arguments.cdf_chart {
        chart::write_distributions(path, &title, &measured[..contenders.len()])?;
    }
    Ok(())
}

/// Fractions of the peak where none is given.
const DEFAULT_LOAD: [f64; 3] = [0.2, 0.5, 0.8];

fn print(
    arguments: &Arguments,
    context: &Context,
    measured: &[Measured],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let rows: Vec<_> = measured.iter().map(|m| Row::new(context, m)).collect();
    if arguments.json {
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    writeln!(out, "({})\n{}", report::COUNTED, report::heading())?;
    for row in &rows {
        writeln!(out, "{}", report::line(row))?;
    }
    writeln!(out, "\n{}", report::notes(&rows))?;
    Ok(())
}

/// A bar on a terminal, nothing elsewhere. It moves between runs only: drawing takes time from what is measured.
fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} run {pos} of {len}, {eta} left  {wide_msg}");
    let bar = ProgressBar::new(runs);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    // Counted as they begin.
    bar
}

fn show(bar: &ProgressBar, next: Next<'_>) {
    let Contender { policy, settings } = next.contender;
    let at = match next.arrivals {
        Arrivals::Poisson { rate } => format!("at {rate:.1}/s"),
        Arrivals::Trace(_) => "as traced".into(),
        Arrivals::Closed { outstanding } => format!("with {outstanding} users"),
    };
    bar.inc(1);
    bar.set_message(format!(
        "{policy}, {settings}, {at}, round {}",
        next.round + 1
    ));
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::compare::tests::Fleet;
    use super::target::Settings;
    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn typed(line: &str) -> Arguments {
        let words = ["load"].into_iter().chain(line.split_whitespace());
        match Typed::try_parse_from(words) {
            Ok(typed) => typed.arguments,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    /// On simulated servers, as many as rows of a batch; cellular takes 5 ms, others 20.
    fn measured(line: &str) -> Result<String, Failure> {
        let service = |policy, _: &Settings| if policy == Policy::Cellular { 5 } else { 20 };
        let mut out = Vec::new();
        measure(&typed(line), &Fleet::new(service), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn json(line: &str) -> Vec<Value> {
        let text = measured(&format!("{line} --json")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn near(found: &Value, expected: f64) {
        let found = found.as_f64().unwrap();
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{found} for {expected}"
        );
    }

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Typed::command().debug_assert();
        let typed = typed("lstm");
        assert_eq!(
            (
                typed.shape.hidden,
                typed.shape.input,
                typed.shape.vocabulary
            ),
            (1024, 1024, 30_000)
        );
        for bad in [
            "rnn",
            "lstm --load 0",
            "lstm --rates -1",
            "lstm --rates 5 --load 0.5",
            "lstm --warm-up x",
        ] {
            let words = ["load"].into_iter().chain(bad.split_whitespace());
            assert!(Typed::try_parse_from(words).is_err(), "{bad}");
        }
    }

    #[test]
    fn loads_are_fractions_of_the_peak_that_was_measured() {
        // Padding peaks at 4 rows / 20 ms = 200/s, cellular at 800/s.
        let rows = json("lstm --policies cellular,padding --batch 4 --load 0.25,0.5 --seconds 100");
        assert_eq!(rows.len(), 2 + 4);
        assert!(
            rows[..2]
                .iter()
                .all(|row| row["arrivals"] == "closed" && row["outstanding"] == 16)
        );
        near(&rows[0]["throughput"], 800.0);
        near(&rows[1]["throughput"], 200.0);
        for (row, (policy, rate)) in rows[2..].iter().zip([
            ("cellular", 50.0),
            ("padding", 50.0),
            ("cellular", 100.0),
            ("padding", 100.0),
        ]) {
            assert_eq!(
                (&row["policy"], &row["requests"]),
                (&policy.into(), &"paper".into())
            );
            near(&row["rate"], rate);
        }
        near(&rows[3]["computing_ms"]["p50"], 20.0);
    }

    #[test]
    fn a_sweep_is_shown_and_its_best_go_on() {
        let line = "gru --policies bucketing,cellular --batch 4,2 --bucket-width 5,10 --sweep peak --rates 10 --seconds 50";
        let rows = json(line);
        assert!(rows[..6].iter().all(|row| row["kind"] == "sweep"));
        let best: Vec<_> = rows[..6].iter().filter(|row| row["best"] == true).collect();
        assert_eq!(best.len(), 2);
        assert!(best.iter().all(|row| row["batch"] == 4));
        assert_eq!(rows.len(), 6 + 2);
        assert!(
            rows[6..]
                .iter()
                .all(|row| row["kind"] == "run" && row["batch"] == 4)
        );
        assert_eq!(
            (&rows[6]["bucket_width"], rows[7].get("bucket_width")),
            (&5.into(), None)
        );
        let text = measured(line).unwrap();
        assert!(
            text.contains("settings tried") && text.contains("batch 2, buckets of 10"),
            "{text}"
        );
        assert!(
            text.contains("latencies count from when a request was due"),
            "{text}"
        );
    }

    #[test]
    fn files_are_written_and_inputs_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let lengths = at("lengths.csv");
        std::fs::write(&lengths, "words\n3\n5\n").unwrap();
        let line = format!(
            "lstm --lengths {lengths}:words --rates 20,40 --seconds 20 --csv {} --cdf {} --chart {} --cdf-chart {}",
            at("a.csv"),
            at("b.csv"),
            at("c.svg"),
            at("d.svg")
        );
        measured(&line).unwrap();
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        // Four policies, two rates.
        assert_eq!(read("a.csv").lines().count(), 1 + 8);
        assert!(read("a.csv").contains("lengths.csv:words") && !read("a.csv").contains(&lengths));
        assert_eq!(
            read("b.csv").lines().count(),
            1 + 8 * 3 * report::fractions().len()
        );
        assert!(read("c.svg").starts_with("<svg") && read("d.svg").contains("queueing"));

        let refused = |line: &str, words: &str| {
            let failure = measured(line).unwrap_err().to_string();
            assert!(failure.contains(words), "{failure}");
        };
        refused(
            &format!("lstm --lengths {lengths} --rates 5 --csv {lengths}"),
            "is the file of --lengths itself",
        );
        let twice = format!("lstm --rates 5 --csv {0} --cdf {0}", at("new.csv"));
        refused(&twice, "is what --csv writes already");
        refused(
            "lstm --rates 5 --csv /nowhere/x.csv",
            "a folder that exists",
        );
        assert_eq!(std::fs::read_to_string(&lengths).unwrap(), "words\n3\n5\n");
    }

    #[test]
    fn what_does_not_go_together_is_usage() {
        for (line, words) in [
            ("treelstm --lengths 5", "takes --trees"),
            ("lstm --trees complete:4", "takes --lengths"),
            (
                "lstm --policies ideal",
                "cellular, padding, bucketing, merge do (ideal needs identical",
            ),
            ("treelstm --policies padding", "cellular, merge, ideal do"),
            ("lstm --batch 1,2", "need --sweep"),
        ] {
            let failure = measured(line).unwrap_err();
            assert_eq!(failure.kind, super::super::Kind::Usage, "{line}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn users_and_traces_are_arrivals_too() {
        let rows = json("lstm --lengths 3 --policies ideal,ideal --closed 64 --seconds 5");
        assert_eq!(rows.len(), 1);
        near(&rows[0]["throughput"], 64.0 / 0.02);
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.csv");
        std::fs::write(&trace, "seconds\n0.5\n2.5\n3\n").unwrap();
        let line = format!("seq2seq --policies cellular --trace {}", trace.display());
        let rows = json(&line);
        assert_eq!(
            (&rows[0]["arrivals"], &rows[0]["due"]),
            (&"trace".into(), &2.into())
        );
        let users = measured("lstm --policies cellular --closed 2 --seconds 1").unwrap();
        assert!(users.contains("2 users"), "{users}");
    }

    #[test]
    fn nothing_answered_gives_no_peak() {
        let mut out = Vec::new();
        let slow = Fleet::new(|_, _: &Settings| 10_000_000);
        let failure = measure(
            &typed("lstm --policies merge --patience 1"),
            &slow,
            &mut out,
        );
        assert!(
            failure
                .unwrap_err()
                .to_string()
                .contains("nothing was answered")
        );
    }
}
