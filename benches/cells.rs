//! Whole sequences, beside a loop that does each step with a general matrix multiplication.
//!
//! Both are checked against the reference first. The loop is what a careful user would write with
//! `matrixmultiply`: inputs hoisted into one product, one product per step, plain activations.

use criterion::{Criterion, criterion_group, criterion_main};

use cellstream::model::{Direction, Lstm};
use cellstream::{Input, Model, Output, Plan, Session, reference};

/// Input, hidden, batch, steps.
const SHAPES: [(usize, usize, usize, usize); 4] = [
    (64, 64, 1, 100),
    (256, 256, 1, 100),
    (64, 64, 20, 100),
    (256, 256, 20, 100),
];

/// `to[rows, columns] += a[rows, depth] · w[columns, depth]ᵀ`.
fn multiply(rows: usize, depth: usize, columns: usize, a: &[f32], w: &[f32], to: &mut [f32]) {
    assert!(a.len() >= rows * depth && w.len() >= columns * depth && to.len() >= rows * columns);
    let (depth_stride, column_stride) = (depth as isize, columns as isize);
    // SAFETY: the strides describe matrices of the lengths checked above.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            depth,
            columns,
            1.0,
            a.as_ptr(),
            depth_stride,
            1,
            w.as_ptr(),
            1,
            depth_stride,
            1.0,
            to.as_mut_ptr(),
            column_stride,
            1,
        );
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// One LSTM layer by general products.
fn by_products(direction: &Direction, x: &[f32], batch: usize, steps: usize, y: &mut [f32]) {
    let (input, hidden) = (direction.input_size(), direction.hidden_size());
    let weights = direction.weights();
    let biases = weights.input_bias.iter().zip(&weights.recurrent_bias);
    let bias: Vec<f32> = biases.map(|(a, b)| a + b).collect();
    let mut z = bias.repeat(steps * batch);
    let gates = 4 * hidden;
    multiply(steps * batch, input, gates, x, weights.input.data(), &mut z);
    let mut c = vec![0.0; batch * hidden];
    let mut h = vec![0.0; batch * hidden];
    for step in 0..steps {
        let z = &mut z[step * batch * gates..][..batch * gates];
        multiply(batch, hidden, gates, &h, weights.recurrent.data(), z);
        for row in 0..batch {
            for j in 0..hidden {
                let gate = |g: usize| z[row * gates + g * hidden + j];
                let c = &mut c[row * hidden + j];
                *c = sigmoid(gate(1)) * *c + sigmoid(gate(0)) * gate(2).tanh();
                h[row * hidden + j] = sigmoid(gate(3)) * c.tanh();
            }
        }
        y[step * batch * hidden..][..batch * hidden].copy_from_slice(&h);
    }
}

fn check(model: &Model, x: &[f32], batch: usize, steps: usize, y: &[f32], tolerance: f32) {
    let mut expected = vec![0.0; y.len()];
    let input = Input::new(x, steps, batch);
    reference::run(model, &input, &mut Output::new(&mut expected)).expect("sizes fit");
    let differences = y.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest <= tolerance, "{largest} off the reference");
}

fn cells(criterion: &mut Criterion) {
    for (input, hidden, batch, steps) in SHAPES {
        let model = Lstm::new(input, hidden).random(1).expect("a valid shape");
        let mut random = fastrand::Rng::with_seed(1);
        let x: Vec<f32> = (0..steps * batch * input).map(|_| random.f32()).collect();
        let mut y = vec![0.0; steps * batch * hidden];
        let mut group = criterion.benchmark_group(format!("lstm {input}/{hidden}/{batch}/{steps}"));
        let direction = &model.layers()[0].directions()[0];
        by_products(direction, &x, batch, steps, &mut y);
        check(&model, &x, batch, steps, &y, 1e-4);
        group.bench_function("general products", |b| {
            b.iter(|| by_products(direction, &x, batch, steps, &mut y));
        });
        for threads in 1..=2 {
            let plan = Plan::with_threads(&model, batch, steps, threads);
            let mut session = Session::new(&model, &plan).expect("a plan of this model");
            session.pin_caller();
            let mut run = |y: &mut [f32]| {
                let input = Input::new(&x, steps, batch);
                session.run(&input, &mut Output::new(y)).expect("sizes fit");
            };
            run(&mut y);
            check(&model, &x, batch, steps, &y, 0.0);
            group.bench_function(format!("session, {threads} threads"), |b| {
                b.iter(|| run(&mut y));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, cells);
criterion_main!(benches);
