//! The word-to-phonemes model of `examples/models`: an encoder, whose final states start a decoder,
//! which is greedy or keeps several hypotheses. `examples/models/README.md` says what it computes.

pub mod textbook;

use std::error::Error;

use gatestream::execute::team::{SharedTeam, Team};
use gatestream::execute::{PackedModel, State};
use gatestream::kernels::Isa;
use gatestream::layers::{Beam, BeamOptions, Dense, Embedding, Greedy, GreedyOptions};
use gatestream::machine::Topology;
use gatestream::model::{Precision, SafetensorsOptions, Tensors};
use gatestream::{Input, Model, Output, Plan, Session};

/// The file, wherever the program is started from.
pub const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/examples/models/g2p.safetensors"
);

/// Letters of a word that there is room for at first.
const USUAL_LETTERS: usize = 24;

/// The model, ready to run.
pub struct G2p {
    vocabulary: Vocabulary,
    letters: Embedding,
    encoder: Session,
    decoder: Decoder,
    /// Features of the word's letters.
    features: Vec<f32>,
    /// What the encoder hands to the decoder.
    state: State,
    threads: usize,
    isa: Isa,
}

enum Decoder {
    Greedy(Box<Greedy>),
    Beam(Box<Beam>),
}

/// How many hypotheses a beam search keeps, and the exponent of its length penalty.
#[derive(Clone, Copy, Debug)]
pub struct BeamSize {
    pub width: usize,
    pub length_penalty: f32,
}

/// A pronunciation, as indices into the vocabulary, with the logarithm of its probability, divided
/// by the length penalty.
pub struct Pronunciation {
    pub phonemes: Vec<usize>,
    pub score: f32,
}

impl G2p {
    /// Loads the model from the bytes of its file.
    pub fn load(bytes: &[u8]) -> Result<G2p, Box<dyn Error>> {
        G2p::load_in(Precision::F32, bytes)
    }

    /// The same, with beam search.
    pub fn load_with_beam(beam: BeamSize, bytes: &[u8]) -> Result<G2p, Box<dyn Error>> {
        G2p::load_with(Precision::F32, Some(beam), bytes)
    }

    /// The same with both recurrent stacks in `precision`. Embeddings and the dense layer stay f32:
    /// they are looked up, and a fiftieth of the arithmetic.
    pub fn load_in(precision: Precision, bytes: &[u8]) -> Result<G2p, Box<dyn Error>> {
        G2p::load_with(precision, None, bytes)
    }

    fn load_with(
        precision: Precision,
        beam: Option<BeamSize>,
        bytes: &[u8],
    ) -> Result<G2p, Box<dyn Error>> {
        let tensors = Tensors::from_bytes(bytes)?;
        let recurrent = |prefix: &str| {
            let options = SafetensorsOptions::new().prefix(prefix);
            let model = Model::from_tensors(&tensors, &options)?;
            Ok::<_, Box<dyn Error>>(model.into_precision(precision)?)
        };
        let encoder = recurrent("encoder.rnn.")?;
        let decoder = recurrent("decoder.rnn.")?;

        // The two never run at once, so they share one team. The decoder has most of the work.
        let topology = Topology::detect();
        let rows = beam.map_or(1, |beam| beam.width);
        let decoder_plan = Plan::estimate(&decoder, rows, 1, topology.team_size());
        let threads = decoder_plan.threads();
        let encoder_plan = Plan::with_threads(&encoder, 1, USUAL_LETTERS, threads);
        let mut team = Team::new(&topology.cpus_for_team(threads))?;
        team.pin_caller();
        let encoder = PackedModel::new(&encoder, &encoder_plan, &mut team)?;
        let decoder = PackedModel::new(&decoder, &decoder_plan, &mut team)?;
        let team = SharedTeam::new(team);
        let (isa, signature) = (decoder.isa(), decoder.signature());
        let session = Session::on_team(decoder, team.clone())?;
        let table = Embedding::new(tensors.matrix("decoder.embedding.weight")?);
        let (weights, bias) = (
            tensors.matrix("output.weight")?,
            tensors.vector("output.bias")?,
        );
        let dense = Dense::new(&weights, &bias)?;
        let greedy = greedy_options(&tensors)?;
        let decoder = match beam {
            None => Decoder::Greedy(Greedy::new(session, table, dense, greedy)?.into()),
            Some(beam) => {
                let GreedyOptions {
                    bos, eos, limit, ..
                } = greedy;
                let options = BeamOptions::new(bos, eos, limit, beam.width)
                    .length_penalty(beam.length_penalty);
                Decoder::Beam(Beam::new(session, table, dense, options)?.into())
            }
        };

        Ok(G2p {
            vocabulary: Vocabulary::load(&tensors)?,
            letters: Embedding::new(tensors.matrix("encoder.embedding.weight")?),
            encoder: Session::on_team(encoder, team)?,
            decoder,
            features: Vec::new(),
            state: State::zero(signature, 1),
            threads,
            isa,
        })
    }

    /// What the letters and phonemes are called.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Threads and instruction set that it runs on.
    pub fn runs_on(&self) -> (usize, Isa) {
        (self.threads, self.isa)
    }

    /// The phonemes of a word, as indices into the vocabulary, as its letters are.
    pub fn phonemes(&mut self, letters: &[usize]) -> Result<&[usize], Box<dyn Error>> {
        self.encode(letters)?;
        match &mut self.decoder {
            Decoder::Greedy(greedy) => Ok(greedy.decode(&self.state)?.symbols),
            Decoder::Beam(beam) => {
                let best = beam.decode(&self.state)?.next();
                Ok(best.map_or(&[], |best| best.symbols))
            }
        }
    }

    /// All that the beam search found, the best first; without one nothing.
    pub fn all(&mut self, letters: &[usize]) -> Result<Vec<Pronunciation>, Box<dyn Error>> {
        self.encode(letters)?;
        let Decoder::Beam(beam) = &mut self.decoder else {
            return Ok(Vec::new());
        };
        let found = beam.decode(&self.state)?;
        Ok(found
            .map(|found| Pronunciation {
                phonemes: found.symbols.to_vec(),
                score: found.score,
            })
            .collect())
    }

    /// Leaves the encoder's final states for the decoder.
    fn encode(&mut self, letters: &[usize]) -> Result<(), Box<dyn Error>> {
        self.encoder.reserve(1, letters.len())?;
        self.features
            .resize(letters.len() * self.letters.features(), 0.0);
        self.letters.run(letters, &mut self.features)?;
        // Only the final states are asked for: forward, then reverse, as the decoder takes them.
        let input = Input::new(&self.features, letters.len(), 1);
        let mut output = Output::default().hn(&mut self.state.h);
        self.encoder.run(&input, &mut output)?;
        Ok(())
    }
}

/// The model's symbols.
pub struct Vocabulary {
    letters: Vec<String>,
    phonemes: Vec<String>,
}

/// A word that the model cannot read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum WordError {
    /// No letter at all.
    #[error("an empty word has no pronunciation")]
    Empty,
    /// A letter outside the vocabulary.
    #[error("{word}: the model does not know {letter:?}; it knows {known}")]
    Letter {
        word: String,
        letter: char,
        known: String,
    },
}

impl Vocabulary {
    fn load(tensors: &Tensors<'_>) -> Result<Vocabulary, String> {
        let format = (entry(tensors, "format")?, entry(tensors, "format_version")?);
        if format != ("gatestream.g2p", "1") {
            return Err(format!(
                "format {} {}; supported is gatestream.g2p 1",
                format.0, format.1
            ));
        }
        let names =
            |key| Ok::<_, String>(entry(tensors, key)?.split(' ').map(Into::into).collect());
        Ok(Vocabulary {
            letters: names("letters")?,
            phonemes: names("phonemes")?,
        })
    }

    /// The indices of a word's letters, upper or lower case.
    pub fn letters(&self, word: &str) -> Result<Vec<usize>, WordError> {
        if word.is_empty() {
            return Err(WordError::Empty);
        }
        let index = |letter: char| {
            let known = self.letters.iter().position(|l| l.chars().eq([letter]));
            known.ok_or_else(|| WordError::Letter {
                word: word.into(),
                letter,
                known: self.letters.join(" "),
            })
        };
        word.to_lowercase().chars().map(index).collect()
    }

    /// The names of phonemes, separated by spaces.
    pub fn spell(&self, phonemes: &[usize]) -> String {
        let names: Vec<&str> = phonemes.iter().map(|&p| &self.phonemes[p][..]).collect();
        names.join(" ")
    }
}

fn entry<'t>(tensors: &'t Tensors<'_>, key: &str) -> Result<&'t str, String> {
    let text = tensors.metadata(key);
    text.ok_or_else(|| format!("the file's metadata has no entry {key:?}"))
}

fn greedy_options(tensors: &Tensors<'_>) -> Result<GreedyOptions, String> {
    let number = |key| {
        let text = entry(tensors, key)?;
        let number = text.parse::<usize>();
        number.map_err(|e| format!("metadata {key:?}: {text:?}: {e}"))
    };
    let [bos, eos] = [number("bos_index")?, number("eos_index")?];
    Ok(GreedyOptions::new(bos, eos, number("max_output_length")?))
}
