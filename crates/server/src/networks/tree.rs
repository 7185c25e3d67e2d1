//! A child-sum TreeLSTM over dependency trees.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `tokens` | `[words]` | INT64: rows of the embedding |
//! | `input` | `[words, features]` | FP32, if there is no embedding |
//! | `heads` | `[words]` | INT64: the number of each word's head, from 1; 0: the root |
//! | `root` | `[hidden]` | the hidden state of the root |
//! | `output` | `[words, hidden]` | those of all words |

use std::path::Path;

use gatestream::layers::Embedding;
use gatestream::model::TensorFile;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine;
use gatestream_serve::networks::{ChildSumTreeLstm, ChildSumWeights, Dependencies, Outputs};

use super::{Answer, Call, Interface, Network, Port, Prepared, input, matrix, symbols};
use crate::error::{ErrorKind, InferError};
use crate::repository::ModelConfig;
use crate::wire::{Data, Datatype, InferRequest, Tensor};

const TOKENS: &str = "tokens";
const INPUT: &str = "input";
const HEADS: &str = "heads";
const ROOT: &str = "root";
const OUTPUT: &str = "output";

/// See the [module](self).
pub struct TreeNetwork {
    pub interface: Interface,
    network: ChildSumTreeLstm,
    embedding: Option<Embedding>,
    features: usize,
    hidden: usize,
    /// Most words of a request.
    max_steps: usize,
}

/// Loads the cell of a file of tensors.
///
/// # Errors
/// Why it cannot be loaded.
pub fn load(path: &Path, config: &ModelConfig) -> Result<Prepared, String> {
    let of = config.tree.as_ref();
    let of = of.ok_or("a model of the kind tree needs the table [tree] in config.toml")?;
    let file = TensorFile::read(path).map_err(|why| why.to_string())?;
    let tensors = file.tensors().map_err(|why| why.to_string())?;
    let named = |name: &str| format!("{}{name}", of.prefix);
    // The two biases of a gate are added once, as those of layers are.
    let bias = |first: &str, second: &str| {
        let read = |name: &str| tensors.vector(&named(name)).map_err(|why| why.to_string());
        let (first, second) = (read(first)?, read(second)?);
        if first.len() == second.len() {
            Ok(first.iter().zip(second).map(|(a, b)| a + b).collect())
        } else {
            Err("biases of one gate have different lengths".to_owned())
        }
    };
    let weights = ChildSumWeights {
        input: matrix(&tensors, &named("ioux.weight"))?,
        sum: matrix(&tensors, &named("iouh.weight"))?,
        bias: bias("ioux.bias", "iouh.bias")?,
        forget_input: matrix(&tensors, &named("fx.weight"))?,
        forget_state: matrix(&tensors, &named("fh.weight"))?,
        forget_bias: bias("fx.bias", "fh.bias")?,
    };
    let (features, hidden) = (weights.input(), weights.hidden());
    let embedding = match &of.embedding {
        Some(name) => Some(Embedding::new(matrix(&tensors, name)?)),
        None => None,
    };
    if let Some(embedding) = &embedding
        && embedding.features() != features
    {
        let found = embedding.features();
        return Err(format!(
            "the embedding has {found} features, the cell takes {features}"
        ));
    }
    let mut cells = Cells::new();
    let network = ChildSumTreeLstm::add(&mut cells, weights).map_err(|why| why.to_string())?;
    let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let words = match &embedding {
        Some(_) => Port::new(TOKENS, Datatype::I64, &[-1]),
        None => Port::new(INPUT, Datatype::F32, &[-1, size(features)]),
    };
    Ok(Prepared {
        network: Network::Tree(TreeNetwork {
            interface: Interface {
                inputs: vec![words, Port::new(HEADS, Datatype::I64, &[-1])],
                outputs: vec![
                    Port::new(ROOT, Datatype::F32, &[size(hidden)]),
                    Port::new(OUTPUT, Datatype::F32, &[-1, size(hidden)]),
                ],
                max_batch: 0,
                is_streaming: false,
                has_states: false,
            },
            network,
            embedding,
            features,
            hidden,
            max_steps: config.max_steps.unwrap_or(10_000),
        }),
        cells: Some(cells),
        no_stack: None,
    })
}

impl TreeNetwork {
    /// See [`Network::usual_elements`].
    pub fn usual_elements(&self, input: &str, count: usize) -> Option<Data> {
        // Each word is the head of the next one.
        (input == HEADS).then(|| Data::I64((0..).take(count).collect()))
    }

    /// Computes a request.
    ///
    /// # Errors
    /// Heads that are no tree; the request was refused, or ended without an answer.
    pub async fn run(
        &self,
        model: &engine::Model,
        request: &InferRequest,
        call: &Call,
    ) -> Result<Answer, InferError> {
        let heads = symbols::numbers(request, HEADS, None)?;
        if heads.len() > self.max_steps {
            return Err(InferError::new(
                ErrorKind::TooLarge,
                format!(
                    "the tree has {} words; the maximum is {} (max_steps in config.toml)",
                    heads.len(),
                    self.max_steps
                ),
            ));
        }
        let tree = Dependencies::new(&heads)?;
        let features = match &self.embedding {
            Some(embedding) => {
                let tokens = symbols::numbers(request, TOKENS, None)?;
                // Before memory for each of them.
                if tokens.len() != heads.len() {
                    return Err(InferError::invalid(format!(
                        "\"tokens\" has {} elements and \"heads\" {}; give one head for each token",
                        tokens.len(),
                        heads.len()
                    )));
                }
                let mut features = vec![0.0; tokens.len() * self.features];
                let found = embedding.run(&tokens, &mut features);
                found.map_err(InferError::invalid)?;
                features
            }
            None => {
                let given = input(request, INPUT);
                let given =
                    given.ok_or_else(|| InferError::invalid("input \"input\" is missing"))?;
                given.floats()?.into_owned()
            }
        };
        // The root's state is among those of all words.
        let each = request.wants(OUTPUT);
        let outputs = if each { Outputs::Each } else { Outputs::Last };
        let graph = self.network.unfold(&tree, &features, outputs)?;
        let response = model.submit(call.request(graph))?.await?;
        let values = response.values;
        let root = if each {
            let root = heads.iter().position(|&head| head == 0).unwrap_or(0);
            values[root * self.hidden..][..self.hidden].to_vec()
        } else {
            values.clone()
        };
        let all = [
            (ROOT, vec![self.hidden], root),
            (OUTPUT, vec![heads.len(), self.hidden], values),
        ];
        let outputs = { all.into_iter() }
            .filter(|(name, ..)| request.wants(name))
            .map(|(name, shape, values)| Tensor {
                name: name.to_owned(),
                shape,
                data: Data::F32(values),
            });
        Ok(Answer {
            outputs: outputs.collect(),
            rows: 1,
            queueing: response.timing.queueing,
            computing: response.timing.computing,
        })
    }
}
