//! The limits of a device that decide which plans fit on it.

/// A GPU's limits. [`Device::ALL`] has those of NVIDIA's data sheets; a driver tells its own.
///
/// ```
/// use gatestream_cuda::Device;
/// assert!(Device::H100.has_clusters() && !Device::A100.has_clusters());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Compute capability, major and minor: the architecture that kernels are compiled for.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Largest shared memory of one block, in bytes, that a kernel may ask for.
    pub shared_bytes: u32,
}

impl Device {
    /// A100 (CUDA C++ Programming Guide, table of compute capabilities; A100 data sheet).
    pub const A100: Device = Device {
        capability: (8, 0),
        multiprocessors: 108,
        shared_bytes: 163 << 10,
    };
    /// L4 and L40 have less shared memory than the others. This is the L40.
    pub const L40: Device = Device {
        capability: (8, 9),
        multiprocessors: 142,
        shared_bytes: 99 << 10,
    };
    /// H100 and H200 with SXM.
    pub const H100: Device = Device {
        capability: (9, 0),
        multiprocessors: 132,
        shared_bytes: 227 << 10,
    };
    /// B200.
    pub const B200: Device = Device {
        capability: (10, 0),
        multiprocessors: 148,
        shared_bytes: 227 << 10,
    };

    /// Devices to plan for without one.
    pub const ALL: [Device; 4] = [Device::A100, Device::L40, Device::H100, Device::B200];

    /// Whether blocks can form clusters that read each other's shared memory.
    pub fn has_clusters(&self) -> bool {
        self.capability >= (9, 0)
    }

    /// The name of the architecture for the compiler, such as `sm_90`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}")
    }
}
