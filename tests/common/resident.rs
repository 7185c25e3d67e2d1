//! The memory that this process holds, as the system counts it.

#![allow(dead_code)] // each test target needs some of it

/// Resident memory now, in bytes, with the pages of the program itself. `VmRSS` of
/// `/proc/self/status` is a sum over CPUs that may lag by 64 pages on each; the roll-up walks the
/// page tables.
pub fn resident() -> f64 {
    count("Rss:", "VmRSS:")
}

/// Allocated memory that is resident now, in bytes: stacks and the heap. Code that runs for the
/// first time adds megabytes of a debug build's file to [`resident`], and nothing to this.
pub fn allocated() -> f64 {
    count("Anonymous:", "RssAnon:")
}

fn count(in_rollup: &str, in_status: &str) -> f64 {
    match std::fs::read_to_string("/proc/self/smaps_rollup") {
        Ok(text) => field(&text, in_rollup),
        Err(_) => field(
            &std::fs::read_to_string("/proc/self/status").unwrap(),
            in_status,
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
