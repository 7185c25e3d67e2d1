//! Reads a [`Topology`] from Linux's `/sys` and `/proc`.
//!
//! Everything is taken from the lists that the kernel itself keeps (which CPUs are siblings, which
//! share a cache), never from numbering habits: CPU numbers, core ids and cache ids repeat or skip
//! from one firmware to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::types::{Cache, CacheKind, Core, NumaNode, Source, Topology, TopologyError};

/// Reads the machine described under `root` (`/` for the one this runs on), restricted to
/// `allowed`.
///
/// Caches and memory nodes that the system does not describe are left out (one node holding all
/// CPUs stands in for missing nodes); what it does describe must be well-formed.
///
/// # Errors
/// [`TopologyError`]: a file that must be there is missing, holds something unexpected, or the
/// parts contradict each other.
pub fn read(root: &Path, allowed: &[usize]) -> Result<Topology, TopologyError> {
    let tree = Tree { root };
    let described = tree.cpus("sys/devices/system/cpu/online")?;
    let usable: BTreeSet<usize> = allowed
        .iter()
        .copied()
        .filter(|cpu| described.contains(cpu))
        .collect();
    if usable.is_empty() {
        return Err(TopologyError::NoUsableCpu {
            allowed: allowed.to_vec(),
        });
    }

    // Siblings of every CPU, usable or not: they tell how many cores share a cache.
    let mut core_of = BTreeMap::new();
    for &cpu in &described {
        core_of.insert(cpu, tree.siblings(cpu)?);
    }
    let numa_nodes = tree.numa_nodes(&usable)?;
    let node_of = |cpu: usize| numa_nodes.iter().find(|node| node.cpus.contains(&cpu));

    let mut cores = BTreeMap::new();
    let mut caches = BTreeMap::new();
    for &cpu in &usable {
        let cpus: Vec<usize> = core_of[&cpu].intersection(&usable).copied().collect();
        let package = tree.number(&topology_file(cpu, "physical_package_id"))?;
        let numa_node = node_of(cpu).map_or(0, |node| node.id);
        // Siblings with different lists of siblings become two cores, which `validate` refuses.
        cores.entry(cpus.clone()).or_insert(Core {
            cpus,
            package,
            numa_node,
        });
        for mut cache in tree.caches_of(cpu)? {
            let sharing: BTreeSet<_> = cache.cpus.iter().filter_map(|c| core_of.get(c)).collect();
            cache.sharing_cores = sharing.len();
            cache.cpus.retain(|c| usable.contains(c));
            // Each sharing CPU describes the cache once more; equal descriptions are one cache.
            let key = (
                cache.level,
                cache.kind,
                cache.cpus.clone(),
                cache.bytes,
                cache.line_bytes,
            );
            caches.entry(key).or_insert(cache);
        }
    }

    let topology = Topology {
        cpu_model: tree.cpu_model(),
        cores: cores.into_values().collect(),
        caches: caches.into_values().collect(),
        numa_nodes,
        cpu_quota: None,
        source: Source::Sysfs,
    };
    topology.validate()?;
    Ok(topology)
}

fn topology_file(cpu: usize, name: &str) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}")
}

/// A recorded or live file tree.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The trimmed text of a file; `None` where there is none.
    fn text(&self, name: &str) -> Result<Option<String>, TopologyError> {
        let path = self.path(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_string())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(TopologyError::Unreadable {
                path: path.display().to_string(),
                why: e.to_string(),
            }),
        }
    }

    fn required(&self, name: &str) -> Result<String, TopologyError> {
        self.text(name)?.ok_or_else(|| TopologyError::Unreadable {
            path: self.path(name).display().to_string(),
            why: "no such file".to_string(),
        })
    }

    fn malformed(&self, name: &str, found: &str, wanted: &'static str) -> TopologyError {
        TopologyError::Malformed {
            path: self.path(name).display().to_string(),
            found: found.chars().take(80).collect(),
            wanted,
        }
    }

    /// A number; -1, which the kernel writes for "not known", counts as 0.
    fn number(&self, name: &str) -> Result<usize, TopologyError> {
        let text = self.required(name)?;
        match text.parse() {
            Ok(number) => Ok(number),
            Err(_) if text == "-1" => Ok(0),
            Err(_) => Err(self.malformed(name, &text, "a whole number")),
        }
    }

    fn cpus(&self, name: &str) -> Result<BTreeSet<usize>, TopologyError> {
        let text = self.required(name)?;
        parse_cpu_list(&text)
            .ok_or_else(|| self.malformed(name, &text, "a list of CPUs such as 0-3,8"))
    }

    fn siblings(&self, cpu: usize) -> Result<BTreeSet<usize>, TopologyError> {
        // Kernels before 5.3 know the file only by its old name.
        let new = topology_file(cpu, "core_cpus_list");
        let name = match self.text(&new)? {
            Some(_) => new,
            None => topology_file(cpu, "thread_siblings_list"),
        };
        let siblings = self.cpus(&name)?;
        if siblings.contains(&cpu) {
            Ok(siblings)
        } else {
            let path = self.path(&name);
            Err(TopologyError::Contradiction(format!(
                "{} does not list CPU {cpu} itself",
                path.display()
            )))
        }
    }

    /// The caches that this CPU stands before; `cpus` lists all that share each, and
    /// `sharing_cores` is not yet known.
    fn caches_of(&self, cpu: usize) -> Result<Vec<Cache>, TopologyError> {
        let mut caches = Vec::new();
        for index in 0.. {
            let at = |file| format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{file}");
            let Some(level) = self.text(&at("level"))? else {
                break;
            };
            let level = level
                .parse()
                .map_err(|_| self.malformed(&at("level"), &level, "a cache level"))?;
            let kind = match self.required(&at("type"))?.as_str() {
                "Data" => CacheKind::Data,
                "Instruction" => CacheKind::Instruction,
                "Unified" => CacheKind::Unified,
                other => {
                    let wanted = "Data, Instruction or Unified";
                    return Err(self.malformed(&at("type"), other, wanted));
                }
            };
            // Firmware may name a cache and keep its size to itself: nothing can be planned for it.
            let Some(size) = self.text(&at("size"))? else {
                continue;
            };
            let bytes = parse_size(&size)
                .ok_or_else(|| self.malformed(&at("size"), &size, "a size such as 48K"))?;
            if bytes == 0 {
                continue;
            }
            let line_bytes = match self.text(&at("coherency_line_size"))? {
                Some(_) => self.number(&at("coherency_line_size"))?,
                None => 0,
            };
            let sharing = self.cpus(&at("shared_cpu_list"))?;
            if !sharing.contains(&cpu) {
                let path = self.path(&at("shared_cpu_list"));
                return Err(TopologyError::Contradiction(format!(
                    "{} does not list CPU {cpu} itself",
                    path.display()
                )));
            }
            caches.push(Cache {
                level,
                kind,
                bytes,
                line_bytes,
                cpus: sharing.into_iter().collect(),
                sharing_cores: 0,
            });
        }
        Ok(caches)
    }

    fn numa_nodes(&self, usable: &BTreeSet<usize>) -> Result<Vec<NumaNode>, TopologyError> {
        let mut nodes = Vec::new();
        // A kernel built without NUMA has no such directory.
        if self.text("sys/devices/system/node/online")?.is_some() {
            for id in self.cpus("sys/devices/system/node/online")? {
                let cpus = self.cpus(&format!("sys/devices/system/node/node{id}/cpulist"))?;
                let cpus: Vec<usize> = cpus.intersection(usable).copied().collect();
                if !cpus.is_empty() {
                    nodes.push(NumaNode { id, cpus });
                }
            }
        }
        if nodes.is_empty() {
            let cpus = usable.iter().copied().collect();
            nodes.push(NumaNode { id: 0, cpus });
        }
        Ok(nodes)
    }

    /// The x86 name; on AArch64, which has none, the implementer and part numbers.
    fn cpu_model(&self) -> String {
        let text = self.text("proc/cpuinfo").ok().flatten().unwrap_or_default();
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_string())
                .filter(|value| !value.is_empty())
        };
        field("model name")
            .or_else(|| {
                let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
                Some(format!("implementer {implementer} part {part}"))
            })
            .unwrap_or_else(|| "unknown".to_string())
    }
}

/// `0-3,8` as a set; the empty text is the empty set. The ranges of a sane machine stay below 2^16.
pub(super) fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for range in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// `48K`, `32M`, `1G` or plain bytes.
fn parse_size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}
