//! What the phases of a step are, as the executor needs to know it.

use crate::kernels::{Activation, LstmFunctions};
use crate::model::{Cell, Direction, ResetForm};

/// What the phases of a step are, and their elementwise functions.
#[derive(Clone, Copy)]
pub(super) enum Recurrence {
    Lstm {
        functions: LstmFunctions,
        projected: bool,
    },
    Gru {
        gate: Activation,
        candidate: Activation,
        clip: Option<f32>,
        reset: ResetForm,
    },
    Rnn {
        activation: Activation,
        clip: Option<f32>,
    },
}

impl Recurrence {
    pub fn of(direction: &Direction) -> Recurrence {
        let clip = direction.clip();
        match *direction.cell() {
            Cell::Lstm {
                gate,
                candidate,
                output,
                input_forget,
            } => Recurrence::Lstm {
                functions: LstmFunctions {
                    gate,
                    candidate,
                    output,
                    input_forget,
                    clip,
                },
                projected: direction.weights().projection.is_some(),
            },
            Cell::Gru {
                gate,
                candidate,
                reset,
            } => Recurrence::Gru {
                gate,
                candidate,
                clip,
                reset,
            },
            Cell::Rnn { activation } => Recurrence::Rnn { activation, clip },
        }
    }

    /// Vectors of pre-activations per panel.
    pub fn z_slots(self) -> usize {
        match self {
            Recurrence::Lstm { .. } => 4,
            Recurrence::Gru {
                reset: ResetForm::After,
                ..
            } => 4,
            Recurrence::Gru { .. } => 3,
            Recurrence::Rnn { .. } => 1,
        }
    }

    /// The slot of each gate's input product.
    pub fn input_slots(self) -> &'static [usize] {
        match self {
            Recurrence::Lstm { .. } => &[0, 1, 2, 3],
            Recurrence::Gru { .. } => &[0, 1, 2],
            Recurrence::Rnn { .. } => &[0],
        }
    }

    /// The slot of each gate's recurrent product. A GRU that resets after the product keeps the two
    /// parts of its candidate apart.
    pub fn state_slots(self) -> &'static [usize] {
        match self {
            Recurrence::Lstm { .. } => &[0, 1, 2, 3],
            Recurrence::Gru {
                reset: ResetForm::After,
                ..
            } => &[0, 1, 3],
            Recurrence::Gru { .. } => &[0, 1, 2],
            Recurrence::Rnn { .. } => &[0],
        }
    }

    pub fn is_lstm(self) -> bool {
        matches!(self, Recurrence::Lstm { .. })
    }
}
