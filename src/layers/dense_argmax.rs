//! The greatest output of a dense layer, without the outputs: on a team, each worker over outputs
//! of its own.
//!
//! ```text
//! for row in rows
//!   symbol[row] = argmax(dense(x[row]))
//! ```
//!
//! Of 30,000 outputs of 64 rows, 8 MB would be written and read again. Instead each worker compares
//! a block of outputs, while it is in the cache, with the greatest that it has seen of that row.
//! Most blocks hold none that is greater, and are only looked at for that.

use std::sync::{Mutex, PoisonError};

use super::error::expect;
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;

/// Most symbols that [`Dense::argmax_on`] chooses among: whole numbers up to here are exact in
/// `f32`.
pub const MAX_SYMBOLS: usize = 1 << 24;

/// The greatest output of a row, of those that a worker has seen.
#[derive(Clone, Copy)]
pub(super) struct Best {
    /// NaN as soon as one of them was.
    pub value: f32,
    pub index: usize,
}

/// Before any output: not even minus infinity has been seen.
pub(super) const NONE: Best = Best {
    value: f32::NEG_INFINITY,
    index: usize::MAX,
};

impl Best {
    /// Which of two to keep; `later` is of greater indices.
    pub fn or(self, later: Best) -> Best {
        let is_better = later.value > self.value || later.value.is_nan();
        let is_first = self.index == usize::MAX;
        if !self.value.is_nan() && (is_better || is_first) {
            later
        } else {
            self
        }
    }

    /// NaN where none is the greatest.
    pub fn symbol(self) -> f32 {
        if self.value.is_nan() {
            f32::NAN
        } else {
            self.index as f32
        }
    }

    /// Which of two to keep, seen in any order.
    pub fn either(self, other: Best) -> Best {
        if self.index <= other.index {
            self.or(other)
        } else {
            other.or(self)
        }
    }
}

/// What [`Dense::argmax_on`] writes to, taken once.
pub struct ArgmaxScratch {
    rows: usize,
    /// Words that each worker quantises in.
    words: usize,
    /// One for each worker, which alone locks it while it computes.
    workers: Vec<Mutex<WorkerScratch>>,
}

struct WorkerScratch {
    /// One for each row.
    best: Vec<Best>,
    words: Vec<u32>,
}

impl ArgmaxScratch {
    /// For up to `rows` rows of `dense` on a team of `threads`.
    pub fn new(dense: &Dense, rows: usize, threads: usize) -> ArgmaxScratch {
        let words = dense.room();
        let worker = |_| {
            Mutex::new(WorkerScratch {
                best: vec![NONE; rows],
                words: vec![0; words],
            })
        };
        ArgmaxScratch {
            rows,
            words,
            workers: (0..threads).map(worker).collect(),
        }
    }
}

impl Dense {
    /// The greatest output of each row of `x` `[rows, inputs]`, the lowest of equal ones, as
    /// [`super::argmax`] of [`Dense::run`] has it, to `symbols` `[rows]`: a whole number, or NaN
    /// where an output of the row is NaN, so that none is the greatest. Allocates nothing.
    ///
    /// ```
    /// use gatestream::execute::team::{SharedTeam, Team};
    /// use gatestream::layers::{ArgmaxScratch, Dense};
    /// use gatestream::model::Matrix;
    ///
    /// let dense = Dense::new(&Matrix::new(3, 1, vec![1.0, 2.0, -1.0])?, &[0.0; 3])?;
    /// let team = SharedTeam::new(Team::with_threads(2)?);
    /// let mut room = ArgmaxScratch::new(&dense, 8, team.threads());
    /// let mut symbols = [0.0; 3];
    /// dense.argmax_on(&team, &[10.0, -10.0, f32::NAN], &mut room, &mut symbols)?;
    /// assert_eq!(symbols[..2], [1.0, 2.0]);
    /// assert!(symbols[2].is_nan());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LayerError::Values`] for an `x` of another size, or room for fewer rows, threads or
    /// inputs; [`LayerError::ManySymbols`]; nothing has been written then. [`LayerError::Team`].
    pub fn argmax_on(
        &self,
        team: &SharedTeam,
        x: &[f32],
        room: &mut ArgmaxScratch,
        symbols: &mut [f32],
    ) -> Result<(), LayerError> {
        let (rows, workers) = (symbols.len(), team.threads());
        expect("x", x.len(), rows * self.inputs())?;
        expect("rows with room", room.rows, rows.max(room.rows))?;
        expect("threads with room", room.workers.len(), workers)?;
        let words = self.room();
        expect("words to quantise in", room.words, words.max(room.words))?;
        if self.outputs() == 0 || self.outputs() > MAX_SYMBOLS {
            return Err(LayerError::ManySymbols {
                symbols: self.outputs(),
            });
        }
        if rows == 0 {
            return Ok(());
        }
        let each = &room.workers;
        team.run(|worker| {
            let mut room = each[worker.index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let WorkerScratch { best, words } = &mut *room;
            best[..rows].fill(NONE);
            let share = self.share(worker.index, workers);
            self.blocks(share, x, rows, words, |row, first, outputs| {
                let best = &mut best[row];
                let value = self.kernels.max(outputs);
                let of_block = Best {
                    value,
                    index: first,
                };
                if best.or(of_block).index == first {
                    let place = outputs.iter().position(|v| *v == value);
                    let index = first + place.unwrap_or(0);
                    *best = Best { value, index };
                }
            });
        })?;
        for (row, to) in symbols.iter_mut().enumerate() {
            let bests = room
                .workers
                .iter_mut()
                .map(|room| room.get_mut().unwrap_or_else(PoisonError::into_inner).best[row]);
            *to = bests.fold(NONE, Best::or).symbol();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::team::Team;
    use crate::layers::argmax;
    use crate::model::{Matrix, Precision};
    use crate::reference;
    use gatestream_kernels::Isa;

    fn matrix(rng: &mut fastrand::Rng, rows: usize, cols: usize, whole: bool) -> Matrix {
        // Few different whole numbers make many equal outputs.
        let value = |_| {
            if whole {
                rng.i32(-1..=1) as f32
            } else {
                2.0 * rng.f32() - 1.0
            }
        };
        Matrix::new(rows, cols, (0..rows * cols).map(value).collect()).unwrap()
    }

    #[test]
    fn the_choice_is_that_of_all_outputs_and_argmax() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut equal = 0;
        for threads in 1..4 {
            let team = SharedTeam::new(Team::with_threads(threads).unwrap());
            for isa in Isa::available() {
                for outputs in [1, 2, 15, 64, 65, 130, 200, 256, 257, 333, 700, 900] {
                    let whole = rng.bool();
                    let inputs = [1, 3, 17][rng.usize(..3)];
                    let weights = matrix(&mut rng, outputs, inputs, whole);
                    let mut bias = matrix(&mut rng, 1, outputs, whole).data().to_vec();
                    if rng.u8(..8) == 0 {
                        bias.fill(f32::NEG_INFINITY);
                    }
                    let precision = Precision::ALL[rng.usize(..3)];
                    let weights = weights.in_precision(precision).unwrap();
                    let dense = Dense::on_team(&weights, &bias, isa, &team).unwrap();
                    let mut room = ArgmaxScratch::new(&dense, 14, threads);
                    for rows in [0, 1, 2, 6, 7, 14] {
                        let mut x = matrix(&mut rng, rows, inputs, whole).data().to_vec();
                        for row in 0..rows {
                            if rng.u8(..5) == 0 {
                                x[row * inputs] = [f32::NAN, f32::INFINITY][rng.usize(..2)];
                            }
                        }
                        let all: Vec<f32> = (x.chunks(inputs))
                            .flat_map(|x| reference::dense(&weights, &bias, x))
                            .collect();
                        let mut symbols = vec![-1.0; rows];
                        dense.argmax_on(&team, &x, &mut room, &mut symbols).unwrap();
                        for (outputs, symbol) in all.chunks(outputs).zip(symbols) {
                            let expected = argmax(outputs);
                            let what = format!("{isa}, {precision}, {threads} threads");
                            match expected {
                                Some(expected) => assert_eq!(symbol, expected as f32, "{what}"),
                                None => assert!(symbol.is_nan(), "{what}"),
                            }
                            let most = expected.map(|at| outputs[at]);
                            equal += usize::from(
                                outputs.iter().filter(|v| Some(**v) == most).count() > 1,
                            );
                        }
                    }
                }
            }
        }
        assert!(equal > 100, "{equal} rows with equal greatest outputs");
    }

    /// One that is no number hides behind every place.
    #[test]
    fn one_output_that_is_no_number_is_found_anywhere() {
        let team = SharedTeam::new(Team::with_threads(2).unwrap());
        let weights = Matrix::new(150, 1, vec![1.0; 150]).unwrap();
        for place in 0..150 {
            let mut bias: Vec<f32> = (0..150).map(|v| v as f32).collect();
            bias[place] = f32::NAN;
            let dense = Dense::new(&weights, &bias).unwrap();
            let mut room = ArgmaxScratch::new(&dense, 1, 2);
            let mut symbol = [0.0];
            dense
                .argmax_on(&team, &[1.0], &mut room, &mut symbol)
                .unwrap();
            assert!(symbol[0].is_nan(), "{place}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let team = SharedTeam::new(Team::with_threads(1).unwrap());
        let weights = Matrix::new(2, 3, vec![1.0; 6]).unwrap();
        let dense = Dense::new(&weights, &[0.0; 2]).unwrap();
        let refused = |x: usize, mut room: ArgmaxScratch, rows: usize| {
            let mut symbols = vec![7.0; rows];
            let error = dense.argmax_on(&team, &vec![0.0; x], &mut room, &mut symbols);
            assert_eq!(symbols, vec![7.0; rows]);
            error.unwrap_err()
        };
        let values = |name, expected, found| LayerError::Values {
            name,
            expected,
            found,
        };
        assert_eq!(
            refused(5, ArgmaxScratch::new(&dense, 2, 1), 2),
            values("x", 6, 5)
        );
        let few = refused(6, ArgmaxScratch::new(&dense, 1, 1), 2);
        assert_eq!(few, values("rows with room", 2, 1));
        let other = refused(6, ArgmaxScratch::new(&dense, 2, 2), 2);
        assert_eq!(other, values("threads with room", 1, 2));
        let int8 = weights.in_precision(Precision::Int8).unwrap();
        let int8 = Dense::new(&int8, &[0.0; 2]).unwrap();
        let error = int8.argmax_on(
            &team,
            &[0.0; 6],
            &mut ArgmaxScratch::new(&dense, 2, 1),
            &mut [0.0; 2],
        );
        // For each row that is kept a word of up to 4 inputs, and a scale.
        assert_eq!(error, Err(values("words to quantise in", 2 * 128, 0)));
        let none = Dense::new(&Matrix::new(0, 3, vec![]).unwrap(), &[]).unwrap();
        let error = none.argmax_on(&team, &[], &mut ArgmaxScratch::new(&none, 0, 1), &mut []);
        assert_eq!(error, Err(LayerError::ManySymbols { symbols: 0 }));
    }
}
