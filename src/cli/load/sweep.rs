//! Each policy at its own best settings: all candidates are measured at saturation, then those that can bear it at a
//! common rate, and all of that is shown.
//!
//! ```text
//! peaks = throughput of each candidate in a closed loop of many users
//! rate  = load * the highest peak of a baseline
//! p90   = of the candidates with a peak above `rate`, at Poisson arrivals of that rate
//! best  = per policy, by peak or by p90 as asked for
//! ```

use super::arrivals::Arrivals;
use super::compare::{Conditions, Contender, Measured, Next, compare, peak_of_baselines};
use super::target::{Launch, Policy, Settings};
use crate::cli::Failure;

/// What the best settings are best at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// The 90th percentile of latency at half of the best baseline's peak
    P90,
    /// Throughput
    Peak,
}

/// The fraction of the best baseline's peak at which candidates' latencies are compared.
const LOAD: f64 = 0.5;

/// Batch sizes and bucket widths that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows of a batch at most.
    pub batches: Vec<usize>,
    /// Of [`Policy::Bucketing`] alone.
    pub widths: Vec<usize>,
}

impl Grid {
    /// The candidates of a policy.
    pub fn candidates(&self, policy: Policy) -> Vec<Contender> {
        let widths: Vec<Option<usize>> = match policy {
            Policy::Bucketing => self.widths.iter().copied().map(Some).collect(),
            _ => vec![None],
        };
        let of_batch = |&batch: &usize| {
            widths.iter().map(move |&bucket_width| Contender {
                policy,
                settings: Settings {
                    batch,
                    bucket_width,
                },
            })
        };
        self.batches.iter().flat_map(of_batch).collect()
    }
}

/// One candidate's results.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Who.
    pub contender: Contender,
    /// At saturation, in requests per second.
    pub peak: f64,
    /// At the common rate, in milliseconds; `None` where the peak is below it, or requests stayed without an answer.
    pub p90_ms: Option<f64>,
    /// Whether its policy goes on with these settings.
    pub best: bool,
}

/// Results of all candidates.
#[derive(Clone, Debug)]
pub struct Swept {
    /// In the order in which they were given.
    pub candidates: Vec<Candidate>,
    /// The common rate, in requests per second.
    pub rate: f64,
}

impl Swept {
    /// The best of each policy.
    pub fn best(&self) -> Vec<Contender> {
        let best = self.candidates.iter().filter(|candidate| candidate.best);
        best.map(|candidate| candidate.contender).collect()
    }

    /// The highest peak of a baseline.
    pub fn peak(&self) -> f64 {
        let peaks = self.candidates.iter().map(|c| (c.contender, c.peak));
        peak_of_baselines(&peaks.collect::<Vec<_>>())
    }
}

/// Measures the candidates and marks the best of each policy; `users` saturate the server.
///
/// # Errors
/// What a server refuses when it is launched.
pub fn sweep<L: Launch>(
    launch: &L,
    contenders: &[Contender],
    goal: Goal,
    users: usize,
    conditions: &Conditions,
    next: &mut dyn FnMut(Next<'_>),
) -> Result<Swept, Failure> {
    let closed = [Arrivals::Closed { outstanding: users }];
    let peaks = compare(launch, contenders, &closed, conditions, next)?;
    let candidate = |measured: &Measured| Candidate {
        contender: measured.contender,
        peak: measured.all().throughput(),
        p90_ms: None,
        best: false,
    };
    let mut swept = Swept {
        candidates: peaks.iter().map(candidate).collect(),
        rate: 0.0,
    };
    swept.rate = LOAD * swept.peak();
    if swept.rate > 0.0 {
        let able = swept.candidates.iter().filter(|c| c.peak > swept.rate);
        let able: Vec<Contender> = able.map(|c| c.contender).collect();
        let open = [Arrivals::Poisson { rate: swept.rate }];
        let measured = compare(launch, &able, &open, conditions, next)?;
        for one in measured {
            let all = one.all();
            let found = swept.candidates.iter_mut();
            for candidate in found.filter(|c| c.contender == one.contender) {
                let answered = all.latency.len() > 0 && all.unanswered() == 0;
                candidate.p90_ms = answered.then(|| all.latency.at(0.9));
            }
        }
    }
    choose(&mut swept.candidates, goal);
    Ok(swept)
}

/// Marks the best of each policy; of equals the first.
fn choose(candidates: &mut [Candidate], goal: Goal) {
    // The least is the best. Without a p90, the peak decides.
    let cost = |c: &Candidate| match (goal, c.p90_ms) {
        (Goal::P90, Some(p90)) => (0, p90),
        _ => (1, -c.peak),
    };
    let mut policies: Vec<Policy> = candidates.iter().map(|c| c.contender.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    for policy in policies {
        let of_policy = candidates
            .iter_mut()
            .filter(|c| c.contender.policy == policy);
        let best = of_policy.min_by(|a, b| {
            let ((a, a_cost), (b, b_cost)) = (cost(a), cost(b));
            a.cmp(&b).then(a_cost.total_cmp(&b_cost))
        });
        if let Some(best) = best {
            best.best = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare::tests::{Fleet, conditions, contender};
    use super::*;

    #[test]
    fn a_grid_has_widths_for_bucketing_alone() {
        let grid = Grid {
            batches: vec![8, 16],
            widths: vec![5, 10],
        };
        let of = |policy| {
            let all = grid.candidates(policy).into_iter();
            let all = all.map(|c| (c.settings.batch, c.settings.bucket_width));
            all.collect::<Vec<_>>()
        };
        assert_eq!(of(Policy::Padding), [(8, None), (16, None)]);
        let all = [(8, Some(5)), (8, Some(10)), (16, Some(5)), (16, Some(10))];
        assert_eq!(of(Policy::Bucketing), all);
    }

    #[test]
    fn each_policy_goes_on_with_its_best() {
        // As many servers as rows, with a time of service that grows with them: peaks are rows / time.
        let service = |policy, settings: &Settings| match (policy, settings.batch) {
            (Policy::Padding, 1) => 20,  // 50/s
            (Policy::Padding, 4) => 20,  // 200/s
            (Policy::Padding, _) => 320, // 16: 50/s
            (_, 1) => 20,                // 50/s: below the common rate
            (_, 4) => 10,                // 400/s
            (_, _) => 30,                // 16: 533/s
        };
        let fleet = Fleet::new(service);
        let of = |policy| [1, 4, 16].map(|batch| contender(policy, batch));
        let contenders = [of(Policy::Padding), of(Policy::Cellular)].concat();
        let swept = |goal| {
            let swept = sweep(&fleet, &contenders, goal, 64, &conditions(1), &mut |_| {});
            swept.unwrap()
        };
        let by_p90 = swept(Goal::P90);
        let expected = [50.0, 200.0, 50.0, 50.0, 400.0, 16.0 / 0.03];
        for (candidate, expected) in by_p90.candidates.iter().zip(expected) {
            assert!(
                (candidate.peak / expected - 1.0).abs() < 0.02,
                "{candidate:?}"
            );
        }
        // Half of padding's 200/s.
        assert!(
            (by_p90.rate / 100.0 - 1.0).abs() < 0.02
                && (by_p90.peak() - 2.0 * by_p90.rate).abs() < 1e-9
        );
        assert_eq!(by_p90.candidates[3].p90_ms, None);
        // What cannot bear the rate is not tried at it.
        let launched = fleet.launched.borrow();
        let slow =
            |who: Policy, settings: &Settings| (who, settings.batch) == (Policy::Cellular, 1);
        let times = launched
            .iter()
            .filter(|(policy, settings, _)| slow(*policy, settings));
        assert_eq!((times.count(), launched.len()), (1, 6 + 3));
        drop(launched);
        assert!(
            by_p90.candidates[4]
                .p90_ms
                .is_some_and(|p90| (9.9..12.0).contains(&p90))
        );
        let best = [
            contender(Policy::Padding, 4),
            contender(Policy::Cellular, 4),
        ];
        assert_eq!(by_p90.best(), best);
        let best = [
            contender(Policy::Padding, 4),
            contender(Policy::Cellular, 16),
        ];
        assert_eq!(swept(Goal::Peak).best(), best);
    }

    #[test]
    fn a_policy_that_answers_nothing_in_time_still_goes_on_with_something() {
        let fleet = Fleet::new(|_, settings| 10 * settings.batch as u64);
        let contenders = [1, 2].map(|batch| contender(Policy::Cellular, batch));
        let hard = Conditions {
            deadline: Some(std::time::Duration::ZERO),
            ..conditions(1)
        };
        let swept = sweep(&fleet, &contenders, Goal::P90, 8, &hard, &mut |_| {}).unwrap();
        assert!(swept.candidates.iter().all(|c| c.p90_ms.is_none()));
        assert_eq!(swept.best().len(), 1);
    }
}
