//! What this computer is: cores, SMT siblings, private and shared caches, memory nodes, instruction
//! sets; and its measured ceilings. Nothing here knows of models.
//!
//! [`Topology::detect`] reads the machine; [`Ceilings::measure`] times it; [`Ceilings::bound`] says
//! how long a piece of work must take at least.

mod affinity;
mod caches;
mod ceilings;
#[cfg(feature = "hwloc")]
pub mod hwloc;
mod memory;
mod quota;
pub mod sysfs;
mod topology;
mod types;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

pub(crate) use affinity::{Mask, current_cpu};
pub use caches::{CacheModel, L3Latency};
pub use ceilings::{
    Bound, BoundBy, Ceilings, CeilingsError, Operations, Rate, ReadRates, TeamCeilings,
};
pub use memory::return_free_memory;
pub use types::{
    Bytes, Cache, CacheKind, Core, CpuList, Level, NumaNode, Source, Topology, TopologyError,
};

use gatestream_kernels::{Isa, IsaError};

/// Everything known of this computer; what `gatestream machine` prints.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Machine {
    /// Cores, caches, memory nodes.
    pub topology: Topology,
    /// The instruction sets of this CPU, best first.
    #[cfg_attr(feature = "serde", serde(serialize_with = "isa_names"))]
    pub isas: Vec<Isa>,
    /// The one in use: the best, unless `GATESTREAM_ISA` names another.
    #[cfg_attr(feature = "serde", serde(serialize_with = "isa_name"))]
    pub isa: Isa,
    /// The measured ceilings, once measured.
    pub ceilings: Option<Ceilings>,
}

impl Machine {
    /// The machine this process runs on, not yet measured.
    ///
    /// # Errors
    /// [`IsaError`] if `GATESTREAM_ISA` names an instruction set that is unknown or absent.
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
/// The system keeps a set for each thread. On Linux these are the main thread's and the calling
/// thread's together, as they are now; once a team has pinned the main thread, those that it found
/// before. So a pinned thread sees all of them. Elsewhere the first answer is remembered.
pub fn allowed_cpus() -> Vec<usize> {
    let now = || {
        let mut cpus = BTreeSet::from_iter(affinity::main_thread_cpus()?);
        if let Some(own) = Mask::of_this_thread() {
            cpus.extend(own.cpus());
        }
        (!cpus.is_empty()).then_some(cpus)
    };
    match (REMEMBERED.get(), now()) {
        (None, Some(cpus)) => cpus.into_iter().collect(),
        _ => remembered_cpus().to_vec(),
    }
}

static REMEMBERED: OnceLock<Vec<usize>> = OnceLock::new();

/// [`allowed_cpus`], for a thread that is about to be pinned: from then on the main thread's set
/// tells nothing of the process.
pub(crate) fn remember_cpus() {
    if affinity::is_main_thread() {
        remembered_cpus();
    }
}

fn remembered_cpus() -> &'static [usize] {
    REMEMBERED.get_or_init(|| {
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        let mut cpus: Vec<usize> = ids.into_iter().map(|core| core.id).collect();
        if cpus.is_empty() {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            cpus = (0..count).collect();
        }
        cpus.sort_unstable();
        cpus
    })
}

/// Threads that can run at once: the CPUs of [`allowed_cpus`], or fewer where control groups grant
/// less processor time.
pub(crate) fn runnable_threads() -> usize {
    let quota = quota::whole_cpus(Path::new("/")).unwrap_or(usize::MAX);
    allowed_cpus().len().min(quota)
}
