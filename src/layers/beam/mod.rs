//! Decoding by beam search: several hypotheses at once, which are the rows of one batch.

mod candidates;
mod search;

pub use candidates::{Candidate, best_continuations};
pub use search::{BeamOptions, BeamRow, BeamSearch, Hypothesis};

use super::greedy::{DecodeError, check_parts};
use super::{Dense, Embedding, LayerError};
use crate::execute::{RunError, Session, State};
use crate::model::InputError;
use gatestream_kernels::{RowKernels, row_kernels};

/// A decoder: embedding of the previous symbols, recurrent step, dense layer, beam search.
///
/// Decodes one sequence at a time, and allocates nothing while it does. With a width of 1 the
/// answers are those of [`super::Greedy`].
///
/// ```
/// use gatestream::execute::{Session, State};
/// use gatestream::layers::{Beam, BeamOptions, Dense, Embedding};
/// use gatestream::model::{Gru, Matrix};
/// use gatestream::plan::Plan;
///
/// let (symbols, features, hidden, width) = (5, 8, 16, 3);
/// let model = Gru::new(features, hidden).random(1)?;
/// let session = Session::new(&model, &Plan::estimate(&model, width, 1, 1))?;
/// let embedding = Embedding::new(Matrix::new(symbols, features, vec![0.1; symbols * features])?);
/// let bias = [0.0, 2.0, 0.0, 1.0, 0.0];
/// let dense = Dense::new(&Matrix::new(symbols, hidden, vec![0.1; symbols * hidden])?, &bias)?;
/// let options = BeamOptions::new(0, 1, 20, width).length_penalty(0.6);
/// let mut decoder = Beam::new(session, embedding, dense, options)?;
///
/// let initial = State::zero(model.signature(), 1);
/// let answers: Vec<_> = decoder.decode(&initial)?.collect();
/// assert_eq!((answers[0].symbols, answers[0].ended), (&[][..], true));
/// assert_eq!((answers[1].symbols, answers[1].ended), (&[3][..], true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Beam {
    session: Session,
    embedding: Embedding,
    dense: Dense,
    kernels: Box<dyn RowKernels>,
    search: BeamSearch,
    /// Of a stream for each row.
    state: State,
    /// `[width, features]`.
    x: Vec<f32>,
    /// `[width, output]`.
    y: Vec<f32>,
    /// `[width, symbols]`.
    logits: Vec<f32>,
    /// Those of one row after those of another.
    candidates: Vec<Candidate>,
}

impl Beam {
    /// A decoder of these parts. The session's recurrent layers must all run forward.
    ///
    /// # Errors
    /// As [`super::Greedy::new`]; [`LayerError::BeamWidth`] for a width of 0.
    pub fn new(
        mut session: Session,
        embedding: Embedding,
        dense: Dense,
        options: BeamOptions,
    ) -> Result<Beam, LayerError> {
        let BeamOptions {
            bos,
            eos,
            limit,
            width,
            ..
        } = options;
        check_parts(&session, &embedding, &dense, [bos, eos])?;
        let search = BeamSearch::new(options)?;
        let no_memory = |_| LayerError::Limit { limit };
        session.reserve(width, 1).map_err(no_memory)?;
        let signature = session.signature();
        Ok(Beam {
            state: State::zero(signature, width),
            x: vec![0.0; width * embedding.features()],
            y: vec![0.0; width * signature.output],
            logits: vec![0.0; width * dense.outputs()],
            candidates: vec![Candidate::default(); width * search.candidates()],
            kernels: row_kernels(session.packed().isa())?,
            search,
            session,
            embedding,
            dense,
        })
    }

    /// The answers of this search, the best first, as many as the width
    /// ([`BeamSearch::hypotheses`]), from the state `initial` of one sequence that an encoder left.
    /// Allocates nothing.
    ///
    /// # Errors
    /// As [`super::Greedy::decode`].
    pub fn decode(
        &mut self,
        initial: &State,
    ) -> Result<impl ExactSizeIterator<Item = Hypothesis<'_>>, DecodeError> {
        self.begin(initial)?;
        self.search.restart();
        while !self.search.is_over() {
            self.step()?;
        }
        Ok(self.search.hypotheses())
    }

    /// Copies the initial state to the first row.
    fn begin(&mut self, initial: &State) -> Result<(), RunError> {
        let width = self.state.batch();
        let states = [
            ("h0", &initial.h, &self.state.h),
            ("c0", &initial.c, &self.state.c),
        ];
        for (name, from, to) in states {
            let (expected, found) = (to.len() / width, from.len());
            if found != expected {
                let error = InputError::Values {
                    name,
                    expected,
                    found,
                };
                return Err(error.into());
            }
        }
        for block in self.session.state_blocks() {
            let (from, to) = if block.is_cell_state {
                (&initial.c, &mut self.state.c)
            } else {
                (&initial.h, &mut self.state.h)
            };
            let from = &from[block.before..][..block.size];
            to[width * block.before..][..block.size].copy_from_slice(from);
        }
        Ok(())
    }

    /// One step of all rows.
    fn step(&mut self) -> Result<(), DecodeError> {
        let width = self.state.batch();
        let features = self.embedding.features();
        for (row, next) in self.search.rows().iter().enumerate() {
            let Some(next) = next else { continue };
            let to = &mut self.x[row * features..][..features];
            to.copy_from_slice(self.embedding.row(next.symbol)?);
            if next.parent == row {
                continue;
            }
            // The parent's row is that of another of its continuations, so nothing is written
            // there.
            for block in self.session.state_blocks() {
                let states = if block.is_cell_state {
                    &mut self.state.c
                } else {
                    &mut self.state.h
                };
                let at = |row: usize| width * block.before + row * block.size;
                let from = at(next.parent)..at(next.parent) + block.size;
                states.copy_within(from, at(row));
            }
        }
        (self.session).step(&self.x, &mut self.state, &mut self.y)?;
        self.dense.run(&self.y, &mut self.logits)?;
        let (symbols, most) = (self.dense.outputs(), self.search.candidates());
        let mut count = 0;
        for (row, next) in self.search.rows().iter().enumerate() {
            let Some(next) = next else { continue };
            let logits = &self.logits[row * symbols..][..symbols];
            let best = &mut self.candidates[count..][..most];
            let found = best_continuations(&*self.kernels, (row, next.score), logits, best);
            count += found.ok_or(DecodeError::NotANumber {
                step: self.search.steps(),
            })?;
        }
        self.search.advance(&self.candidates[..count]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
