//! The time of each activity of runs, as text and JSON: `bench --profile` and `GATESTREAM_TRACE=1`.

use std::fmt::{self, Write};

use gatestream::execute::{Activity, Trace, WorkerTrace};
use gatestream_command::Failure;

/// If it is 1, `run` prints the time of each activity.
const TRACE_VARIABLE: &str = "GATESTREAM_TRACE";

/// Whether a trace is asked for.
pub fn is_asked() -> Result<bool, Failure> {
    let Some(value) = std::env::var_os(TRACE_VARIABLE) else {
        return Ok(false);
    };
    match value.to_str() {
        Some("1") => Ok(true),
        Some("" | "0") => Ok(false),
        _ => Err(Failure::new(format!(
            "{TRACE_VARIABLE} is {value:?}; set it to 1 to print the time of each activity, or to 0"
        ))),
    }
}

/// The mean of some runs' traces. Times in milliseconds per run.
pub struct Profile {
    runs: usize,
    steps: usize,
    wall: f64,
    workers: Vec<WorkerProfile>,
}

/// One worker's part of it.
#[derive(Clone, Default)]
struct WorkerProfile {
    spent: [f64; Activity::COUNT],
    calls: [u64; Activity::COUNT],
    layers: Vec<f64>,
}

impl WorkerProfile {
    fn add(&mut self, trace: &WorkerTrace, weight: f64) {
        self.layers.resize(trace.layers.len(), 0.0);
        for activity in Activity::ALL {
            let at = activity as usize;
            for (sum, layer) in self.layers.iter_mut().zip(&trace.layers) {
                let milliseconds = 1e3 * weight * layer.spent(activity).time.as_secs_f64();
                *sum += milliseconds;
                self.spent[at] += milliseconds;
            }
            self.calls[at] = trace.spent(activity).calls;
        }
    }

    fn covered(&self) -> f64 {
        self.spent.iter().sum()
    }
}

impl Profile {
    /// The mean over the middle half of these traces, by wall time: one run that the system
    /// interrupted would dominate the mean. All runs are equal, of `steps` steps.
    pub fn new(mut traces: Vec<Trace>, steps: usize) -> Profile {
        traces.sort_by_key(|trace| trace.wall);
        let quarter = traces.len() / 4;
        let middle = &traces[quarter..traces.len() - quarter];
        let weight = 1.0 / middle.len().max(1) as f64;
        let (mut wall, mut workers) = (0.0, Vec::new());
        for trace in middle {
            wall += 1e3 * weight * trace.wall.as_secs_f64();
            workers.resize(trace.workers.len(), WorkerProfile::default());
            for (sum, worker) in workers.iter_mut().zip(&trace.workers) {
                sum.add(worker, weight);
            }
        }
        Profile {
            runs: traces.len(),
            steps,
            wall,
            workers,
        }
    }

    /// As JSON: milliseconds per run, and calls per run of the worker with the most.
    pub fn json(&self, products_at_peak: f64) -> serde_json::Value {
        let workers = self.workers.iter().map(|worker| {
            let times =
                Activity::ALL.map(|activity| (activity.name(), worker.spent[activity as usize]));
            let other = ("other", self.wall - worker.covered());
            let fields = times.into_iter().chain([other]);
            let fields = fields.map(|(name, time)| (name.to_string(), time.into()));
            serde_json::Value::Object(fields.collect())
        });
        let calls = Activity::ALL
            .map(|activity| (activity.name().to_string(), self.calls(activity).into()));
        serde_json::json!({
            "runs": self.runs,
            "wall_ms": self.wall,
            "workers_ms": workers.collect::<Vec<_>>(),
            "calls": serde_json::Value::Object(calls.into_iter().collect()),
            "products_at_peak_ms": products_at_peak,
        })
    }

    /// One line beside the bound: the products' mean time, and the time at the machine's peak
    /// arithmetic.
    pub fn products_beside_peak(&self, at_peak: f64) -> String {
        let products = [
            Activity::Ahead,
            Activity::Products,
            Activity::SecondProducts,
        ];
        let times = self.workers.iter();
        let times: Vec<f64> = times
            .map(|w| products.iter().map(|&p| w.spent[p as usize]).sum())
            .collect();
        let mean = mean(&times);
        let share = if mean > 0.0 {
            format!(", {:.0}% of it", 100.0 * at_peak / mean)
        } else {
            String::new()
        };
        format!(
            "products take {mean:.4} ms a worker{share} at the peak of arithmetic ({at_peak:.4} ms)"
        )
    }

    fn calls(&self, activity: Activity) -> u64 {
        let calls = self
            .workers
            .iter()
            .map(|worker| worker.calls[activity as usize]);
        calls.max().unwrap_or(0)
    }

    /// One line of the table: a time of each worker.
    fn line(&self, name: &str, calls: Option<u64>, times: &[f64]) -> String {
        let share = |time: f64| format!("{:.1}%", 100.0 * time / self.wall);
        let per_step = 1e3 * mean(times) / self.steps.max(1) as f64;
        let calls = calls.map_or(String::new(), |calls| calls.to_string());
        let mut line = format!(
            "{name:<16} {calls:>7} {per_step:>10.3} {:>8}",
            share(mean(times))
        );
        let each = if times.len() <= MAX_COLUMNS {
            times.to_vec()
        } else {
            extremes(times).to_vec()
        };
        for time in each {
            // Writing to a string cannot fail.
            let _ = write!(line, " {:>9}", share(time));
        }
        line
    }
}

/// Workers that have columns of their own; of more, the least and the most are shown.
const MAX_COLUMNS: usize = 8;

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn extremes(times: &[f64]) -> [f64; 2] {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    [least, most]
}

/// A table: one line per activity that occurs, mean over the workers and each worker's share of the
/// wall time; then, of a stack, one line per layer.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = match self.runs {
            1 => "one traced run".into(),
            runs => format!("{runs} traced runs (mean of the middle half)"),
        };
        let (wall, steps) = (self.wall, self.steps);
        writeln!(
            f,
            "where the time went: {wall:.4} ms, {steps} steps; {runs}"
        )?;
        write!(
            f,
            "{:<16} {:>7} {:>10} {:>8}",
            "activity", "calls", "µs a step", "of time"
        )?;
        if self.workers.len() <= MAX_COLUMNS {
            (0..self.workers.len()).try_for_each(|w| write!(f, "  worker {w}"))?
        } else {
            write!(f, " {:>9} {:>9}", "least", "most")?
        }
        writeln!(f)?;
        let each = |time: &dyn Fn(&WorkerProfile) -> f64| -> Vec<f64> {
            self.workers.iter().map(time).collect()
        };
        for activity in Activity::ALL {
            let calls = self.calls(activity);
            if calls > 0 {
                let times = each(&|worker| worker.spent[activity as usize]);
                let name = activity.name().replace('_', " ");
                writeln!(f, "{}", self.line(&name, Some(calls), &times))?;
            }
        }
        // The checks, waking the team, and waiting for the last worker.
        let other = each(&|worker| self.wall - worker.covered());
        writeln!(f, "{}", self.line("other", None, &other))?;
        let layers = self.workers.first().map_or(0, |w| w.layers.len());
        for layer in (0..layers).filter(|_| layers > 1) {
            let times = each(&|worker| worker.layers[layer]);
            writeln!(f, "{}", self.line(&format!("layer {layer}"), None, &times))?;
        }
        Ok(())
    }
}
