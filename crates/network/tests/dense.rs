//! Products with constant matrices, beside plain loops in `f64`.

#[path = "common/graphs.rs"]
mod graphs;

use gatestream_network::{Network, NetworkOptions, Tensor};
use graphs::{branch, constant, file, float, integer, node, value, value_of};
use tract_onnx::pb::{GraphProto, NodeProto};

const INPUTS: usize = 64;
const OUTPUTS: usize = 70;

/// `W` is `[INPUTS, OUTPUTS]`, `V` its transpose, `b` `[OUTPUTS]`.
struct Weights {
    w: Vec<f32>,
    v: Vec<f32>,
    b: Vec<f32>,
}

fn weights() -> Weights {
    let mut random = fastrand::Rng::with_seed(1);
    let mut values =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.f32() - 0.5).collect() };
    let w = values(INPUTS * OUTPUTS);
    let v = (0..OUTPUTS).flat_map(|output| (0..INPUTS).map(move |input| (input, output)));
    Weights {
        v: v.map(|(input, output)| w[input * OUTPUTS + output])
            .collect(),
        b: values(OUTPUTS),
        w,
    }
}

/// A network of these nodes, with the input `x` and an input `mode` of int64.
fn network(nodes: Vec<NodeProto>, outputs: &[&str], threads: usize) -> Network {
    let Weights { w, v, b } = weights();
    let bytes = file(GraphProto {
        node: nodes,
        initializer: vec![
            constant("w", &[INPUTS, OUTPUTS], &w),
            constant("v", &[OUTPUTS, INPUTS], &v),
            constant("b", &[OUTPUTS], &b),
            constant("two", &[], &[2.0]),
        ],
        input: vec![value("x"), value_of("mode", 7)],
        output: outputs.iter().map(|name| value(name)).collect(),
        ..GraphProto::default()
    });
    let options = NetworkOptions {
        threads: Some(threads),
        ..NetworkOptions::default()
    };
    Network::from_bytes(&bytes, options).unwrap()
}

fn run_in(network: &Network, x: &Tensor, mode: i64) -> Vec<Tensor> {
    let mode = Tensor::new(&[], vec![mode]).unwrap();
    let found = network.run(&[("x", x), ("mode", &mode)]).unwrap();
    found.into_iter().map(|output| output.tensor).collect()
}

fn run(nodes: Vec<NodeProto>, outputs: &[&str], x: &Tensor, threads: usize) -> Vec<Tensor> {
    run_in(&network(nodes, outputs, threads), x, 0)
}

fn input(shape: &[usize]) -> Tensor {
    let mut random = fastrand::Rng::with_seed(2);
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
    Tensor::new(shape, values).unwrap()
}

/// `x W`, plus `b` as often as told.
fn expected(x: &Tensor, biases: f64) -> Vec<f64> {
    let Weights { w, b, .. } = weights();
    let rows = x.floats().unwrap().chunks(INPUTS);
    let values = rows.flat_map(|row| {
        (0..OUTPUTS)
            .map(|output| {
                let terms = row.iter().enumerate();
                let terms =
                    terms.map(|(input, x)| f64::from(*x) * f64::from(w[input * OUTPUTS + output]));
                terms.sum::<f64>() + biases * f64::from(b[output])
            })
            .collect::<Vec<f64>>()
    });
    values.collect()
}

fn assert_near(found: &Tensor, expected: &[f64], shape: &[usize]) {
    assert_eq!(found.shape(), shape);
    for (found, expected) in found.floats().unwrap().iter().zip(expected) {
        let error = (f64::from(*found) - expected).abs();
        assert!(error < 1e-5, "{found} for {expected}");
    }
}

#[test]
fn products_have_the_values_of_plain_loops() {
    for shape in [&[INPUTS][..], &[1, INPUTS], &[33, INPUTS], &[2, 7, INPUTS]] {
        let x = input(shape);
        let mut of_y = shape.to_vec();
        *of_y.last_mut().unwrap() = OUTPUTS;
        for threads in [1, 2] {
            let product = vec![node("MatMul", &["x", "w"], "y")];
            assert_near(
                &run(product, &["y"], &x, threads)[0],
                &expected(&x, 0.0),
                &of_y,
            );
            let sum = vec![
                node("MatMul", &["x", "w"], "p"),
                node("Add", &["b", "p"], "y"),
            ];
            assert_near(&run(sum, &["y"], &x, threads)[0], &expected(&x, 1.0), &of_y);
        }
    }
}

#[test]
fn gemm_has_the_values_of_plain_loops() {
    let x = input(&[5, INPUTS]);
    for (inputs, attributes, biases) in [
        (&["x", "w", "b"][..], vec![], 1.0),
        (&["x", "w"], vec![], 0.0),
        (&["x", "v", "b"], vec![integer("transB", 1)], 1.0),
        (&["x", "v"], vec![integer("transB", 1)], 0.0),
        // Left to tract.
        (&["x", "w", "b"], vec![float("beta", 0.5)], 0.5),
    ] {
        let mut gemm = node("Gemm", inputs, "y");
        gemm.attribute = attributes;
        let found = run(vec![gemm], &["y"], &x, 2);
        assert_near(&found[0], &expected(&x, biases), &[5, OUTPUTS]);
    }
}

/// A product that is read twice, or is an output, keeps its own value.
#[test]
fn a_product_may_be_read_beside_its_sum() {
    let x = input(&[3, INPUTS]);
    let nodes = vec![
        node("MatMul", &["x", "w"], "p"),
        node("Add", &["p", "b"], "s"),
        node("Add", &["s", "b"], "t"),
        node("Mul", &["p", "two"], "d"),
    ];
    let found = run(nodes.clone(), &["t", "d"], &x, 2);
    assert_near(&found[0], &expected(&x, 2.0), &[3, OUTPUTS]);
    let doubled: Vec<f64> = expected(&x, 0.0).iter().map(|value| 2.0 * value).collect();
    assert_near(&found[1], &doubled, &[3, OUTPUTS]);
    let found = run(nodes[..2].to_vec(), &["p", "s"], &x, 1);
    assert_near(&found[0], &expected(&x, 0.0), &[3, OUTPUTS]);
    assert_near(&found[1], &expected(&x, 1.0), &[3, OUTPUTS]);
    // Another sum of the same product: its second term is no bias.
    let nodes = vec![
        node("MatMul", &["x", "w"], "p"),
        node("Add", &["p", "p"], "y"),
    ];
    let found = run(nodes, &["y"], &x, 1);
    assert_near(&found[0], &doubled, &[3, OUTPUTS]);
}

/// The same bits, whatever the number of threads and of rows.
#[test]
fn a_row_has_the_same_bits_alone() {
    let nodes = || {
        vec![
            node("MatMul", &["x", "w"], "p"),
            node("Add", &["p", "b"], "y"),
        ]
    };
    let x = input(&[20, INPUTS]);
    let all = run(nodes(), &["y"], &x, 2);
    assert_eq!(all, run(nodes(), &["y"], &x, 1));
    let rows = x.floats().unwrap().chunks(INPUTS);
    for (row, of_all) in rows.zip(all[0].floats().unwrap().chunks(OUTPUTS)) {
        let row = Tensor::new(&[1, INPUTS], row.to_vec()).unwrap();
        assert_eq!(run(nodes(), &["y"], &row, 1)[0].floats().unwrap(), of_all);
    }
}

/// A branch may read a product, so that in one plan the product has no bias, and in another it has.
#[test]
fn plans_may_differ_in_biases() {
    let mut choice = node("If", &["condition"], "z");
    let of_product = vec![node("Mul", &["p", "two"], "doubled")];
    let of_sum = vec![node("Mul", &["s", "two"], "doubled")];
    choice.attribute = vec![
        branch("then_branch", of_product, "doubled"),
        branch("else_branch", of_sum, "doubled"),
    ];
    let mut condition = node("Cast", &["mode"], "condition");
    condition.attribute = vec![integer("to", 9)];
    let nodes = vec![
        node("MatMul", &["x", "w"], "p"),
        node("Add", &["p", "b"], "s"),
        condition,
        choice,
    ];
    let network = network(nodes, &["s", "z"], 1);
    let x = input(&[3, INPUTS]);
    for mode in [1, 0, 1] {
        let found = run_in(&network, &x, mode);
        let biases = if mode == 1 { 0.0 } else { 1.0 };
        let doubled: Vec<f64> = expected(&x, biases)
            .iter()
            .map(|value| 2.0 * value)
            .collect();
        assert_near(&found[0], &expected(&x, 1.0), &[3, OUTPUTS]);
        assert_near(&found[1], &doubled, &[3, OUTPUTS]);
    }
}
