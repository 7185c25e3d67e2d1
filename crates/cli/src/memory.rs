//! Whether the machine has the memory that a model or a run needs.

use gatestream::model::{Layer, Model};
use gatestream_command::{Failure, afford};

/// Refuses weights of this many values, or more than can be counted (`None`).
pub fn afford_weights(values: Option<u64>) -> Result<(), Failure> {
    // The model's own, and packed for the kernels.
    let bytes = values.and_then(|values| values.checked_mul(2 * 4));
    let arguments = "--input, --hidden, --layers and --bidirectional";
    afford(bytes, arguments, "weights")
}

/// Refuses a run of `model` whose sequences, with the outputs of all layers, do not fit;
/// `arguments` say how many there are.
pub fn afford_run(
    model: &Model,
    batch: usize,
    steps: usize,
    arguments: &str,
) -> Result<(), Failure> {
    let bytes = run_bytes(model, batch as u64, steps as u64);
    afford(bytes, arguments, "sequences and outputs")
}

/// Bytes of the input and of every layer's output, and of states before and after the run.
fn run_bytes(model: &Model, batch: u64, steps: u64) -> Option<u64> {
    let signature = model.signature();
    let outputs = model.layers().iter().map(Layer::output_size).sum::<usize>();
    let a_step = (signature.input as u64).checked_add(outputs as u64)?;
    let states = 2 * (signature.hidden_state as u64 + signature.cell_state as u64);
    let a_sequence = steps.checked_mul(a_step)?.checked_add(states)?;
    batch.checked_mul(a_sequence)?.checked_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gatestream::model::{Lstm, Merge};

    #[test]
    fn a_run_needs_its_input_its_layers_outputs_and_its_states() {
        let model = Lstm::new(3, 2).layers(2).bidirectional(Merge::Concat);
        let model = model.random(1).unwrap();
        // A step: 3 in, 4 and 4 out. States: 2 layers, 2 directions, 2 of each kind, before and
        // after.
        assert_eq!(run_bytes(&model, 5, 7), Some(4 * 5 * (7 * 11 + 2 * 16)));
        assert_eq!(run_bytes(&model, u64::MAX, 7), None);
        assert_eq!(run_bytes(&model, 1, u64::MAX), None);
    }
}
