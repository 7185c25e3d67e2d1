//! Where and when a result was taken.

use std::process::Command;

use gatestream::kernels::Isa;
use gatestream::machine::Topology;
use gatestream::plan::KERNEL_SET;

/// The lines that stand above each table.
pub fn stamp() -> Vec<String> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    vec![
        format!("date: {now}"),
        format!("machine: {}", machine()),
        format!("gatestream: {}", version()),
        format!("command: {}", command()),
        format!("load before: {}", load()),
    ]
}

fn machine() -> String {
    let topology = Topology::detect();
    let isa = Isa::select().map_or_else(|e| e.to_string(), |isa| isa.to_string());
    let caches = topology.cores.first().map_or(Vec::new(), |core| {
        let caches = topology.data_caches(core);
        let text = caches.map(|c| {
            let shared = if c.sharing_cores > 1 { " shared" } else { "" };
            format!("L{} {} KiB{shared}", c.level, c.bytes >> 10)
        });
        text.collect()
    });
    let (cpu, cores) = (&topology.cpu_model, topology.team_size());
    format!("{cpu}, {cores} cores, {isa}, {}", caches.join(", "))
}

/// In a checkout the commit and whether the library was changed; and which set of kernels plans are
/// written for.
fn version() -> String {
    let run = |args: &[&str]| {
        let mut git = Command::new("git");
        let out = git.args(["-C", env!("CARGO_MANIFEST_DIR")]).args(args);
        let out = out.output().ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_string())
    };
    let commit = run(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "no commit".into());
    let changed = run(&["status", "--porcelain", "--", "../../src", "../../crates"]);
    let changed = if changed.is_some_and(|files| !files.is_empty()) {
        " with changes"
    } else {
        ""
    };
    format!("{commit}{changed}, kernel set {KERNEL_SET}")
}

/// The program and its arguments; of paths the last part only.
fn command() -> String {
    let last_part = |word: String| match word.rsplit_once('/') {
        Some((_, last)) => last.to_string(),
        None => word,
    };
    let words: Vec<String> = std::env::args().map(last_part).collect();
    words.join(" ")
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().filter(|load| !load.is_empty());
    load.unwrap_or("unknown").to_string()
}
