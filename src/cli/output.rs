//! Where results may be written.

use std::path::Path;

use super::Failure;

/// Refuses to write over what is read and not to be lost, links followed. What is not there is nobody's.
pub fn keep_originals(output: &Path, originals: &[(Option<&Path>, &str)]) -> Result<(), Failure> {
    let Ok(written) = output.canonicalize() else {
        return Ok(());
    };
    for (original, what) in originals {
        let is_it = original.and_then(|path| path.canonicalize().ok()) == Some(written.clone());
        if is_it {
            return Err(
                Failure::new(format!("is {what} itself; write to another file")).of(output),
            );
        }
    }
    Ok(())
}
