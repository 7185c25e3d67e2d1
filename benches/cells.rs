//! Whole sequences of every kind of cell; LSTMs beside a loop that does each step with a general
//! matrix multiplication.
//!
//!     cargo bench --bench cells [-- --quick] [lstm | gru | "gru reset first" | rnn]
//!
//! Groups are named input/hidden/batch/steps. The loop is what a careful user would write with
//! `matrixmultiply`: inputs hoisted into one product, one product per step, plain activations.
//!
//! Each is held against the reference before it is timed: sessions bit for bit. The reference is
//! slow, so sequences of large cells are short, and runs that are tests leave out the largest.

use std::cell::LazyCell;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

use gatestream::model::{Direction, Gru, Lstm, ResetForm, Rnn};
use gatestream::{Input, Model, Output, Plan, Session, reference};

/// Hidden size, which is the input's too, and steps.
const SIZES: [(usize, usize); 3] = [(64, 100), (256, 20), (1024, 5)];

const BATCHES: [usize; 3] = [1, 10, 20];

/// The largest hidden size of a run that only asks whether this works.
const LARGEST_TESTED: usize = 256;

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
    multiply(
        steps * batch,
        input,
        gates,
        x,
        &weights.input.data(),
        &mut z,
    );
    let mut c = vec![0.0; batch * hidden];
    let mut h = vec![0.0; batch * hidden];
    for step in 0..steps {
        let z = &mut z[step * batch * gates..][..batch * gates];
        multiply(batch, hidden, gates, &h, &weights.recurrent.data(), z);
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

fn models(size: usize) -> [(&'static str, Model); 4] {
    let gru = Gru::new(size, size);
    let models = [
        ("lstm", Lstm::new(size, size).random(1)),
        ("gru", gru.clone().random(1)),
        ("gru reset first", gru.reset(ResetForm::Before).random(1)),
        ("rnn", Rnn::new(size, size).random(1)),
    ];
    models.map(|(name, model)| (name, model.expect("a valid shape")))
}

fn cells(criterion: &mut Criterion) {
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let sizes = SIZES.into_iter();
    for (size, steps) in sizes.filter(|&(size, _)| !is_test || size <= LARGEST_TESTED) {
        for (name, model) in models(size) {
            for batch in BATCHES {
                cell(criterion, name, &model, (size, batch, steps));
            }
        }
    }
}

/// What is timed is made and checked when it is first called for: a filter may leave it out.
fn cell(
    criterion: &mut Criterion,
    name: &str,
    model: &Model,
    (size, batch, steps): (usize, usize, usize),
) {
    let mut random = fastrand::Rng::with_seed(1);
    let x: Vec<f32> = (0..steps * batch * size).map(|_| random.f32()).collect();
    let mut y = vec![0.0; steps * batch * size];
    let mut group = criterion.benchmark_group(format!("{name} {size}/{size}/{batch}/{steps}"));
    group.warm_up_time(Duration::from_millis(100));
    group.measurement_time(Duration::from_millis(500));
    group.sample_size(20);
    if name == "lstm" {
        let direction = &model.layers()[0].directions()[0];
        let checked = LazyCell::new(|| {
            let mut y = vec![0.0; steps * batch * size];
            by_products(direction, &x, batch, steps, &mut y);
            check(model, &x, batch, steps, &y, 1e-4);
        });
        group.bench_function("general products", |b| {
            LazyCell::force(&checked);
            b.iter(|| by_products(direction, &x, batch, steps, &mut y));
        });
    }
    let input = Input::new(&x, steps, batch);
    for threads in 1..=2 {
        let mut session = None;
        group.bench_function(format!("session, {threads} threads"), |b| {
            let session = session.get_or_insert_with(|| {
                let plan = Plan::with_threads(model, batch, steps, threads);
                let mut session = Session::new(model, &plan).expect("a plan of this model");
                session.pin_caller();
                session
                    .run(&input, &mut Output::new(&mut y))
                    .expect("sizes fit");
                check(model, &x, batch, steps, &y, 0.0);
                session
            });
            b.iter(|| {
                session
                    .run(&input, &mut Output::new(&mut y))
                    .expect("sizes fit");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, cells);
criterion_main!(benches);
