//! The input that errors are measured over.

use std::path::Path;

use super::memory::afford_run;
use super::npy;
use gatestream::model::{ArrayMap, Model, OwnedInput, Role};
use gatestream_command::Failure;

/// An input and its description.
pub struct Sample {
    pub input: OwnedInput,
    pub what: String,
}

/// Steps of a random one.
const STEPS: usize = 64;

impl Sample {
    /// From a file, else random values; states start from zero.
    pub fn new(model: &Model, path: Option<&Path>) -> Result<Sample, Failure> {
        let inputs = &model.interface().inputs;
        let port = inputs.iter().find(|port| port.role == Role::Input);
        let port = port.ok_or_else(|| Failure::new("the model has no input sequence"))?;
        let sample = match path {
            Some(path) => {
                let given = [(port.name.clone(), npy::read(path)?)];
                let input = ArrayMap::new(model).input(&given);
                let input = input.map_err(|error| Failure::from(error).of(path))?;
                if input.values.is_empty() {
                    return Err(Failure::new("is empty; give at least a step").of(path));
                }
                let what = path.display().to_string();
                Sample { input, what }
            }
            None => Sample::random(model),
        };
        afford_run(model, sample.input.batch, sample.input.steps, "--sample")?;
        Ok(sample)
    }

    fn random(model: &Model) -> Sample {
        let mut random = fastrand::Rng::with_seed(1);
        let signature = model.signature();
        let values = (0..STEPS * signature.input).map(|_| 2.0 * random.f32() - 1.0);
        let input = OwnedInput {
            values: values.collect(),
            steps: STEPS,
            batch: 1,
            lengths: None,
            h0: vec![0.0; signature.hidden_state],
            c0: vec![0.0; signature.cell_state],
        };
        let what =
            format!("{STEPS} steps of random values from -1 to 1 (--sample X.npy takes real ones)");
        Sample { input, what }
    }
}
