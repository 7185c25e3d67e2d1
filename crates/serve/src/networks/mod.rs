//! Ready-made cells, and the functions that unfold requests into graphs of them.
//!
//! Each network adds its cells to an engine's, and then unfolds requests:
//!
//! - [`Chain`]: any forward model of this crate, over sequences that are known or still arriving;
//! - [`Seq2Seq`]: an encoder, and a decoder that is fed what it answered before;
//! - [`BinaryTreeLstm`] and [`ChildSumTreeLstm`]: TreeLSTMs over [`BinaryTree`]s and [`Dependencies`].
//!
//! What a request's answer is, whoever computes it beside which others, is said by [`run_alone`].

mod alone;
mod chain;
mod error;
mod recurrent;
mod seq2seq;
#[cfg(test)]
mod tests;
mod tree;
mod tree_shapes;
mod tree_weights;

pub use alone::{Alone, AloneError, run_alone};
pub use chain::{Chain, ChainCell};
pub use error::NetworkError;
pub use seq2seq::{DecoderCell, EncoderCell, FeedPrevious, Seq2Seq, Until};
pub use tree::{BinaryTreeLstm, ChildSumTreeLstm};
pub use tree_shapes::{BinaryTree, Dependencies, TreeChild};
pub use tree_weights::{BinaryTreeWeights, ChildSumWeights};

/// What of a network a request is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// Of the last step, or of the root.
    #[default]
    Last,
    /// Of every step, or of every node, in order.
    Each,
}
