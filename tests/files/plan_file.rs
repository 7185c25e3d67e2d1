//! Plan files: what is saved is what is loaded, for this model and machine and no other, and files
//! change at once or not at all.

use std::io::ErrorKind;
use std::path::Path;

use crate::common::plan_files::random_plan;
use crate::common::{Batch, Random, Results};
use gatestream::Session;
use gatestream::kernels::Isa;
use gatestream::model::{Gru, Lstm, Merge, Model};
use gatestream::plan::{Cost, KERNEL_SET, Measured, Plan, PlanError, PlanFileError, Stamp};

/// A machine of six cores, whatever this one is.
fn six_cores() -> Stamp {
    Stamp {
        kernels: KERNEL_SET,
        cpu: "Six \\ 6".into(),
        isa: Isa::Portable,
        cores: 6,
        smt: 1,
        numa_nodes: 1,
        private_caches: vec![48 << 10, 1 << 20],
        shared_cache: 1000,
    }
}

#[test]
fn random_plans_come_back_as_they_were() {
    let stamp = six_cores();
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let model = random.stack(60);
        let plan = random_plan(&mut random, &model);
        let text = plan.to_text(&model, &stamp).unwrap();
        let read = Plan::from_text(text.as_bytes(), &model, &stamp).unwrap();
        assert_eq!(read, plan, "{text}");
        assert_eq!(read.to_text(&model, &stamp).unwrap(), text);
        let mut backwards = plan.clone();
        backwards.entries.reverse();
        assert_eq!(backwards.to_text(&model, &stamp).unwrap(), text);
    }
}

/// The format, word for word: files that were written once must be read by later versions.
#[test]
fn the_text_is_as_documented() {
    let model = two_layers();
    let plan = Plan::from_text(EXAMPLE.as_bytes(), &model, &example_stamp()).unwrap();
    let entry = &plan.entries[0];
    assert_eq!((entry.batch, entry.steps), (1, 100));
    let time = |median_ns, spread_ns| Cost {
        median_ns,
        spread_ns,
    };
    let runner_up = Some(("o in its step, cyclic".to_string(), time(441_020, 1800)));
    assert_eq!(
        entry.measured,
        Some(Measured {
            cost: time(430_211, 2210),
            runner_up
        })
    );
    let upper = &entry.configuration.layers[1].directions[0];
    assert_eq!(upper.partition.units, [0..16, 16..48]);
    assert_eq!(upper.partition.projected, [0..0, 0..0]);
    let written = plan.to_text(&model, &example_stamp()).unwrap();
    assert_eq!(
        written,
        EXAMPLE.replace("# Between evening and night\n", "")
    );
    // The documentation of the module and of the folder shows this very file.
    for documented in [
        include_str!("../../src/plan/file/mod.rs"),
        include_str!("../../tuning/plans/README.md"),
    ] {
        let lines = documented
            .lines()
            .map(|line| line.trim_start_matches("//!").trim());
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let example: Vec<&str> = EXAMPLE
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        assert!(lines.windows(example.len()).any(|window| window == example));
    }
}

const EXAMPLE: &str = include_str!("../fixtures/plan/example.plan");

fn two_layers() -> Model {
    let lower = Lstm::new(64, 256)
        .bidirectional(Merge::Concat)
        .random(1)
        .unwrap();
    let upper = Gru::new(512, 48).random(1).unwrap();
    let layers = [lower, upper].map(|model| model.layers()[0].clone());
    Model::new(layers.to_vec()).unwrap()
}

fn example_stamp() -> Stamp {
    Stamp {
        kernels: 1,
        cpu: "AMD EPYC".into(),
        isa: Isa::Avx512,
        cores: 2,
        smt: 1,
        numa_nodes: 1,
        private_caches: vec![48 << 10, 1 << 20],
        shared_cache: 32 << 20,
    }
}

fn refusal(text: &str, model: &Model, stamp: &Stamp) -> PlanFileError {
    let error = Plan::from_text(text.as_bytes(), model, stamp).unwrap_err();
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 400, "{line}");
    error
}

#[test]
fn another_model_is_named_by_the_first_line_that_differs() {
    let stamp = example_stamp();
    let alone = Lstm::new(64, 256).random(1).unwrap();
    let expected = PlanFileError::Model {
        line: 5,
        planned: "layers 2".into(),
        here: "layers 1".into(),
    };
    assert_eq!(refusal(EXAMPLE, &alone, &stamp), expected);
    let layers = two_layers().layers().to_vec();
    let upper = Gru::new(512, 48).reset(gatestream::model::ResetForm::Before);
    let upper = upper.random(1).unwrap().layers()[0].clone();
    let other = Model::new(vec![layers[0].clone(), upper]).unwrap();
    let expected = PlanFileError::Model {
        line: 7,
        planned: "layer 1: forward gru input 512 hidden 48 reset after".into(),
        here: "layer 1: forward gru input 512 hidden 48 reset before".into(),
    };
    assert_eq!(refusal(EXAMPLE, &other, &stamp), expected);
    // Other weights are no other model.
    let lower = Lstm::new(64, 256)
        .bidirectional(Merge::Concat)
        .random(7)
        .unwrap();
    let retrained = Model::new(vec![lower.layers()[0].clone(), layers[1].clone()]).unwrap();
    assert!(Plan::from_text(EXAMPLE.as_bytes(), &retrained, &stamp).is_ok());
    // A hash that does not belong to the lines, in a file that is edited by hand.
    let (start, _) = EXAMPLE.rsplit_once("checksum").unwrap();
    let hash = EXAMPLE.lines().nth(2).unwrap();
    let text = start.replace(hash, "model 0123456789abcdef") + "checksum none";
    let expected = PlanFileError::Model {
        line: 3,
        planned: "model 0123456789abcdef".into(),
        here: hash.into(),
    };
    assert_eq!(refusal(&text, &two_layers(), &stamp), expected);
}

#[test]
fn another_machine_is_named_by_the_field_that_differs() {
    let (model, stamp) = (two_layers(), example_stamp());
    type Change = fn(&mut Stamp);
    let changes: [(&str, Change, &str, &str, &str); 7] = [
        (
            "cpu",
            |s| s.cpu = "AMD\nEPYC".into(),
            "AMD EPYC",
            "AMD\\u{a}EPYC",
            "the processor is \"AMD EPYC\" in the plan and \"AMD\\u{a}EPYC\" here",
        ),
        (
            "isa",
            |s| s.isa = Isa::Avx2,
            "avx512",
            "avx2",
            "the instruction set is avx512 in the plan and avx2 here",
        ),
        (
            "cores",
            |s| s.cores = 1,
            "2",
            "1",
            "the number of cores is 2 in the plan and 1 here",
        ),
        (
            "smt",
            |s| s.smt = 2,
            "1",
            "2",
            "the number of threads per core is 1 in the plan and 2 here",
        ),
        (
            "numa_nodes",
            |s| s.numa_nodes = 2,
            "1",
            "2",
            "the number of memory nodes is 1 in the plan and 2 here",
        ),
        (
            "private_caches",
            |s| s.private_caches = vec![],
            "48 KiB, 1 MiB",
            "",
            "the size of a core's own caches is 48 KiB, 1 MiB in the plan and none here",
        ),
        (
            "shared_cache",
            |s| s.shared_cache = 0,
            "32 MiB",
            "0 B",
            "the size of the shared cache is 32 MiB in the plan and 0 B here",
        ),
    ];
    for (field, change, planned, here, sentence) in changes {
        let mut other = stamp.clone();
        change(&mut other);
        let (planned, here) = (planned.to_string(), here.to_string());
        let expected = PlanFileError::Machine {
            field,
            planned,
            here,
        };
        let refused = refusal(EXAMPLE, &model, &other);
        assert_eq!(refused, expected);
        let sentence = format!("the plan is for another machine: {sentence}");
        assert_eq!(refused.to_string(), sentence);
        // And a file of that machine is read there.
        if other.cores == 2 {
            let plan = Plan::from_text(EXAMPLE.as_bytes(), &model, &stamp).unwrap();
            let text = plan.to_text(&model, &other).unwrap();
            assert_eq!(Plan::from_text(text.as_bytes(), &model, &other), Ok(plan));
        }
    }
    for (here, sentence) in [
        (0, "version 1 of the kernels, which is newer than version 0"),
        (2, "version 1 of the kernels, which is older than version 2"),
    ] {
        let other = Stamp {
            kernels: here,
            ..stamp.clone()
        };
        let error = refusal(EXAMPLE, &model, &other);
        assert_eq!(error, PlanFileError::Kernels { planned: 1, here });
        assert!(error.to_string().contains(sentence), "{error}");
    }
}

/// The times are of what stood there before.
#[test]
fn a_plan_edited_by_hand_has_no_measured_times() {
    let (model, stamp) = (two_layers(), example_stamp());
    let (start, _) = EXAMPLE.rsplit_once("checksum").unwrap();
    let text = start.replace("chunk 25", "chunk 20") + "checksum none\n";
    let edited = Plan::from_text(text.as_bytes(), &model, &stamp).unwrap();
    let mut expected = Plan::from_text(EXAMPLE.as_bytes(), &model, &stamp).unwrap();
    assert!(expected.is_tuned());
    expected.entries[0].measured = None;
    expected.entries[0].configuration.layers[0].chunk_steps = 20;
    assert_eq!(edited, expected);
}

#[test]
fn what_would_be_refused_when_read_is_not_written() {
    let model = Lstm::new(4, 64).random(1).unwrap();
    let stamp = Stamp {
        cores: 2,
        ..six_cores()
    };
    let plan = Plan::with_threads(&model, 1, 1, 3);
    let threads = PlanFileError::Threads {
        planned: 3,
        most: 2,
    };
    assert_eq!(plan.to_text(&model, &stamp), Err(threads));
    let mut plan = Plan::with_threads(&model, 1, 1, 2);
    plan.entries[0].configuration.layers[0].chunk_steps = 0;
    let chunk = PlanError::EmptyChunk { layer: 0 };
    assert_eq!(
        plan.to_text(&model, &stamp),
        Err(PlanFileError::Contents(chunk))
    );
    plan.entries[0].configuration.layers[0].chunk_steps = u32::MAX as usize + 1;
    let refused = plan.to_text(&model, &stamp).unwrap_err();
    assert!(
        matches!(refused, PlanFileError::TooLarge { .. }),
        "{refused}"
    );
    let entry = Plan::with_threads(&model, 1, 1, 2).entries.remove(0);
    let many = (0..1025).map(|batch| gatestream::plan::Entry {
        batch,
        ..entry.clone()
    });
    let mut plan = Plan {
        entries: many.collect(),
    };
    let entries = PlanFileError::TooLarge {
        what: "entries",
        most: 1024,
    };
    assert_eq!(plan.to_text(&model, &stamp), Err(entries));
    plan.entries.truncate(1024);
    let text = plan.to_text(&model, &stamp).unwrap();
    assert_eq!(Plan::from_text(text.as_bytes(), &model, &stamp), Ok(plan));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_file_is_replaced_at_once_or_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.plan");
    let model = Lstm::new(4, 48).random(1).unwrap();
    let (first, second) = (
        Plan::with_threads(&model, 1, 9, 1),
        Plan::with_threads(&model, 2, 3, 1),
    );
    first.save(&path, &model).unwrap();
    assert_eq!(Plan::load(&path, &model), Ok(first));
    second.save(&path, &model).unwrap();
    assert_eq!(Plan::load(&path, &model), Ok(second.clone()));
    assert_eq!(names(folder.path()), ["a.plan"]);

    // A plan that is refused, and places where none can be.
    let other = Lstm::new(4, 64).random(1).unwrap();
    let refused = second.save(&path, &other).unwrap_err();
    assert!(matches!(refused, PlanFileError::Contents(_)), "{refused}");
    assert_eq!(Plan::load(&path, &model), Ok(second.clone()));
    let occupied = folder.path().join("folder");
    std::fs::create_dir_all(occupied.join("full")).unwrap();
    for place in [
        occupied.clone(),
        path.join("below a file"),
        folder.path().join("no/a.plan"),
    ] {
        let refused = second.save(&place, &model).unwrap_err();
        assert!(
            matches!(refused, PlanFileError::Io { doing: "write", .. }),
            "{refused}"
        );
        assert!(!refused.to_string().contains('\n'));
    }
    let mut left = names(folder.path());
    left.sort();
    assert_eq!(left, ["a.plan", "folder"]);
    assert_eq!(names(&occupied), ["full"]);
}

#[cfg(unix)]
#[test]
fn others_may_read_a_plan_as_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let model = Lstm::new(4, 16).random(1).unwrap();
    let path = folder.path().join("a.plan");
    Plan::estimate(&model, 1, 1, 1).save(&path, &model).unwrap();
    std::fs::write(folder.path().join("b"), "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&folder.path().join("b")));
}

#[test]
fn a_name_without_a_folder_is_in_the_current_one() {
    let name = format!("plan_file_test_{}.plan", std::process::id());
    let model = Lstm::new(4, 16).random(1).unwrap();
    let plan = Plan::estimate(&model, 1, 1, 1);
    let saved = plan.save(&name, &model);
    let loaded = Plan::load(&name, &model);
    std::fs::remove_file(&name).unwrap();
    assert_eq!((saved, loaded), (Ok(()), Ok(plan)));
}

#[test]
fn what_cannot_be_loaded_is_estimated_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let model = Lstm::new(4, 48).random(1).unwrap();
    let path = folder.path().join("a.plan");
    let sizes =
        |plan: &Plan| -> Vec<_> { plan.entries.iter().map(|e| (e.batch, e.steps)).collect() };

    let loaded = Plan::load_or_estimate(&path, &model).unwrap();
    let absent = loaded.fallback.clone().unwrap();
    let not_found = ErrorKind::NotFound;
    assert!(matches!(absent, PlanFileError::Io { doing: "read", kind, .. } if kind == not_found));
    loaded.check(&model).unwrap();
    let grid = [
        (1, 1),
        (1, 10),
        (1, 100),
        (4, 1),
        (4, 10),
        (4, 100),
        (16, 1),
        (16, 10),
        (16, 100),
    ];
    assert_eq!(sizes(&loaded), grid);

    let loaded = Plan::load_or_estimate(folder.path(), &model).unwrap();
    assert!(matches!(loaded.fallback, Some(PlanFileError::Io { .. })));
    for found in [1, 3] {
        std::fs::write(&path, format!("gatestream plan {found}\n")).unwrap();
        let loaded = Plan::load_or_estimate(&path, &model).unwrap();
        assert_eq!(loaded.fallback, Some(PlanFileError::Format { found }));
    }
    for former in ["cellstream plan 2\n", "cellstream network plan 1\n"] {
        std::fs::write(&path, former).unwrap();
        let loaded = Plan::load_or_estimate(&path, &model).unwrap();
        assert_eq!(loaded.fallback, Some(PlanFileError::FormerName));
    }
    std::fs::write(&path, "PK\u{3}\u{4}").unwrap();
    let loaded = Plan::load_or_estimate(&path, &model).unwrap();
    assert!(matches!(
        loaded.fallback,
        Some(PlanFileError::NotAPlan { .. })
    ));
    std::fs::write(&path, vec![b'#'; (16 << 20) + 1]).unwrap();
    let loaded = Plan::load_or_estimate(&path, &model).unwrap();
    assert!(matches!(
        loaded.fallback,
        Some(PlanFileError::TooLarge { .. })
    ));

    let threads = Stamp::detect().unwrap().most_threads().min(2);
    let plan = Plan::with_threads(&model, 2, 5, threads);
    plan.save(&path, &model).unwrap();
    let loaded = Plan::load_or_estimate(&path, &model).unwrap();
    assert_eq!((&loaded.plan, &loaded.fallback), (&plan, &None));

    // A session takes it as it is.
    let mut session = Session::new(&model, &loaded).unwrap();
    let batch = Batch::full(&mut Random::new(1), &model, 2, 5);
    let mut found = Results::dirty(&model, &batch);
    session.run(&batch.input(), &mut found.output()).unwrap();
    found.assert_same(&Results::reference(&model, &batch), "a loaded plan");
}
