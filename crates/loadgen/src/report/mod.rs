//! Results as tables, JSON, CSV files and charts.

pub mod calibration;
pub mod chart;
pub mod csv;
mod print;
mod row;
mod table;

use crate::record::{Recording, Times};
pub use print::Printer;
pub use row::Row;

/// The columns that are equal in all rows.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Context {
    /// Name of the network.
    pub network: String,
    /// The engines of this process; `None`: a server of another, which has its own settings.
    #[serde(flatten)]
    pub engines: Option<EngineContext>,
    /// Number of simulated machines, each with these engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<usize>,
    /// Factor by which the batches of simulated machines are longer than measured ones.
    #[serde(rename = "batch_times_factor", skip_serializing_if = "Option::is_none")]
    pub stretch: Option<f64>,
    /// Lengths or trees, as typed; for any model of a server also its inputs.
    pub requests: String,
    /// Seed of the first round.
    pub seed: u64,
}

/// The columns of the engines.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineContext {
    /// Input size.
    pub input: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Name of the precision.
    pub precision: String,
    /// Number of workers.
    pub workers: usize,
    /// Cores of all workers.
    pub threads: usize,
    /// Maximum tasks of a worker.
    pub tasks_at_once: usize,
    /// Maximum steps of one batch.
    pub steps_at_once: usize,
    /// Steps of a batch under `ebatch`.
    pub batch_steps: String,
    /// Numbers of the CUDA devices that the workers use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cuda: Vec<usize>,
}

/// The factors at which measured times of batches describe an engine under load.
pub const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

impl Context {
    /// Whether the measured times of batches do not describe this machine under load, so that
    /// results of simulated machines are doubtful.
    pub fn is_doubtful(&self) -> bool {
        self.stretch
            .is_some_and(|factor| !PLAUSIBLE.contains(&factor))
    }

    /// A title, short enough for a chart.
    pub fn title(&self) -> String {
        let (network, requests) = (&self.network, &self.requests);
        let Some(engines) = &self.engines else {
            return format!("{network} on a server, requests: {requests}");
        };
        let hidden = match engines.layers {
            1 => engines.hidden.to_string(),
            layers => format!("{layers} × {}", engines.hidden),
        };
        let title = format!(
            "{network} {hidden}, {}, requests: {requests}, {} worker(s), {} core(s)",
            engines.precision, engines.workers, engines.threads
        );
        let title = match engines.cuda.len() {
            0 => title,
            devices => format!("{title}, {devices} CUDA device(s)"),
        };
        let title = match self.machines {
            Some(machines) => format!("{title}, {machines} simulated machine(s)"),
            None => title,
        };
        match self.stretch.filter(|_| self.is_doubtful()) {
            Some(factor) => format!("{title}, doubtful: batch times × {factor:.2}"),
            None => title,
        }
    }

    /// The title, and the limits of a worker.
    pub fn long_title(&self) -> String {
        let title = self.title();
        match &self.engines {
            Some(engines) => format!(
                "{title}, {} task(s) and {} step(s) at once",
                engines.tasks_at_once, engines.steps_at_once
            ),
            None => title,
        }
    }
}

/// Fractions at which distributions are shown: every half per cent, and finer near 1.
pub fn fractions() -> Vec<f64> {
    let coarse = (0..200).map(|n| f64::from(n) / 200.0);
    coarse.chain([0.9975, 0.999, 0.9995, 0.9999, 1.0]).collect()
}

/// The distributions of a recording, with their names.
pub fn distributions(recording: &Recording) -> [(&'static str, &Times); 3] {
    [
        ("latency", &recording.latency),
        ("queueing", &recording.queueing),
        ("computing", &recording.computing),
    ]
}
