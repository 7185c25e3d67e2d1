//! Nothing is lost after rule 1.
//!
//! Every schedule that survives rule 1 and is dropped after it (by rule 2, by rule 3, or because it
//! would add up a gate in another order) has one that is executed, such that
//!
//! 1. for each step, all products of all steps up to it are complete in no later a phase, and there
//!    are no more phases in total;
//! 2. each product by itself is complete after no more time-dependent phases.
//!
//! Phases counted product by product do not do: a single product may come a phase later, because
//! the one time-independent phase has moved before it (see the last test).

use std::collections::BTreeSet;

use gatestream::Model;
use gatestream::graph::Graph;

use super::orders::{Dag, bits};
use super::{cells, executed, gru, lstm, rnn};
use gatestream::model::ResetForm;

/// When things are complete.
struct Times {
    phases: usize,
    /// By step: the phase with the last product of it or a step before.
    steps: Vec<usize>,
    /// By product: time-dependent phases up to its own.
    timed: Vec<usize>,
    /// By product: its phase.
    single: Vec<usize>,
}

impl Times {
    fn new(dag: &Dag) -> Times {
        Times {
            phases: 0,
            steps: vec![0; dag.steps],
            timed: vec![0; dag.nodes.len()],
            single: vec![0; dag.nodes.len()],
        }
    }

    fn read(&mut self, dag: &Dag, phases: &[u32]) {
        self.phases = phases.len();
        self.steps.fill(0);
        let mut timed = 0;
        for (number, &phase) in phases.iter().enumerate() {
            timed += usize::from(phase & dag.state != 0);
            for node in bits(phase) {
                self.timed[node] = timed;
                self.single[node] = number;
                let step = dag.nodes[node].taken;
                self.steps[step] = self.steps[step].max(number);
            }
        }
        for step in 1..dag.steps {
            self.steps[step] = self.steps[step].max(self.steps[step - 1]);
        }
    }

    fn no_later(&self, other: &Times) -> bool {
        let all = |one: &[usize], two: &[usize]| one.iter().zip(two).all(|(one, two)| one <= two);
        self.phases <= other.phases
            && all(&self.steps, &other.steps)
            && all(&self.timed, &other.timed)
    }
}

/// The schedules of the enumerator, to compare others with.
pub struct Kept {
    dag: Dag,
    schedules: BTreeSet<Vec<u32>>,
    times: Vec<Times>,
    of_dropped: Times,
    dropped: usize,
}

impl Kept {
    pub fn of(model: &Model, steps: usize) -> Kept {
        let graph = Graph::new(model, steps).expect("a small graph");
        let dag = Dag::of(&graph);
        let schedules = executed(model, &graph, &dag);
        let times = schedules.iter().map(|schedule| {
            let mut times = Times::new(&dag);
            times.read(&dag, schedule);
            times
        });
        Kept {
            times: times.collect(),
            of_dropped: Times::new(&dag),
            schedules,
            dag,
            dropped: 0,
        }
    }

    /// Checks that one of them is no later than `phases`, should that be none of them.
    pub fn check(&mut self, phases: &[u32]) {
        if self.schedules.contains(phases) {
            return;
        }
        self.dropped += 1;
        self.of_dropped.read(&self.dag, phases);
        let found = self
            .times
            .iter()
            .any(|kept| kept.no_later(&self.of_dropped));
        assert!(found, "{:?}", self.dag.phased(phases));
    }
}

#[test]
fn each_dropped_schedule_has_a_kept_one_no_later() {
    let (before, after) = (gru(ResetForm::Before), gru(ResetForm::After));
    let cases = [
        (rnn(), 2, 11 - 2),
        (rnn(), 3, 77 - 2),
        (rnn(), 4, 777 - 2),
        (after, 2, 4_138_871 - 8),
        (before, 2, 1_120_617 - 30),
        (lstm(), 1, 545_835 - 16),
    ];
    for (model, steps, dropped) in cases {
        let mut kept = Kept::of(&model, steps);
        for line in kept.dag.symmetric_lines() {
            // Taken out while the schedules of the graph are walked through.
            let dag = Dag::of(&Graph::new(&model, steps).expect("a small graph"));
            dag.each_with_line(&line, &mut |phases| kept.check(phases));
        }
        assert_eq!(kept.dropped, dropped);
    }
}

/// Where there are too many to try all: some, drawn at random.
#[test]
fn dropped_schedules_of_more_steps_at_random() {
    let mut random = fastrand::Rng::with_seed(3);
    for (model, _) in cells() {
        for steps in 2..=3 {
            let mut kept = Kept::of(&model, steps);
            let lines = kept.dag.symmetric_lines();
            for _ in 0..20_000 {
                let line = &lines[random.usize(..lines.len())];
                let phases = kept.dag.at_random(line, &mut random);
                kept.check(&phases);
            }
            assert!(kept.dropped > 1000, "{}", kept.dropped);
        }
    }
}

/// `U·h0 | W·x0 W·x1 W·x2 | U·h1 | U·h2`: with all inputs ahead `U·h0` is in the second phase
/// instead of the first, with none ahead `W·x2` in the third instead of the second.
#[test]
fn product_by_product_a_phase_may_be_lost() {
    let kept = Kept::of(&rnn(), 3);
    let of = |recurrent: bool, step: usize| {
        let nodes = kept.dag.nodes.iter();
        let same = |node: &&_| {
            let node: &gatestream::graph::Node = node;
            node.taken == step && node.product.needs_state() == recurrent
        };
        let place = nodes.enumerate().find(|(_, node)| same(node));
        1_u32 << place.expect("a product").0
    };
    let inputs = of(false, 0) | of(false, 1) | of(false, 2);
    let phases = [of(true, 0), inputs, of(true, 1), of(true, 2)];
    assert!(kept.dag.symmetric(&phases));
    let mut times = Times::new(&kept.dag);
    times.read(&kept.dag, &phases);
    assert_eq!(kept.times.len(), 2);
    for each in &kept.times {
        let mut single = each.single.iter().zip(&times.single);
        assert!(single.any(|(kept, dropped)| kept > dropped));
    }
    assert!(kept.times.iter().any(|kept| kept.no_later(&times)));
}
