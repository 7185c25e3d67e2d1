//! Detecting the machine, and queries for planning.

use std::collections::BTreeSet;
use std::path::Path;

use super::types::{
    Cache, CacheKind, Core, CpuList, Level, NumaNode, Source, Topology, TopologyError,
};

impl Topology {
    /// The machine this process runs on: from `/sys`; else, with feature `hwloc`, from that
    /// library; else the guess of [`Topology::count_only`], on Windows and macOS with the number of
    /// cores that the system tells. Never fails; [`Topology::source`] says which it was.
    ///
    /// The CPUs of the process are listed ([`allowed_cpus`](super::allowed_cpus)), also for a
    /// thread that is pinned.
    ///
    /// ```
    /// let machine = gatestream::machine::Topology::detect();
    /// assert!(!machine.cores.is_empty());
    /// ```
    pub fn detect() -> Topology {
        let allowed = super::allowed_cpus();
        let found = super::sysfs::read(Path::new("/"), &allowed);
        #[cfg(feature = "hwloc")]
        let found = found.or_else(|first| super::hwloc::read(&allowed).map_err(|_| first));
        Topology::or_counted(found, &allowed)
    }

    /// What was read, or a guess.
    fn or_counted(found: Result<Topology, TopologyError>, allowed: &[usize]) -> Topology {
        let mut topology = found.unwrap_or_else(|error| {
            Topology::counted(allowed, threads_of_core(allowed.len()), error.to_string())
        });
        // The affinity mask does not show the quota of control groups.
        topology.cpu_quota =
            Some(super::runnable_threads()).filter(|&quota| quota < topology.cpus());
        topology
    }

    /// The guess for a system that tells nothing but its CPUs: each is a core of its own, all in
    /// one package and node, each with a private L1 data cache of 32 KiB and L2 of 256 KiB. The
    /// sizes are the smallest of common x86-64 and AArch64 server cores of the last decade: a slice
    /// planned for too small a cache is merely cut finer, one planned for too large a cache is
    /// fetched again every step.
    pub fn count_only(cpus: &[usize], why: String) -> Topology {
        Topology::counted(cpus, 1, why)
    }

    /// As [`Topology::count_only`], with so many CPUs that follow each other on each core.
    fn counted(cpus: &[usize], threads_of_core: usize, why: String) -> Topology {
        let cpus = Vec::from_iter(BTreeSet::from_iter(cpus.iter().copied()));
        let cores = || cpus.chunks(threads_of_core.max(1)).map(<[usize]>::to_vec);
        let cache = |level, kind, kib: usize, cpus| Cache {
            level,
            kind,
            bytes: kib << 10,
            line_bytes: 64,
            cpus,
            sharing_cores: 1,
        };
        let l1 = cores().map(|cpus| cache(1, CacheKind::Data, 32, cpus));
        let l2 = cores().map(|cpus| cache(2, CacheKind::Unified, 256, cpus));
        Topology {
            cpu_model: "unknown".to_string(),
            cores: cores()
                .map(|cpus| Core {
                    cpus,
                    package: 0,
                    numa_node: 0,
                })
                .collect(),
            caches: l1.chain(l2).collect(),
            numa_nodes: vec![NumaNode {
                id: 0,
                cpus: cpus.clone(),
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
    /// the last cache level stand next to each other, so that a small team stays within one node
    /// and cache. Of the nodes and caches, those whose cores own the larger private caches come
    /// first (on a hybrid processor: the fast cores), then those with more usable cores. A team
    /// larger than the machine starts over from the first CPU.
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
    /// [`TopologyError::Contradiction`] where a list is empty or unordered, a CPU belongs to two
    /// cores or two memory nodes, a cache is empty, stands before an unknown CPU or overlaps
    /// another of its level and kind, or a core's memory node is not listed with it.
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

/// CPUs of each core, where the system tells the number of cores alone: those of a core then have
/// numbers that follow each other, as on Windows. Linux numbers them otherwise, and tells more.
fn threads_of_core(allowed: usize) -> usize {
    if cfg!(target_os = "linux") {
        return 1;
    }
    let (all, cores) = (num_cpus::get(), num_cpus::get_physical());
    let is_whole = allowed == all && cores > 0 && all.is_multiple_of(cores);
    if is_whole { all / cores } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on systems without `/sys`: Windows and macOS.
    #[test]
    fn without_a_description_cpus_are_counted() {
        let empty = tempfile::tempdir().unwrap();
        let allowed = super::super::allowed_cpus();
        let found = super::super::sysfs::read(empty.path(), &allowed);
        assert!(found.is_err());
        let topology = Topology::or_counted(found, &allowed);
        topology.validate().unwrap();
        assert!(matches!(topology.source, Source::CountOnly { .. }));
        assert_eq!(topology.cpus(), allowed.len());
        assert!((1..=allowed.len()).contains(&topology.team_size()));
        for core in &topology.cores {
            assert!(topology.private_cache_bytes(core) > 0);
        }
        assert_eq!(
            topology.cpus_for_team(2 * allowed.len()).len(),
            2 * allowed.len()
        );
    }

    #[test]
    fn cpus_of_a_core_follow_each_other() {
        let topology = Topology::counted(&[0, 1, 2, 3, 4, 5], 2, "a test".into());
        topology.validate().unwrap();
        assert_eq!((topology.team_size(), topology.cpus()), (3, 6));
        assert_eq!(topology.cpus_for_team(4), [0, 2, 4, 1]);
    }
}
