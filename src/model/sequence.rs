//! What a run takes and gives: a batch of sequences and their states, as borrowed slices.

use super::{Axis, Direction, Layer, Model, Port, Role};

/// Order of the first two axes of input and output sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[steps, batch, features]`: PyTorch's default, ONNX `layout=0`.
    #[default]
    TimeMajor,
    /// `[batch, steps, features]`: PyTorch `batch_first=True`, ONNX `layout=1`.
    BatchMajor,
}

impl Layout {
    /// Index of one step of one sequence, in units of its features.
    pub fn row(self, step: usize, steps: usize, sequence: usize, batch: usize) -> usize {
        match self {
            Layout::TimeMajor => step * batch + sequence,
            Layout::BatchMajor => sequence * steps + step,
        }
    }
}

/// A batch of input sequences, with their lengths and initial states where they have any.
///
/// States are blocks of `[batch, size]`, one per layer and direction, layer by layer: PyTorch's
/// `[layers * directions, batch, size]` where all sizes are equal. Each state that is not given is zero,
/// whatever the other is: an LSTM with [`Input::h0`] alone starts from `c0 = 0`, to the same bits as if
/// the zeros were given. (ONNX's `initial_h` and `initial_c` mean the same; PyTorch takes both or none.)
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The values: `[steps, batch, features]` or `[batch, steps, features]`, as the layout says.
    pub values: &'a [f32],
    /// Steps of the longest sequence that fits.
    pub steps: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Order of the first two axes, of the output too; `None` for the model's own
    /// ([`Model::layout`]).
    pub layout: Option<Layout>,
    /// Steps of each sequence, at most [`Input::steps`]; all of them where `None`.
    pub lengths: Option<&'a [usize]>,
    /// Initial hidden state; zero where `None`, even if [`Input::c0`] is given.
    pub h0: Option<&'a [f32]>,
    /// Initial cell state (LSTM layers only); zero where `None`, even if [`Input::h0`] is given.
    pub c0: Option<&'a [f32]>,
}

impl<'a> Input<'a> {
    /// Full-length sequences in the model's own layout that start from zero states.
    pub fn new(values: &'a [f32], steps: usize, batch: usize) -> Input<'a> {
        Input {
            values,
            steps,
            batch,
            layout: None,
            lengths: None,
            h0: None,
            c0: None,
        }
    }

    /// Sets the order of the first two axes of input and output, whatever the model's own is.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Sets the steps of each sequence.
    #[must_use]
    pub fn lengths(mut self, lengths: &'a [usize]) -> Self {
        self.lengths = Some(lengths);
        self
    }

    /// Sets the initial hidden state; the cell state stays as it is, zero unless given.
    #[must_use]
    pub fn h0(mut self, h0: &'a [f32]) -> Self {
        self.h0 = Some(h0);
        self
    }

    /// Sets the initial cell state; the hidden state stays as it is, zero unless given.
    #[must_use]
    pub fn c0(mut self, c0: &'a [f32]) -> Self {
        self.c0 = Some(c0);
        self
    }

    /// The layout given, or the model's own.
    pub fn layout_for(&self, signature: &Signature) -> Layout {
        self.layout.unwrap_or(signature.layout)
    }

    /// Steps of one sequence.
    pub fn length(&self, sequence: usize) -> usize {
        self.lengths.map_or(self.steps, |l| l[sequence])
    }

    /// Checks all slices of `self` and `output` against the sizes that `signature` gives.
    ///
    /// # Errors
    /// What differs, by name, with the size that would fit.
    pub fn check(&self, signature: &Signature, output: &Output<'_>) -> Result<(), InputError> {
        expect("input", self.values, self.sequence(signature.input)?)?;
        self.check_others(signature, output)
    }

    /// Checks that rows which lie apart are as many and as long as the values would be.
    pub(crate) fn check_rows(
        &self,
        signature: &Signature,
        rows: &[&[f32]],
    ) -> Result<(), InputError> {
        let expected = self.sequence(signature.input)?;
        if rows.len() != self.sequence(1)? {
            return Err(InputError::Values {
                name: "input",
                expected,
                found: rows.iter().map(|row| row.len()).sum(),
            });
        }
        let mut rows = rows.iter();
        rows.try_for_each(|row| expect("a row of the input", row, signature.input))
    }

    /// Values of all rows, of so many features each.
    fn sequence(&self, features: usize) -> Result<usize, InputError> {
        let rows = self.steps.checked_mul(self.batch);
        rows.and_then(|rows| rows.checked_mul(features))
            .ok_or(InputError::TooLarge)
    }

    /// Checks all but the values.
    pub(crate) fn check_others(
        &self,
        signature: &Signature,
        output: &Output<'_>,
    ) -> Result<(), InputError> {
        let state = |size: usize| self.batch.checked_mul(size).ok_or(InputError::TooLarge);
        if let Some(lengths) = self.lengths {
            if lengths.len() != self.batch {
                return Err(InputError::LengthCount {
                    batch: self.batch,
                    found: lengths.len(),
                });
            }
            if let Some(sequence) = lengths.iter().position(|&l| l > self.steps) {
                return Err(InputError::Length {
                    sequence,
                    length: lengths[sequence],
                    steps: self.steps,
                });
            }
        }
        let hidden = state(signature.hidden_state)?;
        let cell = state(signature.cell_state)?;
        let given = [
            ("h0", self.h0, hidden),
            ("c0", self.c0, cell),
            (
                "output",
                output.values.as_deref(),
                self.sequence(signature.output)?,
            ),
            ("hn", output.hn.as_deref(), hidden),
            ("cn", output.cn.as_deref(), cell),
        ];
        for (name, values, expected) in given {
            if let Some(values) = values {
                expect(name, values, expected)?;
            }
        }
        Ok(())
    }
}

fn expect(name: &'static str, values: &[f32], expected: usize) -> Result<(), InputError> {
    if values.len() == expected {
        return Ok(());
    }
    Err(InputError::Values {
        name,
        expected,
        found: values.len(),
    })
}

/// Where a run writes; what is `None` is not computed into memory.
#[derive(Debug, Default)]
pub struct Output<'a> {
    /// The last layer's output at every step, in the input's layout; zero past a sequence's end.
    pub values: Option<&'a mut [f32]>,
    /// Hidden state at each sequence's own end, blocks as [`Input::h0`].
    pub hn: Option<&'a mut [f32]>,
    /// Cell state at each sequence's own end, blocks as [`Input::c0`].
    pub cn: Option<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// The output sequence only.
    pub fn new(values: &'a mut [f32]) -> Output<'a> {
        Output {
            values: Some(values),
            hn: None,
            cn: None,
        }
    }

    /// Adds the final hidden state.
    #[must_use]
    pub fn hn(mut self, hn: &'a mut [f32]) -> Self {
        self.hn = Some(hn);
        self
    }

    /// Adds the final cell state.
    #[must_use]
    pub fn cn(mut self, cn: &'a mut [f32]) -> Self {
        self.cn = Some(cn);
        self
    }
}

/// The sizes that inputs and outputs of a model must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Features of an input step.
    pub input: usize,
    /// Features of an output step.
    pub output: usize,
    /// Hidden state values per sequence, over all layers and directions.
    pub hidden_state: usize,
    /// Cell state values per sequence, over all LSTM layers and directions.
    pub cell_state: usize,
    /// Order of the first two axes of input and output, where a run does not say otherwise.
    pub layout: Layout,
}

impl Model {
    /// The sizes of inputs, outputs and states.
    pub fn signature(&self) -> Signature {
        let directions = || self.layers().iter().flat_map(Layer::directions);
        Signature {
            input: self.layers()[0].input_size(),
            output: self.layers()[self.layers().len() - 1].output_size(),
            hidden_state: directions().map(Direction::output_size).sum(),
            cell_state: directions().map(Direction::cell_state_size).sum(),
            layout: self.layout(),
        }
    }

    /// The order of the first two axes that the file, or [`Model::batch_first`], gives the input:
    /// what a run takes unless its [`Input`] says otherwise.
    pub fn layout(&self) -> Layout {
        let is_input = |port: &&Port| port.role == Role::Input;
        let input = self.interface().inputs.iter().find(is_input);
        let mut axes = input
            .into_iter()
            .flat_map(|port| port.axes.iter().flatten());
        match axes.find(|axis| matches!(axis, Axis::Time | Axis::Batch)) {
            Some(Axis::Batch) => Layout::BatchMajor,
            _ => Layout::TimeMajor,
        }
    }
}

/// Why a run was refused. Nothing has been written then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// A slice has the wrong length.
    #[error("{name}: expected {expected} values, found {found}")]
    Values {
        /// Which slice.
        name: &'static str,
        /// The number of values that fits the batch, steps and model.
        expected: usize,
        /// The number it has.
        found: usize,
    },
    /// `lengths` does not have one entry per sequence.
    #[error("lengths: expected one per sequence, {batch}, found {found}")]
    LengthCount {
        /// Number of sequences.
        batch: usize,
        /// Number of lengths.
        found: usize,
    },
    /// A sequence is said to be longer than the input.
    #[error("lengths: sequence {sequence} has {length} steps but the input has {steps}")]
    Length {
        /// Index of the sequence.
        sequence: usize,
        /// Its stated length.
        length: usize,
        /// Steps of the input.
        steps: usize,
    },
    /// Batch, steps and features multiply to more than memory can address.
    #[error("batch, steps and features multiply to more than memory can hold")]
    TooLarge,
}
