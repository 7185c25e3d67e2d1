//! Files that are written whole or not at all.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Whether something stands there that is neither a file nor a folder, such as a pipe or `/dev/null`: what is
/// written goes through it, and nothing takes its place.
pub fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// The file that a link leads to, so that the link stays one.
pub fn place(path: &Path) -> Cow<'_, Path> {
    match path.is_symlink().then(|| path.canonicalize()) {
        Some(Ok(led_to)) => Cow::Owned(led_to),
        _ => Cow::Borrowed(path),
    }
}

/// Puts a file with these contents in the place of another, at once: after an error, whatever stood
/// there before still does, and nothing else is left behind. A pipe or device is written to as it is.
pub fn replace(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    if is_special(path) {
        let file = File::options().write(true).open(path)?;
        let mut buffered = BufWriter::new(&file);
        contents(&mut buffered)?;
        return buffered.flush();
    }
    let path = &*place(path);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".cellstream-").suffix(".partial");
    // Readable as any other new file is; a temporary one would be its owner's alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // Removed when dropped, unless it was put in its place.
    let partial = builder.tempfile_in(folder)?;
    let mut buffered = BufWriter::new(partial.as_file());
    contents(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    partial.as_file().sync_all()?;
    partial.persist(path).map_err(|error| error.error)?;
    // The new name is safe once the folder is. Not every system can open one, and the file is whole.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}
