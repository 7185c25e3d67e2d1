//! The axes of the values of a recurrent node, and the order of the same values in a session.

use std::borrow::Cow;

use crate::model::{Layout, Signature};

/// The sizes of a run of a recurrent node of ONNX.
///
/// ```text
///             layout 0                           layout 1
/// X           [steps, batch, features]           [batch, steps, features]
/// Y           [steps, directions, batch, hidden] [batch, steps, directions, hidden]
/// states      [directions, batch, hidden]        [batch, directions, hidden]
/// ```
///
/// A session has the directions of an output side by side, `[steps, batch, directions, hidden]` or
/// with the batch first, and those of a state apart, `[directions, batch, hidden]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentAxes {
    /// ONNX `layout` 1.
    pub is_batch_major: bool,
    /// Steps of `X`.
    pub steps: usize,
    /// Sequences of `X`.
    pub batch: usize,
    /// 1 or 2.
    pub directions: usize,
    /// Hidden size of a direction.
    pub hidden: usize,
}

impl RecurrentAxes {
    /// Those of a run with this shape of `X`, of a model with this signature.
    ///
    /// # Errors
    /// A sentence for the user: `X` has another number of axes or features.
    pub fn of_x(
        x: &[usize],
        is_batch_major: bool,
        directions: usize,
        signature: &Signature,
    ) -> Result<RecurrentAxes, String> {
        let &[first, second, features] = x else {
            return Err(format!("X has the shape {x:?}; it must have three axes"));
        };
        if features != signature.input {
            let expected = signature.input;
            return Err(format!("X has {features} features; W has {expected}"));
        }
        let (steps, batch) = if is_batch_major {
            (second, first)
        } else {
            (first, second)
        };
        Ok(RecurrentAxes {
            is_batch_major,
            steps,
            batch,
            directions,
            hidden: signature.output / directions.max(1),
        })
    }

    /// That of `X` and of the output of the session.
    pub fn layout(&self) -> Layout {
        if self.is_batch_major {
            Layout::BatchMajor
        } else {
            Layout::TimeMajor
        }
    }

    /// The shape of `Y`.
    pub fn y_shape(&self) -> [usize; 4] {
        if self.is_batch_major {
            [self.batch, self.steps, self.directions, self.hidden]
        } else {
            [self.steps, self.directions, self.batch, self.hidden]
        }
    }

    /// The shape of `Y_h`, `Y_c` and the initial states.
    pub fn state_shape(&self) -> [usize; 3] {
        if self.is_batch_major {
            [self.batch, self.directions, self.hidden]
        } else {
            [self.directions, self.batch, self.hidden]
        }
    }

    /// Whether `Y` has another order than the output of the session. Where an axis of length 1 is
    /// between two, both orders are the same.
    pub fn swaps_output(&self) -> bool {
        !self.is_batch_major && self.directions == 2 && self.batch > 1
    }

    /// Whether states have another order than those of the session.
    pub fn swaps_states(&self) -> bool {
        self.is_batch_major && self.directions == 2 && self.batch > 1
    }

    /// `Y` of the output of the session.
    ///
    /// # Panics
    /// If a slice has another number of values.
    pub fn output_of_session(&self, output: &[f32], y: &mut [f32]) {
        if !self.swaps_output() {
            return y.copy_from_slice(output);
        }
        let step = (self.batch * self.directions * self.hidden).max(1);
        for (to, from) in y.chunks_mut(step).zip(output.chunks(step)) {
            swap_axes(to, from, [self.batch, self.directions, self.hidden]);
        }
    }

    /// `Y_h` or `Y_c` of a final state of the session.
    ///
    /// # Panics
    /// If a slice has another number of values.
    pub fn state_of_session(&self, state: &[f32], to: &mut [f32]) {
        if self.swaps_states() {
            swap_axes(to, state, [self.directions, self.batch, self.hidden]);
        } else {
            to.copy_from_slice(state);
        }
    }

    /// An initial state of the session.
    ///
    /// # Errors
    /// A sentence for the user: it has another number of values.
    pub fn initial_state<'a>(&self, state: &'a [f32]) -> Result<Cow<'a, [f32]>, String> {
        let (batch, directions, hidden) = (self.batch, self.directions, self.hidden);
        if state.len() != batch * directions * hidden {
            return Err(format!(
                "an initial state has {} values for {batch} sequences of {directions} × {hidden}",
                state.len()
            ));
        }
        if !self.swaps_states() {
            return Ok(state.into());
        }
        let mut swapped = vec![0.0; state.len()];
        swap_axes(&mut swapped, state, [batch, directions, hidden]);
        Ok(swapped.into())
    }

    /// The lengths of the sequences.
    ///
    /// # Errors
    /// A sentence for the user: there are others than one for each sequence, or one is not from 0
    /// to the steps.
    pub fn lengths(&self, lengths: &[i64]) -> Result<Vec<usize>, String> {
        let (found, batch) = (lengths.len(), self.batch);
        if found != batch {
            return Err(format!("there are {found} lengths for {batch} sequences"));
        }
        let checked = lengths.iter().map(|&length| {
            let checked = usize::try_from(length).ok();
            checked
                .filter(|&length| length <= self.steps)
                .ok_or_else(|| format!("a length is {length}; X has {} steps", self.steps))
        });
        checked.collect()
    }

    /// Sets the final states of sequences without steps to zero in `Y_h` or `Y_c`, as ONNX Runtime
    /// does. Those of a session are the initial ones.
    pub fn clear_states_of_empty(&self, lengths: &[usize], state: &mut [f32]) {
        let empty = lengths
            .iter()
            .enumerate()
            .filter(|(_, length)| **length == 0);
        for (sequence, _) in empty {
            for direction in 0..self.directions {
                let row = if self.is_batch_major {
                    sequence * self.directions + direction
                } else {
                    direction * self.batch + sequence
                };
                state[row * self.hidden..][..self.hidden].fill(0.0);
            }
        }
    }
}

/// `[a, b, c]` as `[b, a, c]`.
fn swap_axes(to: &mut [f32], from: &[f32], [a, b, c]: [usize; 3]) {
    for first in 0..a {
        for second in 0..b {
            let row = &from[(first * b + second) * c..][..c];
            to[(second * a + first) * c..][..c].copy_from_slice(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that tell their place.
    fn value([step, sequence, direction, unit]: [usize; 4]) -> f32 {
        (((step * 10 + sequence) * 10 + direction) * 10 + unit) as f32
    }

    /// All places, the last axis fastest.
    fn places(sizes: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
        (0..sizes.iter().product()).map(move |at: usize| {
            let mut rest = at;
            let mut place = [0; 4];
            for axis in (0..4).rev() {
                place[axis] = rest % sizes[axis];
                rest /= sizes[axis];
            }
            place
        })
    }

    #[test]
    fn values_have_the_axes_of_onnx() {
        for (is_batch_major, batch, directions) in [
            (false, 3, 2),
            (true, 3, 2),
            (false, 1, 2),
            (true, 1, 2),
            (false, 3, 1),
            (true, 3, 1),
        ] {
            let (steps, hidden) = (2, 4);
            let axes = RecurrentAxes {
                is_batch_major,
                steps,
                batch,
                directions,
                hidden,
            };
            let (y, of_session): (Vec<f32>, Vec<f32>) = if is_batch_major {
                let y = places([batch, steps, directions, hidden])
                    .map(|[b, t, d, h]| value([t, b, d, h]));
                let y: Vec<f32> = y.collect();
                (y.clone(), y)
            } else {
                (
                    places([steps, directions, batch, hidden])
                        .map(|[t, d, b, h]| value([t, b, d, h]))
                        .collect(),
                    places([steps, batch, directions, hidden])
                        .map(value)
                        .collect(),
                )
            };
            let mut found = vec![0.0; y.len()];
            axes.output_of_session(&of_session, &mut found);
            assert_eq!(found, y, "{axes:?}");
            assert_eq!(axes.y_shape().iter().product::<usize>(), y.len());

            let state: Vec<f32> = if is_batch_major {
                places([1, batch, directions, hidden])
                    .map(|[_, b, d, h]| value([0, b, d, h]))
                    .collect()
            } else {
                places([1, directions, batch, hidden])
                    .map(|[_, d, b, h]| value([0, b, d, h]))
                    .collect()
            };
            let of_session: Vec<f32> = places([1, directions, batch, hidden])
                .map(|[_, d, b, h]| value([0, b, d, h]))
                .collect();
            assert_eq!(axes.initial_state(&state).unwrap(), of_session, "{axes:?}");
            let mut found = vec![0.0; state.len()];
            axes.state_of_session(&of_session, &mut found);
            assert_eq!(found, state, "{axes:?}");

            let mut lengths = vec![1; batch];
            lengths[batch - 1] = 0;
            let mut cleared = state.clone();
            axes.clear_states_of_empty(&lengths, &mut cleared);
            for (found, before) in cleared.iter().zip(&state) {
                let is_empty = (*before as usize) / 100 % 10 == batch - 1;
                assert_eq!(*found, if is_empty { 0.0 } else { *before });
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let axes = RecurrentAxes {
            is_batch_major: false,
            steps: 5,
            batch: 2,
            directions: 1,
            hidden: 4,
        };
        assert_eq!(axes.lengths(&[0, 5]).unwrap(), [0, 5]);
        for (lengths, told) in [
            (&[1, 2, 3][..], "3 lengths for 2 sequences"),
            (&[1, 6], "a length is 6; X has 5 steps"),
            (&[-1, 5], "a length is -1"),
        ] {
            let why = axes.lengths(lengths).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
        let why = axes.initial_state(&[0.0; 9]).unwrap_err();
        assert!(why.contains("9 values for 2 sequences of 1 × 4"), "{why}");
    }
}
