//! `gatestream tune` as a user sees it: a plan that loads again, sizes in a grid, Ctrl-C,
//! refusals.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use gatestream::model::{Lstm, Merge, Model};
use gatestream::plan::{Cost, Entry, Measured, Plan};
use gatestream::tune::{KeptPlan, Options, Tuned};
use gatestream_serve::cell_graph::BatchSizes;

#[cfg(target_os = "linux")]
use crate::interrupt;
use crate::{program, run_in, text};

const SHAPE: [&str; 4] = ["tune", "--cell=lstm", "--input=8", "--hidden=32"];

fn tune(folder: &Path, more: &[&str]) -> Output {
    run_in(folder, SHAPE.iter().chain(more))
}

/// A shape's plan needs no weights: the command makes its own.
fn shape() -> Model {
    Lstm::new(8, 32).random(9).unwrap()
}

#[test]
fn grid_of_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = ["--batch=3,1", "--steps=2,7", "--seconds=60", "-o", "a.plan"];
    let done = tune(folder.path(), &sizes);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    assert!(said.ends_with("written to a.plan\n"), "{said}");
    let plan = Plan::load(folder.path().join("a.plan"), &shape()).unwrap();
    assert!(plan.is_tuned());
    let sizes: Vec<_> = plan.entries.iter().map(|e| (e.batch, e.steps)).collect();
    assert_eq!(sizes, [(1, 2), (1, 7), (3, 2), (3, 7)]);
    for entry in &plan.entries {
        let measured = entry.measured.as_ref().unwrap();
        assert!(measured.cost.median_ns > 0 && measured.runner_up.is_some());
        // What is printed is what was written.
        assert!(said.contains(&entry.configuration.to_string()), "{said}");
    }
}

#[test]
fn batch_size_for_serving() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = ["--batch=1,2,4", "--steps=1", "--seconds=60", "-o", "s.plan"];
    let done = tune(folder.path(), &sizes);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let plan = Plan::load(folder.path().join("s.plan"), &shape()).unwrap();
    let rows = BatchSizes::of_plan(&plan).unwrap().max;
    let said = text(&done.stdout);
    assert!(said.contains(&format!("batches of {rows} rows")), "{said}");
    assert!([1, 2, 4].contains(&rows));
}

#[test]
fn new_sizes_are_added() {
    let folder = tempfile::tempdir().unwrap();
    for (batch, kept) in [
        ("--batch=1", ""),
        ("--batch=3", ", with an entry of the existing plan"),
    ] {
        let size = [batch, "--steps=4", "--seconds=0.3", "-o", "d.plan"];
        let done = tune(folder.path(), &size);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let said = text(&done.stdout);
        assert!(said.contains(&format!("written to d.plan{kept}")), "{said}");
    }
    let plan = Plan::load(folder.path().join("d.plan"), &shape()).unwrap();
    let sizes: Vec<_> = plan.entries.iter().map(|e| (e.batch, e.steps)).collect();
    assert_eq!(sizes, [(1, 4), (3, 4)]);
}

#[test]
fn estimate_has_no_times() {
    let folder = tempfile::tempdir().unwrap();
    let done = tune(folder.path(), &["--effort=estimate", "-o", "b.plan"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let plan = Plan::load(folder.path().join("b.plan"), &shape()).unwrap();
    assert!(plan.entries.iter().all(|e| e.measured.is_none()));
    let sizes: Vec<_> = plan.entries.iter().map(|e| (e.batch, e.steps)).collect();
    assert_eq!(sizes, [(1, 10), (1, 100), (10, 10), (10, 100)]);
}

#[test]
fn model_shapes() {
    for more in [
        &["--bidirectional"][..],
        &["--layers=2"],
        &["--effort=exhaustive"],
        &["--threads=1"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let size = ["--batch=2", "--steps=4", "--seconds=0.4"];
        let done = tune(folder.path(), &[&size, more].concat());
        assert!(done.status.success(), "{more:?}: {}", text(&done.stderr));
        assert!(text(&done.stdout).contains("no file was written"));
    }
    let both = Lstm::new(8, 32).bidirectional(Merge::Concat).random(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.plan");
    let more = [
        "--bidirectional",
        "--seconds=0.2",
        "--batch=1",
        "--steps=3",
        "-o",
        "c.plan",
    ];
    assert!(tune(folder.path(), &more).status.success());
    assert!(Plan::load(&path, &both.unwrap()).is_ok());
    assert!(Plan::load(&path, &shape()).is_err());
}

#[test]
fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join("model.safetensors");
    std::fs::write(&theirs, "weights").unwrap();
    for (more, status) in [
        (&["--batch=0"][..], 2),
        (&["--lengths=3,0"], 2),
        (&["--steps=2,4", "--lengths=3,5"], 2),
        (&["--seconds=0"], 2),
        (&["--steps=x"], 2),
        (
            &[
                "--seconds=0.1",
                "--batch=1",
                "--steps=2",
                "-o",
                "no/such/folder.plan",
            ],
            1,
        ),
        (&["--batch=65536", "--steps=1048576"], 1),
        // Somebody's file, and a folder: nothing is timed, nothing is overwritten.
        (&["-o", "model.safetensors"], 1),
        (&["-o", "."], 1),
    ] {
        let done = tune(folder.path(), more);
        assert_eq!(done.status.code(), Some(status), "{more:?}");
        let said = text(&done.stderr);
        assert!(
            status == 2 || said.trim_end().lines().count() == 1,
            "{said}"
        );
        assert!(done.stdout.is_empty(), "{more:?}: nothing was timed");
    }
    assert_eq!(std::fs::read(theirs).unwrap(), b"weights");
}

#[test]
fn plan_of_the_former_name_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let former = folder.path().join("former.plan");
    for heading in ["cellstream plan 2\n", "cellstream network plan 1\n"] {
        std::fs::write(&former, heading).unwrap();
        let done = tune(folder.path(), &["-o", "former.plan"]);
        assert_eq!(done.status.code(), Some(1));
        let said = text(&done.stderr);
        assert!(said.contains("former.plan"), "{said}");
        assert!(said.contains("delete it and tune again"), "{said}");
        assert_eq!(std::fs::read_to_string(&former).unwrap(), heading);
    }
}

/// The output of a tuning of six sizes, interrupted while it is at the first.
#[cfg(target_os = "linux")]
fn interrupted(folder: &Path) -> String {
    let mut command = program(SHAPE);
    command.args([
        "--effort=exhaustive",
        "--seconds=3600",
        "--steps=100,200,300",
    ]);
    command.args(["-o", "d.plan"]);
    command.current_dir(folder).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    interrupt::interrupt(&mut child, Duration::ZERO);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    let said = text(&done.stdout);
    assert!(said.contains("interrupted:"), "{said}");
    said
}

/// What has been found by then is written, and the command ends well. That what was measured by
/// then is taken: `measurements_before_an_interruption`.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_keeps_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let said = interrupted(folder.path());
    assert!(said.ends_with("written to d.plan\n"), "{said}");
    let plan = Plan::load(folder.path().join("d.plan"), &shape()).unwrap();
    assert_eq!(plan.entries.len(), 6);
    // The sizes whose turn never came are estimated.
    assert!(plan.entries[1..].iter().all(|e| e.measured.is_none()));
}

/// Who reads what is printed may leave at once: the plan is written all the same.
#[test]
fn plan_is_written_after_stdout_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(SHAPE);
    command.args(["--seconds=0.1", "--steps=5", "-o", "d.plan"]);
    command.current_dir(folder.path()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    Plan::load(folder.path().join("d.plan"), &shape()).unwrap();
}

/// An entry that no tuning would choose, or time, so.
fn earlier(model: &Model, batch: usize, steps: usize) -> Entry {
    let mut entry = Plan::with_threads(model, batch, steps, 1).entries.remove(0);
    entry.configuration.layers[0].chunk_steps = 3;
    entry.measured = Some(Measured {
        cost: Cost {
            median_ns: 123_456_789,
            spread_ns: 7,
        },
        runner_up: None,
    });
    entry
}

#[cfg(target_os = "linux")]
#[test]
fn interrupt_keeps_existing_entries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.plan");
    let model = shape();
    // The size at hand, one whose turn does not come, and one that was not asked for.
    let entries = [(1, 100), (7, 7), (10, 300)].map(|(b, s)| earlier(&model, b, s));
    let before = Plan {
        entries: entries.to_vec(),
    };
    before.save(&path, &model).unwrap();
    let said = interrupted(folder.path());
    let closing = "written to d.plan, with 3 entries of the existing plan";
    assert!(said.contains(closing), "{said}");
    assert!(
        said.ends_with(": batch 1, 100 steps; batch 10, 300 steps\n"),
        "{said}"
    );
    let plan = Plan::load(&path, &model).unwrap();
    assert_eq!(plan.entries.len(), 7);
    for entry in &before.entries {
        assert!(plan.entries.contains(entry), "{plan:?}");
    }

    // A plan of another model is not lost.
    let other = Lstm::new(8, 48).random(1).unwrap();
    let before = Plan {
        entries: vec![earlier(&other, 1, 100)],
    };
    before.save(&path, &other).unwrap();
    let refused = tune(folder.path(), &["--steps=1", "-o", "d.plan"]);
    assert_eq!(refused.status.code(), Some(1));
    let line = text(&refused.stderr);
    assert!(
        line.contains("d.plan: the plan is for another model"),
        "{line}"
    );
    assert!(line.contains("choose another name for -o"), "{line}");
    assert_eq!(Plan::load(&path, &other).unwrap(), before);
}

/// What was finished replaces the earlier plan's, and is never replaced by it.
#[test]
fn finished_sizes_are_replaced() {
    let model = shape();
    let sizes = [(1, 1), (1, 2), (1, 3), (1, 4)];
    let estimate = |(b, s)| Plan::estimate(&model, b, s, 1).entries.remove(0);
    let mut entries = sizes.map(estimate).to_vec();
    let cost = Cost {
        median_ns: 5,
        spread_ns: 1,
    };
    // Finished, finished, under way, not begun.
    for entry in &mut entries[..3] {
        entry.measured = Some(Measured {
            cost,
            runner_up: None,
        });
    }
    let mut tuned = Tuned {
        plan: Plan {
            entries: entries.clone(),
        },
        finished: vec![true, true, false, false],
        runs: 1,
        candidates: 1,
        interrupted: true,
    };
    let mut old = [(1, 1), (1, 3), (1, 4)].map(|(b, s)| earlier(&model, b, s));
    // Not measured: better than an estimate only.
    old[1].measured = None;
    old[2].measured = None;
    let kept = tuned.keep(Plan {
        entries: old.to_vec(),
    });
    let one = KeptPlan {
        others: 0,
        instead: vec![(1, 4)],
    };
    assert_eq!(kept, one);
    entries[3] = old[2].clone();
    assert_eq!(tuned.plan.entries, entries);

    // Measured: better than what was cut short.
    let measured = [(1, 1), (1, 3), (7, 7)].map(|(b, s)| earlier(&model, b, s));
    let kept = tuned.keep(Plan {
        entries: measured.to_vec(),
    });
    let two = KeptPlan {
        others: 1,
        instead: vec![(1, 3)],
    };
    assert_eq!(kept, two);
    entries[2] = measured[1].clone();
    entries.push(measured[2].clone());
    assert_eq!(tuned.plan.entries, entries);
}

/// A tuning that is out of time at once: one lap of one candidate.
const NO_TIME: [&str; 3] = ["--batch=1", "--steps=4", "--seconds=0.000001"];

#[test]
fn one_round_is_an_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let done = tune(folder.path(), &[&NO_TIME[..], &["-o", "e.plan"]].concat());
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let said = text(&done.stdout);
    assert!(said.contains("too few timed runs"), "{said}");
    assert!(!said.contains("chosen") && !said.contains('±'), "{said}");
    let plan = Plan::load(folder.path().join("e.plan"), &shape()).unwrap();
    assert_eq!(plan.entries.len(), 1);
    assert_eq!(plan.entries[0].measured, None);
    let threads = plan.threads();
    assert_eq!(plan, Plan::estimate(&shape(), 1, 4, threads));
}

/// Neither where time was up, nor where nothing was to be timed; and not where there is a plan of
/// estimates.
#[test]
fn short_tuning_keeps_measured_entries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.plan");
    let model = shape();
    let mut before = Plan {
        entries: vec![earlier(&model, 1, 4)],
    };
    before.save(&path, &model).unwrap();
    for more in [&[][..], &["--effort=estimate"]] {
        let done = tune(
            folder.path(),
            &[&NO_TIME[..], &["-o", "f.plan"], more].concat(),
        );
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let said = text(&done.stdout);
        assert!(
            said.ends_with("more complete: batch 1, 4 steps\n"),
            "{said}"
        );
        assert_eq!(Plan::load(&path, &model).unwrap(), before);
    }
    // An estimate that was asked for takes the place of another.
    before.entries[0].measured = None;
    before.save(&path, &model).unwrap();
    let estimate = [&NO_TIME[..], &["-o", "f.plan", "--effort=estimate"]].concat();
    let said = text(&tune(folder.path(), &estimate).stdout);
    assert!(said.ends_with("written to f.plan\n"), "{said}");
    assert_ne!(Plan::load(&path, &model).unwrap(), before);
}

/// A plan of another machine or of other kernels, and one that is damaged, give way to the new one,
/// in words.
#[test]
fn incompatible_plan_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.plan");
    let model = shape();
    let before = Plan {
        entries: vec![earlier(&model, 7, 7)],
    };
    before.save(&path, &model).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let (lines, _) = text.split_once("checksum").unwrap();
    let edited = |name: &str, line: &str| {
        let old = lines.lines().find(|l| l.starts_with(name)).unwrap();
        lines.replace(old, line) + "checksum none\n"
    };
    let lost = |why| format!("; the entries of the existing plan could not be kept: {why}");
    for (before, said, sizes) in [
        (
            text.clone(),
            ", with an entry of the existing plan\n".into(),
            &[(1, 4), (7, 7)][..],
        ),
        (
            edited("cpu ", "cpu Z80"),
            lost("the plan is for another machine: the processor is \"Z80\" in the plan"),
            &[(1, 4)],
        ),
        (
            edited("kernels ", "kernels 0"),
            lost("the plan is for version 0 of the kernels, which is older"),
            &[(1, 4)],
        ),
        (
            text.replace("chunk 3", "chunk 4"),
            lost("the plan file has changed since it was written"),
            &[(1, 4)],
        ),
    ] {
        std::fs::write(&path, before).unwrap();
        let size = [
            "--batch=1",
            "--steps=4",
            "--effort=estimate",
            "-o",
            "g.plan",
        ];
        let done = tune(folder.path(), &size);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let report = crate::text(&done.stdout);
        let last = report.lines().last().unwrap().to_string() + "\n";
        assert!(
            last.starts_with(&format!("written to g.plan{said}")),
            "{report}"
        );
        let plan = Plan::load(&path, &model).unwrap();
        let found: Vec<_> = plan.entries.iter().map(|e| (e.batch, e.steps)).collect();
        assert_eq!(found, sizes, "{said}");
    }
}

/// Broken off after so many rounds of the first race; no clock decides.
#[test]
fn measurements_before_an_interruption() {
    let model = shape();
    let options = Options::new(vec![(1, 4), (2, 4)], 1, Duration::from_secs(1 << 20));
    for (rounds, measured) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut seen = 0;
        let tuned = gatestream::tune::tune(&model, &options, |_| {
            seen += 1;
            if seen == rounds {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let tuned = tuned.unwrap();
        assert!(tuned.interrupted && tuned.finished == [false, false]);
        let found = [0, 1].map(|at: usize| tuned.plan.entries[at].measured.is_some());
        assert_eq!(found, [measured, false], "{rounds} rounds");
        if !measured {
            let estimate = Plan::estimate(&model, 1, 4, 1);
            assert_eq!(tuned.plan.entries[0], estimate.entries[0]);
        }
    }
}

/// With all the time there is, each size is raced to its end, and nothing of an earlier plan is
/// better.
#[test]
fn finished_tuning_replaces_entries() {
    let model = shape();
    let mut options = Options::new(vec![(1, 4)], 1, Duration::from_secs(1 << 20));
    options.lengths = vec![3, 4];
    let mut tuned =
        gatestream::tune::tune(&model, &options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(tuned.finished, [true]);
    assert!(!tuned.interrupted && tuned.plan.is_tuned());
    let kept = tuned.keep(Plan {
        entries: vec![earlier(&model, 1, 4)],
    });
    assert_eq!(kept, KeptPlan::default());
}
