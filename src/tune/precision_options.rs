//! The options of the choice of precisions.

use std::time::Duration;

use crate::model::Input;

/// The options of [`choose_precisions`](super::choose_precisions).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PrecisionOptions<'a> {
    /// The input that the error is measured over.
    pub sample: Input<'a>,
    /// Max difference of any value of the output sequence from that in f32. Final states are
    /// ignored.
    pub most_error: f64,
    /// Sizes of requests, sequences and steps, that are to be fast.
    pub sizes: Vec<(usize, usize)>,
    /// The most cores to use.
    pub cores: usize,
    /// Time for it. A few laps of each layer and of the last mixes, and the errors of as many mixes
    /// as a layer has choices, are measured in any case.
    pub budget: Duration,
}

impl<'a> PrecisionOptions<'a> {
    /// All options.
    pub fn new(
        sample: Input<'a>,
        most_error: f64,
        sizes: Vec<(usize, usize)>,
        cores: usize,
        budget: Duration,
    ) -> PrecisionOptions<'a> {
        PrecisionOptions {
            sample,
            most_error,
            sizes,
            cores,
            budget,
        }
    }
}
