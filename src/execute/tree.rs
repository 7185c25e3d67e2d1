//! A step of tree cells on a team: gates of several operands, each worker its own hidden units.
//!
//! ```text
//! each worker, for its own units
//!   z = bias;  for each operand: z += weights of the operand · operand     reads whole rows
//!   meet, where an operand is what will be overwritten
//!   states = gates(z)                                                      touches own columns only
//! ```
//!
//! Trees have no steps to look ahead to, and their weights are many products of one operand each, so
//! there is nothing to plan but who owns which units: as many each.

use std::ops::Range;
use std::sync::OnceLock;

use super::buffers::Buffer;
use super::packed::PackError;
use super::rows_apart::StateRows;
use super::sequence::InputValues;
use super::session::SessionError;
use super::team::{SharedTeam, TeamPanicked};
use crate::kernels::{
    Aligned, Blocking, Columns, Isa, Kernels, NextProduct, PackedMatrix, Product, ReadColumns,
    Room, Rows, Shared, Source, Start, Sweep, TreeChild, TreeColumns, TreeNode, kernels,
    pack_vectors,
};
use crate::machine::CacheModel;
use crate::model::Matrix;
use crate::plan::split_units;
use crate::reused::reused;

/// Most gates that are packed together.
const MOST_GATES: usize = 4;

/// The gates of one tree cell, packed for one team.
pub struct TreeStep {
    team: SharedTeam,
    kernels: Box<dyn Kernels>,
    hidden: usize,
    gates: usize,
    parts: Vec<Part>,
    /// Empty between steps: room for where the rows of a state are to be read that lie apart.
    read: Vec<&'static [f32]>,
}

/// What a product multiplies its weights with.
#[derive(Clone, Copy)]
enum TreeOperand<'a> {
    /// Rows that are only read.
    Input(InputValues<'a>),
    /// Overwritten once all workers have met.
    State(States<'a>),
}

/// Rows of a state that a step writes and may read before, for all workers.
#[derive(Clone, Copy)]
enum States<'a> {
    /// `[rows, hidden]`.
    Together(Shared<'a>),
    /// Rows that lie apart, to write and, until all workers have met, to read.
    Apart {
        written: &'a [Shared<'a>],
        read: &'a [&'a [f32]],
    },
}

impl<'a> States<'a> {
    /// Of these rows, which, if they lie apart, are `read` there; nowhere where they are no operand.
    fn of(rows: StateRows<'a>, read: &'a [&'a [f32]]) -> States<'a> {
        match rows {
            StateRows::Together(values) => States::Together(Shared::new(values)),
            StateRows::Apart(rows) => States::Apart {
                written: rows.all(),
                read,
            },
        }
    }
}

/// What one worker owns.
struct Part {
    units: Range<usize>,
    /// `[panels][gates][lanes]`.
    bias: Aligned,
    products: Vec<OperandProduct>,
    /// How products read the weights, which may leave the private caches between two batches.
    blocking: Blocking,
    /// `[rows][panels][gates][lanes]`.
    z: Buffer,
    /// In which products quantise what they multiply with, or lay it out.
    room: Buffer<u32>,
}

struct OperandProduct {
    operand: usize,
    weights: PackedMatrix,
    slots: Vec<usize>,
}

impl TreeStep {
    /// Packs the weights of the operands, each `[gates · hidden, operand]`, and the bias
    /// `[gates · hidden]`, on the threads of `team`, with room for `rows` nodes.
    pub fn new(
        team: &SharedTeam,
        isa: Isa,
        rows: usize,
        gates: usize,
        operands: &[&Matrix],
        bias: &[f32],
    ) -> Result<TreeStep, SessionError> {
        let kernels = kernels(isa).map_err(PackError::from)?;
        let lanes = kernels.lanes();
        let hidden = bias.len() / gates;
        let all = split_units(hidden, team.threads());
        let units: Vec<_> = all.into_iter().filter(|units| !units.is_empty()).collect();
        let parts: Vec<OnceLock<Option<Part>>> = units.iter().map(|_| OnceLock::new()).collect();
        let pack = |worker: usize| {
            let part = Part::pack(lanes, rows, (gates, hidden), operands, bias, &units[worker]);
            parts[worker].get_or_init(|| part);
        };
        team.run_on(parts.len().max(1), |worker| {
            if worker.index < parts.len() {
                pack(worker.index);
            }
        })
        .map_err(PackError::from)?;
        let parts: Option<Vec<Part>> = parts
            .into_iter()
            .map(|part| part.into_inner().flatten())
            .collect();
        let too_large = SessionError::TooLarge {
            batch: rows,
            steps: 1,
        };
        Ok(TreeStep {
            team: team.clone(),
            kernels,
            hidden,
            gates,
            parts: parts.ok_or(too_large)?,
            read: Vec::with_capacity(rows),
        })
    }

    /// Leaves: `x` to `h` and `c`. Gates: input, output, update.
    pub fn leaf(
        &mut self,
        rows: usize,
        x: InputValues<'_>,
        [h, c]: [StateRows<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.with_states(false, [h, c], |step, states| {
            step.node(rows, &[TreeOperand::Input(x)], None, None, states)
        })
    }

    /// Nodes of two children: the right one's states, and the left one's, which become the node's.
    /// Gates: input, output, update, forget left, forget right. Operands: left, right.
    pub fn binary(
        &mut self,
        rows: usize,
        [h_right, c_right]: [InputValues<'_>; 2],
        [h, c]: [StateRows<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.with_states(true, [h, c], |step, [h, c]| {
            let operands = [TreeOperand::State(h), TreeOperand::Input(h_right)];
            step.node(rows, &operands, None, Some(c_right), [h, c])
        })
    }

    /// Nodes whose children have been summed: `h` and `c` are the sums, and become the node's. Gates:
    /// input, output, update. Operands: `x`, sum.
    pub fn summed(
        &mut self,
        rows: usize,
        x: InputValues<'_>,
        [h, c]: [StateRows<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.with_states(true, [h, c], |step, [h, c]| {
            let operands = [TreeOperand::Input(x), TreeOperand::State(h)];
            step.node(rows, &operands, Some(c), None, [h, c])
        })
    }

    /// Shares two states among all workers while `run` runs; the first may be an `operand`.
    fn with_states<T>(
        &mut self,
        operand: bool,
        [a, b]: [StateRows<'_>; 2],
        run: impl FnOnce(&TreeStep, [States<'_>; 2]) -> T,
    ) -> T {
        let mut read = std::mem::take(&mut self.read);
        if let (StateRows::Apart(rows), true) = (&a, operand) {
            // SAFETY: products alone read them; all workers meet before one of them writes, and nobody follows them after that.
            read.extend((rows.all().iter()).map(|row| unsafe { row.read(0..row.len()) }));
        }
        let done = run(self, [States::of(a, &read), States::of(b, &[])]);
        self.read = reused(read);
        done
    }

    /// What the three have in common. What is written may be among what is read; then there are two operands. Where there is a
    /// `right` child, `c` is the left one's.
    fn node(
        &self,
        rows: usize,
        operands: &[TreeOperand<'_>],
        sum: Option<States<'_>>,
        right: Option<InputValues<'_>>,
        [h, c]: [States<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.run(rows, operands, operands.len() > 1, |kernels, part, z| {
            let columns = |memory| self.columns(memory, part);
            // SAFETY: own columns, which nobody else touches; all workers have read what they need of
            // them before.
            unsafe {
                kernels.tree_node(TreeNode {
                    z,
                    rows,
                    units: part.units.len(),
                    sum: sum.map(columns),
                    left: right.map(|_| columns(c)),
                    right: right.map(|right| self.read_columns(right, part)),
                    c: columns(c),
                    h: columns(h),
                });
            }
        })
    }

    /// Children, added to the sums of their nodes, of which `x` is the input. Gate: forget. Operands:
    /// `x`, the child's `h`.
    pub fn child(
        &mut self,
        rows: usize,
        [x, h, c]: [InputValues<'_>; 3],
        sums: [StateRows<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.with_states(false, sums, |step, [sum_h, sum_fc]| {
            let operands = [x, h].map(TreeOperand::Input);
            step.run(rows, &operands, false, |kernels, part, z| {
                // SAFETY: own columns, which nobody else touches.
                unsafe {
                    kernels.tree_child(TreeChild {
                        z,
                        rows,
                        units: part.units.len(),
                        h: step.read_columns(h, part),
                        c: step.read_columns(c, part),
                        sum_h: step.columns(sum_h, part),
                        sum_fc: step.columns(sum_fc, part),
                    });
                }
            })
        })
    }

    /// A worker's own columns of a state.
    fn columns<'a>(&self, states: States<'a>, part: &Part) -> TreeColumns<'a> {
        let first = part.units.start;
        match states {
            States::Together(memory) => TreeColumns::Together(Columns {
                memory,
                first,
                stride: self.hidden,
                order: None,
            }),
            States::Apart { written, .. } => TreeColumns::Apart {
                rows: written,
                first,
            },
        }
    }

    /// The same columns of rows that are only read.
    fn read_columns<'a>(&self, values: InputValues<'a>, part: &Part) -> ReadColumns<'a> {
        ReadColumns {
            rows: values.rows(self.hidden),
            first: part.units.start,
        }
    }

    /// Computes all products, then calls `gates` with the pre-activations of each worker.
    ///
    /// By a shared reference, so that `gates` may read the shape; all callers of the callers hold a unique one, so no buffer is in
    /// two runs at once.
    fn run(
        &self,
        rows: usize,
        operands: &[TreeOperand<'_>],
        meet: bool,
        gates: impl Fn(&dyn Kernels, &Part, &[f32]) + Sync,
    ) -> Result<(), TeamPanicked> {
        if self.parts.is_empty() {
            return Ok(());
        }
        self.team.run_on(self.parts.len(), |worker| {
            let part = &self.parts[worker.index];
            let panels = part.units.len().div_ceil(self.kernels.lanes());
            let len = rows * panels * self.gates * self.kernels.lanes();
            // SAFETY: the buffer is this worker's alone.
            let z = unsafe { part.z.share().write(0..len) };
            for (index, product) in part.products.iter().enumerate() {
                let depth = product.weights.depth();
                let a = match operands[product.operand] {
                    TreeOperand::Input(values) => values.rows(depth),
                    // SAFETY: nobody writes an operand before all workers have met.
                    TreeOperand::State(States::Together(h)) => unsafe {
                        Rows::strided(h.read(0..rows * depth), depth)
                    },
                    TreeOperand::State(States::Apart { read, .. }) => Rows::Apart {
                        of: read,
                        rows: None,
                    },
                };
                let room = part.room.share();
                let words = 0..product.weights.room(rows);
                let same = |before: &OperandProduct| {
                    before.operand == product.operand && before.weights.fills_for(&product.weights)
                };
                // SAFETY: the buffer is this worker's alone.
                let room = unsafe {
                    match index > 0 && same(&part.products[index - 1]) {
                        true => Room::Filled(room.read(words)),
                        false => Room::ToFill(room.write(words)),
                    }
                };
                let job = Product {
                    rows: a,
                    row_count: rows,
                    weights: &product.weights,
                    slots: &product.slots,
                    start: match index {
                        0 => Start::Bias(&part.bias),
                        _ => Start::Continue,
                    },
                    z: &mut *z,
                    z_slots: self.gates,
                    sweep: Sweep::Wide,
                    blocking: part.blocking,
                    next: part.first_of(index + 1),
                };
                self.kernels.product_in(job, room);
            }
            if meet {
                worker.barrier();
            }
            gates(&*self.kernels, part, z);
        })
    }
}

impl Part {
    /// What the first tile of a product reads.
    fn first_of(&self, product: usize) -> NextProduct {
        let Some(OperandProduct { weights, .. }) = self.products.get(product) else {
            return NextProduct::NONE;
        };
        weights.first_tile(0..weights.panels())
    }

    /// `None` where there is no memory for so many rows.
    fn pack(
        lanes: usize,
        rows: usize,
        (gates, hidden): (usize, usize),
        operands: &[&Matrix],
        bias: &[f32],
        units: &Range<usize>,
    ) -> Option<Part> {
        let mut products = Vec::new();
        let together = gates.div_ceil(gates.div_ceil(MOST_GATES));
        for (operand, matrix) in operands.iter().enumerate() {
            let source = Source {
                numbers: matrix.numbers(),
                depth: matrix.cols(),
                units: hidden,
            };
            let all: Vec<usize> = (0..gates).collect();
            products.extend(all.chunks(together).map(|slots| OperandProduct {
                operand,
                weights: PackedMatrix::new(
                    lanes,
                    source,
                    slots,
                    units.clone(),
                    Blocking::default(),
                ),
                slots: slots.to_vec(),
            }));
        }
        let bias: Vec<&[f32]> = bias.chunks(hidden).collect();
        let room = products.iter().map(|p| p.weights.room(rows)).max();
        let bytes: usize = products.iter().map(|p| p.weights.bytes()).sum();
        Some(Part {
            bias: pack_vectors(lanes, &bias, units.clone()),
            z: Buffer::new(rows, units.len().next_multiple_of(lanes) * gates)?,
            room: Buffer::new(room.unwrap_or(0), 1)?,
            products,
            blocking: CacheModel::here().blocking(bytes),
            units: units.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::execute::RowLists;
    use crate::execute::counting::Counting;
    use crate::execute::team::Team;
    use crate::machine::L3Latency;
    use crate::model::Precision;

    fn together(values: &[f32]) -> InputValues<'_> {
        InputValues::Together(values)
    }

    fn both<'a>(a: &'a mut [f32], b: &'a mut [f32]) -> [StateRows<'a>; 2] {
        [a, b].map(StateRows::Together)
    }

    /// Runs a step on states whose rows are side by side, or each in a buffer of its own.
    fn write(
        apart: bool,
        [a, b]: [&mut [f32]; 2],
        hidden: usize,
        step: impl FnOnce([StateRows<'_>; 2]) -> Result<(), TeamPanicked>,
    ) {
        if !apart {
            return step(both(a, b)).unwrap();
        }
        let mut rows = [&*a, &*b]
            .map(|of| -> Vec<Vec<f32>> { of.chunks_exact(hidden).map(<[f32]>::to_vec).collect() });
        let mut lists = RowLists::new(2, 0);
        for (list, rows) in rows.iter_mut().enumerate() {
            lists.extend(list, rows.iter_mut().map(|row| &mut row[..]));
        }
        step(lists.written().split()).unwrap();
        drop(lists);
        let [of_a, of_b] = rows.map(|rows| rows.concat());
        a.copy_from_slice(&of_a);
        b.copy_from_slice(&of_b);
    }

    /// What the portable vectors on one thread give is compared with plain loops where the cells are.
    #[test]
    fn every_instruction_set_number_of_threads_and_place_of_rows_gives_the_same_bits() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (index, hidden) in [1, 4, 16, 23, 64, 100].into_iter().enumerate() {
            let (input, rows) = (1 + rng.usize(..20), 7);
            let mut random =
                |len: usize| -> Vec<f32> { (0..len).map(|_| 2.0 * rng.f32() - 1.0).collect() };
            let mut matrix = |rows: usize, cols: usize| {
                let matrix = Matrix::new(rows, cols, random(rows * cols)).unwrap();
                matrix.in_precision(Precision::ALL[index % 3]).unwrap()
            };
            let of_x = matrix(3 * hidden, input);
            let of_h = [matrix(3 * hidden, hidden), matrix(hidden, hidden)];
            let of_children = [matrix(5 * hidden, hidden), matrix(5 * hidden, hidden)];
            let forget_x = matrix(hidden, input);
            let bias = random(5 * hidden);
            let x = random(rows * input);
            let states: Vec<_> = (0..4).map(|_| random(rows * hidden)).collect();
            // Rows that lie apart, each in memory of its own.
            let owned = |values: &[f32], width: usize| -> Vec<Vec<f32>> {
                let rows = values.chunks_exact(width).map(<[f32]>::to_vec);
                rows.collect()
            };
            let owned = [
                owned(&x, input),
                owned(&states[0], hidden),
                owned(&states[1], hidden),
            ];
            let lists = owned
                .each_ref()
                .map(|rows| rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut all = Vec::new();
            for (threads, apart) in (1..4).flat_map(|threads| [(threads, false), (threads, true)]) {
                let team = SharedTeam::new(Team::with_threads(threads).unwrap());
                for isa in Isa::available() {
                    let [x, h, c] = match apart {
                        false => [&x, &states[0], &states[1]].map(|values| together(values)),
                        true => lists.each_ref().map(|rows| InputValues::Apart(rows)),
                    };
                    let step = |gates: usize, operands: &[&Matrix]| {
                        let bias = &bias[..gates * hidden];
                        TreeStep::new(&team, isa, 9, gates, operands, bias).unwrap()
                    };
                    let [mut a, mut b] = [2, 3].map(|s| states[s].clone());
                    let mut gave = Vec::new();
                    let mut run =
                        |step: &mut dyn FnMut([StateRows<'_>; 2]) -> Result<(), TeamPanicked>| {
                            write(apart, [&mut a, &mut b], hidden, step);
                            gave.extend(a.iter().chain(&b).map(|v| v.to_bits()));
                        };
                    let of_both = [&of_children[0], &of_children[1]];
                    let of_child = [&forget_x, &of_h[1]];
                    run(&mut |states| step(3, &[&of_x]).leaf(rows, x, states));
                    run(&mut |states| step(5, &of_both).binary(rows, [h, c], states));
                    run(&mut |states| step(1, &of_child).child(rows, [x, h, c], states));
                    run(&mut |states| step(3, &[&of_x, &of_h[0]]).summed(rows, x, states));
                    all.push((isa, (threads, apart), gave));
                }
            }
            for (isa, threads, gave) in &all {
                assert_eq!(gave, &all[0].2, "{isa}, {threads:?}, hidden {hidden}");
            }
        }
    }

    /// Weights that no private cache holds are asked for where rows are many: that reads nothing beyond them, and changes
    /// nothing.
    #[test]
    fn weights_from_afar_give_many_rows_what_each_gets_alone() {
        let (hidden, rows) = (260, 14);
        let mut rng = fastrand::Rng::with_seed(2);
        let mut random =
            |len: usize| -> Vec<f32> { (0..len).map(|_| 2.0 * rng.f32() - 1.0).collect() };
        let [left, right] =
            [0, 1].map(|_| Matrix::new(5 * hidden, hidden, random(5 * hidden * hidden)).unwrap());
        let bias = random(5 * hidden);
        let [h_right, c_right, h, c] = [(); 4].map(|()| random(rows * hidden));
        let team = SharedTeam::new(Team::with_threads(1).unwrap());
        let isa = Isa::select().unwrap();
        let mut step = TreeStep::new(&team, isa, rows, 5, &[&left, &right], &bias).unwrap();
        step.parts[0].blocking = CacheModel::new(0, L3Latency::High).blocking(usize::MAX);
        let [mut h_all, mut c_all] = [&h, &c].map(Vec::clone);
        let rights = [&h_right, &c_right].map(|state| together(state));
        (step.binary(rows, rights, both(&mut h_all, &mut c_all))).unwrap();
        for row in 0..rows {
            let of = row * hidden..(row + 1) * hidden;
            let [mut h, mut c] = [&h, &c].map(|state| state[of.clone()].to_vec());
            let rights = [&h_right, &c_right].map(|state| together(&state[of.clone()]));
            step.binary(1, rights, both(&mut h, &mut c)).unwrap();
            assert_eq!(
                [&h_all[of.clone()], &c_all[of]],
                [&h[..], &c[..]],
                "row {row}"
            );
        }
    }

    /// Five gates are packed apart, three and two, and take the same rows.
    #[test]
    fn rows_are_quantised_once_an_operand() {
        let (hidden, rows) = (40, 3);
        let matrix = Matrix::new(5 * hidden, hidden, vec![0.5; 5 * hidden * hidden]).unwrap();
        let matrix = matrix.in_precision(Precision::Int8).unwrap();
        let team = SharedTeam::new(Team::with_threads(2).unwrap());
        let (isa, bias) = (Isa::select().unwrap(), vec![0.0; 5 * hidden]);
        let mut step = TreeStep::new(&team, isa, rows, 5, &[&matrix, &matrix], &bias).unwrap();
        let (kernels, asked) = Counting::kernels(isa);
        step.kernels = kernels;
        let [mut h, mut c, right] = [(); 3].map(|()| vec![0.1; rows * hidden]);
        (step.binary(rows, [together(&right); 2], both(&mut h, &mut c))).unwrap();
        let (workers, operands) = (2, 2);
        let quantised = asked.prepared_rows.load(Ordering::Relaxed);
        assert_eq!(quantised, workers * operands * rows);
    }

    #[test]
    fn no_memory_for_so_many_rows_is_an_error() {
        let team = SharedTeam::new(Team::with_threads(1).unwrap());
        let matrix = Matrix::new(3, 1, vec![0.0; 3]).unwrap();
        let isa = Isa::select().unwrap();
        let refused = TreeStep::new(&team, isa, usize::MAX, 3, &[&matrix], &[0.0; 3]);
        assert!(matches!(refused.err(), Some(SessionError::TooLarge { .. })));
    }
}
