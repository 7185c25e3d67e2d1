//! `If` and `Loop` nodes that can be decided before a run, once the shapes of the inputs are known.
//!
//! ```text
//! If      the branch that a known condition chooses takes its place
//! Loop    with a known number of iterations it becomes a `Scan`
//! ```

mod branches;
mod cone;
mod loops;

pub(crate) use branches::deciding_inputs;
pub(crate) use cone::{ancestors, cone, depends_on_values, leaves, producers, readers};
use tract_onnx::pb::GraphProto;

use crate::NetworkError;
use crate::evaluation::Evaluation;

/// Decides all nodes that can be decided.
pub(crate) fn decide(
    graph: &mut GraphProto,
    evaluation: &Evaluation<'_>,
) -> Result<(), NetworkError> {
    branches::decide_branches(graph, evaluation)?;
    loops::count_loops(graph, evaluation)
}
