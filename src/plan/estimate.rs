//! A plan without measuring.
//!
//! ```text
//! for each arrangement of the model over the cores, panels cyclic or serpentine
//!   step of a worker = max(arithmetic, bytes from each level / its bandwidth) + gates
//!   step of a layer  = its slowest worker + a meeting per phase, where anybody shares
//!   ahead, per chunk = arithmetic or bytes, divided among those who take it; where some of them run no
//!                      steps, beside the steps of the chunk before, in the shares that balance both
//! the least, and of those within a hundredth of it the one with the fewest cores
//! ```
//!
//! Products are taken for those of the widest vectors, whatever the instruction set; each has the
//! bytes and the rate of its weights' precision. Which bytes come from which level is the
//! partition's model ([`crate::partition`]), asked twice: what the second level cannot keep comes
//! from the shared cache, what the first cannot keep from the second (deepcpu section 3, equation
//! 1, per level).

use std::collections::HashMap;
use std::ops::Range;

use super::rates::Rates;
use super::{
    Configuration, DirectionPlan, InputProjectionBy, LayerPlan, MAX_THREADS, OwnersShare,
    Partition, Plan, PlanError, arrangements, split_units,
};
use crate::machine::CacheModel;
use crate::model::{Direction, Layer, Matrix, Model, Precision, StepWeights, TreeWeights, Weights};
use crate::partition::{Grain, Part, Problem, Sequence, Shape};
use crate::schedule::{DirectionSchedule, PanelOrder};
use cellstream_kernels::Blocking;

/// Bytes of hoisted pre-activations per worker: a part of the second-level cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Likewise where they had better be in the shared cache than the input weights be read often.
const LONG_CHUNK_BYTES: usize = 8 << 20;
/// Steps taken together at the least, where there are as many: rows of a tall tile.
const CHUNK_ROWS: usize = 12;
/// Part of the arithmetic peak that tiles of few and of many rows reach.
const TILE_EFFICIENCY: f64 = 0.93;

impl Plan {
    /// The plan that should be fastest on up to `cores` cores for `batch` sequences of `steps`
    /// steps, judged by arithmetic and by bytes against this machine's caches. `cores` 0 counts
    /// as 1. This machine's cores are [`crate::machine::Topology::team_size`].
    pub fn estimate(model: &Model, batch: usize, steps: usize, cores: usize) -> Plan {
        let configuration = estimate(model, (batch, steps), cores, Rates::here());
        Plan::of(configuration, batch, steps)
    }

    /// The plan that splits every layer over exactly `threads` workers (from 1 to
    /// [`MAX_THREADS`]). Two directions get half of
    /// the workers each, where the number is even: they need not meet at every step then.
    pub fn with_threads(model: &Model, batch: usize, steps: usize, threads: usize) -> Plan {
        let configuration = Configuration::with_threads(model, batch, steps, threads);
        Plan::of(configuration, batch, steps)
    }
}

impl Configuration {
    /// Seconds that the estimate expects of a run of `batch` sequences of `steps` steps, with this
    /// machine's caches and the rates of a server core of 2024: good for comparing plans, within a
    /// factor of two or so as a time.
    ///
    /// # Errors
    /// What [`Configuration::check`] refuses.
    pub fn expected(&self, model: &Model, batch: usize, steps: usize) -> Result<f64, PlanError> {
        self.check(model)?;
        let mut costs = Costs::here((batch, steps));
        Ok(costs.as_is(model, self))
    }

    /// As [`Plan::with_threads`].
    pub fn with_threads(
        model: &Model,
        batch: usize,
        steps: usize,
        threads: usize,
    ) -> Configuration {
        let threads = threads.clamp(1, MAX_THREADS);
        let layers = model.layers().iter();
        let configuration = Configuration {
            threads,
            row_groups: 1,
            layers: layers
                .map(|layer| plan_layer(layer, batch, steps, threads))
                .collect(),
        };
        configuration.with_blocking(model, CacheModel::here())
    }
}

fn plan_layer(layer: &Layer, batch: usize, steps: usize, threads: usize) -> LayerPlan {
    let apart = layer.directions().len() == 2 && threads.is_multiple_of(2);
    let directions = (layer.directions().iter().enumerate()).map(|(index, direction)| {
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
        DirectionPlan {
            schedule: DirectionSchedule::all_ahead(direction),
            partition: Partition {
                units: place(direction.hidden_size()),
                projected: place(projected),
            },
            blocking: Blocking::default(),
        }
    });
    let mut plan = LayerPlan {
        chunk_steps: 1,
        ahead: InputProjectionBy::Owners,
        order: PanelOrder::Cyclic,
        directions: directions.collect(),
    };
    plan.chunk_steps = chunk_steps(layer, &plan, batch, steps);
    plan
}

/// As many steps as their pre-activations leave room for in the second-level cache; or more, if
/// writing and reading them in the shared cache moves less than reading the input weights once for
/// each short chunk.
fn chunk_steps(layer: &Layer, plan: &LayerPlan, batch: usize, steps: usize) -> usize {
    let units = plan.directions.iter().flat_map(|d| &d.partition.units);
    let widest = units.map(|r| r.len()).max().unwrap_or(0);
    let row_bytes = widest.max(1) * 4 * layer.kind().gates();
    let within = |bytes: usize| {
        let rows = (bytes / row_bytes).max(CHUNK_ROWS);
        (rows / batch.max(1)).clamp(1, steps.max(1))
    };
    let [short, long] = [CHUNK_BYTES, LONG_CHUNK_BYTES].map(within);
    let inputs = layer.directions().iter().map(|d| &d.weights().input);
    let bytes = inputs.map(|matrix| matrix.precision().bytes()).max();
    let weights = widest.max(1) * layer.kind().gates() * layer.input_size() * bytes.unwrap_or(0);
    let per_step = |chunk: usize| weights as f64 / chunk as f64;
    let results = 2.0 * row_bytes as f64 * batch as f64;
    match per_step(long) + results < per_step(short) {
        true => long,
        false => short,
    }
}

/// Bytes of the weights that a worker reads at each step of the layer.
fn step_bytes(layer: &Layer, plan: &LayerPlan, worker: usize) -> usize {
    let parts = layer.directions().iter().zip(&plan.directions);
    let bytes = parts.map(|(direction, plan)| {
        let units = plan.partition.units[worker].len();
        let projected = plan.partition.projected[worker].len();
        let gates = direction.cell().kind().gates();
        let weights = direction.weights();
        let projection = weights.projection.as_ref();
        units * gates * weights.recurrent.row_bytes()
            + projection.map_or(0, |matrix| projected * matrix.row_bytes())
    });
    bytes.sum()
}

/// Bytes of the recurrent weights of the largest slice.
fn slice_bytes(layer: &Layer, plan: &LayerPlan) -> usize {
    slice_bytes_of(layer, plan, |weights| &weights.recurrent)
}

/// Bytes of a matrix, of the largest slice of units.
fn slice_bytes_of(layer: &Layer, plan: &LayerPlan, of: fn(&Weights) -> &Matrix) -> usize {
    let slices = layer.directions().iter().zip(&plan.directions);
    let slices = slices.map(|(direction, plan)| {
        let units = plan.partition.units.iter().map(|r| r.len()).max();
        units.unwrap_or(0) * of(direction.weights()).row_bytes() * layer.kind().gates()
    });
    slices.max().unwrap_or(0)
}

/// The least estimated time over all arrangements, in both orders of panels.
fn estimate(model: &Model, size: (usize, usize), cores: usize, rates: &Rates) -> Configuration {
    let cores = cores.clamp(1, MAX_THREADS);
    let mut costs = Costs {
        rates,
        size,
        steps: HashMap::new(),
    };
    let ways = arrangements(model, size, cores).into_iter();
    match least(ways.map(|way| costs.ordered(model, way))) {
        Some(configuration) => configuration.with_blocking(model, CacheModel::here()),
        None => Configuration::with_threads(model, size.0, size.1, 1),
    }
}

/// The configuration of the least time. They are in ascending order of cores: more cores need a
/// gain.
pub(super) fn least(timed: impl Iterator<Item = (f64, Configuration)>) -> Option<Configuration> {
    let best = timed.reduce(|best, other| if other.0 < 0.99 * best.0 { other } else { best });
    best.map(|(_, configuration)| configuration)
}

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
    /// With the rates of this machine.
    pub fn here(size: (usize, usize)) -> Costs<'static> {
        Costs {
            rates: Rates::here(),
            size,
            steps: HashMap::new(),
        }
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
        match partition.is_shared() {
            true => step + self.rates.meeting + self.rates.region,
            false => step,
        }
    }

    /// Seconds of a run as the configuration says.
    fn as_is(&mut self, model: &Model, way: &Configuration) -> f64 {
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
            + match way.is_wavefront() {
                false => layers.iter().sum::<f64>(),
                true => wavefront(way, layers, self.size.1),
            }
    }

    /// Seconds of a run, each layer in the order of panels that suits it.
    fn ordered(&mut self, model: &Model, mut way: Configuration) -> (f64, Configuration) {
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
            let better = match leaves_l1 {
                true => serpentine <= cyclic,
                false => serpentine < 0.99 * cyclic,
            };
            plan.order = match better {
                true => PanelOrder::Serpentine,
                false => PanelOrder::Cyclic,
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
            let all = step_bytes(layer, plan, worker);
            for (direction, plan_of) in layer.directions().iter().zip(&plan.directions) {
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
        let of = |share: f64| match share > 0.0 {
            true => times.all_ahead.chunks(chunks, share) / chunks,
            false => 0.0,
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
    /// Steps and their meetings.
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
    use crate::model::{Lstm, Merge};

    fn of(model: &Model, size: (usize, usize), cores: usize, l2: usize) -> Configuration {
        estimate(model, size, cores, &Rates::of([48 << 10, l2]))
    }

    #[test]
    fn a_model_that_one_core_keeps_wakes_no_other() {
        let model = Lstm::new(8, 16).random(1).unwrap();
        assert_eq!(of(&model, (1, 100), 8, 1 << 20).threads, 1);
        let model = Lstm::new(64, 512).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 2 << 20);
        assert_eq!((plan.threads, plan.row_groups), (2, 1));
        assert!(plan.layers[0].directions[0].partition.is_shared());
    }

    #[test]
    fn small_weights_and_many_sequences_make_groups_that_never_meet() {
        let model = Lstm::new(64, 64).random(1).unwrap();
        let plan = of(&model, (20, 100), 2, 1 << 20);
        assert_eq!((plan.threads, plan.row_groups), (2, 2));
    }

    #[test]
    fn more_weights_than_a_cache_keeps_are_swept_to_and_fro() {
        let model = Lstm::new(64, 768).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 2 << 20);
        assert_eq!(plan.layers[0].order, PanelOrder::Serpentine);
    }

    /// 1 MiB of each matrix.
    #[test]
    fn a_single_step_takes_both_products_together_where_a_cache_does_not_keep_them() {
        let model = Lstm::new(256, 256).random(1).unwrap();
        let together = |steps: usize, l2: usize| {
            let plan = of(&model, (1, steps), 1, l2);
            let layer = &plan.layers[0];
            let ahead = layer.directions[0].schedule.is_ahead();
            (layer.order == PanelOrder::Serpentine, ahead)
        };
        assert_eq!(together(1, 1 << 20), (true, false));
        assert!(together(1, 2 << 20).1 && together(10, 1 << 20).1);
    }

    #[test]
    fn a_large_input_on_few_units_is_taken_by_all() {
        let model = Lstm::new(4096, 32).random(1).unwrap();
        let plan = of(&model, (1, 100), 2, 1 << 20);
        assert_eq!(plan.threads, 2);
        assert_ne!(plan.layers[0].ahead, InputProjectionBy::Owners);
    }

    /// A core's 512 units have 8 MiB of recurrent weights in f32, 4 in bf16, 2 in int8, beside 2
    /// MiB of L2.
    #[test]
    fn fewer_bytes_and_faster_products_take_less_time() {
        let model = Lstm::new(64, 1024).random(1).unwrap();
        let rates = Rates::of([48 << 10, 2 << 20]);
        let seconds = |precision: Precision, batch: usize| {
            let model = model.in_precision(precision).unwrap();
            let way = Configuration::with_threads(&model, batch, 100, 2);
            let mut costs = Costs {
                rates: &rates,
                size: (batch, 100),
                steps: HashMap::new(),
            };
            costs.as_is(&model, &way)
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

    /// Chunks fit a cache and their sequence, and are no shorter for heavier input weights, which
    /// are read once for each chunk.
    #[test]
    fn chunks_fit_and_are_no_shorter_for_more_bytes_of_weights() {
        for (input, batch, steps) in [(256, 1, 10_000), (256, 1, 40), (16, 7, 500), (512, 64, 9)] {
            let model = Lstm::new(input, 256).random(1).unwrap();
            let [f32, bf16, int8] = Precision::ALL.map(|precision| {
                let model = model.in_precision(precision).unwrap();
                let way = Configuration::with_threads(&model, batch, steps, 1);
                way.layers[0].chunk_steps
            });
            assert!(f32 >= bf16 && bf16 >= int8, "{f32} {bf16} {int8}");
            let bytes = |chunk: usize| chunk * batch * 4 * 4 * 256;
            assert!((1..=steps).contains(&f32) && bytes(f32) <= LONG_CHUNK_BYTES);
            assert!(int8 == steps || bytes(int8 + 1) > CHUNK_BYTES);
        }
    }

    #[test]
    fn every_estimate_fits_its_model() {
        let stack = Lstm::new(5, 40).layers(3).bidirectional(Merge::Sum);
        let model = stack.random(1).unwrap();
        for cores in [0, 1, 2, 5, 16] {
            for size in [(0, 0), (1, 1), (3, 50), (1 << 40, 1 << 40)] {
                let plan = of(&model, size, cores, 1 << 20);
                plan.check(&model).unwrap();
                assert!(plan.threads <= cores.max(1));
            }
        }
    }
}
