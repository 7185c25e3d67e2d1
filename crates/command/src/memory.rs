//! Checks that the machine has the memory for a command before it is allocated: a failed allocation
//! aborts, and one that the system cannot back ends the process without a message.

use crate::Failure;

/// Assumed where the system does not report it: 64 GiB.
const UNKNOWN: u64 = 64 << 30;

/// Bytes available without swapping: `MemAvailable` on Linux, 64 GiB elsewhere.
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    text.and_then(|text| parse(&text)).unwrap_or(UNKNOWN)
}

/// `MemAvailable:   12345 kB`, in bytes.
fn parse(meminfo: &str) -> Option<u64> {
    let mut line = (meminfo.lines()).filter_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.next()?.trim().strip_suffix("kB")?.trim();
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses a command that needs more bytes than are available; `None`: more than can be counted.
/// `what` needs the memory, `arguments` are those to reduce.
///
/// # Errors
/// Too little memory.
pub fn afford(needed: Option<u64>, arguments: &str, what: &str) -> Result<(), Failure> {
    fits(needed, available_memory(), arguments, what)
}

fn fits(needed: Option<u64>, available: u64, arguments: &str, what: &str) -> Result<(), Failure> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let needs = match needed {
        Some(needed) if needed <= available => return Ok(()),
        Some(needed) => format!("{:.1} GiB", gib(needed)),
        None => "more bytes than can be counted".into(),
    };
    Err(Failure::new(format!(
        "{what} need {needs} of memory and {:.1} GiB are available; reduce {arguments}",
        gib(available)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:    7 kB\nBuffers: 0 kB\n";
        assert_eq!(parse(text), Some(7 * 1024));
        assert_eq!(parse("MemTotal: 24 kB\n"), None);
        assert_eq!(parse("MemAvailable: much kB\n"), None);
    }

    #[test]
    fn the_limit_is_what_is_available() {
        assert!(fits(Some(8), 8, "--batch", "outputs").is_ok());
        let refused = |needed| {
            let failure = fits(needed, 3 << 29, "--batch and --steps", "outputs");
            failure.unwrap_err().to_string()
        };
        assert_eq!(
            refused(Some(5 << 30)),
            "outputs need 5.0 GiB of memory and 1.5 GiB are available; reduce --batch and \
             --steps"
        );
        assert!(refused(None).contains("more bytes than can be counted"));
    }
}
