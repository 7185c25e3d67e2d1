//! Policies beside each other: at every point all of them, in rounds that take them in turn, with the same arrivals and
//! requests.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::drive::{Run, drive};
use crate::record::Recording;
use crate::target::{Launch, Settings, is_baseline};
use crate::workload::Workload;
use crate::workload::arrivals::Arrivals;
use cellstream_command::Failure;
use cellstream_serve::policy::PolicyKind;

/// A policy with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Which policy.
    pub policy: PolicyKind,
    /// How it is set.
    pub settings: Settings,
}

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// What requests ask for.
    pub workload: Workload,
    /// Of the first round; each has its own.
    pub seed: u64,
    /// Before each window.
    pub warm_up: Duration,
    /// The window of each run.
    pub window: Duration,
    /// Requests of a run at most.
    pub requests: u64,
    /// From when a request is due.
    pub deadline: Option<Duration>,
    /// How long requests are waited for after a window.
    pub patience: Duration,
    /// Runs of each contender at each point.
    pub rounds: usize,
}

/// How one contender fared at one point.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Who.
    pub contender: Contender,
    /// At which point.
    pub arrivals: Arrivals,
    /// One for each round.
    pub rounds: Vec<Recording>,
}

impl Measured {
    /// All rounds as one.
    pub fn all(&self) -> Recording {
        Recording::merged(&self.rounds)
    }
}

/// The run that comes next.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Who.
    pub contender: &'a Contender,
    /// At which point.
    pub arrivals: &'a Arrivals,
    /// Counted from 0.
    pub round: usize,
}

/// Measures every contender at every point; the results are in the order of the points, those of one point in the order
/// of the contenders. `next` is called before each run, and may break off: then what is left are rounds that all have
/// had, and points with at least one of these.
///
/// # Errors
/// What a server refuses when it is launched.
pub fn compare<L: Launch>(
    launch: &L,
    contenders: &[Contender],
    points: &[Arrivals],
    conditions: &Conditions,
    next: &mut dyn FnMut(Next<'_>) -> ControlFlow<()>,
) -> Result<Vec<Measured>, Failure> {
    let mut all = Vec::new();
    for arrivals in points {
        let measured = |contender: &Contender| Measured {
            contender: contender.clone(),
            arrivals: arrivals.clone(),
            rounds: Vec::new(),
        };
        let mut here: Vec<Measured> = contenders.iter().map(measured).collect();
        for round in 0..conditions.rounds {
            // Each goes first in some round: what a machine does after a pause, or as it warms, falls on all.
            let turns = (0..here.len()).map(|turn| (turn + round) % contenders.len());
            for index in turns {
                let contender = &contenders[index];
                let coming = Next {
                    contender,
                    arrivals,
                    round,
                };
                if next(coming).is_break() {
                    here.iter_mut().for_each(|one| one.rounds.truncate(round));
                    all.extend(here.into_iter().filter(|one| !one.rounds.is_empty()));
                    return Ok(all);
                }
                let (target, clock) = launch.launch(contender.policy, &contender.settings)?;
                let run = Run {
                    arrivals,
                    workload: &conditions.workload,
                    seed: conditions.seed.wrapping_add(round as u64),
                    warm_up: conditions.warm_up,
                    window: conditions.window,
                    requests: conditions.requests,
                    deadline: conditions.deadline,
                    patience: conditions.patience,
                };
                here[index].rounds.push(drive(&target, &clock, &run));
            }
        }
        all.extend(here);
    }
    Ok(all)
}

/// Who has the highest throughput of the baselines, or of all where there is none: what `--load` is a fraction of.
/// `None` if nobody answered anything.
pub fn peak_of_baselines(peaks: &[(PolicyKind, f64)]) -> Option<(PolicyKind, f64)> {
    let answering = || peaks.iter().copied().filter(|(_, peak)| *peak > 0.0);
    let most = |a: &(PolicyKind, f64), b: &(PolicyKind, f64)| a.1.total_cmp(&b.1);
    let baselines = answering().filter(|&(policy, _)| is_baseline(policy));
    baselines.max_by(most).or_else(|| answering().max_by(most))
}

#[cfg(test)]
pub mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::simulated::Simulated;
    use crate::target::Rows;
    use crate::workload::lengths::Lengths;
    use cellstream_serve::cell_graph::{BatchSizes, BatchTime, CellCost};
    use cellstream_serve::engine::Calibration;

    /// Servers that take so many milliseconds each, and remember.
    pub struct Fleet<F: Fn(PolicyKind, &Settings) -> u64> {
        pub service: F,
        pub launched: RefCell<Vec<(PolicyKind, Settings, Simulated)>>,
    }

    impl<F: Fn(PolicyKind, &Settings) -> u64> Fleet<F> {
        pub fn new(service: F) -> Fleet<F> {
            let launched = RefCell::default();
            Fleet { service, launched }
        }
    }

    impl<F: Fn(PolicyKind, &Settings) -> u64> Launch for Fleet<F> {
        type Target = Simulated;
        type Clock = Simulated;

        fn launch(
            &self,
            policy: PolicyKind,
            settings: &Settings,
        ) -> Result<(Simulated, Simulated), Failure> {
            let service = Duration::from_millis((self.service)(policy, settings));
            // As many servers as there are rows in a batch.
            let server = Simulated::new(settings.batch.most(), service).remembers();
            let launched = (policy, settings.clone(), server.clone());
            self.launched.borrow_mut().push(launched);
            Ok((server.clone(), server))
        }

        /// One cell, a millisecond a row from 4 rows on.
        fn calibrate(&self, rows: &[usize]) -> Result<Vec<Calibration>, Failure> {
            let time = |rows: usize| Duration::from_millis(rows.max(4) as u64);
            Ok(vec![calibration("chain", rows, time)])
        }
    }

    /// What was measured of a cell whose batches take `time`.
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

    pub fn contender(policy: PolicyKind, batch: usize) -> Contender {
        let settings = Settings {
            batch: Rows::each(batch, 1),
            bucket_width: None,
        };
        Contender { policy, settings }
    }

    pub fn conditions(rounds: usize) -> Conditions {
        Conditions {
            workload: Workload::Chains(Lengths::paper(330).unwrap()),
            seed: 9,
            warm_up: Duration::from_secs(1),
            window: Duration::from_secs(100),
            requests: u64::MAX,
            deadline: None,
            patience: Duration::from_secs(10),
            rounds,
        }
    }

    #[test]
    fn rounds_take_turns_and_share_their_arrivals() {
        use PolicyKind::{Cellular, Merge, Padding};
        let fleet = Fleet::new(|policy, _| if policy == Padding { 20 } else { 5 });
        let contenders = [Cellular, Padding, Merge].map(|policy| contender(policy, 1));
        let points = [10.0, 30.0].map(|rate| Arrivals::Poisson { rate });
        let mut announced = Vec::new();
        let measured = compare(&fleet, &contenders, &points, &conditions(3), &mut |next| {
            announced.push((next.contender.policy, next.round));
            ControlFlow::Continue(())
        });
        let measured = measured.unwrap();

        let launched = fleet.launched.borrow();
        let order: Vec<_> = launched.iter().map(|(policy, ..)| *policy).collect();
        let turns = [
            Cellular, Padding, Merge, Padding, Merge, Cellular, Merge, Cellular, Padding,
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
            let seen: Vec<_> = round.iter().map(|(.., server)| server.seen()).collect();
            assert!(seen[0].len() > 500 && seen[0] == seen[1] && seen[1] == seen[2]);
        }
        assert_ne!(launched[0].2.seen(), launched[3].2.seen());

        let who: Vec<_> = measured
            .iter()
            .map(|m| (m.contender.clone(), m.arrivals.clone()))
            .collect();
        let expected = points
            .iter()
            .flat_map(|p| contenders.clone().map(|c| (c, p.clone())));
        assert!(who.into_iter().eq(expected));
        for one in &measured {
            assert_eq!(one.rounds.len(), 3);
            let service = if one.contender.policy == Padding {
                20.0
            } else {
                5.0
            };
            assert!((one.all().computing.at(0.5) / service - 1.0).abs() < 1e-3);
            assert_eq!(
                one.all().due,
                one.rounds.iter().map(|round| round.due).sum::<u64>()
            );
        }
    }

    #[test]
    fn what_is_broken_off_leaves_the_rounds_that_all_have_had() {
        use PolicyKind::{Cellular, Padding};
        let contenders = [Cellular, Padding].map(|policy| contender(policy, 1));
        let points = [10.0, 30.0].map(|rate| Arrivals::Poisson { rate });
        // Two points of three rounds of two.
        for runs in 0..=12usize {
            let fleet = Fleet::new(|_, _| 5);
            let mut left = runs;
            let measured = compare(&fleet, &contenders, &points, &conditions(3), &mut |_| {
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
        let peaks = [
            (PolicyKind::Cellular, 90.0),
            (PolicyKind::Padding, 40.0),
            (PolicyKind::Bucketing, 50.0),
            (PolicyKind::Ideal, 100.0),
        ];
        assert_eq!(
            peak_of_baselines(&peaks),
            Some((PolicyKind::Bucketing, 50.0))
        );
        assert_eq!(
            peak_of_baselines(&peaks[..1]),
            Some((PolicyKind::Cellular, 90.0))
        );
        assert_eq!(peak_of_baselines(&[(PolicyKind::Merge, 0.0)]), None);
    }
}
