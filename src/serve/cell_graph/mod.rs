//! What is computed: cell types, and the graph of cells that each request unfolds into.
//!
//! A [`Cell`] is a batched computation with its weights inside. A request is a [`Graph`] of calls of cells:
//! built whole, or growing while it is computed ([`Grow`]). A graph is checked when it is submitted, and
//! what a scheduler needs of it, without the values, is [`Unfolded`].

mod cell;
mod error;
mod graph;
mod grow;
mod later;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
mod unfolded;

pub use cell::{Batch, Cell, CellError, CellId, Cells, Place, Port, Ports, PreparedCell};
pub use error::{GraphError, User};
pub use graph::{Graph, NodeId, Source};
pub(crate) use grow::PutOff;
pub use grow::{Gave, Grow, Growth};
pub(in crate::serve) use later::Resting;
pub use unfolded::{MOST_NODES, Unfolded};
