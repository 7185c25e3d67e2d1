//! Any bytes as a plan file, whole and as the entries of one whose heading is right. Nothing may
//! panic, and what is accepted fits the model, comes back as it was, and gives the reference's
//! bits.
#![no_main]

use std::sync::LazyLock;

use gatestream::kernels::Isa;
use gatestream::model::{Gru, Lstm, Merge, ResetForm, Rnn};
use gatestream::plan::{Plan, Stamp};
use gatestream::{Input, Model, Output, Session, reference};
use libfuzzer_sys::fuzz_target;

/// A model with its plan file's heading.
struct Case {
    model: Model,
    heading: String,
}

/// The machine of the committed files.
static STAMP: LazyLock<Stamp> = LazyLock::new(|| Stamp {
    kernels: 1,
    cpu: "any".into(),
    isa: Isa::Portable,
    cores: 4,
    smt: 1,
    numa_nodes: 1,
    private_caches: vec![1 << 20],
    shared_cache: 0,
});

static CASES: LazyLock<[Case; 3]> = LazyLock::new(|| {
    let lstm = Lstm::new(2, 40).projection(17);
    let models = [
        lstm.bidirectional(Merge::Sum).random(1),
        Gru::new(2, 33).reset(ResetForm::Before).layers(2).random(1),
        Rnn::new(2, 48).random(1),
    ];
    models.map(|model| {
        let model = model.expect("a model");
        let plan = Plan::with_threads(&model, 1, 1, 1);
        let text = plan.to_text(&model, &STAMP).expect("a plan file");
        let (heading, _) = text.split_once("batch").expect("an entry");
        Case {
            heading: heading.to_string(),
            model,
        }
    })
});

fuzz_target!(|bytes: &[u8]| {
    for case in CASES.iter() {
        read(case, bytes);
        let whole = [case.heading.as_bytes(), bytes, b"\nchecksum none"].concat();
        read(case, &whole);
    }
});

fn read(case: &Case, text: &[u8]) {
    match Plan::from_text(text, &case.model, &STAMP) {
        Ok(plan) => {
            plan.check(&case.model).expect("a legal plan");
            assert!(plan.threads() <= 4);
            let written = plan.to_text(&case.model, &STAMP).expect("can be written");
            let again = Plan::from_text(written.as_bytes(), &case.model, &STAMP);
            assert_eq!(again.as_ref(), Ok(&plan));
            // Threads take their time: one in eight of the small ones.
            let small = plan.batch() <= 64 && plan.steps() <= 64 && plan.entries.len() <= 4;
            if small && text.len().is_multiple_of(8) {
                run(&case.model, &plan);
            }
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains(['\n', '\r', '\u{1b}']) && line.len() < 2000);
        }
    }
}

fn run(model: &Model, plan: &Plan) {
    const BATCH: usize = 3;
    const STEPS: usize = 4;
    let mut session = Session::new(model, plan).expect("a session");
    session.reserve(BATCH, STEPS).expect("room");
    let values: Vec<f32> = (0..BATCH * STEPS * 2)
        .map(|i| i as f32 / 10.0 - 1.0)
        .collect();
    let input = Input::new(&values, STEPS, BATCH);
    let mut expected = vec![0.0; BATCH * STEPS * model.signature().output];
    let mut found = expected.clone();
    reference::run(model, &input, &mut Output::new(&mut expected)).expect("the reference's");
    session
        .run(&input, &mut Output::new(&mut found))
        .expect("a run");
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found), bits(&expected));
}
