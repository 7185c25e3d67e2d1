//! What the network is: cells as data, layers, validated weights. No speed here.
//!
//! A [`Model`] is a stack of [`Layer`]s; a layer runs one [`Direction`] or two over the sequence; a
//! direction is one [`Cell`] with its [`Weights`]. Gates are kept in PyTorch's order everywhere
//! (LSTM: input, forget, candidate, output; GRU: reset, update, new); loaders reorder.

mod arrays;
pub mod builder;
mod cell;
mod error;
mod interface;
mod layer;
mod matrix;
#[cfg(feature = "safetensors")]
mod metadata;
#[cfg(feature = "onnx")]
mod onnx;
mod open;
mod precision;
mod quantised;
#[cfg(feature = "safetensors")]
mod safetensors;
#[cfg(feature = "safetensors")]
mod save;
mod sequence;
#[cfg(feature = "safetensors")]
mod stack;
#[cfg(feature = "safetensors")]
mod tensors;
mod weights;

#[cfg(feature = "safetensors")]
pub use self::safetensors::SafetensorsOptions;
pub use arrays::{Array, ArrayError, ArrayMap, Elements, OwnedInput, OwnedOutput};
pub use builder::{Gru, Lstm, Rnn};
pub use cell::{Cell, CellKind, ResetForm};
pub use error::{LoadError, ModelError, SaveError};
pub use interface::{Axis, Interface, Port, Role};
pub use layer::{Direction, Layer, Merge};
pub use matrix::Matrix;
pub use precision::Precision;
pub use quantised::{MatrixKind, QuantisedMatrix, Requantised};
pub use sequence::{Input, InputError, Layout, Output, Signature};
#[cfg(feature = "safetensors")]
pub use tensors::Tensors;
pub use weights::{Peepholes, Weights};

pub use crate::kernels::Activation;

/// A recurrent network: one or more layers, each feeding the next.
#[derive(Clone, Debug)]
pub struct Model {
    layers: Vec<Layer>,
    interface: Interface,
    /// Of matrices that a file held in 8 bits.
    quantised: Vec<QuantisedMatrix>,
}

/// Equal layers and interfaces. Where their numbers come from ([`Model::quantised`]) changes no answer.
impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        self.layers == other.layers && self.interface == other.interface
    }
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
    /// As [`Model::new`]; [`ModelError::Interface`] for an interface that breaks one of the rules at
    /// [`Interface`].
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
        interface.check(&layers)?;
        Ok(Model {
            layers,
            interface,
            quantised: Vec::new(),
        })
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The named inputs and outputs, with their axes.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Bytes of all weights and biases, in the precision they have.
    pub fn weight_bytes(&self) -> usize {
        let directions = self.layers.iter().flat_map(Layer::directions);
        directions.map(|d| d.weights().bytes()).sum::<usize>()
    }
}
