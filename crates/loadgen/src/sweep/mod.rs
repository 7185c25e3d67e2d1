//! Each policy at its own best settings at every load. All settings are measured and shown.
//!
//! ```text
//! for each load, ascending
//!   measure all candidates, without those that did not sustain a lower load;
//!     of each policy the one with the highest peak is always measured
//!   best of a policy = of the candidates that sustain the load, the one with the lowest p90;
//!                      if none does, the one with the highest throughput
//!   measure the best of each policy again with other requests: this run is reported
//! ```
//!
//! The settings are chosen for each load, because small batches suit low loads and large ones high
//! loads. All policies are measured at one load before the next, so that a machine that slows
//! down affects all of them.

pub mod compare;
mod grid;

use std::ops::ControlFlow;

use crate::candidate::{Candidate, Launch};
use crate::policy::ComparedPolicy;
use crate::workload::Arrivals;
pub use compare::{Conditions, Measurement, NextRun, compare, peak_of_baselines};
use gatestream_command::Failure;
pub use grid::{BatchOption, Grid};

/// A candidate sustains a load if it answers this fraction of the requests and its backlog grows
/// by at most the rest.
const MIN_ANSWERED: f64 = 0.93;

/// One candidate at one load.
#[derive(Clone, Debug)]
pub struct Trial {
    /// For the best of a policy, the second run and not the one by which it was chosen.
    pub measurement: Measurement,
    /// Whether it is the best of its policy at this load.
    pub best: bool,
}

/// A candidate that was not measured at higher loads.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    pub candidate: Candidate,
    /// Name of its target.
    pub name: String,
    /// The load that it did not sustain, in requests per second.
    pub asked: f64,
    /// Its throughput at that load, in requests per second.
    pub answered: f64,
}

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepResult {
    /// By load, then by policy, then by settings in their order.
    pub trials: Vec<Trial>,
    /// In the order in which they were skipped.
    pub skipped: Vec<Skipped>,
}

impl SweepResult {
    /// The best of each policy at each load.
    pub fn best(&self) -> Vec<&Measurement> {
        let best = self.trials.iter().filter(|trial| trial.best);
        best.map(|trial| &trial.measurement).collect()
    }
}

/// Measures `candidates` at all `points`, in ascending order of rates. `peaks` are measurements of
/// their peaks; empty if there is a single point. If `next` breaks off, the result has the points
/// that were completed; the last may have fewer rounds.
///
/// # Errors
/// A target cannot be launched.
pub fn sweep<L: Launch>(
    launch: &L,
    candidates: &[Candidate],
    peaks: &[Measurement],
    mut points: Vec<Arrivals>,
    conditions: &Conditions,
    next: &mut dyn FnMut(NextRun<'_>) -> ControlFlow<()>,
) -> Result<SweepResult, Failure> {
    points.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let always = highest_peaks(candidates, peaks);
    let mut result = SweepResult::default();
    // Candidates that did not sustain some load so far.
    let mut failed: Vec<Skipped> = Vec::new();
    for point in points {
        for one in &failed {
            if !always.contains(&one.candidate) && !result.skipped.contains(one) {
                result.skipped.push(one.clone());
            }
        }
        let is_skipped = |candidate: &&Candidate| {
            let mut skipped = result.skipped.iter();
            skipped.any(|one| one.candidate == **candidate)
        };
        let left = candidates.iter().filter(|one| !is_skipped(one));
        let left: Vec<Candidate> = left.cloned().collect();
        let point = [point];
        let measured = compare(launch, &left, &point, conditions, next)?;
        if measured.is_empty() {
            break;
        }
        let trial = |measurement| Trial {
            measurement,
            best: false,
        };
        let mut here: Vec<Trial> = measured.into_iter().map(trial).collect();
        // They were measured in turn and are shown by policy.
        let order = |policy| candidates.iter().position(|c| c.policy == policy);
        here.sort_by_key(|trial| order(trial.measurement.candidate.policy));
        mark_best(&mut here);
        let loads = here.iter().map(|trial| sustains(&trial.measurement));
        failed.extend(loads.filter_map(Result::err));
        // The best of many runs is biased in favour of policies with many settings; so another run
        // of it is reported.
        let best = here.iter().filter(|trial| trial.best);
        let best: Vec<Candidate> = best.map(|t| t.measurement.candidate.clone()).collect();
        if best.len() < here.len() {
            let other = Conditions {
                seed: conditions.seed.wrapping_add(conditions.rounds as u64),
                ..conditions.clone()
            };
            let again = compare(launch, &best, &point, &other, next)?;
            if again.is_empty() {
                break;
            }
            let best = here.iter_mut().filter(|trial| trial.best);
            for (trial, again) in best.zip(again) {
                trial.measurement = again;
            }
        }
        result.trials.extend(here);
    }
    Ok(result)
}

/// Requests per second; 0 for a closed loop and a trace.
fn rate(arrivals: &Arrivals) -> f64 {
    match arrivals {
        Arrivals::Poisson { rate } => *rate,
        _ => 0.0,
    }
}

/// The candidate of each policy with the highest peak; of equals, and without peaks, the last.
pub fn highest_peaks(candidates: &[Candidate], peaks: &[Measurement]) -> Vec<Candidate> {
    let peak = |candidate: &Candidate| {
        let measured = peaks.iter().find(|m| m.candidate == *candidate);
        measured.map_or(0.0, |measured| measured.all().throughput())
    };
    let highest = policies(candidates.iter())
        .into_iter()
        .filter_map(|policy| {
            let of_policy = candidates.iter().filter(|c| c.policy == policy);
            of_policy.max_by(|a, b| peak(a).total_cmp(&peak(b)))
        });
    highest.cloned().collect()
}

fn policies<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Vec<Option<ComparedPolicy>> {
    let mut policies: Vec<_> = candidates.map(|candidate| candidate.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    policies
}

/// Whether a candidate sustains the load. Two conditions: [`MIN_ANSWERED`] of the requests were
/// answered, so that refusing some does not help; and the backlog grew by no more than the rest,
/// than chance explains, or than one group of requests that are answered together.
fn sustains(measured: &Measurement) -> Result<(), Skipped> {
    let all = measured.all();
    let due = all.due as f64;
    let answers = all.due - all.unanswered();
    let chance = 2.0 * due.sqrt();
    let group = (measured.about.capacity * measured.rounds.len()) as f64;
    let rest = (1.0 - MIN_ANSWERED) * due;
    let keeps_up = all.backlog as f64 <= rest.max(chance).max(group.min(due / 4.0));
    if keeps_up && answers > 0 && answers as f64 >= MIN_ANSWERED * due {
        return Ok(());
    }
    Err(Skipped {
        candidate: measured.candidate.clone(),
        name: measured.about.name.clone(),
        asked: rate(&measured.arrivals).min(due / all.window.as_secs_f64()),
        answered: all.throughput(),
    })
}

/// Marks the best of each policy; of equals the first.
fn mark_best(here: &mut [Trial]) {
    // The lowest cost is the best.
    let cost = |trial: &Trial| match sustains(&trial.measurement) {
        Ok(()) => (0, trial.measurement.all().latency.quantile(0.9)),
        Err(load) => (1, -load.answered),
    };
    for policy in policies(here.iter().map(|trial| &trial.measurement.candidate)) {
        let of_policy = here.iter_mut();
        let of_policy = of_policy.filter(|trial| trial.measurement.candidate.policy == policy);
        let best = of_policy
            .map(|trial| (cost(trial), trial))
            .min_by(|((a, a_cost), _), ((b, b_cost), _)| a.cmp(b).then(a_cost.total_cmp(b_cost)));
        if let Some((_, best)) = best {
            best.best = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::compare::tests::{Fleet, candidate, conditions};
    use super::*;

    fn go_on(_: NextRun<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn rates(rates: &[f64]) -> Vec<Arrivals> {
        let rates = rates.iter();
        rates.map(|&rate| Arrivals::Poisson { rate }).collect()
    }

    fn names(all: impl IntoIterator<Item = Candidate>) -> Vec<(ComparedPolicy, usize)> {
        let all = all.into_iter();
        all.map(|c| (c.policy.unwrap(), c.max_batch())).collect()
    }

    /// As many servers as rows, with a time of service that grows with them: peaks are rows / time.
    fn service(candidate: &Candidate) -> u64 {
        match (candidate.policy.unwrap(), candidate.max_batch()) {
            (ComparedPolicy::Padding, 1) => 20,  // 50/s
            (ComparedPolicy::Padding, 4) => 20,  // 200/s
            (ComparedPolicy::Padding, _) => 320, // 16: 50/s
            (_, 1) => 5,                         // 200/s
            (_, 4) => 10,                        // 400/s
            (_, _) => 30,                        // 16: 533/s
        }
    }

    fn candidates() -> Vec<Candidate> {
        let both = |batch| {
            let policies = [ComparedPolicy::Padding, ComparedPolicy::CELLULAR];
            policies.map(|policy| candidate(policy, batch))
        };
        [1, 4, 16].into_iter().flat_map(both).collect()
    }

    #[test]
    fn each_load_has_its_best_and_overload_ends_a_candidate() {
        let fleet = Fleet::new(service);
        let candidates = candidates();
        let closed = [Arrivals::Closed { outstanding: 64 }];
        let peaks = compare(&fleet, &candidates, &closed, &conditions(1), &mut go_on).unwrap();
        fleet.launched.borrow_mut().clear();
        // Not in order.
        let points = rates(&[480.0, 25.0, 300.0, 1000.0]);
        let result = sweep(
            &fleet,
            &candidates,
            &peaks,
            points,
            &conditions(1),
            &mut go_on,
        )
        .unwrap();
        use ComparedPolicy::Padding;
        const CELLULAR: ComparedPolicy = ComparedPolicy::CELLULAR;
        let best = |index: usize| {
            let best = result.best();
            names([
                best[2 * index].candidate.clone(),
                best[2 * index + 1].candidate.clone(),
            ])
        };
        // Small batches are the fastest while they sustain the load; otherwise throughput decides.
        assert_eq!(result.best().len(), 8);
        assert_eq!(best(0), [(Padding, 4), (CELLULAR, 1)]);
        assert_eq!(best(1), [(Padding, 4), (CELLULAR, 4)]);
        assert_eq!(best(2), [(Padding, 4), (CELLULAR, 16)]);
        assert_eq!(best(3), [(Padding, 4), (CELLULAR, 16)]);
        // Each load in its turn, policies in turn; the highest peak of padding is always measured.
        let launched = fleet.launched.borrow();
        let order = names(launched.iter().map(|(candidate, _)| candidate.clone()));
        let all = names(candidates.clone());
        // After each load the best once more.
        assert_eq!(order[..6], all);
        assert_eq!(order[6..8], best(0));
        assert_eq!(order[8..14], all);
        assert_eq!(order[14..16], best(1));
        let after = [(Padding, 4), (CELLULAR, 4), (CELLULAR, 16)];
        assert_eq!(order[16..19], after);
        assert_eq!(order[19..21], best(2));
        // Nothing was chosen.
        assert_eq!(order[21..], [(Padding, 4), (CELLULAR, 16)]);
        let skipped = result.skipped.iter().map(|one| one.candidate.clone());
        let expected = [(Padding, 1), (Padding, 16), (CELLULAR, 1), (CELLULAR, 4)];
        assert_eq!(names(skipped), expected);
        let one = &result.skipped[2];
        assert!((one.asked / 300.0 - 1.0).abs() < 0.05, "{one:?}");
        assert!((one.answered / 200.0 - 1.0).abs() < 0.02, "{one:?}");
        // Shown by load, then by policy.
        let shown = result
            .trials
            .iter()
            .map(|trial| trial.measurement.candidate.clone());
        let shown = names(shown);
        let of = |policy| [1, 4, 16].map(|batch| (policy, batch));
        assert_eq!(shown[..6], [of(Padding), of(CELLULAR)].concat());
        assert_eq!(shown.len(), order.len() - 6);
        let asked = result
            .trials
            .iter()
            .map(|trial| rate(&trial.measurement.arrivals));
        assert!(asked.is_sorted());
        // All see the same requests at the same times.
        assert_eq!(launched[0].1.seen(), launched[5].1.seen());
        assert_eq!(launched[6].1.seen(), launched[7].1.seen());
        assert_ne!(launched[0].1.seen(), launched[6].1.seen());
    }

    #[test]
    fn few_requests_are_no_overload() {
        // The number of requests is mostly far from its mean; no candidate is near its limit.
        let fleet = Fleet::new(|_| 1);
        let few = Conditions {
            window: std::time::Duration::from_secs(1),
            ..conditions(1)
        };
        for seed in 0..40 {
            let candidates = [1, 2].map(|batch| candidate(ComparedPolicy::CELLULAR, batch));
            let one = Conditions {
                seed,
                ..few.clone()
            };
            let points = rates(&[20.0, 30.0]);
            let result = sweep(&fleet, &candidates, &[], points, &one, &mut go_on).unwrap();
            assert_eq!(result.skipped, []);
        }
    }

    #[test]
    fn slow_candidates_that_keep_up_sustain_the_load() {
        // A second each, with enough servers; a quarter of the due requests end after the window.
        let fleet = Fleet::new(|_| 1000);
        let short = Conditions {
            window: std::time::Duration::from_secs(4),
            ..conditions(1)
        };
        for seed in 0..40 {
            let candidates = [64, 65].map(|batch| candidate(ComparedPolicy::Merge, batch));
            let one = Conditions {
                seed,
                ..short.clone()
            };
            let points = rates(&[30.0, 31.0]);
            let result = sweep(&fleet, &candidates, &[], points, &one, &mut go_on).unwrap();
            assert_eq!(result.skipped, []);
        }
    }

    #[test]
    fn refusing_requests_does_not_sustain_a_load() {
        // Twice what one row sustains; a deadline keeps the answered requests fast.
        let fleet = Fleet::new(|one| match one.max_batch() {
            1 => 10,
            _ => 40,
        });
        let candidates = [1, 16].map(|batch| candidate(ComparedPolicy::Merge, batch));
        let soon = Conditions {
            deadline: Some(std::time::Duration::from_millis(5)),
            ..conditions(1)
        };
        let points = rates(&[200.0]);
        let result = sweep(&fleet, &candidates, &[], points, &soon, &mut go_on).unwrap();
        let p90 = |index: usize| result.trials[index].measurement.all().latency.quantile(0.9);
        assert!(p90(0) < p90(1));
        assert_eq!(
            names([result.best()[0].candidate.clone()]),
            [(ComparedPolicy::Merge, 16)]
        );
    }

    #[test]
    fn a_policy_without_answers_has_a_best() {
        let fleet = Fleet::new(|one| 10 * one.max_batch() as u64);
        let candidates = [1, 2].map(|batch| candidate(ComparedPolicy::CELLULAR, batch));
        let hard = Conditions {
            deadline: Some(std::time::Duration::ZERO),
            ..conditions(1)
        };
        let users = vec![Arrivals::Closed { outstanding: 8 }];
        let result = sweep(&fleet, &candidates, &[], users, &hard, &mut go_on).unwrap();
        assert_eq!((result.trials.len(), result.best().len()), (2, 1));
    }

    #[test]
    fn a_load_without_its_second_run_is_left_out() {
        let candidates = [2, 4].map(|batch| candidate(ComparedPolicy::CELLULAR, batch));
        // Two settings and the best again, at each load.
        for (runs, whole) in [(2, 0), (3, 1), (5, 1), (6, 2)] {
            let fleet = Fleet::new(service);
            let mut next = |_: NextRun<'_>| {
                if fleet.launched.borrow().len() < runs {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            };
            let points = rates(&[10.0, 20.0]);
            let result =
                sweep(&fleet, &candidates, &[], points, &conditions(1), &mut next).unwrap();
            assert_eq!(
                (result.trials.len(), result.best().len()),
                (2 * whole, whole),
                "{runs} runs"
            );
        }
    }
}
