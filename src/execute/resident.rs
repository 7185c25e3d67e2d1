//! Single steps of sequences whose states stay on a device, started without waiting for it.

use gatestream_kernels::RowsRef;

use super::RunError;
use crate::model::{Matrix, Model};

/// What a [`ResidentModel`] computes in each step.
#[derive(Clone, Copy)]
pub struct ResidentNetwork<'a> {
    /// Forward layers.
    pub model: &'a Model,
    /// If there is one, the input of a step is a symbol, `[1]`, and that of the layers its row. A
    /// symbol without a row has features of NaN.
    pub embedding: Option<EmbeddingTable<'a>>,
    /// If there is one, the symbol of the greatest output is the input of the next step, the lowest
    /// of equal ones; NaN if an output is NaN. It is the first state, `[1]`, and steps have no
    /// other input. Needs an embedding.
    pub projection: Option<ResidentProjection<'a>>,
}

impl<'a> ResidentNetwork<'a> {
    /// The layers alone.
    pub fn of_model(model: &'a Model) -> ResidentNetwork<'a> {
        ResidentNetwork {
            model,
            embedding: None,
            projection: None,
        }
    }
}

/// The features of symbols.
#[derive(Clone, Copy)]
pub struct EmbeddingTable<'a> {
    /// Number of symbols.
    pub symbols: usize,
    /// `[symbols, features]`.
    pub values: &'a [f32],
}

/// The projection of a decoder, `W y + b`: the bits of
/// [`reference::dense`](crate::reference::dense).
#[derive(Clone, Copy)]
pub struct ResidentProjection<'a> {
    /// `[symbols, output]`.
    pub weights: &'a Matrix,
    /// `[symbols]`.
    pub bias: &'a [f32],
}

/// The room of a [`ResidentModel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentRoom {
    /// Maximum rows of a step.
    pub rows: usize,
    /// Number of slots, each for the states of one sequence.
    pub slots: usize,
    /// Maximum number of steps that are started and not finished.
    pub in_flight: usize,
}

/// A value of a row after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultOf {
    /// A state, numbered in the order of [`Session::step_rows`](super::Session::step_rows), after
    /// the symbol of a decoder.
    State(usize),
    /// The output of the last layer.
    Output,
}

/// A row of a step, and the value of it that the host reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultRow {
    /// The row of the step.
    pub row: usize,
    /// Its state or output.
    pub of: ResultOf,
}

/// One step of several sequences.
#[derive(Clone, Copy)]
pub struct ResidentStep<'a> {
    /// The inputs, a row for each slot.
    pub x: RowsRef<'a>,
    /// The slot of each row. No slot occurs twice.
    pub slots: &'a [usize],
    /// The values that the host reads when the step is finished, in this order.
    pub results: &'a [ResultRow],
}

/// Forward layers, or an encoder or decoder of symbols, on a [`Backend`](super::Backend), with
/// states that stay on its device.
///
/// Steps run in the order in which they are started, and each sees the states after the one before.
/// [`start`](ResidentModel::start) returns before the device has finished, so that the device finds
/// the next step when one ends. The bits are those of
/// [`PreparedModel::step_rows`](super::PreparedModel::step_rows) on the same backend.
///
/// After an error of the device, all states are lost and every later call fails.
///
/// ```
/// use gatestream::execute::{ResidentModel, ResidentStep, ResultOf, ResultRow, RunError};
/// use gatestream::kernels::RowsRef;
///
/// /// Two steps of a sequence in slot 3, from states of zeros; returns the output of the second.
/// fn two_steps(device: &mut dyn ResidentModel, x: &[f32]) -> Result<Vec<f32>, RunError> {
///     device.load(3, None)?;
///     let output = ResultRow { row: 0, of: ResultOf::Output };
///     for (x, results) in x.chunks(x.len() / 2).zip([&[][..], &[output]]) {
///         let x = RowsRef::contiguous(x, x.len());
///         device.start(&ResidentStep { x, slots: &[3], results })?;
///     }
///     let mut y = Vec::new();
///     device.finish(&mut y)?;
///     device.finish(&mut y)?;
///     Ok(y)
/// }
/// ```
pub trait ResidentModel: Send {
    /// Sets the states of a slot for the next step that is started: a row of each state, in the
    /// order of [`ResultOf::State`], or zeros without `states`.
    ///
    /// # Errors
    /// [`RunError`] for a slot that there is not, states of other sizes, or a failed device.
    fn load(&mut self, slot: usize, states: Option<&[&[f32]]>) -> Result<(), RunError>;

    /// Reads the states of a slot after all steps that were started. Waits for these.
    ///
    /// # Errors
    /// As [`ResidentModel::load`].
    fn store(&mut self, slot: usize, states: &mut [&mut [f32]]) -> Result<(), RunError>;

    /// Starts a step.
    ///
    /// # Errors
    /// [`RunError`] for more rows or steps than there is room for, a slot or state that there is
    /// not, inputs of another size, or a failed device.
    fn start(&mut self, step: &ResidentStep<'_>) -> Result<(), RunError>;

    /// Whether the oldest step that was started is finished, or none was. Does not wait.
    ///
    /// # Errors
    /// [`RunError::Backend`] for a failed device.
    fn is_finished(&mut self) -> Result<bool, RunError>;

    /// Ends the oldest step: replaces the contents of `results` by the values asked for, one after
    /// the other. Waits for the step; without one there are no results.
    ///
    /// # Errors
    /// [`RunError::Backend`] for a failed device.
    fn finish(&mut self, results: &mut Vec<f32>) -> Result<(), RunError>;
}
