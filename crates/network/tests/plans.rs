//! Plans for many shapes: the bits of fresh networks, made once, kept for each caller.

#[path = "common/graphs.rs"]
mod graphs;

use std::sync::Barrier;

use gatestream_network::{
    Caller, Network, NetworkError, NetworkOptions, NetworkThreads, RunOptions, Tensor,
};
use graphs::{branch, constant, file, ints, node, value, value_of};
use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

const IN: usize = 8;
const OUT: usize = 64;
const TAPS: usize = 5;
const LABELS: usize = 20;

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() - 0.5).collect()
}

/// `y [T, LABELS] = relu(convolution of x [1, IN, T]) W`: a kernel and a matrix for tract.
fn tagger() -> Vec<u8> {
    let mut convolution = node("Conv", &["x", "kernel"], "features");
    convolution.attribute.push(ints("pads", &[2, 2]));
    let mut transposed = node("Transpose", &["positive"], "rows");
    transposed.attribute.push(ints("perm", &[0, 2, 1]));
    file(GraphProto {
        node: vec![
            convolution,
            node("Relu", &["features"], "positive"),
            transposed,
            node("MatMul", &["rows", "w"], "y"),
        ],
        initializer: vec![
            constant("kernel", &[OUT, IN, TAPS], &random(1, OUT * IN * TAPS)),
            constant("w", &[OUT, LABELS], &random(2, OUT * LABELS)),
        ],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    })
}

/// The same in plain loops.
fn loops(x: &[f32], steps: usize) -> Vec<f64> {
    let (kernel, w) = (random(1, OUT * IN * TAPS), random(2, OUT * LABELS));
    let mut y = Vec::new();
    for step in 0..steps {
        let features = (0..OUT).map(|out| {
            let mut sum = 0.0;
            for channel in 0..IN {
                for tap in 0..TAPS {
                    if let Some(at) = (step + tap).checked_sub(2).filter(|at| *at < steps) {
                        let weight = kernel[(out * IN + channel) * TAPS + tap];
                        sum += f64::from(weight) * f64::from(x[channel * steps + at]);
                    }
                }
            }
            sum.max(0.0)
        });
        let features: Vec<f64> = features.collect();
        y.extend((0..LABELS).map(|label| {
            let terms = features.iter().enumerate();
            let terms = terms.map(|(out, value)| value * f64::from(w[out * LABELS + label]));
            terms.sum::<f64>()
        }));
    }
    y
}

fn open(options: NetworkOptions) -> Network {
    Network::from_bytes(&tagger(), options).unwrap()
}

fn input(steps: usize) -> Tensor {
    Tensor::new(&[1, IN, steps], random(steps as u64, IN * steps)).unwrap()
}

fn run(network: &Network, steps: usize, caller: u64) -> Vec<f32> {
    let options = RunOptions {
        caller: Caller(caller),
    };
    let outputs = network.run_with(&[("x", &input(steps))], options).unwrap();
    outputs[0].tensor.floats().unwrap().to_vec()
}

#[test]
fn plans_of_many_shapes_have_the_bits_of_fresh_networks() {
    let network = open(NetworkOptions::default());
    let shared = std::thread::scope(|scope| {
        let runs = [3, 5, 7].map(|stride| {
            let network = &network;
            scope.spawn(move || {
                let steps = (0..24).map(|index| 1 + index * stride % 24);
                steps
                    .map(|steps| (steps, run(network, steps, 0)))
                    .collect::<Vec<_>>()
            })
        });
        runs.map(|run| run.join().unwrap()).concat()
    });
    assert_eq!(network.plan_stats().made, 24);
    for (steps, found) in shared {
        assert_eq!(
            found,
            run(&open(NetworkOptions::default()), steps, 0),
            "{steps}"
        );
        let expected = loops(&random(steps as u64, IN * steps), steps);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-4,
                "{found} {expected}"
            );
        }
    }
}

#[test]
fn packed_constants_of_plans_count_once() {
    let network = open(NetworkOptions::default());
    run(&network, 10, 0);
    let one = network.plan_stats();
    for steps in 11..31 {
        run(&network, steps, 0);
    }
    let all = network.plan_stats();
    assert_eq!((one.kept, all.kept, all.made, all.evicted), (1, 21, 21, 0));
    let each = (all.bytes - one.bytes) / 20;
    assert!(
        one.bytes - each >= 4 * OUT * LABELS,
        "each plan has a packed matrix of its own: {one:?} {all:?}"
    );
}

#[test]
fn threads_that_need_the_same_plan_make_it_once() {
    let network = open(NetworkOptions::default());
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (network, together) = (&network, &together);
            scope.spawn(move || {
                for steps in 1..9 {
                    together.wait();
                    run(network, steps, caller);
                }
            });
        }
    });
    assert_eq!(network.plan_stats().made, 8);
}

#[test]
fn a_caller_that_needs_many_plans_takes_none_of_another() {
    let few = open(NetworkOptions::default());
    (1..=3).for_each(|steps| drop(run(&few, steps, 0)));
    let bytes = few.plan_stats().bytes;
    let within = |callers: [u64; 2]| {
        let network = open(NetworkOptions {
            plan_bytes: Some(3 * bytes),
            ..NetworkOptions::default()
        });
        let [modest, greedy] = callers;
        (1..=3).for_each(|steps| drop(run(&network, steps, modest)));
        for steps in 4..60 {
            run(&network, steps, greedy);
        }
        let before = network.plan_stats();
        assert!(before.bytes <= 3 * bytes, "{before:?}");
        assert_eq!(before.made - before.evicted, before.kept as u64);
        (1..=3).for_each(|steps| drop(run(&network, steps, modest)));
        network.plan_stats().made - before.made
    };
    assert_eq!(within([1, 2]), 0, "its plans are kept");
    assert_eq!(within([1, 1]), 3, "of one caller the oldest go");
}

#[test]
fn the_last_plan_is_kept_beyond_the_bound() {
    let network = open(NetworkOptions {
        plan_bytes: Some(0),
        ..NetworkOptions::default()
    });
    (0..3).for_each(|_| drop(run(&network, 5, 0)));
    assert_eq!(
        (network.plan_stats().kept, network.plan_stats().made),
        (1, 1)
    );
    run(&network, 6, 0);
    assert_eq!(
        (network.plan_stats().kept, network.plan_stats().made),
        (1, 2)
    );
}

#[test]
fn a_prepared_plan_runs_inputs_of_its_shapes_alone() {
    let network = open(NetworkOptions::default());
    let (x, other) = (input(5), input(6));
    let options = RunOptions::default();
    assert!(!network.has_plan(&[("x", x.shape())]));
    assert!(network.prepared(&[("x", &x)], options).unwrap().is_none());
    let plan = network.prepare(&[("x", &x)], options).unwrap();
    assert!(network.has_plan(&[("x", x.shape())]));
    assert!(network.prepared(&[("x", &x)], options).unwrap().is_some());
    let outputs = network.run_prepared(&plan, &[("x", &x)]).unwrap();
    assert_eq!(outputs[0].tensor.floats().unwrap(), run(&network, 5, 0));
    let refused = network.run_prepared(&plan, &[("x", &other)]).unwrap_err();
    assert!(
        matches!(&refused, NetworkError::Input { name, .. } if name == "x"),
        "{refused}"
    );
    assert_eq!(network.plan_stats().made, 1);
}

/// `y = tanh(x)` if the mode is 16000, else `-x`.
fn by_mode() -> Vec<u8> {
    let branches = [("then_branch", "Tanh"), ("else_branch", "Neg")]
        .map(|(name, operator)| branch(name, vec![node(operator, &["x"], "b")], "b"));
    let rate = TensorProto {
        name: "rate".into(),
        data_type: 7,
        int64_data: vec![16000],
        ..TensorProto::default()
    };
    file(GraphProto {
        node: vec![
            node("Equal", &["mode", "rate"], "is_rate"),
            NodeProto {
                attribute: branches.to_vec(),
                ..node("If", &["is_rate"], "y")
            },
        ],
        initializer: vec![rate],
        input: vec![value("x"), value_of("mode", 7)],
        output: vec![value("y")],
        ..GraphProto::default()
    })
}

#[test]
fn a_mode_is_part_of_the_plans_of_all_shapes() {
    let network = Network::from_bytes(&by_mode(), NetworkOptions::default()).unwrap();
    let run = |length: usize, mode: i64| {
        let x = random(length as u64, length);
        let expected = x.iter().map(|x| if mode == 16000 { x.tanh() } else { -x });
        let mode = Tensor::new(&[], vec![mode]).unwrap();
        let tensor = Tensor::new(&[length], x.clone()).unwrap();
        let outputs = network.run(&[("x", &tensor), ("mode", &mode)]).unwrap();
        let found = outputs[0].tensor.floats().unwrap();
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        network.plan_stats().made
    };
    // Of two modes at eight lengths each plan has its own; of more modes than four, the others
    // have one.
    for (mode, before) in [(16000, 0), (8000, 8)] {
        for length in 1..=8 {
            assert_eq!(run(length, mode), before + length as u64);
        }
    }
    for (mode, made) in [(1, 17), (2, 18), (3, 19), (4, 19)] {
        assert_eq!(run(9, mode), made, "{mode}");
    }
}

/// An LSTM over `x [T, N, 64]`.
fn layer() -> Vec<u8> {
    const HIDDEN: usize = 64;
    let weights = |name, seed| {
        let values = random(seed, 4 * HIDDEN * HIDDEN);
        constant(name, &[1, 4 * HIDDEN, HIDDEN], &values)
    };
    let mut layer = node("LSTM", &["x", "w", "r"], "y");
    layer
        .attribute
        .push(graphs::integer("hidden_size", HIDDEN as i64));
    file(GraphProto {
        node: vec![layer],
        initializer: vec![weights("w", 1), weights("r", 2)],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    })
}

#[test]
fn a_layer_has_plans_for_all_sizes_that_it_meets() {
    let run = |network: &Network, steps: usize, batch: usize| {
        let x = random(3, steps * batch * 64);
        let x = Tensor::new(&[steps, batch, 64], x).unwrap();
        network.profile(&[("x", &x)]).unwrap()
    };
    let open = || Network::from_bytes(&layer(), NetworkOptions::default()).unwrap();
    let network = open();
    for (steps, batch) in [(1, 1), (100, 1), (100, 32), (1, 1)] {
        let (found, fresh) = (run(&network, steps, batch), run(&open(), steps, batch));
        assert_eq!(found.outputs, fresh.outputs);
        let plan = |run: &gatestream_network::ProfiledRun| run.profile.regions[0].plan.clone();
        assert_eq!(plan(&found), plan(&fresh), "{steps} steps of {batch}");
    }
}

#[test]
fn networks_on_given_threads_take_no_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, tagger()).unwrap();
    let threads = NetworkThreads::new(Some(2));
    let options = NetworkOptions::default();
    let expected = run(&open(options), 7, 0);
    for _ in 0..2 {
        let network = Network::open_on(&path, options, &threads).unwrap();
        assert_eq!(run(&network, 7, 0), expected);
    }
    let both = NetworkOptions {
        threads: Some(1),
        ..options
    };
    let refused = Network::open_on(&path, both, &threads).err().unwrap();
    assert!(matches!(refused, NetworkError::Options(_)), "{refused}");
}
