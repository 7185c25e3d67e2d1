//! A fully connected layer: `y = W x + b`.
//!
//! ```text
//! for row in rows
//!   for j in 0..outputs
//!     y[row][j] = b[j];  for k in 0..inputs { y[row][j] = fma(x[row][k], W[j][k], y[row][j]) }
//! ```
//!
//! The real code cuts the outputs into blocks, and takes a few rows at a time: the product writes
//! whole vectors, so a ragged number of outputs needs room of its own, and a block of few rows has
//! it on the stack. All rows pass over one block before the next, whose weights stay in the cache.
//! With weights of int8, rows are quantised for the first block, and kept for the others.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::LayerError;
use super::deal::Work;
use super::error::expect;
use crate::execute::team::SharedTeam;
use crate::machine::CacheModel;
use crate::model::Matrix;
use gatestream_kernels::{
    Aligned, Blocking, Isa, Kernels, NextProduct, Numbers, PackedMatrix, Prefetch, Product,
    RowsRef, Scratch, Source, Start, Sweep, kernels, pack_vectors,
};

/// Words of a block at each step of the chain: a whole number of vectors on every instruction set.
const BLOCK: usize = 64;
/// Outputs of the longest block, of int8.
const MAX_OUTPUTS: usize = 4 * BLOCK;
/// Most rows taken together: those of a tile, where a cache holds the weights.
const ROWS: usize = 6;
/// The same where no private cache holds the weights: several tiles, which prefetch the next block.
const FAR_ROWS: usize = 24;
/// Blocks whose weights [`Dense::from_columns`] asks for together: short pieces of each column cost
/// as much as long ones. Fewer where there would not be a group for each worker.
const GROUP: usize = 32;
/// Columns that it asks for together: they stay in the cache until all blocks have taken them.
const COLUMNS: usize = 16;
/// Most rows that are kept quantised until all blocks have taken them. For more, the weights are
/// read again.
const KEPT_ROWS: usize = 128;

/// `y = W x + b` (PyTorch `torch.nn.Linear`), with `W` `[outputs, inputs]` and `b` `[outputs]`.
///
/// Computed in the precision of `W`, as [`crate::reference::dense`] has it: the same bits on every
/// instruction set and for every number of rows. In f32 and bf16 each output is one chain of fused
/// multiply-adds that starts from the bias and takes the inputs in order. In int8 the inputs are
/// quantised, too, each row with a scale of its own ([`crate::model::Precision`]); an input that is
/// not finite makes all outputs of its row NaN. [`Matrix::in_precision`] makes one of the other.
///
/// ```
/// use gatestream::layers::Dense;
/// use gatestream::model::Matrix;
///
/// let weights = Matrix::new(2, 3, vec![1.0, 0.0, 0.0, 1.0, 2.0, 3.0])?;
/// let dense = Dense::new(&weights, &[0.5, 0.0])?;
/// let mut y = [0.0; 2];
/// dense.run(&[1.0, 1.0, 1.0], &mut y)?;
/// assert_eq!(y, [1.5, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dense {
    pub(super) kernels: Box<dyn Kernels>,
    blocks: Vec<Block>,
    /// Outputs of each block but the last, which may have fewer.
    block: usize,
    inputs: usize,
    outputs: usize,
    /// Decides the blocking of each run.
    caches: &'static CacheModel,
    /// Where workers quantise, a room for each: nothing but for int8.
    rooms: Vec<Mutex<Vec<u32>>>,
}

/// Some outputs that follow each other.
struct Block {
    weights: PackedMatrix,
    bias: Aligned,
}

impl Block {
    fn new(lanes: usize, source: Source<'_>, units: Range<usize>, bias: &[f32]) -> Block {
        let bias = pack_vectors(lanes, &[bias], 0..bias.len());
        Block {
            weights: PackedMatrix::new(lanes, source, &[0], units, Blocking::default()),
            bias,
        }
    }
}

struct Sizes {
    inputs: usize,
    outputs: usize,
    /// Outputs of each block but the last.
    block: usize,
    /// Blocks that are packed together.
    group: usize,
}

impl Dense {
    /// Packs `weights` `[outputs, inputs]`, as the numbers that they are, and `bias` `[outputs]`
    /// for the best instruction set of this CPU (or the one that `GATESTREAM_ISA` names).
    ///
    /// # Errors
    /// [`LayerError::Values`] for a bias of another size, [`LayerError::Isa`].
    pub fn new(weights: &Matrix, bias: &[f32]) -> Result<Dense, LayerError> {
        Dense::for_isa(weights, bias, Isa::select()?)
    }

    /// As [`Dense::new`], for a given instruction set.
    ///
    /// # Errors
    /// As [`Dense::new`].
    pub fn for_isa(weights: &Matrix, bias: &[f32], isa: Isa) -> Result<Dense, LayerError> {
        Dense::of_matrix(weights, bias, kernels(isa)?, None)
    }

    /// As [`Dense::for_isa`], each block packed by the worker of `team` that [`Dense::argmax_on`]
    /// has compute it. With weights of int8, only a layer made here runs on several workers.
    ///
    /// # Errors
    /// As [`Dense::new`]; [`LayerError::Team`].
    pub fn on_team(
        weights: &Matrix,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
    ) -> Result<Dense, LayerError> {
        Dense::of_matrix(weights, bias, kernels(isa)?, Some(team))
    }

    /// Packs weights of f32 that `rows` gives in parts, on the workers of `team`: it writes the
    /// rows of `W` `[outputs, inputs]` with these indices. So no second copy of `W` is needed where
    /// it is stored in another layout. There are as many outputs as `bias` has values.
    ///
    /// ```
    /// use gatestream::execute::team::{SharedTeam, Team};
    /// use gatestream::layers::Dense;
    ///
    /// let columns = [1.0, 3.0, 2.0, 4.0]; // W = [[1, 2], [3, 4]]
    /// let team = SharedTeam::new(Team::with_threads(1)?);
    /// let dense = Dense::from_rows(2, &[0.5, 0.0], &team, |units, rows| {
    ///     for (row, unit) in rows.chunks_mut(2).zip(units) {
    ///         row.copy_from_slice(&[columns[unit], columns[2 + unit]]);
    ///     }
    /// })?;
    /// let mut y = [0.0; 2];
    /// dense.run(&[1.0, 1.0], &mut y)?;
    /// assert_eq!(y, [3.5, 7.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LayerError::Isa`]; [`LayerError::Team`].
    pub fn from_rows(
        inputs: usize,
        bias: &[f32],
        team: &SharedTeam,
        rows: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) -> Result<Dense, LayerError> {
        let kernels = kernels(Isa::select()?)?;
        let lanes = kernels.lanes();
        let sizes = Sizes {
            inputs,
            outputs: bias.len(),
            block: BLOCK,
            group: 1,
        };
        // Kept by each worker: new memory for each block would take longer than the packing.
        let buffers: Vec<Mutex<Vec<f32>>> = (0..team.threads()).map(|_| Mutex::default()).collect();
        Dense::packed(sizes, kernels, Some(team), |worker, units| {
            let mut values = buffers[worker]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            values.resize(units.len() * inputs, 0.0);
            rows(units.clone(), &mut values);
            let source = Source {
                numbers: Numbers::F32(&values),
                depth: inputs,
                units: units.len(),
            };
            vec![Block::new(lanes, source, 0..units.len(), &bias[units])]
        })
    }

    /// As [`Dense::from_rows`], of `W` by columns: `columns` gives those of some inputs, of some
    /// outputs, `[inputs, outputs]`.
    ///
    /// ```
    /// use gatestream::execute::team::{SharedTeam, Team};
    /// use gatestream::layers::Dense;
    ///
    /// let columns = [1.0, 3.0, 2.0, 4.0]; // W = [[1, 2], [3, 4]]
    /// let team = SharedTeam::new(Team::with_threads(1)?);
    /// let dense = Dense::from_columns(2, &[0.5, 0.0], &team, |inputs, outputs, values| {
    ///     for (column, input) in values.chunks_mut(outputs.len()).zip(inputs) {
    ///         column.copy_from_slice(&columns[2 * input..][outputs.clone()]);
    ///     }
    /// })?;
    /// let mut y = [0.0; 2];
    /// dense.run(&[1.0, 1.0], &mut y)?;
    /// assert_eq!(y, [3.5, 7.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LayerError::Isa`]; [`LayerError::Team`].
    pub fn from_columns(
        inputs: usize,
        bias: &[f32],
        team: &SharedTeam,
        columns: impl Fn(Range<usize>, Range<usize>, &mut [f32]) + Sync,
    ) -> Result<Dense, LayerError> {
        let kernels = kernels(Isa::select()?)?;
        let lanes = kernels.lanes();
        let blocks_of_worker = bias.len().div_ceil(BLOCK).div_ceil(team.threads());
        let sizes = Sizes {
            inputs,
            outputs: bias.len(),
            block: BLOCK,
            group: GROUP.min(blocks_of_worker).max(1),
        };
        Dense::packed(sizes, kernels, Some(team), |_, units| {
            let width = units.len();
            let biases = bias[units.clone()].chunks(BLOCK);
            let mut blocks: Vec<Block> = biases
                .map(|bias| Block {
                    weights: PackedMatrix::zeroed(lanes, bias.len(), inputs),
                    bias: pack_vectors(lanes, &[bias], 0..bias.len()),
                })
                .collect();
            let mut values = vec![0.0; COLUMNS.min(inputs) * width];
            for first in (0..inputs).step_by(COLUMNS) {
                let taken = first..inputs.min(first + COLUMNS);
                let values = &mut values[..taken.len() * width];
                columns(taken, units.clone(), values);
                for (block, at) in blocks.iter_mut().zip((0..width).step_by(BLOCK)) {
                    let count = BLOCK.min(width - at);
                    let values = &values[at..];
                    block.weights.set_columns(first, values, width, count);
                }
            }
            blocks
        })
    }

    fn of_matrix(
        weights: &Matrix,
        bias: &[f32],
        kernels: Box<dyn Kernels>,
        team: Option<&SharedTeam>,
    ) -> Result<Dense, LayerError> {
        expect("bias", bias.len(), weights.rows())?;
        let lanes = kernels.lanes();
        let source = Source {
            numbers: weights.numbers(),
            depth: weights.cols(),
            units: weights.rows(),
        };
        let sizes = Sizes {
            inputs: weights.cols(),
            outputs: weights.rows(),
            block: BLOCK * source.numbers.per_word(),
            group: 1,
        };
        Dense::packed(sizes, kernels, team, |_, units| {
            vec![Block::new(lanes, source, units.clone(), &bias[units])]
        })
    }

    /// A layer whose blocks `pack` makes, a group for some outputs that follow each other; on one
    /// worker without a team. Its first argument is the index of the worker.
    fn packed(
        sizes: Sizes,
        kernels: Box<dyn Kernels>,
        team: Option<&SharedTeam>,
        pack: impl Fn(usize, Range<usize>) -> Vec<Block> + Sync,
    ) -> Result<Dense, LayerError> {
        let outputs = sizes.outputs;
        let together = sizes.block * sizes.group;
        let groups = (0..outputs).step_by(together);
        let groups: Vec<OnceLock<Vec<Block>>> = groups.map(|_| OnceLock::new()).collect();
        let pack_groups = |worker: usize, groups_of_worker: Range<usize>| {
            for index in groups_of_worker {
                let units = index * together..((index + 1) * together).min(outputs);
                groups[index].get_or_init(|| pack(worker, units));
            }
        };
        let workers = team.map_or(1, SharedTeam::threads);
        match team {
            Some(team) => {
                team.run(|worker| {
                    pack_groups(worker.index, share(groups.len(), worker.index, workers));
                })?;
            }
            None => pack_groups(0, 0..groups.len()),
        }
        let mut dense = Dense {
            blocks: groups
                .into_iter()
                .filter_map(OnceLock::into_inner)
                .flatten()
                .collect(),
            block: sizes.block,
            kernels,
            inputs: sizes.inputs,
            outputs,
            caches: CacheModel::here(),
            rooms: Vec::new(),
        };
        let room = || Mutex::new(vec![0; dense.room()]);
        dense.rooms = (0..workers).map(|_| room()).collect();
        // Large weights need the measured latency of the third level. Runs must not measure it.
        dense.caches.blocking(dense.weight_bytes());
        Ok(dense)
    }

    /// Features of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Features of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Outputs of each block but the last.
    pub(super) fn block(&self) -> usize {
        self.block
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.weights.bytes()).sum()
    }

    /// Computes `y` `[rows, outputs]` from `x` `[rows, inputs]`; the number of rows is that of `y`.
    /// Allocates nothing. With weights of int8, calls at the same time take turns.
    ///
    /// # Errors
    /// [`LayerError::Values`] unless both hold the same number of whole rows; nothing has been
    /// written then.
    pub fn run(&self, x: &[f32], y: &mut [f32]) -> Result<(), LayerError> {
        self.rows_of(x, y)?;
        self.run_blocks(0, 0..self.blocks.len(), x, y);
        Ok(())
    }

    /// As [`Dense::run`], to the same bits, on the workers of `team`: several rows at a time each,
    /// or of one row several outputs. Little work is done by the caller alone.
    ///
    /// ```
    /// use gatestream::execute::team::{SharedTeam, Team};
    /// use gatestream::layers::Dense;
    /// use gatestream::model::Matrix;
    ///
    /// let team = SharedTeam::new(Team::with_threads(2)?);
    /// let dense = Dense::new(&Matrix::new(1, 2, vec![1.0, 2.0])?, &[0.5])?;
    /// let mut y = [0.0; 2];
    /// dense.run_on(&team, &[1.0, 1.0, 0.0, 3.0], &mut y)?;
    /// assert_eq!(y, [3.5, 6.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Dense::run`]; [`LayerError::Team`].
    pub fn run_on(&self, team: &SharedTeam, x: &[f32], y: &mut [f32]) -> Result<(), LayerError> {
        self.run_then(team, x, y, |_| ())
    }

    /// As [`Dense::run_on`]; calls `finish` with each part of `y` as soon as it is computed.
    pub(super) fn run_then(
        &self,
        team: &SharedTeam,
        x: &[f32],
        y: &mut [f32],
        finish: impl Fn(&mut [f32]) + Sync,
    ) -> Result<(), LayerError> {
        let rows = self.rows_of(x, y)?;
        let mut work = Work::new(team, rows * self.inputs * self.outputs);
        if self.words() > 0 {
            work.workers = work.workers.min(self.rooms.len());
        }
        if rows == 1 {
            let blocks = self.blocks.len().div_ceil(work.workers);
            let parts = y.chunks_mut(blocks * self.block).enumerate();
            work.deal(parts, |worker, (index, y)| {
                let first = index * blocks;
                let blocks = first..(first + blocks).min(self.blocks.len());
                self.run_blocks(worker, blocks, x, y);
                finish(y);
            })
        } else {
            let part = work.part_rows(rows);
            let parts = y.chunks_mut((part * self.outputs).max(1)).enumerate();
            work.deal(parts, |worker, (index, y)| {
                let rows = y.len() / self.outputs;
                let x = &x[index * part * self.inputs..][..rows * self.inputs];
                self.run_blocks(worker, 0..self.blocks.len(), x, y);
                finish(y);
            })
        }
    }

    /// The number of whole rows that both hold.
    fn rows_of(&self, x: &[f32], y: &[f32]) -> Result<usize, LayerError> {
        let rows = y.len() / self.outputs.max(1);
        expect("y", y.len(), rows * self.outputs)?;
        expect("x", x.len(), rows * self.inputs)?;
        Ok(rows)
    }

    /// Writes the outputs of some blocks to `y` `[rows, outputs of the blocks]`. With weights of
    /// int8, calls for the same worker at the same time take turns.
    fn run_blocks(&self, worker: usize, blocks: Range<usize>, x: &[f32], y: &mut [f32]) {
        let before = blocks.start * self.block;
        let outputs = (blocks.end * self.block).min(self.outputs) - before;
        let rows = y.len() / outputs.max(1);
        let take = |row: usize, first: usize, logits: &[f32]| {
            let to = row * outputs + first - before;
            y[to..to + logits.len()].copy_from_slice(logits);
        };
        match self.words() {
            0 => self.blocks(blocks, x, rows, &mut [], take),
            _ => {
                let room = &self.rooms[worker];
                let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
                self.blocks(blocks, x, rows, &mut room, take);
            }
        }
    }

    /// Words that [`Dense::blocks`] quantises in.
    pub(super) fn room(&self) -> usize {
        KEPT_ROWS * self.words()
    }

    /// Words in which a row is quantised, for all blocks: they differ in their outputs only.
    fn words(&self) -> usize {
        (self.blocks.first()).map_or(0, |block| block.weights.scratch_words(1))
    }

    /// Which blocks are computed by one of so many workers: those that follow each other.
    pub(super) fn share(&self, worker: usize, workers: usize) -> Range<usize> {
        share(self.blocks.len(), worker, workers)
    }

    /// Computes some blocks, and calls `take` with a row, its first output of a block, and its
    /// outputs of that block. `room` has [`Dense::room`] words.
    pub(super) fn blocks(
        &self,
        blocks: Range<usize>,
        x: &[f32],
        rows: usize,
        room: &mut [u32],
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let bytes = |blocks: &[Block]| blocks.iter().map(|b| b.weights.bytes()).sum::<usize>();
        let blocking = self.caches.blocking(bytes(&self.blocks[blocks.clone()]));
        let most = match self.words() {
            0 => rows.max(1),
            _ => KEPT_ROWS,
        };
        for begin in (0..rows).step_by(most) {
            let (x, rows) = (&x[begin * self.inputs..], most.min(rows - begin));
            let take =
                |row: usize, first: usize, outputs: &[f32]| take(begin + row, first, outputs);
            let blocks = blocks.clone();
            // Clearing room for many rows would take longer than a small layer of one row.
            if blocking.prefetch == Prefetch::Off {
                let z = &mut [0.0; ROWS * MAX_OUTPUTS];
                self.few_rows(blocks, x, rows, blocking, BlockBuffers { room, z }, take);
            } else {
                let z = &mut [0.0; FAR_ROWS * MAX_OUTPUTS];
                self.few_rows(blocks, x, rows, blocking, BlockBuffers { room, z }, take);
            }
        }
    }

    /// As [`Dense::blocks`], of no more rows than are kept, as many together as `z` has room for.
    fn few_rows(
        &self,
        blocks: Range<usize>,
        x: &[f32],
        rows: usize,
        blocking: Blocking,
        buffers: BlockBuffers<'_>,
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let BlockBuffers { room, z } = buffers;
        let most = z.len() / MAX_OUTPUTS;
        // As few groups of rows as can be, as even as can be.
        let together = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let words = self.words();
        for index in blocks.clone() {
            let block = &self.blocks[index];
            let first_unit = index * self.block;
            let units = self.block.min(outputs - first_unit);
            let padded = block.weights.panels() * block.weights.lanes();
            for first in (0..rows).step_by(together) {
                let row_count = together.min(rows - first);
                let room = &mut room[first * words..][..row_count * words];
                let scratch = if index == blocks.start {
                    Scratch::Empty(room)
                } else {
                    Scratch::Packed(room)
                };
                let next = match self.blocks.get(index + 1) {
                    Some(next) => next.weights.as_next(0..next.weights.panels()),
                    None => NextProduct::NONE,
                };
                let product = Product {
                    rows: RowsRef::contiguous(&x[first * inputs..], inputs),
                    order: None,
                    row_count,
                    weights: &block.weights,
                    slots: &[0],
                    start: Start::Bias(&block.bias),
                    z: &mut *z,
                    z_slots: 1,
                    sweep: Sweep::Wide,
                    blocking,
                    next,
                };
                self.kernels.product_in(product, scratch);
                for row in 0..row_count {
                    take(first + row, first_unit, &z[row * padded..][..units]);
                }
            }
        }
    }
}

/// Memory of a product of few rows.
struct BlockBuffers<'a> {
    /// [`Dense::room`] words.
    room: &'a mut [u32],
    /// Outputs of a block.
    z: &'a mut [f32],
}

/// The part of `count` that falls to one of so many workers.
fn share(count: usize, worker: usize, workers: usize) -> Range<usize> {
    worker * count / workers..(worker + 1) * count / workers
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::execute::counting::Counting;
    use crate::execute::team::Team;
    use crate::model::Precision;
    use crate::reference;
    use gatestream_kernels::plain_kernels;

    fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * rng.f32() - 1.0).collect()
    }

    /// The matrices that this one is in every precision.
    fn in_all_precisions(matrix: &Matrix) -> [Matrix; 3] {
        Precision::ALL.map(|precision| matrix.in_precision(precision).unwrap())
    }

    /// With and without the instructions that only some CPUs of an instruction set have.
    fn all_kernels() -> Vec<(String, Box<dyn Kernels>)> {
        let both = |&isa: &Isa| {
            [
                (format!("{isa}"), kernels(isa).unwrap()),
                (format!("{isa}, plain"), plain_kernels(isa).unwrap()),
            ]
        };
        Isa::available().iter().flat_map(both).collect()
    }

    #[test]
    fn rows_given_in_parts_have_the_bits_of_the_matrix() {
        let mut rng = fastrand::Rng::with_seed(5);
        for (outputs, inputs) in [(1, 5), (64, 7), (65, 16), (2048, 2), (4100, 9)] {
            let weights = random(&mut rng, outputs * inputs);
            let bias = random(&mut rng, outputs);
            let x = random(&mut rng, 3 * inputs);
            let matrix = Matrix::new(outputs, inputs, weights.clone()).unwrap();
            let rows = x.chunks(inputs);
            let expected: Vec<f32> = rows
                .flat_map(|x| reference::dense(&matrix, &bias, x))
                .collect();
            for threads in [1, 2] {
                let team = SharedTeam::new(Team::with_threads(threads).unwrap());
                let dense = Dense::from_rows(inputs, &bias, &team, |units, rows| {
                    rows.copy_from_slice(&weights[units.start * inputs..units.end * inputs]);
                });
                let by_columns = |taken: Range<usize>, units: Range<usize>, values: &mut [f32]| {
                    for (column, values) in taken.zip(values.chunks_mut(units.len())) {
                        for (unit, value) in units.clone().zip(values) {
                            *value = weights[unit * inputs + column];
                        }
                    }
                };
                let columns = Dense::from_columns(inputs, &bias, &team, by_columns);
                for dense in [dense.unwrap(), columns.unwrap()] {
                    let mut y = vec![0.0; 3 * outputs];
                    dense.run(&x, &mut y).unwrap();
                    assert_eq!(y, expected, "{outputs} of {inputs}, {threads} threads");
                }
            }
        }
    }

    /// Fewer outputs than those of two whole groups.
    #[test]
    fn each_worker_packs_its_share_of_few_outputs() {
        let team = SharedTeam::new(Team::with_threads(2).unwrap());
        let largest = Mutex::new(0);
        let dense = Dense::from_columns(1, &[0.0; 2048], &team, |_, units, _| {
            let mut largest = largest.lock().unwrap();
            *largest = units.len().max(*largest);
        });
        assert_eq!(dense.unwrap().outputs(), 2048);
        assert_eq!(largest.into_inner().unwrap(), 1024);
    }

    #[test]
    fn bits_of_the_reference() {
        let mut rng = fastrand::Rng::with_seed(1);
        // Blocks, and what they leave over, of all precisions.
        let sizes = [
            1, 2, 3, 4, 7, 8, 15, 16, 17, 41, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257,
            530,
        ];
        for outputs in sizes {
            for inputs in [1, 5, 64, 130, 131] {
                let weights = random(&mut rng, outputs * inputs);
                let weights = Matrix::new(outputs, inputs, weights).unwrap();
                let bias = random(&mut rng, outputs);
                // More rows than those of a tile, whose scales differ; of each, as many as are
                // asked for.
                let mut x = random(&mut rng, 13 * inputs);
                for (row, x) in x.chunks_mut(inputs).enumerate() {
                    x.iter_mut().for_each(|x| *x *= row as f32);
                }
                for weights in in_all_precisions(&weights) {
                    let expected: Vec<f32> = (x.chunks(inputs))
                        .flat_map(|x| reference::dense(&weights, &bias, x))
                        .collect();
                    for (name, kernels) in all_kernels() {
                        let dense = Dense::of_matrix(&weights, &bias, kernels, None).unwrap();
                        for rows in [0, 1, 2, 5, 6, 7, 13] {
                            let mut y = vec![f32::NAN; rows * outputs];
                            dense.run(&x[..rows * inputs], &mut y).unwrap();
                            let bits =
                                |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                            assert_eq!(
                                bits(&y),
                                bits(&expected[..rows * outputs]),
                                "{name}, {}, {rows} rows, {inputs} to {outputs}",
                                weights.precision()
                            );
                        }
                    }
                }
            }
        }
    }

    /// Weights that no private cache holds, and rows in one group and in several.
    #[test]
    fn weights_from_afar_give_the_same() {
        let mut rng = fastrand::Rng::with_seed(3);
        for precision in [Precision::F32, Precision::Int8] {
            let inputs = 256;
            let far = CacheModel::here().private_bytes();
            let outputs = far / precision.bytes() / inputs + 70;
            let weights = Matrix::new(outputs, inputs, random(&mut rng, outputs * inputs)).unwrap();
            let weights = weights.in_precision(precision).unwrap();
            let bias = random(&mut rng, outputs);
            let x = random(&mut rng, 27 * inputs);
            let dense = Dense::new(&weights, &bias).unwrap();
            assert!(dense.weight_bytes() > far);
            let expected: Vec<f32> = (x.chunks(inputs))
                .flat_map(|x| reference::dense(&weights, &bias, x))
                .collect();
            for rows in [1, 13, 24, 27] {
                let mut y = vec![f32::NAN; rows * outputs];
                dense.run(&x[..rows * inputs], &mut y).unwrap();
                assert_eq!(y, expected[..rows * outputs], "{precision}, {rows} rows");
            }
        }
    }

    /// More rows than are kept quantised, in all blocks; each is quantised once.
    #[test]
    fn rows_are_quantised_once_for_all_blocks() {
        let mut rng = fastrand::Rng::with_seed(4);
        let (inputs, outputs, rows) = (9, 700, 2 * KEPT_ROWS + 3);
        let weights = Matrix::new(outputs, inputs, random(&mut rng, outputs * inputs)).unwrap();
        let weights = weights.in_precision(Precision::Int8).unwrap();
        let (bias, x) = (random(&mut rng, outputs), random(&mut rng, rows * inputs));
        let mut dense = Dense::new(&weights, &bias).unwrap();
        let (kernels, asked) = Counting::kernels(dense.kernels.isa());
        dense.kernels = kernels;
        let mut y = vec![f32::NAN; rows * outputs];
        dense.run(&x, &mut y).unwrap();
        for (row, (x, y)) in x.chunks(inputs).zip(y.chunks(outputs)).enumerate() {
            assert_eq!(y, reference::dense(&weights, &bias, x), "row {row}");
        }
        assert!(dense.blocks.len() > 2);
        assert_eq!(asked.prepared_rows.load(Ordering::Relaxed), rows);
    }

    /// Not widened: a step reads as few bytes as the numbers have.
    #[test]
    fn packed_weights_have_the_bytes_of_their_precision() {
        let weights = Matrix::new(512, 64, vec![1.0; 512 * 64]).unwrap();
        let bytes = in_all_precisions(&weights)
            .map(|weights| Dense::new(&weights, &[0.0; 512]).unwrap().weight_bytes());
        let f32 = 4 * 512 * 64;
        // Of int8 a scale and a sum stand beside each row.
        assert_eq!(bytes, [f32, f32 / 2, f32 / 4 + 8 * 512]);
    }

    /// One row that int8 has no scale for is NaN; those beside it are what they are alone.
    #[test]
    fn a_row_that_is_not_finite_spoils_no_other() {
        let mut rng = fastrand::Rng::with_seed(2);
        let weights = Matrix::new(70, 9, random(&mut rng, 70 * 9)).unwrap();
        let weights = weights.in_precision(Precision::Int8).unwrap();
        let bias = random(&mut rng, 70);
        let x = random(&mut rng, 8 * 9);
        for isa in Isa::available() {
            let dense = Dense::for_isa(&weights, &bias, isa).unwrap();
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = x.clone();
                x[3 * 9 + 4] = bad;
                let mut y = vec![0.0; 8 * 70];
                dense.run(&x, &mut y).unwrap();
                for (row, (x, y)) in x.chunks(9).zip(y.chunks(70)).enumerate() {
                    match row {
                        3 => assert!(y.iter().all(|y| y.is_nan()), "{isa}"),
                        _ => assert_eq!(y, reference::dense(&weights, &bias, x), "{isa}"),
                    }
                }
            }
        }
    }

    #[test]
    fn slices_that_do_not_fit_are_refused() {
        let weights = Matrix::new(3, 2, vec![1.0; 6]).unwrap();
        let values = |name, expected, found| {
            Some(LayerError::Values {
                name,
                expected,
                found,
            })
        };
        assert_eq!(Dense::new(&weights, &[0.0; 2]).err(), values("bias", 3, 2));
        let dense = Dense::new(&weights, &[0.0; 3]).unwrap();
        let mut y = [7.0; 7];
        assert_eq!(dense.run(&[0.0; 4], &mut y).err(), values("y", 6, 7));
        assert_eq!(dense.run(&[0.0; 3], &mut y[..6]).err(), values("x", 4, 3));
        assert_eq!(y, [7.0; 7]);
    }
}
