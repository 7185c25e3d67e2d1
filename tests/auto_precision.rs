//! The choice of precisions within an error: what is said of it is true, and it can be used.

mod common;
#[path = "common/npy.rs"]
mod npy;

use std::ops::ControlFlow;
use std::time::Duration;

use cellstream::model::{Direction, Gru, Layer, Lstm, Matrix, Merge, Model, Precision};
use cellstream::tune::{Chosen, Mix, PrecisionOptions, TuneError, choose_precisions};
use cellstream::{Input, Output, reference};
use common::Random;

const STEPS: usize = 7;
const BATCH: usize = 3;

fn sample(model: &Model) -> Vec<f32> {
    Random::new(5).values(STEPS * BATCH * model.signature().input)
}

fn choose(model: &Model, values: &[f32], most_error: f64) -> Result<Chosen, TuneError> {
    let options = PrecisionOptions {
        sample: Input::new(values, STEPS, BATCH).lengths(&[7, 4, 1]),
        most_error,
        sizes: vec![(1, 5), (4, 2)],
        cores: 2,
        budget: Duration::from_millis(200),
    };
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
fn the_error_that_is_named_is_that_of_the_reference_and_within_what_was_asked_for() {
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
    let options = |sample, sizes: &[(usize, usize)]| PrecisionOptions {
        sample,
        most_error: 0.1,
        sizes: sizes.to_vec(),
        cores: 1,
        budget: Duration::ZERO,
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
        let error = refusal(PrecisionOptions {
            most_error,
            ..options(fitting, &[(1, 1)])
        });
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

/// On the command line, with a model file and a sample.
#[cfg(all(feature = "cli", feature = "safetensors"))]
mod command {
    use super::*;
    use std::path::Path;
    use std::process::{Command, Output};

    use cellstream::Plan;

    fn cellstream(folder: &Path, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cellstream"));
        command.args(line.split(' ')).current_dir(folder);
        command.env_remove("CELLSTREAM_ISA");
        command.output().unwrap()
    }

    fn said(done: &Output) -> String {
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        String::from_utf8(done.stdout.clone()).unwrap()
    }

    /// What follows `--precision` in the line of the mix that was chosen.
    fn chosen(said: &str) -> &str {
        let line = said
            .lines()
            .find(|line| line.trim_start().starts_with("chosen "));
        line.unwrap().split("--precision ").nth(1).unwrap()
    }

    fn folder(model: &Model) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        model.save_safetensors(path("m.safetensors")).unwrap();
        let input = npy::floats(&[STEPS, BATCH, 6], &sample(model));
        std::fs::write(path("x.npy"), input).unwrap();
        folder
    }

    #[test]
    fn what_is_tuned_and_written_is_what_was_chosen() {
        let model = Lstm::new(6, 128).layers(2).random(1).unwrap();
        let folder = folder(&model);
        let line = "tune m.safetensors --batch 2 --steps 9 --seconds 1 --precision auto:0.5 --sample x.npy -o p.plan";
        let text = said(&cellstream(folder.path(), line));
        assert!(text.contains("at most 0.5 over x.npy"), "{text}");
        let precisions = chosen(&text);
        // The plan is for these precisions, and names them.
        let mix = match precisions.split(',').collect::<Vec<_>>()[..] {
            [one] => vec![one, one],
            ref both => both.to_vec(),
        };
        let named = |name: &str| *Precision::ALL.iter().find(|p| p.name() == name).unwrap();
        let mix: Vec<Precision> = mix.into_iter().map(named).collect();
        let model = model.in_precisions(&mix).unwrap();
        Plan::load(folder.path().join("p.plan"), &model).unwrap();
        let hint = format!("it is for the model with --precision {precisions}\n");
        assert!(text.ends_with(&hint), "{text}");
        let run = format!(
            "run m.safetensors --precision {precisions} --plan p.plan --input input=x.npy --output output=y.npy"
        );
        let done = cellstream(folder.path(), &run);
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");

        let line = "quantize m.safetensors --precision auto:0.5 --sample x.npy -o q.safetensors";
        let text = said(&cellstream(folder.path(), line));
        let precisions = chosen(&text);
        for run in [
            "run q.safetensors --input input=x.npy --output output=a.npy".to_string(),
            format!(
                "run m.safetensors --precision {precisions} --input input=x.npy --output output=b.npy"
            ),
        ] {
            said(&cellstream(folder.path(), &run));
        }
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert_eq!(read("a.npy"), read("b.npy"));
    }

    #[test]
    fn results_stay_apart_from_the_choice_in_bench() {
        let folder = tempfile::tempdir().unwrap();
        let line = "bench --cell gru --input 3 --hidden 32 --steps 4 --seconds 0.05 --json --precision auto:0";
        let done = cellstream(folder.path(), line);
        let row: serde_json::Value = serde_json::from_str(said(&done).trim()).unwrap();
        assert_eq!(row["precision"], "f32");
        let choice = String::from_utf8(done.stderr).unwrap();
        assert_eq!(chosen(&choice), "f32");
    }

    #[test]
    fn what_cannot_be_chosen_is_refused_with_what_to_do() {
        let folder = folder(&Lstm::new(6, 8).random(1).unwrap());
        for (line, status, part) in [
            (
                "run m.safetensors --precision auto:0.1 --input input=x.npy --output output=y.npy",
                2,
                "`tune` or",
            ),
            ("explain m.safetensors --precision auto:0.1", 2, "`tune` or"),
            ("tune m.safetensors --precision auto", 2, "auto:0.01"),
            ("tune m.safetensors --precision int4", 2, "f32, bf16, int8"),
            (
                "tune m.safetensors --precision int8 --sample x.npy",
                2,
                "auto:ERR",
            ),
            ("tune m.safetensors --sample x.npy", 2, "--precision"),
            (
                "tune m.safetensors --precision int8,f32",
                1,
                "one for each layer",
            ),
            (
                "bench m.safetensors --precision auto:0.1 --sample none.npy",
                1,
                "none.npy",
            ),
            (
                "quantize m.safetensors --precision auto:-1 -o q.safetensors",
                2,
                "auto:0.01",
            ),
        ] {
            let done = cellstream(folder.path(), line);
            assert_eq!(done.status.code(), Some(status), "{line}: {done:?}");
            let error = String::from_utf8(done.stderr).unwrap();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert!(!folder.path().join("q.safetensors").exists());
    }
}
