//! The race track of real candidates: one session that can run as any of them.

use std::time::{Duration, Instant};

use super::race::Track;
use super::verify::Check;
use super::{TuneError, VerifyError};
use crate::execute::Session;
use crate::model::{Input, Model, Output};
use crate::plan::{Configuration, Cost};

/// Runs of one lap last about so long together, in nanoseconds, where one run does not already.
const LAP: u64 = 1_000_000;
/// Timed runs of one lap: enough for a median, no more than tell anything new.
const RUNS: (u64, u64) = (3, 9);
/// Nanoseconds from which a run is a lap by itself: the caches at its start no longer matter.
const LONG: u64 = 5_000_000;
/// Multiply-adds of the reference run that candidates are held against: about a tenth of a second.
const CHECKED_PRODUCTS: usize = Check::THOROUGH / 10;

/// Candidates packed together (what they have in common is packed once), and their input.
pub(super) struct SessionTrack {
    session: Session,
    cores: Vec<usize>,
    size: (usize, usize),
    values: Vec<f32>,
    lengths: Option<Vec<usize>>,
    output: Vec<f32>,
    /// Nanoseconds that the runs before a lap last at least; one run in any case.
    warm_up: u64,
    runs: usize,
}

impl SessionTrack {
    pub fn new(
        model: &Model,
        candidates: &[Configuration],
        (batch, steps): (usize, usize),
        lengths: &[usize],
    ) -> Result<SessionTrack, TuneError> {
        let session = Session::for_candidates(model, candidates, batch, steps)?;
        session.pin_caller();
        let signature = model.signature();
        let mut random = fastrand::Rng::with_seed(1);
        let values = (0..steps * batch * signature.input).map(|_| 2.0 * random.f32() - 1.0);
        let mut lengths = lengths.to_vec();
        if batch < lengths.len() {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths = (0..batch)
                .map(|s| lengths[s * lengths.len() / batch])
                .collect();
        }
        let dealt = lengths.iter().cycle().take(batch);
        let dealt: Vec<usize> = dealt.map(|&length| length.min(steps)).collect();
        Ok(SessionTrack {
            lengths: (!dealt.is_empty()).then_some(dealt),
            values: values.collect(),
            output: vec![0.0; steps * batch * signature.output],
            cores: candidates.iter().map(|c| c.threads).collect(),
            size: (batch, steps),
            warm_up: 0,
            runs: 0,
            session,
        })
    }

    /// Holds every candidate against the reference, until `stop` says that time is up, but at least
    /// the first; returns how many.
    pub fn verify(
        &mut self,
        model: &Model,
        candidates: &[Configuration],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<usize, TuneError> {
        let failed = |index: usize, source: VerifyError| TuneError::Verify {
            candidate: candidates[index].to_string(),
            source,
        };
        let check = Check::new(model, candidates, self.size, CHECKED_PRODUCTS);
        let mut check = check.map_err(|source| failed(0, source))?;
        for index in 0..candidates.len() {
            if index > 0 && stop() {
                return Ok(index);
            }
            self.session.run_as(index);
            let held = check.hold(&mut self.session);
            held.map_err(|source| failed(index, source))?;
        }
        Ok(candidates.len())
    }

    /// Before each lap, runs that last so long together instead of one.
    pub fn warm_up_for(&mut self, time: Duration) {
        self.warm_up = time.as_nanos() as u64;
    }

    /// Timed runs so far.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// The track with a callback for each round, which may stop the race.
    pub fn with<'t>(&'t mut self, until: Instant, round: Round<'t>) -> Watched<'t> {
        Watched {
            track: self,
            until,
            round,
        }
    }

    fn time(&mut self) -> u64 {
        let (batch, steps) = self.size;
        let mut input = Input::new(&self.values, steps, batch);
        if let Some(lengths) = &self.lengths {
            input = input.lengths(lengths);
        }
        let start = Instant::now();
        let done = self.session.run(&input, &mut Output::new(&mut self.output));
        let time = start.elapsed().as_nanos() as u64;
        // The same session has run the same sizes when it was verified.
        debug_assert!(done.is_ok(), "{done:?}");
        time.max(1)
    }

    /// The median of a few runs in a row, after one or more that bring the weights into the caches.
    pub fn lap(&mut self, candidate: usize) -> u64 {
        self.session.run_as(candidate);
        let first = self.time();
        if first >= LONG {
            self.runs += 1;
            return first;
        }
        let mut warm_up = first;
        while warm_up < self.warm_up {
            warm_up += self.time();
        }
        let count = (LAP / first).clamp(RUNS.0, RUNS.1);
        let mut times: Vec<u64> = (0..count).map(|_| self.time()).collect();
        self.runs += times.len();
        times.sort_unstable();
        times[times.len() / 2]
    }
}

type Round<'t> = &'t mut dyn FnMut(usize, (usize, Cost)) -> bool;

/// A track under watch.
pub(super) struct Watched<'t> {
    track: &'t mut SessionTrack,
    until: Instant,
    round: Round<'t>,
}

impl Track for Watched<'_> {
    fn lap(&mut self, candidate: usize) -> u64 {
        self.track.lap(candidate)
    }

    fn is_over(&mut self) -> bool {
        Instant::now() >= self.until
    }

    fn round(&mut self, standing: usize, best: (usize, Cost)) -> bool {
        (self.round)(standing, best)
    }

    fn cores(&self, candidate: usize) -> usize {
        self.track.cores[candidate]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;

    #[test]
    fn sequences_are_as_long_as_was_asked_for_in_turn() {
        let model = Lstm::new(2, 3).random(1).unwrap();
        let (batch, steps) = (3, 5);
        let plan = [Configuration::with_threads(&model, batch, steps, 1)];
        for (lengths, expected) in [
            (&[][..], [5, 5, 5]),
            (&[2, 9], [2, 5, 2]),
            (&[1, 2, 3, 4], [4, 3, 2]),
            (&[1, 1, 1, 1, 2, 3], [3, 1, 1]),
        ] {
            let mut track = SessionTrack::new(&model, &plan, (batch, steps), lengths).unwrap();
            track.lap(0);
            // Past a sequence's end the output is zero; a state of random weights is not.
            let is_running =
                |t: usize, s: usize| track.output[(t * batch + s) * 3..][..3] != [0.0; 3];
            let found = [0, 1, 2].map(|s| (0..steps).filter(|&t| is_running(t, s)).count());
            assert_eq!(found, expected, "{lengths:?}");
        }
    }
}
