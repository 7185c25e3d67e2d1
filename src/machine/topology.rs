//! Cores, caches and memory nodes as plain comparable data, and the questions a planner asks of them.

use std::collections::BTreeSet;
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
    /// Whole CPUs' worth of time that the container's quota grants, where that is less than the
    /// number of usable CPUs: the scheduler stops a larger team in the middle of its work.
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
    /// Nowhere: the CPUs were counted, and each is guessed to be a core of its own, all in one
    /// node, with a private L1 of 32 KiB and L2 of 256 KiB ([`Topology::count_only`]).
    CountOnly {
        /// Why nothing better was found.
        why: String,
    },
}

/// Why a topology could not be read, or contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

impl Topology {
    /// The machine this process runs on: from `/sys`; else, with feature `hwloc`, from that library;
    /// else [`Topology::count_only`]. Never fails; [`Topology::source`] says which it was.
    ///
    /// Only CPUs that the calling thread may run on are listed: call it before pinning the thread.
    ///
    /// ```
    /// let machine = cellstream::machine::Topology::detect();
    /// assert!(!machine.cores.is_empty());
    /// ```
    pub fn detect() -> Topology {
        let allowed = super::allowed_cpus();
        let found = super::sysfs::read(std::path::Path::new("/"), allowed);
        #[cfg(feature = "hwloc")]
        let found = found.or_else(|first| super::hwloc::read(allowed).map_err(|_| first));
        let mut topology =
            found.unwrap_or_else(|error| Topology::count_only(allowed, error.to_string()));
        // num_cpus honours the quota of control groups, which the affinity mask does not show.
        topology.cpu_quota =
            Some(super::runnable_threads()).filter(|&quota| quota < topology.cpus());
        topology
    }

    /// The guess for a system that tells nothing but its CPUs: each is a core of its own, all in one
    /// package and node, each with a private L1 data cache of 32 KiB and L2 of 256 KiB. The sizes are
    /// the smallest of common x86-64 and AArch64 server cores of the last decade: a slice planned for
    /// too small a cache is merely cut finer, one planned for too large a cache is fetched again
    /// every step.
    pub fn count_only(cpus: &[usize], why: String) -> Topology {
        let cpus: BTreeSet<usize> = cpus.iter().copied().collect();
        let cache = |level, kind, kib: usize, cpu| Cache {
            level,
            kind,
            bytes: kib << 10,
            line_bytes: 64,
            cpus: vec![cpu],
            sharing_cores: 1,
        };
        let l1 = cpus.iter().map(|&cpu| cache(1, CacheKind::Data, 32, cpu));
        let l2 = cpus
            .iter()
            .map(|&cpu| cache(2, CacheKind::Unified, 256, cpu));
        Topology {
            cpu_model: "unknown".to_string(),
            cores: cpus
                .iter()
                .map(|&cpu| Core {
                    cpus: vec![cpu],
                    package: 0,
                    numa_node: 0,
                })
                .collect(),
            caches: l1.chain(l2).collect(),
            numa_nodes: vec![NumaNode {
                id: 0,
                cpus: cpus.iter().copied().collect(),
            }],
            cpu_quota: None,
            source: Source::CountOnly { why },
        }
    }

    /// Number of usable logical CPUs.
    pub fn cpus(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// The caches for data that the core stands before, from nearest to farthest.
    pub fn data_caches<'a>(&'a self, core: &Core) -> impl Iterator<Item = &'a Cache> {
        self.caches.iter().filter(move |cache| {
            cache.kind != CacheKind::Instruction
                && core.cpus.iter().any(|cpu| cache.cpus.contains(cpu))
        })
    }

    /// The data or unified cache of this level that the core stands before.
    pub fn cache_at(&self, core: &Core, level: u8) -> Option<&Cache> {
        self.data_caches(core).find(|cache| cache.level == level)
    }

    /// The largest data or unified cache that no other core shares.
    pub fn private_cache(&self, core: &Core) -> Option<&Cache> {
        self.data_caches(core)
            .filter(|cache| cache.sharing_cores == 1)
            .max_by_key(|cache| (cache.bytes, cache.level))
    }

    /// The largest data or unified cache that other cores share too.
    pub fn shared_cache(&self, core: &Core) -> Option<&Cache> {
        self.data_caches(core)
            .filter(|cache| cache.sharing_cores > 1)
            .max_by_key(|cache| (cache.bytes, cache.level))
    }

    /// The nearest level that holds `bytes` of this core's own, when every core that shares a cache
    /// takes an equal part of it.
    pub fn level_holding(&self, core: &Core, bytes: usize) -> Level {
        self.data_caches(core)
            .find(|cache| cache.bytes / cache.sharing_cores >= bytes)
            .map_or(Level::Memory, |cache| match cache.level {
                1 => Level::L1,
                2 => Level::L2,
                // A fourth level has no measured ceiling of its own.
                3 => Level::L3,
                _ => Level::Memory,
            })
    }

    /// Bytes of the largest cache that no other core shares; 0 where there is none.
    pub fn private_cache_bytes(&self, core: &Core) -> usize {
        self.private_cache(core).map_or(0, |cache| cache.bytes)
    }

    /// Threads of a team that uses every core once and stays within the container's quota.
    pub fn team_size(&self) -> usize {
        self.cores
            .len()
            .min(self.cpu_quota.unwrap_or(usize::MAX))
            .max(1)
    }

    /// The logical CPUs to pin a team of `threads` to, in team order.
    ///
    /// One CPU of each physical core comes first, then second siblings. Cores that share memory and
    /// the last cache level stand next to each other, so that a small team stays within one node and
    /// cache. Of the nodes and caches, those whose cores own the larger private caches come first
    /// (on a hybrid processor: the fast cores), then those with more usable cores. A team larger than
    /// the machine starts over from the first CPU.
    pub fn cpus_for_team(&self, threads: usize) -> Vec<usize> {
        use std::cmp::Reverse;
        let biggest_private = |in_group: &dyn Fn(&Core) -> bool| {
            let members = self.cores.iter().filter(|core| in_group(core));
            members
                .map(|core| self.private_cache_bytes(core))
                .max()
                .unwrap_or(0)
        };
        let count = |in_group: &dyn Fn(&Core) -> bool| {
            self.cores.iter().filter(|core| in_group(core)).count()
        };
        // The last level a core shares names its group; cores without one share only their node.
        let group = |core: &Core| {
            self.data_caches(core)
                .filter(|cache| cache.sharing_cores > 1)
                .last()
                .map(|cache| cache.cpus[0])
        };
        let mut cores: Vec<&Core> = self.cores.iter().collect();
        cores.sort_by_cached_key(|core| {
            let same_node = |other: &Core| other.numa_node == core.numa_node;
            let same_group = |other: &Core| same_node(other) && group(other) == group(core);
            (
                Reverse(biggest_private(&same_node)),
                Reverse(count(&same_node)),
                core.numa_node,
                Reverse(biggest_private(&same_group)),
                Reverse(count(&same_group)),
                group(core),
                Reverse(self.private_cache_bytes(core)),
                core.cpus[0],
            )
        });
        let most_siblings = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        let order: Vec<usize> = (0..most_siblings)
            .flat_map(|sibling| cores.iter().filter_map(move |core| core.cpus.get(sibling)))
            .copied()
            .collect();
        order.iter().copied().cycle().take(threads).collect()
    }

    /// Checks what every reader must deliver.
    ///
    /// # Errors
    /// [`TopologyError::Contradiction`] where a list is empty or unordered, a CPU belongs to two cores
    /// or two memory nodes, a cache is empty, stands before an unknown CPU or overlaps another of its
    /// level and kind, or a core's memory node is not listed with it.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let wrong = |what: String| Err(TopologyError::Contradiction(what));
        let ascending = |cpus: &[usize]| !cpus.is_empty() && cpus.is_sorted_by(|a, b| a < b);

        let mut known = BTreeSet::new();
        for core in &self.cores {
            if !ascending(&core.cpus) {
                return wrong(format!(
                    "a core's CPUs {} are not ascending",
                    CpuList(&core.cpus)
                ));
            }
            if let Some(cpu) = core.cpus.iter().find(|&&cpu| !known.insert(cpu)) {
                return wrong(format!("CPU {cpu} belongs to two cores"));
            }
        }
        if known.is_empty() {
            return wrong("it has no cores".to_string());
        }

        let mut placed = BTreeSet::new();
        for node in &self.numa_nodes {
            if !ascending(&node.cpus) {
                return wrong(format!("the CPUs of node {} are not ascending", node.id));
            }
            if let Some(cpu) = node.cpus.iter().find(|&&cpu| !placed.insert(cpu)) {
                return wrong(format!("CPU {cpu} belongs to two memory nodes"));
            }
        }
        if placed != known {
            return wrong("cores and memory nodes list different CPUs".to_string());
        }
        for core in &self.cores {
            let mut nodes = self.numa_nodes.iter();
            let node = nodes.find(|node| node.id == core.numa_node);
            if !node.is_some_and(|node| core.cpus.iter().all(|cpu| node.cpus.contains(cpu))) {
                let (first, node) = (core.cpus[0], core.numa_node);
                return wrong(format!(
                    "the core of CPU {first} is not within memory node {node}"
                ));
            }
        }

        let mut covered = BTreeSet::new();
        for cache in &self.caches {
            let name = cache.to_string();
            if cache.bytes == 0 || cache.level == 0 || cache.sharing_cores == 0 {
                return wrong(format!("{name} has no size, no level or no core"));
            }
            if !ascending(&cache.cpus) || !cache.cpus.iter().all(|cpu| known.contains(cpu)) {
                return wrong(format!("{name} stands before CPUs that no core has"));
            }
            if let Some(cpu) = cache
                .cpus
                .iter()
                .find(|&&cpu| !covered.insert((cache.level, cache.kind, cpu)))
            {
                return wrong(format!(
                    "CPU {cpu} stands behind two caches that overlap, one being {name}"
                ));
            }
        }
        Ok(())
    }
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
