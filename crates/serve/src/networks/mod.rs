//! Cells of common networks, and the functions that unfold requests into graphs of them.
//!
//! Each network adds its cells to [`Cells`](crate::cell_graph::Cells), and then unfolds requests:
//!
//! - [`Chain`]: any forward model of this crate, over sequences that are known or still arriving;
//! - [`Whole`]: any model, bidirectional ones too, over sequences that are known;
//! - [`Seq2Seq`]: an encoder, and a decoder that reads its previous symbol; [`BeamSeq2Seq`] with
//!   several hypotheses;
//! - [`BinaryTreeLstm`] and [`ChildSumTreeLstm`]: TreeLSTMs over [`BinaryTree`]s and
//!   [`Dependencies`].
//!
//! [`run_unbatched`] specifies the response of a request; batching never changes it.

mod chain;
mod error;
mod recurrent;
mod seq2seq;
mod stack;
#[cfg(test)]
mod tests;
mod tree;
mod tree_shapes;
mod tree_weights;
mod unbatched;
mod whole;

pub use chain::{Chain, ChainCell, ChainResponse};
pub use error::NetworkError;
pub use seq2seq::{
    BeamAnswer, BeamDecoding, BeamSeq2Seq, DecoderCell, Encoder, EncoderCell, FeedPrevious,
    Seq2Seq, Until, beam_answers,
};
pub use stack::Stack;
pub use tree::{BinaryTreeLstm, ChildSumTreeLstm};
pub use tree_shapes::{BinaryTree, Dependencies, TreeChild};
pub use tree_weights::{BinaryTreeWeights, ChildSumWeights};
pub use unbatched::{UnbatchedError, UnbatchedRunner, run_unbatched};
pub use whole::{Whole, WholeCell};

/// The outputs that are the response of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// That of the last step, or of the root.
    #[default]
    Last,
    /// Those of all steps, or of all nodes, in order.
    Each,
}
