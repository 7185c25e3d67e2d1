//! Error codes, and the message of a thread's last error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use gatestream::execute::team::TeamPanicked;
use gatestream::execute::{PackError, RunError, SessionError};
use gatestream::model::{LoadError, ModelError, SaveError};
use gatestream::plan::PlanFileError;
use gatestream::tune::TuneError;
use gatestream_serve::RequestError;
use gatestream_serve::engine::{EngineError, SubmitError};
use gatestream_serve::networks::NetworkError;
use gatestream_serve::scheduler::{Reason, Refused};

/// The result of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A null pointer.
    Argument = 1,
    /// A file or weights that are no supported model.
    Model = 2,
    /// A plan that is damaged, or for another model or machine.
    Plan = 3,
    /// Arrays or numbers that do not fit.
    Input = 4,
    /// An object that was made before the process was forked.
    Forked = 5,
    /// A request that was refused, because there are too many or the engine ends.
    Overloaded = 6,
    /// A request that ended without an answer.
    Request = 7,
    /// A request that was cancelled.
    Cancelled = 8,
    /// A request whose deadline passed.
    Late = 9,
    /// Threads or memory that the system refused.
    System = 10,
    /// A defect of the library.
    Panic = 11,
}

/// An error with its code.
pub(crate) struct Error {
    pub status: Status,
    pub message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: Status, message: impl ToString) -> Error {
        Error {
            status,
            message: message.to_string(),
        }
    }

    /// The message as a text of C, which ends at the first zero byte.
    pub fn c_message(&self) -> CString {
        CString::new(self.message.replace('\0', " ")).unwrap_or_default()
    }
}

macro_rules! codes {
    ($($error:ty => $status:ident;)*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::new(Status::$status, error)
            }
        })*
    };
}

codes! {
    LoadError => Model;
    ModelError => Model;
    SaveError => Model;
    PlanFileError => Plan;
    NetworkError => Input;
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        let status = match error {
            EngineError::Sizes { .. } | EngineError::TooManyRows { .. } => Status::Input,
            _ => Status::System,
        };
        Error::new(status, error)
    }
}

/// Why a request was refused, with the member of `GsEngineOptions` that has the limit.
fn refused(why: &Refused) -> String {
    why.message(match why.reason() {
        Reason::Requests => Some("max_requests"),
        Reason::Nodes => Some("max_nodes"),
        Reason::RequestNodes => Some("max_request_nodes"),
        Reason::Bytes => Some("max_bytes"),
        _ => None,
    })
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        let status = match error {
            RunError::Team(TeamPanicked::Forked) => Status::Forked,
            RunError::Team(_) | RunError::Backend(_) => Status::Panic,
            _ => Status::Input,
        };
        Error::new(status, error)
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        let status = match error {
            SessionError::Pack(PackError::Plan(_)) => Status::Plan,
            SessionError::TooLarge { .. } => Status::Input,
            _ => Status::System,
        };
        Error::new(status, error)
    }
}

impl From<TuneError> for Error {
    fn from(error: TuneError) -> Error {
        match error {
            TuneError::Session(error) => error.into(),
            TuneError::Verify { .. } => Error::new(Status::Panic, error),
            error => Error::new(Status::Input, error),
        }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        let status = match error {
            RequestError::Cancelled => Status::Cancelled,
            RequestError::Late => Status::Late,
            RequestError::Forked => Status::Forked,
            RequestError::Graph(_) => Status::Input,
            _ => Status::Request,
        };
        Error::new(status, error)
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        let status = match error {
            SubmitError::Forked => Status::Forked,
            SubmitError::Refused(why) => return Error::new(Status::Overloaded, refused(&why)),
            SubmitError::Graph(_) => Status::Input,
            _ => Status::Request,
        };
        Error::new(status, error)
    }
}

thread_local!(static LAST: RefCell<CString> = RefCell::default());

/// The message of the last error of the calling thread; empty if there was none. It is valid until
/// the thread's next call of a function of this library.
#[unsafe(no_mangle)]
pub extern "C" fn gs_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Calls `work`, keeps the message of its error, and returns its code.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> Status {
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => error,
        Err(_) => Error::new(
            Status::Panic,
            "gatestream panicked; this is a bug, please report it",
        ),
    };
    LAST.set(error.c_message());
    error.status
}

/// The object at a pointer.
///
/// # Safety
/// The pointer is null, or that of an object that lives as long as `'a`.
pub(crate) unsafe fn object<'a, T>(name: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }
        .ok_or_else(|| Error::new(Status::Argument, format!("{name} is null")))
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// The pointer is null, or that of a place for the value.
pub(crate) unsafe fn put<T>(
    name: &str,
    place: *mut T,
    make: impl FnOnce() -> Result<T>,
) -> Result<()> {
    if place.is_null() {
        return Err(Error::new(Status::Argument, format!("{name} is null")));
    }
    let value = make()?;
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// A path.
///
/// # Safety
/// The pointer is null, or a text that ends with a zero byte.
pub(crate) unsafe fn path(text: *const c_char) -> Result<PathBuf> {
    if text.is_null() {
        return Err(Error::new(Status::Argument, "the path is null"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Ok(std::ffi::OsStr::from_bytes(text.to_bytes()).into())
    }
    #[cfg(not(unix))]
    {
        let text = text
            .to_str()
            .map_err(|why| Error::new(Status::Argument, why))?;
        Ok(PathBuf::from(text))
    }
}

/// An array that is read; null is `None`.
///
/// # Safety
/// The pointer is null, or that of `len` values that nobody writes during `'a`.
pub(crate) unsafe fn read<'a, T>(array: *const T, len: usize) -> Option<&'a [T]> {
    // SAFETY: the caller's promise.
    (!array.is_null()).then(|| unsafe { std::slice::from_raw_parts(array, len) })
}

/// An array that is written; null is `None`.
///
/// # Safety
/// The pointer is null, or that of `len` values that nobody else uses during `'a`.
pub(crate) unsafe fn write<'a, T>(array: *mut T, len: usize) -> Option<&'a mut [T]> {
    // SAFETY: the caller's promise.
    (!array.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(array, len) })
}

/// Frees an object.
///
/// # Safety
/// The pointer is null, or that of an object of this library that is not used any more.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // A panic of a destructor does not leave the library.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(object) });
        }));
    }
}
