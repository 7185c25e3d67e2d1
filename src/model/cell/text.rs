//! Cells as a safetensors file's metadata has them, in JSON.

use serde::{Deserialize, Serialize};

use crate::model::safetensors::ActivationText;
use crate::model::{Activation, Cell, ResetForm};

#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Cell",
    rename_all = "snake_case",
    rename_all_fields = "snake_case",
    deny_unknown_fields
)]
pub(in crate::model) enum CellText {
    Lstm {
        #[serde(with = "ActivationText")]
        gate: Activation,
        #[serde(with = "ActivationText")]
        candidate: Activation,
        #[serde(with = "ActivationText")]
        output: Activation,
        input_forget: bool,
    },
    Gru {
        #[serde(with = "ActivationText")]
        gate: Activation,
        #[serde(with = "ActivationText")]
        candidate: Activation,
        #[serde(with = "ResetText")]
        reset: ResetForm,
    },
    LightGru {
        #[serde(with = "ActivationText")]
        gate: Activation,
        #[serde(with = "ActivationText")]
        candidate: Activation,
    },
    Rnn {
        #[serde(with = "ActivationText")]
        activation: Activation,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ResetForm", rename_all = "snake_case")]
enum ResetText {
    Before,
    After,
}
