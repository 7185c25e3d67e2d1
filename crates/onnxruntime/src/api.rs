//! ONNX Runtime's functions, with Rust's types and errors.
//!
//! Every function here takes objects that ONNX Runtime has given for the present call.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use gatestream::model::{AttributeValue, OpAttribute};

use crate::ffi::{self, Attribute, Device, Graph, KernelContext, Logger, Node, Status};
use crate::ffi::{SessionOptions, SupportInfo, Table, TensorInfo, Value, ValueInfo, api, ep_api};

/// An error of ONNX Runtime or of this crate, in words.
pub type Result<T> = std::result::Result<T, String>;

/// The tables of functions.
#[derive(Clone, Copy)]
pub struct Api {
    api: Table,
    ep: Table,
    /// Fused nodes of different graphs of a model (its main graph, the branches of an `If`) get the
    /// same names, and ONNX Runtime then refuses the session: before version 1.24.4.
    pub names_repeat: bool,
}

// SAFETY: the tables are constants of ONNX Runtime, which may be used by any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// Calls function `$index` of a table, of this type.
macro_rules! call {
    ($table:expr, $index:expr, fn($($argument:ty),* $(,)?) -> $result:ty, $($value:expr),*) => {{
        // SAFETY: the place of the table has a function of this type, by ONNX Runtime's headers;
        // the arguments are objects of the present call, or memory of this function.
        unsafe {
            let function = *$table.add($index);
            let function: unsafe extern "C" fn($($argument),*) -> $result =
                std::mem::transmute(function);
            function($($value),*)
        }
    }};
}

/// A tensor that lives as long as the present call.
pub struct Tensor<'a> {
    pub shape: Vec<usize>,
    pub element_type: i32,
    data: *const c_void,
    call: std::marker::PhantomData<&'a ()>,
}

impl<'a> Tensor<'a> {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements, if they are of the type `kind`, of which `T` is the Rust type.
    fn elements<T>(&self, kind: i32) -> Result<&'a [T]> {
        if self.element_type != kind {
            return Err(format!(
                "a tensor of type {} instead of {kind}",
                self.element_type
            ));
        }
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: ONNX Runtime says that the tensor has so many elements of this type, and keeps it
        // during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.len()) })
    }

    pub fn floats(&self) -> Result<&'a [f32]> {
        self.elements(ffi::FLOAT)
    }

    pub fn ints(&self) -> Result<&'a [i32]> {
        self.elements(ffi::INT32)
    }

    /// The bytes of the elements.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        let size = match self.element_type {
            ffi::FLOAT | ffi::INT32 => 4,
            ffi::UINT8 | ffi::INT8 => 1,
            other => return Err(format!("a tensor of type {other}")),
        };
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: as in `elements`.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.len() * size) })
    }
}

impl Api {
    /// The tables of this version; `None`: ONNX Runtime is older.
    ///
    /// # Safety
    /// `base` is ONNX Runtime's.
    pub unsafe fn new(base: *const ffi::ApiBase) -> Option<Api> {
        // SAFETY: the caller's promise; ONNX Runtime's texts end with a zero byte.
        let (api, version) = unsafe {
            let version = Api::text(((*base).get_version)());
            (((*base).get_api)(ffi::VERSION), version)
        };
        if api.is_null() {
            return None;
        }
        let ep = call!(api, api::GET_EP_API, fn() -> Table,);
        (!ep.is_null()).then_some(Api {
            api,
            ep,
            names_repeat: names_repeat(&version),
        })
    }

    /// An error for ONNX Runtime.
    pub fn status(&self, message: &str) -> Status {
        Api::status_of(self.api, message)
    }

    /// The error that ONNX Runtime is older than [`ffi::VERSION`].
    ///
    /// # Safety
    /// `base` is ONNX Runtime's.
    pub unsafe fn too_old(base: *const ffi::ApiBase) -> Status {
        // SAFETY: the caller's promise; each version has the first table.
        let (first, version) = unsafe { (((*base).get_api)(1), ((*base).get_version)()) };
        if first.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: ONNX Runtime's texts end with a zero byte.
        let version = unsafe { Api::text(version) };
        let needed = ffi::VERSION;
        let why =
            format!("ONNX Runtime {version} is too old; gatestream needs 1.{needed} or newer");
        Api::status_of(first, &why)
    }

    fn status_of(table: Table, message: &str) -> Status {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        call!(
            table,
            api::CREATE_STATUS,
            fn(i32, *const c_char) -> Status,
            ffi::FAIL,
            message.as_ptr()
        )
    }

    fn check(&self, status: Status) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        let text = call!(
            self.api,
            api::GET_ERROR_MESSAGE,
            fn(Status) -> *const c_char,
            status
        );
        // SAFETY: a text that lives as long as the status.
        let text = unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned();
        call!(self.api, api::RELEASE_STATUS, fn(Status) -> (), status);
        Err(text)
    }

    /// Logs a message of this level.
    pub fn log(&self, logger: *const Logger, level: i32, message: &str) {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        let (file, function) = (c"gatestream", c"gatestream");
        let status = call!(
            self.api,
            api::LOGGER_LOG_MESSAGE,
            fn(*const Logger, i32, *const c_char, *const c_char, i32, *const c_char) -> Status,
            logger,
            level,
            message.as_ptr(),
            file.as_ptr(),
            0,
            function.as_ptr()
        );
        // A message that cannot be logged is lost.
        let _ = self.check(status);
    }

    /// A text that lives as long as its object.
    ///
    /// # Safety
    /// `text` is null or ends with a zero byte.
    unsafe fn text(text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// Gets a pointer from a function that writes it to its last argument.
    fn pointer<O, T>(&self, index: usize, of: *const O) -> Result<*const T> {
        let mut found: *const T = ptr::null();
        let status = call!(
            self.api,
            index,
            fn(*const O, *mut *const T) -> Status,
            of,
            &raw mut found
        );
        self.check(status).map(|()| found)
    }

    fn string<O>(&self, index: usize, of: *const O) -> Result<String> {
        let text = self.pointer(index, of)?;
        // SAFETY: ONNX Runtime's texts end with a zero byte.
        Ok(unsafe { Api::text(text) })
    }

    /// Gets an array from a pair of functions: its length, and its elements.
    fn array<O, T>(&self, count: usize, elements: usize, of: *const O) -> Result<Vec<*const T>> {
        let mut length = 0usize;
        let status = call!(
            self.api,
            count,
            fn(*const O, *mut usize) -> Status,
            of,
            &raw mut length
        );
        self.check(status)?;
        let mut array: Vec<*const T> = vec![ptr::null(); length];
        let status = call!(
            self.api,
            elements,
            fn(*const O, *mut *const T, usize) -> Status,
            of,
            array.as_mut_ptr(),
            length
        );
        self.check(status).map(|()| array)
    }

    pub fn nodes(&self, graph: *const Graph) -> Result<Vec<*const Node>> {
        self.array(api::GRAPH_GET_NUM_NODES, api::GRAPH_GET_NODES, graph)
    }

    pub fn node_name(&self, node: *const Node) -> Result<String> {
        self.string(api::NODE_GET_NAME, node)
    }

    pub fn operator(&self, node: *const Node) -> Result<String> {
        self.string(api::NODE_GET_OPERATOR_TYPE, node)
    }

    pub fn domain(&self, node: *const Node) -> Result<String> {
        self.string(api::NODE_GET_DOMAIN, node)
    }

    /// The inputs of a node; null where an optional one is absent.
    pub fn inputs(&self, node: *const Node) -> Result<Vec<*const ValueInfo>> {
        self.array(api::NODE_GET_NUM_INPUTS, api::NODE_GET_INPUTS, node)
    }

    /// The outputs of a node, likewise.
    pub fn outputs(&self, node: *const Node) -> Result<Vec<*const ValueInfo>> {
        self.array(api::NODE_GET_NUM_OUTPUTS, api::NODE_GET_OUTPUTS, node)
    }

    /// The name of a value; empty if it is absent.
    pub fn value_name(&self, value: *const ValueInfo) -> Result<String> {
        if value.is_null() {
            Ok(String::new())
        } else {
            self.string(api::GET_VALUE_INFO_NAME, value)
        }
    }

    /// The tensor of a value that is a constant of the graph or of one around it.
    pub fn constant<'a>(&self, value: *const ValueInfo) -> Result<Option<Tensor<'a>>> {
        let mut is_constant = false;
        let status = call!(
            self.api,
            api::VALUE_INFO_IS_CONSTANT_INITIALIZER,
            fn(*const ValueInfo, *mut bool) -> Status,
            value,
            &raw mut is_constant
        );
        self.check(status)?;
        if !is_constant {
            return Ok(None);
        }
        let constant: *const Value = self.pointer(api::VALUE_INFO_GET_INITIALIZER_VALUE, value)?;
        if constant.is_null() {
            Ok(None)
        } else {
            self.tensor(constant).map(Some)
        }
    }

    fn tensor<'a>(&self, value: *const Value) -> Result<Tensor<'a>> {
        let info: *const TensorInfo = self.pointer(api::GET_TENSOR_TYPE_AND_SHAPE, value)?;
        let described = self.describe(info);
        call!(
            self.api,
            api::RELEASE_TENSOR_TYPE_AND_SHAPE_INFO,
            fn(*const TensorInfo) -> (),
            info
        );
        let (element_type, shape) = described?;
        Ok(Tensor {
            shape,
            element_type,
            data: self.data(value)?.cast_const(),
            call: std::marker::PhantomData,
        })
    }

    fn describe(&self, info: *const TensorInfo) -> Result<(i32, Vec<usize>)> {
        let (mut element_type, mut rank) = (0i32, 0usize);
        let status = call!(
            self.api,
            api::GET_TENSOR_ELEMENT_TYPE,
            fn(*const TensorInfo, *mut i32) -> Status,
            info,
            &raw mut element_type
        );
        self.check(status)?;
        let status = call!(
            self.api,
            api::GET_DIMENSIONS_COUNT,
            fn(*const TensorInfo, *mut usize) -> Status,
            info,
            &raw mut rank
        );
        self.check(status)?;
        let mut dimensions = vec![0i64; rank];
        let status = call!(
            self.api,
            api::GET_DIMENSIONS,
            fn(*const TensorInfo, *mut i64, usize) -> Status,
            info,
            dimensions.as_mut_ptr(),
            rank
        );
        self.check(status)?;
        let shape = { dimensions.iter() }
            .map(|&length| usize::try_from(length).map_err(|_| format!("a length of {length}")));
        Ok((element_type, shape.collect::<Result<_>>()?))
    }

    fn data(&self, value: *const Value) -> Result<*mut c_void> {
        let mut data: *mut c_void = ptr::null_mut();
        let status = call!(
            self.api,
            api::GET_TENSOR_MUTABLE_DATA,
            fn(*const Value, *mut *mut c_void) -> Status,
            value,
            &raw mut data
        );
        self.check(status).map(|()| data)
    }

    /// An input of the running kernel; `None` if it is absent.
    pub fn input<'a>(
        &self,
        context: &'a KernelContext,
        index: usize,
    ) -> Result<Option<Tensor<'a>>> {
        let mut value: *const Value = ptr::null();
        let status = call!(
            self.api,
            api::KERNEL_CONTEXT_GET_INPUT,
            fn(*const KernelContext, usize, *mut *const Value) -> Status,
            context,
            index,
            &raw mut value
        );
        self.check(status)?;
        if value.is_null() {
            Ok(None)
        } else {
            self.tensor(value).map(Some)
        }
    }

    /// An output of the running kernel, of f32, to be written.
    #[expect(clippy::mut_from_ref, reason = "ONNX Runtime makes the output")]
    pub fn output<'a>(
        &self,
        context: &'a KernelContext,
        index: usize,
        shape: &[usize],
    ) -> Result<&'a mut [f32]> {
        let dimensions: Vec<i64> = shape.iter().map(|&length| length as i64).collect();
        let mut value: *mut Value = ptr::null_mut();
        let status = call!(
            self.api,
            api::KERNEL_CONTEXT_GET_OUTPUT,
            fn(*const KernelContext, usize, *const i64, usize, *mut *mut Value) -> Status,
            context,
            index,
            dimensions.as_ptr(),
            dimensions.len(),
            &raw mut value
        );
        self.check(status)?;
        let len = shape.iter().product();
        if value.is_null() || len == 0 {
            return Ok(&mut []);
        }
        let data = self.data(value)?;
        // SAFETY: ONNX Runtime has made the output with so many elements; each output is asked for
        // once in a call.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
    }

    /// Calls `task` `count` times on the threads of the session's pool.
    pub fn parallel_for(
        &self,
        context: &KernelContext,
        count: usize,
        task: &(dyn Fn() + Sync),
    ) -> Result<()> {
        unsafe extern "C" fn call_task(task: *mut c_void, _: usize) {
            // SAFETY: `parallel_for` passes this pointer, and returns after all calls.
            let task = unsafe { *task.cast::<&(dyn Fn() + Sync)>() };
            task();
        }
        let mut task = task;
        let status = call!(
            self.api,
            api::KERNEL_CONTEXT_PARALLEL_FOR,
            fn(
                *const KernelContext,
                unsafe extern "C" fn(*mut c_void, usize),
                usize,
                usize,
                *mut c_void,
            ) -> Status,
            context,
            call_task,
            count,
            count,
            (&raw mut task).cast()
        );
        self.check(status)
    }

    /// All attributes of a node that have a value of a supported type.
    pub fn attributes(&self, node: *const Node) -> Result<Vec<OpAttribute>> {
        let all: Vec<*const Attribute> =
            self.array(api::NODE_GET_NUM_ATTRIBUTES, api::NODE_GET_ATTRIBUTES, node)?;
        let mut values = Vec::new();
        for attribute in all.into_iter().filter(|attribute| !attribute.is_null()) {
            let name = self.string(api::OP_ATTR_GET_NAME, attribute)?;
            let mut kind = 0i32;
            let status = call!(
                self.api,
                api::OP_ATTR_GET_TYPE,
                fn(*const Attribute, *mut i32) -> Status,
                attribute,
                &raw mut kind
            );
            self.check(status)?;
            let value = self.value(attribute, kind);
            let value = value.map_err(|why| format!("attribute {name}: {why}"))?;
            values.push(OpAttribute { name, value });
        }
        Ok(values)
    }

    fn value(&self, attribute: *const Attribute, kind: i32) -> Result<AttributeValue> {
        use AttributeValue as V;
        use ffi::attribute as of;
        let bytes = self.raw_value(attribute, kind)?;
        let ints = || {
            { bytes.chunks_exact(8) }.map(|b| i64::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let floats = || {
            { bytes.chunks_exact(4) }.map(|b| f32::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let missing = || "it has no value".to_owned();
        Ok(match kind {
            of::INT => V::Int(ints().next().ok_or_else(missing)?),
            of::INTS => V::Ints(ints().collect()),
            of::FLOAT => V::Float(floats().next().ok_or_else(missing)?),
            of::FLOATS => V::Floats(floats().collect()),
            // With a zero byte at its end in some versions.
            of::STRING => V::String(bytes.strip_suffix(b"\0").unwrap_or(&bytes).to_vec()),
            of::STRINGS => {
                let texts = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec);
                let mut texts: Vec<_> = texts.collect();
                while texts.last().is_some_and(Vec::is_empty) {
                    texts.pop();
                }
                V::Strings(texts)
            }
            other => return Err(format!("a value of type {other}")),
        })
    }

    fn raw_value(&self, attribute: *const Attribute, kind: i32) -> Result<Vec<u8>> {
        let read = |data: *mut c_void, room: usize| {
            let mut size = 0usize;
            let status = call!(
                self.api,
                api::READ_OP_ATTR,
                fn(*const Attribute, i32, *mut c_void, usize, *mut usize) -> Status,
                attribute,
                kind,
                data,
                room,
                &raw mut size
            );
            (self.check(status), size)
        };
        // With too little room it is an error that tells the size.
        let mut bytes = vec![0u8; 64];
        let (read_at_once, size) = read(bytes.as_mut_ptr().cast(), bytes.len());
        if let Err(why) = read_at_once {
            if size <= bytes.len() {
                return Err(why);
            }
            bytes.resize(size, 0);
            read(bytes.as_mut_ptr().cast(), bytes.len()).0?;
        }
        bytes.truncate(size);
        Ok(bytes)
    }

    /// The value of an entry of the session's configuration; `None`: it has none.
    pub fn config_entry(
        &self,
        options: *const SessionOptions,
        key: &CStr,
    ) -> Result<Option<String>> {
        let mut is_there = 0i32;
        let status = call!(
            self.api,
            api::HAS_SESSION_CONFIG_ENTRY,
            fn(*const SessionOptions, *const c_char, *mut i32) -> Status,
            options,
            key.as_ptr(),
            &raw mut is_there
        );
        self.check(status)?;
        if is_there == 0 {
            return Ok(None);
        }
        let read = |room: *mut c_char, mut size: usize| {
            let status = call!(
                self.api,
                api::GET_SESSION_CONFIG_ENTRY,
                fn(*const SessionOptions, *const c_char, *mut c_char, *mut usize) -> Status,
                options,
                key.as_ptr(),
                room,
                &raw mut size
            );
            self.check(status).map(|()| size)
        };
        // Without room it tells the size, the zero byte at the end included.
        let mut value = vec![0u8; read(ptr::null_mut(), 0)?];
        read(value.as_mut_ptr().cast(), value.len())?;
        let value = CStr::from_bytes_until_nul(&value).unwrap_or_default();
        Ok(Some(value.to_string_lossy().into_owned()))
    }

    pub fn is_cpu(&self, device: *const Device) -> bool {
        let kind = call!(
            self.api,
            api::HARDWARE_DEVICE_TYPE,
            fn(*const Device) -> i32,
            device
        );
        kind == ffi::CPU
    }

    /// Makes the entry of a device that the provider supports.
    pub fn ep_device(
        &self,
        factory: *mut ffi::Factory,
        device: *const Device,
    ) -> Result<*mut ffi::EpDevice> {
        let mut made: *mut ffi::EpDevice = ptr::null_mut();
        let status = call!(
            self.ep,
            ep_api::CREATE_EP_DEVICE,
            fn(
                *mut ffi::Factory,
                *const Device,
                *const c_void,
                *const c_void,
                *mut *mut ffi::EpDevice,
            ) -> Status,
            factory,
            device,
            ptr::null(),
            ptr::null(),
            &raw mut made
        );
        self.check(status).map(|()| made)
    }

    /// Claims a node. Its constants are inputs of the kernel, too: those of the file may be
    /// replaced by the session's options (`AddInitializer`), which no other function tells.
    pub fn claim(&self, info: *mut SupportInfo, node: *const Node) -> Result<()> {
        let options = ffi::FusionOptions {
            version: ffi::VERSION,
            drop_constant_initializers: false,
        };
        let status = call!(
            self.ep,
            ep_api::ADD_NODES_TO_FUSE,
            fn(*mut SupportInfo, *const *const Node, usize, *const ffi::FusionOptions) -> Status,
            info,
            &raw const node,
            1,
            &raw const options
        );
        self.check(status)
    }
}

/// See [`Api::names_repeat`].
fn names_repeat(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut next = || parts.next().and_then(std::result::Result::ok).unwrap_or(0);
    let version = (next(), next(), next());
    version < (1, 24, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_which_names_repeat() {
        for (version, repeats) in [
            ("1.24.0", true),
            ("1.24.3", true),
            ("1.24.3-dev", true),
            ("1.24", true),
            ("1.24.4", false),
            ("1.25.0", false),
            ("1.32.0", false),
            ("2.0.0", false),
        ] {
            assert_eq!(names_repeat(version), repeats, "{version}");
        }
    }
}
