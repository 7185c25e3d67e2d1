//! Plan files that are damaged, or made to damage: a typed error each time, or a plan that is legal
//! and gives the reference's bits.

use std::collections::HashSet;
use std::path::Path;

use crate::common::plan_files::random_plan;
use crate::common::{Batch, Options, Random, Results};
use gatestream::Session;
use gatestream::kernels::Isa;
use gatestream::model::{Cell, Gru, Layer, Lstm, Merge, Model, ResetForm, Rnn};
use gatestream::plan::{Plan, PlanFileError, Stamp};

/// A projection in two directions, and a cell of two phases above.
fn model() -> Model {
    let mut random = Random::new(1);
    let projection = Options {
        projection: true,
        ..Options::default()
    };
    let [forward, reverse] = [(); 2].map(|()| random.direction(Cell::LSTM, 3, 40, projection));
    let lower = Layer::bidirectional(forward, reverse, Merge::Concat).unwrap();
    let Cell::Gru {
        gate, candidate, ..
    } = Cell::GRU
    else {
        unreachable!()
    };
    let reset = ResetForm::Before;
    let gru = Cell::Gru {
        gate,
        candidate,
        reset,
    };
    let upper = random.direction(gru, lower.output_size(), 33, Options::default());
    Model::new(vec![lower, Layer::single(upper)]).unwrap()
}

/// This machine, with the six cores at least that random plans are for.
fn stamp() -> Stamp {
    let stamp = Stamp::detect().unwrap();
    Stamp {
        cores: stamp.cores.max(6),
        ..stamp
    }
}

/// Reads and judges hostile texts, and runs each plan that is new.
struct Judge {
    model: Model,
    stamp: Stamp,
    run: HashSet<String>,
    batch: Batch,
    expected: Results,
}

impl Judge {
    fn new() -> Judge {
        let model = model();
        let batch = Batch::ragged(&mut Random::new(3), &model, 2, 5);
        Judge {
            expected: Results::reference(&model, &batch),
            model,
            stamp: stamp(),
            run: HashSet::new(),
            batch,
        }
    }

    fn text(&self, seed: u64) -> String {
        let plan = random_plan(&mut Random::new(seed), &self.model);
        plan.to_text(&self.model, &self.stamp).unwrap()
    }

    /// Of a plan that is small enough to be run.
    fn small_text(&self) -> String {
        let is_small = |text: &String| {
            let plan = Plan::from_text(text.as_bytes(), &self.model, &self.stamp);
            plan.unwrap().threads() <= 3
        };
        let mut texts = (0..).map(|seed| self.text(seed));
        texts.find(is_small).unwrap()
    }

    fn read(&mut self, text: &[u8]) -> Result<Plan, PlanFileError> {
        let read = Plan::from_text(text, &self.model, &self.stamp);
        match &read {
            Ok(plan) => self.accept(plan),
            Err(error) => {
                let line = error.to_string();
                assert!(
                    !line.contains(['\n', '\r', '\u{1b}']) && line.len() < 2000,
                    "{line}"
                );
            }
        }
        read
    }

    fn accept(&mut self, plan: &Plan) {
        plan.check(&self.model).unwrap();
        let most = self.stamp.most_threads();
        let text = plan.to_text(&self.model, &self.stamp).unwrap();
        assert_eq!(
            Plan::from_text(text.as_bytes(), &self.model, &self.stamp).as_ref(),
            Ok(plan)
        );
        assert!(plan.threads() <= most);
        // What was measured changes no run.
        let runs = text
            .lines()
            .filter(|line| !line.contains("cost_ns") && !line.starts_with("checksum"));
        let small = plan.threads() <= 3 && plan.batch() <= 100 && plan.steps() <= 100;
        if small && self.run.len() < 400 && self.run.insert(runs.collect::<Vec<_>>().join("\n")) {
            let mut session = Session::new(&self.model, plan).unwrap();
            session.reserve(self.batch.batch, self.batch.steps).unwrap();
            let mut found = Results::dirty(&self.model, &self.batch);
            session
                .run(&self.batch.input(), &mut found.output())
                .unwrap();
            found.assert_same(&self.expected, &text);
        }
    }
}

/// The text with its sum waived, as for a file that is edited by hand.
fn waived(text: &str) -> String {
    let (start, _) = text.rsplit_once("checksum").unwrap();
    format!("{start}checksum none\n")
}

#[test]
fn cut_anywhere() {
    let mut judge = Judge::new();
    let text = judge.text(2);
    let whole = judge.read(text.as_bytes()).unwrap();
    for end in 0..text.len() {
        let cut = judge.read(&text.as_bytes()[..end]);
        // Only the last line's end may be missing.
        if end == text.len() - 1 {
            assert_eq!(cut, Ok(whole.clone()))
        } else {
            assert!(cut.is_err(), "{}", &text[..end])
        }
    }
}

#[test]
fn every_bit_flipped() {
    let mut judge = Judge::new();
    let text = judge.small_text();
    let whole = judge.read(text.as_bytes()).unwrap();
    let mut wrong_sums = 0;
    for (text, summed) in [(text.clone(), true), (waived(&text), false)] {
        let mut bytes = text.into_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                match judge.read(&bytes) {
                    // Spaces that mean nothing, or letters of the sum itself in upper case.
                    Ok(plan) if summed => assert_eq!(plan, whole),
                    Err(PlanFileError::Checksum { .. }) => wrong_sums += 1,
                    _ => {}
                }
                bytes[at] ^= 1 << bit;
            }
        }
    }
    assert!(wrong_sums > 100, "{wrong_sums}");
    assert!(judge.run.len() > 5, "{}", judge.run.len());
}

#[test]
fn lines_swapped_dropped_and_doubled() {
    let mut judge = Judge::new();
    for seed in 0..6 {
        let text = waived(&judge.text(seed));
        let lines: Vec<&str> = text.lines().collect();
        for a in 0..lines.len() {
            let mut dropped = lines.clone();
            dropped.remove(a);
            let mut doubled = lines.clone();
            doubled.insert(a, lines[a]);
            for changed in [dropped, doubled] {
                let _ = judge.read(changed.join("\n").as_bytes());
            }
            for b in 0..a {
                let mut swapped = lines.clone();
                swapped.swap(a, b);
                let _ = judge.read(swapped.join("\n").as_bytes());
            }
        }
    }
}

#[test]
fn every_number_replaced() {
    const NUMBERS: [&str; 14] = [
        "",
        "0",
        "1",
        "2",
        "16",
        "17",
        "4096",
        "4097",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "+1",
    ];
    let mut judge = Judge::new();
    let mut accepted = 0;
    for seed in 0..4 {
        let text = waived(&judge.text(seed));
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let digits = bytes[at..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count();
            if digits > 0 {
                for number in NUMBERS {
                    let changed = [&text[..at], number, &text[at + digits..]].concat();
                    accepted += usize::from(judge.read(changed.as_bytes()).is_ok());
                }
            }
            at += digits.max(1);
        }
    }
    assert!(accepted > 10, "{accepted}");
}

#[test]
fn words_replaced_at_random() {
    let mut judge = Judge::new();
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let text = waived(&judge.text(seed % 40));
        let mut words: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
        let other = waived(&judge.text(1000 + seed % 40));
        let others: Vec<&str> = other.split_inclusive([' ', '\n']).collect();
        for _ in 0..random.0.usize(1..4) {
            let at = random.0.usize(..words.len());
            words[at] = others[random.0.usize(..others.len())];
        }
        let _ = judge.read(words.concat().as_bytes());
    }
}

#[test]
fn random_plans_are_run() {
    let mut judge = Judge::new();
    for seed in 0..120 {
        let text = judge.text(seed);
        judge.read(text.as_bytes()).unwrap();
    }
    assert!(judge.run.len() > 30, "{}", judge.run.len());
}

#[test]
fn what_is_wrong_is_named() {
    let mut judge = Judge::new();
    let text = waived(&judge.text(2));
    let line_of = |start: &str| {
        let line = text.lines().position(|l| l.trim_start().starts_with(start));
        1 + line.unwrap()
    };
    let direction = text.lines().nth(line_of("direction") - 1).unwrap();
    let cases = [
        (
            "  threads",
            "  threats",
            line_of("threads"),
            "`threads N row_groups N`",
        ),
        (
            "precision f32\n",
            "",
            line_of("precision"),
            "`precision NAME`",
        ),
        (
            "checksum none",
            "checksum maybe",
            line_of("checksum"),
            "or `none`",
        ),
        (
            "checksum none",
            "checksum none\nbatch",
            line_of("checksum") + 1,
            "nothing after",
        ),
        ("smt ", "smt\u{7f}", line_of("smt"), "smt"),
        (direction, "", line_of("direction") + 1, ""),
        (
            "batch ",
            "batch 4294967296",
            line_of("batch"),
            "N up to 4294967295",
        ),
    ];
    for (old, new, at, wanted) in cases {
        let changed = text.replacen(old, new, 1);
        match judge.read(changed.as_bytes()).unwrap_err() {
            PlanFileError::Corrupt { line, expected, .. } => {
                assert!(expected.contains(wanted), "{expected}");
                assert!(line == at || wanted.is_empty(), "{line} {at} {expected}");
            }
            PlanFileError::Contents(_) if wanted.is_empty() => {}
            error => panic!("{old:?} {new:?}: {error}"),
        }
    }
    // An entry that is there already, or belongs before another.
    let several = (0..).map(|seed| waived(&judge.text(seed)));
    let several = { several }
        .find(|text| text.matches("batch ").count() > 1)
        .unwrap();
    let (start, entries) = several.split_once("batch ").unwrap();
    let (first, rest) = entries.split_once("\n\n").unwrap();
    for changed in [
        format!("{start}batch {first}\n\nbatch {first}\n\n{rest}"),
        format!("{start}batch 4294967295{first}\n\n{rest}"),
        format!(
            "{start}batch 4294967295 {}\n\n{rest}",
            first.split_once(' ').unwrap().1
        ),
    ] {
        let refused = judge.read(changed.as_bytes()).unwrap_err();
        assert!(
            matches!(refused, PlanFileError::Corrupt { .. }),
            "{refused}"
        );
    }
    // A file that ends too early, by its last line; what stands there is not made up.
    let (start, _) = text.rsplit_once("checksum").unwrap();
    let refused = judge.read(start.as_bytes()).unwrap_err();
    let cut = PlanFileError::Cut {
        line: line_of("checksum") - 2,
        expected: "`batch N steps N` or `checksum SUM`",
    };
    assert_eq!(refused, cut);
    let said = refused.to_string();
    assert!(
        said.contains("ends after line") && !said.contains('"'),
        "{said}"
    );
    // Bytes that are no text, by the line they are in.
    let mut bytes = text.clone().into_bytes();
    let at = text.find("  threads").unwrap();
    bytes[at] = 0xff;
    match judge.read(&bytes).unwrap_err() {
        PlanFileError::Corrupt { line, expected, .. } => {
            assert_eq!((line, expected), (line_of("threads"), "text in UTF-8"));
        }
        error => panic!("{error}"),
    }
    let later = text.replacen("plan 2", "plan 23", 1);
    assert_eq!(
        judge.read(later.as_bytes()),
        Err(PlanFileError::Format { found: 23 })
    );
    for nothing in ["", "\n", " \r\n\t"] {
        assert_eq!(judge.read(nothing.as_bytes()), Err(PlanFileError::Empty));
    }
    for (above, line) in [("# mine\n", 2), ("\n\n", 3), ("\r\n# a\r\n", 3)] {
        let refused = judge.read((above.to_string() + &text).as_bytes());
        assert_eq!(refused, Err(PlanFileError::Heading { line }));
    }
    for marked in ["\u{feff}", "\u{feff}\r\n", "\u{feff}# mine\n"] {
        let refused = judge.read((marked.to_string() + &text).as_bytes());
        assert_eq!(refused, Err(PlanFileError::ByteOrderMark), "{marked:?}");
    }
    match judge.read(format!(" {text}").as_bytes()).unwrap_err() {
        PlanFileError::Corrupt { line, expected, .. } => {
            assert!(line == 1 && expected.contains("no space"), "{expected}");
        }
        error => panic!("{error}"),
    }
    for other in [
        "gatestream",
        "gatestream plan",
        "{\"plan\": 1}",
        // Another kind of file, with or without a mark.
        "\u{feff}{\"plan\": 1}",
        "\u{1b}[2J",
    ] {
        let refused = judge.read(other.as_bytes());
        assert!(
            matches!(refused, Err(PlanFileError::NotAPlan { .. })),
            "{other} {refused:?}"
        );
    }
}

#[test]
fn comments_spaces_and_line_ends_mean_nothing() {
    let mut judge = Judge::new();
    let text = judge.text(2);
    let plan = judge.read(text.as_bytes()).unwrap();
    let spaced: String = text.lines().map(|l| format!("{l}\n\t# {l}\n\n")).collect();
    assert_eq!(judge.read(spaced.as_bytes()), Ok(plan.clone()));
    let windows = text.replace('\n', "\r\n");
    assert_eq!(judge.read(windows.as_bytes()), Ok(plan.clone()));
    let flat: String = text
        .lines()
        .map(|l| format!("{}\n", l.trim_start()))
        .collect();
    assert_eq!(judge.read(flat.as_bytes()), Ok(plan));
}

#[test]
fn numbers_and_repetition_cost_no_more_than_the_file() {
    let mut judge = Judge::new();
    let text = waived(&judge.text(2));
    let (start, _) = text.split_once("batch").unwrap();
    // Each is refused where it starts to be too much, or for what follows.
    let endless = [
        text.replacen("layers 2", "layers 18446744073709551615", 1),
        start.to_string() + &"# nothing\n".repeat(1 << 20),
        start.to_string() + &"layer 0: x\n".repeat(1 << 20),
        start.to_string() + "batch 1 steps 1\nthreads 1 row_groups 1\n" + &layers(1 << 16),
        start.to_string() + &many_entries(1 << 17) + "checksum none",
        start.to_string()
            + &format!(
                "batch 1 steps 1\nthreads {0} row_groups 1\n{1}",
                1 << 20,
                direction(1 << 20)
            ),
        "gatestream plan 2\n".to_string() + &"\\".repeat(1 << 20),
    ];
    for text in endless {
        judge.read(text.as_bytes()).unwrap_err();
    }
}

fn layers(count: usize) -> String {
    let layer = |index| format!("layer {index} chunk 1 ahead owners order cyclic\n");
    (0..count).map(layer).collect()
}

fn many_entries(count: usize) -> String {
    let entry = |batch| format!("batch {batch} steps 1\nthreads 1 row_groups 1\n");
    (0..count).map(entry).collect()
}

fn direction(ranges: usize) -> String {
    let layer = layers(1);
    layer + "direction 0 aaaa/1111 units" + &" 0..0".repeat(ranges) + "\nchecksum none"
}

/// Seeds that are refused at once would teach the fuzzer little.
#[test]
fn the_fuzzers_seeds_are_plans() {
    let stamp = Stamp {
        kernels: 1,
        cpu: "any".into(),
        isa: Isa::Portable,
        cores: 4,
        smt: 1,
        numa_nodes: 1,
        private_caches: vec![1 << 20],
        shared_cache: 0,
    };
    let lstm = Lstm::new(2, 40).projection(17).bidirectional(Merge::Sum);
    let gru = Gru::new(2, 33).reset(ResetForm::Before).layers(2);
    let rnn = Rnn::new(2, 48).random(1).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/plan");
    let seed = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    for (name, model) in [
        ("lstm", lstm.random(1).unwrap()),
        ("gru", gru.random(1).unwrap()),
        ("rnn", rnn.clone()),
    ] {
        let text = Plan::with_threads(&model, 1, 1, 1)
            .to_text(&model, &stamp)
            .unwrap();
        let (heading, _) = text.split_once("batch").unwrap();
        let whole = format!("{heading}{}\nchecksum none", seed(name));
        Plan::from_text(whole.as_bytes(), &model, &stamp).unwrap();
    }
    for name in ["whole", "edited"] {
        Plan::from_text(seed(name).as_bytes(), &rnn, &stamp).unwrap();
    }
}
