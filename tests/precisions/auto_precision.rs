//! The choice of precisions within an error: what is said of it is true, and it can be used.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::common::Random;
use gatestream::model::{Direction, Gru, Layer, Lstm, Matrix, Merge, Model, Precision};
use gatestream::tune::{Chosen, Mix, PrecisionOptions, TuneError, choose_precisions};
use gatestream::{Input, Output, reference};

const STEPS: usize = 7;
const BATCH: usize = 3;

fn sample(model: &Model) -> Vec<f32> {
    Random::new(5).values(STEPS * BATCH * model.signature().input)
}

fn choose(model: &Model, values: &[f32], most_error: f64) -> Result<Chosen, TuneError> {
    let sample = Input::new(values, STEPS, BATCH).lengths(&[7, 4, 1]);
    let time = Duration::from_millis(200);
    let options = PrecisionOptions::new(sample, most_error, vec![(1, 5), (4, 2)], 2, time);
    choose_precisions(model, &options, |_| ControlFlow::Continue(()))
}

/// By the reference, which the choice does not ask.
fn error(model: &Model, values: &[f32], precisions: &[Precision]) -> f64 {
    let answer = |precisions: &[Precision]| {
        let model = model.in_precisions(precisions).unwrap();
        let mut output = vec![0.0; STEPS * BATCH * model.signature().output];
        let input = Input::new(values, STEPS, BATCH).lengths(&[7, 4, 1]);
        reference::run(&model, &input, &mut Output::new(&mut output)).unwrap();
        output
    };
    let exact = answer(&vec![Precision::F32; precisions.len()]);
    let pairs = answer(precisions).into_iter().zip(exact);
    let errors = pairs.map(|(a, b)| (f64::from(a) - f64::from(b)).abs());
    errors.fold(0.0, f64::max)
}

#[test]
fn reported_error_against_the_reference() {
    for model in [
        Lstm::new(6, 96).layers(2).random(1).unwrap(),
        Gru::new(6, 64)
            .layers(3)
            .bidirectional(Merge::Concat)
            .random(2)
            .unwrap(),
    ] {
        let values = sample(&model);
        let layers = model.layers().len();
        let of_int8 = error(&model, &values, &vec![Precision::Int8; layers]);
        for most in [2.0 * of_int8, 0.5 * of_int8, 0.05 * of_int8, 0.0] {
            let chosen = choose(&model, &values, most).unwrap();
            let all: Vec<&Mix> = chosen.others.iter().chain([&chosen.mix]).collect();
            for mix in &all {
                assert_eq!(mix.error, error(&model, &values, &mix.precisions));
                assert!(mix.error <= most, "{mix:?} {most}");
                assert!(mix.time > 0.0);
            }
            let exact = vec![Precision::F32; layers];
            assert!(all.iter().any(|mix| mix.precisions == exact));
            if most > of_int8 {
                // Whether it wins is a matter of time; that it takes part is not.
                let uniform = vec![Precision::Int8; layers];
                assert!(all.iter().any(|mix| mix.precisions == uniform));
            }
            assert_eq!(
                chosen.model,
                model.in_precisions(&chosen.mix.precisions).unwrap()
            );
        }
    }
}

/// A weight that is infinite: f32 and bf16 can hold it, int8 cannot.
#[test]
fn a_layer_that_cannot_be_of_a_precision_is_not() {
    let model = Lstm::new(6, 32).layers(2).random(1).unwrap();
    let values = sample(&model);
    let mut layers = model.layers().to_vec();
    let direction = &layers[0].directions()[0];
    let mut weights = direction.weights().clone();
    let mut ones = vec![1.0; 128 * 6];
    ones[0] = f32::INFINITY;
    weights.input = Matrix::new(128, 6, ones).unwrap();
    layers[0] = Layer::single(Direction::new(*direction.cell(), weights).unwrap());
    let model = Model::new(layers).unwrap();
    let chosen = choose(&model, &values, 1e9).unwrap();
    let mut all = chosen.others.iter().chain([&chosen.mix]);
    assert!(all.all(|mix| mix.precisions[0] != Precision::Int8));
}

#[test]
fn samples_and_sizes_that_do_not_fit_are_refused() {
    let model = Lstm::new(6, 8).random(1).unwrap();
    let values = sample(&model);
    let options = |sample, sizes: &[(usize, usize)]| {
        PrecisionOptions::new(sample, 0.1, sizes.to_vec(), 1, Duration::ZERO)
    };
    let fitting = Input::new(&values, STEPS, BATCH);
    let refusal = |options: PrecisionOptions<'_>| {
        choose_precisions(&model, &options, |_| ControlFlow::Continue(())).unwrap_err()
    };
    for sizes in [&[][..], &[(0, 3)], &[(1, 1), (3, 0)]] {
        let error = refusal(options(fitting, sizes));
        assert!(matches!(error, TuneError::NoSize), "{error}");
    }
    let error = refusal(options(Input::new(&[], 0, 1), &[(1, 1)]));
    assert!(matches!(error, TuneError::NoSample), "{error}");
    for most_error in [f64::NAN, -0.1] {
        let mut options = options(fitting, &[(1, 1)]);
        options.most_error = most_error;
        let error = refusal(options);
        assert!(matches!(error, TuneError::MostError(_)), "{error}");
    }
    let mut not_numbers = values.clone();
    not_numbers[3] = f32::NAN;
    let error = refusal(options(Input::new(&not_numbers, STEPS, BATCH), &[(1, 1)]));
    assert!(matches!(error, TuneError::NotComparable), "{error}");
    let error = refusal(options(Input::new(&values, usize::MAX, 2), &[(1, 1)]));
    assert!(matches!(error, TuneError::Sample(_)), "{error}");
    let error = refusal(options(Input::new(&values[1..], STEPS, BATCH), &[(1, 1)]));
    assert!(matches!(error, TuneError::Sample(_)), "{error}");
    assert!(error.to_string().starts_with("the sample: "), "{error}");
}
