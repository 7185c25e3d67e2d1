//! A stack of layers of any directions.

use std::sync::Arc;

use super::{Chain, ChainCell, NetworkError, Outputs, Whole, WholeCell};
use crate::cell_graph::{CellId, Cells, Graph};
use gatestream::Plan;
use gatestream::model::Model;

/// A stack of recurrent layers: a [`Chain`] of its steps if each direction is forward, else a
/// [`Whole`] run.
///
/// ```
/// use std::sync::Arc;
/// use gatestream::model::{Gru, Merge};
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{Outputs, Stack, run_unbatched};
///
/// let model = Gru::new(2, 8).bidirectional(Merge::Concat).random(1)?;
/// let mut cells = Cells::new();
/// let stack = Stack::add(&mut cells, Arc::new(model), None, 100)?;
/// assert!(matches!(stack, Stack::Whole(_)));
/// let graph = stack.unfold(&[0.1, 0.2, 0.3, 0.4], None, Outputs::Each)?;
/// assert_eq!(run_unbatched(&cells, graph, None)?.len(), 2 * 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Stack {
    /// One step at a time, in batches with other requests.
    Chain(Chain),
    /// Whole sequences.
    Whole(Whole),
}

impl Stack {
    /// Adds the cell of the model, with this plan instead of an estimated one. `max_steps` bounds
    /// the sequences of a whole run; a chain has no bound.
    ///
    /// # Errors
    /// [`NetworkError::Plan`].
    pub fn add(
        cells: &mut Cells,
        model: Arc<Model>,
        plan: Option<Plan>,
        max_steps: usize,
    ) -> Result<Stack, NetworkError> {
        Ok(if model.is_forward() {
            let cell = ChainCell::new(model)?;
            let cell = match plan {
                Some(plan) => cell.with_plan(plan)?,
                None => cell,
            };
            Stack::Chain(Chain::add(cells, cell))
        } else {
            let cell = WholeCell::new(model, max_steps);
            let cell = match plan {
                Some(plan) => cell.with_plan(plan)?,
                None => cell,
            };
            Stack::Whole(Whole::add(cells, cell))
        })
    }

    /// The cell.
    pub fn cell(&self) -> CellId {
        match self {
            Stack::Chain(chain) => chain.cell(),
            Stack::Whole(whole) => whole.cell(),
        }
    }

    /// The graph of a sequence `xs` `[T, E]`: [`Chain::unfold`] or [`Whole::unfold`].
    ///
    /// # Errors
    /// As these.
    pub fn unfold(
        &self,
        xs: &[f32],
        initial: Option<&[&[f32]]>,
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        match self {
            Stack::Chain(chain) => chain.unfold(xs, initial, outputs),
            Stack::Whole(whole) => whole.unfold(xs, initial, outputs),
        }
    }
}
