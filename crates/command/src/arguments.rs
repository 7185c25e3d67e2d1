//! Arguments that several subcommands share.

use gatestream::machine::Topology;

/// Parses a time in seconds, above 0 and at most 3600.
///
/// # Errors
/// Anything else, with a message for the user.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("expected seconds above 0, at most 3600".into()),
    }
}

/// The number of threads to use: `requested`, at most one for each core of this machine.
pub fn threads(requested: Option<u32>) -> usize {
    max_threads(requested, Topology::detect().team_size())
}

/// An estimate assumes a core of its own for every thread, so no plan has more threads than cores.
fn max_threads(requested: Option<u32>, cores: usize) -> usize {
    requested.map_or(cores, |threads| cores.min(threads as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_than_cores() {
        assert_eq!(max_threads(None, 4), 4);
        assert_eq!(max_threads(Some(3), 4), 3);
        assert_eq!(max_threads(Some(1024), 4), 4);
    }
}
