//! The states of streams, which their caller keeps between steps.

use super::packed::PackedModel;
use crate::model::{InputError, Signature};

/// The states of a batch of streams, held by the caller between steps.
///
/// Blocks of `[batch, size]` per layer, as [`Input::h0`](crate::Input::h0) and
/// [`Input::c0`](crate::Input::c0).
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    batch: usize,
    /// Hidden state.
    pub h: Vec<f32>,
    /// Cell state; empty for models with no LSTM layer.
    pub c: Vec<f32>,
}

impl State {
    /// Zero states for `batch` streams.
    pub fn zero(signature: Signature, batch: usize) -> State {
        State {
            batch,
            h: vec![0.0; batch * signature.hidden_state],
            c: vec![0.0; batch * signature.cell_state],
        }
    }

    /// As [`State::zero`].
    ///
    /// # Errors
    /// [`InputError::TooLarge`] where there is no memory for them.
    pub fn try_zero(signature: Signature, batch: usize) -> Result<State, InputError> {
        let zeros = |size: usize| {
            let len = batch.checked_mul(size)?;
            let mut values = Vec::new();
            values.try_reserve_exact(len).ok()?;
            values.resize(len, 0.0);
            Some(values)
        };
        let state = || {
            Some(State {
                batch,
                h: zeros(signature.hidden_state)?,
                c: zeros(signature.cell_state)?,
            })
        };
        state().ok_or(InputError::TooLarge)
    }

    /// Number of streams.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Refuses a state of other sizes.
    fn check(&self, signature: Signature) -> Result<(), InputError> {
        for (values, size) in [
            (&self.h, signature.hidden_state),
            (&self.c, signature.cell_state),
        ] {
            if values.len() != self.batch * size {
                return Err(InputError::Values {
                    name: "states",
                    expected: self.batch * size,
                    found: values.len(),
                });
            }
        }
        Ok(())
    }
}

impl PackedModel {
    /// The states of these streams, each a stream of a [`State`], in this order. So streams are
    /// joined, split, left out, moved and copied. Allocates.
    ///
    /// ```
    /// use gatestream::execute::{Session, State};
    /// use gatestream::model::Gru;
    /// use gatestream::plan::Plan;
    ///
    /// let model = Gru::new(3, 8).random(1)?;
    /// let mut session = Session::new(&model, &Plan::estimate(&model, 2, 1, 1))?;
    /// let mut first = State::zero(model.signature(), 1);
    /// session.step(&[0.5; 3], &mut first, &mut [0.0; 8])?;
    /// let second = State::zero(model.signature(), 1); // a stream that comes later
    /// let mut both = session.state_of(&[(&first, 0), (&second, 0)])?;
    /// session.step(&[0.5; 6], &mut both, &mut [0.0; 16])?;
    /// let second = session.state_of(&[(&both, 1)])?; // the first one has ended
    /// assert_eq!(second.h, first.h); // one step each
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A state of other sizes; a state of another model with the same number of values is not
    /// noticed. A stream that it does not have, or no memory.
    pub fn state_of(&self, streams: &[(&State, usize)]) -> Result<State, InputError> {
        for &(state, stream) in streams {
            state.check(self.signature)?;
            if stream >= state.batch() {
                let batch = state.batch();
                return Err(InputError::Stream { stream, batch });
            }
        }
        let mut made = State::try_zero(self.signature, streams.len())?;
        for block in state_blocks(self) {
            let StateBlock { before, size, .. } = block;
            let to = if block.is_cell_state {
                &mut made.c
            } else {
                &mut made.h
            };
            let rows = to[before * streams.len()..].chunks_exact_mut(size.max(1));
            for (row, &(state, stream)) in rows.zip(streams) {
                let from = if block.is_cell_state {
                    &state.c
                } else {
                    &state.h
                };
                row.copy_from_slice(&from[before * state.batch() + stream * size..][..size]);
            }
        }
        Ok(made)
    }
}

/// One state of a stream: a part of [`State::h`] or of [`State::c`].
pub(crate) struct StateBlock {
    /// Whether it is a part of [`State::c`].
    pub is_cell_state: bool,
    /// Values of a stream before it.
    pub before: usize,
    /// Values of a stream.
    pub size: usize,
}

/// The states of a stream, in the order of [`Session::step_rows`](super::Session::step_rows).
pub(super) fn state_blocks(model: &PackedModel) -> impl Iterator<Item = StateBlock> {
    let (mut before_h, mut before_c) = (0, 0);
    let directions = model.configurations[0].directions();
    directions.flat_map(move |direction| {
        let mut block = |is_cell_state: bool, size: usize| {
            let before = if is_cell_state {
                &mut before_c
            } else {
                &mut before_h
            };
            let block = StateBlock {
                is_cell_state,
                before: *before,
                size,
            };
            *before += size;
            block
        };
        let hidden = block(false, direction.state);
        let is_lstm = direction.step.has_cell_state;
        let cell = is_lstm.then(|| block(true, direction.hidden));
        [Some(hidden), cell].into_iter().flatten()
    })
}
