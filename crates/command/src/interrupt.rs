//! Ctrl-C. The first one stops a command after the current measurement and saves the results; the
//! second one exits immediately.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Failure;

const MESSAGE: &str =
    "stopping after the current measurement, results are kept; Ctrl-C again exits immediately";

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler. From now on [`flow`] breaks after the first Ctrl-C.
///
/// # Errors
/// The system's, if no handler can be installed.
pub fn catch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.load(Ordering::Relaxed) {
            std::process::exit(130);
        }
        // Printed before the flag is set, because the command may end as soon as it is. This is a
        // thread, not a signal handler, so it may write. A closed standard error is ignored.
        let _ = writeln!(std::io::stderr(), "gatestream: {MESSAGE}");
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// Breaks after the first Ctrl-C.
pub fn flow() -> ControlFlow<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
