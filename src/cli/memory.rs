//! Whether the machine has the memory for what the arguments ask, before it is asked for: a failed
//! allocation would abort, and one that the system cannot back would end the process without a word.

use super::Failure;
use crate::model::{Layer, Model};

/// What is taken for available where the system does not say: 64 GiB.
const UNKNOWN: u64 = 64 << 30;

/// Bytes that can be had without swapping: `MemAvailable` of Linux, else [`UNKNOWN`].
pub fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    text.and_then(|text| parse(&text)).unwrap_or(UNKNOWN)
}

/// `MemAvailable:   12345 kB`, in bytes.
fn parse(meminfo: &str) -> Option<u64> {
    let mut line = (meminfo.lines()).filter_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.next()?.trim().strip_suffix("kB")?.trim();
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses weights of this many values, or more than can be counted (`None`).
pub fn afford_weights(values: Option<u64>) -> Result<(), Failure> {
    // The model's own, and packed for the kernels.
    let bytes = values.and_then(|values| values.checked_mul(2 * 4));
    let arguments = "--input, --hidden, --layers and --bidirectional";
    afford(bytes, available(), arguments, "weights")
}

/// Refuses to serve requests, where weights and requests take this many values together.
pub fn afford_load(values: u64) -> Result<(), Failure> {
    let arguments = "--hidden, --input, --vocabulary, --workers, --lengths and --trees";
    let what = "weights and the values of requests";
    afford(values.checked_mul(4), available(), arguments, what)
}

/// Refuses a run of `model` whose sequences, with the outputs of all layers, do not fit; `arguments`
/// say how many there are.
pub fn afford_run(
    model: &Model,
    batch: usize,
    steps: usize,
    arguments: &str,
) -> Result<(), Failure> {
    let bytes = run_bytes(model, batch as u64, steps as u64);
    afford(bytes, available(), arguments, "sequences and outputs")
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

fn afford(needed: Option<u64>, available: u64, arguments: &str, what: &str) -> Result<(), Failure> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let needs = match needed {
        Some(needed) if needed <= available => return Ok(()),
        Some(needed) => format!("{:.1} GiB", gib(needed)),
        None => "more bytes than can be counted".into(),
    };
    Err(Failure::new(format!(
        "{what} need {needs} of memory and {:.1} GiB are available; ask for less with {arguments}",
        gib(available)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lstm, Merge};

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:    7 kB\nBuffers: 0 kB\n";
        assert_eq!(parse(text), Some(7 * 1024));
        assert_eq!(parse("MemTotal: 24 kB\n"), None);
        assert_eq!(parse("MemAvailable: much kB\n"), None);
    }

    #[test]
    fn the_limit_is_what_is_available() {
        assert!(afford(Some(8), 8, "--batch", "outputs").is_ok());
        let refused = |needed| {
            let failure = afford(needed, 3 << 29, "--batch and --steps", "outputs");
            failure.unwrap_err().to_string()
        };
        assert_eq!(
            refused(Some(5 << 30)),
            "outputs need 5.0 GiB of memory and 1.5 GiB are available; ask for less with --batch and \
             --steps"
        );
        assert!(refused(None).contains("more bytes than can be counted"));
    }

    #[test]
    fn a_run_needs_its_input_its_layers_outputs_and_its_states() {
        let model = Lstm::new(3, 2).layers(2).bidirectional(Merge::Concat);
        let model = model.random(1).unwrap();
        // A step: 3 in, 4 and 4 out. States: 2 layers, 2 directions, 2 of each kind, before and after.
        assert_eq!(run_bytes(&model, 5, 7), Some(4 * 5 * (7 * 11 + 2 * 16)));
        assert_eq!(run_bytes(&model, u64::MAX, 7), None);
        assert_eq!(run_bytes(&model, 1, u64::MAX), None);
    }
}
