//! Whole numbers of Python in the range of a type of ours.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::Error;

/// A number; one outside of the range of `T` is an `InputError`, where PyO3 has `OverflowError`.
pub struct Whole<T>(pub T);

/// A type's range from 0 on.
pub trait Range: Copy {
    const LARGEST: usize;
}

impl Range for u8 {
    const LARGEST: usize = u8::MAX as usize;
}

impl Range for usize {
    const LARGEST: usize = usize::MAX;
}

impl<'a, 'py, T> FromPyObject<'a, 'py> for Whole<T>
where
    T: Range + FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Whole<T>> {
        value.extract::<T>().map(Whole).map_err(|why| {
            if why.is_instance_of::<PyOverflowError>(value.py()) {
                let largest = T::LARGEST;
                let value = value.to_owned();
                Error::input(format!("{value} is not a number from 0 to {largest}")).into()
            } else {
                why
            }
        })
    }
}

/// The numbers, where they are given.
pub fn given<T>(number: Option<Whole<T>>) -> Option<T> {
    number.map(|Whole(number)| number)
}
