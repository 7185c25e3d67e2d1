//! Attention flow in both directions, between a context h and a question u.
//!
//! ```text
//! S[t][j] = w · [h[t]; u[j]; h[t] ∘ u[j]]
//! a[t]    = Σ_j softmax over j of S[t] · u[j]           from context to question
//! b       = Σ_t softmax over t of (max_j S[t][j]) · h[t]   from question to context
//! G[t]    = [h[t]; a[t]; h[t] ∘ a[t]; h[t] ∘ b]
//! ```
//!
//! `S[t][j]` is computed as `(w₃ ∘ h[t]) · u[j] + w₂ · u[j] + w₁ · h[t]`, with the three parts of
//! w.

use crate::execute::team::SharedTeam;
use crate::layers::deal::Work;
use crate::layers::error::expect;
use crate::layers::softmax::EXP_WORK;
use crate::layers::{LayerError, Sequences};
use gatestream_kernels::{Combine, Isa, RowKernels, row_kernels};

/// The attention flow layer of BiDAF (Seo and others, *Bidirectional Attention Flow for Machine
/// Comprehension*, 2017, equations 1 to 4).
///
/// A bias of the similarity would change nothing: softmax is the same for scores that all differ
/// by one number.
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::{AttentionFlow, Sequences};
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut flow = AttentionFlow::new(&[0.0, 0.0, 1.0], Isa::select()?)?;
/// let (context, question) = (Sequences::new(&[3.0], 1, 1, 1), Sequences::new(&[2.0], 1, 1, 1));
/// let mut g = [0.0; 4];
/// flow.run(&team, &context, &question, &mut g)?;
/// assert_eq!(g, [3.0, 2.0, 6.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AttentionFlow {
    /// w, `[3, features]`.
    weights: Vec<f32>,
    features: usize,
    kernels: Box<dyn RowKernels>,
    /// `[batch, context steps, question steps]`: S, then its softmax.
    scores: Vec<f32>,
    /// `[batch, question steps]`: w₂ · u.
    question_scores: Vec<f32>,
    /// `[batch, context steps]`: the greatest of S, then its softmax.
    greatest: Vec<f32>,
    /// `[batch, features]`: b.
    pooled: Vec<f32>,
}

/// The parts of a row of G.
struct Parts<'a> {
    context: &'a mut [f32],
    attended: &'a mut [f32],
    product: &'a mut [f32],
    pooled_product: &'a mut [f32],
}

impl<'a> Parts<'a> {
    fn of(row: &'a mut [f32]) -> Parts<'a> {
        let (first, second) = row.split_at_mut(row.len() / 2);
        let half = first.len() / 2;
        let (context, attended) = first.split_at_mut(half);
        let (product, pooled_product) = second.split_at_mut(half);
        Parts {
            context,
            attended,
            product,
            pooled_product,
        }
    }
}

impl AttentionFlow {
    /// With the weights w `[3 * features]` of the similarity: those of h, of u, and of their
    /// product.
    ///
    /// # Errors
    /// [`LayerError::Values`] for a number of weights that is no multiple of 3;
    /// [`LayerError::Isa`].
    pub fn new(weights: &[f32], isa: Isa) -> Result<AttentionFlow, LayerError> {
        let features = weights.len() / 3;
        expect("weights", weights.len(), 3 * features)?;
        Ok(AttentionFlow {
            weights: weights.to_vec(),
            features,
            kernels: row_kernels(isa)?,
            scores: Vec::new(),
            question_scores: Vec::new(),
            greatest: Vec::new(),
            pooled: Vec::new(),
        })
    }

    /// Features of a step of both sequences.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Writes G `[batch, context steps, 4 * features]`; rows past the end of a context are zero.
    /// Allocates where no call before was as large.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes, or another batch of questions than of
    /// contexts, [`LayerError::Length`] for a sequence without steps; nothing has been written
    /// then. [`LayerError::Team`].
    pub fn run(
        &mut self,
        team: &SharedTeam,
        context: &Sequences<'_>,
        question: &Sequences<'_>,
        g: &mut [f32],
    ) -> Result<(), LayerError> {
        let features = self.features;
        let (rows, steps) = (context.batch * context.steps, question.steps);
        context.check("context", features)?;
        question.check("question", features)?;
        expect("questions", question.batch, context.batch)?;
        expect("g", g.len(), 4 * rows * features)?;
        if g.is_empty() {
            return Ok(());
        }
        self.scores.resize(rows * steps, 0.0);
        self.greatest.resize(rows, 0.0);
        self.pooled.resize(context.batch * features, 0.0);
        self.score_questions(question);
        self.attend(team, context, question, g)?;
        self.pool(context);
        let (kernels, pooled) = (&*self.kernels, &self.pooled);
        let parts = g.chunks_mut(4 * features).enumerate();
        Work::new(team, rows * features).deal(parts, |_, (row, g)| {
            let (sequence, step) = (row / context.steps, row % context.steps);
            if step < context.length(sequence) {
                let parts = Parts::of(g);
                parts.pooled_product.copy_from_slice(parts.context);
                let pooled = &pooled[sequence * features..];
                kernels.combine(Combine::Multiply, parts.pooled_product, pooled);
            }
        })
    }

    /// `w₂ · u` of each step of each question.
    fn score_questions(&mut self, question: &Sequences<'_>) {
        let (steps, features) = (question.steps, self.features);
        (self.question_scores).resize(question.batch * steps, 0.0);
        let weights = &self.weights[features..2 * features];
        let of_sequences = self.question_scores.chunks_mut(steps).enumerate();
        for (sequence, scores) in of_sequences {
            let scores = &mut scores[..question.length(sequence)];
            let question = question.sequence(sequence);
            self.kernels.dots(weights, question, scores);
        }
    }

    /// The first three parts of G, and the greatest score of each step.
    fn attend(
        &mut self,
        team: &SharedTeam,
        context: &Sequences<'_>,
        question: &Sequences<'_>,
        g: &mut [f32],
    ) -> Result<(), LayerError> {
        let (features, steps) = (self.features, question.steps);
        let (kernels, question_scores) = (&*self.kernels, &self.question_scores);
        let (of_context, others) = self.weights.split_at(features);
        let of_product = &others[features..];
        let size = context.batch * context.steps * steps * (2 * features + EXP_WORK);
        let parts = (g.chunks_mut(4 * features))
            .zip(self.scores.chunks_mut(steps))
            .zip(&mut self.greatest)
            .enumerate();
        Work::new(team, size).deal(parts, |_, (row, ((g, scores), greatest))| {
            let (sequence, step) = (row / context.steps, row % context.steps);
            if step >= context.length(sequence) {
                return g.fill(0.0);
            }
            let h = &context.sequence(sequence)[step * features..][..features];
            let u = question.sequence(sequence);
            let scores = &mut scores[..question.length(sequence)];
            let parts = Parts::of(g);
            parts.context.copy_from_slice(h);
            // The fourth part has its place until it is computed.
            let weighted = parts.pooled_product;
            weighted.copy_from_slice(of_product);
            kernels.combine(Combine::Multiply, weighted, h);
            kernels.dots(weighted, u, scores);
            kernels.combine(Combine::Add, scores, &question_scores[sequence * steps..]);
            let mut of_step = [0.0];
            kernels.dots(of_context, h, &mut of_step);
            scores.iter_mut().for_each(|score| *score += of_step[0]);
            *greatest = kernels.max(scores);
            kernels.softmax(scores);
            kernels.weighted_sum(scores, u, parts.attended);
            parts.product.copy_from_slice(h);
            kernels.combine(Combine::Multiply, parts.product, parts.attended);
        })
    }

    /// b of each sequence.
    fn pool(&mut self, context: &Sequences<'_>) {
        let of_sequences = (self.greatest.chunks_mut(context.steps))
            .zip(self.pooled.chunks_mut(self.features))
            .enumerate();
        for (sequence, (greatest, pooled)) in of_sequences {
            let weights = &mut greatest[..context.length(sequence)];
            self.kernels.softmax(weights);
            let context = context.sequence(sequence);
            self.kernels.weighted_sum(weights, context, pooled);
        }
    }
}
