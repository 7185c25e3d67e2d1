//! The input and output of a run: a batch of sequences and their states, as borrowed slices.

use super::{Axis, Direction, Layer, Model, Port, Role};
use gatestream_kernels::RowsRef;

/// The order of the first two axes of input and output sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[steps, batch, features]`: PyTorch's default, ONNX `layout=0`.
    #[default]
    TimeMajor,
    /// `[batch, steps, features]`: PyTorch `batch_first=True`, ONNX `layout=1`.
    BatchMajor,
}

impl Layout {
    /// Index of the row that holds one step of one sequence.
    pub fn row(self, step: usize, steps: usize, sequence: usize, batch: usize) -> usize {
        match self {
            Layout::TimeMajor => step * batch + sequence,
            Layout::BatchMajor => sequence * steps + step,
        }
    }
}

/// A batch of input sequences, with optional lengths and initial states.
///
/// States are blocks of `[batch, size]`, one for each layer and direction, layer by layer:
/// PyTorch's `[layers * directions, batch, size]` if all sizes are equal. An omitted state is zero,
/// and gives the same bits as explicit zeros. Hidden and cell state may be omitted independently,
/// as ONNX's `initial_h` and `initial_c`; PyTorch requires both or none.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The values: `[steps, batch, features]` or `[batch, steps, features]`, as the layout says.
    pub values: &'a [f32],
    /// Number of steps in `values`, the length of the longest sequence.
    pub steps: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Order of the first two axes of input and output; `None` for the model's layout
    /// ([`Model::layout`]).
    pub layout: Option<Layout>,
    /// Number of steps of each sequence, `[batch]`, at most [`Input::steps`]; `None` if all
    /// sequences have that many.
    pub lengths: Option<&'a [usize]>,
    /// Initial hidden state; `None` means zero.
    pub h0: Option<&'a [f32]>,
    /// Initial cell state, LSTM layers only; `None` means zero.
    pub c0: Option<&'a [f32]>,
}

impl<'a> Input<'a> {
    /// Sequences of equal length in the model's layout, starting from zero states.
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

    /// Sets the order of the first two axes of input and output.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Sets the number of steps of each sequence, `[batch]`.
    #[must_use]
    pub fn lengths(mut self, lengths: &'a [usize]) -> Self {
        self.lengths = Some(lengths);
        self
    }

    /// Sets the initial hidden state.
    #[must_use]
    pub fn h0(mut self, h0: &'a [f32]) -> Self {
        self.h0 = Some(h0);
        self
    }

    /// Sets the initial cell state.
    #[must_use]
    pub fn c0(mut self, c0: &'a [f32]) -> Self {
        self.c0 = Some(c0);
        self
    }

    /// The layout given, or the model's layout.
    pub fn layout_for(&self, signature: &Signature) -> Layout {
        self.layout.unwrap_or(signature.layout)
    }

    /// Number of steps of one sequence.
    pub fn length(&self, sequence: usize) -> usize {
        self.lengths.map_or(self.steps, |l| l[sequence])
    }

    /// Checks all slices of `self` and `output` against the sizes in `signature`.
    ///
    /// # Errors
    /// [`InputError`] with the name of the slice and the size required.
    pub fn check(&self, signature: &Signature, output: &Output<'_>) -> Result<(), InputError> {
        expect("input", self.values, self.sequence(signature.input)?)?;
        self.check_others(signature, output)
    }

    /// Checks that there are rows for all steps, none too short.
    pub(crate) fn check_rows(
        &self,
        signature: &Signature,
        rows: RowsRef<'_>,
    ) -> Result<(), InputError> {
        let expected = self.sequence(signature.input)?;
        let count = self.sequence(1)?;
        if rows.fits(count, signature.input) {
            return Ok(());
        }
        Err(InputError::Values {
            name: "input",
            expected,
            found: rows.values(),
        })
    }

    /// Number of values in all rows of `features` each.
    fn sequence(&self, features: usize) -> Result<usize, InputError> {
        let rows = self.steps.checked_mul(self.batch);
        rows.and_then(|rows| rows.checked_mul(features))
            .ok_or(InputError::TooLarge)
    }

    /// Checks everything except the input values.
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

/// The output buffers of a run. A run does not store what is `None`.
#[derive(Debug, Default)]
pub struct Output<'a> {
    /// Output of the last layer at every step, in the input's layout; zero after the end of a
    /// sequence.
    pub values: Option<&'a mut [f32]>,
    /// Hidden state at the end of each sequence, in the blocks of [`Input::h0`].
    pub hn: Option<&'a mut [f32]>,
    /// Cell state at the end of each sequence, in the blocks of [`Input::c0`].
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

/// The sizes of a model's input, output and states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Features of an input step.
    pub input: usize,
    /// Features of an output step.
    pub output: usize,
    /// Hidden state values of one sequence, over all layers and directions.
    pub hidden_state: usize,
    /// Cell state values of one sequence, over all LSTM layers and directions.
    pub cell_state: usize,
    /// Order of the first two axes of input and output, unless [`Input::layout`] sets another.
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

    /// The order of the first two axes of input and output, from the file or
    /// [`Model::batch_first`]. [`Input::layout`] can set another for a run.
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

/// Why a run was refused. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A slice has the wrong length.
    #[error("{name}: expected {expected} values, found {found}")]
    Values {
        /// Name of the slice.
        name: &'static str,
        /// Number of values that batch, steps and model require.
        expected: usize,
        /// Number of values it has.
        found: usize,
    },
    /// `lengths` does not have one entry for each sequence.
    #[error("lengths: expected one per sequence, {batch}, found {found}")]
    LengthCount {
        /// Number of sequences.
        batch: usize,
        /// Number of lengths.
        found: usize,
    },
    /// A length is larger than the number of steps in the input.
    #[error("lengths: sequence {sequence} has {length} steps but the input has {steps}")]
    Length {
        /// Index of the sequence.
        sequence: usize,
        /// Its length.
        length: usize,
        /// Steps of the input.
        steps: usize,
    },
    /// A state has no such stream.
    #[error("stream {stream} is not one of the {batch} streams of its state")]
    Stream {
        /// The stream asked for.
        stream: usize,
        /// Streams of the state.
        batch: usize,
    },
    /// The product of batch, steps and features overflows, or is more than there is memory for.
    #[error("the product of batch, steps and features is too large for memory; use fewer")]
    TooLarge,
}
