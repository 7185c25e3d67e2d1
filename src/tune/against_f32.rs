//! The error and the time of a mix of precisions, against the same model in f32.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::TuneError;
use super::precision_options::PrecisionOptions;
use super::track::CandidateTrack;
use crate::execute::{RunError, Session};
use crate::model::{Model, Output, Precision};
use crate::plan::{Configuration, Plan};

/// Measures a mix; simulated in tests.
pub(super) trait Judge {
    /// The greatest difference of the output over the sample from that in f32.
    fn error(&mut self, mix: &[Precision]) -> Result<f64, TuneError>;
    /// The time over that of f32, at each size.
    fn times(&mut self, mix: &[Precision], laps: Laps) -> Result<Vec<f64>, TuneError>;
}

/// How long to time a mix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laps {
    /// Laps of each, in turns.
    pub rounds: usize,
    /// For all of them; but three are run in any case.
    pub time: Duration,
    /// Whether the answers are held against the reference first.
    pub is_verified: bool,
}

/// Runs before each lap: an idle core wakes slow and with empty caches.
const WARM_UP: Duration = Duration::from_millis(2);

/// A model, run.
pub(super) struct AgainstF32<'a> {
    model: &'a Model,
    exact: Cow<'a, Model>,
    options: &'a PrecisionOptions<'a>,
    /// The output over the sample in f32.
    expected: Vec<f32>,
    /// Of mixes that were measured.
    errors: HashMap<Vec<Precision>, f64>,
}

impl<'a> AgainstF32<'a> {
    pub fn new(
        model: &'a Model,
        options: &'a PrecisionOptions<'a>,
    ) -> Result<AgainstF32<'a>, TuneError> {
        let is_none = |&(batch, steps): &(usize, usize)| batch == 0 || steps == 0;
        if options.sizes.is_empty() || options.sizes.iter().any(is_none) {
            return Err(TuneError::NoSize);
        }
        if options.sample.values.is_empty() {
            return Err(TuneError::NoSample);
        }
        if options.most_error.is_nan() || options.most_error < 0.0 {
            return Err(TuneError::MostError(options.most_error));
        }
        let nothing = Output::default();
        let fits = options.sample.check(&model.signature(), &nothing);
        fits.map_err(RunError::from)?;
        let exact = match model.precision() {
            Some(Precision::F32) => Cow::Borrowed(model),
            _ => Cow::Owned(model.in_precision(Precision::F32)?),
        };
        let expected = answer(&exact, options)?;
        if expected.iter().any(|value| value.is_nan()) {
            return Err(TuneError::NotComparable);
        }
        Ok(AgainstF32 {
            model,
            exact,
            options,
            expected,
            errors: HashMap::new(),
        })
    }

    /// Mixes whose error was measured.
    pub fn tried(&self) -> usize {
        self.errors.len()
    }

    fn track<'m>(
        &self,
        model: &'m Model,
        size: (usize, usize),
    ) -> Result<(CandidateTrack<'m>, Configuration), TuneError> {
        let plan = Plan::estimate(model, size.0, size.1, self.options.cores);
        let configuration = plan.entries[0].configuration.clone();
        let mut track =
            CandidateTrack::new(model, std::slice::from_ref(&configuration), size, &[])?;
        track.warm_up_for(WARM_UP);
        Ok((track, configuration))
    }
}

impl Judge for AgainstF32<'_> {
    /// Infinite if weights cannot be of such precisions.
    fn error(&mut self, mix: &[Precision]) -> Result<f64, TuneError> {
        if let Some(&error) = self.errors.get(mix) {
            return Ok(error);
        }
        let error = match self.model.in_precisions(mix) {
            Ok(model) => difference(&answer(&model, self.options)?, &self.expected),
            Err(_) => f64::INFINITY,
        };
        self.errors.insert(mix.to_vec(), error);
        Ok(error)
    }

    /// Medians of the ratios of laps that follow each other.
    fn times(&mut self, mix: &[Precision], laps: Laps) -> Result<Vec<f64>, TuneError> {
        let model = self.model.in_precisions(mix)?;
        let sizes = &self.options.sizes;
        let mut times = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let mut exact = self.track(&self.exact, size)?.0;
            let (mut reduced, configuration) = self.track(&model, size)?;
            if laps.is_verified {
                reduced.verify(&[configuration], &mut || false)?;
            }
            let end = Instant::now() + laps.time / sizes.len() as u32;
            let mut pairs = Vec::with_capacity(laps.rounds);
            while pairs.len() < laps.rounds && (pairs.len() < 3 || Instant::now() < end) {
                let of_exact = exact.lap(0);
                pairs.push((reduced.lap(0), of_exact));
            }
            times.push(ratio(&pairs));
        }
        Ok(times)
    }
}

/// The median of how many times as long as the second of a pair the first takes; of one pair or
/// more.
fn ratio(pairs: &[(u64, u64)]) -> f64 {
    let ratios = pairs.iter().map(|&(time, of)| time as f64 / of as f64);
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// The output over the sample.
fn answer(model: &Model, options: &PrecisionOptions<'_>) -> Result<Vec<f32>, TuneError> {
    let sample = &options.sample;
    let plan = Plan::estimate(model, sample.batch, sample.steps, options.cores);
    let mut session = Session::new(model, &plan)?;
    let mut output = vec![0.0; sample.steps * sample.batch * model.signature().output];
    session.run(sample, &mut Output::new(&mut output))?;
    Ok(output)
}

fn difference(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |most, (&found, &expected)| {
        let difference = (f64::from(found) - f64::from(expected)).abs();
        // The same infinity is no difference; NaN is one, and would be lost in a maximum.
        match (found == expected, difference.is_nan()) {
            (true, _) => most,
            (false, true) => f64::INFINITY,
            (false, false) => most.max(difference),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_moment_that_hits_both_is_no_difference() {
        assert_eq!(ratio(&[(50, 100), (500, 1000), (200, 100)]), 0.5);
    }

    #[test]
    fn what_is_no_number_is_far_from_everything_but_infinities_from_themselves() {
        let infinite = f32::INFINITY;
        assert_eq!(difference(&[1.0, infinite], &[1.5, infinite]), 0.5);
        assert_eq!(
            difference(&[1.0, -infinite], &[1.5, infinite]),
            f64::INFINITY
        );
        assert_eq!(difference(&[f32::NAN, 1.0], &[1.0, 1.5]), f64::INFINITY);
        assert_eq!(difference(&[f32::NAN], &[f32::NAN]), f64::INFINITY);
        assert_eq!(difference(&[], &[]), 0.0);
    }
}
