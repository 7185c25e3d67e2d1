//! From a place per product to phases of products: what is where, what is fused, what is refused.

use gatestream::Model;
use gatestream::graph::{Graph, Node, Operand, Product};
use gatestream::model::{Direction, Gru, Layer, Lstm, Merge, ResetForm, Rnn};
use gatestream::schedule::{
    DirectionSchedule, Phase, PhasePlacement, PhasedError, PhasedSchedule, schedules,
    surviving_schedules,
};

use super::{cells, gru, layer_schedules, lstm, projected, rnn};

fn direction(model: &Model) -> &Direction {
    &model.layers()[0].directions()[0]
}

/// The labels of each phase.
fn labels(graph: &Graph, schedule: &PhasedSchedule) -> Vec<String> {
    let phases = schedule.phases().iter();
    let labels = phases.map(|phase| {
        let nodes: Vec<_> = phase.nodes().iter().map(|node| graph.label(node)).collect();
        nodes.join(" ")
    });
    labels.collect()
}

#[test]
fn every_schedule_of_every_cell_can_be_executed() {
    for (model, number) in cells() {
        let all = schedules(direction(&model));
        assert_eq!(surviving_schedules(direction(&model)).len(), number);
        let executed = if number == 36 { 30 } else { number };
        assert_eq!(all.len(), executed);
        assert_eq!(all[0], DirectionSchedule::all_ahead(direction(&model)));
        assert_eq!(all[1], DirectionSchedule::none_ahead(direction(&model)));
        let graph = Graph::new(&model, 5).expect("a small graph");
        for schedule in all {
            assert_eq!(schedule.check(direction(&model)), Ok(()));
            let phased = PhasedSchedule::of(&graph, &[vec![schedule]]).expect("one direction");
            assert_eq!(phased.check(&graph), Ok(()));
            assert!(phased.is_kept(&graph));
        }
    }
}

#[test]
fn a_reverse_direction_begins_at_the_end() {
    let reverse = Layer::single(direction(&projected()).clone().reversed());
    let graph = Graph::of_layer(&reverse, 2).expect("a small graph");
    let mut schedule = DirectionSchedule::all_ahead(&reverse.directions()[0]);
    schedule.input[1] = PhasePlacement::Phase(0);
    let phased = PhasedSchedule::of(&graph, &[vec![schedule]]).expect("one direction");
    let expected = [
        "W_i·x_1 W_g·x_1 W_o·x_1 W_i·x_0 W_g·x_0 W_o·x_0",
        "W_f·x_1 U_i·h_init U_f·h_init U_g·h_init U_o·h_init",
        "P·m_1",
        "W_f·x_0 U_i·h_1 U_f·h_1 U_g·h_1 U_o·h_1",
        "P·m_0",
    ];
    assert_eq!(labels(&graph, &phased), expected);
    // Inputs of equal steps are one product, another set of steps another.
    let fused = phased.phases()[0].fused(&graph);
    let blocks = [0, 2, 3].map(|gate| (0, Product::Input(gate)));
    assert_eq!(fused.len(), 1);
    assert_eq!(
        (&*fused[0].steps, &*fused[0].blocks),
        (&[0, 1][..], &blocks[..])
    );
    let fused = phased.phases()[1].fused(&graph);
    let operands: Vec<_> = fused.iter().map(|fused| fused.operand).collect();
    assert_eq!(operands, [Operand::INPUT, Operand::STATE]);
    assert_eq!(fused[1].blocks.len(), 4);
}

#[test]
fn directions_share_inputs_but_not_states() {
    let model = { Gru::new(1, 1).reset(ResetForm::Before) }.bidirectional(Merge::Sum);
    let model = model.random(1).expect("a model");
    let graph = Graph::new(&model, 3).expect("a small graph");
    let ahead = DirectionSchedule::all_ahead(direction(&model));
    let phased = PhasedSchedule::of(&graph, &[vec![ahead.clone(), ahead.clone()]]);
    let phased = phased.expect("two directions");
    assert_eq!(phased.phases().len(), 1 + 3 * 2);
    let fused = phased.phases()[0].fused(&graph);
    assert_eq!(fused.len(), 1);
    assert_eq!((fused[0].steps.len(), fused[0].blocks.len()), (3, 6));
    // Both directions' reset and update gates; then both candidates.
    let fused = phased.phases()[1].fused(&graph);
    assert_eq!(fused.len(), 2);
    assert!(fused.iter().all(|fused| fused.blocks.len() == 2));
    assert_eq!((&*fused[0].steps, &*fused[1].steps), (&[0][..], &[2][..]));
    // Where they meet, at the same step, each still has a state of its own.
    let fused = phased.phases()[3].fused(&graph);
    assert_eq!(fused.len(), 2);
    assert_eq!((&*fused[0].steps, &*fused[1].steps), (&[1][..], &[1][..]));
    // The update gate does not share the candidate's operand.
    let mut late = ahead.clone();
    late.recurrent[1] = PhasePlacement::Phase(1);
    let phased = PhasedSchedule::of(&graph, &[vec![late, ahead]]).expect("two directions");
    let operands = phased.phases()[2].fused(&graph);
    let operands: Vec<_> = operands.iter().map(|fused| fused.operand.symbol).collect();
    assert_eq!(operands, ["h", "r∘h", "r∘h"]);
    assert_eq!(phased.check(&graph), Ok(()));
}

#[test]
fn inputs_of_other_steps_are_another_product() {
    let graph = Graph::new(&lstm(), 2).expect("a small graph");
    let input = |gate, taken| {
        graph
            .node(0, 0, taken, Product::Input(gate))
            .expect("a node")
    };
    let phase = Phase::new(vec![
        input(0, 0),
        input(0, 1),
        input(1, 0),
        input(2, 1),
        input(2, 0),
    ]);
    let fused = phase.fused(&graph);
    let steps: Vec<_> = fused
        .iter()
        .map(|fused| (&*fused.steps, fused.blocks.len()))
        .collect();
    assert_eq!(steps, [(&[0][..], 1), (&[0, 1][..], 2)]);
}

/// Directions whose steps have one phase and two still keep step.
#[test]
fn directions_of_unequal_phases() {
    let [one, two] =
        [ResetForm::After, ResetForm::Before].map(|form| direction(&gru(form)).clone());
    let layer = Layer::bidirectional(one, two, Merge::Sum).expect("equal sizes");
    let graph = Graph::of_layer(&layer, 3).expect("a small graph");
    let all = layer_schedules(&layer);
    assert_eq!(all.len(), 8 * 30);
    for schedules in all {
        let phased = PhasedSchedule::of(&graph, &[schedules]).expect("two directions");
        assert_eq!(phased.check(&graph), Ok(()));
        assert!(phased.is_kept(&graph));
    }
}

#[test]
fn stacks_run_layer_after_layer() {
    let model = Lstm::new(1, 1)
        .layers(2)
        .bidirectional(Merge::Sum)
        .random(1);
    let model = model.expect("a model");
    let graph = Graph::new(&model, 3).expect("a small graph");
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..50 {
        let mut draw = |layer: &Layer| {
            let all = layer_schedules(layer);
            all[random.usize(..all.len())].clone()
        };
        let layers: Vec<_> = model.layers().iter().map(&mut draw).collect();
        let phased = PhasedSchedule::of(&graph, &layers).expect("two layers of two");
        assert_eq!(phased.check(&graph), Ok(()));
        let first_layers = phased.phases().iter().map(|phase| phase.nodes()[0].layer);
        assert!(first_layers.is_sorted());
    }
}

#[test]
fn what_is_no_schedule_is_named() {
    let model = rnn();
    let graph = Graph::new(&model, 2).expect("a small graph");
    let node = |product, taken| graph.node(0, 0, taken, product).expect("a node");
    let (w, u) = (Product::Input(0), Product::Recurrent(0));
    let step = |taken| vec![node(w, taken), node(u, taken)];
    let check = |phases: Vec<Vec<Node>>| {
        let phases = phases.into_iter().map(Phase::new).collect();
        PhasedSchedule::new(phases).check(&graph)
    };
    let label = || "U·h_0".to_owned();
    assert_eq!(check(vec![step(0), step(1)]), Ok(()));
    assert_eq!(
        check(vec![step(0), vec![], step(1)]),
        Err(PhasedError::Empty { phase: 1 })
    );
    assert_eq!(
        check(vec![step(0), vec![node(w, 1)]]),
        Err(PhasedError::Missing { label: label() })
    );
    assert_eq!(
        check(vec![step(0), step(1), vec![node(u, 1)]]),
        Err(PhasedError::Twice {
            phase: 2,
            label: label()
        })
    );
    let needed = "W·x_0".to_owned();
    let wrong = check(vec![vec![node(u, 0)], [step(1), vec![node(w, 0)]].concat()]);
    let expected = PhasedError::TooEarly {
        phase: 1,
        label: label(),
        needed,
    };
    assert_eq!(wrong, Err(expected));
    let node = Node {
        layer: 3,
        ..node(w, 0)
    };
    assert_eq!(
        check(vec![vec![node]]),
        Err(PhasedError::Unknown { phase: 0, node })
    );

    let schedule = DirectionSchedule::all_ahead(direction(&lstm()));
    let of = |schedules: &[Vec<DirectionSchedule>]| PhasedSchedule::of(&graph, schedules);
    let (expected, found) = (vec![1], vec![2]);
    let two = vec![schedule.clone(), schedule.clone()];
    assert_eq!(of(&[two]), Err(PhasedError::Shape { expected, found }));
    let gates = PhasedError::Gates {
        layer: 0,
        direction: 0,
        schedule: schedule.clone(),
    };
    assert_eq!(of(&[vec![schedule]]), Err(gates));
    // A place that contradicts the graph shows when the phases are checked.
    let late = { Rnn::new(1, 1).random(1) }.expect("a model");
    let mut schedule = DirectionSchedule::none_ahead(direction(&late));
    schedule.recurrent[0] = PhasePlacement::Ahead;
    let phased = of(&[vec![schedule]]).expect("as many gates");
    assert!(matches!(
        phased.check(&graph),
        Err(PhasedError::TooEarly { .. })
    ));
}
