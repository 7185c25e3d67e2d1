//! Ctrl-C from outside.

use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

/// Waits until `child` catches interrupts (until then one would end it), and so long more.
pub fn interrupt(child: &mut Child, after: Duration) {
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("SigCgt:").map(str::trim));
        line.is_some_and(|mask| u64::from_str_radix(mask, 16).unwrap() & 0b10 != 0)
    };
    while !caught() {
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "it never caught interrupts");
        sleep(Duration::from_millis(5));
    }
    sleep(after);
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status();
    assert!(sent.unwrap().success());
}
