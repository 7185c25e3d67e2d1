//! What a model needs of a device: memory, copies and launches, in one order.

use crate::arguments::{Address, Bytes};
use crate::{Device, Kernel};

/// A device that works in the order of the calls: a launch sees the copies before it, and a read
/// waits for the launches before it.
pub(crate) trait Driver: Send {
    /// Memory, freed when it is dropped.
    type Buffer: Buffer;
    /// Memory of the host that the device can read and write, freed when it is dropped.
    type Pinned: Pinned;
    /// A compiled kernel.
    type Function: Send;
    /// A place in a stream.
    type Event: Send;

    /// Its limits.
    fn device(&self) -> Device;

    /// Another stream of the device.
    fn stream(&self) -> Result<Self, DriverError>
    where
        Self: Sized;

    /// The place in this stream after all that was started.
    fn record(&self) -> Result<Self::Event, DriverError>;

    /// What is started from now on runs after what another stream has started before its event.
    fn follow(&self, event: &Self::Event) -> Result<(), DriverError>;

    /// Memory of zeros.
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer, DriverError>;

    /// Writes bytes from `offset` on.
    fn write(&self, to: &mut Self::Buffer, offset: usize, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads bytes from `offset` on. Waits for all that was started.
    fn read(&self, from: &Self::Buffer, offset: usize, bytes: &mut [u8])
    -> Result<(), DriverError>;

    /// Pinned memory of zeros.
    fn pinned(&self, bytes: usize) -> Result<Self::Pinned, DriverError>;

    /// Starts a copy of the first bytes. The host must not write to `from` until it has run.
    fn start_write(
        &self,
        to: &mut Self::Buffer,
        from: &Self::Pinned,
        bytes: usize,
    ) -> Result<(), DriverError>;

    /// The error of anything that was started, if one is known. Does not wait.
    fn check(&self) -> Result<(), DriverError>;

    /// Waits for all that was started.
    fn wait(&self) -> Result<(), DriverError>;

    /// Fills bytes from `offset` on with zeros.
    fn clear(
        &self,
        buffer: &mut Self::Buffer,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError>;

    /// Compiles a kernel, or finds it compiled.
    fn function(&self, kernel: &Kernel) -> Result<Self::Function, DriverError>;

    /// Starts a kernel.
    fn launch(
        &self,
        function: &Self::Function,
        grid: &Grid,
        arguments: &Bytes,
    ) -> Result<(), DriverError>;
}

/// Memory of a device.
pub(crate) trait Buffer: Send {
    fn address(&self) -> Address;
    fn bytes(&self) -> usize;
}

/// Memory of the host that the device can read and write. Host and device do not use the same bytes
/// at the same time, except for the [word](Pinned::word).
pub(crate) trait Pinned: Send {
    /// The address of the first byte on the device.
    fn address(&self) -> Address;
    fn write(&mut self, offset: usize, bytes: &[u8]);
    fn read(&self, offset: usize, bytes: &mut [u8]);
    /// The first four bytes, which the device may be writing. What it wrote before them is read
    /// after them.
    fn word(&self) -> u32;
}

/// The threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks along x and y.
    pub blocks: [usize; 2],
    /// Threads of a block.
    pub threads: usize,
    /// Shared memory of a block, in bytes, that the kernel does not declare itself.
    pub shared_bytes: usize,
    /// How blocks synchronise.
    pub synchronisation: Synchronisation,
}

/// How the blocks of a launch synchronise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronisation {
    /// They do not.
    None,
    /// They wait for each other: a cooperative launch, which fails if not all can be resident.
    Cooperative,
    /// All blocks along x are a cluster.
    Cluster,
}

/// Why a call of a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A library of CUDA is not installed.
    #[error(
        "{library} is not installed; install NVIDIA's driver and CUDA's NVRTC, and add the folder \
         of libnvrtc to LD_LIBRARY_PATH"
    )]
    NoLibrary {
        /// Name of the library.
        library: &'static str,
    },
    /// There is no such device.
    #[error("there is no CUDA device {ordinal}; the driver found {count}")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Number of devices.
        count: usize,
    },
    /// The kernels need a newer architecture.
    #[error("{name} has compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    TooOld {
        /// Name of the device.
        name: String,
        /// Compute capability, the major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// The compiler refused a kernel.
    #[error("NVRTC did not compile {kernel} for {architecture}: {log}")]
    Compile {
        /// Name of the kernel.
        kernel: &'static str,
        /// The architecture.
        architecture: String,
        /// What the compiler said.
        log: String,
    },
    /// A launch whose blocks wait for each other, but cannot all be resident.
    #[error("{blocks} blocks cannot be resident on the device at once")]
    NotResident {
        /// Blocks of the launch.
        blocks: usize,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// The driver's words.
        error: String,
    },
}
