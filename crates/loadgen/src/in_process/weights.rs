//! Random weights of a network, and the cells and requests made of them.

use std::sync::Arc;

use super::ServedShape;
use crate::workload::{Network, RequestShape, RequestSpec, Tree};
use gatestream::execute::Backend;
use gatestream::layers::Embedding;
use gatestream::model::{Gru, Lstm, Matrix, Model};
use gatestream_command::Failure;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine::Request;
use gatestream_serve::networks::{
    BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, ChildSumTreeLstm, ChildSumWeights,
    DecoderCell, EncoderCell, NetworkError, Outputs, Seq2Seq, Until,
};

/// Makes the request of a [`RequestSpec`] for an engine.
pub type Unfold = Box<dyn Fn(&RequestSpec) -> Request>;

/// Weights, which each engine packs anew.
pub enum Weights {
    Chain(Arc<Model>),
    Seq2Seq(Arc<Translation>),
    Tree(Arc<BinaryTreeWeights>),
    ChildSum(Arc<ChildSumWeights>),
}

/// Weights of an encoder and a decoder.
pub struct Translation {
    source: Arc<Embedding>,
    encoder: Arc<Model>,
    target: Arc<Embedding>,
    decoder: Arc<Model>,
    projection: Arc<Matrix>,
}

impl Weights {
    /// Random weights.
    ///
    /// # Errors
    /// The network does not have the precision.
    pub fn random(network: Network, shape: &ServedShape, seed: u64) -> Result<Weights, Failure> {
        let (input, hidden) = (shape.input as usize, shape.hidden as usize);
        let (vocabulary, precision) = (shape.vocabulary() as usize, shape.precision);
        let mut random = fastrand::Rng::with_seed(seed);
        let layers = shape.layers as usize;
        let lstm = |seed| Ok::<_, Failure>(Lstm::new(input, hidden).layers(layers).random(seed)?);
        let reduced = |model: Model| Ok::<_, Failure>(Arc::new(model.into_precision(precision)?));
        Ok(match network {
            Network::Lstm => Weights::Chain(reduced(lstm(seed)?)?),
            Network::Gru => Weights::Chain(reduced(
                Gru::new(input, hidden).layers(layers).random(seed)?,
            )?),
            Network::Seq2seq => {
                let mut matrix = |columns: usize| {
                    let values = (0..vocabulary * columns).map(|_| random.f32() - 0.5);
                    Matrix::new(vocabulary, columns, values.collect())
                };
                Weights::Seq2Seq(Arc::new(Translation {
                    source: Arc::new(Embedding::new(matrix(input)?)),
                    encoder: reduced(lstm(seed)?)?,
                    target: Arc::new(Embedding::new(matrix(input)?)),
                    decoder: reduced(lstm(seed + 1)?)?,
                    projection: Arc::new(matrix(hidden)?.into_precision(precision)?),
                }))
            }
            Network::Treelstm => {
                let mut weights = BinaryTreeWeights::random(input, hidden, seed)?;
                let BinaryTreeWeights {
                    leaf, left, right, ..
                } = &mut weights;
                for matrix in [leaf, left, right] {
                    *matrix = matrix.in_precision(precision)?;
                }
                Weights::Tree(Arc::new(weights))
            }
            Network::TreeChildSum => {
                let mut weights = ChildSumWeights::random(input, hidden, seed)?;
                let ChildSumWeights {
                    input,
                    sum,
                    forget_input,
                    forget_state,
                    ..
                } = &mut weights;
                for matrix in [input, sum, forget_input, forget_state] {
                    *matrix = matrix.in_precision(precision)?;
                }
                Weights::ChildSum(Arc::new(weights))
            }
        })
    }

    /// Adds the cells to `cells` and returns the function that makes requests of them. Values of
    /// requests have `input` numbers a row and are slices of `pool`. Chains, encoders and decoders
    /// run on the `backends`, one for each worker in turn, if there are any.
    pub fn unfold(
        &self,
        cells: &mut Cells,
        backends: &[Arc<dyn Backend>],
        pool: &Arc<[f32]>,
        input: usize,
    ) -> Result<Unfold, NetworkError> {
        // The answer is the output of the last node.
        const ANSWER: Outputs = Outputs::Last;
        let pool = Arc::clone(pool);
        let values = move |request: &RequestSpec, rows: usize| {
            let count = rows * input;
            let first = request.seed as usize % (pool.len() - count + 1);
            (Arc::clone(&pool), first..first + count)
        };
        Ok(match self {
            Weights::Chain(model) => {
                let cell = ChainCell::new(Arc::clone(model))?;
                let chain = Chain::add(cells, cell.with_backends(backends.iter().cloned()));
                Box::new(move |request| {
                    let RequestShape::Chain { steps } = request.shape else {
                        unreachable!("the workload is that of the network");
                    };
                    let (pool, at) = values(request, steps);
                    let graph = chain.unfold(&pool[at], None, ANSWER);
                    Request::new(expect(graph))
                })
            }
            Weights::Seq2Seq(parts) => {
                let encoder =
                    EncoderCell::new(Arc::clone(&parts.source), Arc::clone(&parts.encoder))?;
                let decoder = DecoderCell::new(
                    Arc::clone(&parts.target),
                    Arc::clone(&parts.decoder),
                    Arc::clone(&parts.projection),
                    vec![0.0; parts.projection.rows()],
                )?;
                let encoder = encoder.with_backends(backends.iter().cloned());
                let decoder = decoder.with_backends(backends.iter().cloned());
                let network = Seq2Seq::add(cells, encoder, decoder, 0)?;
                let symbols = parts.source.symbols();
                Box::new(move |request| {
                    let RequestShape::Pair { source, target } = request.shape else {
                        unreachable!("the workload is that of the network");
                    };
                    let mut random = fastrand::Rng::with_seed(request.seed);
                    let source: Vec<_> = (0..source).map(|_| random.usize(..symbols)).collect();
                    let unfolded = network.unfold(&source, Until::Steps(target));
                    let (graph, decoding) = expect(unfolded);
                    Request::new(graph).grow(decoding)
                })
            }
            Weights::Tree(weights) => {
                let network = BinaryTreeLstm::add(cells, Arc::clone(weights))?;
                Box::new(move |request| {
                    let RequestShape::Tree(Tree::Binary(tree)) = &request.shape else {
                        unreachable!("the workload is that of the network");
                    };
                    let (pool, at) = values(request, tree.leaves());
                    let graph = network.unfold(tree, &pool[at], ANSWER);
                    Request::new(expect(graph))
                })
            }
            Weights::ChildSum(weights) => {
                let network = ChildSumTreeLstm::add(cells, Arc::clone(weights))?;
                Box::new(move |request| {
                    let RequestShape::Tree(Tree::Dependencies(words)) = &request.shape else {
                        unreachable!("the workload is that of the network");
                    };
                    let (pool, at) = values(request, words.len());
                    let graph = network.unfold(words, &pool[at], ANSWER);
                    Request::new(expect(graph))
                })
            }
        })
    }
}

/// For results that cannot be errors: lengths, trees and words were checked when they were read.
fn expect<T>(unfolded: Result<T, NetworkError>) -> T {
    match unfolded {
        Ok(graph) => graph,
        Err(error) => unreachable!("{error}"),
    }
}
