//! The text of the kernels, for one cell and plan: constants in front, then the files of
//! `kernels/`.

use std::fmt::Write;

use gatestream::model::{Activation, Cell, Direction, ResetForm};

use crate::plan::Exchange;
use crate::{LaunchPlan, PlanError, WeightType};

/// A kernel's text and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The function.
    pub name: &'static str,
    /// CUDA C++.
    pub text: String,
}

/// The file that differs between a device and a host of the tests.
const MACHINE: &str = "machine.cuh";

const FILES: [(&str, &str); 12] = [
    (MACHINE, include_str!("../kernels/machine.cuh")),
    ("activation.cuh", include_str!("../kernels/activation.cuh")),
    ("weights.cuh", include_str!("../kernels/weights.cuh")),
    ("sums.cuh", include_str!("../kernels/sums.cuh")),
    ("cell.cuh", include_str!("../kernels/cell.cuh")),
    ("recurrent.cu", include_str!("../kernels/recurrent.cu")),
    ("input.cu", include_str!("../kernels/input.cu")),
    ("merge.cu", include_str!("../kernels/merge.cu")),
    ("gather.cu", include_str!("../kernels/gather.cu")),
    ("signal.cu", include_str!("../kernels/signal.cu")),
    ("embed.cu", include_str!("../kernels/embed.cu")),
    ("argmax.cu", include_str!("../kernels/argmax.cu")),
];

impl Kernel {
    /// The recurrence of the directions of a layer, which have the same cell.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`].
    pub fn recurrent(
        layer: usize,
        direction: &Direction,
        plan: &LaunchPlan,
        weights: WeightType,
    ) -> Result<Kernel, PlanError> {
        let mut constants = type_constants(weights);
        cell_constants(layer, direction, &mut constants)?;
        plan_constants(plan, &mut constants);
        Ok(Kernel {
            name: "recurrent",
            text: constants + &flattened("recurrent.cu"),
        })
    }

    /// The products of the input.
    pub fn input_products(weights: WeightType) -> Kernel {
        Kernel {
            name: "input_products",
            text: type_constants(weights) + NO_CLUSTER + &flattened("input.cu"),
        }
    }

    /// The sum of the outputs of two directions.
    pub fn add_directions() -> Kernel {
        Kernel::plain("add_directions", "merge.cu")
    }

    /// The features of symbols.
    pub fn embed_rows() -> Kernel {
        Kernel::plain("embed_rows", "embed.cu")
    }

    /// The symbols of the greatest outputs.
    pub fn choose_symbols() -> Kernel {
        Kernel::plain("choose_symbols", "argmax.cu")
    }

    /// Rows of an array, one after the other.
    pub fn gather_rows() -> Kernel {
        Kernel::plain("gather_rows", "gather.cu")
    }

    /// A word for the host that the launches before are done.
    pub fn signal_done() -> Kernel {
        Kernel::plain("signal_done", "signal.cu")
    }

    /// A kernel without constants.
    fn plain(name: &'static str, file: &str) -> Kernel {
        Kernel {
            name,
            text: NO_CLUSTER.to_owned() + &flattened(file),
        }
    }

    /// The same kernel with another `machine.cuh`: a host's, to test the text without a device.
    #[cfg(all(test, feature = "cuda"))]
    #[must_use]
    pub(crate) fn on_machine(&self, machine: &str) -> Kernel {
        Kernel {
            name: self.name,
            text: self.text.replace(&flattened(MACHINE), machine),
        }
    }
}

const NO_CLUSTER: &str = "#define CLUSTER 0\n";

/// A file with the files that it includes in their places, each once.
fn flattened(name: &str) -> String {
    let text = text_of(name).unwrap_or_default();
    let mut flat = format!("#line 1 \"{name}\"\n");
    for (index, line) in text.lines().enumerate() {
        let included = line
            .strip_prefix("#include \"")
            .and_then(|rest| rest.strip_suffix('"'));
        match included {
            Some(file) if text_of(file).is_some() => {
                flat += &flattened(file);
                // Writing to a string does not fail.
                let _ = writeln!(flat, "#line {} \"{name}\"", index + 2);
            }
            // A file that is not there is the compiler's to report.
            _ if line != "#pragma once" => {
                flat += line;
                flat.push('\n');
            }
            _ => flat.push('\n'),
        }
    }
    flat
}

fn text_of(name: &str) -> Option<&'static str> {
    let found = FILES.iter().find(|(file, _)| *file == name);
    found.map(|(_, text)| *text)
}

fn type_constants(weights: WeightType) -> String {
    let name = match weights {
        WeightType::F32 => "WEIGHTS_F32",
        WeightType::Bf16 => "WEIGHTS_BF16",
        WeightType::F16 => "WEIGHTS_F16",
    };
    format!(
        "#define WEIGHTS_F32 0\n#define WEIGHTS_BF16 1\n#define WEIGHTS_F16 2\n\
         #define WEIGHTS {name}\n",
    )
}

fn plan_constants(plan: &LaunchPlan, text: &mut String) {
    let cluster = usize::from(plan.exchange == Exchange::Cluster);
    for (name, value) in [
        ("BLOCKS", plan.blocks),
        ("WARPS", plan.warps),
        ("UNITS", plan.units),
        ("TILE", plan.tile),
        ("CHUNKS", plan.chunks),
        ("REGISTER_CHUNKS", plan.register_chunks),
        ("SHARED_CHUNKS", plan.shared_chunks),
        ("CLUSTER", cluster),
    ] {
        let _ = writeln!(text, "#define {name} {value}");
    }
}

fn cell_constants(layer: usize, direction: &Direction, text: &mut String) -> Result<(), PlanError> {
    let unsupported = |what| PlanError::Unsupported { layer, what };
    let names = ["LSTM", "GRU_AFTER", "GRU_BEFORE", "LIGHT_GRU", "RNN"];
    for (number, name) in names.iter().enumerate() {
        let _ = writeln!(text, "#define {name} {number}");
    }
    let (name, gate, candidate, output) = match *direction.cell() {
        Cell::Lstm {
            gate,
            candidate,
            output,
            ..
        } => ("LSTM", gate, Some(candidate), Some(output)),
        Cell::Gru {
            gate,
            candidate,
            reset,
        } => {
            let name = match reset {
                ResetForm::After => "GRU_AFTER",
                ResetForm::Before => "GRU_BEFORE",
            };
            (name, gate, Some(candidate), None)
        }
        Cell::LightGru { gate, candidate } => ("LIGHT_GRU", gate, Some(candidate), None),
        Cell::Rnn { activation } => ("RNN", activation, None, None),
        _ => return Err(unsupported("a cell of this kind")),
    };
    let input_forget = matches!(
        *direction.cell(),
        Cell::Lstm {
            input_forget: true,
            ..
        }
    );
    let weights = direction.weights();
    if weights.projection.is_some() {
        return Err(unsupported("a projection of the state"));
    }
    let gates = weights.recurrent.rows() / direction.hidden_size();
    let _ = writeln!(text, "#define CELL {name}\n#define GATES {gates}");
    let _ = writeln!(text, "#define INPUT_FORGET {}", usize::from(input_forget));
    let _ = writeln!(
        text,
        "#define PEEPHOLES {}",
        usize::from(weights.peepholes.is_some())
    );
    let functions = [
        ("GATE", Some(gate)),
        ("CANDIDATE", candidate),
        ("OUTPUT", output),
    ];
    for (name, activation) in functions {
        if let Some(activation) = activation {
            let _ = writeln!(text, "#define {name}(x) {}", call(activation));
        }
    }
    for (name, bound) in [
        ("CLIP", direction.clip()),
        ("OUTPUT_CLIP", direction.output_clip()),
    ] {
        if let Some(bound) = bound {
            let _ = writeln!(text, "#define {name} {}", literal(bound));
        }
    }
    Ok(())
}

/// The call of an activation function for `x`.
fn call(activation: Activation) -> String {
    let with = |name: &str, parameters: &[f32]| {
        let parameters = parameters
            .iter()
            .map(|value| format!(", {}", literal(*value)));
        format!("{name}((x){})", parameters.collect::<String>())
    };
    match activation {
        Activation::Sigmoid => with("sigmoid", &[]),
        Activation::Tanh => with("hyperbolic_tangent", &[]),
        Activation::Relu => with("relu", &[]),
        Activation::Affine { alpha, beta } => with("affine", &[alpha, beta]),
        Activation::LeakyRelu { alpha } => with("leaky_relu", &[alpha]),
        Activation::ThresholdedRelu { alpha } => with("thresholded_relu", &[alpha]),
        Activation::ScaledTanh { alpha, beta } => with("scaled_tanh", &[alpha, beta]),
        Activation::HardSigmoid { alpha, beta } => with("hard_sigmoid", &[alpha, beta]),
        Activation::Elu { alpha } => with("elu", &[alpha]),
        Activation::Softsign => with("softsign", &[]),
        Activation::Softplus => with("softplus", &[]),
    }
}

/// A value, to the bit.
fn literal(value: f32) -> String {
    format!("__uint_as_float({:#x}u)", value.to_bits())
}
