//! Beam search against plain loops that keep every hypothesis as a list of symbols, against a
//! search of all answers, and against greedy decoding.

use super::*;
use crate::layers::{Greedy, GreedyOptions, LayerError};
use crate::model::{Gru, Lstm, Matrix, Model};
use crate::plan::Plan;
use crate::reference;
use gatestream_kernels::Isa;

const FEATURES: usize = 5;
const HIDDEN: usize = 12;
const BOS: usize = 0;
const EOS: usize = 1;

struct Parts {
    model: Model,
    table: Matrix,
    weights: Matrix,
    bias: Vec<f32>,
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * rng.f32() - 2.0).collect()
}

impl Parts {
    fn random(symbols: usize, seed: u64) -> Parts {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut matrix = |rows: usize, cols: usize| {
            Matrix::new(rows, cols, random(&mut rng, rows * cols)).unwrap()
        };
        Parts {
            model: match seed % 2 {
                0 => Gru::new(FEATURES, HIDDEN).random(seed).unwrap(),
                _ => Lstm::new(FEATURES, HIDDEN).layers(2).random(seed).unwrap(),
            },
            table: matrix(symbols, FEATURES),
            weights: matrix(symbols, HIDDEN),
            bias: matrix(1, symbols).data().to_vec(),
        }
    }

    fn session(&self, threads: usize) -> Session {
        Session::new(&self.model, &Plan::with_threads(&self.model, 1, 1, threads)).unwrap()
    }

    fn beam(&self, options: BeamOptions, threads: usize) -> Result<Beam, LayerError> {
        let dense = Dense::new(&self.weights, &self.bias)?;
        let embedding = Embedding::new(self.table.clone());
        Beam::new(self.session(threads), embedding, dense, options)
    }

    fn initial(&self, seed: u64) -> State {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut initial = State::zero(self.model.signature(), 1);
        initial.h = random(&mut rng, initial.h.len());
        initial.c = random(&mut rng, initial.c.len());
        initial
    }

    /// Logarithms of the probabilities of all symbols after some, by plain loops from the start.
    fn plain_step(&self, initial: &State, symbols: &[usize]) -> Vec<(f32, f32)> {
        let layers = self.model.layers();
        let mut states: Vec<_> = (0..layers.len())
            .map(|layer| {
                let at = layer * HIDDEN..(layer + 1) * HIDDEN;
                reference::DirectionState {
                    h: initial.h[at.clone()].to_vec(),
                    c: initial.c.get(at).unwrap_or_default().to_vec(),
                }
            })
            .collect();
        let mut x = Vec::new();
        for &symbol in [BOS].iter().chain(symbols) {
            x = self.table.row(symbol).to_vec();
            for (layer, state) in layers.iter().zip(&mut states) {
                reference::step_cell(&layer.directions()[0], &x, state);
                x = state.h.clone();
            }
        }
        let logits = reference::dense(&self.weights, &self.bias, &x);
        let (greatest, sum) = reference::exp_sum(&logits);
        let logarithm = f64::from(sum).ln() as f32;
        let probability = |logit: &f32| (*logit, (logit - greatest) - logarithm);
        logits.iter().map(probability).collect()
    }

    /// Beam search with lists of symbols.
    fn plain(&self, initial: &State, options: BeamOptions) -> Vec<(Vec<usize>, f32, bool)> {
        let penalty = |steps: usize| {
            let length = (5.0 + steps as f64) / 6.0;
            length.powf(f64::from(options.length_penalty))
        };
        let penalised = |score: f32, steps| (f64::from(score) / penalty(steps)) as f32;
        let mut live: Vec<(Vec<usize>, f32)> = vec![(vec![], 0.0)];
        let mut ended: Vec<(Vec<usize>, f32, bool)> = Vec::new();
        let mut steps = 0;
        while steps < options.limit && ended.len() < options.width {
            steps += 1;
            let mut all = Vec::new();
            for (rank, (symbols, score)) in live.iter().enumerate() {
                let next = self.plain_step(initial, symbols);
                for (symbol, (logit, probability)) in next.into_iter().enumerate() {
                    all.push((score + probability, rank, logit, symbol));
                }
            }
            all.sort_by(|a, b| b.2.total_cmp(&a.2)); // stable: the lower symbol first
            all.sort_by_key(|candidate| candidate.1);
            all.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut next = Vec::new();
            for (place, (score, rank, _, symbol)) in all.into_iter().enumerate() {
                let symbols = &live[rank].0;
                if symbol == EOS {
                    if place < options.width {
                        ended.push((symbols.clone(), penalised(score, steps), true));
                    }
                } else if next.len() < options.width && place < 2 * options.width {
                    next.push(([&symbols[..], &[symbol]].concat(), score));
                }
            }
            live = next;
        }
        ended.sort_by(|a, b| b.1.total_cmp(&a.1));
        if ended.len() < options.width {
            let cut = |(symbols, score): (Vec<usize>, f32)| {
                let score = penalised(score, steps);
                (symbols, score, false)
            };
            let mut cut: Vec<_> = live.into_iter().map(cut).collect();
            cut.sort_by(|a, b| b.1.total_cmp(&a.1));
            ended.extend(cut);
        }
        ended.truncate(options.width);
        ended
    }
}

fn answers<'a>(found: impl Iterator<Item = Hypothesis<'a>>) -> Vec<(Vec<usize>, f32, bool)> {
    found
        .map(|answer| (answer.symbols.to_vec(), answer.score, answer.ended))
        .collect()
}

#[test]
fn answers_are_those_of_plain_loops() {
    let (mut ended, mut cut, mut copies) = (0, 0, 0);
    for seed in 0..24 {
        // Fewer symbols than candidates, and more than a block of logits.
        let parts = Parts::random([3, 7, 150][seed as usize % 3], seed);
        for (width, penalty, threads) in [(1, 0.0, 1), (2, 0.6, 2), (5, 0.0, 1), (5, 1.0, 2)] {
            let options = BeamOptions::new(BOS, EOS, 7, width).length_penalty(penalty);
            let mut beam = parts.beam(options, threads).unwrap();
            for run in 0..2 {
                // Several in turn: nothing of one answer may reach the next.
                let initial = parts.initial(2 * seed + run);
                let found = answers(beam.decode(&initial).unwrap());
                let expected = parts.plain(&initial, options);
                assert_eq!(found, expected, "seed {seed}, width {width}");
                ended += found.iter().filter(|answer| answer.2).count();
                cut += found.iter().filter(|answer| !answer.2).count();
                copies += usize::from(found.len() > 1);
            }
        }
    }
    assert!(
        ended > 50 && cut > 50 && copies > 50,
        "{ended}, {cut}, {copies}"
    );
}

#[test]
fn width_one_is_greedy() {
    for seed in 0..40 {
        let mut parts = Parts::random(9, seed);
        if seed % 4 == 0 {
            // Equal logits.
            parts.weights = Matrix::new(9, HIDDEN, vec![0.0; 9 * HIDDEN]).unwrap();
            parts.bias = vec![0.0, 0.5, 2.0, 1.0, 2.0, 2.0, 0.0, 0.0, 2.0];
        }
        if seed % 8 == 3 {
            parts.bias[4] = f32::INFINITY;
        }
        let dense = Dense::new(&parts.weights, &parts.bias).unwrap();
        let embedding = Embedding::new(parts.table.clone());
        let options = GreedyOptions::new(BOS, EOS, 10);
        let mut greedy = Greedy::new(parts.session(1), embedding, dense, options).unwrap();
        let mut beam = parts.beam(BeamOptions::new(BOS, EOS, 10, 1), 1).unwrap();
        for run in 0..5 {
            let initial = parts.initial(100 * seed + run);
            let expected = greedy.decode(&initial).unwrap();
            let found: Vec<_> = beam.decode(&initial).unwrap().collect();
            let found: Vec<_> = found.iter().map(|a| (a.symbols, a.ended)).collect();
            assert_eq!(found, [(expected.symbols, expected.ended)], "seed {seed}");
        }
    }
}

/// A beam that keeps everything finds the most probable answer of all.
#[test]
fn a_beam_of_all_hypotheses_finds_the_best_answer() {
    for seed in 0..6 {
        let parts = Parts::random(4, seed);
        let options = BeamOptions::new(BOS, EOS, 3, 40);
        let initial = parts.initial(seed);
        let mut all = vec![(vec![], 0.0)];
        let mut ended = Vec::new();
        for _ in 0..options.limit {
            let mut next = Vec::new();
            for (symbols, score) in &all {
                for (symbol, (_, p)) in parts.plain_step(&initial, symbols).iter().enumerate() {
                    let longer: Vec<usize> = [&symbols[..], &[symbol]].concat();
                    match symbol {
                        EOS => ended.push((symbols.clone(), score + p)),
                        _ => next.push((longer, score + p)),
                    }
                }
            }
            all = next;
        }
        let best = (ended.iter().max_by(|a, b| a.1.total_cmp(&b.1))).unwrap();
        let mut beam = parts.beam(options, 1).unwrap();
        let found = beam.decode(&initial).unwrap().next().unwrap();
        assert_eq!((found.symbols, found.score), (&best.0[..], best.1));
        assert!(found.ended);
    }
}

/// A row that goes on is copied only for its second continuation and those after it, and never
/// over a row that goes on.
#[test]
fn states_are_copied_only_where_a_row_has_two_continuations() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut copied = 0;
    for _ in 0..200 {
        let width = rng.usize(1..7);
        let mut search = BeamSearch::new(BeamOptions::new(BOS, EOS, 12, width)).unwrap();
        while !search.is_over() {
            let mut candidates = Vec::new();
            for (row, live) in search.rows().iter().enumerate() {
                let Some(live) = live else { continue };
                for symbol in 0..search.candidates() {
                    let logit = -rng.f32();
                    let score = live.score + logit;
                    candidates.push(Candidate {
                        row,
                        symbol,
                        score,
                        logit,
                    });
                }
            }
            rng.shuffle(&mut candidates);
            search.advance(&candidates);
            let rows: Vec<_> = search.rows().iter().enumerate().collect();
            let parents: Vec<usize> = rows
                .iter()
                .filter_map(|r| Some(r.1.as_ref()?.parent))
                .collect();
            let distinct: std::collections::BTreeSet<_> = parents.iter().collect();
            let copies: Vec<usize> = (rows.iter())
                .filter(|(row, next)| next.is_some_and(|next| next.parent != *row))
                .map(|(row, _)| *row)
                .collect();
            assert_eq!(copies.len(), parents.len() - distinct.len());
            assert!(copies.iter().all(|row| !parents.contains(row)));
            copied += copies.len();
        }
    }
    assert!(copied > 100, "{copied}");
}

#[test]
fn best_continuations_are_those_of_a_sort() {
    let mut rng = fastrand::Rng::with_seed(3);
    let isas = Isa::available();
    for count in [1, 2, 9, 63, 64, 65, 700] {
        for _ in 0..20 {
            // Few distinct values, so that many are equal.
            let logits: Vec<f32> = (0..count).map(|_| f32::from(rng.u8(..9))).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            for &isa in &isas {
                let kernels = row_kernels(isa).unwrap();
                for most in [1, 2, 10] {
                    let mut best = vec![Candidate::default(); most];
                    let found = best_continuations(&*kernels, (3, -1.0), &logits, &mut best);
                    assert_eq!(found, Some(most.min(count)));
                    let found = &best[..most.min(count)];
                    let symbols: Vec<usize> = found.iter().map(|c| c.symbol).collect();
                    assert_eq!(symbols, order[..found.len()]);
                    assert!(found.iter().all(|c| c.row == 3 && c.score <= -1.0));
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let options = BeamOptions::new(BOS, EOS, 5, 3);
    let refused = |options| Parts::random(7, 2).beam(options, 1).err().unwrap();
    assert_eq!(
        refused(BeamOptions {
            width: 0,
            ..options
        }),
        LayerError::BeamWidth
    );
    assert!(matches!(
        refused(BeamOptions { eos: 7, ..options }),
        LayerError::Symbol { symbol: 7, .. }
    ));
    let limit = usize::MAX;
    assert_eq!(
        refused(BeamOptions { limit, ..options }),
        LayerError::Limit { limit }
    );
    let mut parts = Parts::random(7, 2);
    let good = parts.initial(1);
    let mut beam = parts.beam(options, 1).unwrap();
    let short = State::zero(Gru::new(FEATURES, 3).random(1).unwrap().signature(), 1);
    assert!(matches!(beam.decode(&short), Err(DecodeError::Run(_))));
    parts.bias[5] = f32::NAN;
    let mut beam = parts.beam(options, 1).unwrap();
    let error = beam.decode(&good).err().unwrap();
    assert_eq!(error, DecodeError::NotANumber { step: 0 });
    let none = BeamOptions {
        limit: 0,
        ..options
    };
    let mut beam = Parts::random(7, 2).beam(none, 1).unwrap();
    assert_eq!(answers(beam.decode(&good).unwrap()), [(vec![], 0.0, false)]);
}
