//! Bounds that an administrator sets while a process runs: its CPU set, its quota.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, id};

/// Moves all threads of this process to these CPUs, as a list (`0-1`).
pub fn confine(cpus: &str) {
    let taskset = Command::new("taskset")
        .args([
            "--all-tasks",
            "--cpu-list",
            "--pid",
            cpus,
            &id().to_string(),
        ])
        .stdout(Stdio::null())
        .status();
    assert!(taskset.is_ok_and(|status| status.success()), "`taskset`");
}

/// A control group with this process in it, until it is dropped.
pub struct Quota {
    group: PathBuf,
}

/// In microseconds, as systems set it.
const PERIOD: u32 = 100_000;

impl Quota {
    /// Grants so many CPUs' worth of time. `None` without control groups of version 1, or without
    /// the right to make one.
    pub fn new(cpus: f64) -> Option<Quota> {
        let group = Path::new("/sys/fs/cgroup/cpu").join(format!("gatestream-{}", id()));
        std::fs::create_dir(&group).ok()?;
        let quota = Quota { group };
        let write = |name: &str, value: String| std::fs::write(quota.group.join(name), value).ok();
        write("cpu.cfs_period_us", PERIOD.to_string())?;
        write(
            "cpu.cfs_quota_us",
            ((f64::from(PERIOD) * cpus) as u32).to_string(),
        )?;
        write("cgroup.procs", id().to_string())?;
        Some(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = std::fs::write("/sys/fs/cgroup/cpu/cgroup.procs", id().to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}
