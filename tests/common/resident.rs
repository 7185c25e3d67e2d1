//! The memory that this process holds, as the system counts it.

#![allow(dead_code)] // each test target needs some of it

/// Resident memory now, in bytes. `VmRSS` of `/proc/self/status` is a sum over CPUs that may lag by
/// 64 pages on each; the roll-up walks the page tables.
pub fn resident() -> f64 {
    let exact = std::fs::read_to_string("/proc/self/smaps_rollup");
    match exact {
        Ok(text) => field(&text, "Rss:"),
        Err(_) => field(
            &std::fs::read_to_string("/proc/self/status").unwrap(),
            "VmRSS:",
        ),
    }
}

/// The most that was resident so far, in bytes.
pub fn peak() -> f64 {
    field(
        &std::fs::read_to_string("/proc/self/status").unwrap(),
        "VmHWM:",
    )
}

fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    let kilobytes = line.split_ascii_whitespace().nth(1).unwrap();
    1024.0 * kilobytes.parse::<f64>().unwrap()
}
