//! The greatest output of a dense layer with weights of f32, most of which are never read: int8 tells which outputs can be it.
//!
//! ```text
//! for row in rows
//!   for j in outputs:  a[j], e[j] = output j in int8, how far from it the one in f32 is at most
//!   least = max (a[j] - e[j])                                   the greatest output is no less
//!   symbol[row] = argmax of output j in f32, of all j with a[j] + e[j] >= least
//! ```
//!
//! A choice among 30,000 words of 1024 features reads 123 MB of weights in f32, 31 in int8; of those words, weights at random
//! leave some ten to twenty, a model that has learnt to choose fewer. The answer is the one in f32 to the last bit, whatever
//! the weights: where the bounds do not decide, outputs are computed.
//!
//! The real code goes block by block, while a block's outputs are in the cache: each worker keeps the greatest `a[j] - e[j]`
//! that it has seen of a row, and looks into a block only where one bound for all its outputs does not rule them out. Then it
//! computes those that are left, the one with the greatest `a[j] + e[j]` first: once an output is greater than what all others
//! can be, it is the greatest. Where too many are left to be kept, it computes all.

mod bounds;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use self::bounds::{OfOutput, OfRow, bound};
use super::argmax::{Best, MOST_SYMBOLS, NONE, symbol};
use super::error::expect;
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;
use crate::kernels::{FAR, Isa, Numbers};
use crate::model::{Matrix, Precision};

/// Most outputs of a row that a worker keeps as possible.
const KEPT: usize = 128;
/// Outputs that are computed at a time.
const TOGETHER: usize = 8;

/// A dense layer of f32 that only tells its greatest output, with the room for so many rows.
pub struct Screened {
    coarse: Dense,
    weights: Arc<Matrix>,
    bias: Vec<f32>,
    outputs: Vec<OfOutput>,
    /// What bounds each block of `coarse`.
    blocks: Vec<OfOutput>,
    most: OfOutput,
    /// Of the rows that are computed now.
    rows: Vec<OfRow>,
    /// One for each worker, who alone locks it while it computes.
    workers: Vec<Mutex<WorkerRoom>>,
}

struct WorkerRoom {
    /// One for each row.
    found: Vec<Found>,
    /// `[rows, KEPT]`.
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
    /// More are possible than can be kept.
    all: bool,
    best: Best,
}

const NOTHING: Found = Found {
    least: f32::NEG_INFINITY,
    kept: 0,
    all: false,
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
    /// Of `weights` `[outputs, inputs]` and a bias of as many outputs, for up to `rows` rows on `team`. None where int8 does
    /// not pay, as the weights stay in a cache or are fewer bytes already, or where it cannot be: they are not finite, there
    /// are more inputs than int8 has sums for, or more than [`MOST_SYMBOLS`] outputs.
    ///
    /// # Errors
    /// As [`Dense::on_team`].
    pub fn if_it_pays(
        weights: &Arc<Matrix>,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
        rows: usize,
    ) -> Result<Option<Screened>, LayerError> {
        let is_far = weights.precision() == Precision::F32 && weights.bytes() > FAR;
        match is_far && weights.rows() <= MOST_SYMBOLS {
            true => Screened::new(weights, bias, isa, team, rows),
            false => Ok(None),
        }
    }

    /// As [`Screened::if_it_pays`], wherever it can be.
    fn new(
        weights: &Arc<Matrix>,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
        rows: usize,
    ) -> Result<Option<Screened>, LayerError> {
        expect("bias", bias.len(), weights.rows())?;
        let Ok(whole) = weights.in_precision(Precision::Int8) else {
            return Ok(None);
        };
        if bias.iter().any(|b| !b.is_finite()) {
            return Ok(None);
        }
        let coarse = Dense::on_team(&whole, bias, isa, team)?;
        let outputs: Vec<OfOutput> = (0..weights.rows())
            .map(|j| match whole.row_numbers(j) {
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
            Mutex::new(WorkerRoom {
                found: vec![NOTHING; rows],
                possible: vec![Possible::default(); rows * KEPT],
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
            coarse,
        }))
    }

    /// Features of an input row.
    pub fn inputs(&self) -> usize {
        self.coarse.inputs()
    }

    /// Bytes of weights that are read for each choice.
    pub fn weight_bytes(&self) -> usize {
        self.coarse.weight_bytes()
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
            this.screen(share.clone(), x, rows, &mut room);
            let WorkerRoom {
                found, possible, ..
            } = &mut *room;
            let possible = possible.chunks_exact_mut(KEPT);
            for (row, (found, possible)) in found[..rows].iter_mut().zip(possible).enumerate() {
                let x = &x[row * inputs..][..inputs];
                found.best = match (this.rows[row], found.all) {
                    (OfRow::NotANumber, _) => NONE.or(Best {
                        value: f32::NAN,
                        index: 0,
                    }),
                    (OfRow::Unbounded, _) | (_, true) => this.all(x, share.clone()),
                    (OfRow::Bounded(_), false) => this.decide(x, &mut possible[..found.kept]),
                };
            }
        })?;
        for (row, to) in symbols.iter_mut().enumerate() {
            let bests = self
                .workers
                .iter_mut()
                .map(|room| room.get_mut().unwrap_or_else(PoisonError::into_inner).found[row].best);
            *to = symbol(bests);
        }
        Ok(())
    }

    /// Finds which outputs of some blocks may be the greatest of these blocks.
    fn screen(&self, blocks: Range<usize>, x: &[f32], rows: usize, room: &mut WorkerRoom) {
        let WorkerRoom {
            found,
            possible,
            words,
        } = room;
        found[..rows].fill(NOTHING);
        (self.coarse).blocks(blocks, x, rows, words, |row, first, outputs| {
            let OfRow::Bounded(of_row) = self.rows[row] else {
                return;
            };
            let (found, possible) = (&mut found[row], &mut possible[row * KEPT..][..KEPT]);
            let of_block = bound(of_row, self.blocks[first / self.coarse.block()]);
            let greatest = self.coarse.kernels.greatest(outputs);
            found.least = found.least.max(greatest - of_block);
            if found.all || greatest + of_block < found.least {
                return;
            }
            for (index, output) in (first..).zip(outputs) {
                if output + of_block >= found.least {
                    let of_output = bound(of_row, self.outputs[index]);
                    found.least = found.least.max(output - of_output);
                    let most = output + of_output;
                    if most >= found.least {
                        keep(found, possible, Possible { most, index });
                    }
                }
            }
        });
    }

    /// The greatest of the outputs that may be it.
    fn decide(&self, x: &[f32], possible: &mut [Possible]) -> Best {
        possible.sort_unstable_by(|a, b| b.most.total_cmp(&a.most));
        let mut best = NONE;
        for some in possible.chunks(TOGETHER) {
            if some[0].most < best.value {
                break;
            }
            let mut listed = [0; TOGETHER];
            for (index, possible) in listed.iter_mut().zip(some) {
                *index = possible.index;
            }
            self.compute(x, &listed[..some.len()], |later| best = best.either(later));
        }
        best
    }

    /// The greatest of all outputs of some blocks.
    fn all(&self, x: &[f32], blocks: Range<usize>) -> Best {
        let (block, count) = (self.coarse.block(), self.outputs.len());
        let mut best = NONE;
        for first in (blocks.start * block..count.min(blocks.end * block)).step_by(TOGETHER) {
            let listed: [usize; TOGETHER] = std::array::from_fn(|i| first + i);
            let some = TOGETHER.min(count - first);
            self.compute(x, &listed[..some], |later| best = best.or(later));
        }
        best
    }

    /// Outputs in f32, in the order in which they are listed, [`TOGETHER`] at most.
    fn compute(&self, x: &[f32], listed: &[usize], mut take: impl FnMut(Best)) {
        let Numbers::F32(weights) = self.weights.numbers() else {
            unreachable!("screened weights are of f32");
        };
        let mut z = [0.0; TOGETHER];
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

/// Keeps an output, in the place of those that are no longer possible where there is no other.
fn keep(found: &mut Found, possible: &mut [Possible], another: Possible) {
    if found.kept == possible.len() {
        found.kept = 0;
        for index in 0..possible.len() {
            if possible[index].most >= found.least {
                possible[found.kept] = possible[index];
                found.kept += 1;
            }
        }
    }
    match found.kept < possible.len() {
        true => {
            possible[found.kept] = another;
            found.kept += 1;
        }
        false => found.all = true,
    }
}
