//! Attention: for each query, a weighted mean of a memory's steps.
//!
//! ```text
//! score[t] = query · memory[t]                          dot (Luong and others, 2015)
//!          = (W query) · memory[t]                      bilinear, Luong's "general"
//!          = v · tanh(Wq query + b + Wk memory[t])      additive (Bahdanau and others, 2015)
//! weight   = softmax(score)
//! context  = Σ_t weight[t] · memory[t]
//! ```

mod flow;
mod sum;

pub use flow::AttentionFlow;
pub use sum::AttentionSum;

use super::deal::Work;
use super::error::expect;
use super::softmax::EXP_WORK;
use super::{Dense, LayerError, Sequences};
use crate::execute::team::SharedTeam;
use crate::model::{Activation, Matrix};
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// How well a query and a step of the memory agree.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Score<'a> {
    /// `scale · (query · memory)`.
    Dot {
        /// Features of both.
        features: usize,
        /// 1, or `1 / sqrt(features)` for scaled attention.
        scale: f32,
    },
    /// `(W query) · memory`.
    Bilinear {
        /// `[memory features, query features]`: a `torch.nn.Linear` of the query, without bias.
        weights: &'a Matrix,
    },
    /// `v · tanh(Wq query + b + Wk memory)`.
    Additive {
        /// Wq `[units, query features]`.
        query: &'a Matrix,
        /// Wk `[units, memory features]`.
        memory: &'a Matrix,
        /// b `[units]`: the sum of the two biases, where both have one.
        bias: &'a [f32],
        /// v `[units]`.
        score: &'a [f32],
    },
}

enum PackedScore {
    Dot {
        scale: f32,
    },
    Bilinear {
        query: Dense,
    },
    Additive {
        query: Dense,
        memory: Dense,
        score: Vec<f32>,
    },
}

/// Attention of queries to a memory.
///
/// The memory is set once for any number of runs: a decoder asks at each step.
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::{Attention, Score, Sequences};
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let score = Score::Dot { features: 2, scale: 1.0 };
/// let mut attention = Attention::new(&team, score, Isa::select()?)?;
/// // Of three steps, the query is far nearer to the second.
/// let memory = [0.0, 1.0, 30.0, 2.0, -1.0, 3.0];
/// attention.set_memory(&team, &Sequences::new(&memory, 1, 3, 2))?;
/// let mut context = [0.0; 2];
/// attention.run(&team, &Sequences::new(&[1.0, 0.0], 1, 1, 2), &mut context)?;
/// assert_eq!(context, [30.0, 2.0]);
/// assert!(attention.weights()[0] < 1e-12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Attention {
    score: PackedScore,
    query_features: usize,
    memory_features: usize,
    kernels: Box<dyn RowKernels>,
    memory: Memory,
    /// `[batch, queries, key features]`, unless the score is the dot product.
    projected: Vec<f32>,
    /// `[batch, queries, steps]`.
    weights: Vec<f32>,
}

#[derive(Default)]
struct Memory {
    /// `[batch, steps, features]`.
    values: Vec<f32>,
    /// `[batch, steps, units]` for additive scores.
    keys: Vec<f32>,
    lengths: Vec<usize>,
    steps: usize,
}

impl Memory {
    /// The rows of one sequence, of `values` or `keys`.
    fn rows<'a>(&self, of: &'a [f32], sequence: usize, width: usize) -> &'a [f32] {
        &of[sequence * self.steps * width..][..self.lengths[sequence] * width]
    }
}

impl Attention {
    /// Packs the weights of `score` on `team`. The memory has no sequences yet.
    ///
    /// # Errors
    /// [`LayerError::DoesNotFit`] unless query and memory are projected to the same size; as
    /// [`Dense::on_team`].
    pub fn new(team: &SharedTeam, score: Score<'_>, isa: Isa) -> Result<Attention, LayerError> {
        let no_bias = |weights: &Matrix| vec![0.0; weights.rows()];
        let (score, query_features, memory_features) = match score {
            Score::Dot { features, scale } => (PackedScore::Dot { scale }, features, features),
            Score::Bilinear { weights } => {
                let query = Dense::on_team(weights, &no_bias(weights), isa, team)?;
                (
                    PackedScore::Bilinear { query },
                    weights.cols(),
                    weights.rows(),
                )
            }
            Score::Additive {
                query,
                memory,
                bias,
                score,
            } => {
                expect("rows of the memory's weights", memory.rows(), query.rows())?;
                expect("score", score.len(), query.rows())?;
                let sizes = (query.cols(), memory.cols());
                let score = PackedScore::Additive {
                    query: Dense::on_team(query, bias, isa, team)?,
                    memory: Dense::on_team(memory, &no_bias(memory), isa, team)?,
                    score: score.to_vec(),
                };
                (score, sizes.0, sizes.1)
            }
        };
        Ok(Attention {
            score,
            query_features,
            memory_features,
            kernels: row_kernels(isa)?,
            memory: Memory::default(),
            projected: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Features of a query.
    pub fn query_features(&self) -> usize {
        self.query_features
    }

    /// Features of a step of the memory, and of a context.
    pub fn memory_features(&self) -> usize {
        self.memory_features
    }

    /// Copies `memory`, and computes what all queries need of it. Allocates where no memory before
    /// was as large.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes, [`LayerError::Length`] for a sequence
    /// without steps; the memory is as before then. [`LayerError::Team`].
    pub fn set_memory(
        &mut self,
        team: &SharedTeam,
        memory: &Sequences<'_>,
    ) -> Result<(), LayerError> {
        memory.check("memory", self.memory_features)?;
        let Memory {
            values,
            keys,
            lengths,
            steps,
        } = &mut self.memory;
        values.clear();
        values.extend_from_slice(memory.values);
        lengths.clear();
        lengths.extend((0..memory.batch).map(|sequence| memory.length(sequence)));
        *steps = memory.steps;
        if let PackedScore::Additive { memory, .. } = &self.score {
            keys.resize(lengths.len() * *steps * memory.outputs(), 0.0);
            memory.run_on(team, values, keys)?;
        }
        Ok(())
    }

    /// Writes the context of each query, `[batch, queries, memory features]`. The memory has as
    /// many sequences as `queries`, whose steps are the queries of one sequence. Contexts and
    /// weights past the last query of a sequence are zero. Allocates where no call before had as
    /// many queries.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes, or another batch than the memory's;
    /// nothing has been written then. [`LayerError::Team`].
    pub fn run(
        &mut self,
        team: &SharedTeam,
        queries: &Sequences<'_>,
        context: &mut [f32],
    ) -> Result<(), LayerError> {
        let (memory, kernels) = (&self.memory, &*self.kernels);
        let features = self.memory_features;
        queries.check("queries", self.query_features)?;
        expect(
            "sequences of the memory",
            memory.lengths.len(),
            queries.batch,
        )?;
        let rows = queries.batch * queries.steps;
        expect("context", context.len(), rows * features)?;
        if rows == 0 || features == 0 {
            return Ok(());
        }
        self.weights.resize(rows * memory.steps, 0.0);
        let (keys, width) = match &self.score {
            PackedScore::Additive { memory: keys, .. } => (&memory.keys, keys.outputs()),
            _ => (&memory.values, features),
        };
        let projected = match &self.score {
            PackedScore::Dot { .. } => queries.values,
            PackedScore::Bilinear { query } | PackedScore::Additive { query, .. } => {
                self.projected.resize(rows * query.outputs(), 0.0);
                query.run_on(team, queries.values, &mut self.projected)?;
                &self.projected
            }
        };
        let size = rows * memory.steps * (features + width + EXP_WORK);
        let parts = (context.chunks_mut(features))
            .zip(self.weights.chunks_mut(memory.steps))
            .enumerate();
        Work::new(team, size).deal(parts, |_, (row, (context, weights))| {
            let (sequence, step) = (row / queries.steps, row % queries.steps);
            if step >= queries.length(sequence) {
                weights.fill(0.0);
                return context.fill(0.0);
            }
            let (used, unused) = weights.split_at_mut(memory.lengths[sequence]);
            unused.fill(0.0);
            let query = &projected[row * width..][..width];
            let keys = memory.rows(keys, sequence, width);
            match &self.score {
                PackedScore::Additive { score, .. } => {
                    kernels.additive_scores(query, keys, score, used);
                }
                _ => kernels.dots(query, keys, used),
            }
            if let PackedScore::Dot { scale } = self.score
                && scale != 1.0
            {
                let beta = 0.0;
                kernels.activate(Activation::Affine { alpha: scale, beta }, used);
            }
            kernels.softmax(used);
            let values = memory.rows(&memory.values, sequence, features);
            kernels.weighted_sum(used, values, context);
        })
    }

    /// The weights of the last run, `[batch, queries, steps of the memory]`: zero past the end of
    /// a sequence.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }
}
