//! Seconds of Python as durations and deadlines.

use std::time::{Duration, Instant};

use crate::errors::Error;

/// Seconds as a duration.
///
/// # Errors
/// `InputError` for negative, infinite or undefined seconds.
pub fn duration(seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|why| Error::input(format!("{seconds} seconds: {why}")))
}

/// The time at which a timeout ends; `None`: never.
///
/// # Errors
/// As [`duration`], and for a time that the clock cannot express.
pub fn deadline(timeout: Option<f64>) -> Result<Option<Instant>, Error> {
    let Some(seconds) = timeout else {
        return Ok(None);
    };
    let deadline = Instant::now().checked_add(duration(seconds)?);
    let too_long = || Error::input(format!("{seconds} seconds are too long for a timeout"));
    Ok(Some(deadline.ok_or_else(too_long)?))
}
