//! The main example's model: the phonemes that PyTorch's greedy decoding gives, word by word.

#[allow(dead_code)] // the example also asks what it runs on
#[path = "../examples/g2p/mod.rs"]
mod g2p;

use g2p::textbook::Textbook;
use g2p::{G2p, WordError};

/// Words with PyTorch's predictions. Chosen so that no near tie decides any of them.
const SAMPLE: &str = include_str!("../examples/models/held_out_sample.tsv");

fn bytes() -> Vec<u8> {
    std::fs::read(g2p::PATH).unwrap()
}

fn sample() -> Vec<(&'static str, &'static str)> {
    let mut lines = SAMPLE.lines();
    assert_eq!(lines.next(), Some("word\treferences\tprediction"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split('\t').collect();
            (cells[0], cells[2])
        })
        .collect()
}

#[test]
fn every_sampled_word_is_pronounced_as_pytorch_does() {
    let mut model = G2p::load(&bytes()).unwrap();
    let sample = sample();
    assert_eq!(sample.len(), 200);
    let mut wrong = Vec::new();
    for (word, prediction) in sample {
        let letters = model.vocabulary().letters(word).unwrap();
        let phonemes = model.phonemes(&letters).unwrap().to_vec();
        let spelled = model.vocabulary().spell(&phonemes);
        if spelled != prediction {
            wrong.push(format!("{word}: {spelled}, PyTorch {prediction}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn textbook_loops_give_the_same_phonemes() {
    let bytes = bytes();
    let model = G2p::load(&bytes).unwrap();
    let textbook = Textbook::load(&bytes).unwrap();
    for (word, prediction) in sample().into_iter().step_by(20) {
        let letters = model.vocabulary().letters(word).unwrap();
        let phonemes = textbook.phonemes(&letters);
        assert_eq!(model.vocabulary().spell(&phonemes), prediction, "{word}");
    }
}

#[test]
fn a_word_longer_than_usual_gets_room() {
    let bytes = bytes();
    let mut model = G2p::load(&bytes).unwrap();
    let word = "donaudampfschifffahrtsgesellschaftskapitaen";
    let letters = model.vocabulary().letters(word).unwrap();
    let textbook = Textbook::load(&bytes).unwrap().phonemes(&letters);
    assert_eq!(model.phonemes(&letters).unwrap(), textbook);
}

#[test]
fn letters_are_those_of_the_vocabulary_in_either_case() {
    let model = G2p::load(&bytes()).unwrap();
    let letters = |word| model.vocabulary().letters(word);
    assert_eq!(
        letters("O'Hara-B.").unwrap(),
        [17, 0, 10, 3, 20, 3, 1, 4, 2]
    );
    assert_eq!(letters(""), Err(WordError::Empty));
    let error = letters("café").unwrap_err();
    assert!(matches!(error, WordError::Letter { letter: 'é', .. }));
    let message = error.to_string();
    assert!(message.contains("café") && message.contains("'é'") && !message.contains('\n'));
    assert!(message.contains("' - . a b c"), "what is known: {message}");
}

#[test]
fn another_file_is_refused() {
    assert!(G2p::load(b"no such file").is_err());
    assert!(Textbook::load(b"no such file").is_err());
}
