//! The applications of `examples/applications` against PyTorch's answers, with the small sizes of
//! `tuning/applications/modules.py --small`.

#[allow(dead_code)] // the example also prints times
#[path = "../examples/applications/mod.rs"]
mod applications;

use applications::{AttentionSumReader, Bidaf, Case, File, Planning, TextSimilarity};

/// What two float32 runs of the same formulas may differ by.
const TOLERANCE: f32 = 1e-6;

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("fixtures/applications/", $name, ".safetensors"))
    };
}

fn on_cores(cores: usize) -> Planning {
    Planning {
        cores,
        budget: None,
    }
}

#[test]
fn answers_are_pytorchs_on_any_number_of_threads() {
    let fixtures: [&[u8]; 3] = [
        fixture!("text_similarity"),
        fixture!("attention_sum_reader"),
        fixture!("bidaf"),
    ];
    for bytes in fixtures {
        let file = File::read(bytes).unwrap();
        let mut of_one_thread: Vec<u32> = Vec::new();
        for cores in [1, 2] {
            let mut case = Case::open(&file, on_cores(cores)).unwrap();
            for _ in 0..2 {
                case.run().unwrap();
            }
            let mut bits = Vec::new();
            for (name, answer) in case.answers() {
                let expected = file.answer(name).unwrap();
                assert_eq!(answer.len(), expected.len(), "{name}");
                let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!(largest > 0.01, "{name}: nothing to compare with");
                for (ours, theirs) in answer.iter().zip(&expected) {
                    assert!(
                        (ours - theirs).abs() < TOLERANCE,
                        "{name}: {ours}, {theirs}"
                    );
                }
                bits.extend(answer.iter().map(|value| value.to_bits()));
            }
            if of_one_thread.is_empty() {
                of_one_thread = bits
            } else {
                assert_eq!(bits, of_one_thread)
            }
        }
    }
}

/// A text is answered as alone, whatever the lengths of the others.
#[test]
fn documents_of_different_lengths_are_ranked_as_alone() {
    let file = File::read(fixture!("text_similarity")).unwrap();
    let mut model = TextSimilarity::load(&file, (4, 5), on_cores(2)).unwrap();
    let documents: [&[usize]; 3] = [&[3, 1, 4, 1, 5, 9, 2], &[6], &[5, 3, 5]];
    let together = model.rank(&[2, 7], &documents).unwrap().to_vec();
    for (document, similarity) in documents.iter().zip(together) {
        let alone = model.rank(&[2, 7], &[document]).unwrap();
        assert_eq!(alone, [similarity]);
    }
}

#[test]
fn contexts_of_different_lengths_are_read_as_alone() {
    let file = File::read(fixture!("attention_sum_reader")).unwrap();
    let mut model = AttentionSumReader::load(&file, 4, (2, 11), on_cores(2)).unwrap();
    let contexts: [&[usize]; 2] = [&[3, 1, 4, 1, 5], &[6, 3]];
    let together = model.choose(&[2, 7], &contexts, &[1, 4, 6, 0]).unwrap();
    // Symbol 0 also stands for padding, which is no token of a context.
    assert_eq!(together[3], 0.0);
    let together = together.to_vec();
    let first = model.choose(&[2, 7], &contexts[..1], &[1, 4]).unwrap();
    assert_eq!(first, &together[..2]);
    let second = model.choose(&[2, 7], &contexts[1..], &[6, 0]).unwrap();
    assert_eq!(second, &together[2..]);
}

/// The question may be longer than the context.
#[test]
fn probabilities_are_those_of_the_context_alone() {
    let file = File::read(fixture!("bidaf")).unwrap();
    let mut model = Bidaf::load(&file, 4, 9, on_cores(2)).unwrap();
    model.find(&[1, 2, 3, 4, 5, 6], &[7, 8, 9]).unwrap();
    for probabilities in [model.start(), model.end()] {
        assert_eq!(probabilities.len(), 3);
        assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < TOLERANCE);
    }
}
