//! Models.

use std::ffi::{OsStr, c_char};
use std::sync::Arc;

use crate::status::{Error, Status, free, guarded, object, path, put};

/// A stack of recurrent layers with its weights.
pub struct Model(pub(crate) Arc<gatestream::Model>);

/// The sizes of a model's arrays.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Features of an input step.
    pub input: usize,
    /// Features of an output step.
    pub output: usize,
    /// Hidden state values of a sequence, over all layers and directions.
    pub hidden_state: usize,
    /// Cell state values of a sequence, over all LSTM layers and directions.
    pub cell_state: usize,
    /// 1: the batch is the first axis of inputs and outputs; 0: time is.
    pub batch_first: u8,
}

/// Reads a file: `.onnx`, `.safetensors`, or a checkpoint of PyTorch (`.pt`, `.pth`).
///
/// # Safety
/// `path` is a text; `model` is a place for the pointer, to be freed by `gs_model_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_model_open(path: *const c_char, model: *mut *mut Model) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let file = self::path(path)?;
            put("model", model, || {
                let opened = gatestream::Model::open(file)?;
                Ok(Box::into_raw(Box::new(Model(Arc::new(opened)))))
            })
        }
    })
}

/// Writes a safetensors file, whole or not at all. The path ends with `.safetensors`.
///
/// # Safety
/// `model` is a model, `path` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_model_save(model: *const Model, path: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        let (model, path) = unsafe { (object("model", model)?, self::path(path)?) };
        let is_named = |ending: &OsStr| ending.eq_ignore_ascii_case("safetensors");
        if !path.extension().is_some_and(is_named) {
            let path = path.display();
            let why =
                format!("{path}: the file is written as .safetensors, so its name must end so");
            return Err(Error::new(Status::Input, why));
        }
        Ok(model.0.save_safetensors(path)?)
    })
}

/// The sizes of the model's arrays.
///
/// # Safety
/// `model` is a model, `signature` a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_model_signature(
    model: *const Model,
    signature: *mut Signature,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promises.
        unsafe {
            let model = object("model", model)?;
            put("signature", signature, || {
                let of = model.0.signature();
                Ok(Signature {
                    input: of.input,
                    output: of.output,
                    hidden_state: of.hidden_state,
                    cell_state: of.cell_state,
                    batch_first: (of.layout == gatestream::model::Layout::BatchMajor).into(),
                })
            })
        }
    })
}

/// Frees a model; sessions, plans and engines that were made of it go on. Null is allowed.
///
/// # Safety
/// `model` is a model that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gs_model_free(model: *mut Model) {
    // SAFETY: the caller's promise.
    unsafe { free(model) };
}
