//! Files of models and plans: what is read, what is written, what is refused.

#[path = "../common/mod.rs"]
mod common;
#[cfg(all(feature = "onnx", feature = "safetensors"))]
#[path = "../common/enclosure.rs"]
mod enclosure;

#[cfg(all(feature = "onnx", feature = "pytorch"))]
mod kinds;
#[cfg(all(feature = "onnx", feature = "safetensors"))]
mod onnx_answers;
#[cfg(feature = "onnx")]
mod onnx_loader;
#[cfg(all(feature = "onnx", feature = "safetensors"))]
mod onnx_quantised;
mod plan_file;
mod plan_file_hostile;
#[cfg(feature = "pytorch")]
mod pytorch;
#[cfg(feature = "safetensors")]
mod safetensors;
#[cfg(feature = "safetensors")]
mod safetensors_hostile;
