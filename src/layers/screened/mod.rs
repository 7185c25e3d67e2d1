//! The greatest output of a dense layer with weights of f32, most of which are never read: int8
//! tells which outputs can be it.
//!
//! ```text
//! for row in rows
//!   for j in outputs:  a[j], e[j] = output j in int8, how far from it the one in f32 is at most
//!   least = max (a[j] - e[j])                                   the greatest output is no less
//!   symbol[row] = argmax of output j in f32, of all j with a[j] + e[j] >= least
//! ```
//!
//! A choice among 30,000 words of 1024 features reads 123 MB of weights in f32, 31 in int8; of
//! those words, weights at random leave some ten to twenty, a model that has learnt to choose
//! fewer. The answer is the one in f32 to the last bit, whatever the weights: where the bounds do
//! not decide, outputs are computed.
//!
//! The real code goes block by block, while a block's outputs are in the cache: each worker keeps
//! the greatest `a[j] - e[j]` that it has seen of a row, and looks into a block only where one
//! bound for all its outputs does not rule them out. Then it computes those that are left, the one
//! with the greatest `a[j] + e[j]` first: once an output is greater than what all others can be, it
//! is the greatest.
//!
//! Inputs of which few are large leave wide bounds, and many outputs possible. Where a worker has
//! no room for more, it computes those with the greatest `a[j] + e[j]`: the greatest output is no
//! less than any of these. Where too many are left even so, as of a layer of zeros, it gives up,
//! and all outputs of the row are computed by the layer packed in f32. The time is then that of
//! both ([`Argmax`](super::Argmax)); computing each output by itself would take longer still.

mod bounds;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use self::bounds::{LARGE, OfOutput, OfRow, bound};
use super::dense_argmax::{ArgmaxScratch, Best, MAX_SYMBOLS, NONE};
use super::error::expect;
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;
use crate::machine::CacheModel;
use crate::model::{Matrix, Precision};
use gatestream_kernels::{Isa, Numbers};

/// Most candidates of a row that a worker keeps.
const MAX_CANDIDATES: usize = 512;
/// With more candidates than this left, the worker gives up: another pass would remove few.
const MAX_NARROWED: usize = MAX_CANDIDATES / 2;
/// At most 1/64 of the outputs, but at least 16, are recomputed one by one, which is slower than in
/// the packed layer.
const MIN_OUTPUTS_PER_RECOMPUTED: usize = 64;
/// Outputs that are computed at a time.
const CHUNK: usize = 8;

/// A dense layer of f32 that only tells its greatest output, with the room for so many rows.
pub struct Screened {
    coarse: Dense,
    whole: Dense,
    scratch: ArgmaxScratch,
    undecided: Undecided,
    weights: Arc<Matrix>,
    bias: Vec<f32>,
    outputs: Vec<OfOutput>,
    /// What bounds each block of `coarse`.
    blocks: Vec<OfOutput>,
    most: OfOutput,
    /// Of the rows that are computed now.
    rows: Vec<OfRow>,
    /// One for each worker, which alone locks it while it computes.
    workers: Vec<Mutex<WorkerScratch>>,
}

/// Rows that get all their outputs.
struct Undecided {
    rows: Vec<usize>,
    /// `[rows, inputs]`.
    x: Vec<f32>,
    symbols: Vec<f32>,
}

struct WorkerScratch {
    /// One for each row.
    found: Vec<Found>,
    /// `[rows, MAX_CANDIDATES]`.
    possible: Vec<Possible>,
    /// Words to quantise in.
    words: Vec<u32>,
}

/// What a worker knows of a row.
#[derive(Clone, Copy)]
struct Found {
    /// The greatest output is no less.
    least: f32,
    /// Of how many outputs [`Possible`] are kept.
    kept: usize,
    /// The worker gave up: any of its outputs may be the greatest, none of which is above `most`.
    all: bool,
    most: f32,
    best: Best,
}

const NOTHING: Found = Found {
    least: f32::NEG_INFINITY,
    kept: 0,
    all: false,
    most: f32::NEG_INFINITY,
    best: NONE,
};

/// An output that may be the greatest.
#[derive(Clone, Copy, Default)]
struct Possible {
    /// It is no greater.
    most: f32,
    index: usize,
}

impl Screened {
    /// Whether int8 pays: for weights of f32 if the share of a worker exceeds its private caches.
    pub fn pays(weights: &Matrix, threads: usize, caches: &CacheModel) -> bool {
        weights.precision() == Precision::F32 && caches.exceeds_private(weights.bytes() / threads)
    }

    /// Of `weights` `[outputs, inputs]` and a bias of as many outputs, for up to `rows` rows on
    /// `team`. None where it cannot be: weights or biases are not finite or next to it, there are
    /// more inputs than int8 has sums for, or more outputs than [`MAX_SYMBOLS`].
    ///
    /// # Errors
    /// As [`Dense::on_team`].
    pub fn new(
        weights: &Arc<Matrix>,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
        rows: usize,
    ) -> Result<Option<Screened>, LayerError> {
        expect("bias", bias.len(), weights.rows())?;
        let Ok(int8) = weights.in_precision(Precision::Int8) else {
            return Ok(None);
        };
        // One that is as large as masks are would leave every row unbounded.
        let is_usual = |b: &f32| f64::from(b.abs()) < LARGE;
        if weights.rows() > MAX_SYMBOLS || !bias.iter().all(is_usual) {
            return Ok(None);
        }
        let coarse = Dense::on_team(&int8, bias, isa, team)?;
        let whole = Dense::on_team(weights, bias, isa, team)?;
        let inputs = weights.cols();
        let outputs: Vec<OfOutput> = (0..weights.rows())
            .map(|j| match int8.row_numbers(j) {
                Numbers::Int8 { whole, scales } => {
                    OfOutput::new(&weights.row(j), whole, scales[0], bias[j])
                }
                _ => unreachable!("made of int8"),
            })
            .collect();
        let of_all = |outputs: &[OfOutput]| {
            let each = outputs.iter().copied();
            each.fold(OfOutput::default(), OfOutput::or)
        };
        let worker = |_| {
            Mutex::new(WorkerScratch {
                found: vec![NOTHING; rows],
                possible: vec![Possible::default(); rows * MAX_CANDIDATES],
                words: vec![0; coarse.room()],
            })
        };
        Ok(Some(Screened {
            weights: Arc::clone(weights),
            bias: bias.to_vec(),
            blocks: outputs.chunks(coarse.block()).map(of_all).collect(),
            most: of_all(&outputs),
            outputs,
            rows: vec![OfRow::Unbounded; rows],
            workers: (0..team.threads()).map(worker).collect(),
            scratch: ArgmaxScratch::new(&whole, rows, team.threads()),
            undecided: Undecided {
                rows: Vec::with_capacity(rows),
                x: vec![0.0; rows * inputs],
                symbols: vec![0.0; rows],
            },
            whole,
            coarse,
        }))
    }

    /// Features of an input row.
    pub fn inputs(&self) -> usize {
        self.coarse.inputs()
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.coarse.weight_bytes() + self.whole.weight_bytes()
    }

    /// As [`Dense::argmax_on`].
    ///
    /// # Errors
    /// As [`Dense::argmax_on`].
    pub fn argmax_on(
        &mut self,
        team: &SharedTeam,
        x: &[f32],
        symbols: &mut [f32],
    ) -> Result<(), LayerError> {
        let (rows, inputs, workers) = (symbols.len(), self.inputs(), team.threads());
        expect("x", x.len(), rows * inputs)?;
        expect("rows with room", self.rows.len(), rows.max(self.rows.len()))?;
        expect("threads with room", self.workers.len(), workers)?;
        if rows == 0 {
            return Ok(());
        }
        for (row, of_row) in self.rows[..rows].iter_mut().enumerate() {
            *of_row = OfRow::new(
                &x[row * inputs..][..inputs],
                self.most,
                &*self.coarse.kernels,
            );
        }
        let this = &*self;
        team.run(|worker| {
            let mut room = this.workers[worker.index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let share = this.coarse.share(worker.index, workers);
            this.screen(share, x, rows, &mut room);
            let WorkerScratch {
                found, possible, ..
            } = &mut *room;
            let (found, possible) = (
                &mut found[..rows],
                possible.chunks_exact_mut(MAX_CANDIDATES),
            );
            for ((found, possible), x) in found.iter_mut().zip(possible).zip(x.chunks(inputs)) {
                if !found.all && !found.best.value.is_nan() {
                    let best = this.decide(x, &mut possible[..found.kept], workers);
                    (found.all, found.best) = (best.is_none(), best.unwrap_or(NONE));
                }
            }
        })?;
        self.undecided.rows.clear();
        for (row, to) in symbols.iter_mut().enumerate() {
            let (mut best, mut most) = (NONE, f32::NEG_INFINITY);
            for room in &mut self.workers {
                let found = room.get_mut().unwrap_or_else(PoisonError::into_inner).found[row];
                best = best.or(found.best);
                if found.all {
                    most = most.max(found.most);
                }
            }
            *to = best.symbol();
            // Where a worker gave up, others may have found what none of its outputs comes up to.
            if most >= best.value {
                self.undecided.rows.push(row);
            }
        }
        self.decide_by_all(team, x, symbols)
    }

    /// The symbols of the rows of which too many outputs were possible.
    fn decide_by_all(
        &mut self,
        team: &SharedTeam,
        x: &[f32],
        symbols: &mut [f32],
    ) -> Result<(), LayerError> {
        let (inputs, undecided) = (self.coarse.inputs(), &mut self.undecided);
        let count = undecided.rows.len();
        let (to, chosen) = (
            &mut undecided.x[..count * inputs],
            &mut undecided.symbols[..count],
        );
        for (to, row) in to.chunks_mut(inputs).zip(&undecided.rows) {
            to.copy_from_slice(&x[row * inputs..][..inputs]);
        }
        self.whole.argmax_on(team, to, &mut self.scratch, chosen)?;
        for (symbol, row) in chosen.iter().zip(&undecided.rows) {
            symbols[*row] = *symbol;
        }
        Ok(())
    }

    /// Finds which outputs of some blocks may be the greatest of these blocks.
    fn screen(&self, blocks: Range<usize>, x: &[f32], rows: usize, room: &mut WorkerScratch) {
        let WorkerScratch {
            found,
            possible,
            words,
        } = room;
        for (found, of_row) in found.iter_mut().zip(&self.rows[..rows]) {
            *found = NOTHING;
            match of_row {
                OfRow::Bounded(_) => {}
                OfRow::Unbounded => {
                    found.all = true;
                    found.most = f32::INFINITY;
                }
                OfRow::NotANumber => found.best.value = f32::NAN,
            }
        }
        (self.coarse).blocks(blocks, x, rows, words, |row, first, outputs| {
            let OfRow::Bounded(of_row) = self.rows[row] else {
                return;
            };
            let (found, possible) = (
                &mut found[row],
                &mut possible[row * MAX_CANDIDATES..][..MAX_CANDIDATES],
            );
            let of_block = bound(of_row, self.blocks[first / self.coarse.block()]);
            let greatest = self.coarse.kernels.max(outputs);
            found.most = found.most.max(greatest + of_block);
            found.least = found.least.max(greatest - of_block);
            if found.all || greatest + of_block < found.least {
                return;
            }
            for (index, output) in (first..).zip(outputs) {
                if output + of_block < found.least {
                    continue;
                }
                let of_output = bound(of_row, self.outputs[index]);
                found.least = found.least.max(output - of_output);
                let most = output + of_output;
                if most < found.least {
                    continue;
                }
                if found.kept == MAX_CANDIDATES {
                    self.make_room(&x[row * self.inputs()..][..self.inputs()], found, possible);
                }
                if found.all {
                    return;
                }
                possible[found.kept] = Possible { most, index };
                found.kept += 1;
            }
        });
    }

    /// Rules out those that are no longer possible. Where that leaves too many, some are computed.
    fn make_room(&self, x: &[f32], found: &mut Found, possible: &mut [Possible]) {
        rule_out(found, possible);
        if found.kept <= MAX_NARROWED {
            return;
        }
        possible[..found.kept].select_nth_unstable_by(CHUNK, |a, b| b.most.total_cmp(&a.most));
        let some: [usize; CHUNK] = std::array::from_fn(|i| possible[i].index);
        self.compute(x, &some, |one| found.least = found.least.max(one.value));
        rule_out(found, possible);
        found.all = found.kept > MAX_NARROWED;
    }

    /// The greatest of the outputs that may be it; none where more are to be computed than one of
    /// so many workers has time for.
    fn decide(&self, x: &[f32], possible: &mut [Possible], workers: usize) -> Option<Best> {
        possible.sort_unstable_by(|a, b| b.most.total_cmp(&a.most));
        let worth = (self.outputs.len() / workers / MIN_OUTPUTS_PER_RECOMPUTED).max(2 * CHUNK);
        let mut best = NONE;
        for (done, some) in possible.chunks(CHUNK).enumerate() {
            if some[0].most < best.value {
                break;
            }
            if done * CHUNK >= worth {
                return None;
            }
            let mut listed = [0; CHUNK];
            for (index, possible) in listed.iter_mut().zip(some) {
                *index = possible.index;
            }
            self.compute(x, &listed[..some.len()], |one| best = best.either(one));
        }
        Some(best)
    }

    /// Outputs in f32, in the order in which they are listed, [`CHUNK`] at most.
    fn compute(&self, x: &[f32], listed: &[usize], mut take: impl FnMut(Best)) {
        let Numbers::F32(weights) = self.weights.numbers() else {
            unreachable!("screened weights are of f32");
        };
        let mut z = [0.0; CHUNK];
        let z = &mut z[..listed.len()];
        for (z, index) in z.iter_mut().zip(listed) {
            *z = self.bias[*index];
        }
        self.coarse.kernels.chains(x, weights, listed, z);
        for (&value, &index) in z.iter().zip(listed) {
            take(Best { value, index });
        }
    }
}

/// Keeps those only that may still be the greatest.
fn rule_out(found: &mut Found, possible: &mut [Possible]) {
    let mut kept = 0;
    for index in 0..found.kept {
        if possible[index].most >= found.least {
            possible[kept] = possible[index];
            kept += 1;
        }
    }
    found.kept = kept;
}
