//! Cores, caches and memory nodes as plain comparable data.

use std::fmt;

/// What this process may run on, and the caches that stand behind it.
///
/// Only logical CPUs in this process's affinity mask are listed, so the restrictions of a container
/// or of `taskset` are part of the answer. CPU numbers are the operating system's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Topology {
    /// The processor's own name for itself; `"unknown"` where the system does not tell.
    pub cpu_model: String,
    /// Physical cores with at least one usable CPU, by lowest CPU number.
    pub cores: Vec<Core>,
    /// Caches that usable CPUs stand before, by level, then kind, then lowest CPU number.
    pub caches: Vec<Cache>,
    /// Memory nodes with at least one usable CPU, by id. Never empty.
    pub numa_nodes: Vec<NumaNode>,
    /// Whole CPUs' worth of time within the container's quota (1.5 CPUs: 1), where that is less
    /// than the number of usable CPUs: the scheduler stops a larger team in the middle of its work.
    pub cpu_quota: Option<usize>,
    /// Where this was read.
    pub source: Source,
}

/// One physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Core {
    /// The usable logical CPUs of this core, ascending; more than one where SMT is on.
    pub cpus: Vec<usize>,
    /// The socket it sits in.
    pub package: usize,
    /// The id of the memory node it sits in.
    pub numa_node: usize,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Capacity in bytes.
    pub bytes: usize,
    /// Line size in bytes; 0 where the system does not tell.
    pub line_bytes: usize,
    /// The usable logical CPUs behind it, ascending.
    pub cpus: Vec<usize>,
    /// How many physical cores share it, those counted that this process may not use: their owners
    /// take their part of the capacity too.
    pub sharing_cores: usize,
}

/// Where data stays while it is read again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The first-level data cache.
    L1,
    /// The second level.
    L2,
    /// The third level.
    L3,
    /// No cache holds it.
    Memory,
}

/// One memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NumaNode {
    /// The operating system's number.
    pub id: usize,
    /// The usable logical CPUs next to it, ascending.
    pub cpus: Vec<usize>,
}

/// Where a [`Topology`] was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Source {
    /// Linux's `/sys`.
    Sysfs,
    /// The hwloc library.
    Hwloc,
    /// Nowhere: the CPUs were counted, and on Windows and macOS the cores. All are guessed to be in
    /// one node, each core with a private L1 of 32 KiB and L2 of 256 KiB
    /// ([`Topology::count_only`]).
    CountOnly {
        /// Why nothing better was found.
        why: String,
    },
}

/// Why a topology could not be read, or contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file that must be there cannot be read.
    #[error("cannot read {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        why: String,
    },
    /// A file holds something else than its format allows.
    #[error("{path} holds {found:?}; {wanted} was expected")]
    Malformed {
        /// The file.
        path: String,
        /// Its content.
        found: String,
        /// What its format is.
        wanted: &'static str,
    },
    /// The parts are readable, but cannot all be true.
    #[error("the described machine contradicts itself: {0}")]
    Contradiction(String),
    /// No usable CPU is described.
    #[error("none of the CPUs this process may run on ({allowed:?}) is described")]
    NoUsableCpu {
        /// The CPUs this process may run on.
        allowed: Vec<usize>,
    },
    /// The hwloc library failed.
    #[error("hwloc: {0}")]
    Hwloc(String),
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        write!(
            f,
            "L{}{kind} {} of CPU {}",
            self.level,
            Bytes(self.bytes),
            CpuList(&self.cpus)
        )
    }
}

/// Shows CPU numbers the way Linux does: `0-3,8`.
#[derive(Clone, Copy, Debug)]
pub struct CpuList<'a>(pub &'a [usize]);

impl fmt::Display for CpuList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs = self.0.chunk_by(|a, b| a + 1 == *b).peekable();
        while let Some(run) = runs.next() {
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
            if runs.peek().is_some() {
                f.write_str(",")?;
            }
        }
        Ok(())
    }
}

/// Shows a size as `48 KiB` or `32 MiB`, whichever is whole.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} B"),
        }
    }
}
