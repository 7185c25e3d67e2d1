//! The cells of a model in an engine.

use crate::cell_graph::{CellId, Cells};
use crate::scheduler::ModelKey;

/// The cells of a model. Its graphs number them from 0; tasks have their ids among the cells of all
/// models of the engine.
pub(crate) struct ModelCells {
    pub key: ModelKey,
    pub cells: Cells,
    /// The first cell among those of the engine.
    pub first: CellId,
}

impl ModelCells {
    /// The only model of an engine.
    #[cfg(all(test, not(loom)))]
    pub fn alone(cells: Cells) -> std::sync::Arc<ModelCells> {
        std::sync::Arc::new(ModelCells {
            key: ModelKey::default(),
            cells,
            first: CellId::new(0),
        })
    }
}
