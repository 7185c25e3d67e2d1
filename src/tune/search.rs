//! The search under way: stage after stage of races, then the last ones.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::race::{EVIDENCE, Rounds, is_tie, race};
use super::subject::Subject;
use super::track::CandidateTrack;
use super::{Effort, Options, Progress, TuneError, Tuned, candidates};
use crate::plan::{Configuration, Cost, Entry, Measured, Plan};

pub(super) fn search(
    subject: &dyn Subject,
    options: &Options,
    progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, TuneError> {
    let mut sizes = options.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.is_empty() || sizes.iter().any(|&(batch, steps)| batch == 0 || steps == 0) {
        return Err(TuneError::NoSize);
    }
    if options.lengths.contains(&0) {
        return Err(TuneError::NoLength);
    }
    let start = Instant::now();
    let mut search = Search {
        subject,
        options,
        start,
        deadline: start,
        size: (0, sizes.len()),
        progress,
        runs: 0,
        candidates: 0,
        interrupted: false,
        cut: false,
    };
    let mut entries = Vec::with_capacity(sizes.len());
    let mut finished = Vec::with_capacity(sizes.len());
    for (index, &(batch, steps)) in sizes.iter().enumerate() {
        search.size.0 = index;
        // What is left is shared out evenly among the sizes that are left.
        let left = options.budget.saturating_sub(start.elapsed());
        search.deadline = Instant::now() + left / (sizes.len() - index) as u32;
        let (entry, is_finished) = search.entry(batch, steps)?;
        entries.push(entry);
        finished.push(is_finished);
    }
    Ok(Tuned {
        finished,
        plan: Plan { entries },
        runs: search.runs,
        candidates: search.candidates,
        interrupted: search.interrupted,
    })
}

/// A tuning under way.
struct Search<'a> {
    subject: &'a dyn Subject,
    options: &'a Options,
    start: Instant,
    /// When the present size has used up its share.
    deadline: Instant,
    size: (usize, usize),
    progress: &'a mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    runs: usize,
    candidates: usize,
    interrupted: bool,
    /// Of the present size: a race was left out or cut short.
    cut: bool,
}

/// The candidates of a race, best first; never empty.
struct Ranking {
    places: Vec<(Configuration, Cost)>,
    /// Complete rounds.
    rounds: usize,
}

/// The best of a race and the second best.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaders {
    best: (Configuration, Cost),
    second: Option<(Configuration, Cost)>,
    /// Complete rounds of that race.
    rounds: usize,
}

impl Leaders {
    fn of(ranking: Ranking) -> Leaders {
        let mut places = ranking.places.into_iter();
        Leaders {
            best: places.next().expect("a race has a candidate or more"),
            second: places.next(),
            rounds: ranking.rounds,
        }
    }

    fn is_evidence(&self) -> bool {
        self.rounds >= EVIDENCE
    }

    /// The result after a later race: the later one, unless it is no evidence and this one is.
    fn then(self, later: Leaders) -> Leaders {
        if self.is_evidence() && !later.is_evidence() {
            return self;
        }
        // The second of this race may be the winner of the later one.
        let before = self.second.filter(|(c, _)| *c != later.best.0);
        Leaders {
            second: later.second.or(before),
            ..later
        }
    }
}

impl Ranking {
    fn is_evidence(&self) -> bool {
        self.rounds >= EVIDENCE
    }

    /// Puts the estimate first unless the best is faster, beyond a tie and by `min_speedup` times,
    /// or uses fewer cores. Returns whether it did. A race that is no evidence decides nothing.
    fn prefer_estimate(&mut self, estimate: &Configuration, min_speedup: f64) -> bool {
        let Some(place) = self.places.iter().position(|(c, _)| c == estimate) else {
            return false;
        };
        let (best, cost) = (&self.places[0], self.places[place].1);
        let is_in_doubt =
            is_tie(best.1, cost) || (cost.median_ns as f64) < min_speedup * best.1.median_ns as f64;
        let spares_cores = best.0.threads < estimate.threads;
        let is_first = self.is_evidence() && (place == 0 || is_in_doubt && !spares_cores);
        if is_first {
            self.places[..=place].rotate_right(1);
        }
        is_first
    }
}

/// The stage whose rounds are spread over time, with a pause after each, so that other load on the
/// machine, which comes and goes within a second or two, does not decide alone.
const FINAL: &str = "final";
const PAUSE: Duration = Duration::from_millis(60);
/// Runs before each timed lap of the last stage: an idle core wakes slow and with empty caches,
/// which favours candidates that use the caches least.
const WARM_UP: Duration = Duration::from_millis(5);
/// Races of the last stage. One of two equal candidates wins all of them by chance once in 16
/// times.
const FINAL_RACES: usize = 5;
/// Rounds of each before a candidate is dropped.
const FINAL_ROUNDS: usize = 7;
/// Speed over that of the estimate that a candidate needs in each of these races to replace it.
const MIN_SPEEDUP: f64 = 1.03;
/// The same without time for all of them.
const MIN_UNPROVEN_SPEEDUP: f64 = 1.10;
/// Time of a size that earlier stages leave to the last one: at most this much, and this part.
const RESERVED: (Duration, f64) = (Duration::from_millis(2500), 0.4);

/// The last races in which the estimate was beaten.
#[derive(Default)]
struct Finals {
    /// Races in a row that the last winner has won.
    won: usize,
    last: Option<Ranking>,
}

impl Finals {
    /// Adds a race, unless it is no evidence.
    fn add(&mut self, ranking: Ranking) {
        if !ranking.is_evidence() {
            return;
        }
        let winner = &ranking.places[0].0;
        let again = (self.last.as_ref()).is_some_and(|last| last.places[0].0 == *winner);
        self.won = if again { self.won + 1 } else { 1 };
        self.last = Some(ranking);
    }

    /// Whether one candidate has won all races.
    fn is_proven(&self) -> bool {
        self.won == FINAL_RACES
    }
}

/// Candidates that are packed and raced at once.
const RACE_SIZE: usize = 24;

impl Search<'_> {
    /// The entry of a size, and whether it was raced to its end.
    fn entry(&mut self, batch: usize, steps: usize) -> Result<(Entry, bool), TuneError> {
        let size = (batch, steps);
        let estimate = self.subject.estimate(size, self.options.cores);
        let mut entry = Plan::of(estimate, batch, steps).entries.remove(0);
        if self.options.effort == Effort::Estimate || self.interrupted {
            return Ok((entry, !self.interrupted));
        }
        self.cut = false;
        let end = self.deadline;
        let left = end.saturating_duration_since(Instant::now());
        self.deadline = end - RESERVED.0.min(left.mul_f64(RESERVED.1));
        let leaders = match self.options.effort {
            Effort::Exhaustive => self.exhaustive(&entry.configuration, size)?,
            _ => self.staged(&entry.configuration, size)?,
        };
        self.deadline = end;
        let leaders = self.last(leaders, &entry.configuration, size)?;
        if !leaders.is_evidence() {
            return Ok((entry, false));
        }
        let second = leaders.second.map(|(c, cost)| (c.to_string(), cost));
        entry.configuration = leaders.best.0;
        entry.measured = Some(Measured {
            cost: leaders.best.1,
            runner_up: second,
        });
        Ok((entry, !self.cut))
    }

    /// One dimension after the other, each from the best of the one before.
    fn staged(
        &mut self,
        estimate: &Configuration,
        size: (usize, usize),
    ) -> Result<Leaders, TuneError> {
        let (subject, steps) = (self.subject, size.1);
        let arrangements = subject.arrangements(size, self.options.cores);
        let first = arrangements.iter().flat_map(candidates::with_orders);
        let first = [estimate.clone()].into_iter().chain(first).collect();
        let first = candidates::distinct(first);
        let mut leaders = self.races_of_few(first, "cores and partition", size, 0.35)?;
        type Vary = fn(&dyn Subject, &Configuration, usize) -> Vec<Configuration>;
        let stages: [(&'static str, Vary, f64); 7] = [
            ("schedule", |subject, c, _| subject.with_schedules(c), 0.4),
            (
                "chunk",
                |_, c, steps| candidates::with_chunks(c, steps),
                0.4,
            ),
            ("share", |_, c, _| candidates::with_shares(c), 0.3),
            (
                "chunk of shared rows",
                |_, c, steps| match candidates::with_shares(c).len() {
                    1 => Vec::new(),
                    _ => candidates::with_chunks(c, steps),
                },
                0.3,
            ),
            ("panel order", |_, c, _| candidates::with_orders(c), 0.3),
            ("blocking", |_, c, _| candidates::with_blockings(c), 0.3),
            (
                "single layers",
                |_, c, steps| match c.layers.len() {
                    1 => Vec::new(),
                    _ => candidates::with_one_layer(c, steps),
                },
                0.4,
            ),
        ];
        for (stage, vary, share) in stages {
            let mut all = vec![leaders.best.0.clone()];
            all.extend(vary(subject, &leaders.best.0, steps));
            leaders = self.next(leaders, candidates::distinct(all), stage, size, share)?;
        }
        Ok(leaders)
    }

    /// All combinations, in races whose winner goes on to the next.
    fn exhaustive(
        &mut self,
        estimate: &Configuration,
        size: (usize, usize),
    ) -> Result<Leaders, TuneError> {
        let all: Vec<_> = (self.subject.arrangements(size, self.options.cores).iter())
            .flat_map(|c| self.subject.with_schedules(c))
            .flat_map(|c| candidates::with_chunks(&c, size.1))
            .flat_map(|c| candidates::with_shares(&c))
            .flat_map(|c| candidates::with_orders(&c))
            .flat_map(|c| candidates::with_blockings(&c))
            .filter(|c| c != estimate)
            .collect();
        let all = candidates::distinct(all);
        let all = [estimate.clone()].into_iter().chain(all).collect();
        self.races_of_few(all, "all combinations", size, 0.9)
    }

    /// Races the best, the second and the estimate. A candidate that replaces the estimate must
    /// beat it in each of a few races, each with the weights packed anew, because their pages are
    /// chance, as is the time of an earlier race. Without time for all races it must win the last
    /// one by more; without time for any, or after an interruption, the earlier result stands.
    fn last(
        &mut self,
        mut leaders: Leaders,
        estimate: &Configuration,
        size: (usize, usize),
    ) -> Result<Leaders, TuneError> {
        let mut finalists = vec![leaders.best.0.clone()];
        finalists.extend(leaders.second.as_ref().map(|(c, _)| c.clone()));
        finalists.push(estimate.clone());
        let finalists = candidates::distinct(finalists);
        let (mut races, mut finals) = (0, Finals::default());
        while races < FINAL_RACES
            && !self.interrupted
            && (races == 0 || Instant::now() < self.deadline)
        {
            let share = 1.0 / (FINAL_RACES - races) as f64;
            let mut ranking = self.race(FINAL, finalists.clone(), size, share)?;
            races += 1;
            if ranking.prefer_estimate(estimate, MIN_SPEEDUP) {
                return Ok(leaders.then(Leaders::of(ranking)));
            }
            finals.add(ranking);
        }
        let is_proven = finals.is_proven();
        self.cut |= !is_proven;
        if let Some(mut ranking) = finals.last {
            if !is_proven && !self.interrupted {
                ranking.prefer_estimate(estimate, MIN_UNPROVEN_SPEEDUP);
            }
            leaders = leaders.then(Leaders::of(ranking));
        }
        Ok(leaders)
    }

    /// Races of few candidates at a time, since each packs the weights in its own way. The winner
    /// of one goes on to the next.
    fn races_of_few(
        &mut self,
        all: Vec<Configuration>,
        stage: &'static str,
        size: (usize, usize),
        share: f64,
    ) -> Result<Leaders, TuneError> {
        let mut races_of_few = all.chunks(RACE_SIZE);
        let mut left = races_of_few.len() as f64;
        let first = races_of_few.next().unwrap_or_default().to_vec();
        let mut leaders = Leaders::of(self.race(stage, first, size, share / left)?);
        for few in races_of_few {
            left -= 1.0;
            let all = [leaders.best.0.clone()].into_iter().chain(few.to_vec());
            leaders = self.next(leaders, all.collect(), stage, size, share / left)?;
        }
        Ok(leaders)
    }

    /// Races `all`, unless there is no time or only one candidate.
    fn next(
        &mut self,
        leaders: Leaders,
        all: Vec<Configuration>,
        stage: &'static str,
        size: (usize, usize),
        share: f64,
    ) -> Result<Leaders, TuneError> {
        if all.len() < 2 {
            return Ok(leaders);
        }
        if self.interrupted || Instant::now() >= self.deadline {
            self.cut = true;
            return Ok(leaders);
        }
        Ok(leaders.then(Leaders::of(self.race(stage, all, size, share)?)))
    }

    /// Verifies and races candidates, for a share of the time that is left to this size.
    fn race(
        &mut self,
        stage: &'static str,
        all: Vec<Configuration>,
        size: (usize, usize),
        share: f64,
    ) -> Result<Ranking, TuneError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + left.mul_f64(share);
        let mut track = CandidateTrack::new(self.subject, &all, size, &self.options.lengths)?;
        if stage == FINAL {
            track.warm_up_for(WARM_UP);
        }
        let verified = track.verify(&all, &mut || Instant::now() >= until)?;
        self.candidates += verified;
        let Search {
            ref mut progress,
            ref mut interrupted,
            ..
        } = *self;
        let budget = self.options.budget.as_secs_f64().max(1e-9);
        let (start, size_index) = (self.start, self.size);
        let mut round = |standing: usize, best: (usize, Cost)| {
            let report = Progress {
                size: size_index,
                stage,
                standing,
                best: (&all[best.0], best.1),
                fraction: (start.elapsed().as_secs_f64() / budget).min(1.0),
            };
            if progress(&report).is_break() {
                *interrupted = true;
            }
            if stage == FINAL {
                let left = until.saturating_duration_since(Instant::now());
                // Where time is short, shorter pauses: enough rounds come first.
                std::thread::sleep(PAUSE.min(left / (2 * FINAL_ROUNDS as u32)));
            }
            *interrupted || Instant::now() >= until
        };
        let rounds = match stage {
            FINAL => Rounds {
                least: FINAL_ROUNDS,
                most: 25,
            },
            _ => Rounds { least: 5, most: 25 },
        };
        let results = race(verified, rounds, &mut track.with(until, &mut round));
        self.runs += track.runs();
        self.cut |= verified < all.len() || results.rounds < rounds.least;
        let places = results.standings.into_iter();
        let places = places.map(|r| (all[r.candidate].clone(), r.cost));
        Ok(Ranking {
            places: places.collect(),
            rounds: results.rounds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;

    /// Three configurations, the estimate first; each differs from the others.
    fn configurations() -> [Configuration; 3] {
        let model = Lstm::new(5, 64).random(1).unwrap();
        [1, 2, 3].map(|chunk| {
            let mut found = Configuration::with_threads(&model, 1, 9, 1);
            found.layers[0].chunk_steps = chunk;
            found
        })
    }

    fn ranking(places: &[(&Configuration, u64)], rounds: usize) -> Ranking {
        let cost = |median_ns| Cost {
            median_ns,
            spread_ns: 0,
        };
        let places = places.iter().map(|&(c, time)| (c.clone(), cost(time)));
        Ranking {
            places: places.collect(),
            rounds,
        }
    }

    #[test]
    fn a_race_cut_short_takes_no_place_of_one_that_was_not() {
        let [a, b, c] = &configurations();
        let leaders = |places: &[_], rounds| Leaders::of(ranking(places, rounds));
        let first = leaders(&[(a, 100), (b, 120)], 3);
        for rounds in 0..3 {
            let later = leaders(&[(c, 90), (a, 100)], rounds);
            assert_eq!(first.clone().then(later), first, "{rounds} rounds");
        }
        let later = leaders(&[(c, 90), (a, 100)], 3);
        assert_eq!(first.clone().then(later.clone()), later);
        // Of two that were, the later, and who is second stays second.
        let found = leaders(&[(a, 100), (b, 120)], 0).then(leaders(&[(c, 90)], 1));
        assert_eq!((&found.best.0, found.rounds), (c, 1));
        assert_eq!(found.second.unwrap().0, *b);
        // Nobody is second to itself.
        let found = leaders(&[(a, 100), (b, 120)], 3).then(leaders(&[(b, 90)], 3));
        assert_eq!((&found.best.0, found.second), (b, None));
    }

    #[test]
    fn in_doubt_the_estimate_but_not_by_a_race_cut_short() {
        let [estimate, b, c] = &configurations();
        let leaders = |places: &[_], rounds| Leaders::of(ranking(places, rounds));
        let before = leaders(&[(b, 100), (c, 120)], 5);
        let after = |before: &Leaders, places: &[_], rounds| {
            let mut race = ranking(places, rounds);
            let is_decided = race.prefer_estimate(estimate, 1.03);
            (before.clone().then(Leaders::of(race)), is_decided)
        };
        let tie = [(b, 1000), (estimate, 1005)];
        let (found, is_decided) = after(&before, &tie, EVIDENCE);
        assert!(is_decided && found.best.0 == *estimate && found.is_evidence());
        // Two laps decide nothing.
        assert_eq!(after(&before, &tie, EVIDENCE - 1), (before.clone(), false));
        // Beaten once more, though in few laps: what was measured before stands.
        let beaten = [(b, 1000), (estimate, 2000)];
        assert_eq!(after(&before, &beaten, 1), (before.clone(), false));
        // The estimate itself was measured before.
        let before = leaders(&[(estimate, 100), (c, 120)], 5);
        let ahead = [(estimate, 1000), (c, 2000)];
        assert_eq!(after(&before, &ahead, 1), (before.clone(), false));
        assert!(after(&before, &ahead, EVIDENCE).1);
    }

    #[test]
    fn the_estimate_gives_way_to_what_is_well_ahead_or_wakes_fewer_cores() {
        let [mut estimate, best, _] = configurations();
        let gives_way = |estimate: &Configuration, best_ns, min_speedup| {
            let mut race = ranking(&[(&best, best_ns), (estimate, 1000)], EVIDENCE);
            let is_first = race.prefer_estimate(estimate, min_speedup);
            assert_eq!(is_first, race.places[0].0 == *estimate);
            !is_first
        };
        for (best_ns, min_speedup, expected) in [
            (980, 1.03, false),
            (960, 1.03, true),
            (960, 1.10, false),
            (900, 1.10, true),
        ] {
            let found = gives_way(&estimate, best_ns, min_speedup);
            assert_eq!(found, expected, "{best_ns} ns, {min_speedup}");
        }
        estimate.threads = 2;
        // A candidate on fewer cores needs no gain.
        assert!(gives_way(&estimate, 1000, 1.03));
        let mut behind = ranking(&[(&estimate, 1000), (&best, 1001)], EVIDENCE);
        assert!(behind.prefer_estimate(&estimate, 1.03));
        let mut absent = ranking(&[(&best, 1000)], EVIDENCE);
        assert!(!absent.prefer_estimate(&estimate, 1.03));
    }

    #[test]
    fn one_and_the_same_must_win_every_last_race() {
        let [a, b, c] = &configurations();
        let is_proven = |winners: &[(&Configuration, usize)]| {
            let mut finals = Finals::default();
            for &(winner, rounds) in winners {
                finals.add(ranking(&[(winner, 900), (a, 1000)], rounds));
            }
            finals.is_proven()
        };
        let all = [(b, EVIDENCE); FINAL_RACES];
        assert!(is_proven(&all));
        assert!(!is_proven(&all[1..]));
        let mut other = all;
        for at in 0..FINAL_RACES {
            other[at].0 = c;
            assert!(!is_proven(&other), "another won race {at}");
            other[at].0 = b;
            other[at].1 = EVIDENCE - 1;
            assert!(!is_proven(&other), "race {at} was cut short");
            other[at].1 = EVIDENCE;
        }
    }

    #[test]
    fn what_there_was_no_time_for_is_not_finished() {
        let model = Lstm::new(5, 64).random(1).unwrap();
        let options = Options::new(Vec::new(), 1, Duration::ZERO);
        let mut search = Search {
            subject: &model,
            options: &options,
            start: Instant::now(),
            deadline: Instant::now() + Duration::from_secs(1 << 20),
            size: (0, 1),
            progress: &mut |_| ControlFlow::Continue(()),
            runs: 0,
            candidates: 0,
            interrupted: false,
            cut: false,
        };
        let [a, b, _] = &configurations();
        let leaders = Leaders::of(ranking(&[(a, 100)], 5));
        let (two, size) = ([a, b].map(Clone::clone).to_vec(), (1, 9));
        let next = |search: &mut Search<'_>, all: &[Configuration]| {
            search.cut = false;
            let found = search.next(leaders.clone(), all.to_vec(), "chunk", size, 0.5);
            (found.unwrap() == leaders, search.cut)
        };
        assert_eq!(next(&mut search, &two), (false, false));
        // Out of time: left out, unless there is nobody to race against.
        search.deadline = Instant::now();
        assert_eq!(next(&mut search, &two), (true, true));
        assert_eq!(next(&mut search, &two[..1]), (true, false));
        // Cut short.
        search.cut = false;
        assert!(search.race("chunk", two, size, 0.5).unwrap().rounds < EVIDENCE);
        assert!(search.cut);
        // Of the last races the second is left out.
        search.cut = false;
        assert!(search.last(leaders.clone(), b, size).is_ok() && search.cut);
    }
}
