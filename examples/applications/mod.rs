//! Applications around recurrent layers: text similarity, the attention sum reader and BiDAF, as
//! DeepCPU serves them (Zhang and others, 2018, section 6.2).
//!
//! `tuning/applications/modules.py` has the same in PyTorch, and writes the files that these read:
//! weights, inputs and PyTorch's answers.

mod attention_sum_reader;
mod bidaf;
mod embedded;
mod encoder;
mod file;
mod layer_times;
mod text_similarity;

use std::error::Error;
use std::time::Duration;

pub use attention_sum_reader::AttentionSumReader;
pub use bidaf::Bidaf;
pub use encoder::Planning;
pub use file::File;
use layer_times::LayerTimes;
pub use text_similarity::TextSimilarity;

enum Application {
    TextSimilarity(Box<TextSimilarity>),
    AttentionSumReader(Box<AttentionSumReader>),
    Bidaf(Box<Bidaf>),
}

/// An application and the inputs that its file holds.
pub struct Case {
    application: Application,
    inputs: Vec<Texts>,
}

/// A layer, and its time in each of some runs.
pub struct TimedLayer {
    pub name: &'static str,
    pub times: Vec<Duration>,
}

/// Token sequences of one length.
struct Texts {
    symbols: Vec<usize>,
    steps: usize,
}

impl Texts {
    fn each(&self) -> Vec<&[usize]> {
        self.symbols.chunks(self.steps).collect()
    }
}

impl Case {
    /// Makes the application that the file is for.
    pub fn open(file: &File, planning: Planning) -> Result<Case, Box<dyn Error>> {
        let inputs = |names: &[&str]| -> Result<Vec<Texts>, Box<dyn Error>> {
            let input = |name: &&str| {
                let (symbols, steps) = file.symbols(name)?;
                Ok(Texts { symbols, steps })
            };
            names.iter().map(input).collect()
        };
        if file.has("phrase.weight_ih_l0") {
            let inputs = inputs(&["question", "context"])?;
            let (question, context) = (inputs[0].steps, inputs[1].steps);
            let model = Bidaf::load(file, question, context, planning)?;
            let application = Application::Bidaf(model.into());
            return Ok(Case {
                application,
                inputs,
            });
        }
        if file.has("context.weight_ih_l0") {
            let inputs = inputs(&["question", "contexts", "candidates"])?;
            let (question, context) = (inputs[0].steps, inputs[1].steps);
            let batch = inputs[1].each().len();
            let model = AttentionSumReader::load(file, question, (batch, context), planning)?;
            let application = Application::AttentionSumReader(model.into());
            return Ok(Case {
                application,
                inputs,
            });
        }
        let inputs = inputs(&["query", "documents"])?;
        let batch = 1 + inputs[1].each().len();
        let steps = inputs[0].steps.max(inputs[1].steps);
        let model = TextSimilarity::load(file, (batch, steps), planning)?;
        let application = Application::TextSimilarity(model.into());
        Ok(Case {
            application,
            inputs,
        })
    }

    /// Runs the application on its inputs.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let texts = |index: usize| self.inputs[index].each();
        match &mut self.application {
            Application::TextSimilarity(model) => {
                model.rank(&self.inputs[0].symbols, &texts(1))?;
            }
            Application::AttentionSumReader(model) => {
                let candidates = &self.inputs[2].symbols;
                model.choose(&self.inputs[0].symbols, &texts(1), candidates)?;
            }
            Application::Bidaf(model) => {
                model.find(&self.inputs[0].symbols, &self.inputs[1].symbols)?;
            }
        }
        Ok(())
    }

    /// The answers of the last run, with the names that the file has for PyTorch's.
    pub fn answers(&self) -> Vec<(&'static str, &[f32])> {
        match &self.application {
            Application::TextSimilarity(model) => vec![("similarity", model.similarity())],
            Application::AttentionSumReader(model) => {
                vec![("probabilities", model.probabilities())]
            }
            Application::Bidaf(model) => vec![("start", model.start()), ("end", model.end())],
        }
    }

    /// Runs the application, and takes the times of each layer.
    pub fn time_layers(&mut self, runs: usize) -> Result<Vec<TimedLayer>, Box<dyn Error>> {
        let mut layers: Vec<TimedLayer> = Vec::new();
        for _ in 0..runs {
            self.run()?;
            for (at, &(name, time)) in self.times().parts().iter().enumerate() {
                if layers.len() == at {
                    let times = Vec::new();
                    layers.push(TimedLayer { name, times });
                }
                layers[at].times.push(time);
            }
        }
        Ok(layers)
    }

    /// The times of the last run.
    fn times(&self) -> &LayerTimes {
        match &self.application {
            Application::TextSimilarity(model) => &model.times,
            Application::AttentionSumReader(model) => &model.times,
            Application::Bidaf(model) => &model.times,
        }
    }
}
