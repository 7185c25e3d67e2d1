//! A plan without measuring: one worker, or the team split by hidden units.
//!
//! The time of a step is the larger of its arithmetic and the bytes of weights that each worker
//! reads at the bandwidth of the cache they fit in (deepcpu section 3, equation 1), and the meetings
//! of the workers. The rates are those of a server core of 2024; only their proportions matter, for
//! they decide no more than how many workers are worth waking.

use super::{LayerPlan, MOST_THREADS, Partition, Plan, UNIT_GRANULE, split_units};
use crate::model::{Layer, Model};

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
    /// steps, judged by arithmetic and bytes alone. `threads` 0 counts as 1; more threads than the
    /// model has groups of [`UNIT_GRANULE`] units are never of use. This machine's cores are
    /// [`crate::machine::Topology::team_size`].
    pub fn estimate(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let groups =
            |layer: &Layer| layer.directions().len() * layer.hidden_size().div_ceil(UNIT_GRANULE);
        let useful = model.layers().iter().map(groups).max().unwrap_or(1);
        let best = (1..=threads.clamp(1, useful.clamp(1, MOST_THREADS)))
            .map(|threads| Plan::with_threads(model, batch, steps, threads))
            .map(|plan| (seconds(model, &plan), plan))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or_else(
            || Plan::with_threads(model, batch, steps, 1),
            |(_, plan)| plan,
        )
    }

    /// The plan that splits every layer over exactly `threads` workers (from 1 to
    /// [`MOST_THREADS`]). Two directions get half of
    /// the workers each, where the number is even: they need not meet at every step then.
    pub fn with_threads(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let threads = threads.clamp(1, MOST_THREADS);
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

/// Estimated seconds of a run.
fn seconds(model: &Model, plan: &Plan) -> f64 {
    let region = if plan.threads > 1 { REGION } else { 0.0 };
    let layers = model.layers().iter().zip(&plan.layers);
    let steps = layers.map(|(layer, split)| {
        let meetings = match split.directions.iter().any(Partition::is_shared) {
            true if layer.directions()[0].is_two_phase() => 2.0,
            true => 1.0,
            false => 0.0,
        };
        // The busiest worker sets the pace.
        let workers = 0..plan.threads;
        let busiest = workers.map(|worker| step_seconds(layer, split, plan.batch, worker));
        busiest.fold(0.0, f64::max) + meetings * BARRIER
    });
    region + plan.steps as f64 * steps.sum::<f64>()
}

/// Seconds of one worker's part of one step of a layer, both directions together: they share its
/// caches.
fn step_seconds(layer: &Layer, split: &LayerPlan, batch: usize, worker: usize) -> f64 {
    let (mut recurrent, mut all) = (0.0, 0.0);
    for (direction, partition) in layer.directions().iter().zip(&split.directions) {
        let weights = direction.weights();
        let share = partition.units[worker].len() as f64 / direction.hidden_size() as f64;
        let projection = weights.projection.as_ref().map_or(0, |p| p.data().len());
        let own = share * (weights.recurrent.data().len() + projection) as f64;
        recurrent += own;
        all += own + share * weights.input.data().len() as f64;
    }
    let bytes = 4.0 * recurrent;
    let bandwidth = match bytes as usize {
        fits if fits <= L1.1 => L1.0,
        fits if fits <= L2.1 => L2.0,
        _ => L3,
    };
    (2.0 * all * batch as f64 / FLOPS).max(bytes / bandwidth)
}
