//! Kernels to machine code, by NVRTC, and the folder of what was compiled before.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use gatestream::atomic_file;

use crate::{DriverError, Kernel};

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// What the compiler said, with the registers and spills of the kernel.
    pub log: String,
}

/// Contraction is off: `fmaf` is one rounding and `a * b + c` two, as in the reference.
const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ptxas-options=-v",
];

/// Compiles `kernel` for an architecture such as `sm_90`. Needs no device.
///
/// # Errors
/// [`DriverError::NoLibrary`] without NVRTC; [`DriverError::Compile`].
pub fn compile(kernel: &Kernel, architecture: &str) -> Result<Compiled, DriverError> {
    // Asked first, because the crate panics where the library is not found.
    // SAFETY: it loads the library, as any call of it would, and calls nothing.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::NoLibrary {
            library: "libnvrtc",
        });
    }
    let refused = |log: String| DriverError::Compile {
        kernel: kernel.name,
        architecture: architecture.to_owned(),
        log,
    };
    let text = CString::new(kernel.text.as_str()).map_err(|error| refused(error.to_string()))?;
    let program = result::create_program(&text, None).map_err(|e| refused(e.to_string()))?;
    let program = Program(program);
    let mut options: Vec<String> = OPTIONS.map(String::from).to_vec();
    options.push(format!("--gpu-architecture={architecture}"));
    // SAFETY: the program was made above and is destroyed after its last use.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    let log = program.log();
    compiled.map_err(|error| refused(format!("{error}: {log}")))?;
    let cubin = program
        .cubin()
        .map_err(|error| refused(error.to_string()))?;
    Ok(Compiled { cubin, log })
}

/// A program of NVRTC, destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives as long as `self`.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log
            .iter()
            .map(|&c| c as u8)
            .take_while(|c| *c != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives as long as `self`, and `size` is written to once.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }.result()?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the compiler writes as many bytes as it just said.
        unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }.result()?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nobody else destroys it, and it is not used afterwards. An error leaves it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// As [`compile`], or from the file of an earlier time in `folder`.
///
/// # Errors
/// As [`compile`]. A file that cannot be read or written is no error: the kernel is compiled.
pub(super) fn compiled(
    kernel: &Kernel,
    architecture: &str,
    folder: Option<&Path>,
) -> Result<Vec<u8>, DriverError> {
    // All that the machine code depends on stands before it: a file of anything else is not taken.
    let head = format!("{architecture} {}\n{}\n", OPTIONS.join(" "), kernel.text);
    let path = folder.map(|folder| {
        let mut hasher = DefaultHasher::new();
        head.hash(&mut hasher);
        folder.join(format!("{}-{:016x}", kernel.name, hasher.finish()))
    });
    let stored = path.as_ref().and_then(|path| std::fs::read(path).ok());
    let cubin = stored
        .as_ref()
        .and_then(|file| file.strip_prefix(head.as_bytes()));
    if let Some(cubin) = cubin {
        return Ok(cubin.to_vec());
    }
    let cubin = compile(kernel, architecture)?.cubin;
    if let (Some(folder), Some(path)) = (folder, path)
        && std::fs::create_dir_all(folder).is_ok()
    {
        let _ = atomic_file::write(&path, |file| {
            file.write_all(head.as_bytes())?;
            file.write_all(&cubin)
        });
    }
    Ok(cubin)
}

/// `$XDG_CACHE_HOME/gatestream/cuda`, or the same in the home folder.
pub(super) fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(cache.join("gatestream").join("cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files stand for the compiler here, which need not be installed.
    #[test]
    fn a_kernel_is_taken_from_its_file_and_from_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel::add_directions();
        let head = format!("sm_90 {}\n{}\n", OPTIONS.join(" "), kernel.text);
        let mut hasher = DefaultHasher::new();
        head.hash(&mut hasher);
        let name = format!("add_directions-{:016x}", hasher.finish());
        let path = folder.path().join(name);
        std::fs::write(&path, head.clone() + "machine code").unwrap();
        let found = compiled(&kernel, "sm_90", Some(folder.path())).unwrap();
        assert_eq!(found, b"machine code");

        // The same name, but another text, as after a collision: compiled, or no compiler.
        std::fs::write(&path, "another ".to_owned() + &head + "machine code").unwrap();
        match compiled(&kernel, "sm_90", Some(folder.path())) {
            Ok(cubin) => {
                assert_eq!(&cubin[..4], b"\x7fELF");
                // The file was replaced.
                assert!(std::fs::read(&path).unwrap().ends_with(&cubin));
            }
            Err(error) => assert!(matches!(error, DriverError::NoLibrary { .. }), "{error}"),
        }
    }
}
