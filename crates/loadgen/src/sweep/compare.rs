//! Compares candidates: at every load all of them, alternating within each round, with
//! the same arrivals and requests.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::candidate::{Candidate, Launch};
use crate::drive::{Run, drive};
use crate::record::Recording;
use crate::target::{About, Target};
use crate::workload::{Arrivals, Workload};
use gatestream_command::Failure;

/// The conditions of all runs; see [`Run`].
#[derive(Clone, Debug)]
pub struct Conditions {
    pub workload: Workload,
    /// Seed of the first round; it is incremented for each further round.
    pub seed: u64,
    pub warm_up: Duration,
    pub window: Duration,
    pub requests: u64,
    pub deadline: Option<Duration>,
    pub drain_timeout: Duration,
    /// Number of runs of each candidate at each point.
    pub rounds: usize,
}

/// The runs of one candidate at one point.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub candidate: Candidate,
    /// The description of its target.
    pub about: About,
    pub arrivals: Arrivals,
    /// One for each round, at least one.
    pub rounds: Vec<Recording>,
}

impl Measurement {
    /// All rounds as one.
    pub fn all(&self) -> Recording {
        Recording::merged(&self.rounds)
    }
}

/// The run that comes next.
#[derive(Clone, Copy, Debug)]
pub struct NextRun<'a> {
    pub candidate: &'a Candidate,
    pub arrivals: &'a Arrivals,
    /// Counted from 0.
    pub round: usize,
}

/// Measures every candidate at every point. Results are in the order of the points, and within a
/// point in that of the candidates. `next` is called before each run and may break off: then the
/// result has the rounds that all candidates have completed, and no points without such a round.
///
/// # Errors
/// A target cannot be launched.
pub fn compare<L: Launch>(
    launch: &L,
    candidates: &[Candidate],
    points: &[Arrivals],
    conditions: &Conditions,
    next: &mut dyn FnMut(NextRun<'_>) -> ControlFlow<()>,
) -> Result<Vec<Measurement>, Failure> {
    let mut all = Vec::new();
    for arrivals in points {
        let mut here: Vec<Option<Measurement>> = vec![None; candidates.len()];
        for round in 0..conditions.rounds {
            // Each candidate is first in some round, so that effects of order fall on all.
            let turns = (0..here.len()).map(|turn| (turn + round) % candidates.len());
            for index in turns {
                let candidate = &candidates[index];
                let coming = NextRun {
                    candidate,
                    arrivals,
                    round,
                };
                if next(coming).is_break() {
                    let started = here.iter_mut().flatten();
                    started.for_each(|one| one.rounds.truncate(round));
                    let whole = here.into_iter().flatten();
                    all.extend(whole.filter(|one| !one.rounds.is_empty()));
                    return Ok(all);
                }
                let (target, clock) = launch.launch(candidate)?;
                let run = Run {
                    arrivals,
                    workload: &conditions.workload,
                    seed: conditions.seed.wrapping_add(round as u64),
                    warm_up: conditions.warm_up,
                    window: conditions.window,
                    requests: conditions.requests,
                    deadline: conditions.deadline,
                    drain_timeout: conditions.drain_timeout,
                };
                let recording = drive(&target, &clock, &run);
                let measurement = here[index].get_or_insert_with(|| Measurement {
                    candidate: candidate.clone(),
                    about: target.about(),
                    arrivals: arrivals.clone(),
                    rounds: Vec::new(),
                });
                measurement.rounds.push(recording);
            }
        }
        all.extend(here.into_iter().flatten());
    }
    Ok(all)
}

/// The baseline with the highest throughput, or without a baseline the candidate with it: loads are
/// fractions of this peak. `None` if nothing was answered.
pub fn peak_of_baselines(peaks: &[Measurement]) -> Option<(&Measurement, f64)> {
    let peaks = peaks.iter().map(|peak| (peak, peak.all().throughput()));
    let peaks: Vec<_> = peaks.filter(|(_, rate)| *rate > 0.0).collect();
    let baselines = peaks
        .iter()
        .filter(|(peak, _)| peak.candidate.is_baseline());
    let highest = baselines.max_by(|a, b| a.1.total_cmp(&b.1));
    highest
        .or_else(|| peaks.iter().max_by(|a, b| a.1.total_cmp(&b.1)))
        .copied()
}

#[cfg(test)]
pub mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::candidate::MaxRows;
    use crate::policy::ComparedPolicy;
    use crate::simulated::Simulated;
    use crate::workload::Lengths;
    use gatestream_serve::cell_graph::{BatchSizes, BatchTime, CellCost};
    use gatestream_serve::engine::Calibration;

    /// Simulated targets whose service time in milliseconds is `service`; all are kept.
    pub struct Fleet<F: Fn(&Candidate) -> u64> {
        service: F,
        pub launched: RefCell<Vec<(Candidate, Simulated)>>,
    }

    impl<F: Fn(&Candidate) -> u64> Fleet<F> {
        pub fn new(service: F) -> Fleet<F> {
            let launched = RefCell::default();
            Fleet { service, launched }
        }
    }

    impl<F: Fn(&Candidate) -> u64> Launch for Fleet<F> {
        type Target = Simulated;
        type Clock = Simulated;

        fn launch(&self, candidate: &Candidate) -> Result<(Simulated, Simulated), Failure> {
            let service = Duration::from_millis((self.service)(candidate));
            // As many servers as there are rows in a batch.
            let server = Simulated::new(candidate.max_batch(), service).remembers();
            let server = server.named(candidate.policy.map_or("remote", ComparedPolicy::name));
            let launched = (candidate.clone(), server.clone());
            self.launched.borrow_mut().push(launched);
            Ok((server.clone(), server))
        }

        /// One cell, a millisecond a row from 4 rows on.
        fn calibrate(&self, rows: &[usize]) -> Result<Vec<Calibration>, Failure> {
            let time = |rows: usize| Duration::from_millis(rows.max(4) as u64);
            Ok(vec![calibration("chain", rows, time)])
        }
    }

    /// The counters of a cell whose batches last `time`.
    pub fn calibration(
        cell: &str,
        rows: &[usize],
        time: impl Fn(usize) -> Duration,
    ) -> Calibration {
        let times: Vec<_> = { rows.iter() }
            .map(|&rows| BatchTime {
                rows,
                steps: 1,
                time: time(rows),
            })
            .collect();
        let mut cost = CellCost::from(BatchSizes::measured(&times).unwrap());
        cost.times = times;
        Calibration {
            cell: cell.into(),
            cost,
        }
    }

    pub fn candidate(policy: ComparedPolicy, batch: usize) -> Candidate {
        Candidate {
            policy: Some(policy),
            batch: Some(MaxRows::uniform(batch, 1)),
            bucket_width: None,
        }
    }

    pub fn conditions(rounds: usize) -> Conditions {
        Conditions {
            workload: Workload::Chains(Lengths::paper(330).unwrap()),
            seed: 9,
            warm_up: Duration::from_secs(1),
            window: Duration::from_secs(100),
            requests: u64::MAX,
            deadline: None,
            drain_timeout: Duration::from_secs(10),
            rounds,
        }
    }

    #[test]
    fn rounds_take_turns_and_share_their_arrivals() {
        use ComparedPolicy::{Merge, Padding};
        const CELLULAR: ComparedPolicy = ComparedPolicy::CELLULAR;
        let fleet = Fleet::new(|one| if one.policy == Some(Padding) { 20 } else { 5 });
        let candidates = [CELLULAR, Padding, Merge].map(|policy| candidate(policy, 1));
        let points = [10.0, 30.0].map(|rate| Arrivals::Poisson { rate });
        let mut announced = Vec::new();
        let measured = compare(&fleet, &candidates, &points, &conditions(3), &mut |next| {
            announced.push((next.candidate.policy.unwrap(), next.round));
            ControlFlow::Continue(())
        });
        let measured = measured.unwrap();

        let launched = fleet.launched.borrow();
        let order: Vec<_> = launched
            .iter()
            .map(|(one, _)| one.policy.unwrap())
            .collect();
        let turns = [
            CELLULAR, Padding, Merge, Padding, Merge, CELLULAR, Merge, CELLULAR, Padding,
        ];
        assert_eq!(order, [turns, turns].concat());
        assert!(announced.iter().map(|(policy, _)| policy).eq(&order));
        assert!(
            announced
                .iter()
                .map(|(_, round)| *round)
                .eq([0, 0, 0, 1, 1, 1, 2, 2, 2].repeat(2))
        );
        // Within a round all see the same; rounds differ.
        for round in launched.chunks(3) {
            let seen: Vec<_> = round.iter().map(|(_, server)| server.seen()).collect();
            assert!(seen[0].len() > 500 && seen[0] == seen[1] && seen[1] == seen[2]);
        }
        assert_ne!(launched[0].1.seen(), launched[3].1.seen());

        let who: Vec<_> = measured
            .iter()
            .map(|m| (m.candidate.clone(), m.arrivals.clone()))
            .collect();
        let expected = points
            .iter()
            .flat_map(|p| candidates.clone().map(|c| (c, p.clone())));
        assert!(who.into_iter().eq(expected));
        for one in &measured {
            assert_eq!(one.rounds.len(), 3);
            let service = if one.candidate.policy == Some(Padding) {
                20.0
            } else {
                5.0
            };
            assert!((one.all().computing.quantile(0.5) / service - 1.0).abs() < 1e-3);
            assert_eq!(
                one.all().due,
                one.rounds.iter().map(|round| round.due).sum::<u64>()
            );
        }
    }

    #[test]
    fn breaking_off_keeps_complete_rounds() {
        use ComparedPolicy::Padding;
        const CELLULAR: ComparedPolicy = ComparedPolicy::CELLULAR;
        let candidates = [CELLULAR, Padding].map(|policy| candidate(policy, 1));
        let points = [10.0, 30.0].map(|rate| Arrivals::Poisson { rate });
        // Two points of three rounds of two.
        for runs in 0..=12usize {
            let fleet = Fleet::new(|_| 5);
            let mut left = runs;
            let measured = compare(&fleet, &candidates, &points, &conditions(3), &mut |_| {
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            });
            let rounds: Vec<usize> = measured.unwrap().iter().map(|m| m.rounds.len()).collect();
            let whole = runs / 2;
            let expected = [whole.min(3), whole.saturating_sub(3)].into_iter();
            let expected = expected.filter(|rounds| *rounds > 0);
            let expected: Vec<usize> = expected.flat_map(|rounds| [rounds; 2]).collect();
            assert_eq!(rounds, expected, "{runs} runs");
        }
    }

    #[test]
    fn loads_are_of_the_best_baseline() {
        let peak = |policy, completed| {
            let mut recording = Recording::default();
            (recording.completed, recording.window) = (completed, Duration::from_secs(1));
            Measurement {
                candidate: candidate(policy, 1),
                about: About::new(policy.name()),
                arrivals: Arrivals::Closed { outstanding: 1 },
                rounds: vec![recording],
            }
        };
        let peaks = [
            peak(ComparedPolicy::CELLULAR, 90),
            peak(ComparedPolicy::SHORTEST, 95),
            peak(ComparedPolicy::EBATCH, 110),
            peak(ComparedPolicy::Ideal, 100),
            peak(ComparedPolicy::Padding, 40),
            peak(ComparedPolicy::Bucketing, 50),
        ];
        let found = |peaks| peak_of_baselines(peaks).map(|(one, rate)| (&*one.about.name, rate));
        assert_eq!(found(&peaks), Some(("bucketing", 50.0)));
        assert_eq!(found(&peaks[..2]), Some(("shortest", 95.0)));
        assert_eq!(
            found(&peaks[..4]),
            Some(("ebatch", 110.0)),
            "without a baseline"
        );
        assert_eq!(found(&[peak(ComparedPolicy::Merge, 0)]), None);
    }
}
