//! What the network is: cells as data, layers, validated weights. No speed here.
//!
//! A [`Model`] is a stack of [`Layer`]s; a layer runs one [`Direction`] or two over the sequence; a
//! direction is one [`Cell`] with its [`Weights`]. Gates are kept in PyTorch's order everywhere
//! (LSTM: input, forget, candidate, output; GRU: reset, update, new); loaders reorder.

use std::path::Path;

mod arrays;
pub mod builder;
mod cell;
mod error;
mod interface;
mod layer;
mod matrix;
#[cfg(feature = "onnx")]
mod onnx;
mod precision;
mod quantised;
#[cfg(feature = "safetensors")]
mod safetensors;
mod sequence;
mod weights;

#[cfg(feature = "safetensors")]
pub use self::safetensors::{SafetensorsOptions, Tensors};
pub use arrays::{Array, ArrayError, ArrayMap, Elements, OwnedInput, OwnedOutput};
pub use builder::{Gru, Lstm, Rnn};
pub use cell::*;
pub use error::{LoadError, ModelError, SaveError};
pub use interface::{Axis, Interface, Port, Role};
pub use layer::{Direction, Layer, Merge};
pub use matrix::Matrix;
pub use precision::Precision;
pub use quantised::{MatrixKind, QuantisedMatrix, Requantised};
pub use sequence::{Input, InputError, Layout, Output, Signature};
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
    /// The model in the file at `path`, whose ending says what it is: `.onnx`
    /// (`Model::from_onnx`) or `.safetensors` (`Model::from_safetensors`, default options). Upper
    /// and lower case are the same. What a state dict cannot say (a prefix, relu, batch-first) is for
    /// `Model::from_safetensors` and its options; sequences are taken in [`Model::layout`]. A format is
    /// read only where this crate's feature of that name is on.
    ///
    /// # Errors
    /// [`LoadError::UnknownFormat`] for another ending, [`LoadError::Io`] when the file cannot be
    /// read, and what the loader refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, LoadError> {
        let path = path.as_ref();
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        #[cfg(feature = "onnx")]
        if ending.eq_ignore_ascii_case("onnx") {
            return Model::from_onnx(&read(path)?);
        }
        #[cfg(feature = "safetensors")]
        if ending.eq_ignore_ascii_case("safetensors") {
            return Model::from_safetensors(&read(path)?, &SafetensorsOptions::default());
        }
        let _ = ending;
        Err(LoadError::UnknownFormat {
            path: path.into(),
            supported: supported(),
        })
    }

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

#[cfg(any(feature = "onnx", feature = "safetensors"))]
fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|source| LoadError::Io {
        path: path.into(),
        source,
    })
}

/// The endings that this build reads, for people.
fn supported() -> String {
    let endings: &[&str] = &[
        #[cfg(feature = "onnx")]
        ".onnx",
        #[cfg(feature = "safetensors")]
        ".safetensors",
    ];
    match endings {
        [] => "a build with the feature safetensors or onnx (this one reads no files)".into(),
        _ => endings.join(" or "),
    }
}
