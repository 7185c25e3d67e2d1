//! A plan without measuring: one worker, or the team split by hidden units.
//!
//! The time of a step is the larger of its arithmetic and the bytes of weights that each worker
//! reads at the bandwidth of the cache they fit in (deepcpu section 3, equation 1), and the meetings
//! of the workers. The rates are those of a server core of 2024; only their proportions matter, for
//! they decide no more than how many workers are worth waking.

use super::{LayerPlan, Partition, Plan, split_units};
use crate::model::{Cell, Direction, Layer, Model, ResetForm};

/// Per core.
const FLOPS: f64 = 150e9;
/// Bytes per second from the first-level cache, and its size in bytes.
const L1: (f64, usize) = (300e9, 40 << 10);
/// Likewise from the second level.
const L2: (f64, usize) = (120e9, 3 << 19);
/// Bytes per second from the shared cache.
const L3: f64 = 30e9;
/// Seconds that a meeting of all workers takes.
const BARRIER: f64 = 0.25e-6;
/// Seconds that waking the others and joining them takes, once per run.
const REGION: f64 = 2e-6;
/// Bytes of hoisted pre-activations per worker: a part of the second-level cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Steps taken together at the least, where there are as many: rows of a tall tile.
const CHUNK_ROWS: usize = 12;

impl Plan {
    /// The plan that should be fastest on up to `threads` cores for `batch` sequences of `steps`
    /// steps, judged by arithmetic and bytes alone. `threads` 0 counts as 1.
    pub fn estimate(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let best = (1..=threads.max(1))
            .map(|threads| (threads, seconds(model, batch, steps, threads)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        Plan::with_threads(model, batch, steps, best.map_or(1, |(threads, _)| threads))
    }

    /// The plan that splits every layer over exactly `threads` workers. Two directions get half of
    /// the workers each, where the number is even: they need not meet at every step then.
    pub fn with_threads(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let threads = threads.max(1);
        let layers = model.layers().iter();
        Plan {
            threads,
            batch,
            steps,
            layers: layers
                .map(|layer| plan_layer(layer, batch, steps, threads))
                .collect(),
        }
    }
}

fn plan_layer(layer: &Layer, batch: usize, steps: usize, threads: usize) -> LayerPlan {
    let apart = layer.directions().len() == 2 && threads.is_multiple_of(2);
    let directions: Vec<_> = (layer.directions().iter().enumerate())
        .map(|(index, direction)| {
            let place = |size: usize| match apart {
                false => split_units(size, threads),
                true => {
                    let half = split_units(size, threads / 2);
                    let none = |at: usize| vec![at..at; threads / 2];
                    match index {
                        0 => [half, none(size)].concat(),
                        _ => [none(0), half].concat(),
                    }
                }
            };
            let projected = match direction.weights().projection {
                Some(_) => direction.output_size(),
                None => 0,
            };
            Partition {
                units: place(direction.hidden_size()),
                projected: place(projected),
            }
        })
        .collect();
    let widest = directions
        .iter()
        .flat_map(|d| &d.units)
        .map(|r| r.len())
        .max();
    let row_bytes = widest.unwrap_or(0).max(1) * 4 * layer.kind().gates();
    let rows = (CHUNK_BYTES / row_bytes).max(CHUNK_ROWS);
    LayerPlan {
        chunk_steps: (rows / batch.max(1)).clamp(1, steps.max(1)),
        directions,
    }
}

/// Estimated seconds of a run on `threads` workers.
fn seconds(model: &Model, batch: usize, steps: usize, threads: usize) -> f64 {
    let region = if threads > 1 { REGION } else { 0.0 };
    let layers = model.layers().iter();
    region
        + layers
            .map(|layer| {
                let apart = layer.directions().len() == 2 && threads.is_multiple_of(2);
                let meets = threads > 1 && !(apart && threads == 2);
                let barriers = if meets {
                    phases(&layer.directions()[0])
                } else {
                    0
                };
                let work: f64 = layer
                    .directions()
                    .iter()
                    .map(|d| work(d, batch, threads))
                    .sum();
                steps as f64 * (work + barriers as f64 * BARRIER)
            })
            .sum::<f64>()
}

/// Seconds of one step of one direction, spread over all workers.
fn work(direction: &Direction, batch: usize, threads: usize) -> f64 {
    let weights = direction.weights();
    let recurrent =
        weights.recurrent.data().len() + weights.projection.as_ref().map_or(0, |p| p.data().len());
    // Hidden units come in groups, and the busiest worker sets the pace.
    let share = split_units(direction.hidden_size(), threads)
        .iter()
        .map(|r| r.len())
        .max()
        .map_or(1.0, |most| most as f64 / direction.hidden_size() as f64);
    let values = recurrent + weights.input.data().len();
    let arithmetic = 2.0 * (values * batch) as f64 * share / FLOPS;
    let bytes = 4.0 * recurrent as f64 * share;
    let bandwidth = match bytes as usize {
        fits if fits <= L1.1 => L1.0,
        fits if fits <= L2.1 => L2.0,
        _ => L3,
    };
    arithmetic.max(bytes / bandwidth)
}

/// Meetings per step.
fn phases(direction: &Direction) -> usize {
    let two = match direction.cell() {
        Cell::Gru { reset, .. } => *reset == ResetForm::Before,
        _ => direction.weights().projection.is_some(),
    };
    if two { 2 } else { 1 }
}
