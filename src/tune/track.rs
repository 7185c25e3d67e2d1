//! The race track of real candidates.

use std::time::{Duration, Instant};

use super::TuneError;
use super::race::Track;
use super::subject::{Candidates, Subject};
use crate::plan::{Configuration, Cost};

/// Runs of one lap last about so long together, in nanoseconds, where one run does not already.
const LAP: u64 = 1_000_000;
/// Timed runs of one lap: enough for a median, no more than tell anything new.
const RUNS: (u64, u64) = (3, 9);
/// Nanoseconds from which a run is a lap by itself: the caches at its start no longer matter.
const LONG: u64 = 5_000_000;
/// Candidates packed together (what they have in common is packed once).
pub(super) struct CandidateTrack<'s> {
    candidates: Box<dyn Candidates + 's>,
    cores: Vec<usize>,
    /// Nanoseconds that the runs before a lap last at least; one run in any case.
    warm_up: u64,
    runs: usize,
}

impl<'s> CandidateTrack<'s> {
    pub fn new(
        subject: &'s dyn Subject,
        all: &[Configuration],
        size: (usize, usize),
        lengths: &[usize],
    ) -> Result<CandidateTrack<'s>, TuneError> {
        Ok(CandidateTrack {
            candidates: subject.pack(all, size, lengths)?,
            cores: all.iter().map(|c| c.threads).collect(),
            warm_up: 0,
            runs: 0,
        })
    }

    /// Compares every candidate with the reference, until `stop` says that time is up, but at least
    /// the first; returns how many.
    pub fn verify(
        &mut self,
        all: &[Configuration],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<usize, TuneError> {
        for (index, candidate) in all.iter().enumerate() {
            if index > 0 && stop() {
                return Ok(index);
            }
            let verified = self.candidates.verify(index);
            verified.map_err(|source| TuneError::Verify {
                candidate: candidate.to_string(),
                source,
            })?;
        }
        Ok(all.len())
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
    pub fn with<'t>(&'t mut self, until: Instant, round: Round<'t>) -> Watched<'t, 's> {
        Watched {
            track: self,
            until,
            round,
        }
    }

    fn time(&mut self, candidate: usize) -> u64 {
        let start = Instant::now();
        let done = self.candidates.run(candidate);
        let time = start.elapsed().as_nanos() as u64;
        // It has run the same sizes when it was verified.
        debug_assert!(done.is_ok(), "{done:?}");
        time.max(1)
    }

    /// The median of a few runs in a row, after one or more that bring the weights into the caches.
    pub fn lap(&mut self, candidate: usize) -> u64 {
        let first = self.time(candidate);
        if first >= LONG {
            self.runs += 1;
            return first;
        }
        let mut warm_up = first;
        while warm_up < self.warm_up {
            warm_up += self.time(candidate);
        }
        let count = (LAP / first).clamp(RUNS.0, RUNS.1);
        let mut times: Vec<u64> = (0..count).map(|_| self.time(candidate)).collect();
        self.runs += times.len();
        times.sort_unstable();
        times[times.len() / 2]
    }
}

type Round<'t> = &'t mut dyn FnMut(usize, (usize, Cost)) -> bool;

/// A track under watch.
pub(super) struct Watched<'t, 's> {
    track: &'t mut CandidateTrack<'s>,
    until: Instant,
    round: Round<'t>,
}

impl Track for Watched<'_, '_> {
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
