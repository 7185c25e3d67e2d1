//! Ctrl-C as a wish: a command ends soon, and keeps what it has.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;

/// What the first Ctrl-C is answered with.
const HEARD: &str = "ends after what it is at, and keeps what it has; Ctrl-C again ends it at once";

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C is what [`flow`] says. A second one ends the process: for those who do not want to wait for what
/// the first one keeps.
///
/// # Errors
/// The system's, where it lets no handler be set.
pub fn catch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.load(Ordering::Relaxed) {
            std::process::exit(130);
        }
        // The only thread that sets it, and no signal handler, so it may write; before it is set, as the command may end at once
        // then. If nobody reads, there is nobody to tell.
        let _ = writeln!(std::io::stderr(), "cellstream: {HEARD}");
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// Whether to go on.
pub fn flow() -> ControlFlow<()> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}
