//! What a model needs of a device: memory, copies and launches, in one order.

use crate::arguments::{Address, Bytes};
use crate::{Device, Kernel};

/// A device that works in the order of the calls: a launch sees the copies before it, and a read
/// waits for the launches before it.
pub(crate) trait Driver: Send {
    /// Memory, freed when it is dropped.
    type Buffer: Buffer;
    /// A compiled kernel.
    type Function: Send;

    /// Its limits.
    fn device(&self) -> Device;

    /// Memory of zeros.
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer, DriverError>;

    fn write(&self, to: &mut Self::Buffer, bytes: &[u8]) -> Result<(), DriverError>;

    fn read(&self, from: &Self::Buffer, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Fills the first bytes with zeros.
    fn clear(&self, buffer: &mut Self::Buffer, bytes: usize) -> Result<(), DriverError>;

    fn copy(
        &self,
        from: &Self::Buffer,
        to: &mut Self::Buffer,
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
