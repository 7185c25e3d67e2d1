//! Recurrent layers that a file has as a loop or as single operators, as recurrent nodes.
//!
//! ```text
//! terms         values of a graph as sums, products and activations of features
//! cell          the step of an LSTM, GRU or RNN among them
//! layer         its weights and attributes as a recurrent node
//! scan          a `Scan` whose body is such a step, also with masked steps (Keras)
//! unrolled      steps in the graph itself: one, or several with the same weights
//! ```
//!
//! Only exact forms become nodes: the layer computes the same but for rounding. All others stay as
//! they are.

mod activation;
mod cell;
mod layer;
mod replacement;
mod scan;
mod terms;
mod unrolled;

use tract_onnx::pb::GraphProto;

use crate::evaluation::Evaluation;

/// Replaces all such layers of a graph, not those in bodies and branches.
pub(crate) fn fuse(graph: &mut GraphProto, evaluation: &Evaluation<'_>) {
    scan::fuse_scans(graph, evaluation);
    unrolled::fuse_steps(graph, evaluation);
}
