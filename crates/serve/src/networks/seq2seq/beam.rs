//! Decoding by beam search: the hypotheses of a request are rows of one batch, together with those
//! of other requests.
//!
//! ```text
//! start:    rows of all hypotheses, of which the first has the encoder's states
//! decoder:  states of rows with another parent = the parent's states
//!           rows of all requests: embedding, recurrent step, projection
//!           candidates = the best continuations of each row
//! between:  the search of the request chooses among its candidates (`BeamSearch`)
//! ```
//!
//! One node of a request computes all its hypotheses. So their states are the states of the node's
//! cell, which stay where they are between steps, and only a second continuation of a row copies.

use super::{DecoderCell, Embedded, Encoder, NetworkError, SourceEncoder};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, DynamicGraph, Graph, Growth, NodeId,
    NodeOutputs, Ports, PreparedCell, WorkerEnv,
};
use gatestream::execute::team::SharedTeam;
use gatestream::kernels::{Isa, RowKernels, RowsMut, row_kernels};
use gatestream::layers::{BeamOptions, BeamRow, BeamSearch, Candidate, Dense, best_continuations};

/// Values of a row of the next step: its parent, its symbol, its score.
const ROW: usize = 3;
/// Values of a candidate: its symbol, its score, its logit.
const CANDIDATE: usize = 3;
/// The symbol of a candidate, or the parent of a row, that does not exist.
const ABSENT: f32 = -1.0;
/// The symbol of the first candidate of a row whose logits are no numbers.
const NOT_A_NUMBER: f32 = -2.0;

/// The states of all rows, of which the first is the encoder's and the others are zero.
struct StartCell {
    width: usize,
    ports: Ports,
}

impl StartCell {
    fn new(states: &[usize], width: usize) -> StartCell {
        let mut ports = Ports::new();
        for (index, size) in states.iter().enumerate() {
            ports = ports.input(format!("state{index}"), *size);
        }
        for (index, size) in states.iter().enumerate() {
            ports = ports.output(format!("rows{index}"), width * size);
        }
        StartCell { width, ports }
    }
}

impl Cell for StartCell {
    fn name(&self) -> &str {
        "beam start"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let sizes = self.ports.inputs().iter().map(|port| port.width());
        Ok(Box::new(PreparedStart {
            width: self.width,
            sizes: sizes.collect(),
        }))
    }
}

struct PreparedStart {
    width: usize,
    sizes: Vec<usize>,
}

impl PreparedCell for PreparedStart {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let rows = batch.rows();
        for (port, &size) in self.sizes.iter().enumerate() {
            let from = batch.input(port);
            let (_, mut outputs) = batch.written();
            let Some(mut to) = outputs.nth(port) else {
                continue;
            };
            for row in 0..rows {
                let (first, others) = to.row(row, self.width * size).split_at_mut(size);
                first.copy_from_slice(from.row(row, size));
                others.fill(0.0);
            }
        }
        Ok(())
    }
}

/// A step of all hypotheses of a request. Input `rows` `[width, 3]`, states as those of the decoder
/// for each row, output `candidates` `[width, 2 * width, 3]`.
struct BeamCell {
    decoder: DecoderCell,
    width: usize,
    ports: Ports,
}

impl BeamCell {
    fn new(decoder: DecoderCell, width: usize) -> BeamCell {
        let mut ports = Ports::new().input("rows", ROW * width);
        for (index, size) in decoder.recurrent.states().iter().enumerate() {
            ports = ports.state(format!("rows{index}"), width * size);
        }
        let ports = ports.output("candidates", CANDIDATE * width * 2 * width);
        BeamCell {
            decoder,
            width,
            ports,
        }
    }
}

impl Cell for BeamCell {
    fn name(&self) -> &str {
        "beam decoder"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        self.decoder.cost()
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let DecoderCell {
            embedding,
            recurrent,
            weights,
            bias,
            ..
        } = &self.decoder;
        let isa = Isa::select().map_err(CellError::new)?;
        let rows = env.rows.saturating_mul(self.width);
        let env = WorkerEnv {
            rows,
            steps: 1,
            step_rows: rows,
            ..env.clone()
        };
        // First the part that refuses more rows than the memory holds.
        let step = Embedded::new(embedding, recurrent, &env)?;
        let projection = Dense::on_team(weights, bias, isa, &env.team).map_err(CellError::new)?;
        Ok(Box::new(PreparedBeam {
            step,
            sizes: recurrent.states(),
            top: recurrent.top(),
            logits: vec![0.0; rows * projection.outputs()],
            projection,
            team: env.team,
            kernels: row_kernels(isa).map_err(CellError::new)?,
            width: self.width,
            best: vec![Candidate::default(); 2 * self.width],
        }))
    }
}

struct PreparedBeam {
    step: Embedded,
    /// Sizes of the states of one row.
    sizes: Vec<usize>,
    /// Index of the state of the model that is its output.
    top: usize,
    projection: Dense,
    /// `[rows * width, symbols]`.
    logits: Vec<f32>,
    team: SharedTeam,
    kernels: Box<dyn RowKernels>,
    width: usize,
    best: Vec<Candidate>,
}

impl PreparedBeam {
    /// Copies the states of rows with another parent.
    fn copy_states(&self, batch: &mut Batch<'_>) {
        let (requests, next) = (batch.rows(), batch.input(0));
        let (states, _) = batch.written();
        for (mut states, &size) in states.zip(&self.sizes) {
            for request in 0..requests {
                let next = next.row(request, ROW * self.width).chunks_exact(ROW);
                let states = states.row(request, self.width * size);
                for (row, next) in next.enumerate() {
                    let parent = next[0] as usize;
                    if next[0] != ABSENT && parent != row {
                        states.copy_within(parent * size..(parent + 1) * size, row * size);
                    }
                }
            }
        }
    }

    /// Writes the best continuations of each row.
    fn candidates(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let (requests, next) = (batch.rows(), batch.input(0));
        let (symbols, width) = (self.projection.outputs(), self.width);
        let (_, mut outputs) = batch.written();
        let mut outputs = outputs.next().ok_or_else(no_port)?;
        for request in 0..requests {
            let next = next.row(request, ROW * width).chunks_exact(ROW);
            let of_request = outputs.row(request, CANDIDATE * width * 2 * width);
            let rows = of_request.chunks_exact_mut(CANDIDATE * 2 * width);
            for (row, (next, to)) in next.zip(rows).enumerate() {
                to.fill(ABSENT);
                if next[0] == ABSENT {
                    continue;
                }
                let logits = &self.logits[(request * width + row) * symbols..][..symbols];
                let hypothesis = (row, next[2]);
                let found = best_continuations(&*self.kernels, hypothesis, logits, &mut self.best);
                let Some(found) = found else {
                    to[0] = NOT_A_NUMBER;
                    continue;
                };
                let best = self.best[..found].iter();
                for (candidate, to) in best.zip(to.chunks_exact_mut(CANDIDATE)) {
                    to.copy_from_slice(&[
                        candidate.symbol as f32,
                        candidate.score,
                        candidate.logit,
                    ]);
                }
            }
        }
        Ok(())
    }
}

fn no_port() -> CellError {
    CellError::new("a beam decoder has states and an output")
}

impl PreparedCell for PreparedBeam {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        self.copy_states(batch);
        let (requests, next) = (batch.rows(), batch.input(0));
        let rows = requests * self.width;
        // Rows that do not exist yet are computed as well: those of a request are contiguous.
        let symbols = (0..requests)
            .flat_map(|request| next.row(request, ROW * self.width).chunks_exact(ROW))
            .map(|next| next[1].max(0.0));
        let (states, _) = batch.written();
        let states = states
            .filter_map(RowsMut::into_buffer)
            .zip(&self.sizes)
            .map(|(states, &size)| RowsMut::contiguous(states, size));
        self.step.step(symbols, rows, None, states)?;
        let (states, _) = batch.written();
        let y = states.filter_map(RowsMut::into_buffer).nth(self.top);
        let y = &y.ok_or_else(no_port)?[..rows * self.sizes[self.top]];
        let logits = &mut self.logits[..rows * self.projection.outputs()];
        (self.projection.run_on(&self.team, y, logits)).map_err(CellError::new)?;
        self.candidates(batch)
    }
}

/// An encoder, and a decoder that searches with a beam, in [`Cells`]; unfolds source sequences.
///
/// The hypotheses of one request are rows of one batch. A width of 1 gives the answers of
/// [`super::Seq2Seq`].
///
/// ```
/// use gatestream::layers::{BeamOptions, Embedding};
/// use gatestream::model::{Lstm, Matrix};
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{
///     BeamSeq2Seq, DecoderCell, EncoderCell, beam_answers, run_unbatched,
/// };
///
/// let (symbols, hidden) = (5, 8);
/// let table = |value| {
///     Embedding::new(Matrix::new(symbols, 3, vec![value; symbols * 3]).unwrap())
/// };
/// let encoder = EncoderCell::new(table(0.1), Lstm::new(3, hidden).random(1)?)?;
/// let weights = Matrix::new(symbols, hidden, vec![0.1; symbols * hidden])?;
/// let bias = vec![0.0, 2.0, 0.0, 1.0, 0.0];
/// let decoder = DecoderCell::new(table(0.2), Lstm::new(3, hidden).random(2)?, weights, bias)?;
///
/// let mut cells = Cells::new();
/// let options = BeamOptions::new(0, 1, 4, 3).length_penalty(0.6);
/// let network = BeamSeq2Seq::add(&mut cells, encoder, decoder, options)?;
/// let (graph, search) = network.unfold(&[3, 1, 4])?;
/// let response = run_unbatched(&cells, graph, Some(Box::new(search)))?;
/// let answers: Vec<_> = beam_answers(&response).collect();
/// assert_eq!((answers.len(), &answers[1].symbols[..]), (3, &[3.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BeamSeq2Seq {
    encoder: SourceEncoder,
    start: CellId,
    decoder: CellId,
    options: BeamOptions,
}

impl BeamSeq2Seq {
    /// Adds the cells, the decoder last, so that it has preference.
    ///
    /// # Errors
    /// As [`super::Seq2Seq::add`], for the `bos` and the `eos` of `options`;
    /// [`NetworkError::Layer`] for a width of 0, or a limit that memory has no room for.
    pub fn add(
        cells: &mut Cells,
        encoder: impl Into<Encoder>,
        decoder: DecoderCell,
        options: BeamOptions,
    ) -> Result<BeamSeq2Seq, NetworkError> {
        decoder.embedding.row(options.bos)?;
        decoder.embedding.row(options.eos)?;
        BeamSearch::new(options)?;
        let states = decoder.recurrent.states();
        Ok(BeamSeq2Seq {
            encoder: SourceEncoder::add(cells, encoder.into(), &decoder)?,
            start: cells.add(StartCell::new(&states, options.width)),
            decoder: cells.add(BeamCell::new(decoder, options.width)),
            options,
        })
    }

    /// The cell of the encoder.
    pub fn encoder(&self) -> CellId {
        self.encoder.cell()
    }

    /// The cell of the decoder.
    pub fn decoder(&self) -> CellId {
        self.decoder
    }

    /// The graph of a source, up to the first step of the decoder, and the function that adds the
    /// others. The response is read with [`beam_answers`].
    ///
    /// # Errors
    /// [`NetworkError::Empty`] for a source without symbols, [`NetworkError::Layer`] for a symbol
    /// without a row in its embedding.
    pub fn unfold(&self, source: &[usize]) -> Result<(Graph, BeamDecoding), NetworkError> {
        let search = BeamSearch::new(self.options)?;
        let mut graph = Graph::new();
        let mut sources = self.encoder.unfold(&mut graph, source)?;
        let decoding = BeamDecoding {
            decoder: self.decoder,
            states: self.encoder.states,
            search,
        };
        if decoding.search.is_over() {
            let answers = graph.give(&decoding.response());
            graph.answer(answers);
        } else {
            let start = graph.node(self.start, &sources[1..]);
            sources[0] = graph.give(&decoding.rows());
            for (state, source) in sources[1..].iter_mut().enumerate() {
                *source = start.output(state);
            }
            let first = graph.node(self.decoder, &sources);
            graph.watch(first);
        }
        Ok((graph, decoding))
    }
}

/// Adds the next step of a beam search to the graph of its request.
#[derive(Clone, Debug)]
pub struct BeamDecoding {
    decoder: CellId,
    states: usize,
    search: BeamSearch,
}

impl BeamDecoding {
    /// The rows of the next step, as the decoder's input.
    fn rows(&self) -> Vec<f32> {
        let row = |row: &Option<BeamRow>| match row {
            Some(row) => [row.parent as f32, row.symbol as f32, row.score],
            None => [ABSENT; ROW],
        };
        self.search.rows().iter().flat_map(row).collect()
    }

    /// All answers: see [`beam_answers`].
    fn response(&self) -> Vec<f32> {
        let mut response = Vec::new();
        for answer in self.search.hypotheses() {
            let ended = f32::from(u8::from(answer.ended));
            response.extend([answer.symbols.len() as f32, answer.score, ended]);
            response.extend(answer.symbols.iter().map(|&symbol| symbol as f32));
        }
        response
    }

    /// The candidates of a step; `None` where a logit is not a number.
    fn candidates(&self, output: &[f32]) -> Option<Vec<Candidate>> {
        let of_row = CANDIDATE * self.search.candidates();
        let mut candidates = Vec::new();
        for (row, values) in output.chunks_exact(of_row).enumerate() {
            for value in values.chunks_exact(CANDIDATE) {
                match value[0] {
                    NOT_A_NUMBER => return None,
                    ABSENT => break,
                    symbol => candidates.push(Candidate {
                        row,
                        symbol: symbol as usize,
                        score: value[1],
                        logit: value[2],
                    }),
                }
            }
        }
        Some(candidates)
    }
}

impl DynamicGraph for BeamDecoding {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let Some(candidates) = self.candidates(outputs.port(self.states)) else {
            return more.fail(
                "an output of the decoder is not a number, so none is the most probable; check \
                 the source's symbols and the weights",
            );
        };
        self.search.advance(&candidates);
        if self.search.is_over() {
            let answers = more.give(&self.response());
            return more.answer(answers);
        }
        let mut sources = vec![more.give(&self.rows())];
        sources.extend((0..self.states).map(|state| node.output(state)));
        let next = more.node(self.decoder, &sources);
        more.watch(next);
    }
}

/// An answer of a beam search, in the response of its request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamAnswer<'a> {
    /// The symbols, without those that begin and end the answer.
    pub symbols: &'a [f32],
    /// Logarithm of its probability, divided by the length penalty.
    pub score: f32,
    /// Whether it came to its end; else the limit cut it off.
    pub ended: bool,
}

/// The answers in the response of a [`BeamSeq2Seq`], the best first: `symbols, score, ended` of
/// each as a header of three values, then its symbols. Ends early where `response` is none.
pub fn beam_answers(response: &[f32]) -> impl Iterator<Item = BeamAnswer<'_>> {
    let mut left = response;
    std::iter::from_fn(move || {
        let (&[count, score, ended], others) = left.split_first_chunk::<3>()?;
        let (symbols, after) = others.split_at_checked(count as usize)?;
        left = after;
        Some(BeamAnswer {
            symbols,
            score,
            ended: ended == 1.0,
        })
    })
}
