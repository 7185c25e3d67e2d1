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
    /// Input size.
    pub input: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Name of the precision.
    pub precision: String,
    /// Lengths or trees, as typed.
    pub requests: String,
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
    /// Seed of the first round.
    pub seed: u64,
}

impl Context {
    /// A title, short enough for a chart.
    pub fn title(&self) -> String {
        let hidden = match self.layers {
            1 => self.hidden.to_string(),
            layers => format!("{layers} × {}", self.hidden),
        };
        format!(
            "{} {hidden}, {}, requests: {}, {} worker(s), {} core(s)",
            self.network, self.precision, self.requests, self.workers, self.threads
        )
    }

    /// The limits of a worker.
    pub fn at_once(&self) -> String {
        let (tasks, steps) = (self.tasks_at_once, self.steps_at_once);
        format!("{tasks} task(s) and {steps} step(s) at once")
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
