//! The processor time that control groups grant this process.

use std::path::{Path, PathBuf};

/// Whole CPUs' worth of time within the tightest quota of this process's control groups, at least
/// 1: of a quota of 1.5 CPUs two threads would be stopped for a quarter of the time. `None` without
/// a quota. `root` is `/`, or a tree that stands for it.
pub(super) fn whole_cpus(root: &Path) -> Option<usize> {
    let text = |path: PathBuf| std::fs::read_to_string(path).ok();
    let groups = text(root.join("proc/self/cgroup"))?;
    let mounts = text(root.join("proc/self/mountinfo"))?;
    let quotas = groups.lines().flat_map(|group| {
        // `ID:CONTROLLERS:PATH`; version 2 has no controllers.
        let mut fields = group.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_second = controllers.is_empty();
        let is_of_cpu = controllers.split(',').any(|name| name == "cpu");
        if !is_second && !is_of_cpu {
            return None;
        }
        let mount = { mounts.lines() }.filter_map(Mount::parse).find(|mount| {
            if is_second {
                mount.kind == "cgroup2"
            } else {
                mount.kind == "cgroup" && mount.options.split(',').any(|o| o == "cpu")
            }
        })?;
        let group = mount.place(Path::new(path));
        let top = root.join(mount.at.strip_prefix("/").ok()?);
        // Each group is bound by those above it, too.
        let folders = group.ancestors().map(|folder| top.join(folder));
        folders
            .filter_map(|folder| {
                if is_second {
                    second(&text(folder.join("cpu.max"))?)
                } else {
                    first(
                        &text(folder.join("cpu.cfs_quota_us"))?,
                        &text(folder.join("cpu.cfs_period_us"))?,
                    )
                }
            })
            .min()
    });
    quotas.min()
}

/// Where a hierarchy of control groups is mounted.
struct Mount<'a> {
    /// The group that is seen there.
    shows: &'a Path,
    at: &'a Path,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo`: `ID PARENT DEVICE SHOWS AT OPTIONS … - KIND SOURCE OPTIONS`.
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (mount, of) = line.split_once(" - ")?;
        let (mut mount, mut of) = (mount.split(' ').skip(3), of.split(' '));
        Some(Mount {
            shows: Path::new(mount.next()?),
            at: Path::new(mount.next()?),
            kind: of.next()?,
            options: of.nth(1)?,
        })
    }

    /// A group, from the mount's top; one that is not seen there is the top.
    fn place<'g>(&self, group: &'g Path) -> &'g Path {
        let seen = group.strip_prefix(self.shows);
        seen.unwrap_or(Path::new(""))
    }
}

fn second(max: &str) -> Option<usize> {
    let (quota, period) = max.trim().split_once(' ')?;
    whole(quota, period)
}

fn first(quota: &str, period: &str) -> Option<usize> {
    whole(quota.trim(), period.trim())
}

/// `None` for `max` and -1, which are no quota.
fn whole(quota: &str, period: &str) -> Option<usize> {
    let (quota, period): (usize, usize) = (quota.parse().ok()?, period.parse().ok()?);
    Some(quota.checked_div(period)?.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer for a tree of these files.
    fn of(files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        whole_cpus(root.path())
    }

    const SECOND: &str = "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
    const FIRST: &str = "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

    fn second(group: &str, quotas: &[(&str, &str)]) -> Option<usize> {
        let group = format!("0::{group}\n");
        let mut files = vec![
            ("proc/self/cgroup", &*group),
            ("proc/self/mountinfo", SECOND),
        ];
        files.extend(quotas);
        of(&files)
    }

    fn first(group: &str, quota: &str, period: &str) -> Option<usize> {
        let groups = format!("5:memory:/elsewhere\n3:cpu,cpuacct:{group}\n0::/\n");
        of(&[
            ("proc/self/cgroup", &groups),
            ("proc/self/mountinfo", FIRST),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quota),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", period),
        ])
    }

    #[test]
    fn a_quota_of_one_and_a_half_cpus_is_one_thread() {
        for (quota, cpus) in [(150, 1), (50, 1), (100, 1), (199, 1), (200, 2), (450, 4)] {
            let max = format!("{quota}000 100000\n");
            assert_eq!(
                second("/a", &[("sys/fs/cgroup/a/cpu.max", &max)]),
                Some(cpus)
            );
            assert_eq!(
                first("/a", &format!("{quota}000\n"), "100000\n"),
                Some(cpus)
            );
        }
    }

    #[test]
    fn no_quota_is_none() {
        assert_eq!(
            second("/a", &[("sys/fs/cgroup/a/cpu.max", "max 100000\n")]),
            None
        );
        assert_eq!(second("/a", &[]), None);
        assert_eq!(first("/a", "-1\n", "100000\n"), None);
        assert_eq!(of(&[]), None);
        assert_eq!(second("/a", &[("sys/fs/cgroup/a/cpu.max", "5 0")]), None);
    }

    #[test]
    fn the_tightest_quota_above_counts() {
        let quotas = [
            ("sys/fs/cgroup/a/cpu.max", "300000 100000"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
            ("sys/fs/cgroup/a/b/c/cpu.max", "500000 100000"),
            ("sys/fs/cgroup/other/cpu.max", "100000 100000"),
        ];
        assert_eq!(second("/a/b/c", &quotas), Some(3));
        assert_eq!(second("/a/b", &quotas), Some(3));
        assert_eq!(second("/", &quotas), None);
    }

    /// A container sees its own group as the top, while the kernel tells the host's path.
    #[test]
    fn in_a_container_the_top_is_its_own_group() {
        let mount = "30 25 0:26 /docker/7 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        for group in ["/docker/7", "/docker/7/", "/elsewhere"] {
            let found = of(&[
                ("proc/self/cgroup", &format!("3:cpu:{group}")),
                ("proc/self/mountinfo", mount),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
            ]);
            assert_eq!(found, Some(2), "{group}");
        }
    }
}
