//! `--precision auto:ERR`, run as a program.

use gatestream::Plan;
use gatestream::model::{Lstm, Model, Precision};

use crate::common::Random;
use crate::{npy, run_in, stdout, text};

const STEPS: usize = 7;
const BATCH: usize = 3;

fn sample(model: &Model) -> Vec<f32> {
    Random::new(5).values(STEPS * BATCH * model.signature().input)
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
fn chosen_precisions_are_tuned_and_written() {
    let model = Lstm::new(6, 128).layers(2).random(1).unwrap();
    let folder = folder(&model);
    let line = "tune m.safetensors --batch 2 --steps 9 --seconds 1 --precision auto:0.5 \
        --sample x.npy -o p.plan";
    let text = stdout(&run_in(folder.path(), line.split(' ')));
    assert!(text.contains("at most 0.5 over x.npy"), "{text}");
    let precisions = chosen(&text);
    // The plan is for these precisions, and names them.
    let mix = match precisions.split(',').collect::<Vec<_>>()[..] {
        [one] => vec![one, one],
        ref both => both.to_vec(),
    };
    let mix: Vec<Precision> = mix.iter().map(|name| name.parse().unwrap()).collect();
    let model = model.in_precisions(&mix).unwrap();
    Plan::load(folder.path().join("p.plan"), &model).unwrap();
    let hint = format!("it is for the model with --precision {precisions}\n");
    assert!(text.ends_with(&hint), "{text}");
    let run = format!(
        "run m.safetensors --precision {precisions} --plan p.plan --input input=x.npy \
         --output output=y.npy"
    );
    let done = run_in(folder.path(), run.split(' '));
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");

    let line = "quantize m.safetensors --precision auto:0.5 --sample x.npy -o q.safetensors";
    let text = stdout(&run_in(folder.path(), line.split(' ')));
    let precisions = chosen(&text);
    for run in [
        "run q.safetensors --input input=x.npy --output output=a.npy".to_string(),
        format!(
            "run m.safetensors --precision {precisions} --input input=x.npy --output output=b.npy"
        ),
    ] {
        stdout(&run_in(folder.path(), run.split(' ')));
    }
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("a.npy"), read("b.npy"));
}

#[test]
fn bench_prints_the_choice_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        "bench --cell gru --input 3 --hidden 32 --steps 4 --seconds 0.05 --json --precision auto:0";
    let done = run_in(folder.path(), line.split(' '));
    let row: serde_json::Value = serde_json::from_str(stdout(&done).trim()).unwrap();
    assert_eq!(row["precision"], "f32");
    let choice = text(&done.stderr);
    assert_eq!(chosen(&choice), "f32");
}

#[test]
fn invalid_arguments() {
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
        let done = run_in(folder.path(), line.split(' '));
        assert_eq!(done.status.code(), Some(status), "{line}: {done:?}");
        let error = text(&done.stderr);
        assert!(error.contains(part), "{line}: {error}");
    }
    assert!(!folder.path().join("q.safetensors").exists());
}
