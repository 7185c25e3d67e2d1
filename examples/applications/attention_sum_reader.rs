//! ```text
//! q    = [forward; reverse] final states of a GRU over the embedded question
//! c[t] = [forward; reverse] output of another GRU over the embedded context
//! probability of a candidate = Σ softmax(q · c)[t] over the steps t whose token it is
//! ```

use std::error::Error;

use gatestream::execute::team::SharedTeam;
use gatestream::kernels::Isa;
use gatestream::layers::{AttentionSum, Sequences};

use super::embedded::Embedder;
use super::encoder::{Encoder, Planned, Planning, on_one_team};
use super::{File, LayerTimes};

/// Chooses among candidates in each of several contexts (Kadlec and others, 2016).
pub struct AttentionSumReader {
    team: SharedTeam,
    embedder: Embedder,
    question: Encoder,
    context: Encoder,
    attention: AttentionSum,
    /// The question's states, once for each context.
    queries: Vec<f32>,
    /// `[contexts, steps]`, padded.
    tokens: Vec<usize>,
    probabilities: Vec<f32>,
    pub times: LayerTimes,
}

impl AttentionSumReader {
    /// `contexts`: their number, and their steps. Sizes decide plans; other sizes run too.
    pub fn load(
        file: &File<'_>,
        question_steps: usize,
        contexts: (usize, usize),
        planning: Planning,
    ) -> Result<AttentionSumReader, Box<dyn Error>> {
        let question = Planned::new(file.stack("question")?, (1, question_steps), planning)?;
        let context = Planned::new(file.stack("context")?, contexts, planning)?;
        let (team, [question, context]) = on_one_team(planning.cores, [question, context])?;
        Ok(AttentionSumReader {
            team,
            embedder: Embedder::new(file.matrix("embedding.weight")?),
            question,
            context,
            attention: AttentionSum::new(Isa::select()?)?,
            queries: Vec::new(),
            tokens: Vec::new(),
            probabilities: Vec::new(),
            times: LayerTimes::new(),
        })
    }

    /// The probability of each candidate, `[contexts, candidates]`, as `candidates` has them.
    pub fn choose(
        &mut self,
        question: &[usize],
        contexts: &[&[usize]],
        candidates: &[usize],
    ) -> Result<&[f32], Box<dyn Error>> {
        self.times.start();
        let x = self.embedder.run(&[question])?;
        self.times.end("embedding");
        let query = self.question.final_states(&x)?;
        self.queries.clear();
        contexts
            .iter()
            .for_each(|_| self.queries.extend_from_slice(query));
        self.times.end("question GRU");

        let x = self.embedder.run(contexts)?;
        self.tokens.clear();
        for context in contexts {
            self.tokens.extend_from_slice(context);
            let padding = x.steps - context.len();
            self.tokens.extend(std::iter::repeat_n(0, padding));
        }
        self.times.end("embedding of contexts");
        let steps = self.context.steps(&x)?;
        self.times.end("context GRU");
        let document = Sequences {
            lengths: x.lengths,
            ..steps
        };
        self.probabilities.resize(candidates.len(), 0.0);
        self.attention.run(
            &self.team,
            &self.queries,
            &document,
            &self.tokens,
            candidates,
            &mut self.probabilities,
        )?;
        self.times.end("attention sum");
        Ok(&self.probabilities)
    }

    /// The answer of the last run.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }
}
