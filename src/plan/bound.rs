//! The shortest time that a machine's ceilings allow for a plan.

use super::{Configuration, DirectionPlan, Entry, InputProjectionBy, LayerPlan, PlanError};
use crate::machine::{Bound, BoundBy, Ceilings, Level, Operations, Topology};
use crate::model::{Direction, Layer, Matrix, Model, Precision};
use crate::schedule::PhasePlacement;

impl Entry {
    /// The bound on running full-length sequences: for each worker and phase, the larger of
    /// arithmetic over peak and bytes of weights over the bandwidth of the level where its slice of
    /// them fits (deepcpu section 3, equation 1), each worker with its share of what all cores
    /// reach at once. Each matrix has the bytes and the peak of its own precision. A layer takes as
    /// long as its slowest worker; layers of different workers run side by side.
    ///
    /// Products taken ahead read their weights once per chunk, all others at every step. What binds
    /// is what the largest part of the time is bound by.
    ///
    /// A slice that fits no private cache counts as read from the next level, whole. Serpentine
    /// panels keep a part of it in the private caches, so that a run, above all one of a single
    /// step, may take less.
    ///
    /// # Errors
    /// What [`Configuration::check`] refuses.
    pub fn bound(
        &self,
        model: &Model,
        topology: &Topology,
        ceilings: &Ceilings,
    ) -> Result<Bound, PlanError> {
        let configuration = &self.configuration;
        configuration.check(model)?;
        let reader = Reader {
            topology,
            ceilings,
            threads: configuration.threads,
            group_size: configuration.group_size(),
        };
        let rows = self.batch.div_ceil(configuration.row_groups);
        let workers = configuration.group_size();
        let layers = || configuration.layers.iter().zip(model.layers());
        let by_layer = |worker: usize| -> Vec<Time> {
            let times = layers().map(|(plan, layer)| {
                let mut time = Time::default();
                reader.steps(&mut time, plan, layer, worker, (rows, self.steps));
                reader.ahead(&mut time, plan, layer, worker, (rows, self.steps));
                time
            });
            times.collect()
        };
        let times: Vec<Vec<Time>> = (0..workers).map(by_layer).collect();
        let slowest = |times: &mut dyn Iterator<Item = Time>| {
            times.max_by(|a, b| a.seconds().total_cmp(&b.seconds()))
        };
        let total = if configuration.is_wavefront() {
            slowest(&mut times.into_iter().map(|t| t.into_iter().sum()))
        } else {
            Some(
                (0..configuration.layers.len())
                    .filter_map(|layer| slowest(&mut times.iter().map(|t| t[layer])))
                    .sum(),
            )
        };
        Ok(total.unwrap_or_default().bound())
    }
}

impl Configuration {
    /// Whether some layer runs on other workers than the one below, so that both run at once. A
    /// layer whose rows are taken ahead by others is read only when it is complete.
    pub(super) fn is_wavefront(&self) -> bool {
        let workers = self.group_size();
        let is_marked = |below: &LayerPlan| {
            below.ahead == InputProjectionBy::Owners
                || !below.directions.iter().any(|d| d.schedule.is_ahead())
        };
        let apart = |pair: &[LayerPlan]| {
            is_marked(&pair[0]) && !(0..workers).any(|w| pair.iter().all(|l| l.is_owner(w)))
        };
        self.layers.windows(2).any(apart)
    }
}

/// Seconds by what they are bound by.
#[derive(Clone, Copy, Debug, Default)]
struct Time([f64; 5]);

const CAUSES: [BoundBy; 5] = [
    BoundBy::Compute,
    BoundBy::L1,
    BoundBy::L2,
    BoundBy::L3,
    BoundBy::Memory,
];

impl Time {
    fn add(&mut self, bound: Bound, times: f64) {
        for (seconds, cause) in self.0.iter_mut().zip(CAUSES) {
            if cause == bound.by {
                *seconds += bound.seconds * times;
            }
        }
    }

    fn seconds(&self) -> f64 {
        self.0.iter().sum()
    }

    fn bound(&self) -> Bound {
        let causes = CAUSES.into_iter().zip(self.0);
        let largest = causes.max_by(|a, b| a.1.total_cmp(&b.1));
        Bound {
            seconds: self.seconds(),
            by: match largest {
                Some((by, seconds)) if seconds > 0.0 => by,
                _ => BoundBy::Compute,
            },
        }
    }
}

impl std::iter::Sum for Time {
    fn sum<I: Iterator<Item = Time>>(times: I) -> Time {
        times.fold(Time::default(), |mut sum, time| {
            sum.0.iter_mut().zip(time.0).for_each(|(s, t)| *s += t);
            sum
        })
    }
}

/// Weights by the arithmetic that they take part in, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    /// Values that are multiplied in f32: those of bf16, too.
    f32: f64,
    /// Values that are multiplied in int8.
    int8: f64,
    bytes: f64,
}

impl Slice {
    /// So many rows of a matrix.
    fn of(matrix: &Matrix, rows: usize) -> Slice {
        let values = rows as f64 * matrix.cols() as f64;
        let bytes = values * matrix.precision().bytes() as f64;
        match matrix.precision() {
            Precision::F32 | Precision::Bf16 => Slice {
                f32: values,
                int8: 0.0,
                bytes,
            },
            Precision::Int8 => Slice {
                f32: 0.0,
                int8: values,
                // A scale for each row.
                bytes: bytes + 4.0 * rows as f64,
            },
        }
    }

    /// A multiplication and an addition for each value and row of the other operand.
    fn operations(self, rows: f64) -> Operations {
        Operations {
            f32: 2.0 * self.f32 * rows,
            int8: 2.0 * self.int8 * rows,
        }
    }
}

impl std::ops::Add for Slice {
    type Output = Slice;
    fn add(self, other: Slice) -> Slice {
        Slice {
            f32: self.f32 + other.f32,
            int8: self.int8 + other.int8,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl std::iter::Sum for Slice {
    fn sum<I: Iterator<Item = Slice>>(slices: I) -> Slice {
        slices.fold(Slice::default(), |sum, slice| sum + slice)
    }
}

/// One worker's way to its weights.
struct Reader<'m> {
    topology: &'m Topology,
    ceilings: &'m Ceilings,
    threads: usize,
    group_size: usize,
}

impl Reader<'_> {
    /// The bound on products of these weights with `rows` rows, read from where they fit.
    fn phase(&self, weights: Slice, rows: f64) -> Bound {
        let level = match self.topology.cores.first() {
            Some(core) => self.topology.level_holding(core, weights.bytes as usize),
            None => Level::Memory,
        };
        // As if all did the same: a worker's share of what the team reaches together.
        let team = self.threads as f64;
        let (work, bytes) = (weights.operations(rows * team), weights.bytes * team);
        self.ceilings.bound(work, bytes, level, self.threads)
    }

    /// The phases of all steps.
    fn steps(
        &self,
        time: &mut Time,
        plan: &LayerPlan,
        layer: &Layer,
        worker: usize,
        (rows, steps): (usize, usize),
    ) {
        let directions = layer.directions().iter().zip(&plan.directions);
        let weights = directions.map(|(d, plan)| step_weights(d, plan, worker));
        for weights in self.phases(plan, weights) {
            time.add(self.phase(weights, rows as f64), steps as f64);
        }
    }

    /// The weights that are read between two readings of any of them: those of all directions, or
    /// of each where they come in turn.
    fn phases(&self, plan: &LayerPlan, directions: impl Iterator<Item = Slice>) -> Vec<Slice> {
        if plan.takes_directions_in_turn(self.group_size) {
            directions.collect()
        } else {
            vec![directions.sum()]
        }
    }

    /// What is taken ahead, chunk by chunk.
    fn ahead(
        &self,
        time: &mut Time,
        plan: &LayerPlan,
        layer: &Layer,
        worker: usize,
        (rows, steps): (usize, usize),
    ) {
        let of = |worker: usize| {
            let directions = layer.directions().iter().zip(&plan.directions);
            directions.map(move |(d, plan)| ahead_weights(d, plan, worker))
        };
        let phases = match plan.ahead {
            InputProjectionBy::Owners => self.phases(plan, of(worker)),
            InputProjectionBy::Rows { .. } => {
                let workers = 0..plan.directions[0].partition.units.len();
                vec![workers.flat_map(of).sum()]
            }
        };
        let mut add = |steps: usize, is_first: bool, times: usize| {
            let all = rows.saturating_mul(steps);
            let share = match plan.ahead {
                InputProjectionBy::Owners => 0..all,
                ahead => ahead.share(all, worker, is_first, |w| plan.is_owner(w)),
            };
            for &weights in phases.iter().filter(|_| times > 0 && !share.is_empty()) {
                time.add(self.phase(weights, share.len() as f64), times as f64);
            }
        };
        let chunk = plan.chunk_steps.min(steps);
        let (chunks, rest) = (steps / chunk.max(1), steps % chunk.max(1));
        add(chunk, true, chunks.min(1));
        add(chunk, false, chunks.saturating_sub(1));
        add(rest, false, usize::from(rest > 0));
    }
}

/// Weights that a worker reads at every step of a direction.
fn step_weights(direction: &Direction, plan: &DirectionPlan, worker: usize) -> Slice {
    let weights = direction.weights();
    let gates = plan.schedule.input.iter();
    let in_step = gates
        .filter(|place| **place != PhasePlacement::Ahead)
        .count();
    let units = plan.partition.units[worker].len();
    let projected = plan.partition.projected[worker].len();
    let projection = weights.projection.as_ref();
    Slice::of(&weights.recurrent, units * plan.schedule.recurrent.len())
        + Slice::of(&weights.input, units * in_step)
        + projection.map_or_else(Slice::default, |matrix| Slice::of(matrix, projected))
}

/// Weights of a worker's units that are multiplied ahead of the steps.
fn ahead_weights(direction: &Direction, plan: &DirectionPlan, worker: usize) -> Slice {
    let gates = plan.schedule.input.iter();
    let ahead = gates
        .filter(|place| **place == PhasePlacement::Ahead)
        .count();
    let units = plan.partition.units[worker].len();
    Slice::of(&direction.weights().input, units * ahead)
}

/// Operations of running `batch` sequences of `steps` steps, whatever the precision: two per weight
/// of every product, activations not counted.
pub fn flops(model: &Model, batch: usize, steps: usize) -> f64 {
    operations(model, batch, steps).all()
}

/// As [`flops`], by the precision in which they are done.
pub fn operations(model: &Model, batch: usize, steps: usize) -> Operations {
    let directions = model.layers().iter().flat_map(|layer| layer.directions());
    let weights: Slice = directions
        .flat_map(|d| {
            let weights = d.weights();
            let matrices = [&weights.recurrent, &weights.input].into_iter();
            matrices.chain(&weights.projection)
        })
        .map(|matrix| Slice::of(matrix, matrix.rows()))
        .sum();
    weights.operations(batch as f64 * steps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Rate, ReadRates, TeamCeilings};
    use crate::model::Lstm;
    use crate::plan::Plan;
    use crate::schedule::DirectionSchedule;

    /// Two cores, 100 GFLOP/s and 400 GOP/s of int8 each; reads 200, 100, 50 and 10 GB/s each from
    /// L1, L2, L3, memory.
    fn ceilings() -> Ceilings {
        let rate = |value: f64| Rate { value, spread: 0.0 };
        let team = |threads: usize| {
            let all = threads as f64;
            TeamCeilings {
                threads,
                pinned: true,
                fma_f32_gflops: rate(100.0 * all),
                dot_int8_gops: rate(400.0 * all),
                read_gbps: ReadRates {
                    l1: Some(rate(200.0 * all)),
                    l2: Some(rate(100.0 * all)),
                    l3: Some(rate(50.0 * all)),
                    memory: rate(10.0 * all),
                },
            }
        };
        Ceilings {
            isa: gatestream_kernels::Isa::Portable,
            one: team(1),
            all: team(2),
        }
    }

    /// Cores with 32 KiB of L1 and 256 KiB of L2, and nothing that they share.
    fn seconds(model: &Model, entry: &Entry) -> f64 {
        let topology = Topology::count_only(&[0, 1], "for a test".into());
        entry.bound(model, &topology, &ceilings()).unwrap().seconds
    }

    fn close(found: f64, expected: f64) {
        approx::assert_relative_eq!(found, expected, max_relative = 1e-9);
    }

    /// 96 units: each U has 144 KiB, which fit the 256 KiB of L2, as both together do not.
    #[test]
    fn one_core_reads_the_directions_in_turn() {
        use crate::model::Merge;
        let model = Lstm::new(8, 96).bidirectional(Merge::Concat);
        let model = model.random(1).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 100, 1);
        plan.entries[0].configuration.layers[0].chunk_steps = 100;
        let step = 147_456.0 / 100e9;
        let ahead = 2.0 * 3072.0 * 100.0 / 100e9;
        close(
            seconds(&model, &plan.entries[0]),
            2.0 * (100.0 * step + ahead),
        );
    }

    /// 64 units with 64 inputs: W and U have 64 KiB each; 4096 values of each per 16 units.
    #[test]
    fn each_core_reads_its_own_slice_at_its_own_rate() {
        let model = Lstm::new(64, 64).random(1).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 100, 2);
        let entry = &mut plan.entries[0];
        entry.configuration.layers[0].chunk_steps = 100;
        // 32 KiB of U per core and step from L1, W once for 100 rows: arithmetic.
        let step = 32768.0 / 200e9;
        let ahead = 2.0 * 8192.0 * 100.0 / 100e9;
        close(seconds(&model, entry), 100.0 * step + ahead);
        // Uneven: the larger part sets the pace, from L2.
        let partition = &mut entry.configuration.layers[0].directions[0].partition;
        partition.units = vec![0..48, 48..64];
        let step = 49152.0 / 100e9;
        let ahead = 2.0 * 12288.0 * 100.0 / 100e9;
        close(seconds(&model, entry), 100.0 * step + ahead);
    }

    #[test]
    fn groups_of_sequences_read_all_weights_each() {
        let model = Lstm::new(64, 64).random(1).unwrap();
        let mut plan = Plan::with_threads(&model, 2, 10, 1);
        let entry = &mut plan.entries[0];
        entry.configuration.threads = 2;
        entry.configuration.row_groups = 2;
        let direction = &model.layers()[0].directions()[0];
        let layer = &mut entry.configuration.layers[0];
        layer.directions[0].schedule = DirectionSchedule::none_ahead(direction);
        // Both matrices at every step, 128 KiB from L2, though the core has one of two sequences.
        close(seconds(&model, entry), 10.0 * 131072.0 / 100e9);
    }

    #[test]
    fn layers_of_different_cores_run_side_by_side() {
        let model = Lstm::new(64, 64).layers(2).random(1).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 10, 1);
        let alone = seconds(&model, &plan.entries[0]);
        let configuration = &mut plan.entries[0].configuration;
        configuration.threads = 2;
        for (owner, layer) in configuration.layers.iter_mut().enumerate() {
            let partition = &mut layer.directions[0].partition;
            let empty = if owner == 0 { 64..64 } else { 0..0 };
            partition.units.insert(1 - owner, empty);
            partition.projected.push(0..0);
        }
        close(seconds(&model, &plan.entries[0]), alone / 2.0);
    }

    #[test]
    fn bf16_weights_are_half_the_bytes_and_the_same_arithmetic() {
        // 48 units of 64: 48 KiB of U in f32 come from L2; 24 KiB of bf16 stay in L1.
        let model = Lstm::new(64, 64).random(1).unwrap();
        let model = model.in_precision(Precision::Bf16).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 100, 2);
        let entry = &mut plan.entries[0];
        entry.configuration.layers[0].chunk_steps = 100;
        entry.configuration.layers[0].directions[0].partition.units = vec![0..48, 48..64];
        // 12288 weights: 123 ns of reading, 246 ns of arithmetic.
        let step = 2.0 * 12288.0 / 100e9;
        close(seconds(&model, entry), 100.0 * step + 100.0 * step);

        // 256 units: U has 1 MiB in f32, 512 KiB in bf16, beyond both caches; reading takes
        // longest.
        let model = Lstm::new(1, 256).random(1).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 100, 1);
        plan.entries[0].configuration.layers[0].chunk_steps = 100;
        let ahead = 2.0 * 1024.0 * 100.0 / 100e9;
        for (precision, bytes) in [(Precision::F32, 1048576.0), (Precision::Bf16, 524288.0)] {
            let model = model.in_precision(precision).unwrap();
            let expected = 100.0 * bytes / 10e9 + ahead;
            close(seconds(&model, &plan.entries[0]), expected);
        }
    }

    #[test]
    fn int8_weights_have_a_peak_of_their_own_and_a_scale_for_each_row() {
        let model = Lstm::new(64, 256).random(1).unwrap();
        let model = model.in_precision(Precision::Int8).unwrap();
        let mut plan = Plan::with_threads(&model, 1, 100, 2);
        plan.entries[0].configuration.layers[0].chunk_steps = 100;
        // 128 units, 512 rows of 256 and of 64: 130 KiB from L2 take longer than their arithmetic.
        let step = (512.0 * 256.0 + 512.0 * 4.0) / 100e9;
        let ahead = 2.0 * 512.0 * 64.0 * 100.0 / 400e9;
        close(seconds(&model, &plan.entries[0]), 100.0 * step + ahead);
        // Of 20 sequences it is the arithmetic, in all.
        plan.entries[0].batch = 20;
        let work = 2.0 * 512.0 * (256.0 + 64.0) * 20.0;
        close(seconds(&model, &plan.entries[0]), 100.0 * work / 400e9);
        let all = 4.0 * work * 5.0;
        assert_eq!(
            operations(&model, 1, 10),
            Operations {
                f32: 0.0,
                int8: all / 20.0
            }
        );
        assert_eq!(flops(&model, 1, 10), all / 20.0);
    }

    #[test]
    fn layers_of_different_precisions_add_up() {
        let model = Lstm::new(64, 64).layers(2).random(1).unwrap();
        let mixed = [Precision::Int8, Precision::F32];
        let mixed = model.in_precisions(&mixed).unwrap();
        let mut plan = Plan::with_threads(&model, 20, 10, 1);
        for layer in &mut plan.entries[0].configuration.layers {
            layer.chunk_steps = 10;
        }
        // 16384 weights in W and in U, 20 rows: arithmetic everywhere.
        let work = 2.0 * 2.0 * 16384.0 * 20.0 * 10.0;
        close(
            seconds(&mixed, &plan.entries[0]),
            work / 400e9 + work / 100e9,
        );
        let done = Operations {
            f32: work,
            int8: work,
        };
        assert_eq!(operations(&mixed, 20, 10), done);
    }
}
