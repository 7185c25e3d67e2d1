//! The weights of a model, cut and packed for a plan: each part by a worker that will read it, so
//! that its pages and cache lines are where they are needed from the start.
//!
//! A plan has a configuration for each size of request. Where two of them, or two groups of
//! workers, ask for the same part, they share it, and the first worker that asked packs it. On a
//! machine with several memory nodes the others may be on another one; plans of one configuration
//! and one group have each part packed by its only reader.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::meetings::Meetings;
use super::part::PackedPart;
use super::team::{Team, TeamPanicked};
use crate::model::{CellStep, Layer, Matrix, Merge, Model, Precision, Signature, StepWeights};
use crate::plan::{Configuration, DirectionPlan, InputProjectionBy, LayerPlan, Plan, PlanError};
use crate::schedule::{DirectionSchedule, PanelOrder};
use gatestream_kernels::{Blocking, GateKernel, Isa, IsaError, Kernels, Stripes, kernels};

/// Packed weights, ready to run. Sessions share them through an [`Arc`]; nothing in them refers to
/// the [`Model`], which may be dropped.
pub struct PackedModel {
    pub(super) kernels: Box<dyn Kernels>,
    pub(super) signature: Signature,
    /// One per entry of the plan.
    pub(super) configurations: Vec<PackedConfiguration>,
    pub(super) plan: Plan,
    /// Whether the model can be fed step by step: no direction needs the future.
    pub(super) streams: bool,
}

/// A configuration with its weights.
pub(super) struct PackedConfiguration {
    pub threads: usize,
    pub row_groups: usize,
    pub layers: Vec<PackedLayer>,
    pub meetings: Meetings,
}

/// One layer.
pub(super) struct PackedLayer {
    pub directions: Vec<PackedDirection>,
    pub merge: Merge,
    /// Features of an output step.
    pub features: usize,
    pub chunk_steps: usize,
    pub ahead: InputProjectionBy,
    pub order: PanelOrder,
}

/// One direction: its shape, and a part per worker of a group.
pub(super) struct PackedDirection {
    pub step: &'static CellStep,
    /// The elementwise part of each phase.
    pub gate_kernels: Vec<GateKernel>,
    pub reverse: bool,
    pub input: usize,
    pub hidden: usize,
    /// Size of the recurrent state.
    pub state: usize,
    /// Which of the model's states is the hidden state; the cell state follows it.
    pub first_state: usize,
    /// How the products of a step read their weights.
    pub blocking: Blocking,
    /// Some product is taken ahead.
    pub is_ahead: bool,
    /// All input products are taken ahead.
    pub is_all_ahead: bool,
    pub parts: Vec<Arc<PackedPart>>,
}

impl PackedDirection {
    /// Values per sequence of the hidden state, and of the cell state where there is one.
    pub fn state_sizes(&self) -> impl Iterator<Item = usize> {
        let cell = self.step.has_cell_state.then_some(self.hidden);
        [self.state].into_iter().chain(cell)
    }
}

impl PackedConfiguration {
    /// Those of all layers and directions, in their order: a row's hidden state, and its cell state
    /// if it has one.
    pub fn state_sizes(&self) -> impl Iterator<Item = usize> {
        self.directions().flat_map(PackedDirection::state_sizes)
    }

    /// Those of all layers, in their order.
    pub fn directions(&self) -> impl Iterator<Item = &PackedDirection> {
        self.layers.iter().flat_map(|layer| &layer.directions)
    }

    /// Workers of a group.
    pub fn group_size(&self) -> usize {
        self.threads / self.row_groups
    }
}

impl PackedLayer {
    /// Both directions are written separately and added afterwards.
    pub fn is_summed(&self) -> bool {
        self.directions.len() == 2 && self.merge == Merge::Sum
    }

    /// Steps whose pre-activations are taken together.
    pub fn chunk(&self, direction: &PackedDirection) -> usize {
        if direction.is_ahead {
            self.chunk_steps
        } else {
            1
        }
    }

    /// Whether a chunk is taken while the one before is still in use.
    pub fn keeps_two_chunks(&self, direction: &PackedDirection) -> bool {
        direction.is_ahead && self.ahead != InputProjectionBy::Owners
    }
}

/// Why weights could not be packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The plan does not fit the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The instruction set that `GATESTREAM_ISA` names cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The team has fewer threads than the plan asks for.
    #[error(
        "the plan is for {planned} threads, the team has {found}; make a team of {planned}, or \
         plan for {found}"
    )]
    Threads {
        /// In the plan.
        planned: usize,
        /// In the team.
        found: usize,
    },
    /// Entries that cut the weights in too many ways.
    #[error(
        "the plan needs {bytes} bytes of packed weights; the maximum is {max}; plan for fewer sizes"
    )]
    TooLarge {
        /// Of all different parts.
        bytes: u64,
        /// What is allowed.
        max: u64,
    },
    /// A worker panicked while packing.
    #[error(transparent)]
    Team(#[from] TeamPanicked),
}

/// What makes two parts the same.
#[derive(PartialEq, Eq, Hash)]
struct PartKey<'p> {
    layer: usize,
    direction: usize,
    schedule: &'p DirectionSchedule,
    units: &'p Range<usize>,
    projected: &'p Range<usize>,
    stripes: Stripes,
}

/// A part to be packed, by the first worker that asked for it.
struct Order<'p> {
    plan: &'p DirectionPlan,
    worker: usize,
    part: OnceLock<Arc<PackedPart>>,
}

impl<'p> PartKey<'p> {
    fn new(layer: usize, direction: usize, plan: &'p DirectionPlan, worker: usize) -> PartKey<'p> {
        PartKey {
            layer,
            direction,
            schedule: &plan.schedule,
            units: &plan.partition.units[worker],
            projected: &plan.partition.projected[worker],
            stripes: plan.blocking.stripes,
        }
    }
}

/// Every part that some configuration asks for, once.
pub(super) struct Parts<'p>(HashMap<PartKey<'p>, Order<'p>>);

/// Copies of a model's weights that the entries of a plan may need together: every entry may cut
/// them in its own way, and a hostile plan file would in a thousand.
const MAX_COPIES: u64 = 32;

impl<'p> Parts<'p> {
    /// Packs the parts that a plan asks for, on the threads of `team`. `weights` gives those of a
    /// layer and direction; all together have `weight_bytes`.
    pub fn pack<'w>(
        plan: &'p Plan,
        team: &mut Team,
        lanes: usize,
        weight_bytes: usize,
        weights: impl Fn(usize, usize) -> StepWeights<'w> + Sync,
    ) -> Result<Parts<'p>, PackError> {
        if plan.threads() > team.threads() {
            return Err(PackError::Threads {
                planned: plan.threads(),
                found: team.threads(),
            });
        }
        let parts = Parts::asked_by(plan);
        // Small models have padding instead of copies.
        let max = MAX_COPIES * weight_bytes as u64 + (256 << 20);
        let bytes = parts.bytes(&weights);
        if bytes > max {
            return Err(PackError::TooLarge { bytes, max });
        }
        let pack = |worker: usize| {
            for (key, order) in parts.0.iter().filter(|(_, o)| o.worker == worker) {
                let weights = weights(key.layer, key.direction);
                let pack = || Arc::new(PackedPart::pack(lanes, &weights, order.plan, order.worker));
                order.part.get_or_init(pack);
            }
        };
        if team.is_hosted() {
            team.run_shares(team.threads(), |share| share.iter().for_each(pack))?
        } else {
            team.run(|worker| pack(worker.index))?
        }
        Ok(parts)
    }

    fn asked_by(plan: &'p Plan) -> Parts<'p> {
        let mut orders = HashMap::new();
        for configuration in plan.entries.iter().map(|e| &e.configuration) {
            for (layer, layer_plan) in configuration.layers.iter().enumerate() {
                for (direction, plan) in layer_plan.directions.iter().enumerate() {
                    for worker in 0..configuration.group_size() {
                        let key = PartKey::new(layer, direction, plan, worker);
                        orders.entry(key).or_insert_with(|| Order {
                            plan,
                            worker,
                            part: OnceLock::new(),
                        });
                    }
                }
            }
        }
        Parts(orders)
    }

    /// Bytes of all parts together, without padding.
    fn bytes<'w>(&self, weights: impl Fn(usize, usize) -> StepWeights<'w>) -> u64 {
        let bytes = self.0.keys().map(|key| {
            let weights = weights(key.layer, key.direction);
            let of = |matrix: &Matrix, rows: usize| {
                // Of int8 a scale and a sum stand beside each row.
                let beside = match matrix.precision() {
                    Precision::Int8 => 8,
                    Precision::F32 | Precision::Bf16 => 0,
                };
                rows as u64 * (matrix.row_bytes() + beside) as u64
            };
            let rows = key.units.len() * weights.step.gates.len();
            let of_units = [Some(weights.input), weights.recurrent]
                .into_iter()
                .flatten();
            let of_units: u64 = of_units.map(|matrix| of(matrix, rows)).sum();
            of_units
                + weights
                    .projection
                    .map_or(0, |matrix| of(matrix, key.projected.len()))
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// The workers' parts of a direction of a plan that has been packed.
    pub fn of(&self, layer: usize, index: usize, plan: &DirectionPlan) -> Vec<Arc<PackedPart>> {
        let part = |worker: usize| {
            let order = &self.0[&PartKey::new(layer, index, plan, worker)];
            Arc::clone(order.part.get().expect("every part has been packed"))
        };
        (0..plan.partition.units.len()).map(part).collect()
    }
}

impl PackedModel {
    /// Packs `model` for `plan` on the threads of `team`, for the instruction set that
    /// [`Isa::select`] names.
    ///
    /// # Errors
    /// A plan that does not fit the model or the team, or an instruction set that is not there.
    pub fn new(model: &Model, plan: &Plan, team: &mut Team) -> Result<Arc<PackedModel>, PackError> {
        PackedModel::for_isa(model, plan, team, Isa::select()?)
    }

    /// As [`PackedModel::new`], for a given instruction set.
    ///
    /// # Errors
    /// As [`PackedModel::new`].
    pub fn for_isa(
        model: &Model,
        plan: &Plan,
        team: &mut Team,
        isa: Isa,
    ) -> Result<Arc<PackedModel>, PackError> {
        plan.check(model)?;
        PackedModel::pack(model, plan, team, isa)
    }

    /// Packs configurations that are candidates for the same size, which no plan for use may hold.
    pub(crate) fn for_candidates(
        model: &Model,
        candidates: &Plan,
        team: &mut Team,
    ) -> Result<Arc<PackedModel>, PackError> {
        for entry in &candidates.entries {
            entry.configuration.check(model)?;
        }
        PackedModel::pack(model, candidates, team, Isa::select()?)
    }

    /// Packs entries that have been checked.
    fn pack(
        model: &Model,
        plan: &Plan,
        team: &mut Team,
        isa: Isa,
    ) -> Result<Arc<PackedModel>, PackError> {
        let kernels = kernels(isa)?;
        let directions = |layer: usize| model.layers()[layer].directions();
        let weights = |layer: usize, index: usize| directions(layer)[index].step_weights();
        let parts = Parts::pack(plan, team, kernels.lanes(), model.weight_bytes(), weights)?;
        let configurations = plan.entries.iter();
        let configurations = configurations
            .map(|entry| PackedConfiguration::new(model, &entry.configuration, &parts))
            .collect();
        Ok(Arc::new(PackedModel {
            kernels,
            signature: model.signature(),
            configurations,
            plan: plan.clone(),
            streams: model.is_forward(),
        }))
    }

    /// Bytes of packed weights and biases.
    pub fn bytes(&self) -> usize {
        let layers = self.configurations.iter().flat_map(|c| &c.layers);
        let parts = layers.flat_map(|l| &l.directions).flat_map(|d| &d.parts);
        let mut parts: Vec<&Arc<PackedPart>> = parts.collect();
        parts.sort_unstable_by_key(|part| Arc::as_ptr(part));
        parts.dedup_by_key(|part| Arc::as_ptr(part));
        parts.iter().map(|part| part.bytes()).sum()
    }

    /// The instruction set that the weights are packed for.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// The sizes of inputs, outputs and states.
    pub fn signature(&self) -> Signature {
        self.signature
    }

    /// The plan that the weights are packed for.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl PackedConfiguration {
    /// Takes the packed parts that the configuration asks for.
    fn new(model: &Model, plan: &Configuration, parts: &Parts<'_>) -> PackedConfiguration {
        let mut states = 0;
        let layers = model.layers().iter().zip(&plan.layers).enumerate();
        let layers: Vec<_> = layers
            .map(|(index, (layer, plan))| PackedLayer::new(index, layer, plan, parts, &mut states))
            .collect();
        PackedConfiguration {
            threads: plan.threads,
            row_groups: plan.row_groups,
            meetings: Meetings::new(model, plan),
            layers,
        }
    }
}

impl PackedLayer {
    fn new(
        index: usize,
        layer: &Layer,
        plan: &LayerPlan,
        parts: &Parts<'_>,
        states: &mut usize,
    ) -> PackedLayer {
        let mut directions = Vec::with_capacity(plan.directions.len());
        for (at, (direction, plan)) in layer.directions().iter().zip(&plan.directions).enumerate() {
            directions.push(PackedDirection {
                step: direction.step(),
                gate_kernels: direction.gate_kernels(),
                reverse: direction.is_reverse(),
                input: direction.input_size(),
                hidden: direction.hidden_size(),
                state: direction.output_size(),
                first_state: *states,
                is_ahead: plan.schedule.is_ahead(),
                is_all_ahead: plan.schedule.is_all_ahead(),
                blocking: plan.blocking,
                parts: parts.of(index, at, plan),
            });
            *states += 1 + usize::from(direction.cell_state_size() > 0);
        }
        PackedLayer {
            directions,
            merge: layer.merge(),
            features: layer.output_size(),
            chunk_steps: plan.chunk_steps,
            ahead: plan.ahead,
            order: plan.order,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;

    /// What a plan may pack is counted in the bytes that the model's numbers take: everything once,
    /// and for int8 a sum beside each scale, without biases.
    #[test]
    fn bytes_are_those_of_the_precision() {
        let model = Lstm::new(48, 64).projection(32).random(1).unwrap();
        let biases = 4 * 2 * 4 * 64;
        for precision in Precision::ALL {
            let model = model.in_precision(precision).unwrap();
            let plan = Plan::with_threads(&model, 1, 9, 2);
            let sums = match precision {
                Precision::Int8 => 4 * (4 * 64 + 4 * 64 + 32),
                _ => 0,
            };
            let expected = model.weight_bytes() - biases + sums;
            let weights = |_, _| model.layers()[0].directions()[0].step_weights();
            let found = Parts::asked_by(&plan).bytes(weights);
            assert_eq!(found, expected as u64, "{precision}");
        }
    }
}
