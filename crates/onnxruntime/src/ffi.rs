//! The structures of ONNX Runtime's interface for execution providers, and its functions.
//!
//! Written after the headers `onnxruntime_c_api.h` and `onnxruntime_ep_c_api.h` of ONNX Runtime
//! 1.24 (licence MIT). Its tables of functions only grow at the end, so a function is the number of
//! its place in the table.

use std::ffi::{c_char, c_void};

/// The version of the interface that is asked for: that of ONNX Runtime 1.24.
pub const VERSION: u32 = 24;

/// `OrtStatus`: an error, or null.
pub type Status = *mut c_void;
/// `OrtApi` and `OrtEpApi`: places of functions.
pub type Table = *const *const c_void;

/// Objects that only ONNX Runtime looks into.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque! {
    Attribute, ComputeContext, Device, EpDevice, Graph, KernelContext, Logger, Node, SessionOptions,
    SupportInfo, TensorInfo, Value, ValueInfo
}

/// `OrtApiBase`.
#[repr(C)]
pub struct ApiBase {
    pub get_api: unsafe extern "C" fn(version: u32) -> Table,
    pub get_version: unsafe extern "C" fn() -> *const c_char,
}

/// Numbers of functions in `OrtApi`.
pub mod api {
    pub const CREATE_STATUS: usize = 0;
    pub const GET_ERROR_MESSAGE: usize = 2;
    pub const GET_TENSOR_MUTABLE_DATA: usize = 51;
    pub const GET_TENSOR_ELEMENT_TYPE: usize = 60;
    pub const GET_DIMENSIONS_COUNT: usize = 61;
    pub const GET_DIMENSIONS: usize = 62;
    pub const GET_TENSOR_TYPE_AND_SHAPE: usize = 65;
    pub const KERNEL_CONTEXT_GET_INPUT: usize = 90;
    pub const KERNEL_CONTEXT_GET_OUTPUT: usize = 91;
    pub const RELEASE_STATUS: usize = 93;
    pub const RELEASE_TENSOR_TYPE_AND_SHAPE_INFO: usize = 99;
    pub const HAS_SESSION_CONFIG_ENTRY: usize = 237;
    pub const GET_SESSION_CONFIG_ENTRY: usize = 238;
    pub const LOGGER_LOG_MESSAGE: usize = 247;
    pub const READ_OP_ATTR: usize = 272;
    pub const KERNEL_CONTEXT_PARALLEL_FOR: usize = 274;
    pub const GET_VALUE_INFO_NAME: usize = 289;
    pub const HARDWARE_DEVICE_TYPE: usize = 307;
    pub const GET_EP_API: usize = 317;
    pub const VALUE_INFO_GET_INITIALIZER_VALUE: usize = 326;
    pub const VALUE_INFO_IS_CONSTANT_INITIALIZER: usize = 331;
    pub const GRAPH_GET_NUM_NODES: usize = 344;
    pub const GRAPH_GET_NODES: usize = 345;
    pub const NODE_GET_NAME: usize = 349;
    pub const NODE_GET_OPERATOR_TYPE: usize = 350;
    pub const NODE_GET_DOMAIN: usize = 351;
    pub const NODE_GET_NUM_INPUTS: usize = 353;
    pub const NODE_GET_INPUTS: usize = 354;
    pub const NODE_GET_NUM_OUTPUTS: usize = 355;
    pub const NODE_GET_OUTPUTS: usize = 356;
    pub const NODE_GET_NUM_ATTRIBUTES: usize = 359;
    pub const NODE_GET_ATTRIBUTES: usize = 360;
    pub const OP_ATTR_GET_TYPE: usize = 363;
    pub const OP_ATTR_GET_NAME: usize = 364;
}

/// Numbers of functions in `OrtEpApi`.
pub mod ep_api {
    pub const CREATE_EP_DEVICE: usize = 0;
    pub const ADD_NODES_TO_FUSE: usize = 2;
}

/// `OrtHardwareDeviceType_CPU`.
pub const CPU: i32 = 0;

/// `OrtErrorCode`.
pub const FAIL: i32 = 1;

/// `OrtLoggingLevel`.
pub const INFO: i32 = 1;
pub const WARNING: i32 = 2;

/// `ONNXTensorElementDataType`: the same numbers as in files.
pub const FLOAT: i32 = 1;
pub const UINT8: i32 = 2;
pub const INT8: i32 = 3;
pub const INT32: i32 = 6;

/// `OrtOpAttrType`.
pub mod attribute {
    pub const INT: i32 = 1;
    pub const INTS: i32 = 2;
    pub const FLOAT: i32 = 3;
    pub const FLOATS: i32 = 4;
    pub const STRING: i32 = 5;
    pub const STRINGS: i32 = 6;
}

/// `OrtNodeFusionOptions`.
#[repr(C)]
pub struct FusionOptions {
    pub version: u32,
    pub drop_constant_initializers: bool,
}

/// `OrtNodeComputeInfo`.
#[repr(C)]
pub struct ComputeInfo {
    pub version: u32,
    pub create_state: unsafe extern "C" fn(
        this: *mut ComputeInfo,
        context: *const ComputeContext,
        state: *mut *mut c_void,
    ) -> Status,
    pub compute: unsafe extern "C" fn(
        this: *mut ComputeInfo,
        state: *mut c_void,
        context: *mut KernelContext,
    ) -> Status,
    pub release_state: unsafe extern "C" fn(this: *mut ComputeInfo, state: *mut c_void),
}

/// A function that this provider does without.
type Absent = *const c_void;

/// `OrtEp`.
#[repr(C)]
pub struct Ep {
    pub version: u32,
    pub get_name: unsafe extern "C" fn(this: *const Ep) -> *const c_char,
    pub get_capability:
        unsafe extern "C" fn(this: *mut Ep, graph: *const Graph, info: *mut SupportInfo) -> Status,
    pub compile: unsafe extern "C" fn(
        this: *mut Ep,
        graphs: *const *const Graph,
        fused: *const *const Node,
        count: usize,
        infos: *mut *mut ComputeInfo,
        contexts: *mut *mut Node,
    ) -> Status,
    pub release_compute_infos:
        unsafe extern "C" fn(this: *mut Ep, infos: *mut *mut ComputeInfo, count: usize),
    /// Layout, dynamic options, ends of runs, allocators, streams, compatibility, kernels; and what
    /// versions up to this one add.
    pub absent: [Absent; 16],
}

/// `OrtEpFactory`.
#[repr(C)]
pub struct Factory {
    pub version: u32,
    pub get_name: unsafe extern "C" fn(this: *const Factory) -> *const c_char,
    pub get_vendor: unsafe extern "C" fn(this: *const Factory) -> *const c_char,
    pub get_supported_devices: unsafe extern "C" fn(
        this: *mut Factory,
        devices: *const *const Device,
        count: usize,
        supported: *mut *mut EpDevice,
        max: usize,
        found: *mut usize,
    ) -> Status,
    pub create_ep: unsafe extern "C" fn(
        this: *mut Factory,
        devices: *const *const Device,
        metadata: *const *const c_void,
        count: usize,
        options: *const SessionOptions,
        logger: *const Logger,
        ep: *mut *mut Ep,
    ) -> Status,
    pub release_ep: unsafe extern "C" fn(this: *mut Factory, ep: *mut Ep),
    pub get_vendor_id: unsafe extern "C" fn(this: *const Factory) -> u32,
    pub get_version: unsafe extern "C" fn(this: *const Factory) -> *const c_char,
    pub validate_compatibility: Absent,
    pub create_allocator: Absent,
    pub release_allocator: Absent,
    /// ONNX Runtime calls it without asking whether it is there.
    pub create_data_transfer:
        unsafe extern "C" fn(this: *mut Factory, transfer: *mut *mut c_void) -> Status,
    pub is_stream_aware: unsafe extern "C" fn(this: *const Factory) -> bool,
    pub absent: [Absent; 16],
}
