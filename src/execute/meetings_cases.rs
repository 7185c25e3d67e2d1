//! Random cases for the tests of the waits: models of small layers in every form that waits
//! differently, and plans that cut them anywhere. What the plans mean for who waits is worked out
//! here a second time, from README.md, so that `meetings.rs` has something to be held against.

use std::ops::Range;

use crate::model::{Activation, Cell, Direction, Layer, Matrix, Merge, Model, ResetForm, Weights};
use crate::plan::{
    Configuration, DirectionPlan, InputProjectionBy, LayerPlan, OwnersShare, Partition, Plan,
    UNIT_GRANULE,
};
use crate::schedule::{DirectionSchedule, PanelOrder, PhasePlacement};
use gatestream_kernels::Blocking;

/// Units of every direction: enough to leave something to each of the workers.
const UNITS: usize = 4 * UNIT_GRANULE;

/// A model, a plan for one group of workers, and the lengths of its sequences, longest first.
pub(super) struct Case {
    pub model: Model,
    pub plan: Configuration,
    pub steps: usize,
    pub lengths: Vec<usize>,
}

pub(super) fn pick<T: Copy>(random: &mut fastrand::Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

fn values(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 0.4 * random.f32() - 0.2).collect()
}

fn matrix(random: &mut fastrand::Rng, rows: usize, columns: usize) -> Matrix {
    Matrix::new(rows, columns, values(random, rows * columns)).unwrap()
}

fn direction(random: &mut fastrand::Rng, cell: Cell, projection: bool, input: usize) -> Direction {
    let rows = cell.kind().gates() * UNITS;
    let weights = Weights {
        input: matrix(random, rows, input),
        recurrent: matrix(random, rows, UNITS),
        input_bias: values(random, rows),
        recurrent_bias: values(random, rows),
        peepholes: None,
        projection: projection.then(|| matrix(random, UNITS, UNITS)),
    };
    Direction::new(cell, weights).unwrap()
}

/// Cut anywhere, or all one worker's.
fn cut(random: &mut fastrand::Rng, workers: usize, alone: Option<usize>) -> Vec<Range<usize>> {
    let mut bounds: Vec<usize> = (1..workers)
        .map(|worker| match alone {
            Some(owner) => UNITS * usize::from(worker > owner),
            None => UNIT_GRANULE * random.usize(0..=UNITS / UNIT_GRANULE),
        })
        .collect();
    bounds.extend([0, UNITS]);
    bounds.sort_unstable();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

impl Case {
    pub fn random(random: &mut fastrand::Rng) -> Case {
        let workers = random.usize(1..=4);
        let steps = random.usize(0..=12);
        let count = random.usize(1..=5);
        // Lone owners make wavefronts, and some stacks are to be little else.
        let lonely = random.usize(0..=4);
        let (mut layers, mut plans, mut input) = (Vec::new(), Vec::new(), 3);
        for _ in 0..count {
            let gru = Cell::Gru {
                gate: Activation::Sigmoid,
                candidate: Activation::Tanh,
                reset: ResetForm::Before,
            };
            let cells = [
                (Cell::RNN, false),
                (Cell::LSTM, false),
                (Cell::LSTM, true),
                (gru, false),
            ];
            let (cell, projection) = pick(random, &cells);
            let way = random.usize(..8);
            let mut make = || direction(random, cell, projection, input);
            let layer = match way {
                0 => Layer::single(make().reversed()),
                1 => Layer::bidirectional(make(), make(), Merge::Concat).unwrap(),
                2 | 3 => Layer::bidirectional(make(), make(), Merge::Sum).unwrap(),
                _ => Layer::single(make()),
            };
            let alone = (random.usize(..4) < lonely).then(|| random.usize(..workers));
            let mut directions = Vec::new();
            for direction in layer.directions() {
                let mut schedule = if random.bool() {
                    DirectionSchedule::all_ahead(direction)
                } else {
                    DirectionSchedule::none_ahead(direction)
                };
                if random.u8(..3) == 0 {
                    let mixed = schedule.clone();
                    schedule.input[0] = PhasePlacement::Ahead;
                    if schedule.check(direction).is_err() {
                        schedule = mixed;
                    }
                }
                let units = cut(random, workers, alone);
                let projected = if projection {
                    cut(random, workers, alone)
                } else {
                    vec![0..0; workers]
                };
                let partition = Partition { units, projected };
                directions.push(DirectionPlan {
                    schedule,
                    partition,
                    blocking: Blocking::default(),
                });
            }
            plans.push(LayerPlan {
                chunk_steps: random.usize(1..=steps.max(1)).min(random.usize(1..=12)),
                ahead: if random.bool() {
                    InputProjectionBy::Owners
                } else {
                    InputProjectionBy::Rows {
                        workers: random.usize(1..=workers),
                        owners_share: OwnersShare::of_eighths(random.u8(0..=8)).unwrap(),
                    }
                },
                order: PanelOrder::Cyclic,
                directions,
            });
            input = layer.output_size();
            layers.push(layer);
        }
        let mut lengths = vec![steps];
        for _ in 1..random.usize(1..=3) {
            lengths.push(random.usize(0..=lengths[lengths.len() - 1]));
        }
        Case {
            model: Model::new(layers).unwrap(),
            plan: Configuration {
                threads: workers,
                row_groups: 1,
                layers: plans,
            },
            steps,
            lengths,
        }
    }

    pub fn plan(&self) -> Plan {
        Plan::of(self.plan.clone(), self.lengths.len(), self.steps)
    }

    /// The rows of these steps, counted over all steps.
    pub fn rows(&self, steps: Range<usize>) -> Range<usize> {
        let before = |step: usize| self.lengths.iter().map(|&length| length.min(step)).sum();
        before(steps.start)..before(steps.end)
    }

    pub fn workers(&self) -> usize {
        self.plan.threads
    }

    pub fn partition(&self, layer: usize, direction: usize) -> &Partition {
        &self.plan.layers[layer].directions[direction].partition
    }

    pub fn directions(&self, layer: usize) -> Range<usize> {
        0..self.plan.layers[layer].directions.len()
    }

    pub fn unit_owners(&self, layer: usize, direction: usize) -> Vec<usize> {
        let units = &self.partition(layer, direction).units;
        (0..self.workers())
            .filter(|&w| !units[w].is_empty())
            .collect()
    }

    pub fn is_projected(&self, layer: usize) -> bool {
        let direction = &self.model.layers()[layer].directions()[0];
        direction.weights().projection.is_some()
    }

    pub fn is_summed(&self, layer: usize) -> bool {
        let model = &self.model.layers()[layer];
        model.directions().len() == 2 && model.merge() == Merge::Sum
    }

    /// Those that write columns of the state and of the output.
    pub fn state_owners(&self, layer: usize, direction: usize) -> Vec<usize> {
        let partition = self.partition(layer, direction);
        let parts = if self.is_projected(layer) {
            &partition.projected
        } else {
            &partition.units
        };
        (0..self.workers())
            .filter(|&w| !parts[w].is_empty())
            .collect()
    }

    pub fn owners_of(&self, layer: usize, direction: usize) -> Vec<usize> {
        let mut owners = self.unit_owners(layer, direction);
        owners.extend(self.state_owners(layer, direction));
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    pub fn owners(&self, layer: usize) -> Vec<usize> {
        let directions = self.directions(layer);
        let mut owners: Vec<_> = directions.flat_map(|d| self.owners_of(layer, d)).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Everybody that a worker shares a direction with, or that those do.
    pub fn peers(&self, layer: usize, worker: usize) -> Vec<usize> {
        let mut circle = vec![worker];
        for _ in 0..self.workers() {
            for direction in self.directions(layer) {
                let owners = self.owners_of(layer, direction);
                if owners.iter().any(|o| circle.contains(o)) {
                    circle.extend(owners);
                }
            }
            circle.sort_unstable();
            circle.dedup();
        }
        circle.retain(|&peer| peer != worker);
        circle
    }

    pub fn is_ahead(&self, layer: usize, direction: usize) -> bool {
        let schedule = &self.plan.layers[layer].directions[direction].schedule;
        schedule.input.contains(&PhasePlacement::Ahead)
    }

    pub fn is_all_ahead(&self, layer: usize, direction: usize) -> bool {
        let schedule = &self.plan.layers[layer].directions[direction].schedule;
        schedule.input.iter().all(|p| *p == PhasePlacement::Ahead)
    }

    /// How many take rows ahead for others.
    pub fn takers(&self, layer: usize) -> usize {
        match self.plan.layers[layer].ahead {
            InputProjectionBy::Rows { workers, .. }
                if self.directions(layer).any(|d| self.is_ahead(layer, d)) =>
            {
                workers
            }
            _ => 0,
        }
    }

    /// The rows of a chunk that `taker` takes. Who has steps to run besides takes another share,
    /// but for the first chunk.
    pub fn share(&self, layer: usize, rows: usize, taker: usize, chunk: usize) -> Range<usize> {
        let takers = self.takers(layer);
        let InputProjectionBy::Rows { owners_share, .. } = self.plan.layers[layer].ahead else {
            return 0..0;
        };
        let owners = self.owners(layer);
        let (busy, free): (Vec<_>, Vec<_>) = (0..takers).partition(|w| owners.contains(w));
        if chunk == 0 || busy.is_empty() || free.is_empty() {
            return rows * taker / takers..rows * (taker + 1) / takers;
        }
        let even = rows * busy.len() / takers;
        let cut = even * usize::from(owners_share.eighths()) / 8;
        let of = |all: &[usize], from: usize, len: usize| {
            let at = all.iter().position(|&w| w == taker)?;
            Some(from + len * at / all.len()..from + len * (at + 1) / all.len())
        };
        of(&busy, 0, cut)
            .or_else(|| of(&free, cut, rows - cut))
            .unwrap()
    }

    /// After how many steps each a layer's output is marked for workers other than its own.
    pub fn marked_every(&self, layer: usize) -> Option<usize> {
        let upper = layer + 1;
        let next = self.plan.layers.get(upper)?;
        let owners = self.owners(layer);
        let takers = match next.ahead {
            InputProjectionBy::Rows { workers, .. } => workers,
            InputProjectionBy::Owners => 0,
        };
        let others = (0..takers)
            .chain(self.owners(upper))
            .any(|w| !owners.contains(&w));
        let is_forward = self.model.layers()[layer].is_forward();
        let by_chunk = self.directions(upper).all(|d| self.is_all_ahead(upper, d));
        let every = if by_chunk { next.chunk_steps } else { 1 };
        (others && is_forward && self.takers(layer) == 0).then_some(every)
    }
}
