//! Each policy at its own best settings, at every load: all settings are measured everywhere, and all of that is shown.
//!
//! ```text
//! for each load, from the lowest
//!   measure all settings of all policies, but those that did not bear a lower load;
//!     of each policy the one with the greatest peak is measured nevertheless
//!   best of a policy = of those that bore the load the one with the least p90;
//!                      of none, the one with the greatest throughput
//!   measure the best of each policy again, with other requests: that is what is reported of it
//! ```
//!
//! Settings chosen at one load and kept at all would be unfair to whoever needs small batches below his peak and large
//! ones near it. And what is measured last would be the worse for a machine that slows down: so all policies are
//! measured at one load before any is at the next.

pub mod compare;
pub mod grid;

use std::ops::ControlFlow;

use crate::sweep::compare::{Conditions, Contender, Measured, Next, compare};
use crate::target::Launch;
use crate::workload::arrivals::Arrivals;
use cellstream_command::Failure;
use cellstream_serve::policy::PolicyKind;

/// Who answers less than this of what was asked, sooner or later, or falls behind by more than the rest of it within
/// the window, does not bear it.
pub const BORNE: f64 = 0.93;

/// One setting of one policy, at one load.
#[derive(Clone, Debug)]
pub struct Tried {
    /// How it fared: the best of its policy in another run than the one by which it was chosen.
    pub measured: Measured,
    /// Whether it is the best of its policy there.
    pub best: bool,
}

/// A setting that was not measured any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Who.
    pub contender: Contender,
    /// What it did not bear, in requests per second.
    pub asked: f64,
    /// What it answered instead, in requests per second.
    pub answered: f64,
}

/// What a sweep found.
#[derive(Clone, Debug)]
pub struct Swept {
    /// By load, then by policy, then by settings, as they were given.
    pub tried: Vec<Tried>,
    /// In the order in which they were left out.
    pub skipped: Vec<Skipped>,
}

impl Swept {
    /// The best of each policy, load by load.
    pub fn best(&self) -> Vec<&Measured> {
        let best = self.tried.iter().filter(|tried| tried.best);
        best.map(|tried| &tried.measured).collect()
    }
}

/// Measures `contenders` at all `points`, from the lowest rate; `peaks` are what they were measured to bear at most (none
/// where there is a single point). Where `next` breaks off, what is left are the points that were done, with fewer rounds
/// perhaps.
///
/// # Errors
/// What a server refuses when it is launched.
pub fn sweep<L: Launch>(
    launch: &L,
    contenders: &[Contender],
    peaks: &[Measured],
    mut points: Vec<Arrivals>,
    conditions: &Conditions,
    next: &mut dyn FnMut(Next<'_>) -> ControlFlow<()>,
) -> Result<Swept, Failure> {
    points.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let kept = strongest(contenders, peaks);
    let mut swept = Swept {
        tried: Vec::new(),
        skipped: Vec::new(),
    };
    // What did not bear some load, so far.
    let mut failed: Vec<Skipped> = Vec::new();
    for point in points {
        for one in &failed {
            if !kept.contains(&one.contender) && !swept.skipped.contains(one) {
                swept.skipped.push(one.clone());
            }
        }
        let skipped = |contender: &Contender| {
            let mut skipped = swept.skipped.iter();
            skipped.any(|one| one.contender == *contender)
        };
        let left = contenders.iter().filter(|contender| !skipped(contender));
        let left: Vec<Contender> = left.cloned().collect();
        let point = [point];
        let measured = compare(launch, &left, &point, conditions, next)?;
        if measured.is_empty() {
            break;
        }
        let mut here: Vec<Tried> = measured.into_iter().map(tried).collect();
        // They were measured in turn; they are shown by policy.
        let place = |policy| contenders.iter().position(|c| c.policy == policy);
        here.sort_by_key(|tried| place(tried.measured.contender.policy));
        mark_best(&mut here);
        for Tried { measured, .. } in &here {
            if let Err(load) = bears(measured) {
                failed.push(load);
            }
        }
        // The best of many runs flatters whoever has many settings: what is reported is another run.
        let best: Vec<Contender> = here
            .iter()
            .filter(|tried| tried.best)
            .map(|tried| tried.measured.contender.clone())
            .collect();
        if best.len() < here.len() {
            let other = Conditions {
                seed: conditions.seed.wrapping_add(conditions.rounds as u64),
                ..conditions.clone()
            };
            let again = compare(launch, &best, &point, &other, next)?;
            if again.is_empty() {
                break;
            }
            let places = here.iter_mut().filter(|tried| tried.best);
            for (tried, again) in places.zip(again) {
                tried.measured = again;
            }
        }
        swept.tried.extend(here);
    }
    Ok(swept)
}

/// Requests a second, 0 where nobody asked for a rate.
fn rate(arrivals: &Arrivals) -> f64 {
    match arrivals {
        Arrivals::Poisson { rate } => *rate,
        _ => 0.0,
    }
}

fn tried(measured: Measured) -> Tried {
    let best = false;
    Tried { measured, best }
}

/// Of each policy the contender with the greatest peak; of equals, and where none was measured, the last.
pub fn strongest(contenders: &[Contender], peaks: &[Measured]) -> Vec<Contender> {
    let peak = |contender: &Contender| {
        let measured = peaks.iter().find(|m| m.contender == *contender);
        measured.map_or(0.0, |measured| measured.all().throughput())
    };
    let strongest = policies(contenders).into_iter().filter_map(|policy| {
        let of_policy = contenders.iter().filter(|c| c.policy == policy);
        of_policy.max_by(|a, b| peak(a).total_cmp(&peak(b)))
    });
    strongest.cloned().collect()
}

fn policies(contenders: &[Contender]) -> Vec<PolicyKind> {
    let mut policies: Vec<PolicyKind> = contenders.iter().map(|c| c.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    policies
}

/// Whether it bore what it was asked: no more requests than chance brings, or a group of them, were under way when the
/// window ended than when it began, and of all that were due [`BORNE`] were answered at some time, lest refusing some
/// makes the others fast.
fn bears(measured: &Measured) -> Result<(), Skipped> {
    let all = measured.all();
    let due = all.due as f64;
    let answers = all.due - all.unanswered();
    let chance = 2.0 * due.sqrt();
    let group = (measured.contender.settings.batch.most() * measured.rounds.len()) as f64;
    let behind = (1.0 - BORNE) * due;
    let kept_up = all.backlog as f64 <= behind.max(chance).max(group.min(due / 4.0));
    match kept_up && answers > 0 && answers as f64 >= BORNE * due {
        true => Ok(()),
        false => Err(Skipped {
            contender: measured.contender.clone(),
            asked: match measured.arrivals {
                Arrivals::Poisson { rate } => rate.min(due / all.window.as_secs_f64()),
                // Users ask for what they get; a trace has no rate.
                _ => 0.0,
            },
            answered: all.throughput(),
        }),
    }
}

/// Marks the best of each policy; of equals the first.
fn mark_best(here: &mut [Tried]) {
    // The least is the best.
    let cost = |tried: &Tried| match bears(&tried.measured) {
        Ok(()) => (0, tried.measured.all().latency.at(0.9)),
        Err(load) => (1, -load.answered),
    };
    let contenders: Vec<_> = here.iter().map(|t| t.measured.contender.clone()).collect();
    for policy in policies(&contenders) {
        let of_policy = here
            .iter_mut()
            .filter(|tried| tried.measured.contender.policy == policy);
        let best = of_policy
            .map(|tried| (cost(tried), tried))
            .min_by(|((a, a_cost), _), ((b, b_cost), _)| a.cmp(b).then(a_cost.total_cmp(b_cost)));
        if let Some((_, best)) = best {
            best.best = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::compare::tests::{Fleet, conditions, contender};
    use crate::target::Settings;

    fn go_on(_: Next<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn rates(rates: &[f64]) -> Vec<Arrivals> {
        let rates = rates.iter();
        rates.map(|&rate| Arrivals::Poisson { rate }).collect()
    }

    fn names(all: impl IntoIterator<Item = Contender>) -> Vec<(PolicyKind, usize)> {
        let all = all.into_iter();
        all.map(|c| (c.policy, c.settings.batch.most())).collect()
    }

    /// As many servers as rows, with a time of service that grows with them: peaks are rows / time.
    fn service(policy: PolicyKind, settings: &Settings) -> u64 {
        match (policy, settings.batch.most()) {
            (PolicyKind::Padding, 1) => 20,  // 50/s
            (PolicyKind::Padding, 4) => 20,  // 200/s
            (PolicyKind::Padding, _) => 320, // 16: 50/s
            (_, 1) => 5,                     // 200/s
            (_, 4) => 10,                    // 400/s
            (_, _) => 30,                    // 16: 533/s
        }
    }

    fn contenders() -> Vec<Contender> {
        let both = |batch| {
            [PolicyKind::Padding, PolicyKind::Cellular].map(|policy| contender(policy, batch))
        };
        [1, 4, 16].into_iter().flat_map(both).collect()
    }

    #[test]
    fn every_load_has_its_own_best_and_what_fails_is_left_out_above() {
        let fleet = Fleet::new(service);
        let contenders = contenders();
        let closed = [Arrivals::Closed { outstanding: 64 }];
        let peaks = compare(&fleet, &contenders, &closed, &conditions(1), &mut go_on).unwrap();
        fleet.launched.borrow_mut().clear();
        // Given in disorder.
        let points = rates(&[480.0, 25.0, 300.0, 1000.0]);
        let swept = sweep(
            &fleet,
            &contenders,
            &peaks,
            points,
            &conditions(1),
            &mut go_on,
        )
        .unwrap();
        use PolicyKind::{Cellular, Padding};
        let best = |index: usize| {
            let best = swept.best();
            names([
                best[2 * index].contender.clone(),
                best[2 * index + 1].contender.clone(),
            ])
        };
        // Small batches are the fastest as long as they bear the load; who bears none has his greatest throughput.
        assert_eq!(swept.best().len(), 8);
        assert_eq!(best(0), [(Padding, 4), (Cellular, 1)]);
        assert_eq!(best(1), [(Padding, 4), (Cellular, 4)]);
        assert_eq!(best(2), [(Padding, 4), (Cellular, 16)]);
        assert_eq!(best(3), [(Padding, 4), (Cellular, 16)]);
        // Each load in its turn, policies in turn; padding's best is kept though it fails, others are not.
        let launched = fleet.launched.borrow();
        let order = names(launched.iter().map(|(policy, settings, _)| Contender {
            policy: *policy,
            settings: settings.clone(),
        }));
        let all = names(contenders.clone());
        // After each load the best once more.
        assert_eq!(order[..6], all);
        assert_eq!(order[6..8], best(0));
        assert_eq!(order[8..14], all);
        assert_eq!(order[14..16], best(1));
        let after = [(Padding, 4), (Cellular, 4), (Cellular, 16)];
        assert_eq!(order[16..19], after);
        assert_eq!(order[19..21], best(2));
        // Nothing was chosen.
        assert_eq!(order[21..], [(Padding, 4), (Cellular, 16)]);
        let skipped = swept.skipped.iter().map(|one| one.contender.clone());
        let expected = [(Padding, 1), (Padding, 16), (Cellular, 1), (Cellular, 4)];
        assert_eq!(names(skipped), expected);
        let one = &swept.skipped[2];
        assert!((one.asked / 300.0 - 1.0).abs() < 0.05, "{one:?}");
        assert!((one.answered / 200.0 - 1.0).abs() < 0.02, "{one:?}");
        // Shown by load, then by policy.
        let shown = swept
            .tried
            .iter()
            .map(|tried| tried.measured.contender.clone());
        let shown = names(shown);
        let of = |policy| [1, 4, 16].map(|batch| (policy, batch));
        assert_eq!(shown[..6], [of(Padding), of(Cellular)].concat());
        assert_eq!(shown.len(), order.len() - 6);
        let asked = swept
            .tried
            .iter()
            .map(|tried| rate(&tried.measured.arrivals));
        assert!(asked.is_sorted());
        // All see the same requests at the same times.
        assert_eq!(launched[0].2.seen(), launched[5].2.seen());
        assert_eq!(launched[6].2.seen(), launched[7].2.seen());
        assert_ne!(launched[0].2.seen(), launched[6].2.seen());
    }

    #[test]
    fn fewer_requests_than_were_to_come_are_no_failure() {
        // 20 requests: their number is far from what the rate says, mostly; nobody is at his limit.
        let fleet = Fleet::new(|_, _| 1);
        let few = Conditions {
            window: std::time::Duration::from_secs(1),
            ..conditions(1)
        };
        for seed in 0..40 {
            let contenders = [1, 2].map(|batch| contender(PolicyKind::Cellular, batch));
            let one = Conditions {
                seed,
                ..few.clone()
            };
            let points = rates(&[20.0, 30.0]);
            let swept = sweep(&fleet, &contenders, &[], points, &one, &mut go_on).unwrap();
            assert_eq!(swept.skipped, []);
        }
    }

    #[test]
    fn who_takes_long_but_keeps_up_bears_the_load() {
        // A second each, as many at a time as are needed; a quarter of what is due ends after the window.
        let fleet = Fleet::new(|_, _| 1000);
        let short = Conditions {
            window: std::time::Duration::from_secs(4),
            ..conditions(1)
        };
        for seed in 0..40 {
            let contenders = [64, 65].map(|batch| contender(PolicyKind::Merge, batch));
            let one = Conditions {
                seed,
                ..short.clone()
            };
            let points = rates(&[30.0, 31.0]);
            let swept = sweep(&fleet, &contenders, &[], points, &one, &mut go_on).unwrap();
            assert_eq!(swept.skipped, []);
        }
    }

    #[test]
    fn who_refuses_many_does_not_bear_the_load() {
        // Twice as much as one row bears: a deadline keeps those fast that are answered at all.
        let fleet = Fleet::new(|_, settings| match settings.batch.most() {
            1 => 10,
            _ => 40,
        });
        let contenders = [1, 16].map(|batch| contender(PolicyKind::Merge, batch));
        let soon = Conditions {
            deadline: Some(std::time::Duration::from_millis(5)),
            ..conditions(1)
        };
        let points = rates(&[200.0]);
        let swept = sweep(&fleet, &contenders, &[], points, &soon, &mut go_on).unwrap();
        let p90 = |index: usize| swept.tried[index].measured.all().latency.at(0.9);
        assert!(p90(0) < p90(1));
        assert_eq!(
            names([swept.best()[0].contender.clone()]),
            [(PolicyKind::Merge, 16)]
        );
    }

    #[test]
    fn a_policy_that_answers_nothing_in_time_still_has_a_best() {
        let fleet = Fleet::new(|_, settings| 10 * settings.batch.most() as u64);
        let contenders = [1, 2].map(|batch| contender(PolicyKind::Cellular, batch));
        let hard = Conditions {
            deadline: Some(std::time::Duration::ZERO),
            ..conditions(1)
        };
        let users = vec![Arrivals::Closed { outstanding: 8 }];
        let swept = sweep(&fleet, &contenders, &[], users, &hard, &mut go_on).unwrap();
        assert_eq!((swept.tried.len(), swept.best().len()), (2, 1));
    }

    #[test]
    fn a_load_whose_best_were_not_measured_again_is_left_out() {
        let contenders = [2, 4].map(|batch| contender(PolicyKind::Cellular, batch));
        // Two settings and the best again, at each load.
        for (runs, whole) in [(2, 0), (3, 1), (5, 1), (6, 2)] {
            let fleet = Fleet::new(service);
            let mut next = |_: Next<'_>| match fleet.launched.borrow().len() < runs {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
            let points = rates(&[10.0, 20.0]);
            let swept = sweep(&fleet, &contenders, &[], points, &conditions(1), &mut next).unwrap();
            assert_eq!(
                (swept.tried.len(), swept.best().len()),
                (2 * whole, whole),
                "{runs} runs"
            );
        }
    }
}
