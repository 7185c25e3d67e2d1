//! A layer: one or two directions over the same input sequence.

use super::cell::Clips;
use super::{Cell, CellKind, CellStep, ModelError, Weights};
use gatestream_kernels::GateKernel;

/// One recurrence over the sequence: from the first step to the last, or in reverse, from the last
/// step of each sequence to the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    cell: Cell,
    clip: Option<f32>,
    clips_output: bool,
    reverse: bool,
    weights: Weights,
    hidden: usize,
}

impl Direction {
    /// A forward direction with no clipping.
    ///
    /// # Errors
    /// [`ModelError::Shape`] with the name of a tensor whose shape does not match the others,
    /// [`ModelError::LstmOnly`] for a projection or peepholes on a GRU or RNN.
    pub fn new(cell: Cell, weights: Weights) -> Result<Direction, ModelError> {
        let hidden = weights.check(cell.kind())?;
        Ok(Direction {
            cell,
            clip: None,
            clips_output: false,
            reverse: false,
            weights,
            hidden,
        })
    }

    /// The same direction in reverse, from the end of each sequence to its start.
    #[must_use]
    pub fn reversed(mut self) -> Direction {
        self.reverse = true;
        self
    }

    /// Clamps the pre-activations of gates and candidate to `[-clip, clip]` (ONNX attribute
    /// `clip`). As in ONNX Runtime, the input of an LSTM's output activation is not clamped;
    /// [`Direction::clipping_output`] clamps it.
    ///
    /// # Errors
    /// [`ModelError::Clip`] unless `clip` is positive. Infinity is allowed and has no effect.
    pub fn with_clip(mut self, clip: f32) -> Result<Direction, ModelError> {
        if clip.is_nan() || clip <= 0.0 {
            return Err(ModelError::Clip { clip });
        }
        self.clip = Some(clip);
        Ok(self)
    }

    /// Clamps the input of an LSTM's output activation, the new cell state, to the same bound. So
    /// says the text of ONNX's operator; ONNX Runtime does not do it. The cell state itself stays
    /// as it is. Nothing changes for other cells, or if there is no bound yet.
    #[must_use]
    pub fn clipping_output(mut self) -> Direction {
        self.clip_output();
        self
    }

    pub(super) fn clip_output(&mut self) {
        self.clips_output = self.clip.is_some() && self.cell.kind() == CellKind::Lstm;
    }

    /// The recurrence.
    pub fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The clipping bound, if any.
    pub fn clip(&self) -> Option<f32> {
        self.clip
    }

    /// The bound on the input of an LSTM's output activation, if any.
    pub fn output_clip(&self) -> Option<f32> {
        self.clip.filter(|_| self.clips_output)
    }

    /// Whether it runs from the end of each sequence to its start.
    pub fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// What a step computes.
    pub fn step(&self) -> &'static CellStep {
        self.cell.step(self.weights.projection.is_some())
    }

    /// The elementwise part of each phase of a step.
    pub(crate) fn gate_kernels(&self) -> Vec<GateKernel> {
        let is_projected = self.weights.projection.is_some();
        let clips = Clips {
            clip: self.clip,
            output_clip: self.output_clip(),
        };
        self.cell.gate_kernels(clips, is_projected)
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The same direction with other weights of the same shapes.
    pub(super) fn with_weights(&self, weights: Weights) -> Direction {
        Direction { weights, ..*self }
    }

    pub(super) fn weights_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }

    /// `E`, features per input step.
    pub fn input_size(&self) -> usize {
        self.weights.input.cols()
    }

    /// `H`, hidden units.
    pub fn hidden_size(&self) -> usize {
        self.hidden
    }

    /// `R`, features per output step and of the hidden state: the projection's rows, else `H`.
    pub fn output_size(&self) -> usize {
        self.weights.recurrent.cols()
    }

    /// `H` for an LSTM, 0 for the cells that have no cell state.
    pub fn cell_state_size(&self) -> usize {
        if self.step().has_cell_state {
            self.hidden
        } else {
            0
        }
    }
}

/// How the outputs of two directions are combined to the output of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "safetensors", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "safetensors", serde(rename_all = "snake_case"))]
pub enum Merge {
    /// The features of forward, then those of reverse.
    Concat,
    /// Forward plus reverse, feature by feature, rounded once.
    Sum,
}

/// One or two directions over the same input.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    directions: Vec<Direction>,
    merge: Merge,
}

impl Layer {
    /// A layer of one direction, forward or reverse.
    pub fn single(direction: Direction) -> Layer {
        Layer {
            directions: vec![direction],
            merge: Merge::Concat,
        }
    }

    /// A bidirectional layer. `reverse` runs in reverse even if [`Direction::reversed`] was not
    /// called.
    ///
    /// # Errors
    /// [`ModelError::DirectionsDiffer`] unless both have the same kind of cell and equal sizes and
    /// `forward` is not reversed.
    pub fn bidirectional(
        forward: Direction,
        reverse: Direction,
        merge: Merge,
    ) -> Result<Layer, ModelError> {
        let sizes = |d: &Direction| [d.input_size(), d.hidden_size(), d.output_size()];
        if forward.reverse
            || forward.cell.kind() != reverse.cell.kind()
            || sizes(&forward) != sizes(&reverse)
        {
            return Err(ModelError::DirectionsDiffer);
        }
        Ok(Layer {
            directions: vec![forward, reverse.reversed()],
            merge,
        })
    }

    /// The directions: one, or forward then reverse.
    pub fn directions(&self) -> &[Direction] {
        &self.directions
    }

    /// Whether it has the forward direction alone: then it can run step by step.
    pub fn is_forward(&self) -> bool {
        matches!(&self.directions[..], [one] if !one.is_reverse())
    }

    /// The phases of a step: the most of its directions.
    pub fn phases(&self) -> usize {
        let phases = self.directions.iter().map(|of| of.step().phases());
        phases.max().unwrap_or(1)
    }

    /// The same layer with other directions of the same shapes.
    pub(super) fn with_directions(&self, directions: Vec<Direction>) -> Layer {
        Layer {
            directions,
            merge: self.merge,
        }
    }

    pub(super) fn directions_mut(&mut self) -> &mut [Direction] {
        &mut self.directions
    }

    /// How two directions are merged; [`Merge::Concat`] for one direction.
    pub fn merge(&self) -> Merge {
        self.merge
    }

    /// The kind of cell.
    pub fn kind(&self) -> CellKind {
        self.directions[0].cell.kind()
    }

    /// `E`, features per input step.
    pub fn input_size(&self) -> usize {
        self.directions[0].input_size()
    }

    /// `H`, hidden units per direction.
    pub fn hidden_size(&self) -> usize {
        self.directions[0].hidden_size()
    }

    /// Features per output step of the layer.
    pub fn output_size(&self) -> usize {
        let one = self.directions[0].output_size();
        match self.merge {
            Merge::Concat => one * self.directions.len(),
            Merge::Sum => one,
        }
    }
}
