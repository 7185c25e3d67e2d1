//! A moving average of times.

/// The weight of a new time.
const WEIGHT: f64 = 0.25;
/// A time counts at most this multiple of the average: a stall of the machine is no property of the
/// cell.
const STALL: f64 = 4.0;

/// The average after a time; `None` before the first.
pub(super) fn after(average: Option<f64>, time: f64) -> f64 {
    match average {
        Some(average) => average + WEIGHT * (time.min(STALL * average) - average),
        None => time,
    }
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn a_stall_moves_the_average_a_little() {
        assert_eq!(after(None, 100.0), 100.0);
        assert_eq!(after(Some(100.0), 200.0), 125.0);
        assert_eq!(after(Some(100.0), 1e12), 175.0);
    }
}
