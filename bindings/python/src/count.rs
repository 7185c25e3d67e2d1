//! Integers as arguments.
//!
//! The interpreter's own conversion raises `OverflowError` for negative and huge ones, which is no
//! error of this package and does not name the argument.

use std::ops::RangeInclusive;

use gatestream::machine::Topology;
use gatestream::plan::MAX_THREADS;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::Error;

/// An integer of any size. What is out of range is refused by [`Count::within`], which knows the
/// name of the argument.
#[derive(Clone)]
pub struct Count(Result<usize, String>);

impl FromPyObject<'_, '_> for Count {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Count> {
        match value.extract::<usize>() {
            Ok(count) => Ok(Count(Ok(count))),
            Err(why) if why.is_instance_of::<PyOverflowError>(value.py()) => {
                // Python refuses to write integers of thousands of digits.
                let text = value.str().map(|text| text.to_string());
                Ok(Count(Err(text.unwrap_or_default())))
            }
            Err(why) => Err(why),
        }
    }
}

impl From<usize> for Count {
    fn from(count: usize) -> Count {
        Count(Ok(count))
    }
}

impl Count {
    /// # Errors
    /// `InputError` for an integer out of the range.
    pub fn within(self, name: &str, range: RangeInclusive<usize>) -> Result<usize, Error> {
        let (least, most) = (*range.start(), *range.end());
        let found = match self.0 {
            Ok(count) if range.contains(&count) => return Ok(count),
            Ok(count) => count.to_string(),
            Err(text) if text.is_empty() || text.len() > 40 => "an integer of many digits".into(),
            Err(text) => text,
        };
        Err(Error::input(match most {
            usize::MAX => format!("{name} is {found}; it must be an integer, {least} or more"),
            _ => format!("{name} is {found}; it must be an integer from {least} to {most}"),
        }))
    }

    /// # Errors
    /// `InputError` for less than 0, and more than a machine can count.
    pub fn any(self, name: &str) -> Result<usize, Error> {
        self.within(name, 0..=usize::MAX)
    }

    /// # Errors
    /// `InputError` for less than 1, and more than a machine can count.
    pub fn positive(self, name: &str) -> Result<usize, Error> {
        self.within(name, 1..=usize::MAX)
    }
}

/// The number of threads asked for.
///
/// # Errors
/// `InputError` for none, and for more than a plan can have.
pub fn threads_asked(asked: Option<Count>) -> Result<Option<usize>, Error> {
    let within = |count: Count| count.within("threads", 1..=MAX_THREADS);
    asked.map(within).transpose()
}

/// The number of threads asked for, or one for each core.
///
/// # Errors
/// As [`threads_asked`].
pub fn threads(asked: Option<Count>) -> Result<usize, Error> {
    Ok(threads_asked(asked)?.unwrap_or_else(|| Topology::detect().team_size()))
}

/// A priority of the engine.
///
/// # Errors
/// `InputError` for one that is not from 0 to 255.
pub fn priority(asked: Count) -> Result<u8, Error> {
    let priority = asked.within("priority", 0..=usize::from(u8::MAX))?;
    Ok(u8::try_from(priority).unwrap_or(u8::MAX))
}
