//! Pronounces English words with a trained model, and times it beside textbook loops.
//!
//!     cargo run --release --example pronounce -- hippopotamus streamlining
//!
//! With `--beam N` it prints the N best pronunciations that a beam search finds, and times it
//! beside greedy decoding:
//!
//!     cargo run --release --example pronounce -- --beam 5 hippopotamus

mod g2p;

use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use g2p::textbook::Textbook;
use g2p::{BeamSize, G2p};

/// Runs that are timed, of this library and of the textbook loops, and runs before them.
const RUNS: usize = 51;
const TEXTBOOK_RUNS: usize = 15;
const WARM: usize = 3;

fn main() -> ExitCode {
    let mut words: Vec<String> = (std::env::args_os().skip(1))
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut beam = None;
    if words.first().is_some_and(|word| word == "--beam") {
        beam = words.get(1).and_then(|width| width.parse().ok());
        // Without a width the option stays, and is refused.
        words.drain(..if beam.is_some() { 2 } else { 0 });
    }
    // A word may begin with anything but a hyphen: that is an option.
    let is_usage = words.iter().any(|word| word.starts_with('-')) || beam == Some(0);
    if words.is_empty() || is_usage {
        eprintln!("usage: cargo run --release --example pronounce -- [--beam WIDTH] WORD...");
        return ExitCode::from(2);
    }
    let pronounced = match beam {
        None => pronounce(&words),
        Some(width) => pronounce_with_beam(&words, width),
    };
    match pronounced {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all words could be read.
fn pronounce(words: &[String]) -> Result<bool, Box<dyn Error>> {
    let bytes = std::fs::read(g2p::PATH).map_err(|e| format!("{}: {e}", g2p::PATH))?;
    let mut model = G2p::load(&bytes)?;
    let textbook = Textbook::load(&bytes)?;

    let mut answers = Vec::new();
    for word in words {
        match model.vocabulary().letters(word) {
            Ok(letters) => {
                let phonemes = model.phonemes(&letters)?.to_vec();
                answers.push((word, model.vocabulary().spell(&phonemes), letters, phonemes));
            }
            Err(error) => eprintln!("error: {error}"),
        }
    }
    let all_read = answers.len() == words.len();
    if answers.is_empty() {
        return Ok(all_read);
    }

    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).max(8);
    let w = widest(&mut answers.iter().map(|(word, ..)| word.chars().count()));
    let p = widest(&mut answers.iter().map(|(_, spelled, ..)| spelled.len()));
    println!(
        "{:w$}  {:p$}  gatestream    textbook   factor",
        "word", "phonemes"
    );
    let mut differing = Vec::new();
    for (word, spelled, letters, phonemes) in &answers {
        let other = textbook.phonemes(letters);
        if other != *phonemes {
            differing.push(format!("{word}: {}", model.vocabulary().spell(&other)));
        }
        let slow = median_ms(TEXTBOOK_RUNS, || {
            drop(black_box(textbook.phonemes(letters)))
        });
        let mut failed = None;
        let fast = median_ms(RUNS, || match model.phonemes(letters) {
            Ok(phonemes) => drop(black_box(phonemes.len())),
            Err(error) => failed = Some(error),
        });
        if let Some(error) = failed {
            return Err(error);
        }
        println!(
            "{word:w$}  {spelled:p$}  {fast:7.3} ms  {slow:7.2} ms  {:6.1}x",
            slow / fast
        );
    }

    let (threads, isa) = model.runs_on();
    println!("\ngatestream: time per word on {threads} thread(s) with {isa}.");
    println!("textbook: the same weights in nested f32 loops with exp and tanh, on 1 thread.");
    println!("Medians of {RUNS} and {TEXTBOOK_RUNS} runs, each after {WARM} to warm up; in f32.");
    match &differing[..] {
        [] => println!("Both gave the same phonemes for every word."),
        differing => println!("The textbook loops differ in: {}", differing.join("; ")),
    }
    Ok(all_read)
}

/// Whether all words could be read.
fn pronounce_with_beam(words: &[String], width: usize) -> Result<bool, Box<dyn Error>> {
    let bytes = std::fs::read(g2p::PATH).map_err(|e| format!("{}: {e}", g2p::PATH))?;
    let mut greedy = G2p::load(&bytes)?;
    let beam = BeamSize {
        width,
        length_penalty: 0.0,
    };
    let mut model = G2p::load_with_beam(beam, &bytes)?;
    let mut all_read = true;
    for word in words {
        let letters = match model.vocabulary().letters(word) {
            Ok(letters) => letters,
            Err(error) => {
                eprintln!("error: {error}");
                all_read = false;
                continue;
            }
        };
        println!("{word}");
        for found in model.all(&letters)? {
            let (probability, phonemes) = (f64::from(found.score).exp(), &found.phonemes);
            let spelled = model.vocabulary().spell(phonemes);
            println!("  {:5.1} %  {spelled}", 100.0 * probability);
        }
        let mut failed = None;
        let [one, several] = [&mut greedy, &mut model].map(|model| {
            median_ms(RUNS, || match model.phonemes(&letters) {
                Ok(phonemes) => drop(black_box(phonemes.len())),
                Err(error) => failed = Some(error),
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        println!("  {several:.3} ms with {width} hypotheses, {one:.3} ms greedy");
    }
    Ok(all_read)
}

fn median_ms(runs: usize, mut run: impl FnMut()) -> f64 {
    for _ in 0..WARM {
        run();
    }
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[runs / 2]
}
