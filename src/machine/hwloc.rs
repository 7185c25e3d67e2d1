//! Reads a [`Topology`] through the hwloc library (feature `hwloc`), which knows more operating
//! systems than Linux. On one machine it gives what [`super::sysfs`] gives, but for the source.

use std::collections::BTreeSet;

use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{CacheType, ObjectType};
use hwlocality::topology::builder::{BuildFlags, TypeFilter};

use super::types::{Cache, CacheKind, Core, NumaNode, Source, Topology, TopologyError};

/// Reads the machine this runs on, restricted to `allowed`.
///
/// # Errors
/// [`TopologyError::Hwloc`] where the library fails, [`TopologyError::NoUsableCpu`], or
/// [`TopologyError::Contradiction`].
pub fn read(allowed: &[usize]) -> Result<Topology, TopologyError> {
    let failed = |error: &dyn std::fmt::Display| TopologyError::Hwloc(error.to_string());
    let machine = hwlocality::Topology::builder()
        // CPUs of others count, too: they tell how many cores share a cache.
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|e| failed(&e))?
        .with_cpu_icache_type_filter(TypeFilter::KeepAll)
        .map_err(|e| failed(&e))?
        .build()
        .map_err(|e| failed(&e))?;

    let allowed: BTreeSet<usize> = allowed.iter().copied().collect();
    let usable = |object: &TopologyObject| -> Vec<usize> {
        cpus(object).intersection(&allowed).copied().collect()
    };

    let mut numa_nodes: Vec<NumaNode> = machine
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|node| Some((node.os_index()?, usable(node))))
        .filter(|(_, cpus)| !cpus.is_empty())
        .map(|(id, cpus)| NumaNode { id, cpus })
        .collect();
    numa_nodes.sort_by_key(|node| node.id);

    let mut cores = Vec::new();
    for core in machine.objects_with_type(ObjectType::Core) {
        let cpus = usable(core);
        let Some(&first) = cpus.first() else { continue };
        let package = core.first_ancestor_with_type(ObjectType::Package);
        let node = numa_nodes.iter().find(|node| node.cpus.contains(&first));
        cores.push(Core {
            package: package.and_then(|p| p.os_index()).unwrap_or(0),
            numa_node: node.map_or(0, |node| node.id),
            cpus,
        });
    }
    cores.sort_by_key(|core| core.cpus[0]);
    if cores.is_empty() {
        return Err(TopologyError::NoUsableCpu {
            allowed: allowed.into_iter().collect(),
        });
    }

    let mut caches: Vec<Cache> = machine
        .normal_objects()
        .filter_map(|object| match object.attributes() {
            Some(ObjectAttributes::Cache(cache)) => Some((object, cache)),
            _ => None,
        })
        .filter_map(|(object, cache)| {
            let behind = cpus(object);
            let sharing = machine
                .objects_with_type(ObjectType::Core)
                .filter(|&core| !cpus(core).is_disjoint(&behind));
            Some(Cache {
                level: cache.depth().try_into().ok()?,
                kind: match cache.cache_type() {
                    CacheType::Data => CacheKind::Data,
                    CacheType::Instruction => CacheKind::Instruction,
                    _ => CacheKind::Unified,
                },
                bytes: cache.size()?.get().try_into().ok()?,
                line_bytes: cache.line_size().map_or(0, |line| line.get()),
                cpus: usable(object),
                sharing_cores: sharing.count(),
            })
        })
        .filter(|cache| !cache.cpus.is_empty())
        .collect();
    caches.sort_by(|a, b| (a.level, a.kind, &a.cpus).cmp(&(b.level, b.kind, &b.cpus)));

    let mut packages = machine.objects_with_type(ObjectType::Package);
    let cpu_model = packages
        .find_map(|package| package.info("CPUModel"))
        .or_else(|| machine.root_object().info("CPUModel"))
        .map(|name| name.to_string_lossy().trim().to_string());
    let topology = Topology {
        cpu_model: cpu_model.unwrap_or_else(|| "unknown".to_string()),
        cores,
        caches,
        numa_nodes,
        cpu_quota: None,
        source: Source::Hwloc,
    };
    topology.validate()?;
    Ok(topology)
}

fn cpus(object: &TopologyObject) -> BTreeSet<usize> {
    // The machine's own set could be infinite in principle; take only indices that exist.
    let set = object.cpuset();
    set.iter()
        .flat_map(|set| set.iter_set())
        .map(usize::from)
        .take_while(|&cpu| cpu < 1 << 16)
        .collect()
}
