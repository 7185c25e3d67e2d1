//! What each core of a configuration holds, and what it moves.
//!
//! ```text
//! for each core, of each layer
//!   products of a step      recurrent weights; input weights that are not taken ahead; projection
//!   for each private cache of the core
//!     for each of these products
//!       movement of the product, in a cache where the other products' weights take room too
//! ```
//!
//! The movement is that of [`Problem`]: bytes between a cache and whatever stands behind it. Asked
//! with the largest private cache that is the traffic with the shared cache, which the paper's
//! private-cache-aware partitioning minimises; asked with L1, the traffic with L2.
//!
//! Weights have the bytes of their precision, states and pre-activations those of f32. What int8
//! adds is small and left out: a scale for each row, and the states quantised.

use std::ops::Range;

use super::rates::{PAGE, WAYS};
use super::{Configuration, DirectionPlan, InputProjectionBy, LayerPlan, PlanError};
use crate::machine::{Core, Level, Topology};
use crate::model::{CellKind, Direction, Layer, Matrix, Model, Precision, Product};
use crate::partition::{Cache, Grain, Movement, PanelOrder, Part, Problem, Sequence, Shape, Split};
use crate::schedule::PhasePlacement;
use gatestream_kernels::{Blocking, Stripes};

/// What the cores of a team hold and move of one layer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LayerTraffic {
    /// One per worker of the team.
    pub cores: Vec<CoreTraffic>,
    /// Bytes that as many cores would move between the shared cache and private ones at every step
    /// if no core kept its weights: the sum over the products of the step (one with
    /// the input, one with the state, one for the projection, each direction its own) of
    /// [`Problem::once`], `P·|A| + |B| + 2·|C|` for `P` cores.
    pub forgetful: u64,
}

impl LayerTraffic {
    /// Movement into the largest private caches at the steps, all cores together.
    pub fn steps(&self) -> Movement {
        let mut all = Movement::default();
        let caches = self.cores.iter().filter_map(|core| core.caches.last());
        caches.for_each(|cache| all.add(cache.steps, 1));
        all
    }

    /// Likewise for the products taken ahead of one chunk of steps, from cold caches.
    pub fn ahead(&self) -> u64 {
        let caches = self.cores.iter().filter_map(|core| core.caches.last());
        caches.fold(0, |all, cache| all.saturating_add(cache.ahead))
    }
}

/// What one core holds and moves of one layer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CoreTraffic {
    /// Sequences that it works on.
    pub sequences: usize,
    /// Hidden units of each direction that it owns.
    pub units: Vec<Range<usize>>,
    /// Rows of each direction's projection that it owns.
    pub projected: Vec<Range<usize>>,
    /// Bytes of the weights that it reads at every step, its last panel of 16 units filled up.
    pub step_weights: u64,
    /// Bytes of the weights that it reads once per chunk of steps, likewise.
    pub ahead_weights: u64,
    /// Bytes of pre-activations that it keeps from when they are taken ahead until their step; of a
    /// GRU that resets after, with the room for the fourth part.
    pub ahead_results: u64,
    /// Where the weights of the steps stay.
    #[cfg_attr(feature = "serde", serde(serialize_with = "level_name"))]
    pub home: Level,
    /// Its private data caches, from the nearest.
    pub caches: Vec<IntoCache>,
}

/// What one core moves between one of its private caches and what stands behind that.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IntoCache {
    /// 1 is the nearest.
    pub level: u8,
    /// Its capacity.
    pub bytes: usize,
    /// The part of [`CoreTraffic::step_weights`], from 0 to 1, that is still there at the next
    /// step.
    pub kept: f64,
    /// Bytes moved at the steps; the total is that of the first and as many later ones as there
    /// are. All of the state counts as written by others, as in the paper.
    pub steps: Movement,
    /// Bytes moved by what is taken ahead of one chunk, from a cold cache.
    pub ahead: u64,
}

#[cfg(feature = "serde")]
fn level_name<S: serde::Serializer>(level: &Level, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format!("{level:?}").to_lowercase())
}

impl Configuration {
    /// What each core holds and moves when `batch` sequences of `steps` steps are run on
    /// `topology`, by layer; with panels of 16 units, as on AVX-512. Narrower vectors round a
    /// core's units up to fewer.
    ///
    /// ```
    /// use gatestream::Plan;
    /// use gatestream::machine::Topology;
    /// use gatestream::model::Lstm;
    ///
    /// let model = Lstm::new(64, 256).random(1)?;
    /// let plan = Plan::with_threads(&model, 1, 100, 2);
    /// let traffic = plan.entries[0].configuration.traffic(&model, 1, 100, &Topology::detect())?;
    /// let core = &traffic[0].cores[1];
    /// assert_eq!(core.units[0], 128..256);
    /// assert_eq!(core.step_weights, 256 * 128 * 4 * 4); // [256] into 128 units of 4 gates, in f32
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What [`Configuration::check`] refuses.
    pub fn traffic(
        &self,
        model: &Model,
        batch: usize,
        steps: usize,
        topology: &Topology,
    ) -> Result<Vec<LayerTraffic>, PlanError> {
        self.check(model)?;
        let cpus = topology.cpus_for_team(self.threads);
        let core = |cpu: &usize| topology.cores.iter().find(|core| core.cpus.contains(cpu));
        let run = Run {
            configuration: self,
            cores: &cpus.iter().map(core).collect::<Vec<_>>(),
            topology,
            batch,
            steps,
        };
        // Layers of a stack are mostly alike: each kind is worked out once.
        let mut done: Vec<(&LayerPlan, Vec<Sizes>, LayerTraffic)> = Vec::new();
        let layers = self.layers.iter().zip(model.layers());
        let traffic = layers.map(|(plan, layer)| {
            let sizes: Vec<_> = layer.directions().iter().map(Sizes::of).collect();
            let alike = |(p, s, _): &&(_, _, _)| *p == plan && *s == sizes;
            if let Some((.., known)) = done.iter().find(alike) {
                return known.clone();
            }
            let traffic = run.layer(plan, layer);
            done.push((plan, sizes, traffic.clone()));
            traffic
        });
        Ok(traffic.collect())
    }
}

/// All that the traffic of a direction depends on.
#[derive(PartialEq)]
struct Sizes(CellKind, usize, [usize; 3], [Option<Precision>; 3]);

impl Sizes {
    fn of(direction: &Direction) -> Sizes {
        let sizes = [
            direction.input_size(),
            direction.hidden_size(),
            direction.output_size(),
        ];
        let precisions = direction.weights().precisions();
        let kind = direction.cell().kind();
        Sizes(kind, direction.step().phases(), sizes, precisions)
    }
}

/// A product of every step, as one core has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepProduct {
    /// The index of its direction.
    direction: usize,
    depth: usize,
    units: usize,
    gates: usize,
    /// Of one weight.
    weight_bytes: usize,
    grain: Grain,
    /// It adds to what was taken ahead.
    continues: bool,
    cell_state: bool,
}

impl StepProduct {
    /// The product with `rows` rows.
    fn shape(&self, rows: usize) -> Shape {
        Shape::f32(rows, self.depth, self.units, self.gates).with_weights_of(self.weight_bytes)
    }
}

struct Run<'a> {
    configuration: &'a Configuration,
    cores: &'a [Option<&'a Core>],
    topology: &'a Topology,
    batch: usize,
    steps: usize,
}

impl Run<'_> {
    fn layer(&self, plan: &LayerPlan, layer: &Layer) -> LayerTraffic {
        let threads = self.configuration.threads;
        let mut known: Vec<(Vec<StepProduct>, usize, CoreTraffic)> = Vec::new();
        let cores = (0..threads).map(|worker| {
            let (products, rows) = (
                step_products(plan, layer, self.member(worker)),
                self.rows(worker),
            );
            let mut core = self.holdings(plan, layer, worker, &products);
            let place = self.cores.get(worker).copied().flatten();
            // Of a large team most cores have the same to do.
            let same = |(p, r, other): &&(Vec<StepProduct>, usize, CoreTraffic)| {
                *p == products
                    && *r == rows
                    && other.ahead_weights == core.ahead_weights
                    && self
                        .private(place)
                        .eq(other.caches.iter().map(|c| (c.level, c.bytes)))
            };
            core.caches = match known.iter().find(same) {
                Some((.., other)) => other.caches.clone(),
                None => {
                    let ahead = self.ahead_parts(plan, layer, worker);
                    let caches = self.private(place);
                    caches
                        .map(|(level, bytes)| {
                            self.moved_into(plan, level, bytes, rows, &products, &ahead)
                        })
                        .collect()
                }
            };
            known.push((products, rows, core.clone()));
            core
        });
        LayerTraffic {
            cores: cores.collect(),
            forgetful: forgetful(layer, self.batch, threads),
        }
    }

    fn member(&self, worker: usize) -> usize {
        worker % self.configuration.group_size()
    }

    /// Sequences of a worker's group: they are dealt out in turn.
    fn rows(&self, worker: usize) -> usize {
        let groups = self.configuration.row_groups;
        let group = worker / self.configuration.group_size();
        self.batch / groups + usize::from(group < self.batch % groups)
    }

    fn private(&self, core: Option<&Core>) -> impl Iterator<Item = (u8, usize)> {
        let caches = core
            .into_iter()
            .flat_map(|core| self.topology.data_caches(core));
        let private = caches.filter(|cache| cache.sharing_cores == 1);
        private.map(|cache| (cache.level, cache.bytes))
    }

    /// Everything but the movement.
    fn holdings(
        &self,
        plan: &LayerPlan,
        layer: &Layer,
        worker: usize,
        products: &[StepProduct],
    ) -> CoreTraffic {
        let (member, rows) = (self.member(worker), self.rows(worker));
        let partitions = || plan.directions.iter().map(|d| &d.partition);
        let chunk = plan.chunk_steps.min(self.steps);
        let directions = layer.directions().iter().zip(&plan.directions);
        let ahead_results = directions.filter(|(_, d)| d.schedule.is_ahead());
        let ahead_results = ahead_results.map(|(direction, d)| {
            let units = d.partition.units[member].len();
            results_bytes(direction, units).saturating_mul((rows * chunk) as u64)
        });
        let ahead = self.ahead_parts(plan, layer, worker);
        let step_weights = products.iter().map(|p| weight_bytes(p.shape(1))).sum();
        let core = self.cores.get(worker).copied().flatten();
        let together = if plan.takes_directions_in_turn(self.configuration.group_size()) {
            (0..plan.directions.len())
                .map(|of| {
                    let own = products.iter().filter(|p| p.direction == of);
                    own.map(|p| weight_bytes(p.shape(1))).sum()
                })
                .max()
                .unwrap_or(0)
        } else {
            step_weights
        };
        let bytes = usize::try_from(together).unwrap_or(usize::MAX);
        CoreTraffic {
            sequences: rows,
            units: partitions().map(|p| p.units[member].clone()).collect(),
            projected: partitions().map(|p| p.projected[member].clone()).collect(),
            step_weights,
            ahead_weights: ahead.iter().map(|(_, shape)| weight_bytes(*shape)).sum(),
            ahead_results: ahead_results.sum(),
            home: core.map_or(Level::Memory, |core| {
                self.topology.level_holding(core, bytes)
            }),
            caches: Vec::new(),
        }
    }

    /// What a worker takes ahead of a chunk, by direction: its part, and the product it is of.
    fn ahead_parts(&self, plan: &LayerPlan, layer: &Layer, worker: usize) -> Vec<(Part, Shape)> {
        let (member, chunk) = (self.member(worker), plan.chunk_steps.min(self.steps));
        let all = self.rows(worker).saturating_mul(chunk);
        let directions = layer.directions().iter().zip(&plan.directions);
        let parts = directions.map(|(direction, d)| {
            let own = d.partition.units[member].len();
            let (rows, units) = match plan.ahead {
                InputProjectionBy::Owners => (all, own),
                // A chunk of the many, not the first.
                ahead @ InputProjectionBy::Rows { .. } => {
                    let is_first = chunk >= self.steps;
                    let share = ahead.share(all, member, is_first, |w| plan.is_owner(w));
                    if share.is_empty() {
                        (0, 0)
                    } else {
                        (share.len(), direction.hidden_size())
                    }
                }
            };
            let gates = count(&d.schedule.input, PhasePlacement::Ahead);
            let depth = direction.input_size();
            let bytes = direction.weights().input.precision().bytes();
            (
                Part { rows, units, depth },
                Shape::f32(rows, depth, units, gates).with_weights_of(bytes),
            )
        });
        let any = |(part, shape): &(Part, Shape)| {
            ![part.rows, part.units, part.depth, shape.gates].contains(&0)
        };
        parts.filter(any).collect()
    }

    fn moved_into(
        &self,
        plan: &LayerPlan,
        level: u8,
        bytes: usize,
        rows: usize,
        products: &[StepProduct],
        ahead: &[(Part, Shape)],
    ) -> IntoCache {
        // First levels are indexed by the offset within a page.
        let ways = if level == 1 {
            (bytes / PAGE).max(1)
        } else {
            WAYS
        };
        let cache = Cache::new(bytes, ways, PAGE);
        let own = |p: &StepProduct| weight_bytes(p.shape(1));
        let all: u64 = products.iter().map(own).sum();
        let in_turn = plan.takes_directions_in_turn(self.configuration.group_size());
        let (mut steps, mut kept) = (Movement::default(), 0.0);
        for product in products {
            let beside = |p: &&StepProduct| !in_turn || p.direction == product.direction;
            let beside: u64 = products.iter().filter(beside).map(own).sum();
            let problem = self.problem(plan, cache, rows, product, beside - own(product));
            let part = Part {
                rows,
                units: product.units,
                depth: product.depth,
            };
            steps.add(problem.part_movement(part, plan.order), 1);
            kept += problem.weights_kept(part, plan.order) * own(product) as f64;
        }
        let later = (self.steps as u64).saturating_sub(1);
        steps.total = steps
            .first_step
            .saturating_add(steps.per_step.saturating_mul(later));
        if self.steps == 0 {
            steps = Movement::default();
        }
        let taken = ahead.iter().map(|&(part, shape)| {
            let problem = Problem {
                shape,
                grain: Grain::default(),
                sequence: Sequence::of_steps(1),
                cache,
            };
            problem.part_movement(part, PanelOrder::Cyclic).first_step
        });
        IntoCache {
            level,
            bytes,
            kept: if all == 0 { 1.0 } else { kept / all as f64 },
            steps,
            ahead: taken.fold(0, u64::saturating_add),
        }
    }

    /// The product as [`Problem`] knows it. Other products of the step are there as what they push
    /// out of the cache: as bytes that are touched at every step and not counted as moved.
    fn problem(
        &self,
        plan: &LayerPlan,
        cache: Cache,
        rows: usize,
        product: &StepProduct,
        others: u64,
    ) -> Problem {
        let state = rows
            .saturating_mul(product.units.next_multiple_of(product.grain.lanes))
            .max(1);
        let others = usize::try_from(others.div_ceil(state as u64)).unwrap_or(usize::MAX);
        let chunk = plan.chunk_steps.min(self.steps).max(1);
        let (steps, chunk_steps) = match (product.continues, plan.ahead) {
            // Nothing was there before, so each step uses the memory of the one before.
            (false, _) => (2, 1),
            // What the core took ahead itself may still be there; a sequence longer than the chunk
            // makes that a question of what was touched in between.
            (true, InputProjectionBy::Owners) => (chunk + 1, chunk),
            // What others took ahead has to come over.
            (true, InputProjectionBy::Rows { .. }) => (chunk, chunk),
        };
        Problem {
            shape: product.shape(rows),
            grain: product.grain.swept(plan.order, &product.shape(rows)),
            sequence: Sequence {
                steps,
                chunk_steps,
                kept_bytes: others.saturating_add(if product.cell_state { 4 } else { 0 }),
                streamed_bytes: 4,
            },
            cache,
        }
    }
}

/// The products of every step of a layer that a member of a group has a part in.
fn step_products(plan: &LayerPlan, layer: &Layer, member: usize) -> Vec<StepProduct> {
    let directions = layer.directions().iter().zip(&plan.directions);
    let products = directions
        .enumerate()
        .flat_map(|(index, (direction, plan))| {
            let products = of_direction(direction, plan, member);
            products.into_iter().map(move |product| StepProduct {
                direction: index,
                ..product
            })
        });
    products
        .filter(|p| ![p.depth, p.units, p.gates].contains(&0))
        .collect()
}

fn of_direction(direction: &Direction, plan: &DirectionPlan, member: usize) -> Vec<StepProduct> {
    let schedule = &plan.schedule;
    let weights = direction.weights();
    let of_units = |matrix: &Matrix, gates, continues| StepProduct {
        direction: 0,
        depth: matrix.cols(),
        units: plan.partition.units[member].len(),
        gates,
        weight_bytes: matrix.precision().bytes(),
        grain: grain_of(plan.blocking),
        continues,
        cell_state: direction.step().has_cell_state,
    };
    let (input, state) = (&weights.input, &weights.recurrent);
    let operands = state_operands(direction);
    let mut products = Vec::new();
    for phase in [PhasePlacement::Phase(0), PhasePlacement::Phase(1)] {
        products.push(of_units(input, count(&schedule.input, phase), false));
        for operand in &operands {
            let gates = schedule.recurrent.iter().zip(operand);
            let gates = gates.filter(|(place, multiplies)| **place == phase && **multiplies);
            products.push(of_units(state, gates.count(), schedule.is_ahead()));
        }
    }
    products.extend(weights.projection.as_ref().map(|projection| StepProduct {
        direction: 0,
        depth: projection.cols(),
        units: plan.partition.projected[member].len(),
        gates: 1,
        weight_bytes: projection.precision().bytes(),
        grain: Grain::default(),
        continues: false,
        cell_state: false,
    }));
    products
}

/// The grain of products that read their weights so.
fn grain_of(blocking: Blocking) -> Grain {
    let grain = Grain::default();
    match blocking.stripes {
        Stripes::One => Grain {
            one_stripe_bytes: u64::MAX,
            ..grain
        },
        // Short tiles have up to 6 rows.
        Stripes::Two => Grain {
            one_stripe_bytes: 0,
            rows: blocking.tile_rows.max(6),
            ..grain
        },
    }
}

/// The operands of the recurrent weights, and which gates multiply each: a product of its own.
fn state_operands(direction: &Direction) -> Vec<Vec<bool>> {
    let step = direction.step();
    let gates = (0..).take(step.gates.len()).map(Product::Recurrent);
    let of_gates: Vec<_> = gates
        .map(|gate| step.find(gate).map(|found| found.operand))
        .collect();
    let mut operands = of_gates.clone();
    operands.sort_unstable();
    operands.dedup();
    let operands = operands.iter();
    operands
        .map(|operand| of_gates.iter().map(|each| each == operand).collect())
        .collect()
}

fn count(places: &[PhasePlacement], place: PhasePlacement) -> usize {
    places.iter().filter(|p| **p == place).count()
}

/// Bytes of a product's weights, packed.
fn weight_bytes(product: Shape) -> u64 {
    let units = product.units.next_multiple_of(Grain::default().lanes);
    Shape { units, ..product }.b_bytes()
}

/// Bytes of the pre-activations of one sequence and step.
fn results_bytes(direction: &Direction, units: usize) -> u64 {
    let units = units.next_multiple_of(Grain::default().lanes);
    Shape::f32(1, 1, units, direction.step().slots()).c_bytes()
}

fn forgetful(layer: &Layer, batch: usize, threads: usize) -> u64 {
    let once = |matrix: &Matrix, units: usize, gates: usize| {
        let bytes = matrix.precision().bytes();
        let problem = Problem {
            shape: Shape::f32(batch, matrix.cols(), units, gates).with_weights_of(bytes),
            grain: Grain::default(),
            sequence: Sequence::of_steps(1),
            cache: Cache::fully_associative(0),
        };
        let split = Split {
            rows: 1,
            units: threads,
            depth: 1,
        };
        match matrix.cols() {
            0 => 0,
            _ => problem.once(split),
        }
    };
    let of_direction = |direction: &Direction| {
        let (hidden, gates) = (direction.hidden_size(), direction.cell().kind().gates());
        let weights = direction.weights();
        let projection = match &weights.projection {
            Some(projection) => once(projection, direction.output_size(), 1),
            None => 0,
        };
        once(&weights.input, hidden, gates)
            .saturating_add(once(&weights.recurrent, hidden, gates))
            .saturating_add(projection)
    };
    let directions = layer.directions().iter().map(of_direction);
    directions.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
