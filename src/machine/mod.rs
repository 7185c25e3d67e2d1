//! What this computer is: cores, SMT siblings, private and shared caches, memory nodes, instruction
//! sets; and its measured ceilings. Nothing here knows of models.
//!
//! [`Topology::detect`] reads the machine; [`Ceilings::measure`] times it; [`Ceilings::bound`] says
//! how long a piece of work must take at least.

mod caches;
mod ceilings;
#[cfg(feature = "hwloc")]
pub mod hwloc;
pub mod sysfs;
mod topology;
mod types;

use std::sync::OnceLock;

pub use caches::{CacheModel, L3Latency};
pub use ceilings::{
    Bound, BoundBy, Ceilings, CeilingsError, Operations, Rate, ReadRates, TeamCeilings,
};
pub use types::{
    Bytes, Cache, CacheKind, Core, CpuList, Level, NumaNode, Source, Topology, TopologyError,
};

use crate::kernels::{Isa, IsaError};

/// Everything known of this computer; what `cellstream machine` prints.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Machine {
    /// Cores, caches, memory nodes.
    pub topology: Topology,
    /// The instruction sets of this CPU, best first.
    #[cfg_attr(feature = "serde", serde(serialize_with = "isa_names"))]
    pub isas: Vec<Isa>,
    /// The one in use: the best, unless `CELLSTREAM_ISA` names another.
    #[cfg_attr(feature = "serde", serde(serialize_with = "isa_name"))]
    pub isa: Isa,
    /// The measured ceilings, once measured.
    pub ceilings: Option<Ceilings>,
}

impl Machine {
    /// The machine this process runs on, not yet measured.
    ///
    /// # Errors
    /// [`IsaError`] if `CELLSTREAM_ISA` names an instruction set that is unknown or absent.
    pub fn detect() -> Result<Machine, IsaError> {
        Ok(Machine {
            topology: Topology::detect(),
            isas: Isa::available(),
            isa: Isa::select()?,
            ceilings: None,
        })
    }

    /// Measures the ceilings, for one to two seconds.
    ///
    /// # Errors
    /// [`CeilingsError`]: memory or threads are refused.
    pub fn measure(&mut self) -> Result<&Ceilings, CeilingsError> {
        let ceilings = Ceilings::measure(&self.topology, self.isa)?;
        Ok(self.ceilings.insert(ceilings))
    }
}

#[cfg(feature = "serde")]
fn isa_name<S: serde::Serializer>(isa: &Isa, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(isa)
}

#[cfg(feature = "serde")]
fn isa_names<S: serde::Serializer>(isas: &[Isa], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(isas.iter().map(Isa::to_string))
}

/// The logical CPUs that this process may run on, ascending; never empty.
///
/// Asked once and remembered: the system answers for the calling thread, and one that has been
/// pinned meanwhile would see a machine of a single core.
pub fn allowed_cpus() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(|| {
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        let mut cpus: Vec<usize> = ids.into_iter().map(|core| core.id).collect();
        if cpus.is_empty() {
            cpus = (0..num_cpus::get().max(1)).collect();
        }
        cpus.sort_unstable();
        cpus
    })
}

/// Threads that can run at once: the CPUs of [`allowed_cpus`], or fewer where a container has a
/// quota. Asked once and remembered.
pub fn runnable_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    // num_cpus counts what the affinity and a container's quota allow.
    *THREADS.get_or_init(|| num_cpus::get().max(1))
}
