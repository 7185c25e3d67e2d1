//! Cell types, and the graphs of cells that requests unfold into.
//!
//! A [`Cell`] is a batched computation that owns its weights. A request is a [`Graph`] of calls of
//! cells: built as a whole, or growing while it is computed ([`DynamicGraph`]). A graph is checked
//! when it is submitted; [`RequestGraph`] is the part that the scheduler needs, without values.
//!
//! A user's own cell, and requests that unfold into it (`examples/serve_in_process.rs` of
//! `gatestream-serve` has one beside an LSTM, on an engine):
//!
//! ```
//! use gatestream_scheduler::cell_graph::{
//!     Batch, Cell, CellError, CellId, Cells, Graph, WorkerEnv, Ports, PreparedCell, Source,
//! };
//!
//! /// A leaky sum: `total = keep · total + x`, one row for each running request.
//! struct Leaky {
//!     ports: Ports,
//!     keep: f32,
//! }
//!
//! impl Cell for Leaky {
//!     fn name(&self) -> &str {
//!         "leaky"
//!     }
//!
//!     fn ports(&self) -> &Ports {
//!         &self.ports
//!     }
//!
//!     fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
//!         Ok(Box::new(Prepared { keep: self.keep }))
//!     }
//! }
//!
//! struct Prepared {
//!     keep: f32,
//! }
//!
//! impl PreparedCell for Prepared {
//!     fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
//!         let ([x], [total], []) = batch.split(); // [rows, width] each
//!         for (total, x) in total.iter_mut().zip(x) {
//!             *total = self.keep * *total + x; // in place: the next batch finds it here
//!         }
//!         Ok(())
//!     }
//! }
//!
//! fn unfold(leaky: CellId, values: &[f32]) -> Graph {
//!     let (mut graph, mut total) = (Graph::new(), Source::Zeros);
//!     for value in values {
//!         let x = graph.give(&[*value]);
//!         total = graph.node(leaky, &[x, total]).output(0); // inputs, then states
//!     }
//!     graph.answer(total);
//!     graph
//! }
//!
//! let mut cells = Cells::new();
//! let ports = Ports::new().input("x", 1).state("total", 1);
//! let leaky = cells.add(Leaky { ports, keep: 0.5 });
//! let graph = unfold(leaky, &[1.0, 2.0, 3.0]).unfold(&cells)?; // checked
//! assert_eq!((graph.nodes(), graph.subgraphs()), (3, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cell;
mod cost;
mod dynamic;
mod error;
mod graph;
mod incremental;
mod ports;
mod request_graph;
#[cfg(test)]
pub(crate) mod test_graphs;
#[cfg(test)]
mod tests;

pub use cell::{Batch, Cell, CellError, CellId, Cells, PreparedCell, RowLayout, WorkerEnv};
pub use cost::{BatchSizes, BatchTime, CellCost};
pub use dynamic::{DynamicGraph, Growth, NodeOutputs};
pub use error::{GraphError, Reader};
pub use graph::{Graph, Mark, NodeId, Source};
pub use incremental::Resident;
pub use ports::{Port, Ports};
pub use request_graph::{MAX_NODES, RequestGraph};
