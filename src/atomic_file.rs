//! Files that are written completely or not at all.
//!
//! Models, plans and the outputs of the program are written this way: first beside their place,
//! then renamed into it. Symbolic links stay links, and pipes and devices are written through.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A complete file that is not in its place yet. Dropped without [`PendingFile::commit`], it leaves
/// nothing behind. Several files can be prepared before the first of them replaces anything.
///
/// ```
/// use std::io::Write;
/// use gatestream::atomic_file::PendingFile;
///
/// let path = std::env::temp_dir().join(format!("pending_{}", std::process::id()));
/// let pending = PendingFile::prepare(&path, |file| file.write_all(b"rows"))?;
/// assert!(!path.exists());
/// pending.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"rows");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct PendingFile {
    path: PathBuf,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    /// In the folder of the path.
    File(NamedTempFile),
    /// Of a pipe or device.
    Bytes(Vec<u8>),
}

impl PendingFile {
    /// Writes a file beside `path`. The contents for a pipe or device are kept in memory.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn prepare(
        path: &Path,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<PendingFile> {
        if is_device(path) {
            let mut bytes = Vec::new();
            contents(&mut bytes)?;
            let (path, contents) = (path.into(), Contents::Bytes(bytes));
            return Ok(PendingFile { path, contents });
        }
        let path = resolve_link(path).into_owned();
        let mut builder = tempfile::Builder::new();
        builder.prefix(".gatestream-").suffix(".partial");
        // Readable as any other new file is; a temporary one would be its owner's alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder_of(&path))?;
        let mut buffered = BufWriter::new(file.as_file());
        contents(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        file.as_file().sync_all()?;
        let contents = Contents::File(file);
        Ok(PendingFile { path, contents })
    }

    /// Its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file in its place, where it replaces another.
    ///
    /// # Errors
    /// The file cannot be renamed, or the device not written to.
    pub fn commit(self) -> io::Result<()> {
        match self.contents {
            Contents::Bytes(bytes) => open_device(&self.path)?.write_all(&bytes),
            Contents::File(file) => {
                file.persist(&self.path).map_err(|error| error.error)?;
                // The new name is safe once the folder is. Not every system can open one, and the
                // file is complete.
                if let Ok(folder) = File::open(folder_of(&self.path)) {
                    let _ = folder.sync_all();
                }
                Ok(())
            }
        }
    }
}

/// Writes a file at `path` in one step: after an error the previous file is unchanged and nothing
/// else is left behind. A pipe or device is written to directly.
///
/// # Errors
/// The file cannot be made, written or renamed.
pub fn write(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if is_device(path) {
        let mut buffered = BufWriter::new(open_device(path)?);
        contents(&mut buffered)?;
        return buffered.flush();
    }
    PendingFile::prepare(path, contents)?.commit()
}

/// Whether `path` is neither a file nor a folder, but for example a pipe or `/dev/null`.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn open_device(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// The file that a symbolic link leads to.
fn resolve_link(path: &Path) -> Cow<'_, Path> {
    match path.is_symlink().then(|| path.canonicalize()) {
        Some(Ok(target)) => Cow::Owned(target),
        _ => Cow::Borrowed(path),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncommitted_files_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y");
        let pending = PendingFile::prepare(&path, |file| file.write_all(b"new")).unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        assert!(files() == 1 && !path.exists());
        drop(pending);
        assert_eq!(files(), 0);
    }

    #[test]
    fn errors_keep_the_previous_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y");
        write(&path, |file| file.write_all(b"old")).unwrap();
        let failing = write(&path, |file| {
            file.write_all(b"new")?;
            Err(io::ErrorKind::Other.into())
        });
        assert_eq!(failing.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
