//! The network: cells as data, layers, checked weights, and the loaders that read them.
//!
//! A [`Model`] is a stack of [`Layer`]s. A layer runs one [`Direction`] or two over the sequence. A
//! direction is one [`Cell`] with its [`Weights`]. Gates always have PyTorch's order (LSTM: input,
//! forget, candidate, output; GRU: reset, update, new); loaders reorder other formats.

use std::path::Path;

mod arrays;
pub mod builder;
mod cell;
mod error;
mod files;
mod interface;
mod layer;
mod matrix;
#[cfg(feature = "onnx")]
mod onnx;
mod precision;
#[cfg(feature = "pytorch")]
mod pytorch;
mod quantised;
#[cfg(feature = "safetensors")]
mod safetensors;
mod sequence;
mod step_weights;
mod weights;

#[cfg(feature = "safetensors")]
pub use self::safetensors::{SafetensorsOptions, Tensors};
pub use arrays::{Array, ArrayError, ArrayMap, Elements, OwnedInput, OwnedOutput};
pub use builder::{Builder, Gru, Lstm, Rnn};
pub use cell::*;
pub use error::{LoadError, ModelError, SaveError};
pub use files::FileKind;
#[cfg(feature = "safetensors")]
pub use files::TensorFile;
pub use interface::{Axis, Interface, Port, Role};
pub use layer::{Direction, Layer, Merge};
pub use matrix::Matrix;
#[cfg(feature = "onnx")]
pub use onnx::{AttributeValue, OpAttribute, OpWeights, RecurrentAxes, RecurrentOp};
pub use precision::{Precision, UnknownPrecision};
pub use quantised::{MatrixKind, QuantisedMatrix, Requantised};
pub use sequence::{Input, InputError, Layout, Output, Signature};
pub(crate) use step_weights::StepWeights;
pub use weights::{Peepholes, Weights};

pub use gatestream_kernels::Activation;

/// A recurrent network: one or more layers, where each takes the output of the one before it.
///
/// ```
/// use gatestream::model::{Input, Lstm, Merge, Output};
/// use gatestream::reference;
///
/// let model = Lstm::new(40, 128).layers(2).bidirectional(Merge::Concat).random(7)?;
/// let (steps, batch) = (10, 3);
/// let x = vec![0.1; steps * batch * model.signature().input];
/// let mut y = vec![0.0; steps * batch * model.signature().output];
/// reference::run(&model, &Input::new(&x, steps, batch), &mut Output::new(&mut y))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    layers: Vec<Layer>,
    interface: Interface,
    /// The matrices that the file stored in 8 bits.
    quantised: Vec<QuantisedMatrix>,
}

/// Compares layers and interfaces. [`Model::quantised`] is ignored, because it changes no output.
impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        self.layers == other.layers && self.interface == other.interface
    }
}

impl Model {
    /// Reads the model in the file at `path`. Its bytes tell the format, whatever its ending
    /// ([`FileKind`]): ONNX (`Model::from_onnx`), safetensors (`Model::from_safetensors` with
    /// default options), or a checkpoint of PyTorch (`Model::from_pytorch`). A file of a set, or
    /// the set's index, stands for all of its files (`TensorFile`). Use `Model::open_with` for what
    /// a state dict does not state: a prefix, relu, batch first. Each format needs the crate
    /// feature of the same name.
    ///
    /// # Errors
    /// Those of [`FileKind::of`]; [`LoadError::UnknownFormat`] for a format whose feature is off;
    /// [`LoadError::Io`] if the file cannot be read; and all errors of the loader.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, LoadError> {
        let path = path.as_ref();
        match FileKind::of(path)? {
            #[cfg(feature = "onnx")]
            FileKind::Onnx => Model::from_onnx(&files::read(path)?),
            #[cfg(feature = "safetensors")]
            kind if kind.holds_tensors() => {
                let file = TensorFile::read(path)?;
                Model::from_tensors(&file.tensors()?, &SafetensorsOptions::default())
            }
            #[cfg(not(all(feature = "onnx", feature = "safetensors")))]
            _ => Err(files::unknown(path)),
            #[cfg(all(feature = "onnx", feature = "safetensors"))]
            _ => unreachable!("all other kinds hold tensors"),
        }
    }

    /// As [`Model::open`], with options for a file of tensors.
    ///
    /// # Errors
    /// As [`Model::open`]; [`LoadError::Options`] for options of an ONNX file.
    #[cfg(feature = "safetensors")]
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &SafetensorsOptions,
    ) -> Result<Model, LoadError> {
        let path = path.as_ref();
        match FileKind::of(path)? {
            FileKind::Onnx if *options != SafetensorsOptions::default() => Err(LoadError::Options),
            FileKind::Onnx => Model::open(path),
            _ => Model::from_tensors(&TensorFile::read(path)?.tensors()?, options),
        }
    }

    /// A stack of `layers`, first to last, with the interface of PyTorch's modules
    /// (see [`Interface::pytorch`]).
    ///
    /// # Errors
    /// [`ModelError::NoLayers`] for an empty stack, [`ModelError::LayersDoNotFit`] if the input
    /// size of a layer differs from the output size of the layer before it.
    pub fn new(layers: Vec<Layer>) -> Result<Model, ModelError> {
        let interface = Interface::pytorch(&layers);
        Model::with_interface(layers, interface)
    }

    /// As [`Model::new`], with the given named inputs and outputs.
    ///
    /// # Errors
    /// As [`Model::new`]; [`ModelError::Interface`] if the interface breaks a rule of
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

    /// The same model, where each `clip` also bounds the input of an LSTM's output activation:
    /// [`Direction::clipping_output`] for all directions.
    #[must_use]
    pub fn clipping_outputs(mut self) -> Model {
        for layer in &mut self.layers {
            layer
                .directions_mut()
                .iter_mut()
                .for_each(Direction::clip_output);
        }
        self
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Whether all layers are forward ([`Layer::is_forward`]): then a run may be divided into
    /// steps, and go on from the states of another.
    ///
    /// ```
    /// use gatestream::model::{Layer, Lstm, Merge, Model};
    ///
    /// let lstm = Lstm::new(3, 4).layers(2);
    /// let forward = lstm.clone().random(1)?;
    /// assert!(forward.is_forward());
    /// assert!(!lstm.bidirectional(Merge::Concat).random(1)?.is_forward());
    /// let reverse = forward.layers()[0].directions()[0].clone().reversed();
    /// assert!(!Model::new(vec![Layer::single(reverse)])?.is_forward());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_forward(&self) -> bool {
        self.layers.iter().all(Layer::is_forward)
    }

    /// The named inputs and outputs, with their axes.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Bytes of all weights and biases in their present precision.
    pub fn weight_bytes(&self) -> usize {
        let directions = self.layers.iter().flat_map(Layer::directions);
        directions.map(|d| d.weights().bytes()).sum::<usize>()
    }
}
