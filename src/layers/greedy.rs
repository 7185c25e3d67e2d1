//! Greedy decoding: each answer is the most likely symbol, and is fed back as the next input.
//!
//! ```text
//! previous = bos;  state = initial
//! repeat at most `limit` times
//!   state, y = recurrent step of (embedding of previous, state)
//!   previous = argmax(dense(y))
//!   if previous == eos: end
//!   answer previous
//! ```

use super::error::fits;
use super::{Dense, Embedding, LayerError};
use crate::execute::{RunError, Session, State};
use crate::model::InputError;

/// The symbols that begin and end an answer, and how long it may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GreedyOptions {
    /// Fed first.
    pub bos: usize,
    /// Ends the answer; not part of it.
    pub eos: usize,
    /// Most symbols of an answer; room for as many is taken at once.
    pub limit: usize,
}

impl GreedyOptions {
    /// Answers of at most `limit` symbols, from `bos` to `eos`.
    pub fn new(bos: usize, eos: usize, limit: usize) -> GreedyOptions {
        GreedyOptions { bos, eos, limit }
    }
}

/// A decoder: embedding of the previous symbol, recurrent step, dense layer, greatest logit.
///
/// Decodes one sequence at a time, and allocates nothing while it does.
///
/// ```
/// use gatestream::execute::{Session, State};
/// use gatestream::layers::{Dense, Embedding, Greedy, GreedyOptions};
/// use gatestream::model::{Gru, Matrix};
/// use gatestream::plan::Plan;
///
/// let (symbols, features, hidden) = (5, 8, 16);
/// let model = Gru::new(features, hidden).random(1)?;
/// let session = Session::new(&model, &Plan::estimate(&model, 1, 1, 1))?;
/// let embedding = Embedding::new(Matrix::new(symbols, features, vec![0.1; symbols * features])?);
/// let dense = Dense::new(&Matrix::new(symbols, hidden, vec![0.1; symbols * hidden])?, &[0.0; 5])?;
/// let options = GreedyOptions::new(0, 1, 20);
/// let mut decoder = Greedy::new(session, embedding, dense, options)?;
///
/// let initial = State::zero(model.signature(), 1);
/// let answer = decoder.decode(&initial)?;
/// assert_eq!((answer.symbols, answer.ended), (&[0; 20][..], false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Greedy {
    session: Session,
    embedding: Embedding,
    dense: Dense,
    options: GreedyOptions,
    state: State,
    /// Output of the recurrent step.
    y: Vec<f32>,
    logits: Vec<f32>,
    symbols: Vec<usize>,
}

/// What a decoder answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The answer, without the symbols that begin and end it.
    pub symbols: &'a [usize],
    /// Whether it came to its end; else the limit cut it off.
    pub ended: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The recurrent step was refused, or did not end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The embedding or the dense layer refused.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A logit is not a number, so none is the greatest.
    #[error("step {step}: a logit is not a number; check the weights and the initial state")]
    NotANumber {
        /// Which step, from 0.
        step: usize,
    },
}

impl Greedy {
    /// A decoder of these parts. The session's recurrent layers must all run forward.
    ///
    /// # Errors
    /// [`LayerError::DoesNotFit`] where one part gives other features, or more symbols, than the
    /// next takes; [`LayerError::Symbol`] for a `bos` or `eos` that does not exist;
    /// [`LayerError::Limit`] for a limit that memory has no room for.
    pub fn new(
        mut session: Session,
        embedding: Embedding,
        dense: Dense,
        options: GreedyOptions,
    ) -> Result<Greedy, LayerError> {
        check_parts(&session, &embedding, &dense, [options.bos, options.eos])?;
        let signature = session.signature();
        let GreedyOptions { limit, .. } = options;
        let no_memory = |_| LayerError::Limit { limit };
        session.reserve(1, 1).map_err(no_memory)?;
        let mut room = Vec::new();
        room.try_reserve_exact(limit)
            .map_err(|_| LayerError::Limit { limit })?;
        Ok(Greedy {
            state: State::zero(signature, 1),
            y: vec![0.0; signature.output],
            logits: vec![0.0; dense.outputs()],
            symbols: room,
            session,
            embedding,
            dense,
            options,
        })
    }

    /// Decodes from the state `initial` of one sequence, that an encoder left. Allocates nothing.
    ///
    /// # Errors
    /// [`RunError::Input`] for a state of other sizes, [`RunError::NotStreamable`] for a model
    /// with a reverse direction, [`DecodeError::NotANumber`] where no logit is the greatest.
    pub fn decode(&mut self, initial: &State) -> Result<Decoded<'_>, DecodeError> {
        let states = [
            ("h0", &initial.h, &mut self.state.h),
            ("c0", &initial.c, &mut self.state.c),
        ];
        for (name, from, to) in states {
            if from.len() != to.len() {
                let (expected, found) = (to.len(), from.len());
                let error = InputError::Values {
                    name,
                    expected,
                    found,
                };
                return Err(RunError::Input(error).into());
            }
            to.copy_from_slice(from);
        }
        self.symbols.clear();
        let mut previous = self.options.bos;
        let mut ended = false;
        for step in 0..self.options.limit {
            let x = self.embedding.row(previous)?;
            self.session.step(x, &mut self.state, &mut self.y)?;
            self.dense.run(&self.y, &mut self.logits)?;
            previous = argmax(&self.logits).ok_or(DecodeError::NotANumber { step })?;
            ended = previous == self.options.eos;
            if ended {
                break;
            }
            self.symbols.push(previous);
        }
        Ok(Decoded {
            symbols: &self.symbols,
            ended,
        })
    }
}

/// Refuses parts of a decoder that do not fit each other, or symbols that do not exist.
pub(super) fn check_parts(
    session: &Session,
    embedding: &Embedding,
    dense: &Dense,
    ends: [usize; 2],
) -> Result<(), LayerError> {
    let signature = session.signature();
    let (model, table, projection) = ("the recurrent model", "the embedding", "the dense layer");
    fits(model, signature.input, table, embedding.features())?;
    fits(projection, dense.inputs(), model, signature.output)?;
    // Answers are fed back, so each needs a row in the table.
    fits(table, embedding.symbols(), projection, dense.outputs())?;
    ends.iter()
        .try_for_each(|end| embedding.row(*end).map(drop))
}

/// Index of the greatest value, the lowest of equal ones; `None` for no values, or where one is
/// not a number.
///
/// ```
/// use gatestream::layers::argmax;
/// assert_eq!(argmax(&[0.0, 2.0, -1.0, 2.0]), Some(1));
/// assert_eq!(argmax(&[0.0, f32::NAN]), None);
/// ```
pub fn argmax(values: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, greatest)| value > greatest) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Matrix, Merge, Model};
    use crate::plan::Plan;
    use crate::reference;

    const SYMBOLS: usize = 7;
    const FEATURES: usize = 5;
    const HIDDEN: usize = 20;

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
        fn random(seed: u64) -> Parts {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut matrix = |rows: usize, cols: usize| {
                Matrix::new(rows, cols, random(&mut rng, rows * cols)).unwrap()
            };
            Parts {
                model: match seed % 2 {
                    0 => Gru::new(FEATURES, HIDDEN).random(seed).unwrap(),
                    _ => Lstm::new(FEATURES, HIDDEN).layers(2).random(seed).unwrap(),
                },
                table: matrix(SYMBOLS, FEATURES),
                weights: matrix(SYMBOLS, HIDDEN),
                bias: matrix(1, SYMBOLS).data().to_vec(),
            }
        }

        fn decoder(&self, options: GreedyOptions) -> Result<Greedy, LayerError> {
            let plan = Plan::with_threads(&self.model, 1, 1, 1);
            let session = Session::new(&self.model, &plan).unwrap();
            let dense = Dense::new(&self.weights, &self.bias)?;
            Greedy::new(session, Embedding::new(self.table.clone()), dense, options)
        }

        /// The same by plain loops, one cell at a time.
        fn plain(&self, initial: &State, options: GreedyOptions) -> (Vec<usize>, bool) {
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
            let (mut answer, mut previous) = (Vec::new(), options.bos);
            while answer.len() < options.limit {
                let mut x = self.table.row(previous).to_vec();
                for (layer, state) in layers.iter().zip(&mut states) {
                    reference::step_cell(&layer.directions()[0], &x, state);
                    x = state.h.clone();
                }
                let logit = |j: usize| {
                    let weights = self.weights.row(j);
                    let terms = x.iter().zip(weights.iter());
                    terms.fold(self.bias[j], |z, (x, w)| x.mul_add(*w, z))
                };
                previous = 0;
                for j in 1..SYMBOLS {
                    if logit(j) > logit(previous) {
                        previous = j;
                    }
                }
                if previous == options.eos {
                    return (answer, true);
                }
                answer.push(previous);
            }
            (answer, false)
        }
    }

    #[test]
    fn answers_are_those_of_plain_loops() {
        let mut ends = [0, 0];
        for seed in 0..40 {
            let parts = Parts::random(seed);
            let options = GreedyOptions {
                bos: 0,
                eos: 1,
                limit: 12,
            };
            let mut decoder = parts.decoder(options).unwrap();
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..3 {
                // Several in turn: nothing of one answer may reach the next.
                let mut initial = State::zero(parts.model.signature(), 1);
                initial.h = random(&mut rng, initial.h.len());
                initial.c = random(&mut rng, initial.c.len());
                let answer = decoder.decode(&initial).unwrap();
                let (symbols, ended) = parts.plain(&initial, options);
                assert_eq!((answer.symbols, answer.ended), (&symbols[..], ended));
                ends[usize::from(ended)] += 1;
            }
        }
        assert!(ends.iter().all(|&n| n > 10), "both ways to end: {ends:?}");
    }

    #[test]
    fn equal_logits_choose_the_lowest_symbol() {
        let mut parts = Parts::random(2);
        parts.weights = Matrix::new(SYMBOLS, HIDDEN, vec![0.0; SYMBOLS * HIDDEN]).unwrap();
        parts.bias = vec![0.0, 0.0, 3.0, 1.0, 3.0, 3.0, 0.0];
        let options = GreedyOptions {
            bos: 0,
            eos: 4,
            limit: 3,
        };
        let mut decoder = parts.decoder(options).unwrap();
        let initial = State::zero(parts.model.signature(), 1);
        let answer = decoder.decode(&initial).unwrap();
        assert_eq!((answer.symbols, answer.ended), (&[2, 2, 2][..], false));
    }

    #[test]
    fn limit_of_zero_with_equal_bos_and_eos() {
        let parts = Parts::random(2);
        let options = GreedyOptions {
            bos: 1,
            eos: 1,
            limit: 0,
        };
        let initial = State::zero(parts.model.signature(), 1);
        let mut decoder = parts.decoder(options).unwrap();
        let answer = decoder.decode(&initial).unwrap();
        assert_eq!((answer.symbols, answer.ended), (&[][..], false));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let options = GreedyOptions {
            bos: 0,
            eos: 1,
            limit: 3,
        };
        let refused = |change: &dyn Fn(&mut Parts), options| {
            let mut parts = Parts::random(2);
            change(&mut parts);
            parts.decoder(options).err().unwrap()
        };
        let matrix = |rows, cols| Matrix::new(rows, cols, vec![0.0; rows * cols]).unwrap();
        let features = refused(&|p| p.table = matrix(SYMBOLS, 4), options);
        assert!(matches!(
            features,
            LayerError::DoesNotFit {
                takes: 5,
                gives: 4,
                ..
            }
        ));
        let hidden = refused(&|p| p.weights = matrix(SYMBOLS, 21), options);
        assert!(matches!(
            hidden,
            LayerError::DoesNotFit {
                takes: 21,
                gives: 20,
                ..
            }
        ));
        let symbols = refused(&|p| p.table = matrix(6, FEATURES), options);
        assert!(matches!(
            symbols,
            LayerError::DoesNotFit {
                takes: 6,
                gives: 7,
                ..
            }
        ));
        for (bos, eos) in [(7, 1), (0, 7)] {
            let symbol = refused(&|_| (), GreedyOptions { bos, eos, limit: 3 });
            assert!(matches!(
                symbol,
                LayerError::Symbol {
                    symbol: 7,
                    symbols: 7
                }
            ));
        }
        let limit = usize::MAX;
        let limit = refused(&|_| (), GreedyOptions { limit, ..options });
        assert_eq!(limit, LayerError::Limit { limit: usize::MAX });
    }

    #[test]
    fn what_cannot_be_decoded_is_refused() {
        let options = GreedyOptions {
            bos: 0,
            eos: 1,
            limit: 3,
        };
        let mut parts = Parts::random(2);
        let good = State::zero(parts.model.signature(), 1);
        let bad = State::zero(parts.model.signature(), 2);
        let mut decoder = parts.decoder(options).unwrap();
        let values = InputError::Values {
            name: "h0",
            expected: HIDDEN,
            found: 2 * HIDDEN,
        };
        let error = decoder.decode(&bad).unwrap_err();
        assert_eq!(error, DecodeError::Run(RunError::Input(values)));

        parts.bias[3] = f32::NAN;
        let mut decoder = parts.decoder(options).unwrap();
        let error = decoder.decode(&good).unwrap_err();
        assert_eq!(error, DecodeError::NotANumber { step: 0 });

        let mut parts = Parts::random(2);
        let both = Gru::new(FEATURES, HIDDEN / 2).bidirectional(Merge::Concat);
        parts.model = both.random(1).unwrap();
        let initial = State::zero(parts.model.signature(), 1);
        let mut decoder = parts.decoder(options).unwrap();
        let error = decoder.decode(&initial).unwrap_err();
        assert_eq!(error, DecodeError::Run(RunError::NotStreamable));
    }
}
