//! Attention sum: the probability that a token is the answer.
//!
//! ```text
//! weight = softmax over t of (query · memory[t])
//! probability of a token = Σ weight[t] over the steps t whose token it is
//! ```

use crate::execute::team::SharedTeam;
use crate::layers::deal::Work;
use crate::layers::error::expect;
use crate::layers::softmax::EXP_WORK;
use crate::layers::{LayerError, Sequences};
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// Chooses among tokens of a document by attention (Kadlec and others, *Text Understanding with
/// the Attention Sum Reader Network*, 2016).
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::{AttentionSum, Sequences};
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut sum = AttentionSum::new(Isa::select()?)?;
/// let document = Sequences::new(&[2.0, 2.0, 2.0, 2.0], 1, 4, 1);
/// let mut probabilities = [0.0; 2];
/// sum.run(&team, &[1.0], &document, &[7, 5, 7, 7], &[5, 7], &mut probabilities)?;
/// assert_eq!(probabilities, [0.25, 0.75]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AttentionSum {
    kernels: Box<dyn RowKernels>,
    /// `[batch, steps]`.
    weights: Vec<f32>,
}

impl AttentionSum {
    /// For the instruction set `isa`.
    ///
    /// # Errors
    /// [`LayerError::Isa`].
    pub fn new(isa: Isa) -> Result<AttentionSum, LayerError> {
        Ok(AttentionSum {
            kernels: row_kernels(isa)?,
            weights: Vec::new(),
        })
    }

    /// Writes the probability of each candidate, `[batch, candidates]`, that `queries` `[batch,
    /// features]` give it in `document`, whose `tokens` are `[batch, steps]`. `candidates` is
    /// `[batch, candidates]`. Allocates where no document before was as large.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes, [`LayerError::Length`] for a document
    /// without steps; nothing has been written then. [`LayerError::Team`].
    pub fn run(
        &mut self,
        team: &SharedTeam,
        queries: &[f32],
        document: &Sequences<'_>,
        tokens: &[usize],
        candidates: &[usize],
        probabilities: &mut [f32],
    ) -> Result<(), LayerError> {
        let Sequences {
            batch,
            steps,
            features,
            ..
        } = *document;
        document.check("document", features)?;
        expect("queries", queries.len(), batch * features)?;
        expect("tokens", tokens.len(), batch * steps)?;
        let count = probabilities.len() / batch.max(1);
        expect("probabilities", probabilities.len(), batch * count)?;
        expect("candidates", candidates.len(), probabilities.len())?;
        if probabilities.is_empty() {
            return Ok(());
        }
        self.weights.resize(batch * steps, 0.0);
        let size = batch * steps * (features + EXP_WORK + count);
        let parts = (self.weights.chunks_mut(steps))
            .zip(probabilities.chunks_mut(count))
            .enumerate();
        let kernels = &*self.kernels;
        Work::new(team, size).deal(parts, |_, (sequence, (weights, probabilities))| {
            let (weights, unused) = weights.split_at_mut(document.length(sequence));
            unused.fill(0.0);
            let query = &queries[sequence * features..][..features];
            kernels.dots(query, document.sequence(sequence), weights);
            kernels.softmax(weights);
            let tokens = &tokens[sequence * steps..][..steps];
            let candidates = &candidates[sequence * count..][..count];
            for (candidate, probability) in candidates.iter().zip(probabilities) {
                let theirs = tokens
                    .iter()
                    .zip(&*weights)
                    .filter(|(t, _)| *t == candidate);
                *probability = theirs.fold(0.0, |sum, (_, weight)| sum + weight);
            }
        })
    }

    /// The weights of the last run, `[batch, steps]`: zero past the end of a document.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }
}
