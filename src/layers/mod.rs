//! What surrounds the recurrent core in a model: symbols in ([`Embedding`]), logits out
//! ([`Dense`]), or only the symbol of the greatest ([`Argmax`]), and answers fed back ([`Greedy`]).
//!
//! Their arithmetic keeps the promise of the core: the same bits whatever the batch and the
//! instruction set.

mod argmax;
mod dense;
mod dense_argmax;
mod embedding;
mod error;
mod greedy;
mod screened;

pub use argmax::Argmax;
pub use dense::Dense;
pub use dense_argmax::{ArgmaxScratch, MAX_SYMBOLS};
pub use embedding::Embedding;
pub use error::LayerError;
pub use greedy::{DecodeError, Decoded, Greedy, GreedyOptions, argmax};
