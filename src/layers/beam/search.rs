//! The search: which hypotheses go on, which have ended, and when to stop. No arithmetic of the
//! model: candidates in, rows of the next step out.
//!
//! ```text
//! live = [bos]
//! repeat at most `limit` times
//!   candidates = the 2 · width best continuations of all live hypotheses, best first
//!   of these: eos among the first `width` ends its hypothesis;  the first `width` others are live
//!   if `width` hypotheses have ended: stop
//! ```
//!
//! A row of the batch that has a continuation keeps one of them, the best. Only a second
//! continuation of a row needs a copy of its states, in the row of a hypothesis that has none.

use super::candidates::Candidate;
use crate::layers::LayerError;

/// How a beam search begins and ends, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BeamOptions {
    /// Fed first.
    pub bos: usize,
    /// Ends an answer; not part of it.
    pub eos: usize,
    /// Most symbols of an answer; room for as many is taken at once.
    pub limit: usize,
    /// Hypotheses that are kept: 1 gives the answers of greedy decoding.
    pub width: usize,
    /// α of the length penalty `((5 + steps) / 6)^α`, which divides the score (Wu and others,
    /// *Google's Neural Machine Translation System*, 2016, equation 14). With 0 scores of answers
    /// of different lengths are compared as they are, which favours short ones.
    pub length_penalty: f32,
}

impl BeamOptions {
    /// Answers of at most `limit` symbols, from `bos` to `eos`, without a length penalty.
    pub fn new(bos: usize, eos: usize, limit: usize, width: usize) -> BeamOptions {
        BeamOptions {
            bos,
            eos,
            limit,
            width,
            length_penalty: 0.0,
        }
    }

    /// Sets [`BeamOptions::length_penalty`].
    #[must_use]
    pub fn length_penalty(mut self, alpha: f32) -> BeamOptions {
        self.length_penalty = alpha;
        self
    }

    /// The score of an answer, the end included in its steps.
    fn penalised(&self, score: f32, steps: usize) -> f32 {
        match self.length_penalty {
            0.0 => score,
            alpha => {
                let length = (5.0 + steps as f64) / 6.0;
                (f64::from(score) / length.powf(f64::from(alpha))) as f32
            }
        }
    }
}

/// An answer of a beam search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hypothesis<'a> {
    /// The answer, without the symbols that begin and end it.
    pub symbols: &'a [usize],
    /// Logarithm of its probability, divided by the length penalty.
    pub score: f32,
    /// Whether it came to its end; else the limit cut it off.
    pub ended: bool,
}

/// A row of the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamRow {
    /// The row whose states after the last step it starts from: its own, or one to copy.
    pub parent: usize,
    /// The symbol to feed.
    pub symbol: usize,
    /// Logarithm of the probability of its symbols.
    pub score: f32,
    /// Its place among the live hypotheses, which decides between equal scores.
    rank: usize,
    /// The place of its last symbol in the list of all; `None` at the begin.
    last: Option<usize>,
}

/// A beam search over the steps of one request: [`BeamSearch::rows`] tells what to compute,
/// [`BeamSearch::advance`] takes the result.
///
/// ```
/// use gatestream::layers::{BeamOptions, BeamSearch, Candidate};
///
/// let (bos, eos) = (0, 1);
/// let mut search = BeamSearch::new(BeamOptions::new(bos, eos, 10, 2))?;
/// assert_eq!(search.rows()[0].unwrap().symbol, bos);
/// let candidate = |row, symbol, score| Candidate { row, symbol, score, logit: score };
/// search.advance(&[candidate(0, 3, -0.5), candidate(0, 2, -1.0), candidate(0, 1, -3.0)]);
/// // Both rows of the next step start from row 0, and row 1 is a copy.
/// let next: Vec<_> = search.rows().iter().flatten().map(|row| (row.parent, row.symbol)).collect();
/// assert_eq!(next, [(0, 3), (0, 2)]);
/// search.advance(&[candidate(0, 1, -0.6), candidate(1, 1, -1.1)]);
/// assert!(search.is_over());
/// let best = search.hypotheses().next().unwrap();
/// assert_eq!((best.symbols, best.score, best.ended), (&[3][..], -0.6, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BeamSearch {
    options: BeamOptions,
    /// One for each row of the batch.
    rows: Vec<Option<BeamRow>>,
    /// Of the step before.
    before: Vec<Option<BeamRow>>,
    /// The candidates of all rows.
    sorted: Vec<Candidate>,
    /// Each symbol of a live hypothesis, and that before it.
    symbols: Vec<Link>,
    answers: Vec<Answer>,
    /// The answers' symbols, one after the other.
    spelled: Vec<usize>,
    steps: usize,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    symbol: usize,
    before: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    /// Its last symbol in `symbols`.
    last: Option<usize>,
    score: f32,
    ended: bool,
    /// Answers known before it.
    earlier: usize,
    /// The end of its symbols in `spelled`; they begin where those of the answer before it end.
    end: usize,
}

impl BeamSearch {
    /// A search that begins, with all the room that it needs.
    ///
    /// # Errors
    /// [`LayerError::BeamWidth`] for a width of 0; [`LayerError::Limit`] for a limit that memory
    /// has no room for.
    pub fn new(options: BeamOptions) -> Result<BeamSearch, LayerError> {
        let BeamOptions { limit, width, .. } = options;
        if width == 0 {
            return Err(LayerError::BeamWidth);
        }
        fn reserved<T>(count: usize, limit: usize) -> Result<Vec<T>, LayerError> {
            let mut room = Vec::new();
            let no_memory = |_| LayerError::Limit { limit };
            room.try_reserve_exact(count).map_err(no_memory)?;
            Ok(room)
        }
        let all = width.saturating_mul(limit);
        let candidates = width.saturating_mul(width).saturating_mul(2);
        let mut search = BeamSearch {
            options,
            symbols: reserved(all, limit)?,
            spelled: reserved(all, limit)?,
            sorted: reserved(candidates, limit)?,
            answers: reserved(width.saturating_mul(3), limit)?,
            rows: vec![None; width],
            before: vec![None; width],
            steps: 0,
            is_over: false,
        };
        search.restart();
        Ok(search)
    }

    /// Begins again. Allocates nothing.
    pub fn restart(&mut self) {
        self.rows.fill(None);
        self.rows[0] = Some(BeamRow {
            parent: 0,
            symbol: self.options.bos,
            score: 0.0,
            rank: 0,
            last: None,
        });
        self.symbols.clear();
        self.answers.clear();
        self.spelled.clear();
        self.steps = 0;
        self.is_over = false;
        if self.options.limit == 0 {
            self.end();
        }
    }

    /// How it begins and ends.
    pub fn options(&self) -> BeamOptions {
        self.options
    }

    /// Candidates of each row that [`BeamSearch::advance`] needs: with one for each hypothesis that
    /// may end, and one for each that goes on, as many as there are symbols where there are fewer.
    pub fn candidates(&self) -> usize {
        2 * self.options.width
    }

    /// The rows of the next step, one for each of the width; `None` for a row that is not needed.
    pub fn rows(&self) -> &[Option<BeamRow>] {
        &self.rows
    }

    /// Steps taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether the answers are known.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the best continuations of each row, in any order. Allocates nothing unless there are
    /// more than [`BeamSearch::candidates`] of a row.
    pub fn advance(&mut self, candidates: &[Candidate]) {
        if self.is_over {
            return;
        }
        let width = self.options.width;
        self.steps += 1;
        std::mem::swap(&mut self.rows, &mut self.before);
        self.rows.fill(None);
        let before = &self.before;
        let rank = |c: &Candidate| before[c.row].map_or(usize::MAX, |row| row.rank);
        self.sorted.clear();
        (self.sorted).extend(candidates.iter().filter(|c| before[c.row].is_some()));
        self.sorted.sort_unstable_by(|a, b| {
            (b.score.total_cmp(&a.score))
                .then(rank(a).cmp(&rank(b)))
                .then(b.logit.total_cmp(&a.logit))
                .then(a.symbol.cmp(&b.symbol))
        });
        self.sorted.truncate(2 * width);
        let mut live = 0;
        for place in 0..self.sorted.len() {
            let candidate = self.sorted[place];
            let last = self.before[candidate.row].and_then(|row| row.last);
            if candidate.symbol != self.options.eos {
                if live < width {
                    self.sorted[live] = candidate;
                    live += 1;
                }
            } else if place < width {
                self.answer(last, candidate.score, true);
            }
        }
        self.sorted.truncate(live);
        let ended = self.answers.len() >= width;
        if !ended {
            self.place();
        }
        if ended || live == 0 || self.steps == self.options.limit {
            self.end();
        }
    }

    /// Gives each candidate that goes on a row: the best of a parent the parent's, the others
    /// those of hypotheses without continuation.
    fn place(&mut self) {
        let first = self.symbols.len();
        for candidate in &self.sorted {
            self.symbols.push(Link {
                symbol: candidate.symbol,
                before: self.before[candidate.row].and_then(|parent| parent.last),
            });
        }
        let row = |rank: usize, candidate: &Candidate| BeamRow {
            parent: candidate.row,
            symbol: candidate.symbol,
            score: candidate.score,
            rank,
            last: Some(first + rank),
        };
        for (rank, candidate) in self.sorted.iter().enumerate() {
            self.rows[candidate.row].get_or_insert(row(rank, candidate));
        }
        let mut free = 0;
        for (rank, candidate) in self.sorted.iter().enumerate() {
            if self.rows[candidate.row].is_some_and(|row| row.rank == rank) {
                continue;
            }
            while self.rows[free].is_some() {
                free += 1;
            }
            self.rows[free] = Some(row(rank, candidate));
        }
    }

    fn answer(&mut self, last: Option<usize>, score: f32, ended: bool) {
        self.answers.push(Answer {
            last,
            score: self.options.penalised(score, self.steps),
            ended,
            earlier: self.answers.len(),
            end: 0,
        });
    }

    /// The best answers. Those that the limit cut off stand in for what is missing to the width.
    fn end(&mut self) {
        self.is_over = true;
        let width = self.options.width;
        for index in 0..width {
            if let Some(row) = self.rows[index].take() {
                self.answer(row.last, row.score, false);
            }
        }
        self.answers.sort_unstable_by(|a, b| {
            (b.ended.cmp(&a.ended))
                .then(b.score.total_cmp(&a.score))
                .then(a.earlier.cmp(&b.earlier))
        });
        self.answers.truncate(width);
        for answer in &mut self.answers {
            let first = self.spelled.len();
            let mut last = answer.last;
            while let Some(Link { symbol, before }) = last.map(|last| self.symbols[last]) {
                self.spelled.push(symbol);
                last = before;
            }
            self.spelled[first..].reverse();
            answer.end = self.spelled.len();
        }
    }

    /// The answers, the best first, as many as the width: first those that ended, then those that
    /// the limit cut off. None while the search goes on.
    pub fn hypotheses(&self) -> impl ExactSizeIterator<Item = Hypothesis<'_>> {
        let known = if self.is_over { self.answers.len() } else { 0 };
        (0..known).map(|index| {
            let first = match index {
                0 => 0,
                _ => self.answers[index - 1].end,
            };
            let Answer {
                score, ended, end, ..
            } = self.answers[index];
            Hypothesis {
                symbols: &self.spelled[first..end],
                score,
                ended,
            }
        })
    }
}
