//! A result as a row of a table, of a CSV file, or as a JSON object.

use serde::Serialize;

use super::Arguments;
use super::arguments::name;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::sustained::Setting;

/// The result of a policy at a rate.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    accelerator: String,
    network: String,
    layers: usize,
    hidden: usize,
    lanes: usize,
    lengths: String,
    wait_ms: f64,
    deadline_ms: Option<f64>,
    memory_gbs: f64,
    memory_pj_per_byte: f64,
    overlap: bool,
    seconds: f64,
    seed: u64,
    policy: String,
    /// Requests that arrive in a second, on average.
    rate: f64,
    /// Whether the rate is the highest that the policy sustains.
    sustained: bool,
    answered_per_s: f64,
    mean_ms: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    late: Option<f64>,
    weight_mb_per_request: f64,
    useful: f64,
    wasted: f64,
    mj_per_request: f64,
    background: f64,
    requests_per_joule: f64,
}

impl Row {
    /// The row of an outcome.
    pub fn new(
        arguments: &Arguments,
        setting: &Setting,
        policy: Policy,
        rate: f64,
        outcome: &Outcome,
    ) -> Row {
        let machine = &setting.machine;
        let energy = arguments.energy(machine);
        let joules = outcome.joules_per_request(&energy, &machine.network);
        let lane_time = outcome.lane_time(machine);
        let percentile = |fraction| rounded(1e3 * outcome.latency_percentile(fraction));
        let late = arguments.deadline.map(|allowed| {
            let late = outcome.latencies.iter();
            let late = late.filter(|&&latency| f64::from(latency) * 1e3 > allowed);
            late.count() as f64 / outcome.latencies.len().max(1) as f64
        });
        Row {
            accelerator: name(arguments.accelerator),
            network: name(arguments.network),
            layers: machine.network.layers,
            hidden: machine.network.hidden_size,
            lanes: machine.accelerator.lanes,
            lengths: arguments.lengths().to_string(),
            wait_ms: arguments.wait,
            deadline_ms: arguments.deadline,
            memory_gbs: machine.accelerator.memory_bandwidth / 1e9,
            memory_pj_per_byte: rounded(energy.memory_byte * 1e12),
            overlap: arguments.overlap,
            seconds: arguments.seconds,
            seed: arguments.seed,
            policy: policy.to_string(),
            rate: rounded(rate),
            sustained: arguments.sustained,
            answered_per_s: rounded(outcome.throughput()),
            mean_ms: rounded(1e3 * outcome.mean_latency()),
            p50_ms: percentile(0.5),
            p90_ms: percentile(0.9),
            p99_ms: percentile(0.99),
            late: late.map(rounded),
            weight_mb_per_request: rounded(outcome.weight_bytes_per_request() / 1e6),
            useful: rounded(lane_time.useful),
            wasted: rounded(lane_time.wasted),
            mj_per_request: rounded(1e3 * joules.total()),
            background: rounded(joules.background / joules.total().max(f64::MIN_POSITIVE)),
            requests_per_joule: rounded(1.0 / joules.total().max(f64::MIN_POSITIVE)),
        }
    }

    /// The names of the columns of [`Row::line`].
    pub fn header(shows_late: bool) -> String {
        let late = if shows_late { "    late" } else { "" };
        format!(
            "{:<15} {:>9} {:>10} {:>10} {:>10} {:>10}{late} {:>11} {:>7} {:>7} {:>11} {:>10}",
            "policy",
            "rate/s",
            "answered/s",
            "mean ms",
            "p90 ms",
            "p99 ms",
            "weights MB",
            "useful",
            "wasted",
            "mJ/request",
            "background"
        )
    }

    /// A line of a table for a person.
    pub fn line(&self) -> String {
        let late = self
            .late
            .map_or(String::new(), |late| format!(" {:>5.1} %", 100.0 * late));
        format!(
            "{:<15} {:>9.1} {:>10.1} {:>10.2} {:>10.2} {:>10.2}{late} {:>11.2} {:>5.1} % {:>5.1} % \
             {:>11.2} {:>8.1} %",
            self.policy,
            self.rate,
            self.answered_per_s,
            self.mean_ms,
            self.p90_ms,
            self.p99_ms,
            self.weight_mb_per_request,
            100.0 * self.useful,
            100.0 * self.wasted,
            self.mj_per_request,
            100.0 * self.background
        )
    }
}

/// To six digits: more have no meaning here.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}
