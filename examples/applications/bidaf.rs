//! ```text
//! x(text) = two highway layers of the embedded text
//! u, h    = phrase(x(question)), phrase(x(context))           a bidirectional LSTM
//! g0      = attention flow of h and u
//! g1      = modeling(g0)                                      two bidirectional LSTM layers
//! start   = softmax over t of (w · [g0; g1] + b)
//! a1      = Σ_t start[t] · g1[t]
//! g2      = output([g0; g1; a1; g1 ∘ a1])                     a bidirectional LSTM
//! end     = softmax over t of (w' · [g0; g2] + b')
//! ```

use std::error::Error;

use gatestream::execute::team::SharedTeam;
use gatestream::kernels::{Activation, Combine, Isa, RowKernels, row_kernels};
use gatestream::layers::{AttentionFlow, Embedding, Highway, HighwayWeights, Sequences};
use gatestream::model::Matrix;

use super::encoder::{Encoder, Planned, Planning, on_one_team};
use super::{File, LayerTimes};

/// Finds the answer to a question in a context (Seo and others, 2017).
pub struct Bidaf {
    team: SharedTeam,
    embedding: Embedding,
    highway: Highway,
    phrase: Encoder,
    flow: AttentionFlow,
    modeling: Encoder,
    output: Encoder,
    start: Pointer,
    end: Pointer,
    kernels: Box<dyn RowKernels>,
    /// Context and question, one after the other, without padding.
    embedded: Vec<f32>,
    /// `[2, steps, features]`: the same, padded.
    texts: Vec<f32>,
    /// `[context steps, 8 * hidden]`.
    g0: Vec<f32>,
    /// `[context steps, 14 * hidden]`.
    x: Vec<f32>,
    /// `[2 * hidden]`.
    a1: Vec<f32>,
    pub times: LayerTimes,
}

/// A softmax over the steps, of the dot products with a row of weights.
struct Pointer {
    weights: Vec<f32>,
    bias: f32,
    /// Scores of g0, then the probabilities.
    probabilities: Vec<f32>,
    /// Scores of the other part.
    others: Vec<f32>,
}

impl Pointer {
    fn load(file: &File<'_>, name: &str) -> Result<Pointer, Box<dyn Error>> {
        let bias = file.vector(&format!("{name}.bias"))?;
        Ok(Pointer {
            weights: file.values(&format!("{name}.weight"))?,
            bias: *bias.first().ok_or("no bias")?,
            probabilities: Vec::new(),
            others: Vec::new(),
        })
    }

    /// Takes rows of `[g0; g]`, as two slices.
    fn run(&mut self, kernels: &dyn RowKernels, steps: usize, g0: &[f32], g: &[f32]) {
        let (of_g0, of_g) = self.weights.split_at(g0.len() / steps);
        self.probabilities.resize(steps, 0.0);
        self.others.resize(steps, 0.0);
        kernels.dots(of_g0, g0, &mut self.probabilities);
        kernels.dots(of_g, g, &mut self.others);
        kernels.combine(Combine::Add, &mut self.probabilities, &self.others);
        self.probabilities
            .iter_mut()
            .for_each(|score| *score += self.bias);
        kernels.softmax(&mut self.probabilities);
    }
}

impl Bidaf {
    /// The numbers of steps decide plans; texts of other lengths run too.
    pub fn load(
        file: &File<'_>,
        question_steps: usize,
        context_steps: usize,
        planning: Planning,
    ) -> Result<Bidaf, Box<dyn Error>> {
        let texts = (2, question_steps.max(context_steps));
        let context = (1, context_steps);
        let planned = [
            Planned::new(file.stack("phrase")?, texts, planning)?,
            Planned::new(file.stack("modeling")?, context, planning)?,
            Planned::new(file.stack("output")?, context, planning)?,
        ];
        let (team, [phrase, modeling, output]) = on_one_team(planning.cores, planned)?;
        let isa = Isa::select()?;
        Ok(Bidaf {
            embedding: Embedding::new(file.matrix("embedding.weight")?),
            highway: highway(file, &team, isa)?,
            phrase,
            flow: AttentionFlow::new(&file.vector("flow.weights")?, isa)?,
            modeling,
            output,
            start: Pointer::load(file, "start")?,
            end: Pointer::load(file, "end")?,
            kernels: row_kernels(isa)?,
            embedded: Vec::new(),
            texts: Vec::new(),
            g0: Vec::new(),
            x: Vec::new(),
            a1: Vec::new(),
            times: LayerTimes::new(),
            team,
        })
    }

    /// Leaves the probability that the answer starts, and that it ends, at each step of the
    /// context.
    pub fn find(&mut self, question: &[usize], context: &[usize]) -> Result<(), Box<dyn Error>> {
        self.times.start();
        let steps = context.len().max(question.len());
        self.embed(question, context, steps)?;
        self.times.end("embedding and highway");

        let features = self.embedding.features();
        let lengths = [context.len(), question.len()];
        let texts = Sequences::new(&self.texts, 2, steps, features).lengths(&lengths);
        let phrases = self.phrase.steps(&texts)?;
        self.times.end("phrase LSTM");

        let steps = context.len();
        let features = phrases.features;
        let (h, u) = phrases.values.split_at(phrases.steps * features);
        let h = Sequences::new(&h[..steps * features], 1, steps, features);
        let u = &u[..question.len() * features];
        let u = Sequences::new(u, 1, question.len(), features);
        self.g0.resize(4 * h.values.len(), 0.0);
        self.flow.run(&self.team, &h, &u, &mut self.g0)?;
        self.times.end("attention flow");

        let g0 = Sequences::new(&self.g0, 1, steps, 4 * features);
        let g1 = self.modeling.steps(&g0)?;
        self.times.end("modeling LSTM");

        let kernels = &*self.kernels;
        self.start.run(kernels, steps, g0.values, g1.values);
        self.a1.resize(features, 0.0);
        kernels.weighted_sum(&self.start.probabilities, g1.values, &mut self.a1);
        self.x.resize(steps * 7 * features, 0.0);
        let rows = (g0.values.chunks(4 * features)).zip(g1.values.chunks(features));
        for (x, (g0, g1)) in self.x.chunks_mut(7 * features).zip(rows) {
            let (first, others) = x.split_at_mut(4 * features);
            first.copy_from_slice(g0);
            let (second, others) = others.split_at_mut(features);
            second.copy_from_slice(g1);
            let (third, product) = others.split_at_mut(features);
            third.copy_from_slice(&self.a1);
            product.copy_from_slice(g1);
            kernels.combine(Combine::Multiply, product, &self.a1);
        }
        let x = Sequences::new(&self.x, 1, steps, 7 * features);
        let g2 = self.output.steps(&x)?;
        self.end.run(kernels, steps, g0.values, g2.values);
        self.times.end("output LSTM");
        Ok(())
    }

    /// Fills `texts`.
    fn embed(
        &mut self,
        question: &[usize],
        context: &[usize],
        steps: usize,
    ) -> Result<(), Box<dyn Error>> {
        let features = self.embedding.features();
        let size = context.len() * features;
        self.embedded.resize(size + question.len() * features, 0.0);
        let (of_context, of_question) = self.embedded.split_at_mut(size);
        self.embedding.run(context, of_context)?;
        self.embedding.run(question, of_question)?;
        self.highway.run(&self.team, &mut self.embedded)?;
        self.texts.resize(2 * steps * features, 0.0);
        let (of_context, of_question) = self.embedded.split_at(size);
        self.texts[..size].copy_from_slice(of_context);
        self.texts[steps * features..][..of_question.len()].copy_from_slice(of_question);
        Ok(())
    }

    /// The probabilities that the answer starts at each step.
    pub fn start(&self) -> &[f32] {
        &self.start.probabilities
    }

    /// The probabilities that the answer ends at each step.
    pub fn end(&self) -> &[f32] {
        &self.end.probabilities
    }
}

fn highway(file: &File<'_>, team: &SharedTeam, isa: Isa) -> Result<Highway, Box<dyn Error>> {
    let mut tensors = Vec::new();
    while file.has(&format!("highway.{}.gate.weight", tensors.len())) {
        let part = |part: &str| -> Result<(Matrix, Vec<f32>), Box<dyn Error>> {
            let name = format!("highway.{}.{part}", tensors.len());
            let bias = file.vector(&format!("{name}.bias"))?;
            Ok((file.matrix(&format!("{name}.weight"))?, bias))
        };
        tensors.push((part("transform")?, part("gate")?));
    }
    let layers: Vec<HighwayWeights<'_>> = tensors
        .iter()
        .map(|(transform, gate)| HighwayWeights {
            transform: &transform.0,
            transform_bias: &transform.1,
            gate: &gate.0,
            gate_bias: &gate.1,
            activation: Activation::Relu,
        })
        .collect();
    Ok(Highway::new(team, &layers, isa)?)
}
