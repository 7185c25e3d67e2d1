//! A stream of a device as a [`Driver`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUfunction_attribute as FunctionAttribute, CUresult};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr,
    LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use super::compile::{compiled, folder};
use super::failed;
use super::pinned::PinnedBuffer;
use crate::arguments::{Address, Bytes};
use crate::driver::{Buffer, Driver, DriverError, Grid, Synchronisation};
use crate::{Device, Kernel};

/// Kernels that are loaded, by their text.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<Kernel, Arc<CudaModule>>>);

/// A stream: what it is told to do is done in this order.
pub(super) struct Stream {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    device: Device,
    modules: Arc<Modules>,
}

impl Stream {
    pub fn open(
        context: &Arc<CudaContext>,
        device: Device,
        modules: &Arc<Modules>,
    ) -> Result<Stream, DriverError> {
        Ok(Stream {
            context: Arc::clone(context),
            stream: context.new_stream().map_err(failed("cuStreamCreate"))?,
            device,
            modules: Arc::clone(modules),
        })
    }

    /// Calls of this thread are for this device from now on.
    fn bind(&self) -> Result<(), DriverError> {
        let bound = self.context.bind_to_thread();
        bound.map_err(failed("cuCtxSetCurrent"))
    }

    fn module(&self, kernel: &Kernel) -> Result<Arc<CudaModule>, DriverError> {
        let mut loaded = self
            .modules
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(kernel) {
            return Ok(Arc::clone(module));
        }
        let cubin = compiled(kernel, &self.device.architecture(), folder().as_deref())?;
        let module = self.context.load_module(Ptx::from_binary(cubin));
        let module = module.map_err(failed("cuModuleLoadData"))?;
        loaded.insert(kernel.clone(), Arc::clone(&module));
        Ok(module)
    }
}

/// Memory of a device. It keeps its stream, which frees it after the launches before.
pub(super) struct DeviceBuffer {
    memory: CudaSlice<u8>,
    address: Address,
}

impl Buffer for DeviceBuffer {
    fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.memory.len()
    }
}

/// The arguments of a launch, of which the kernel takes as many bytes as its structure has.
#[repr(C, align(8))]
struct Passed([u8; Bytes::MOST]);

// SAFETY: plain bytes, which hold a structure of the kernel's.
unsafe impl DeviceRepr for Passed {}

impl Driver for Stream {
    type Buffer = DeviceBuffer;
    type Pinned = PinnedBuffer;
    type Function = CudaFunction;
    type Event = CudaEvent;

    fn device(&self) -> Device {
        self.device
    }

    fn stream(&self) -> Result<Stream, DriverError> {
        Stream::open(&self.context, self.device, &self.modules)
    }

    fn record(&self) -> Result<CudaEvent, DriverError> {
        let event = self.stream.record_event(None);
        event.map_err(failed("cuEventRecord"))
    }

    fn follow(&self, event: &CudaEvent) -> Result<(), DriverError> {
        let follows = self.stream.wait(event);
        follows.map_err(failed("cuStreamWaitEvent"))
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceBuffer, DriverError> {
        // No memory has no address.
        let memory = self.stream.alloc_zeros::<u8>(bytes.max(1));
        let memory = memory.map_err(failed("cuMemAllocAsync"))?;
        let (address, _) = memory.device_ptr(&self.stream);
        Ok(DeviceBuffer { memory, address })
    }

    fn write(&self, to: &mut DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut to = to.memory.slice_mut(offset..offset + bytes.len());
        // The host's memory is pageable: the driver has copied it when the call returns.
        let copied = self.stream.memcpy_htod(bytes, &mut to);
        copied.map_err(failed("cuMemcpyHtoDAsync"))
    }

    fn read(
        &self,
        from: &DeviceBuffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let from = from.memory.slice(offset..offset + bytes.len());
        let copied = self.stream.memcpy_dtoh(&from, bytes);
        copied.map_err(failed("cuMemcpyDtoHAsync"))?;
        self.wait()
    }

    fn pinned(&self, bytes: usize) -> Result<PinnedBuffer, DriverError> {
        PinnedBuffer::new(&self.context, bytes)
    }

    fn start_write(
        &self,
        to: &mut DeviceBuffer,
        from: &PinnedBuffer,
        bytes: usize,
    ) -> Result<(), DriverError> {
        assert!(bytes <= to.bytes() && bytes <= from.bytes());
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both have as many bytes. The caller keeps them, and does not write to the pinned
        // ones, until the copy has run: that is the contract of the method.
        let started = unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                to.address,
                from.first.as_ptr().cast(),
                bytes,
                self.stream.cu_stream(),
            )
        };
        started.result().map_err(failed("cuMemcpyHtoDAsync"))
    }

    fn check(&self) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            other => other.result().map_err(failed("cuStreamQuery")),
        }
    }

    fn wait(&self) -> Result<(), DriverError> {
        self.stream
            .synchronize()
            .map_err(failed("cuStreamSynchronize"))
    }

    fn clear(
        &self,
        buffer: &mut DeviceBuffer,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let mut part = buffer.memory.slice_mut(offset..offset + bytes);
        self.stream
            .memset_zeros(&mut part)
            .map_err(failed("cuMemsetD8Async"))
    }

    fn function(&self, kernel: &Kernel) -> Result<CudaFunction, DriverError> {
        let module = self.module(kernel)?;
        let function = module
            .load_function(kernel.name)
            .map_err(failed("cuModuleGetFunction"))?;
        // Without this a kernel may have 48 KiB. What it declares itself counts too.
        let declared = function
            .shared_size_bytes()
            .map_err(failed("cuFuncGetAttribute"))?;
        let most = i32::try_from(self.device.shared_bytes).unwrap_or(i32::MAX) - declared;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function
            .set_attribute(attribute, most)
            .map_err(failed("cuFuncSetAttribute"))?;
        Ok(function)
    }

    fn launch(
        &self,
        function: &CudaFunction,
        grid: &Grid,
        arguments: &Bytes,
    ) -> Result<(), DriverError> {
        let [x, y] = grid.blocks.map(|count| count as u32);
        let configuration = LaunchConfig {
            grid_dim: (x, y, 1),
            block_dim: (grid.threads as u32, 1, 1),
            shared_mem_bytes: grid.shared_bytes as u32,
        };
        let passed = Passed(*arguments.padded());
        let mut launch = self.stream.launch_builder(function);
        launch.arg(&passed);
        if grid.synchronisation != Synchronisation::Cooperative {
            // SAFETY: the arguments are those of the kernel (the host runs the same bytes in
            // tests), and their addresses are of buffers that the model keeps; the stream frees
            // them after this launch.
            let launched = unsafe { launch.launch(configuration) };
            return launched.map(drop).map_err(failed("cuLaunchKernel"));
        }
        // SAFETY: as above. All blocks are resident at once or none starts, so that those that wait
        // for others do not wait for ever.
        let launched = unsafe { launch.launch_cooperative(configuration) };
        launched.map(drop).map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => DriverError::NotResident {
                blocks: grid.blocks[0] * grid.blocks[1],
            },
            _ => failed("cuLaunchCooperativeKernel")(error),
        })
    }
}
