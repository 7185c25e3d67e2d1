//! `--plan` of `gatestream run` and `bench`: used if it fits, refused where it is no plan, and
//! otherwise named in one line on standard error.

use std::path::Path;
use std::process::Output;

use gatestream::model::{Lstm, Model};
use gatestream::plan::{Cost, Measured, Plan};
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::{npy, run_in, text};

fn bench(folder: &Path, more: &[&str]) -> Output {
    let shape = [
        "bench",
        "--cell=lstm",
        "--input=8",
        "--hidden=16",
        "--batch=2",
        "--steps=5",
    ];
    run_in(folder, &[&shape, &["--seconds=0.01"][..], more].concat())
}

/// A shape's plan needs no weights: the bench makes its own.
fn shape() -> Model {
    Lstm::new(8, 16).random(7).unwrap()
}

fn one_line(text: &[u8], parts: &[&str]) {
    let text = str::from_utf8(text).unwrap();
    assert!(
        text.ends_with('\n') && text.lines().count() == 1,
        "{text:?}"
    );
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn bench_names_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.plan");
    let field = |out: &Output, name: &str| {
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        row[name].clone()
    };
    let mut plan = Plan::with_threads(&shape(), 1, 9, 1);
    plan.save(&path, &shape()).unwrap();
    let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
    assert_eq!(field(&out, "plan"), "file");
    assert_eq!(
        (field(&out, "batch"), field(&out, "steps")),
        (2.into(), 5.into())
    );
    assert!(out.stderr.is_empty(), "{out:?}");

    let cost = Cost {
        median_ns: 5,
        spread_ns: 1,
    };
    plan.entries[0].measured = Some(Measured {
        cost,
        runner_up: None,
    });
    plan.save(&path, &shape()).unwrap();
    let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
    assert_eq!(field(&out, "plan"), "tuned");
    let out = bench(folder.path(), &["--plan", "a.plan"]);
    let text = text(&out.stdout);
    assert!(
        text.contains(" plan ") && text.contains(" tuned "),
        "{text}"
    );

    // Of another shape.
    let out = bench(folder.path(), &["--json", "--plan", "a.plan", "--layers=2"]);
    assert_eq!(field(&out, "plan"), "estimate");
    one_line(
        &out.stderr,
        &[
            "a.plan",
            "another model",
            "layers 2",
            "the estimate",
            // The file is good for the model that it is for.
            "`gatestream tune … -o OTHER.plan`",
        ],
    );
    let out = bench(folder.path(), &["--plan", "a.plan", "--layers=2"]);
    assert!(
        String::from_utf8(out.stdout)
            .unwrap()
            .contains(" estimate ")
    );
    // Of another machine.
    let text = std::fs::read_to_string(&path).unwrap();
    let (start, _) = text.split_once("checksum").unwrap();
    let cpu = text.lines().find(|l| l.starts_with("cpu ")).unwrap();
    let other = start.replace(cpu, "cpu Z80") + "checksum none\n";
    std::fs::write(&path, other).unwrap();
    let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
    assert_eq!(field(&out, "plan"), "estimate");
    one_line(
        &out.stderr,
        &[
            "another machine: the processor is \"Z80\" in the plan",
            "the estimate",
            "`gatestream tune … -o a.plan`",
        ],
    );
    // Behind somebody's heading, or a space: what is asked for stands in the message, and `tune`
    // would refuse the file, so no command is suggested.
    for (before, said) in [("# ours\n", "in line 2: move"), (" ", "no space before")] {
        std::fs::write(&path, format!("{before}{text}")).unwrap();
        let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
        assert_eq!(field(&out, "plan"), "estimate");
        one_line(&out.stderr, &[said, "the estimate"]);
        assert!(!String::from_utf8_lossy(&out.stderr).contains("gatestream tune"));
    }
    // Saved by an editor that marks UTF-8: the same.
    std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
    let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
    assert_eq!(field(&out, "plan"), "estimate");
    one_line(
        &out.stderr,
        &["byte order mark (BOM", "without BOM", "the estimate"],
    );
    assert!(!String::from_utf8_lossy(&out.stderr).contains("gatestream tune"));
    // Damaged.
    std::fs::write(&path, text.replace("chunk ", "chunk 1")).unwrap();
    let out = bench(folder.path(), &["--json", "--plan", "a.plan"]);
    assert_eq!(field(&out, "plan"), "estimate");
    one_line(
        &out.stderr,
        &["changed since it was written", "the estimate"],
    );
}

#[test]
fn plan_with_too_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::with_threads(&shape(), 1, 9, 2);
    // A machine of one CPU has no such plan.
    if plan.save(folder.path().join("a.plan"), &shape()).is_ok() {
        let out = bench(folder.path(), &["--json", "--plan=a.plan", "--threads=1"]);
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        one_line(
            &out.stderr,
            &["2 threads", "1 may be used", "-o OTHER.plan`"],
        );
        let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (&row["plan"], &row["threads"]),
            (&"estimate".into(), &1.into())
        );
    }
}

#[test]
fn missing_plan_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.onnx"), "\u{8}\u{1}").unwrap();
    std::fs::write(folder.path().join("empty.plan"), "").unwrap();
    for (name, parts) in [
        ("absent.plan", ["absent.plan", "cannot read"]),
        (".", [".", "cannot read"]),
        ("model.onnx", ["model.onnx", "no plan file"]),
        ("empty.plan", ["empty.plan", "the file is empty"]),
    ] {
        let out = bench(folder.path(), &["--plan", name]);
        assert_eq!(out.status.code(), Some(1), "{name}: {out:?}");
        assert!(out.stdout.is_empty(), "{name}: {out:?}");
        one_line(&out.stderr, &parts);
    }
    let out = run_in(folder.path(), &["bench", "--suite=table1", "--plan=a.plan"]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn run_with_and_without_plan() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let random = |count: usize| -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(count as u64);
        (0..count)
            .flat_map(|_| (random.f32() - 0.5).to_le_bytes())
            .collect()
    };
    let tensors = [
        ("weight_ih_l0", vec![192, 8], random(192 * 8)),
        ("weight_hh_l0", vec![192, 48], random(192 * 48)),
        ("bias_ih_l0", vec![192], random(192)),
        ("bias_hh_l0", vec![192], random(192)),
    ];
    let views = tensors.iter().map(|(name, shape, data)| {
        (
            *name,
            TensorView::new(Dtype::F32, shape.clone(), data).unwrap(),
        )
    });
    std::fs::write(file("m.safetensors"), serialize(views, None).unwrap()).unwrap();
    std::fs::write(
        file("x.npy"),
        npy::bytes("<f4", &[6, 3, 8], &random(6 * 3 * 8)),
    )
    .unwrap();
    let run = |to: &str, more: &[&str]| {
        let output = format!("--output=output={to}");
        let common = ["run", "m.safetensors", "--input=input=x.npy", &output];
        let out = run_in(folder.path(), &[&common, more].concat());
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        assert!(out.stdout.is_empty(), "{out:?}");
        (std::fs::read(file(to)).unwrap(), out.stderr)
    };
    let (expected, _) = run("plain.npy", &[]);
    let model = Model::open(file("m.safetensors")).unwrap();
    let mut plan = Plan::with_threads(&model, 1, 1, 1);
    plan.entries
        .extend(Plan::with_threads(&model, 8, 50, 1).entries);
    plan.save(file("a.plan"), &model).unwrap();
    let (found, said) = run("planned.npy", &["--plan=a.plan"]);
    assert!(found == expected && said.is_empty(), "{said:?}");
    shape_plan(&file("b.plan"));
    let (found, said) = run("fallback.npy", &["--plan=b.plan"]);
    assert!(found == expected);
    one_line(&said, &["b.plan", "another model"]);

    let missing = [
        "run",
        "m.safetensors",
        "--input=input=x.npy",
        "--output=output=no.npy",
    ];
    let out = run_in(folder.path(), &[&missing[..], &["--plan=absent"]].concat());
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(!file("no.npy").exists());
}

/// The precision is compared before the shape, so what is said must be true of plans of other
/// shapes, too.
#[test]
fn plan_of_another_precision() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    shape().save_safetensors(file("m.safetensors")).unwrap();
    let other = Lstm::new(8, 24).random(1).unwrap();
    other.save_safetensors(file("other.safetensors")).unwrap();
    let values: Vec<f32> = (0..6 * 3 * 8).map(|i| i as f32 / 200.0).collect();
    std::fs::write(file("x.npy"), npy::floats(&[6, 3, 8], &values)).unwrap();
    let tune = ["tune", "m.safetensors", "--precision=bf16", "--batch=3"];
    let more = ["--steps=6", "--effort=estimate", "-o", "b.plan"];
    let made = run_in(folder.path(), &[tune, more].concat());
    assert_eq!(made.status.code(), Some(0), "{made:?}");

    let run = |model: &str, more: &[&str]| {
        let common = ["run", model, "--input=input=x.npy"];
        let to = ["--output=output=y.npy", "--plan=b.plan"];
        let out = run_in(folder.path(), &[&common, &to[..], more].concat());
        // Answers are the same without the plan.
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        out.stderr
    };
    for model in ["m.safetensors", "other.safetensors"] {
        one_line(
            &run(model, &[]),
            &[
                "b.plan",
                "another model",
                "\"precision bf16\"",
                "the estimate; the plan was made for --precision bf16\n",
            ],
        );
    }
    let said = run("m.safetensors", &["--precision=bf16"]);
    assert!(said.is_empty(), "{said:?}");
    one_line(
        &run("other.safetensors", &["--precision=bf16"]),
        &[
            "hidden 16",
            "hidden 24",
            "`gatestream tune … -o OTHER.plan`",
        ],
    );
}

fn shape_plan(path: &Path) {
    Plan::with_threads(&shape(), 1, 9, 1)
        .save(path, &shape())
        .unwrap();
}

/// A tuning out of time at once has chosen nothing, and that is what the row says.
#[test]
fn short_tuning_is_an_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let out = bench(folder.path(), &["--json", "--tune=0.000001"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let row: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(row["plan"], "estimate");
}
