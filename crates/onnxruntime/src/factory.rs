//! The factory of providers, and the functions that the library exports.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::Api;
use crate::ffi::{self, ApiBase, Device, Ep, EpDevice, Factory, Logger, SessionOptions, Status};
use crate::guard::guarded;
use crate::provider::{NAME, Provider};

/// The session is to write a model of compiled nodes.
const EP_CONTEXT: &std::ffi::CStr = c"ep.context_enable";

/// An `OrtEpFactory`. ONNX Runtime sees its first field.
#[repr(C)]
struct ProviderFactory {
    factory: Factory,
    api: Api,
    /// The registration has ended. Options that were made before still have this factory.
    is_released: AtomicBool,
}

/// Makes the factory. ONNX Runtime calls it when the library is registered.
///
/// # Safety
/// For ONNX Runtime only.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is ONNX Runtime's")]
pub unsafe extern "C" fn CreateEpFactories(
    _name: *const c_char,
    base: *const ApiBase,
    _logger: *const Logger,
    factories: *mut *mut Factory,
    max: usize,
    count: *mut usize,
) -> Status {
    // SAFETY: ONNX Runtime passes its table.
    let Some(api) = (unsafe { Api::new(base) }) else {
        // SAFETY: ONNX Runtime passes its table, and a place for the number.
        return unsafe {
            *count = 0;
            Api::too_old(base)
        };
    };
    guarded(&api, || {
        if max == 0 {
            return Err("there is no room for a factory".into());
        }
        let factory = ProviderFactory {
            factory: Factory {
                version: ffi::VERSION,
                get_name,
                get_vendor,
                get_supported_devices,
                create_ep,
                release_ep,
                get_vendor_id,
                get_version,
                validate_compatibility: ptr::null(),
                create_allocator: ptr::null(),
                release_allocator: ptr::null(),
                create_data_transfer,
                is_stream_aware,
                absent: [ptr::null(); 16],
            },
            api,
            is_released: AtomicBool::new(false),
        };
        // SAFETY: ONNX Runtime passes places for `max` factories and their number.
        unsafe {
            *factories = Box::into_raw(Box::new(factory)).cast();
            *count = 1;
        }
        Ok(())
    })
}

/// Ends the use of a factory. It stays in memory, with the library: a session that outlives the
/// registration still releases its provider by it, and options that do get an error from it.
///
/// # Safety
/// For ONNX Runtime only.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is ONNX Runtime's")]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut Factory) -> Status {
    // SAFETY: ONNX Runtime passes null or a factory of `CreateEpFactories`, which is never freed.
    if let Some(factory) = unsafe { factory.cast::<ProviderFactory>().as_ref() } {
        factory.is_released.store(true, Ordering::Relaxed);
    }
    ptr::null_mut()
}

unsafe extern "C" fn get_name(_: *const Factory) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn get_vendor(_: *const Factory) -> *const c_char {
    c"gatestream".as_ptr()
}

unsafe extern "C" fn get_vendor_id(_: *const Factory) -> u32 {
    // No vendor of hardware.
    0
}

unsafe extern "C" fn get_version(_: *const Factory) -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

unsafe extern "C" fn get_supported_devices(
    this: *mut Factory,
    devices: *const *const Device,
    count: usize,
    supported: *mut *mut EpDevice,
    max: usize,
    found: *mut usize,
) -> Status {
    // SAFETY: a factory of `CreateEpFactories`, and an array of `count` devices.
    let (api, devices) = unsafe {
        (
            (*this.cast::<ProviderFactory>()).api,
            std::slice::from_raw_parts(devices, count),
        )
    };
    guarded(&api, || {
        let mut number = 0;
        for &device in devices
            .iter()
            .filter(|&&device| api.is_cpu(device))
            .take(max)
        {
            let made = api.ep_device(this, device)?;
            // SAFETY: there are places for `max` devices.
            unsafe { *supported.add(number) = made };
            number += 1;
        }
        // SAFETY: a place for the number.
        unsafe { *found = number };
        Ok(())
    })
}

unsafe extern "C" fn create_ep(
    this: *mut Factory,
    _devices: *const *const Device,
    _metadata: *const *const c_void,
    _count: usize,
    options: *const SessionOptions,
    logger: *const Logger,
    ep: *mut *mut Ep,
) -> Status {
    // SAFETY: a factory of `CreateEpFactories`.
    let factory = unsafe { &*this.cast::<ProviderFactory>() };
    let api = factory.api;
    guarded(&api, || {
        if factory.is_released.load(Ordering::Relaxed) {
            // ONNX Runtime would go on with the devices of these options, which it has freed.
            return Err(
                "the options are older than the end of the provider's registration; \
                        register it again and make new options"
                    .into(),
            );
        }
        if api.config_entry(options, EP_CONTEXT)?.as_deref() == Some("1") {
            return Err(
                "gatestream writes no EPContext models; leave out ep.context_enable, or \
                        compile the model without GatestreamExecutionProvider"
                    .into(),
            );
        }
        let made = Provider::make(api, logger);
        // SAFETY: a place for the provider.
        unsafe { *ep = made };
        Ok(())
    })
}

unsafe extern "C" fn release_ep(_: *mut Factory, ep: *mut Ep) {
    if !ep.is_null() {
        // SAFETY: ONNX Runtime releases a provider of `create_ep` once.
        unsafe { Provider::release(ep) };
    }
}

/// All tensors are in the memory of the CPU.
unsafe extern "C" fn create_data_transfer(_: *mut Factory, transfer: *mut *mut c_void) -> Status {
    // SAFETY: a place for the pointer.
    unsafe { *transfer = ptr::null_mut() };
    ptr::null_mut()
}

unsafe extern "C" fn is_stream_aware(_: *const Factory) -> bool {
    false
}
