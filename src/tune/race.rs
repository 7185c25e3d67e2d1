//! A race: candidates are timed in turn, round after round, and losers are dropped early.
//!
//! ```text
//! repeat until one is left, or enough rounds are run, or time is up
//!   for candidate in those still in: one sample of each      interleaved: a slow minute hits all
//!   drop those that are slower than the best beyond doubt
//! the winner: the least median; of ties with it, the one with the fewest cores
//! ```
//!
//! Nothing here reads a clock: the lap is the caller's, so that tests can race simulated
//! candidates.

use crate::plan::Cost;

/// What is raced.
pub(super) trait Track {
    /// Times one candidate, in nanoseconds.
    fn lap(&mut self, candidate: usize) -> u64;
    /// Whether time is up, asked after every lap.
    fn is_over(&mut self) -> bool;
    /// Called after every round with the leader. Returns whether to stop.
    fn round(&mut self, standing: usize, best: (usize, Cost)) -> bool;
    /// Workers that the candidate wakes.
    fn cores(&self, candidate: usize) -> usize;
}

/// How a candidate came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub candidate: usize,
    pub cost: Cost,
}

/// How a race came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Results {
    /// Best first.
    pub standings: Vec<Standing>,
    /// Rounds in which all remaining candidates had a lap.
    pub rounds: usize,
}

/// Rounds from which on results are evidence. Of one sample the spread is 0, which looks like the
/// best of measurements, and of two the system may have disturbed either.
pub(super) const EVIDENCE: usize = 3;

/// Rounds after which one may be dropped for being slower within the noise, and when to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub least: usize,
    pub most: usize,
}

/// Before there are enough samples for quartiles only those are dropped whose best is so much
/// slower than the best median. Not after one sample: the system may have taken the core away
/// meanwhile.
const HOPELESS: f64 = 1.5;

/// Races `candidates` candidates; best first, those dropped early by the times they had by then.
/// The first gets at least one lap. Candidates without one, because time is up, are left out.
pub(super) fn race(candidates: usize, rounds: Rounds, track: &mut impl Track) -> Results {
    let mut complete = 0;
    let mut samples: Vec<Vec<u64>> = vec![Vec::new(); candidates];
    let mut standing: Vec<usize> = (0..candidates).collect();
    'race: for round in 0..rounds.most.max(1) {
        for (place, &candidate) in standing.iter().enumerate() {
            if (round, place) != (0, 0) && track.is_over() {
                break 'race;
            }
            let lap = track.lap(candidate);
            let samples = &mut samples[candidate];
            let at = samples.partition_point(|&sample| sample < lap);
            samples.insert(at, lap);
        }
        complete += 1;
        let Some(best) = standing.iter().copied().min_by_key(|&c| cost(&samples[c])) else {
            break;
        };
        let leader = cost(&samples[best]);
        standing.retain(|&candidate| {
            let least = samples[candidate][0] as f64;
            let may_be_best = quartile(&samples[candidate], 1) <= quartile(&samples[best], 3);
            if round + 1 >= rounds.least {
                may_be_best || is_tie(leader, cost(&samples[candidate]))
            } else {
                round == 0 || least <= HOPELESS * leader.median_ns as f64
            }
        });
        if standing.len() <= 1 && round + 1 >= rounds.least
            || track.round(standing.len(), (best, leader))
        {
            break;
        }
    }
    let mut standings: Vec<Standing> = (0..candidates)
        .filter(|&candidate| !samples[candidate].is_empty())
        .map(|candidate| Standing {
            candidate,
            cost: cost(&samples[candidate]),
        })
        .collect();
    // Dropped candidates rank behind all others, whatever their few samples say.
    standings.sort_by_key(|r| (!standing.contains(&r.candidate), r.cost, r.candidate));
    if let Some(best) = standings.first().copied() {
        let ties = standings.iter().enumerate();
        let ties =
            ties.filter(|(_, r)| is_tie(best.cost, r.cost) && standing.contains(&r.candidate));
        let fewest = ties.min_by_key(|(place, r)| (track.cores(r.candidate), *place));
        let place = fewest.map_or(0, |(place, _)| place);
        standings[..=place].rotate_right(1);
    }
    Results {
        standings,
        rounds: complete,
    }
}

/// Whether the difference of `other` from `best` is noise: within one per cent, or within half of
/// the spread where that is more, but never beyond five per cent.
pub(super) fn is_tie(best: Cost, other: Cost) -> bool {
    let margin = (best.spread_ns / 2).clamp(best.median_ns / 100, best.median_ns / 20);
    other.median_ns <= best.median_ns + margin
}

fn cost(sorted: &[u64]) -> Cost {
    Cost {
        median_ns: quartile(sorted, 2),
        spread_ns: quartile(sorted, 3) - quartile(sorted, 1),
    }
}

/// The nearest sample to a quartile; 0 of none.
fn quartile(sorted: &[u64], quarter: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * quarter + 2) / 4).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates with known times and noise, on a simulated clock.
    struct Simulated {
        /// Nanoseconds and cores of each.
        runners: Vec<(u64, usize)>,
        /// Each lap takes up to so many per cent more.
        noise: u64,
        random: fastrand::Rng,
        laps: Vec<usize>,
        clock: u64,
        budget: u64,
    }

    impl Simulated {
        fn new(runners: &[(u64, usize)], noise: u64, seed: u64) -> Simulated {
            Simulated {
                runners: runners.to_vec(),
                noise,
                random: fastrand::Rng::with_seed(seed),
                laps: vec![0; runners.len()],
                clock: 0,
                budget: u64::MAX,
            }
        }

        fn run(&mut self) -> Vec<Standing> {
            self.results().standings
        }

        fn results(&mut self) -> Results {
            let rounds = Rounds { least: 3, most: 15 };
            race(self.runners.len(), rounds, self)
        }
    }

    impl Track for Simulated {
        fn lap(&mut self, candidate: usize) -> u64 {
            self.laps[candidate] += 1;
            let time = self.runners[candidate].0;
            let lap = time + time * self.random.u64(0..=self.noise) / 100;
            self.clock += lap;
            lap
        }

        fn is_over(&mut self) -> bool {
            self.clock >= self.budget
        }

        fn round(&mut self, _: usize, _: (usize, Cost)) -> bool {
            false
        }

        fn cores(&self, candidate: usize) -> usize {
            self.runners[candidate].1
        }
    }

    #[test]
    fn the_fastest_wins_whatever_the_noise_hides_less_than() {
        for seed in 0..200 {
            let mut race = Simulated::new(
                &[(150, 1), (100, 2), (130, 1), (400, 4)].map(scaled),
                20,
                seed,
            );
            let results = race.run();
            assert_eq!(results[0].candidate, 1, "seed {seed}");
            assert_eq!(results.len(), 4);
            assert_eq!(results[3].candidate, 3);
            assert_eq!(race.laps[3], 2, "hopeless, once that is no accident");
        }
    }

    fn scaled((time, cores): (u64, usize)) -> (u64, usize) {
        (1000 * time, cores)
    }

    #[test]
    fn a_tie_goes_to_fewer_cores_and_a_gain_does_not() {
        let tied = Simulated::new(&[(100_000, 2), (100_500, 1)], 0, 1).run();
        assert_eq!(tied[0].candidate, 1);
        assert_eq!(tied[1].candidate, 0);
        let faster = Simulated::new(&[(100_000, 2), (110_000, 1)], 0, 1).run();
        assert_eq!(faster[0].candidate, 0);
    }

    #[test]
    fn the_first_gets_a_lap_however_short_the_time() {
        let mut race = Simulated::new(&[(300, 1), (100, 1), (200, 1)].map(scaled), 0, 1);
        race.budget = 1;
        let results = race.run();
        assert_eq!(race.laps, [1, 0, 0]);
        assert_eq!((results.len(), results[0].candidate), (1, 0));
        let mut race = Simulated::new(&[(300, 1), (100, 1), (200, 1)].map(scaled), 0, 1);
        race.budget = 350_000;
        let results = race.run();
        assert_eq!(race.laps, [1, 1, 0]);
        assert_eq!((results.len(), results[0].candidate), (2, 1));
        assert!(Simulated::new(&[], 0, 1).run().is_empty());
        assert_eq!(Simulated::new(&[(5, 1)], 0, 1).run().len(), 1);
    }

    /// Who has had a lap more than the others has not had a round more.
    #[test]
    fn only_complete_rounds_count() {
        for (budget, laps, rounds) in [
            (1, [1, 0], 0),
            (150, [1, 1], 1),
            (300, [2, 1], 1),
            (400, [2, 2], 2),
            (u64::MAX / 1000, [3, 3], EVIDENCE),
        ] {
            let mut race = Simulated::new(&[(100, 1), (120, 1)].map(scaled), 0, 1);
            race.budget = 1000 * budget;
            let results = race.results();
            assert_eq!(race.laps, laps, "{budget} µs");
            assert_eq!(results.rounds, rounds, "{budget} µs");
        }
    }

    #[test]
    fn medians_and_quartiles_are_the_samples_own() {
        assert_eq!(quartile(&[7], 1), 7);
        assert_eq!([1, 2, 3].map(|q| quartile(&[1, 2, 3, 4, 5], q)), [2, 3, 4]);
        let odd = cost(&[1, 2, 3, 100, 200]);
        assert_eq!((odd.median_ns, odd.spread_ns), (3, 98));
    }
}
