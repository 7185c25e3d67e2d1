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
use super::session::SessionError;
use super::team::{SharedTeam, TeamPanicked};
use crate::kernels::{
    Aligned, Blocking, Columns, Isa, Kernels, NextProduct, PackedMatrix, Product, ReadColumns,
    RowsMut, RowsRef, Scratch, SharedRows, Source, Start, Sweep, TreeChild, TreeNode, kernels,
    pack_vectors,
};
use crate::machine::CacheModel;
use crate::model::Matrix;
use crate::plan::split_units;

/// Most gates that are packed together.
const MOST_GATES: usize = 4;

/// The gates of one tree cell, packed for one team.
pub struct TreeStep {
    team: SharedTeam,
    kernels: Box<dyn Kernels>,
    hidden: usize,
    gates: usize,
    parts: Vec<Part>,
}

/// Where the sums over children are.
enum Sums {
    None,
    InStates,
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
    /// Holds the quantised, or rearranged, left operand of a product.
    scratch: Buffer<u32>,
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
        })
    }

    /// Leaves: `x` to `h` and `c`. Gates: input, output, update.
    ///
    /// # Panics
    /// If there are fewer than `rows` rows, or one is too short.
    pub fn leaf(
        &mut self,
        rows: usize,
        x: RowsRef<'_>,
        states: [RowsMut<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        self.node(rows, &[x], None, Sums::None, states.map(RowsMut::share))
    }

    /// Nodes of two children: the right one's states, and the left one's, which become the node's.
    /// Gates: input, output, update, forget left, forget right. Operands: left, right.
    ///
    /// # Panics
    /// If there are fewer than `rows` rows, or one is too short.
    pub fn binary(
        &mut self,
        rows: usize,
        [h_right, c_right]: [RowsRef<'_>; 2],
        states: [RowsMut<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        let states = states.map(RowsMut::share);
        // SAFETY: products alone read them; all workers meet before one of them writes.
        let h_left = unsafe { states[0].read_all() };
        self.node(rows, &[h_left, h_right], Some(c_right), Sums::None, states)
    }

    /// Nodes whose children have been summed: `h` and `c` are the sums, and become the node's. Gates:
    /// input, output, update. Operands: `x`, sum.
    ///
    /// # Panics
    /// If there are fewer than `rows` rows, or one is too short.
    pub fn summed(
        &mut self,
        rows: usize,
        x: RowsRef<'_>,
        states: [RowsMut<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        let states = states.map(RowsMut::share);
        // SAFETY: products alone read them; all workers meet before one of them writes.
        let sum = unsafe { states[0].read_all() };
        self.node(rows, &[x, sum], None, Sums::InStates, states)
    }

    /// What the three have in common. Rows that are written may also be read; then there are two
    /// operands. With a `right` child, `c` is the left one's.
    fn node(
        &self,
        rows: usize,
        operands: &[RowsRef<'_>],
        right: Option<RowsRef<'_>>,
        sums: Sums,
        [h, c]: [SharedRows<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        let fit = h.fits(rows, self.hidden)
            && c.fits(rows, self.hidden)
            && right.is_none_or(|right| right.fits(rows, self.hidden));
        assert!(fit, "{rows} rows of {} units", self.hidden);
        self.run(rows, operands, operands.len() > 1, |kernels, part, z| {
            let first = part.units.start;
            let [h, c] = [h, c].map(|rows| Columns::new(rows, first));
            // SAFETY: own columns, which nobody else touches; all workers have read what they need of
            // them before.
            unsafe {
                kernels.tree_node(TreeNode {
                    z,
                    rows,
                    units: part.units.len(),
                    sum: matches!(sums, Sums::InStates).then_some(c),
                    left: right.map(|_| c),
                    right: right.map(|rows| ReadColumns { rows, first }),
                    c,
                    h,
                });
            }
        })
    }

    /// Children, added to the sums of their nodes, of which `x` is the input. Gate: forget. Operands:
    /// `x`, the child's `h`.
    ///
    /// # Panics
    /// If there are fewer than `rows` rows, or one is too short.
    pub fn child(
        &mut self,
        rows: usize,
        [x, h, c]: [RowsRef<'_>; 3],
        sums: [RowsMut<'_>; 2],
    ) -> Result<(), TeamPanicked> {
        let sums = sums.map(RowsMut::share);
        let fit = [h, c].iter().all(|of| of.fits(rows, self.hidden))
            && sums.iter().all(|of| of.fits(rows, self.hidden));
        assert!(fit, "{rows} rows of {} units", self.hidden);
        self.run(rows, &[x, h], false, |kernels, part, z| {
            let first = part.units.start;
            let [h, c] = [h, c].map(|rows| ReadColumns { rows, first });
            let [sum_h, sum_fc] = sums.map(|rows| Columns::new(rows, first));
            // SAFETY: own columns, which nobody else touches.
            unsafe {
                kernels.tree_child(TreeChild {
                    z,
                    rows,
                    units: part.units.len(),
                    h,
                    c,
                    sum_h,
                    sum_fc,
                });
            }
        })
    }

    /// Computes all products, then calls `gates` with the pre-activations of each worker.
    ///
    /// By a shared reference, so that `gates` may read the shape. The public methods take a unique
    /// one, so no buffer is in two runs at once.
    fn run(
        &self,
        rows: usize,
        operands: &[RowsRef<'_>],
        meet: bool,
        gates: impl Fn(&dyn Kernels, &Part, &[f32]) + Sync,
    ) -> Result<(), TeamPanicked> {
        let Some(part) = self.parts.first() else {
            return Ok(());
        };
        for product in &part.products {
            let depth = product.weights.depth();
            let fit = operands[product.operand].fits(rows, depth);
            assert!(fit, "{rows} rows of {depth} values");
        }
        self.team.run_on(self.parts.len(), |worker| {
            let part = &self.parts[worker.index];
            let panels = part.units.len().div_ceil(self.kernels.lanes());
            let len = rows * panels * self.gates * self.kernels.lanes();
            // SAFETY: the buffer is this worker's alone.
            let z = unsafe { part.z.share().write(0..len) };
            for (index, product) in part.products.iter().enumerate() {
                let scratch = part.scratch.share();
                let words = 0..product.weights.scratch_words(rows);
                let same = |before: &OperandProduct| {
                    before.operand == product.operand && before.weights.packs_as(&product.weights)
                };
                // SAFETY: the buffer is this worker's alone.
                let scratch = unsafe {
                    if index > 0 && same(&part.products[index - 1]) {
                        Scratch::Packed(scratch.read(words))
                    } else {
                        Scratch::Empty(scratch.write(words))
                    }
                };
                let job = Product {
                    rows: operands[product.operand],
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
                self.kernels.product_in(job, scratch);
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
        let words = products.iter().map(|p| p.weights.scratch_words(rows)).max();
        let bytes: usize = products.iter().map(|p| p.weights.bytes()).sum();
        Some(Part {
            bias: pack_vectors(lanes, &bias, units.clone()),
            z: Buffer::new(rows, units.len().next_multiple_of(lanes) * gates)?,
            scratch: Buffer::new(words.unwrap_or(0), 1)?,
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
    use crate::execute::counting::Counting;
    use crate::execute::team::Team;
    use crate::machine::L3Latency;
    use crate::model::Precision;

    fn both<'a>(a: &'a mut [f32], b: &'a mut [f32], hidden: usize) -> [RowsMut<'a>; 2] {
        [a, b].map(|values| RowsMut::contiguous(values, hidden))
    }

    /// Runs a step on states whose rows are contiguous, or gathered.
    fn write(
        gathered: bool,
        [a, b]: [&mut [f32]; 2],
        hidden: usize,
        step: impl FnOnce([RowsMut<'_>; 2]) -> Result<(), TeamPanicked>,
    ) {
        if !gathered {
            return step(both(a, b, hidden)).unwrap();
        }
        let mut lists =
            [a, b].map(|of| -> Vec<&mut [f32]> { of.chunks_exact_mut(hidden).collect() });
        step(lists.each_mut().map(|list| RowsMut::gathered(list))).unwrap();
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
            // Gathered rows, each in memory of its own.
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
            for (threads, gathered) in
                (1..4).flat_map(|threads| [(threads, false), (threads, true)])
            {
                let team = SharedTeam::new(Team::with_threads(threads).unwrap());
                for isa in Isa::available() {
                    let [x, h, c] = match gathered {
                        false => [
                            RowsRef::contiguous(&x, input),
                            RowsRef::contiguous(&states[0], hidden),
                            RowsRef::contiguous(&states[1], hidden),
                        ],
                        true => lists.each_ref().map(|rows| RowsRef::gathered(rows)),
                    };
                    let step = |gates: usize, operands: &[&Matrix]| {
                        let bias = &bias[..gates * hidden];
                        TreeStep::new(&team, isa, 9, gates, operands, bias).unwrap()
                    };
                    let [mut a, mut b] = [2, 3].map(|s| states[s].clone());
                    let mut gave = Vec::new();
                    let mut run =
                        |step: &mut dyn FnMut([RowsMut<'_>; 2]) -> Result<(), TeamPanicked>| {
                            write(gathered, [&mut a, &mut b], hidden, step);
                            gave.extend(a.iter().chain(&b).map(|v| v.to_bits()));
                        };
                    let of_both = [&of_children[0], &of_children[1]];
                    let of_child = [&forget_x, &of_h[1]];
                    run(&mut |states| step(3, &[&of_x]).leaf(rows, x, states));
                    run(&mut |states| step(5, &of_both).binary(rows, [h, c], states));
                    run(&mut |states| step(1, &of_child).child(rows, [x, h, c], states));
                    run(&mut |states| step(3, &[&of_x, &of_h[0]]).summed(rows, x, states));
                    all.push((isa, (threads, gathered), gave));
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
        let rights = [&h_right, &c_right].map(|state| RowsRef::contiguous(state, hidden));
        (step.binary(rows, rights, both(&mut h_all, &mut c_all, hidden))).unwrap();
        for row in 0..rows {
            let of = row * hidden..(row + 1) * hidden;
            let [mut h, mut c] = [&h, &c].map(|state| state[of.clone()].to_vec());
            let rights =
                [&h_right, &c_right].map(|state| RowsRef::contiguous(&state[of.clone()], hidden));
            step.binary(1, rights, both(&mut h, &mut c, hidden))
                .unwrap();
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
        (step.binary(
            rows,
            [RowsRef::contiguous(&right, hidden); 2],
            both(&mut h, &mut c, hidden),
        ))
        .unwrap();
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
