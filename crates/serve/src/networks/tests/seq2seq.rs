use std::sync::Arc;

use super::super::{
    BeamSeq2Seq, DecoderCell, Encoder, EncoderCell, NetworkError, Seq2Seq, Until, WholeCell,
    beam_answers,
};
use super::measured_plan::measured_plan;
use super::{Request, alone, random, together};
use crate::cell_graph::{BatchSizes, Cell, Cells};
use gatestream::execute::Session;
use gatestream::execute::State;
use gatestream::layers::{Beam, BeamOptions, Dense, Embedding, LayerError, argmax};
use gatestream::machine::CacheModel;
use gatestream::model::{Gru, Input, Lstm, Matrix, Merge, Model, Output, Precision};
use gatestream::plan::Plan;
use gatestream::reference;

const SOURCE: usize = 9;
const TARGET: usize = 130;
const FEATURES: usize = 5;
const HIDDEN: usize = 20;
const GO: usize = 2;
const EOS: usize = 1;

struct Parts {
    models: [Arc<Model>; 2],
    tables: [Matrix; 2],
    weights: Matrix,
    bias: Vec<f32>,
}

impl Parts {
    /// The models' weights and the projection's in these precisions, which need not be the same.
    fn in_precision(mut self, models: Precision, projection: Precision) -> Parts {
        self.models = (self.models).map(|model| Arc::new(model.in_precision(models).unwrap()));
        self.weights = self.weights.in_precision(projection).unwrap();
        self
    }

    fn random(rng: &mut fastrand::Rng) -> Parts {
        Parts::with_symbols(rng, TARGET)
    }

    /// That choose among so many symbols.
    fn with_symbols(rng: &mut fastrand::Rng, symbols: usize) -> Parts {
        let gru = rng.bool();
        let models = [1, 2].map(|seed| {
            Arc::new(if gru {
                Gru::new(FEATURES, HIDDEN).layers(2).random(seed).unwrap()
            } else {
                Lstm::new(FEATURES, HIDDEN).random(seed).unwrap()
            })
        });
        let mut matrix =
            |rows: usize, cols: usize| Matrix::new(rows, cols, random(rng, rows * cols)).unwrap();
        let mut bias = matrix(1, symbols).data().to_vec();
        bias[EOS] += 4.0; // so that some answers end
        Parts {
            models,
            tables: [matrix(SOURCE, FEATURES), matrix(symbols, FEATURES)],
            weights: matrix(symbols, HIDDEN),
            bias,
        }
    }

    fn beam_network(&self, options: BeamOptions) -> Result<(Cells, BeamSeq2Seq), NetworkError> {
        let [source, target] = self.tables.clone().map(Embedding::new);
        let [encoder, decoder] = self.models.clone();
        let encoder = encoder_of(source, encoder)?;
        let bias = self.bias.clone();
        let decoder = DecoderCell::new(target, decoder, self.weights.clone(), bias)?;
        let mut cells = Cells::new();
        let network = BeamSeq2Seq::add(&mut cells, encoder, decoder, options)?;
        Ok((cells, network))
    }

    /// The states that the reference's encoder leaves.
    fn encoded(&self, source: &[usize]) -> State {
        let encoder = &self.models[0];
        let mut state = State::zero(encoder.signature(), 1);
        let features = source
            .iter()
            .flat_map(|&symbol| self.tables[0].row(symbol).to_vec());
        let features: Vec<f32> = features.collect();
        let mut output = Output::default().hn(&mut state.h).cn(&mut state.c);
        let input = Input::new(&features, source.len(), 1);
        reference::run(encoder, &input, &mut output).unwrap();
        state
    }

    /// All answers of the library's decoder, from the states that the reference's encoder leaves.
    fn beam_answers(&self, source: &[usize], options: BeamOptions) -> Vec<BeamAnswer> {
        let decoder = &self.models[1];
        let state = self.encoded(source);
        let session = Session::new(decoder, &Plan::with_threads(decoder, 1, 1, 1)).unwrap();
        let table = Embedding::new(self.tables[1].clone());
        let dense = Dense::new(&self.weights, &self.bias).unwrap();
        let mut beam = Beam::new(session, table, dense, options).unwrap();
        let answers = beam.decode(&state).unwrap();
        answers
            .map(|a| {
                let symbols = a.symbols.iter().map(|&symbol| symbol as f32).collect();
                (symbols, a.score, a.ended)
            })
            .collect()
    }

    fn network(&self) -> (Cells, Seq2Seq) {
        let [source, target] = self.tables.clone().map(Embedding::new);
        let [encoder, decoder] = self.models.clone();
        let encoder = encoder_of(source, encoder).unwrap();
        let bias = self.bias.clone();
        let decoder = DecoderCell::new(target, decoder, self.weights.clone(), bias).unwrap();
        let mut cells = Cells::new();
        let network = Seq2Seq::add(&mut cells, encoder, decoder, GO).unwrap();
        (cells, network)
    }

    /// By the reference alone, the projection too.
    fn answer(&self, source: &[usize], limit: usize) -> Vec<f32> {
        let mut state = self.encoded(source);
        let mut step = |symbol: usize| {
            let before = state.clone();
            let x = self.tables[1].row(symbol);
            let input = Input::new(&x, 1, 1).h0(&before.h).c0(&before.c);
            let mut y = vec![0.0; HIDDEN];
            let mut output = Output::new(&mut y).hn(&mut state.h).cn(&mut state.c);
            reference::run(&self.models[1], &input, &mut output).unwrap();
            y
        };
        let (mut previous, mut answer) = (GO, Vec::new());
        while answer.len() < limit {
            let y = step(previous);
            let outputs = reference::dense(&self.weights, &self.bias, &y);
            previous = argmax(&outputs).unwrap();
            if previous == EOS {
                break;
            }
            answer.push(previous as f32);
        }
        answer
    }
}

/// Of whole sequences, if a direction is reverse.
fn encoder_of(embedding: Embedding, model: Arc<Model>) -> Result<Encoder, NetworkError> {
    match model.layers()[0].directions().len() {
        1 => Ok(EncoderCell::new(embedding, model)?.into()),
        _ => Ok(Encoder::Whole {
            embedding: Arc::new(embedding),
            cell: WholeCell::new(model, 10),
        }),
    }
}

/// Symbols, score, and whether the answer ended.
type BeamAnswer = (Vec<f32>, f32, bool);

fn sources(rng: &mut fastrand::Rng) -> Vec<(Vec<usize>, usize)> {
    let mut source = || (0..rng.usize(1..8)).map(|_| rng.usize(..SOURCE)).collect();
    let sources: Vec<Vec<usize>> = (0..10).map(|_| source()).collect();
    sources
        .into_iter()
        .map(|source| (source, rng.usize(..9)))
        .collect()
}

#[test]
fn answers_are_those_of_the_reference_in_every_precision() {
    use Precision::{Bf16, F32, Int8};
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut ended, mut cut) = (0, 0);
    let alike = [(F32, F32), (Bf16, Bf16), (Int8, Int8)];
    let mixed = [(F32, Int8), (Int8, F32)];
    let few = alike.into_iter().chain(alike).chain(mixed);
    // As many as are screened in int8 first.
    let many = 4 * CacheModel::here().private_bytes() / 4 / HIDDEN + 1;
    let all = few
        .map(|of| (of, TARGET))
        .chain([((F32, F32), many), ((Bf16, F32), many)]);
    for ((models, projection), symbols) in all {
        let parts = Parts::with_symbols(&mut rng, symbols).in_precision(models, projection);
        let (cells, network) = parts.network();
        let sources = sources(&mut rng);
        let requests = || -> Vec<Request> {
            let unfold = |(source, limit): &(Vec<usize>, usize)| {
                let until = Until::Eos {
                    eos: EOS,
                    limit: *limit,
                };
                let (graph, grow) = network.unfold(source, until).unwrap();
                let grow: Box<dyn crate::cell_graph::DynamicGraph> = Box::new(grow);
                (graph, Some(grow))
            };
            sources.iter().map(unfold).collect()
        };
        for answers in [
            alone(&cells, requests()),
            together(&cells, requests(), &mut rng),
        ] {
            for (answer, (source, limit)) in answers.iter().zip(&sources) {
                let answer = answer.as_ref().unwrap();
                assert_eq!(answer, &parts.answer(source, *limit));
                if answer.len() < *limit {
                    ended += 1
                } else {
                    cut += 1
                }
            }
        }
    }
    assert!(ended > 10 && cut > 10, "both ways to end: {ended}, {cut}");
}

#[test]
fn an_encoder_may_read_in_both_directions() {
    let mut rng = fastrand::Rng::with_seed(4);
    for gru in [true, false] {
        let mut parts = Parts::random(&mut rng);
        let half = HIDDEN / 2;
        parts.models = if gru {
            [
                Gru::new(FEATURES, half)
                    .bidirectional(Merge::Concat)
                    .random(5),
                Gru::new(FEATURES, HIDDEN).random(6),
            ]
        } else {
            [
                Lstm::new(FEATURES, half)
                    .bidirectional(Merge::Concat)
                    .random(5),
                Lstm::new(FEATURES, HIDDEN).random(6),
            ]
        }
        .map(|model| Arc::new(model.unwrap()));
        let (cells, network) = parts.network();
        let options = BeamOptions::new(GO, EOS, 6, 3);
        let (beam_cells, beam) = parts.beam_network(options).unwrap();
        for (source, limit) in sources(&mut rng) {
            let until = Until::Eos { eos: EOS, limit };
            let (graph, grow) = network.unfold(&source, until).unwrap();
            let answers = alone(&cells, vec![(graph, Some(Box::new(grow) as _))]);
            assert_eq!(answers[0].as_ref().unwrap(), &parts.answer(&source, limit));
            let (graph, grow) = beam.unfold(&source).unwrap();
            let answers = alone(&beam_cells, vec![(graph, Some(Box::new(grow) as _))]);
            let found = super::super::beam_answers(answers[0].as_ref().unwrap());
            let found: Vec<BeamAnswer> = found
                .map(|a| (a.symbols.to_vec(), a.score, a.ended))
                .collect();
            assert_eq!(found, parts.beam_answers(&source, options));
        }
    }
}

#[test]
fn a_fixed_number_of_steps_goes_on_past_the_end() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut parts = Parts::random(&mut rng);
    parts.bias[EOS] = 1000.0;
    let (cells, network) = parts.network();
    let (graph, grow) = network.unfold(&[1, 2], Until::Steps(5)).unwrap();
    let answer = alone(&cells, vec![(graph, Some(Box::new(grow)))])
        .remove(0)
        .unwrap();
    assert_eq!(answer, [EOS as f32; 5]);
}

/// What is no number ends the requests that meet it; those beside them are answered.
#[test]
fn one_request_without_a_greatest_output_ends_alone() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut parts = Parts::random(&mut rng);
    let mut table = parts.tables[0].data().to_vec();
    table[3 * FEATURES] = f32::NAN;
    parts.tables[0] = Matrix::new(SOURCE, FEATURES, table).unwrap();
    let (cells, network) = parts.network();
    let sources: [&[usize]; 5] = [&[1, 2], &[3], &[4, 3, 5], &[5], &[8, 8]];
    for _ in 0..5 {
        let request = |source: &&[usize]| -> Request {
            let (graph, grow) = network
                .unfold(source, Until::Eos { eos: EOS, limit: 4 })
                .unwrap();
            (graph, Some(Box::new(grow)))
        };
        let answers = together(&cells, sources.iter().map(request).collect(), &mut rng);
        for (source, answer) in sources.iter().zip(answers) {
            if source.contains(&3) {
                let error = answer.unwrap_err().to_string();
                assert!(error.contains("not a number"), "{error}");
            } else {
                assert_eq!(answer.unwrap(), parts.answer(source, 4))
            }
        }
    }
}

#[test]
fn a_measured_plan_gives_the_rows_of_encoders_only() {
    let model = Arc::new(Gru::new(FEATURES, HIDDEN).random(1).unwrap());
    let table = || Embedding::new(Matrix::new(3, FEATURES, vec![0.0; 3 * FEATURES]).unwrap());
    // Rates of 10, 40 and 41 rows a microsecond.
    let plan = || measured_plan(&model, &[(1, 1, 100), (8, 1, 200), (16, 1, 390)]);
    let encoder = EncoderCell::new(table(), Arc::clone(&model)).unwrap();
    assert_eq!(encoder.with_plan(plan()).unwrap().cost().rows.max, 8);
    let weights = Matrix::new(3, HIDDEN, vec![0.0; 3 * HIDDEN]).unwrap();
    let decoder = DecoderCell::new(table(), Arc::clone(&model), weights, vec![0.0; 3]).unwrap();
    let cost = decoder.with_plan(plan()).unwrap().cost();
    assert_eq!(cost.rows, BatchSizes::default());
}

#[test]
fn parts_and_symbols_that_do_not_fit_are_refused() {
    let mut rng = fastrand::Rng::with_seed(4);
    let table = |symbols, features| {
        Embedding::new(Matrix::new(symbols, features, vec![0.0; symbols * features]).unwrap())
    };
    let model = |hidden| Gru::new(FEATURES, hidden).random(1).unwrap();
    let weights = |rows, cols| Matrix::new(rows, cols, vec![0.0; rows * cols]).unwrap();
    let does_not_fit = |error: Option<NetworkError>| {
        assert!(matches!(
            error,
            Some(NetworkError::Layer(LayerError::DoesNotFit { .. }))
        ));
    };
    does_not_fit(EncoderCell::new(table(3, 4), model(8)).err());
    does_not_fit(DecoderCell::new(table(3, 5), model(8), weights(3, 7), vec![0.0; 3]).err());
    does_not_fit(DecoderCell::new(table(3, 5), model(8), weights(4, 8), vec![0.0; 4]).err());
    let bias = DecoderCell::new(table(3, 5), model(8), weights(3, 8), vec![0.0; 2]).err();
    let values = NetworkError::Values {
        name: "bias",
        expected: 3,
        found: 2,
    };
    assert_eq!(bias, Some(values));
    let none = EncoderCell::new(table(0, 5), model(8)).err();
    let none_known = NetworkError::Layer(LayerError::ManySymbols { symbols: 0 });
    assert_eq!(none, Some(none_known));

    let add = |hidden, go| {
        let encoder = EncoderCell::new(table(3, 5), model(8)).unwrap();
        let projection = weights(3, hidden);
        let decoder = DecoderCell::new(table(3, 5), model(hidden), projection, vec![0.0; 3]);
        Seq2Seq::add(&mut Cells::new(), encoder, decoder.unwrap(), go).err()
    };
    let states = NetworkError::States {
        encoder: vec![8],
        decoder: vec![9],
    };
    assert_eq!(add(9, 0), Some(states));
    let symbol = |symbol, symbols| NetworkError::Layer(LayerError::Symbol { symbol, symbols });
    assert_eq!(add(8, 3), Some(symbol(3, 3)));

    let (_, network) = Parts::random(&mut rng).network();
    let refused = |source: &[usize], until| network.unfold(source, until).err().unwrap();
    let what = "source symbol";
    assert_eq!(refused(&[], Until::Steps(1)), NetworkError::Empty { what });
    assert_eq!(
        refused(&[0, SOURCE], Until::Steps(1)),
        symbol(SOURCE, SOURCE)
    );
    let until = Until::Eos {
        eos: TARGET,
        limit: 1,
    };
    assert_eq!(refused(&[0], until), symbol(TARGET, TARGET));
}

#[test]
fn answers_of_a_beam_are_those_of_the_library() {
    use Precision::{F32, Int8};
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut ended, mut cut) = (0, 0);
    for (width, penalty) in [(1, 0.0), (2, 0.6), (5, 0.0), (4, 1.0), (3, 0.0)] {
        // Fewer symbols than candidates, too.
        for (symbols, precision) in [(TARGET, F32), (4, F32), (TARGET, Int8)] {
            let parts = Parts::with_symbols(&mut rng, symbols).in_precision(precision, precision);
            let options = BeamOptions::new(GO, EOS, 6, width).length_penalty(penalty);
            let (cells, network) = parts.beam_network(options).unwrap();
            let sources = sources(&mut rng);
            let requests = || -> Vec<Request> {
                let unfold = |(source, _): &(Vec<usize>, usize)| -> Request {
                    let (graph, search) = network.unfold(source).unwrap();
                    (graph, Some(Box::new(search)))
                };
                sources.iter().map(unfold).collect()
            };
            for answers in [
                alone(&cells, requests()),
                together(&cells, requests(), &mut rng),
            ] {
                for (answer, (source, _)) in answers.iter().zip(&sources) {
                    let found: Vec<_> = beam_answers(answer.as_ref().unwrap())
                        .map(|a| (a.symbols.to_vec(), a.score, a.ended))
                        .collect();
                    assert_eq!(found, parts.beam_answers(source, options), "{width}");
                    if width == 1 {
                        assert_eq!(found[0].0, parts.answer(source, 6));
                    }
                    ended += found.iter().filter(|answer| answer.2).count();
                    cut += found.iter().filter(|answer| !answer.2).count();
                }
            }
        }
    }
    assert!(ended > 10 && cut > 10, "both ways to end: {ended}, {cut}");
}

#[test]
fn beams_that_cannot_be_decoded_are_refused_or_fail_alone() {
    let mut rng = fastrand::Rng::with_seed(12);
    let mut parts = Parts::random(&mut rng);
    let options = BeamOptions::new(GO, EOS, 6, 3);
    for refused in [
        BeamOptions::new(GO, EOS, 6, 0),
        BeamOptions::new(TARGET, EOS, 6, 3),
        BeamOptions::new(GO, TARGET, 6, 3),
        BeamOptions::new(GO, EOS, usize::MAX, 3),
    ] {
        assert!(matches!(
            parts.beam_network(refused),
            Err(NetworkError::Layer(_))
        ));
    }
    let none = BeamOptions::new(GO, EOS, 0, 3);
    let (cells, network) = parts.beam_network(none).unwrap();
    let (graph, search) = network.unfold(&[1]).unwrap();
    let answer = alone(&cells, vec![(graph, Some(Box::new(search)))]).remove(0);
    let answers: Vec<usize> = beam_answers(&answer.unwrap())
        .map(|a| a.symbols.len())
        .collect();
    assert_eq!(answers, [0]);
    assert!(beam_answers(&[5.0, 0.0, 1.0, 2.0]).next().is_none());

    let mut table = parts.tables[0].data().to_vec();
    table[3 * FEATURES] = f32::NAN;
    parts.tables[0] = Matrix::new(SOURCE, FEATURES, table).unwrap();
    let (cells, network) = parts.beam_network(options).unwrap();
    assert!(matches!(
        network.unfold(&[]),
        Err(NetworkError::Empty { .. })
    ));
    assert!(network.unfold(&[SOURCE]).is_err());
    let request = |source: &[usize]| -> Request {
        let (graph, search) = network.unfold(source).unwrap();
        (graph, Some(Box::new(search)))
    };
    let requests = vec![request(&[1, 2]), request(&[3]), request(&[5, 4])];
    let answers = together(&cells, requests, &mut rng);
    let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false]);
}
