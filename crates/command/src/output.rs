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

/// Refuses an `output` that is a directory or whose directory does not exist. `option` is the
/// option that names it.
///
/// # Errors
/// The output cannot be a file.
pub fn in_existing_directory(output: &Path, option: &str) -> Result<(), Failure> {
    let folder = (output.parent()).filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || output.is_dir() {
        let reason = format!("{option} must name a file in an existing directory");
        return Err(Failure::new(reason).of(output));
    }
    Ok(())
}
