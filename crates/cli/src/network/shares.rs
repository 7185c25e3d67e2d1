//! The share of each recurrent region in the time of a graph.

use std::fmt;

use gatestream_network::{NetworkProfile, RegionRun};

/// The medians over some runs, in milliseconds.
pub struct Shares {
    runs: usize,
    total: f64,
    regions: Vec<RegionShare>,
}

/// All runs of a region in a run of the graph.
struct RegionShare {
    first: RegionRun,
    calls: usize,
    median: f64,
}

impl Shares {
    /// Of profiles of equal runs.
    pub fn new(profiles: &[NetworkProfile]) -> Shares {
        let Some(first) = profiles.first() else {
            return Shares {
                runs: 0,
                total: 0.0,
                regions: Vec::new(),
            };
        };
        let mut regions: Vec<RegionShare> = Vec::new();
        for run in &first.regions {
            if let Some(known) = regions
                .iter_mut()
                .find(|known| known.first.node == run.node)
            {
                known.calls += 1;
                continue;
            }
            let of_node = |profile: &NetworkProfile| {
                let runs = profile
                    .regions
                    .iter()
                    .filter(|other| other.node == run.node);
                runs.map(|run| 1e3 * run.time.as_secs_f64()).sum()
            };
            regions.push(RegionShare {
                first: run.clone(),
                calls: 1,
                median: median(profiles.iter().map(of_node).collect()),
            });
        }
        let totals = profiles.iter().map(|p| 1e3 * p.total.as_secs_f64());
        Shares {
            runs: profiles.len(),
            total: median(totals.collect()),
            regions,
        }
    }

    /// The part of the time that recurrent regions take, from 0 to 1.
    pub fn recurrent(&self) -> f64 {
        let recurrent: f64 = self.regions.iter().map(|region| region.median).sum();
        recurrent / self.total.max(1e-9)
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let regions = self.regions.iter().map(|region| {
            serde_json::json!({
                "node": region.first.node,
                "operator": region.first.operator,
                "input": region.first.input,
                "output": region.first.output,
                "batch": region.first.batch,
                "steps": region.first.steps,
                "calls": region.calls,
                "plan": region.first.plan,
                "median_ms": region.median,
                "share": region.median / self.total.max(1e-9),
            })
        });
        regions.collect()
    }

    /// The plans of the regions, a line each.
    pub fn plans(&self) -> String {
        let regions = self.regions.iter();
        let lines = regions.map(|region| format!("{}: {}\n", region.first.node, region.first.plan));
        lines.collect()
    }
}

/// A line for each region, and one for the rest of the graph.
impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, runs) = (self.total, self.runs);
        let runs = match runs {
            1 => "one run".into(),
            runs => format!("median of {runs} runs"),
        };
        writeln!(f, "where the time went: {total:.4} ms, {runs}")?;
        let name = |region: &RegionShare| region.first.node.chars().count();
        let width = self
            .regions
            .iter()
            .map(name)
            .max()
            .unwrap_or(0)
            .clamp(6, 60);
        writeln!(
            f,
            "{:<width$} {:<9} {:>6} {:>6} {:>6} {:>6} {:>6} {:>10} {:>8}",
            "region", "operator", "input", "output", "batch", "steps", "calls", "ms", "of time"
        )?;
        let share = |ms: f64| format!("{:.1}%", 100.0 * ms / total.max(1e-9));
        for RegionShare {
            first,
            calls,
            median,
        } in &self.regions
        {
            let operator = match first.operator.as_str() {
                "DynamicQuantizeLSTM" => "LSTM int8",
                operator => operator,
            };
            writeln!(
                f,
                "{:<width$} {operator:<9} {:>6} {:>6} {:>6} {:>6} {calls:>6} {median:>10.4} {:>8}",
                first.node,
                first.input,
                first.output,
                first.batch,
                first.steps,
                share(*median)
            )?;
        }
        let others = (total * (1.0 - self.recurrent())).max(0.0);
        writeln!(
            f,
            "{:<width$} {:<44} {others:>10.4} {:>8}",
            "other",
            "all that is not recurrent",
            share(others)
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
