//! What surrounds the recurrent core in a model.
//!
//! - Symbols in: [`Embedding`].
//! - Features: [`Dense`], [`Mlp`], [`Highway`], [`MaxOverTime`].
//! - Attention: [`Attention`] with a dot, bilinear or additive score, [`AttentionSum`],
//!   [`AttentionFlow`].
//! - Answers: [`Softmax`], [`CosineSimilarity`], [`Argmax`], and symbols fed back by
//!   [`Greedy`] or [`Beam`].
//!
//! Their arithmetic keeps the promise of the core: the same bits whatever the batch, the number of
//! threads and the instruction set.

mod argmax;
mod attention;
mod beam;
mod deal;
mod dense;
mod dense_argmax;
mod embedding;
mod error;
mod greedy;
mod highway;
mod mlp;
mod pooling;
mod screened;
mod sequences;
mod similarity;
mod softmax;

pub use argmax::Argmax;
pub use attention::{Attention, AttentionFlow, AttentionSum, Score};
pub use beam::{Beam, BeamOptions, BeamRow, BeamSearch, Candidate, Hypothesis, best_continuations};
pub use dense::Dense;
pub use dense_argmax::{ArgmaxScratch, MAX_SYMBOLS};
pub use embedding::Embedding;
pub use error::LayerError;
pub use greedy::{DecodeError, Decoded, Greedy, GreedyOptions, argmax};
pub use highway::{Highway, HighwayWeights};
pub use mlp::Mlp;
pub use pooling::MaxOverTime;
pub use sequences::Sequences;
pub use similarity::CosineSimilarity;
pub use softmax::Softmax;
