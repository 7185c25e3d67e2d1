//! The exceptions of `gatestream/errors.py`, raised for errors of the crates.

use gatestream::execute::team::TeamPanicked;
use gatestream::execute::{PackError, RunError, SessionError};
use gatestream::kernels::IsaError;
use gatestream::model::{InputError, LoadError, ModelError, SaveError};
use gatestream::plan::PlanFileError;
use gatestream::tune::TuneError;
use gatestream_network as network;
use gatestream_serve as serve;
use gatestream_serve::scheduler::{Reason, Refused};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A class of `gatestream/errors.py`.
#[derive(Clone, Copy)]
pub enum Class {
    /// A file or weights that are no model.
    Model,
    /// A plan that does not fit.
    Plan,
    /// Arrays that do not fit.
    Input,
    /// Arrays that there is no memory for.
    TooLarge,
    /// An object that was made before a fork.
    Forked,
    /// A request that ended without an answer.
    Request,
    /// A request that was not accepted, because there are too many.
    Overloaded,
    /// A request that was cancelled.
    Cancelled,
    /// A request whose deadline passed.
    Late,
    /// All others.
    Other,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Model => "ModelError",
            Class::Plan => "PlanError",
            Class::Input => "InputError",
            Class::TooLarge => "TooLargeError",
            Class::Forked => "ForkedError",
            Class::Request => "RequestError",
            Class::Overloaded => "OverloadedError",
            Class::Cancelled => "RequestCancelledError",
            Class::Late => "DeadlineError",
            Class::Other => "GatestreamError",
        }
    }
}

/// An error with its class; the interpreter is not needed to make one.
pub struct Error {
    class: Class,
    message: String,
}

impl Error {
    pub fn new(class: Class, message: impl ToString) -> Error {
        Error {
            class,
            message: message.to_string(),
        }
    }

    pub fn input(message: impl ToString) -> Error {
        Error::new(Class::Input, message)
    }

    /// For objects that a child process has from its parent.
    pub fn forked(what: &str) -> Error {
        let message = format!(
            "this {what} was made before the process was forked, and its threads are in the \
             parent; make a new one in the child"
        );
        Error::new(Class::Forked, message)
    }
}

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        Python::attach(|py| {
            let module = MODULE.get_or_try_init(py, || {
                Ok::<_, PyErr>(py.import("gatestream.errors")?.unbind())
            });
            let class = module.and_then(|module| {
                let class = module.bind(py).getattr(error.class.name())?;
                Ok(class.cast_into::<PyType>()?)
            });
            match class {
                Ok(class) => PyErr::from_type(class, (error.message,)),
                Err(failed) => failed,
            }
        })
    }
}

macro_rules! classes {
    ($($error:ty => $class:ident;)*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::new(Class::$class, error)
            }
        })*
    };
}

classes! {
    LoadError => Model;
    ModelError => Model;
    SaveError => Model;
    PlanFileError => Plan;
    IsaError => Other;
    serve::networks::NetworkError => Input;
}

impl From<serve::engine::EngineError> for Error {
    fn from(error: serve::engine::EngineError) -> Error {
        use serve::engine::EngineError;
        let class = match error {
            EngineError::Team { .. }
            | EngineError::Cell { .. }
            | EngineError::Spawn { .. }
            | EngineError::SpawnReplies { .. }
            | EngineError::Stopped
            | EngineError::Panicked { .. } => Class::Other,
            _ => Class::Input,
        };
        Error::new(class, error)
    }
}

/// Why a request was refused, with the keyword of `Engine` that has the limit.
fn refused(why: &Refused) -> String {
    match *why {
        Refused::Overloaded {
            what: what @ Reason::Steps,
            have,
            most,
            ..
        } => format!("overloaded: {have} {what} of at most {most} wait; wait for an answer first"),
        _ => why.message(match why.reason() {
            Reason::Requests => Some("max_requests of the Engine"),
            Reason::Nodes => Some("max_nodes of the Engine"),
            Reason::RequestNodes => Some("max_request_nodes of the Engine"),
            Reason::Bytes => Some("max_bytes of the Engine"),
            Reason::Streams => Some("max_streams of the Engine"),
            _ => None,
        }),
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        let class = match error {
            RunError::Input(error) => return error.into(),
            RunError::Team(TeamPanicked::Forked) => Class::Forked,
            RunError::Team(_) | RunError::Backend(_) => Class::Other,
            _ => Class::Input,
        };
        Error::new(class, error)
    }
}

impl From<InputError> for Error {
    fn from(error: InputError) -> Error {
        let class = match error {
            InputError::TooLarge => Class::TooLarge,
            _ => Class::Input,
        };
        Error::new(class, error)
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        let class = match error {
            SessionError::Pack(PackError::Plan(_)) => Class::Plan,
            SessionError::TooLarge { .. } => Class::TooLarge,
            _ => Class::Other,
        };
        Error::new(class, error)
    }
}

impl From<TuneError> for Error {
    fn from(error: TuneError) -> Error {
        match error {
            TuneError::Session(error) => error.into(),
            TuneError::Model(error) => error.into(),
            TuneError::Verify { .. } => Error::new(Class::Other, error),
            error => Error::input(error),
        }
    }
}

/// As the crate's text, with the keyword of `Network.open`.
fn unchecked(node: &str, operator: &str) -> String {
    format!(
        "node {node:?}: operator {operator} has not passed ONNX's own test cases here; \
         unchecked=True runs it, and its results may be wrong"
    )
}

impl From<network::NetworkError> for Error {
    fn from(error: network::NetworkError) -> Error {
        use network::NetworkError;
        let class = match &error {
            NetworkError::Input { .. } => Class::Input,
            NetworkError::PlanFile { .. } => Class::Plan,
            NetworkError::Unchecked { node, operator } => {
                return Error::new(Class::Model, unchecked(node, operator));
            }
            _ => Class::Model,
        };
        Error::new(class, error)
    }
}

impl From<serve::RequestError> for Error {
    fn from(error: serve::RequestError) -> Error {
        use serve::RequestError;
        let class = match error {
            RequestError::Cancelled => Class::Cancelled,
            RequestError::Late => Class::Late,
            RequestError::Forked => Class::Forked,
            RequestError::Graph(_) => Class::Input,
            _ => Class::Request,
        };
        Error::new(class, error)
    }
}

impl From<serve::engine::SubmitError> for Error {
    fn from(error: serve::engine::SubmitError) -> Error {
        use serve::engine::SubmitError;
        let class = match error {
            SubmitError::Forked => Class::Forked,
            SubmitError::Refused(why) => return Error::new(Class::Overloaded, refused(&why)),
            SubmitError::Graph(_) => Class::Input,
            _ => Class::Request,
        };
        Error::new(class, error)
    }
}

impl From<serve::engine::StreamError> for Error {
    fn from(error: serve::engine::StreamError) -> Error {
        use serve::engine::StreamError;
        match error {
            StreamError::Ended(error) => error.into(),
            StreamError::Submit(error) => error.into(),
            error => Error::input(error),
        }
    }
}
