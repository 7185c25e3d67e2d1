//! Named arrays in the axes of a model's ports, and the flat buffers of a run.
//!
//! [`ArrayMap`] converts between the two. An axis of a [`Port`](super::Port) may fold several
//! meanings, for example direction and feature. An array is therefore described by one stride for
//! each meaning, and the same copy loop serves every layout. No run uses this module.

mod axes;
mod map;
#[cfg(test)]
mod tests;

pub use map::ArrayMap;

use super::{Input, Layout, Output};

/// An n-dimensional array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// The elements, as many as the product of the lengths.
    pub elements: Elements,
}

/// Elements of an [`Array`].
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Values and states.
    Floats(Vec<f32>),
    /// Lengths.
    Integers(Vec<i64>),
}

/// The input of a run, owned and in time-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedInput {
    /// `[steps, batch, features]`.
    pub values: Vec<f32>,
    /// Number of steps.
    pub steps: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Steps of each sequence, `[batch]`; `None` if all have [`OwnedInput::steps`].
    pub lengths: Option<Vec<usize>>,
    /// Initial hidden state, in the blocks of [`Input::h0`].
    pub h0: Vec<f32>,
    /// Initial cell state, in the blocks of [`Input::c0`].
    pub c0: Vec<f32>,
}

impl OwnedInput {
    /// Borrows all buffers as the input of a run.
    pub fn borrow(&self) -> Input<'_> {
        Input {
            values: &self.values,
            steps: self.steps,
            batch: self.batch,
            layout: Some(Layout::TimeMajor),
            lengths: self.lengths.as_deref(),
            h0: Some(&self.h0),
            c0: Some(&self.c0),
        }
    }
}

/// The output of a run, owned and in time-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedOutput {
    /// `[steps, batch, features]`.
    pub values: Vec<f32>,
    /// Final hidden state, in the blocks of [`Input::h0`].
    pub hn: Vec<f32>,
    /// Final cell state, in the blocks of [`Input::c0`].
    pub cn: Vec<f32>,
}

impl OwnedOutput {
    /// Borrows all buffers as the output of a run.
    pub fn borrow(&mut self) -> Output<'_> {
        Output::new(&mut self.values)
            .hn(&mut self.hn)
            .cn(&mut self.cn)
    }
}

/// Largest number of initial hidden (or cell) state values of a batch, 1 GiB. An input without
/// elements may claim any number of sequences.
const MAX_STATES: usize = 1 << 28;

/// Why named arrays are not an input of the model, or an output does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The model has no input or output with this name.
    #[error("{name:?} is not an {side} of this model; use one of {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// "input" or "output".
        side: &'static str,
        /// The names of all inputs or outputs.
        known: String,
    },
    /// An input was given twice.
    #[error("{name:?} is given twice; give it once")]
    Twice {
        /// Name of the input.
        name: String,
    },
    /// A required input was not given.
    #[error("{name:?} is missing; its axes are {axes}")]
    Missing {
        /// Name of the input.
        name: String,
        /// Its axes.
        axes: String,
    },
    /// The array's shape does not match the port's axes.
    #[error("{name:?} has shape {found:?}; its axes are {axes}")]
    Shape {
        /// Name of the port.
        name: String,
        /// The shape given.
        found: Vec<usize>,
        /// The axes, with the sizes that are known.
        axes: String,
    },
    /// The array holds floats where the port needs integers, or the reverse.
    #[error("{name:?} must hold {expected}")]
    Type {
        /// Name of the port.
        name: String,
        /// "floats" or "integers".
        expected: &'static str,
    },
    /// The number of elements differs from the product of the shape.
    #[error("{name:?} holds {found} elements, which does not match its shape {shape:?}")]
    Elements {
        /// Name of the port.
        name: String,
        /// Number of elements given.
        found: usize,
        /// The shape given.
        shape: Vec<usize>,
    },
    /// The port has no axis for steps or sequences, but the input has several.
    #[error("{name:?} has no axis for {size} {what}; give inputs of 1")]
    NoAxis {
        /// Name of the port.
        name: String,
        /// "steps" or "sequences".
        what: &'static str,
        /// Number of steps or sequences.
        size: usize,
    },
    /// The states of all sequences exceed the limit or the memory.
    #[error(
        "{name:?} has {batch} sequences of {state} state values each; give fewer sequences (at \
         most {MAX_STATES} values in all, if memory permits)"
    )]
    TooLarge {
        /// Name of the input sequence.
        name: String,
        /// Number of sequences.
        batch: usize,
        /// Hidden or cell state values of one sequence, over all layers.
        state: usize,
    },
    /// A sequence has a negative length.
    #[error("{name:?}: sequence {sequence} has length {length}; lengths must be 0 or more")]
    NegativeLength {
        /// Name of the port.
        name: String,
        /// Index of the sequence, from 0.
        sequence: usize,
        /// The length given.
        length: i64,
    },
}
