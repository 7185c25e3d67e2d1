//! The weights of a model, cut and packed for a plan: each part by the worker that will read it, so
//! that its pages and cache lines are where they are needed from the start.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::team::{Team, TeamPanicked};
use crate::kernels::{
    Activation, Aligned, Isa, IsaError, Kernels, LstmFunctions, PackedMatrix, Source, kernels,
    pack_vectors,
};
use crate::model::{Cell, Direction, Matrix, Merge, Model, ResetForm, Signature};
use crate::plan::{LayerPlan, Partition, Plan, PlanError};

/// Packed weights, ready to run. Sessions share them through an [`Arc`]; nothing in them refers to
/// the [`Model`], which may be dropped.
pub struct PackedModel {
    pub(super) kernels: Box<dyn Kernels>,
    pub(super) signature: Signature,
    pub(super) layers: Vec<PackedLayer>,
    pub(super) plan: Plan,
    /// Whether the model can be fed step by step: no direction needs the future.
    pub(super) streams: bool,
}

/// One layer.
pub(super) struct PackedLayer {
    pub directions: Vec<PackedDirection>,
    pub merge: Merge,
    /// Features of an output step.
    pub features: usize,
    pub chunk_steps: usize,
    /// Some direction is split among workers, so all meet at every step.
    pub is_shared: bool,
}

/// One direction: its shape, and a part per worker.
pub(super) struct PackedDirection {
    pub recurrence: Recurrence,
    pub reverse: bool,
    /// A step has a second phase, that needs every worker's result of the first.
    pub two_phase: bool,
    pub input: usize,
    pub hidden: usize,
    /// Size of the recurrent state.
    pub state: usize,
    /// Values per sequence of the hidden states, and of the cell states, that stand before this
    /// direction's blocks.
    pub states_before: (usize, usize),
    pub parts: Vec<Part>,
}

/// What the phases of a step are, and their elementwise functions.
#[derive(Clone, Copy)]
pub(super) enum Recurrence {
    Lstm {
        functions: LstmFunctions,
        projected: bool,
    },
    Gru {
        gate: Activation,
        candidate: Activation,
        clip: Option<f32>,
        reset: ResetForm,
    },
    Rnn {
        activation: Activation,
        clip: Option<f32>,
    },
}

impl Recurrence {
    fn of(direction: &Direction) -> Recurrence {
        let clip = direction.clip();
        match *direction.cell() {
            Cell::Lstm {
                gate,
                candidate,
                output,
                input_forget,
            } => Recurrence::Lstm {
                functions: LstmFunctions {
                    gate,
                    candidate,
                    output,
                    input_forget,
                    clip,
                },
                projected: direction.weights().projection.is_some(),
            },
            Cell::Gru {
                gate,
                candidate,
                reset,
            } => Recurrence::Gru {
                gate,
                candidate,
                clip,
                reset,
            },
            Cell::Rnn { activation } => Recurrence::Rnn { activation, clip },
        }
    }

    /// Vectors of pre-activations per panel.
    pub fn z_slots(self) -> usize {
        match self {
            Recurrence::Lstm { .. } => 4,
            Recurrence::Gru {
                reset: ResetForm::After,
                ..
            } => 4,
            Recurrence::Gru { .. } => 3,
            Recurrence::Rnn { .. } => 1,
        }
    }

    /// Slots that the input product adds to.
    pub fn input_slots(self) -> &'static [usize] {
        match self {
            Recurrence::Lstm { .. } => &[0, 1, 2, 3],
            Recurrence::Gru { .. } => &[0, 1, 2],
            Recurrence::Rnn { .. } => &[0],
        }
    }

    /// Slots that the product with the old state adds to. A GRU that resets after the product keeps
    /// the two parts of its candidate apart.
    pub fn state_slots(self) -> &'static [usize] {
        match self {
            Recurrence::Lstm { .. } => &[0, 1, 2, 3],
            Recurrence::Gru {
                reset: ResetForm::After,
                ..
            } => &[0, 1, 3],
            Recurrence::Gru { .. } => &[0, 1],
            Recurrence::Rnn { .. } => &[0],
        }
    }

    pub fn is_lstm(self) -> bool {
        matches!(self, Recurrence::Lstm { .. })
    }
}

/// What one worker owns of one direction.
pub(super) struct Part {
    pub units: Range<usize>,
    pub input: PackedMatrix,
    pub recurrent: PackedMatrix,
    /// `[panels][z_slots][lanes]`, where the chains start.
    pub bias: Aligned,
    /// `[panels][3][lanes]`.
    pub peepholes: Option<Aligned>,
    /// The product of the second phase: the projection, or a GRU's candidate.
    pub second: Option<PackedMatrix>,
    /// Rows of the second product: projection rows, or the same hidden units.
    pub second_units: Range<usize>,
}

impl Part {
    fn pack(lanes: usize, direction: &Direction, partition: &Partition, worker: usize) -> Part {
        let recurrence = Recurrence::of(direction);
        let weights = direction.weights();
        let hidden = direction.hidden_size();
        let units = partition.units[worker].clone();
        let matrix = |matrix: &Matrix, rows: usize, gates: &[usize], units: &Range<usize>| {
            let source = Source {
                values: matrix.data(),
                depth: matrix.cols(),
                units: rows,
            };
            PackedMatrix::new(lanes, source, gates, units.clone())
        };
        let gates = direction.cell().kind().gates();
        let all: Vec<usize> = (0..gates).collect();
        // Every gate but the candidate of a GRU that resets before the product.
        let first = &all[..recurrence.state_slots().len()];
        let (second, second_units) = match (&weights.projection, first.len() < gates) {
            (Some(projection), _) => {
                let rows = partition.projected[worker].clone();
                let packed = matrix(projection, projection.rows(), &[0], &rows);
                (Some(packed), rows)
            }
            (None, true) => {
                let packed = matrix(&weights.recurrent, hidden, &[2], &units);
                (Some(packed), units.clone())
            }
            (None, false) => (None, 0..0),
        };
        let peepholes = weights.peepholes.as_ref();
        Part {
            input: matrix(&weights.input, hidden, &all, &units),
            recurrent: matrix(&weights.recurrent, hidden, first, &units),
            bias: pack_bias(lanes, direction, &units),
            peepholes: peepholes
                .map(|p| pack_vectors(lanes, &[&p.input, &p.forget, &p.output], units.clone())),
            second,
            second_units,
            units,
        }
    }

    fn bytes(&self) -> usize {
        let vectors = self.bias.len() + self.peepholes.as_ref().map_or(0, |p| p.len());
        let second = self.second.as_ref().map_or(0, PackedMatrix::bytes);
        self.input.bytes() + self.recurrent.bytes() + second + 4 * vectors
    }
}

/// Both biases added, except where the two parts of a candidate stay apart.
fn pack_bias(lanes: usize, direction: &Direction, units: &Range<usize>) -> Aligned {
    let weights = direction.weights();
    let hidden = direction.hidden_size();
    let block = |bias: &[f32], gate: usize| bias[gate * hidden..(gate + 1) * hidden].to_vec();
    let mut starts: Vec<Vec<f32>> = (0..direction.cell().kind().gates())
        .map(|gate| {
            let input = block(&weights.input_bias, gate);
            let recurrent = block(&weights.recurrent_bias, gate);
            input.iter().zip(&recurrent).map(|(a, b)| a + b).collect()
        })
        .collect();
    if let Cell::Gru {
        reset: ResetForm::After,
        ..
    } = direction.cell()
    {
        starts[2] = block(&weights.input_bias, 2);
        starts.push(block(&weights.recurrent_bias, 2));
    }
    let slices: Vec<&[f32]> = starts.iter().map(Vec::as_slice).collect();
    pack_vectors(lanes, &slices, units.clone())
}

/// Why weights could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The plan does not fit the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The instruction set that `CELLSTREAM_ISA` names cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The team has another number of threads than the plan.
    #[error("the plan is for {planned} threads, the team has {found}")]
    Threads {
        /// In the plan.
        planned: usize,
        /// In the team.
        found: usize,
    },
    /// A worker panicked while packing.
    #[error(transparent)]
    Team(#[from] TeamPanicked),
}

impl PackedModel {
    /// Packs `model` for `plan`, each part on the worker of `team` that will use it, for the best
    /// instruction set of this CPU (or the one that `CELLSTREAM_ISA` names).
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
        if plan.threads != team.threads() {
            return Err(PackError::Threads {
                planned: plan.threads,
                found: team.threads(),
            });
        }
        let kernels = kernels(isa)?;
        let lanes = kernels.lanes();
        let packed: Vec<Vec<Vec<OnceLock<Part>>>> = (model.layers().iter())
            .map(|layer| {
                let parts = || (0..plan.threads).map(|_| OnceLock::new()).collect();
                layer.directions().iter().map(|_| parts()).collect()
            })
            .collect();
        team.run(|worker| {
            for ((layer, plan), packed) in model.layers().iter().zip(&plan.layers).zip(&packed) {
                let directions = layer.directions().iter().zip(&plan.directions);
                for ((direction, partition), parts) in directions.zip(packed) {
                    parts[worker.index]
                        .get_or_init(|| Part::pack(lanes, direction, partition, worker.index));
                }
            }
        })?;
        let mut layers = Vec::with_capacity(packed.len());
        let (mut hidden_before, mut cell_before) = (0, 0);
        for ((layer, plan), parts) in model.layers().iter().zip(&plan.layers).zip(packed) {
            let directions = layer.directions().iter().zip(parts);
            layers.push(PackedLayer {
                directions: directions
                    .map(|(direction, parts)| {
                        let states_before = (hidden_before, cell_before);
                        hidden_before += direction.output_size();
                        cell_before += direction.cell_state_size();
                        PackedDirection {
                            recurrence: Recurrence::of(direction),
                            reverse: direction.is_reverse(),
                            two_phase: direction.is_two_phase(),
                            input: direction.input_size(),
                            hidden: direction.hidden_size(),
                            state: direction.output_size(),
                            states_before,
                            parts: parts.into_iter().filter_map(OnceLock::into_inner).collect(),
                        }
                    })
                    .collect(),
                merge: layer.merge(),
                features: layer.output_size(),
                chunk_steps: plan.chunk_steps,
                is_shared: is_shared(plan),
            });
        }
        let mut directions = model.layers().iter().flat_map(|l| l.directions());
        Ok(Arc::new(PackedModel {
            kernels,
            signature: model.signature(),
            layers,
            plan: plan.clone(),
            streams: !directions.any(Direction::is_reverse),
        }))
    }

    /// Bytes of packed weights and biases.
    pub fn bytes(&self) -> usize {
        let directions = self.layers.iter().flat_map(|l| &l.directions);
        directions.flat_map(|d| &d.parts).map(Part::bytes).sum()
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

fn is_shared(plan: &LayerPlan) -> bool {
    plan.directions.iter().any(Partition::is_shared)
}
