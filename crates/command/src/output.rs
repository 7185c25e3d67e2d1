//! Where results may be written.

use std::path::Path;

use crate::Failure;

/// Refuses an `output` that resolves to one of the input files, symbolic links followed. A path
/// that does not exist is always allowed. Each input comes with a name for the message.
///
/// # Errors
/// The output is one of the inputs.
pub fn keep_originals(output: &Path, originals: &[(Option<&Path>, &str)]) -> Result<(), Failure> {
    let Ok(written) = output.canonicalize() else {
        return Ok(());
    };
    for (original, what) in originals {
        if original.and_then(|path| path.canonicalize().ok()).as_ref() == Some(&written) {
            let failure = Failure::new(format!("is {what} itself; write to another file"));
            return Err(failure.of(output));
        }
    }
    Ok(())
}
