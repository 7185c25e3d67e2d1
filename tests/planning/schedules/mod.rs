//! The three rules, the enumerator and the counts against brute force.

mod kept;
mod orders;
mod places;

use std::collections::BTreeSet;

use gatestream::Model;
use gatestream::graph::Graph;
use gatestream::model::{Gru, Layer, Lstm, Merge, ResetForm, Rnn};
use gatestream::schedule::{
    Count, DirectionSchedule, PhasedSchedule, direction_counts, model_counts, schedule_count,
    schedules, surviving_schedules,
};
use orders::Dag;

fn rnn() -> Model {
    Rnn::new(1, 1).random(1).expect("a model")
}

fn gru(reset: ResetForm) -> Model {
    Gru::new(1, 1).reset(reset).random(1).expect("a model")
}

fn lstm() -> Model {
    Lstm::new(1, 1).random(1).expect("a model")
}

fn projected() -> Model {
    Lstm::new(1, 2).projection(1).random(1).expect("a model")
}

fn cells() -> [(Model, usize); 5] {
    let (before, after) = (ResetForm::Before, ResetForm::After);
    let projected = (projected(), 16);
    [
        (rnn(), 2),
        (gru(after), 8),
        (gru(before), 36),
        (lstm(), 16),
        projected,
    ]
}

/// What the enumerator says the rules leave, product by product.
fn expanded(model: &Model, graph: &Graph) -> Vec<PhasedSchedule> {
    let directions = model.layers()[0].directions();
    let all: Vec<_> = directions.iter().map(surviving_schedules).collect();
    let each = |layer| PhasedSchedule::of(graph, &[layer]).expect("one layer's schedules");
    match &*all {
        [one] => one.iter().map(|one| each(vec![one.clone()])).collect(),
        [one, two] => {
            let pairs = one
                .iter()
                .flat_map(|one| two.iter().map(move |two| (one, two)));
            pairs
                .map(|(one, two)| each(vec![one.clone(), two.clone()]))
                .collect()
        }
        _ => panic!("a layer has one direction or two"),
    }
}

/// Each schedule of a layer's first direction, with each of its second's.
fn layer_schedules(layer: &Layer) -> Vec<Vec<DirectionSchedule>> {
    let of_each: Vec<_> = layer.directions().iter().map(schedules).collect();
    match &of_each[..] {
        [one] => one.iter().map(|one| vec![one.clone()]).collect(),
        [one, two] => { one.iter() }
            .flat_map(|one| two.iter().map(|two| vec![one.clone(), two.clone()]))
            .collect(),
        _ => panic!("a layer has one direction or two"),
    }
}

/// What the enumerator gives to execute.
fn executed(model: &Model, graph: &Graph, dag: &Dag) -> BTreeSet<Vec<u32>> {
    let layers = layer_schedules(&model.layers()[0]).into_iter();
    let phased = layers.map(|layer| PhasedSchedule::of(graph, &[layer]).expect("of this layer"));
    phased.map(|phased| dag.masks(&phased)).collect()
}

/// Every schedule there is: the predicates agree with the rules read literally, the counts with
/// counting, and what survives is what the enumerator gives.
fn try_everything(model: &Model, steps: usize) {
    let graph = Graph::new(model, steps).expect("a small graph");
    let dag = Dag::of(&graph);
    let (mut all, mut symmetric, mut dependent) = (0_u128, 0_u128, 0_u128);
    let mut kept = BTreeSet::new();
    dag.each(&|_, _, _| true, &mut |phases| {
        let is_symmetric = dag.symmetric(phases);
        let neighbours = phases.windows(2).all(|p| dag.dependent(p[0], p[1]));
        let first = phases.iter().position(|phase| phase & dag.state != 0);
        let first = first.unwrap_or(phases.len());
        let independent_first = phases[first..].iter().all(|phase| phase & dag.state != 0);
        let schedule = dag.phased(phases);
        if phases.len() % 3 == 0 {
            assert_eq!(schedule.check(&graph), Ok(()));
        }
        assert_eq!(schedule.is_symmetric(&graph), is_symmetric, "{schedule:?}");
        assert_eq!(
            schedule.has_dependent_neighbours(&graph),
            neighbours,
            "{schedule:?}"
        );
        assert_eq!(
            schedule.is_independent_first(),
            independent_first,
            "{schedule:?}"
        );
        all += 1;
        symmetric += u128::from(is_symmetric);
        dependent += u128::from(is_symmetric && neighbours);
        if is_symmetric && neighbours && independent_first {
            kept.insert(schedule);
        }
    });
    let expanded: BTreeSet<_> = expanded(model, &graph).into_iter().collect();
    assert_eq!(kept, expanded);
    let counts = model_counts(model, steps);
    assert_eq!(counts.kept, Count::Exact(kept.len() as u128));
    let in_order = kept
        .iter()
        .filter(|schedule| dag.in_order(&dag.masks(schedule)));
    assert_eq!(counts.in_order, Count::Exact(in_order.count() as u128));
    let found = [all, symmetric, dependent];
    let said = [counts.all, counts.symmetric, counts.dependent];
    println!("{steps} steps: {found:?}");
    for (found, said) in found.into_iter().zip(said) {
        match said {
            Count::AtLeast { log10 } => assert!(log10 < (found as f64).log10()),
            exact => assert_eq!(exact, Count::Exact(found)),
        }
    }
}

#[test]
fn all_schedules_of_one_step() {
    for (model, _) in cells() {
        try_everything(&model, 1);
    }
}

#[test]
fn all_schedules_of_short_rnns() {
    for steps in 1..=4 {
        try_everything(&rnn(), steps);
    }
    let both = Rnn::new(1, 1).bidirectional(Merge::Sum).random(1);
    try_everything(&both.expect("a model"), 2);
}

/// Rules 2 and 3 speak of neighbours, so a search can turn back as soon as one is broken; or it can
/// begin with what rule 1 allows.
#[test]
fn what_the_rules_leave_is_what_the_enumerator_gives() {
    for (model, number) in cells() {
        for steps in 2..=3 {
            let graph = Graph::new(&model, steps).expect("a small graph");
            let dag = Dag::of(&graph);
            let expanded = expanded(&model, &graph);
            assert_eq!(expanded.len(), number);
            let expanded: BTreeSet<_> = expanded.iter().map(|each| dag.masks(each)).collect();
            assert_eq!(dag.kept(), expanded);
            let in_order = expanded.iter().filter(|schedule| dag.in_order(schedule));
            let in_order: BTreeSet<_> = in_order.cloned().collect();
            assert_eq!(executed(&model, &graph, &dag), in_order);
            let counts = model_counts(&model, steps);
            assert_eq!(counts.in_order, Count::Exact(in_order.len() as u128));
            // The largest takes half a minute the first way.
            if dag.nodes.len() > 24 {
                continue;
            }
            let mut kept = BTreeSet::new();
            let mut tried = 0;
            dag.each(&Dag::neighbours, &mut |phases| {
                tried += 1;
                if dag.symmetric(phases) {
                    kept.insert(phases.to_vec());
                }
            });
            println!("{} of {tried} at {steps} steps", kept.len());
            assert_eq!(kept, expanded);
        }
    }
}

#[test]
fn numbers_without_pruning() {
    for (model, _) in cells() {
        let direction = &model.layers()[0].directions()[0];
        for steps in 1..=3 {
            let dag = Dag::of(&Graph::new(&model, steps).expect("a small graph"));
            if dag.nodes.len() <= 24 {
                let all = dag.number();
                println!("{} at {steps} steps: {all}", direction.cell().kind());
                assert_eq!(direction_counts(direction, steps).all, Count::Exact(all));
            }
        }
    }
}

#[test]
fn numbers_after_rules_1_and_2() {
    for (model, number) in cells() {
        let direction = &model.layers()[0].directions()[0];
        for steps in 2..=3 {
            let dag = Dag::of(&Graph::new(&model, steps).expect("a small graph"));
            if dag.nodes.len() > 18 {
                continue;
            }
            let lines = dag.symmetric_lines();
            let sum = |rule| {
                lines
                    .iter()
                    .map(|line| dag.number_with_line(line, rule))
                    .sum()
            };
            let counts = direction_counts(direction, steps);
            println!("{} at {steps} steps: {counts:?}", direction.cell().kind());
            assert_eq!(counts.symmetric, Count::Exact(sum(false)));
            assert_eq!(counts.dependent, Count::Exact(sum(true)));
            assert_eq!(counts.kept, Count::Exact(number as u128));
        }
    }
}

/// Two directions side by side: what the rules leave are the pairs of what they leave of each,
/// unless a step has two phases. Then one direction may also run a phase behind the other, at three
/// phases and more per step, and one side by side is no later.
#[test]
fn two_directions_are_the_product_of_one_and_one() {
    let models = [
        (Rnn::new(1, 1).bidirectional(Merge::Sum).random(1), 4, 0),
        (Gru::new(1, 1).bidirectional(Merge::Sum).random(1), 64, 0),
        (Lstm::new(1, 1).bidirectional(Merge::Sum).random(1), 256, 0),
        (
            { Gru::new(1, 1).reset(ResetForm::Before) }
                .bidirectional(Merge::Sum)
                .random(1),
            1296,
            29_952,
        ),
    ];
    for (model, pairs, staggered) in models {
        let model = model.expect("a model");
        let graph = Graph::new(&model, 2).expect("a small graph");
        let dag = Dag::of(&graph);
        let aligned = expanded(&model, &graph);
        let aligned: BTreeSet<_> = aligned.iter().map(|each| dag.masks(each)).collect();
        assert_eq!(aligned.len(), pairs);
        assert_eq!(model_counts(&model, 2).kept, Count::Exact(pairs as u128));
        let kept = dag.kept();
        assert!(aligned.is_subset(&kept));
        let others: Vec<_> = kept.difference(&aligned).collect();
        let mut side_by_side = kept::Kept::of(&model, 2);
        others.iter().for_each(|other| side_by_side.check(other));
        let phases = |schedule: &[u32]| schedule.iter().filter(|p| *p & dag.state != 0).count();
        assert!(others.iter().all(|other| phases(other) > 2 * 2));
        assert_eq!(others.len(), staggered);
    }
}

#[test]
fn a_stack_is_the_product_of_its_layers() {
    let stack = Lstm::new(1, 1)
        .layers(3)
        .bidirectional(Merge::Sum)
        .random(1);
    let stack = stack.expect("a model");
    let counts = model_counts(&stack, 100);
    assert_eq!(counts.kept, Count::Exact(16_u128.pow(6)));
    assert_eq!(schedule_count(&stack), Some(16_u128.pow(6)));
    let one = direction_counts(&stack.layers()[0].directions()[0], 100);
    for (all, one) in counts.rows()[..3].iter().zip(one.rows()) {
        assert!(
            matches!(all.1, Count::AtLeast { log10 } if (log10 - 6.0 * one.1.log10()).abs() < 1e-6)
        );
    }
}

/// An RNN's product with the input has `t + 2` gaps before its deadline at step `t`, counted from
/// 0.
#[test]
fn long_sequences_by_a_formula_of_their_own() {
    let model = rnn();
    let direction = &model.layers()[0].directions()[0];
    let factorial = |number: usize| (1..=number).map(|n| (n as f64).log10()).sum::<f64>();
    for steps in [33, 50, 100, 128] {
        let found = direction_counts(direction, steps).dependent;
        println!("{steps} steps: {found}");
        assert!((found.log10() - factorial(steps + 1)).abs() < 1e-8);
    }
    let Count::AtLeast { log10 } = direction_counts(direction, 300).dependent else {
        panic!("more than 128 steps are a bound");
    };
    assert!(log10 < factorial(301) && log10 > factorial(128) * 2.0);
}

#[test]
fn numbers_as_people_read_them() {
    let shown = |count: Count| count.to_string();
    assert_eq!(shown(Count::Exact(16)), "16");
    assert_eq!(shown(Count::Exact(10_u128.pow(20))), "about 10^20");
    assert_eq!(shown(Count::Approximately { log10: 631.7 }), "about 10^632");
    assert_eq!(shown(Count::AtLeast { log10: 1264.9 }), "more than 10^1264");
    let big = Count::Exact(u128::MAX).times(Count::Exact(2));
    assert_eq!(shown(big), "about 10^39");
}
