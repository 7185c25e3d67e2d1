//! The phoneme error rate of the example's model in each precision, and with beam search, as a CSV
//! table on standard output.
//!
//!     cargo run --release --example g2p_error_rate -- HELD_OUT.tsv
//!
//! The table of words has a header line, then words and references, separated by a tab; references,
//! as phonemes separated by spaces, are separated by `|`. `held_out.py` beside this file writes it.
//! The definitions of the rates are those of `examples/models/README.md`.

#[allow(dead_code)] // the example also asks what it runs on
#[path = "../../examples/g2p/mod.rs"]
mod g2p;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use g2p::{BeamSize, G2p};
use gatestream::model::Precision;

/// The beam searches beside greedy decoding, which is that of width 1.
const BEAMS: [BeamSize; 5] = {
    const fn beam(width: usize, length_penalty: f32) -> BeamSize {
        BeamSize {
            width,
            length_penalty,
        }
    }
    [
        beam(1, 0.0),
        beam(2, 0.0),
        beam(5, 0.0),
        beam(5, 1.0),
        beam(10, 0.0),
    ]
};

/// A word and its pronunciations, as names of phonemes.
struct Word<'t> {
    spelling: &'t str,
    references: Vec<Vec<&'t str>>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: cargo run --release --example g2p_error_rate -- HELD_OUT.tsv");
        return ExitCode::from(2);
    };
    match rates(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn rates(path: &Path) -> Result<(), Box<dyn Error>> {
    let table = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let words = parse(&table)?;
    let bytes = std::fs::read(g2p::PATH).map_err(|e| format!("{}: {e}", g2p::PATH))?;
    println!("precision,words,phonemes,edits,wrong_words,words_unlike_f32,edits_from_f32");
    let mut exact: Vec<String> = Vec::new();
    let precisions = Precision::ALL.map(|p| (p.to_string(), G2p::load_in(p, &bytes)));
    let beams = BEAMS.map(|beam| {
        let BeamSize {
            width,
            length_penalty,
        } = beam;
        let name = match length_penalty {
            0.0 => format!("f32, beam {width}"),
            alpha => format!("f32, beam {width}, length penalty {alpha}"),
        };
        (name, G2p::load_with_beam(beam, &bytes))
    });
    for (index, (name, model)) in precisions.into_iter().chain(beams).enumerate() {
        let answers = pronounce(model?, &words)?;
        if index == 0 {
            exact.clone_from(&answers);
        }
        let (mut edits, mut length, mut wrong) = (0, 0, 0);
        for (word, answer) in words.iter().zip(&answers) {
            let answer: Vec<&str> = answer.split_whitespace().collect();
            let against = |r: &Vec<&str>| (edit_distance(&answer, r), r.len());
            let nearest = word.references.iter().map(against).min();
            let (distance, of) =
                nearest.ok_or_else(|| format!("{}: no reference", word.spelling))?;
            edits += distance;
            length += of;
            wrong += usize::from(distance > 0);
        }
        let apart: Vec<usize> = (answers.iter().zip(&exact))
            .map(|(a, b)| {
                let [a, b]: [Vec<&str>; 2] = [a, b].map(|s| s.split_whitespace().collect());
                edit_distance(&a, &b)
            })
            .collect();
        let unlike = apart.iter().filter(|&&d| d > 0).count();
        let words = words.len();
        let apart: usize = apart.iter().sum();
        println!("\"{name}\",{words},{length},{edits},{wrong},{unlike},{apart}");
    }
    Ok(())
}

fn parse(table: &str) -> Result<Vec<Word<'_>>, String> {
    let lines = table.lines().skip(1).map(|line| {
        let (spelling, references) = (line.split_once('\t'))
            .ok_or_else(|| format!("{line:?}: expected a word, a tab, and its references"))?;
        let references = references.split('|');
        let references = references.map(|r| r.split(' ').collect()).collect();
        Ok(Word {
            spelling,
            references,
        })
    });
    lines.collect()
}

/// Each word by itself. (A batch would change no answer, so none is needed.)
fn pronounce(mut model: G2p, words: &[Word<'_>]) -> Result<Vec<String>, Box<dyn Error>> {
    let mut answers = Vec::with_capacity(words.len());
    for word in words {
        let letters = model.vocabulary().letters(word.spelling)?;
        let phonemes = model.phonemes(&letters)?.to_vec();
        answers.push(model.vocabulary().spell(&phonemes));
    }
    Ok(answers)
}

/// Levenshtein's: insertions, deletions and substitutions that make `b` of `a`.
fn edit_distance(a: &[&str], b: &[&str]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
