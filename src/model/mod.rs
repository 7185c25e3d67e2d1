//! What the network is: cells as data, layers, validated weights. No speed here.
//!
//! A [`Model`] is a stack of [`Layer`]s; a layer runs one [`Direction`] or two over the sequence; a
//! direction is one [`Cell`] with its [`Weights`]. Gates are kept in PyTorch's order everywhere
//! (LSTM: input, forget, candidate, output; GRU: reset, update, new); loaders reorder.

pub mod builder;
mod cell;
mod error;
mod interface;
mod layer;
mod weights;

pub use builder::{Gru, Lstm, Rnn};
pub use cell::{Cell, CellKind, ResetForm};
pub use error::{LoadError, ModelError};
pub use interface::{Axis, Interface, Port, Role};
pub use layer::{Direction, Layer, Merge};
pub use weights::{Matrix, Peepholes, Weights};

pub use crate::kernels::Activation;

/// A recurrent network: one or more layers, each feeding the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    layers: Vec<Layer>,
    interface: Interface,
}

impl Model {
    /// A stack of `layers`, first to last, with the interface of PyTorch's modules
    /// (see [`Interface::pytorch`]).
    ///
    /// # Errors
    /// No layer, or a layer whose input size differs from the output size of the one before it.
    pub fn new(layers: Vec<Layer>) -> Result<Model, ModelError> {
        let interface = Interface::pytorch(&layers);
        Model::with_interface(layers, interface)
    }

    /// As [`Model::new`], with the named inputs and outputs that a file gave.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn with_interface(layers: Vec<Layer>, interface: Interface) -> Result<Model, ModelError> {
        if layers.is_empty() {
            return Err(ModelError::NoLayers);
        }
        for (below, pair) in layers.windows(2).enumerate() {
            if pair[0].output_size() != pair[1].input_size() {
                return Err(ModelError::LayersDoNotFit {
                    layer: below + 1,
                    input: pair[1].input_size(),
                    below: pair[0].output_size(),
                });
            }
        }
        Ok(Model { layers, interface })
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The named inputs and outputs, with their axes.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Features of one input step.
    pub fn input_size(&self) -> usize {
        self.layers[0].input_size()
    }

    /// Features of one output step: the last layer's, both directions counted where they are
    /// concatenated.
    pub fn output_size(&self) -> usize {
        self.layers[self.layers.len() - 1].output_size()
    }

    /// Whether any layer carries a cell state (LSTM).
    pub fn has_cell_state(&self) -> bool {
        self.layers.iter().any(|l| l.kind() == CellKind::Lstm)
    }

    /// Values of hidden state per sequence: over all layers and directions, in that order.
    pub fn hidden_state_size(&self) -> usize {
        let directions = self.layers.iter().flat_map(Layer::directions);
        directions.map(Direction::output_size).sum()
    }

    /// Values of cell state per sequence, LSTM directions only.
    pub fn cell_state_size(&self) -> usize {
        let directions = self.layers.iter().flat_map(Layer::directions);
        directions.map(Direction::cell_state_size).sum()
    }

    /// Bytes of all weights and biases as `f32`.
    pub fn weight_bytes(&self) -> usize {
        let directions = self.layers.iter().flat_map(Layer::directions);
        4 * directions.map(|d| d.weights().values()).sum::<usize>()
    }
}
