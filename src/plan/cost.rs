//! Seconds that a configuration should take, by arithmetic and by bytes from each cache level.
//!
//! ```text
//! step of a worker = max(arithmetic, bytes from each level / its bandwidth) + gates
//! step of a layer  = its slowest worker + a barrier per phase, where workers share a direction
//! ahead, per chunk = arithmetic or bytes, divided among the workers that take part; where some of
//!                    them own no rows, beside the steps of the chunk before, in balanced shares
//! ```
//!
//! Products count as those of the widest vectors, whatever the instruction set; each has the bytes
//! and the rate of its weights' precision. The partition's model ([`crate::partition`]) gives the
//! bytes of each level: the misses of the second level come from the shared cache, those of the
//! first from the second (deepcpu section 3, equation 1, per level).

use std::collections::HashMap;
use std::ops::Range;

use super::chunks::{chunk_steps, direction_bytes, slice_bytes, slice_bytes_of, step_bytes};
use super::rates::Rates;
use super::{Configuration, InputProjectionBy, LayerPlan, OwnersShare};
use crate::model::{Direction, Layer, Matrix, Model, Precision, StepWeights, TreeWeights, Weights};
use crate::partition::{Grain, Part, Problem, Sequence, Shape};
use crate::schedule::{DirectionSchedule, PanelOrder};

/// Part of the arithmetic peak that tiles of few and of many rows reach.
const TILE_EFFICIENCY: f64 = 0.93;
/// What the time of a worker's part of a step depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StepKey {
    rows: usize,
    depth: usize,
    units: usize,
    gates: usize,
    precision: Precision,
    chunk: usize,
    order: PanelOrder,
    /// Bytes of the other weights that the worker reads at the same step.
    others: usize,
}

/// Estimated times of configurations for one size of request.
pub(super) struct Costs<'r> {
    rates: &'r Rates,
    size: (usize, usize),
    /// Seconds of a product of a step, by what decides them: many arrangements share them.
    steps: HashMap<StepKey, f64>,
}

impl Costs<'_> {
    /// Of runs of `size`, batch and steps.
    pub fn new(rates: &Rates, size: (usize, usize)) -> Costs<'_> {
        Costs {
            rates,
            size,
            steps: HashMap::new(),
        }
    }

    /// With the rates of this machine.
    pub fn here(size: (usize, usize)) -> Costs<'static> {
        Costs::new(Rates::here(), size)
    }

    /// Seconds of a step of a tree's cell.
    pub fn of_tree(&mut self, weights: &TreeWeights<'_>, way: &Configuration) -> f64 {
        let plan = &way.layers[0];
        let partition = &plan.directions[0].partition;
        let units = partition.units.iter().map(Range::len).max().unwrap_or(0);
        let weights = weights.step_weights();
        let matrices = [Some(weights.input), weights.recurrent];
        let rows = matrices.iter().flatten().map(|matrix| matrix.row_bytes());
        let all = rows.sum::<usize>() * units * weights.step.gates.len();
        let step = self.step(&weights, &matrices, plan, self.size.0, (units, 0), all);
        if partition.is_shared() {
            step + self.rates.meeting + self.rates.region
        } else {
            step
        }
    }

    /// Seconds of a run as the configuration says.
    pub fn as_is(&mut self, model: &Model, way: &Configuration) -> f64 {
        let rows = self.size.0.div_ceil(way.row_groups);
        let layers = way.layers.iter().zip(model.layers());
        let layers: Vec<f64> = layers
            .map(|(plan, layer)| self.layer(layer, plan, rows, way.group_size()))
            .collect();
        self.run(way, &layers)
    }

    /// Seconds of a run with these times of its layers.
    fn run(&self, way: &Configuration, layers: &[f64]) -> f64 {
        let region = match way.threads {
            1 => 0.0,
            _ => self.rates.region,
        };
        region
            + if way.is_wavefront() {
                wavefront(way, layers, self.size.1)
            } else {
                layers.iter().sum::<f64>()
            }
    }

    /// Seconds of a run, each layer in the order of panels that suits it.
    pub fn ordered(&mut self, model: &Model, mut way: Configuration) -> (f64, Configuration) {
        let rows = self.size.0.div_ceil(way.row_groups);
        let workers = way.group_size();
        let mut layers = Vec::with_capacity(way.layers.len());
        for (plan, layer) in way.layers.iter_mut().zip(model.layers()) {
            plan.chunk_steps = chunk_steps(layer, plan, rows, self.size.1);
            self.balance(layer, plan, rows, workers);
            let [cyclic, serpentine] = [PanelOrder::Cyclic, PanelOrder::Serpentine].map(|order| {
                plan.order = order;
                self.layer(layer, plan, rows, workers)
            });
            // Of equals, serpentine for a single row whose weights exceed the first level: effects
            // that the model leaves out (prefetchers, conflicts within a set) favour it.
            let repeated = rows == 1 && self.size.1 > 1;
            let leaves_l1 = repeated && slice_bytes(layer, plan) > self.rates.private[0];
            let better = if leaves_l1 {
                serpentine <= cyclic
            } else {
                serpentine < 0.99 * cyclic
            };
            plan.order = if better {
                PanelOrder::Serpentine
            } else {
                PanelOrder::Cyclic
            };
            layers.push(cyclic.min(serpentine));
        }
        if let ([layer], [plan]) = (model.layers(), &mut way.layers[..]) {
            self.to_and_fro_over_runs(layer, plan);
        }
        (self.run(&way, &layers), way)
    }

    /// A single step reads all weights once. If both products are swept serpentine together, with
    /// none ahead, the next run starts with the weights that this run left in the caches. That
    /// matters where the weights exceed the second level, and only for a single layer: others would
    /// evict them.
    fn to_and_fro_over_runs(&self, layer: &Layer, plan: &mut LayerPlan) {
        let bytes = |of: fn(&Weights) -> &Matrix| slice_bytes_of(layer, plan, of);
        let all = bytes(|w| &w.recurrent) + bytes(|w| &w.input);
        if self.size.1 == 1
            && plan.ahead == InputProjectionBy::Owners
            && all > self.rates.private[1]
        {
            plan.order = PanelOrder::Serpentine;
            for (direction, plan) in layer.directions().iter().zip(&mut plan.directions) {
                plan.schedule = DirectionSchedule::none_ahead(direction);
            }
        }
    }

    /// Seconds of one layer, all steps.
    fn layer(&mut self, layer: &Layer, plan: &LayerPlan, rows: usize, workers: usize) -> f64 {
        let times = self.times(layer, plan, rows, workers);
        match plan.ahead {
            InputProjectionBy::Owners => times.ahead + times.steps,
            InputProjectionBy::Rows {
                workers: takers,
                owners_share,
            } => {
                let owners = (0..takers).filter(|&w| plan.is_owner(w)).count();
                self.relayed(&times, plan.chunk_steps, (takers, owners), owners_share)
            }
        }
    }

    /// What a layer's time is made of.
    fn times(&mut self, layer: &Layer, plan: &LayerPlan, rows: usize, workers: usize) -> Times {
        let steps = self.size.1 as f64;
        let shared = plan.directions.iter().any(|d| d.partition.is_shared());
        let meetings = if shared {
            layer.phases() as f64 * self.rates.meeting
        } else {
            0.0
        };
        let (mut step, mut ahead, mut all_ahead) = (0f64, 0f64, Ahead::default());
        for worker in 0..workers {
            let (mut own_step, mut own_ahead) = (0.0, Ahead::default());
            let of_layer = step_bytes(layer, plan, worker);
            for (direction, plan_of) in layer.directions().iter().zip(&plan.directions) {
                let all = if plan.takes_directions_in_turn(workers) {
                    direction_bytes(direction, plan_of, worker)
                } else {
                    of_layer
                };
                let units = plan_of.partition.units[worker].len();
                let projected = plan_of.partition.projected[worker].len();
                if units + projected > 0 {
                    let weights = direction.step_weights();
                    let recurrent = [weights.recurrent];
                    own_step +=
                        self.step(&weights, &recurrent, plan, rows, (units, projected), all);
                }
                if units > 0 {
                    own_ahead += self.ahead(direction, rows, units);
                }
            }
            step = step.max(own_step);
            let chunks = self.size.1.div_ceil(plan.chunk_steps) as f64;
            ahead = ahead.max(own_ahead.chunks(chunks, 1.0));
            all_ahead += own_ahead;
        }
        Times {
            ahead,
            all_ahead,
            steps: steps * (step + meetings),
        }
    }

    /// Seconds of a layer whose rows are taken ahead by `takers` workers while the `owners` among
    /// them run the steps of the chunk before.
    fn relayed(
        &self,
        times: &Times,
        chunk_steps: usize,
        (takers, owners): (usize, usize),
        owners_share: OwnersShare,
    ) -> f64 {
        let chunks = self.size.1.div_ceil(chunk_steps).max(1) as f64;
        let even = 1.0 / takers as f64;
        let own = match (owners, takers - owners) {
            (0, _) => 0.0,
            (_, 0) => even,
            _ => even * f64::from(owners_share.eighths()) / 8.0,
        };
        let free = match takers - owners {
            0 => 0.0,
            free => (1.0 - own * owners as f64) / free as f64,
        };
        // One chunk's worth of each.
        let of = |share: f64| {
            if share > 0.0 {
                times.all_ahead.chunks(chunks, share) / chunks
            } else {
                0.0
            }
        };
        let steps = times.steps / chunks;
        let between = (of(own) + steps).max(of(free));
        let meetings = 2.0 * chunks * self.rates.meeting;
        of(even) + (chunks - 1.0) * between + steps + meetings
    }

    /// Chooses the chunk and the owners' share of it, where workers that run no steps take rows.
    fn balance(&mut self, layer: &Layer, plan: &mut LayerPlan, rows: usize, workers: usize) {
        let InputProjectionBy::Rows {
            workers: takers, ..
        } = plan.ahead
        else {
            return;
        };
        let owners = (0..takers).filter(|&w| plan.is_owner(w)).count();
        if owners == 0 || owners == takers {
            return;
        }
        let steps = self.size.1;
        let whole = plan.chunk_steps;
        let mut best: Option<(f64, usize, OwnersShare)> = None;
        for chunk in [1, 2, 4, 8, 16].map(|parts| steps.div_ceil(parts).min(whole).max(1)) {
            plan.chunk_steps = chunk;
            // The share changes neither the cost of a row nor that of the steps.
            let times = self.times(layer, plan, rows, workers);
            for share in OwnersShare::all() {
                let seconds = self.relayed(&times, chunk, (takers, owners), share);
                if best.is_none_or(|(least, _, _)| seconds < least) {
                    best = Some((seconds, chunk, share));
                }
            }
        }
        if let Some((_, chunk, owners_share)) = best {
            plan.chunk_steps = chunk;
            plan.ahead = InputProjectionBy::Rows {
                workers: takers,
                owners_share,
            };
        }
    }

    /// Seconds of one worker's part of one step: of the products with these matrices, and of a
    /// projection.
    fn step(
        &mut self,
        weights: &StepWeights<'_>,
        matrices: &[Option<&Matrix>],
        plan: &LayerPlan,
        rows: usize,
        (units, projected): (usize, usize),
        all: usize,
    ) -> f64 {
        let gates = weights.step.gates.len();
        let key = |matrix: &Matrix, units: usize, gates: usize| StepKey {
            rows,
            depth: matrix.cols(),
            units,
            gates,
            precision: matrix.precision(),
            chunk: plan.chunk_steps,
            order: plan.order,
            others: all.saturating_sub(matrix.row_bytes() * units * gates),
        };
        let products = matrices.iter().flatten();
        let mut seconds = products
            .map(|matrix| self.product(key(matrix, units, gates)))
            .sum::<f64>();
        if let Some(projection) = weights.projection.filter(|_| projected > 0) {
            seconds += self.product(key(projection, projected, 1));
        }
        let vectors = units.div_ceil(16) as f64 * rows as f64;
        let activations = weights.step.activations;
        seconds + self.rates.phase + vectors * f64::from(activations) * self.rates.gate
    }

    /// Seconds of a product of a step, its weights where the caches keep them.
    fn product(&mut self, key: StepKey) -> f64 {
        if key.units == 0 {
            return 0.0;
        }
        let rates = self.rates;
        *self.steps.entry(key).or_insert_with(|| {
            let bytes = key.precision.bytes();
            let shape =
                Shape::f32(key.rows, key.depth, key.units, key.gates).with_weights_of(bytes);
            let grain = Grain::default().swept(key.order, &shape);
            let state = key.rows.saturating_mul(key.units).max(1);
            let moved = |level: usize| {
                let problem = Problem {
                    shape,
                    grain,
                    sequence: Sequence {
                        // What is asked for is the steady state.
                        steps: usize::MAX,
                        chunk_steps: key.chunk,
                        kept_bytes: 4 + key.others.div_ceil(state),
                        streamed_bytes: 4,
                    },
                    cache: rates.cache(level),
                };
                let part = Part {
                    rows: key.rows,
                    units: key.units,
                    depth: key.depth,
                };
                problem.part_movement(part, key.order).per_step as f64
            };
            let work = 2.0 * (shape.b_bytes() / bytes as u64) as f64 * key.rows as f64;
            let efficiency = if key.rows == 1 { 1.0 } else { TILE_EFFICIENCY };
            let tiles = grain.row_tiles(key.rows, &shape, shape.b_bytes());
            let read = (shape.b_bytes() as f64) * tiles as f64;
            let [l1, l2, l3] = rates.bandwidth;
            // What comes from further away waits for it; the rest overlaps with the arithmetic.
            let (from_l2, from_l3) = (moved(0), moved(1));
            let bytes = (read / l1).max(from_l2 / l2) + from_l3 * (1.0 / l3 - 1.0 / l2);
            bytes.max(work / (rates.operations(key.precision) * efficiency))
        })
    }

    /// The input products of one worker's units, all steps.
    fn ahead(&self, direction: &Direction, rows: usize, units: usize) -> Ahead {
        let gates = direction.cell().kind().gates();
        let input = &direction.weights().input;
        let values = (input.cols() * units * gates) as f64;
        let rows = rows as f64 * self.size.1 as f64;
        Ahead {
            arithmetic: 2.0 * values * rows
                / (self.rates.operations(input.precision()) * TILE_EFFICIENCY),
            weights: input.precision().bytes() as f64 * values / self.rates.bandwidth[2],
        }
    }
}

/// Seconds of a layer's parts, all steps.
struct Times {
    /// Products taken ahead by the units' owners: the slowest worker's.
    ahead: f64,
    /// The sum over all workers.
    all_ahead: Ahead,
    /// Steps and their barriers.
    steps: f64,
}

/// Seconds of products that are taken ahead.
#[derive(Clone, Copy, Default)]
struct Ahead {
    /// Of their arithmetic, all steps.
    arithmetic: f64,
    /// Of reading their weights once.
    weights: f64,
}

impl Ahead {
    /// Of a share of the rows, in `chunks` chunks.
    fn chunks(self, chunks: f64, share: f64) -> f64 {
        (share * self.arithmetic).max(chunks * self.weights)
    }
}

impl std::ops::AddAssign for Ahead {
    fn add_assign(&mut self, other: Ahead) {
        self.arithmetic += other.arithmetic;
        self.weights += other.weights;
    }
}

/// Seconds of layers that follow each other through the steps: the slowest stage, and a chunk of
/// each of the others before and after it.
fn wavefront(way: &Configuration, layers: &[f64], steps: usize) -> f64 {
    let mut stages: Vec<(f64, f64)> = Vec::new();
    for (index, (plan, seconds)) in way.layers.iter().zip(layers).enumerate() {
        let chunk = seconds * plan.chunk_steps as f64 / steps.max(1) as f64;
        let same = index > 0 && {
            let below = &way.layers[index - 1];
            (0..way.group_size()).any(|w| below.is_owner(w) && plan.is_owner(w))
        };
        match stages.last_mut() {
            Some(stage) if same => *stage = (stage.0 + seconds, stage.1 + chunk),
            _ => stages.push((*seconds, chunk)),
        }
    }
    let slowest = stages.iter().map(|s| s.0).fold(0.0, f64::max);
    let chunks: f64 = stages.iter().map(|s| s.1).sum();
    slowest + chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lstm, Precision};

    /// A core's 512 units have 8 MiB of recurrent weights in f32, 4 in bf16, 2 in int8, beside 2
    /// MiB of L2.
    #[test]
    fn fewer_bytes_and_faster_products_take_less_time() {
        let model = Lstm::new(64, 1024).random(1).unwrap();
        let rates = Rates::of([48 << 10, 2 << 20]);
        let seconds = |precision: Precision, batch: usize| {
            let model = model.in_precision(precision).unwrap();
            let way = Configuration::with_threads(&model, batch, 100, 2);
            Costs::new(&rates, (batch, 100)).as_is(&model, &way)
        };
        let [f32, bf16, int8] = Precision::ALL.map(|precision| seconds(precision, 1));
        assert!(bf16 < 0.6 * f32 && int8 < 0.6 * bf16, "{f32} {bf16} {int8}");
        // Of many sequences the arithmetic counts.
        let [f32, bf16, int8] = Precision::ALL.map(|precision| seconds(precision, 600));
        assert!(
            bf16 > f32 && (0.25..0.4).contains(&(int8 / f32)),
            "{f32} {bf16} {int8}"
        );
    }
}
