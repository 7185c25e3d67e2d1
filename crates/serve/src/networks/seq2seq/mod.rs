//! Encoder and decoder for sequences of symbols; the decoder reads its previous symbol (BatchMaker,
//! section 7.4 and figure 12).
//!
//! ```text
//! state = zeros
//! for each symbol of the source:  state = encoder step of (embedding of symbol, state)
//! previous = go
//! repeat
//!   state, y = decoder step of (embedding of previous, state)
//!   previous = argmax(W y + b)
//! ```
//!
//! The symbol of a decoder is a state of its cell, so a chain of decoder steps copies nothing from
//! one node to the next.

mod beam;

pub use beam::{BeamAnswer, BeamDecoding, BeamSeq2Seq, beam_answers};

use std::sync::Arc;

use super::NetworkError;
use super::error::expect;
use super::recurrent::Recurrent;
use super::{Whole, WholeCell};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, DynamicGraph, Graph, Growth, NodeId,
    NodeOutputs, Ports, PreparedCell, Source, WorkerEnv,
};
use gatestream::execute::{
    Backend, PreparedModel, ResidentModel, ResidentProjection, ResidentRoom, Steps,
};
use gatestream::kernels::{Isa, RowsMut, RowsRef, recycle_vec};
use gatestream::layers::{Argmax, Embedding, LayerError, MAX_SYMBOLS};
use gatestream::model::{Matrix, Model};
use gatestream::plan::Plan;

/// A step of an encoder: the embedding of a symbol, then a step of a forward model.
///
/// Input `symbol` `[1]`; states as those of a [`super::ChainCell`]. A symbol without a row in the
/// table makes the states NaN. This ends only its own request, when a decoder finds no maximum.
pub struct EncoderCell {
    embedding: Arc<Embedding>,
    recurrent: Recurrent,
    ports: Ports,
}

impl EncoderCell {
    /// An encoder of these parts.
    ///
    /// # Errors
    /// [`NetworkError::Reverse`]; [`NetworkError::Layer`] if the widths of the embedding and of the
    /// model differ, or there are more than [`MAX_SYMBOLS`] symbols.
    pub fn new(
        embedding: impl Into<Arc<Embedding>>,
        model: impl Into<Arc<Model>>,
    ) -> Result<EncoderCell, NetworkError> {
        let (embedding, recurrent) = (embedding.into(), Recurrent::new(model.into())?);
        check_embedding(&embedding, &recurrent)?;
        let ports = recurrent.add_states(Ports::new().input("symbol", 1));
        Ok(EncoderCell {
            embedding,
            recurrent,
            ports,
        })
    }

    /// As [`super::ChainCell::with_plan`].
    ///
    /// # Errors
    /// [`NetworkError::Plan`].
    pub fn with_plan(mut self, plan: Plan) -> Result<EncoderCell, NetworkError> {
        self.recurrent.with_plan(plan)?;
        Ok(self)
    }

    /// Runs on this backend instead of the cores of each worker. If it keeps
    /// [states](Backend::prepare_resident), the embedding is there, too.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> EncoderCell {
        self.with_backends([backend])
    }

    /// As [`super::ChainCell::with_backends`].
    #[must_use]
    pub fn with_backends(
        mut self,
        backends: impl IntoIterator<Item = Arc<dyn Backend>>,
    ) -> EncoderCell {
        self.recurrent.with_backends(backends.into_iter().collect());
        self
    }
}

fn check_embedding(embedding: &Embedding, recurrent: &Recurrent) -> Result<(), LayerError> {
    if embedding.symbols() == 0 || embedding.symbols() > MAX_SYMBOLS {
        return Err(LayerError::ManySymbols {
            symbols: embedding.symbols(),
        });
    }
    fits(
        ("the recurrent model", recurrent.model().signature().input),
        ("the embedding", embedding.features()),
    )
}

fn fits(
    (upper, takes): (&'static str, usize),
    (lower, gives): (&'static str, usize),
) -> Result<(), LayerError> {
    if takes == gives {
        Ok(())
    } else {
        Err(LayerError::DoesNotFit {
            upper,
            takes,
            lower,
            gives,
        })
    }
}

impl Cell for EncoderCell {
    fn name(&self) -> &str {
        "encoder"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        self.recurrent.cost()
    }

    fn supports_multiple_steps(&self) -> bool {
        true
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(PreparedEncoder(Embedded::new(
            &self.embedding,
            &self.recurrent,
            env,
        )?)))
    }

    fn prepare_resident(
        &self,
        env: &WorkerEnv,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, CellError> {
        let embedding = Some(&*self.embedding);
        self.recurrent.prepare_resident(env, room, embedding, None)
    }
}

struct PreparedEncoder(Embedded);

impl PreparedCell for PreparedEncoder {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let (rows, lengths) = (batch.rows(), batch.lengths());
        let (input, all) = (batch.input(0), batch.steps() * rows);
        let symbols = (0..all).map(|row| input.row(row, 1)[0]);
        let (states, _) = batch.written();
        self.0.step(symbols, rows, lengths, states)
    }
}

/// An embedding and a model above it.
struct Embedded {
    embedding: Arc<Embedding>,
    model: Box<dyn PreparedModel>,
    /// Empty between runs: capacity for a row of each step.
    x: Vec<&'static [f32]>,
    /// The embedding of a symbol without a row in the table.
    unknown: Vec<f32>,
}

impl Embedded {
    fn new(
        embedding: &Arc<Embedding>,
        recurrent: &Recurrent,
        env: &WorkerEnv,
    ) -> Result<Embedded, CellError> {
        Ok(Embedded {
            embedding: Arc::clone(embedding),
            model: recurrent.prepare(env)?,
            x: Vec::with_capacity(env.steps * env.rows),
            unknown: vec![f32::NAN; embedding.features()],
        })
    }

    /// A step of `rows` rows, or `lengths` steps.
    fn step<'s>(
        &mut self,
        symbols: impl Iterator<Item = f32>,
        rows: usize,
        lengths: Option<&[usize]>,
        mut states: impl Iterator<Item = RowsMut<'s>>,
    ) -> Result<(), CellError> {
        let row = |symbol: f32| -> &[f32] {
            let index = symbol as usize;
            match self.embedding.row(index) {
                Ok(row) if index as f32 == symbol => row,
                _ => &self.unknown,
            }
        };
        let mut list: Vec<&[f32]> = std::mem::take(&mut self.x);
        list.extend(symbols.map(row));
        let x = RowsRef::gathered(&list);
        let steps = match lengths {
            Some(lengths) => Steps::several(lengths, x),
            None => Steps::one(rows, x),
        };
        let stepped = self.model.step_rows(steps, &mut states, None);
        self.x = recycle_vec(list);
        stepped.map_err(CellError::new)
    }
}

/// A step of a decoder: the embedding of the previous symbol, a step of a forward model, and the
/// symbol of the maximum of a projection, the lowest of equal ones.
///
/// States: `symbol` `[1]`, first the previous symbol, then the new one; after it those of a
/// [`super::ChainCell`]. If an output is NaN, the symbol is NaN, which ends the request of that row
/// ([`FeedPrevious`]), and no other.
pub struct DecoderCell {
    embedding: Arc<Embedding>,
    recurrent: Recurrent,
    weights: Arc<Matrix>,
    bias: Vec<f32>,
    ports: Ports,
}

impl DecoderCell {
    /// A decoder of these parts. The projection has `weights` `[symbols, output]` and `bias`
    /// `[symbols]`, and the precision of its weights ([`Argmax`]), independent of that of the
    /// model. Large f32 projections are screened in int8 first; the result is that of f32.
    /// [`Matrix::in_precision`] also saves memory and changes the results.
    ///
    /// # Errors
    /// As [`EncoderCell::new`]; [`NetworkError::Layer`] also if the widths of the model and of the
    /// projection differ, or the projection has another number of symbols than the embedding.
    pub fn new(
        embedding: impl Into<Arc<Embedding>>,
        model: impl Into<Arc<Model>>,
        weights: impl Into<Arc<Matrix>>,
        bias: Vec<f32>,
    ) -> Result<DecoderCell, NetworkError> {
        let (embedding, recurrent) = (embedding.into(), Recurrent::new(model.into())?);
        let weights = weights.into();
        check_embedding(&embedding, &recurrent)?;
        let output = recurrent.model().signature().output;
        fits(
            ("the projection", weights.cols()),
            ("the recurrent model", output),
        )?;
        // The embedding reads the symbols of the projection.
        fits(
            ("the embedding", embedding.symbols()),
            ("the projection", weights.rows()),
        )?;
        expect("bias", bias.len(), weights.rows())?;
        let ports = recurrent.add_states(Ports::new().state("symbol", 1));
        Ok(DecoderCell {
            embedding,
            recurrent,
            weights,
            bias,
            ports,
        })
    }

    /// Uses this plan for the recurrent model, as [`super::ChainCell::with_plan`]. It does not set
    /// the batch sizes, because a plan does not time the projection, often the largest part of a
    /// step. [`calibrate`](crate::engine::calibrate) finds them (`gatestream load --calibrate`);
    /// set them with [`EngineOptions::sizes`](crate::engine::EngineOptions).
    ///
    /// # Errors
    /// [`NetworkError::Plan`].
    pub fn with_plan(mut self, plan: Plan) -> Result<DecoderCell, NetworkError> {
        self.recurrent.with_plan(plan)?;
        Ok(self)
    }

    /// Runs the recurrent model on this backend. If it keeps [states](Backend::prepare_resident),
    /// embedding and projection are there, too; otherwise they stay on the cores of each worker, as
    /// those of a beam search always do.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> DecoderCell {
        self.with_backends([backend])
    }

    /// As [`super::ChainCell::with_backends`].
    #[must_use]
    pub fn with_backends(
        mut self,
        backends: impl IntoIterator<Item = Arc<dyn Backend>>,
    ) -> DecoderCell {
        self.recurrent.with_backends(backends.into_iter().collect());
        self
    }
}

impl Cell for DecoderCell {
    fn name(&self) -> &str {
        "decoder"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        // A plan does not time the projection.
        CellCost::of_weight_bytes(self.recurrent.cost().weight_bytes + self.weights.bytes())
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let isa = Isa::select().map_err(CellError::new)?;
        // First the part that refuses more rows than the memory holds.
        let step = Embedded::new(&self.embedding, &self.recurrent, env)?;
        let projection = Argmax::new(&self.weights, &self.bias, isa, &env.team, env.rows);
        Ok(Box::new(PreparedDecoder {
            step,
            top: self.recurrent.top(),
            projection: projection.map_err(CellError::new)?,
        }))
    }

    fn prepare_resident(
        &self,
        env: &WorkerEnv,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, CellError> {
        let (embedding, bias) = (Some(&*self.embedding), &self.bias[..]);
        let weights = &*self.weights;
        let projection = Some(ResidentProjection { weights, bias });
        self.recurrent
            .prepare_resident(env, room, embedding, projection)
    }
}

struct PreparedDecoder {
    step: Embedded,
    /// Index of the state of the model that is its output.
    top: usize,
    projection: Argmax,
}

impl PreparedCell for PreparedDecoder {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let rows = batch.rows();
        let no_states = || CellError::new("a decoder has states");
        let (mut states, _) = batch.written();
        let mut symbols = states.next().ok_or_else(no_states)?;
        let previous = (0..rows).map(|row| symbols.row(row, 1)[0]);
        self.step.step(previous, rows, None, states)?;
        let (states, _) = batch.written();
        let mut states = states.filter_map(RowsMut::into_buffer);
        let symbols = states.next().ok_or_else(no_states)?;
        let y = states.nth(self.top).ok_or_else(no_states)?;
        self.projection.run(y, symbols).map_err(CellError::new)
    }
}

/// The stopping criterion of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At this symbol, which is not part of the response, or after `limit` symbols.
    Eos {
        /// The symbol that ends a response.
        eos: usize,
        /// Maximum number of symbols of a response.
        limit: usize,
    },
    /// After this number of symbols: for measurements, as BatchMaker's.
    Steps(usize),
}

/// An encoder and a decoder in [`Cells`]; unfolds source sequences.
///
/// ```
/// use gatestream::layers::Embedding;
/// use gatestream::model::{Lstm, Matrix};
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{DecoderCell, EncoderCell, Seq2Seq, Until, run_unbatched};
///
/// let (symbols, hidden) = (5, 8);
/// let matrix = |seed| Matrix::new(symbols, 3, vec![0.1 * seed as f32; symbols * 3]).unwrap();
/// let table = |seed| Embedding::new(matrix(seed));
/// let encoder = EncoderCell::new(table(1), Lstm::new(3, hidden).random(1)?)?;
/// let weights = Matrix::new(symbols, hidden, vec![0.1; symbols * hidden])?;
/// let bias = vec![0.0, 0.0, 0.5, 0.0, 0.0];
/// let decoder = DecoderCell::new(table(2), Lstm::new(3, hidden).random(2)?, weights, bias)?;
///
/// let mut cells = Cells::new();
/// let network = Seq2Seq::add(&mut cells, encoder, decoder, 0)?;
/// let (graph, decoding) = network.unfold(&[3, 1, 4], Until::Eos { eos: 1, limit: 4 })?;
/// let answer = run_unbatched(&cells, graph, Some(Box::new(decoding)))?;
/// assert_eq!(answer, [2.0; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Seq2Seq {
    encoder: SourceEncoder,
    decoder: CellId,
    target_symbols: usize,
    go: usize,
}

/// The encoder of a [`Seq2Seq`] or [`BeamSeq2Seq`].
pub enum Encoder {
    /// One symbol at a time; the decoder has as many layers.
    Steps(EncoderCell),
    /// Whole sequences: the encoder may be bidirectional. The decoder has one layer, which begins
    /// with the final states of all layers and directions of the encoder, one after the other.
    Whole {
        /// The features of the symbols.
        embedding: Arc<Embedding>,
        /// The recurrent model.
        cell: WholeCell,
    },
}

impl From<EncoderCell> for Encoder {
    fn from(cell: EncoderCell) -> Encoder {
        Encoder::Steps(cell)
    }
}

/// The encoder in [`Cells`], for a decoder that takes its states.
#[derive(Clone, Debug)]
struct SourceEncoder {
    kind: SourceKind,
    states: usize,
    symbols: usize,
}

#[derive(Clone, Debug)]
enum SourceKind {
    Steps(CellId),
    Whole {
        embedding: Arc<Embedding>,
        whole: Whole,
    },
}

impl SourceEncoder {
    /// Adds the cell.
    fn add(
        cells: &mut Cells,
        encoder: Encoder,
        decoder: &DecoderCell,
    ) -> Result<SourceEncoder, NetworkError> {
        let (leaves, symbols) = match &encoder {
            Encoder::Steps(cell) => (cell.recurrent.states(), cell.embedding.symbols()),
            Encoder::Whole { embedding, cell } => {
                check_embedding(embedding, cell.recurrent())?;
                (cell.states(), embedding.symbols())
            }
        };
        let takes = decoder.recurrent.states();
        if leaves != takes {
            return Err(NetworkError::States {
                encoder: leaves,
                decoder: takes,
            });
        }
        Ok(SourceEncoder {
            kind: match encoder {
                Encoder::Steps(cell) => SourceKind::Steps(cells.add(cell)),
                Encoder::Whole { embedding, cell } => SourceKind::Whole {
                    embedding,
                    whole: Whole::add(cells, cell),
                },
            },
            states: takes.len(),
            symbols,
        })
    }

    fn cell(&self) -> CellId {
        match &self.kind {
            SourceKind::Steps(cell) => *cell,
            SourceKind::Whole { whole, .. } => whole.cell(),
        }
    }

    /// Adds the nodes of a source; returns room for an input, and the final states.
    fn unfold(&self, graph: &mut Graph, source: &[usize]) -> Result<Vec<Source>, NetworkError> {
        if source.is_empty() {
            return Err(NetworkError::Empty {
                what: "source symbol",
            });
        }
        let mut sources = vec![Source::Zeros; 1 + self.states];
        match &self.kind {
            SourceKind::Steps(cell) => {
                for &symbol in source {
                    known(symbol, self.symbols)?;
                    sources[0] = graph.give(&[symbol as f32]);
                    let node = graph.node(*cell, &sources);
                    for (state, source) in sources[1..].iter_mut().enumerate() {
                        *source = node.output(state);
                    }
                }
            }
            SourceKind::Whole { embedding, whole } => {
                let mut features = vec![0.0; source.len() * embedding.features()];
                embedding.run(source, &mut features)?;
                sources[0] = graph.give(&features);
                let node = graph.node_of_lengths(whole.cell(), &sources, &[source.len()]);
                sources[1] = node.output(whole.hn());
                if let Some(cn) = whole.cn() {
                    sources[2] = node.output(cn);
                }
            }
        }
        Ok(sources)
    }
}

/// Refuses a symbol that is not below `symbols`.
fn known(symbol: usize, symbols: usize) -> Result<(), LayerError> {
    if symbol < symbols {
        Ok(())
    } else {
        Err(LayerError::Symbol { symbol, symbols })
    }
}

impl Seq2Seq {
    /// Adds both cells, the decoder last, so that it has preference. `go` is the first input of the
    /// decoder.
    ///
    /// # Errors
    /// [`NetworkError::States`] if encoder and decoder have different states;
    /// [`NetworkError::Layer`] if `go` has no row in the decoder's embedding.
    pub fn add(
        cells: &mut Cells,
        encoder: impl Into<Encoder>,
        decoder: DecoderCell,
        go: usize,
    ) -> Result<Seq2Seq, NetworkError> {
        decoder.embedding.row(go)?;
        Ok(Seq2Seq {
            target_symbols: decoder.embedding.symbols(),
            encoder: SourceEncoder::add(cells, encoder.into(), &decoder)?,
            decoder: cells.add(decoder),
            go,
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

    /// The graph of a source, with a node for each symbol and the first of the decoder, and the
    /// function that adds the others. The response is the symbols of the decoder; each is also a
    /// part ([`Request::on_part`](crate::engine::Request::on_part)).
    ///
    /// # Errors
    /// [`NetworkError::Empty`] for a source without symbols, [`NetworkError::Layer`] for a symbol
    /// without a row in its embedding.
    pub fn unfold(
        &self,
        source: &[usize],
        until: Until,
    ) -> Result<(Graph, FeedPrevious), NetworkError> {
        let mut graph = Graph::new();
        let mut sources = self.encoder.unfold(&mut graph, source)?;
        let (eos, left) = match until {
            Until::Eos { eos, limit } => {
                known(eos, self.target_symbols)?;
                (Some(eos), limit)
            }
            Until::Steps(steps) => (None, steps),
        };
        if left > 0 {
            sources[0] = graph.give(&[self.go as f32]);
            let first = graph.node(self.decoder, &sources);
            graph.watch(first);
        }
        let decoding = FeedPrevious {
            decoder: self.decoder,
            states: self.encoder.states,
            eos: eos.map(|eos| eos as f32),
            left,
        };
        Ok((graph, decoding))
    }
}

/// Adds the next step of a decoder, with the previous symbol as its input.
#[derive(Clone, Debug)]
pub struct FeedPrevious {
    decoder: CellId,
    states: usize,
    eos: Option<f32>,
    /// Remaining symbols.
    left: usize,
}

impl DynamicGraph for FeedPrevious {
    fn reads(&self, port: usize) -> bool {
        port == 0
    }

    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let symbol = outputs.port(0)[0];
        if symbol.is_nan() {
            return more.fail(
                "no output of the decoder is the greatest, since one is not a number; check the \
                 source's symbols and the weights",
            );
        }
        if Some(symbol) == self.eos {
            return;
        }
        more.part(&[symbol]);
        more.answer(node.output(0));
        self.left -= 1;
        if self.left > 0 {
            let sources: Vec<Source> = (0..=self.states).map(|state| node.output(state)).collect();
            let next = more.node(self.decoder, &sources);
            more.watch(next);
        }
    }
}
