//! Requests of a workload as tensors.

use bytes::Bytes;
use fastrand::Rng;

use crate::workload::{RequestShape, RequestSpec, Tree};

/// An input of a model, as its metadata describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPort {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
}

/// An input of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
    /// Little-endian elements.
    pub raw: Bytes,
}

/// Makes the tensors of requests.
#[derive(Clone, Debug)]
pub struct Encoder {
    inputs: Vec<TensorPort>,
    symbols: usize,
    /// Values of steps: requests take parts of them, as values do not change the time.
    values: Vec<f32>,
}

/// Random values that requests take turns of.
const VALUES: usize = 1 << 16;

impl Encoder {
    /// For a model with these inputs. Sources of an encoder are of symbols below `symbols`.
    ///
    /// # Errors
    /// The model has no input.
    pub fn new(inputs: Vec<TensorPort>, symbols: usize) -> Result<Encoder, String> {
        if inputs.is_empty() {
            return Err("the model has no input".into());
        }
        Ok(Encoder {
            inputs,
            symbols: symbols.max(1),
            values: random_values(),
        })
    }

    /// The inputs of a request. A chain is `[1, steps, features]`, a source `[symbols]`, a tree
    /// `[words]` twice.
    pub fn tensors(&self, request: &RequestSpec) -> Vec<Tensor> {
        let mut random = Rng::with_seed(request.seed);
        let first = &self.inputs[0];
        match &request.shape {
            RequestShape::Chain { steps } => {
                let features = first.shape.last().copied().unwrap_or(1).max(1);
                let count = steps * usize::try_from(features).unwrap_or(1);
                let start = random.usize(..VALUES);
                let values = self.values[start..].iter().chain(&self.values).cycle();
                let raw: Vec<u8> = values.take(count).flat_map(|x| x.to_le_bytes()).collect();
                vec![Tensor {
                    name: first.name.clone(),
                    datatype: "FP32",
                    shape: vec![1, *steps as i64, features],
                    raw: raw.into(),
                }]
            }
            RequestShape::Pair { source, .. } => {
                let symbols = (0..*source).map(|_| random.usize(..self.symbols));
                vec![indices(&first.name, symbols)]
            }
            RequestShape::Tree(tree) => {
                let heads = heads(tree);
                let second = self
                    .inputs
                    .get(1)
                    .map_or("heads", |port| port.name.as_str());
                let tokens = heads.iter().map(|_| random.usize(..self.symbols));
                vec![
                    indices(&first.name, tokens),
                    indices(second, heads.iter().copied()),
                ]
            }
        }
    }
}

/// Values from -0.5 to 0.5, always the same.
pub fn random_values() -> Vec<f32> {
    let mut random = Rng::with_seed(1);
    (0..VALUES).map(|_| random.f32() - 0.5).collect()
}

fn indices(name: &str, values: impl Iterator<Item = usize>) -> Tensor {
    let raw: Vec<u8> = values
        .flat_map(|value| (value as i64).to_le_bytes())
        .collect();
    Tensor {
        name: name.to_owned(),
        datatype: "INT64",
        shape: vec![(raw.len() / size_of::<i64>()) as i64],
        raw: raw.into(),
    }
}

/// The number of each word's head, from 1; 0: the root. A binary tree has no words.
fn heads(tree: &Tree) -> Vec<usize> {
    let Tree::Dependencies(words) = tree else {
        return Vec::new();
    };
    let mut heads = vec![0; words.len()];
    for word in 0..words.len() {
        for &child in words.children(word) {
            heads[child] = word + 1;
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;
    use gatestream_serve::networks::Dependencies;

    fn encoder(shape: &[i64]) -> Encoder {
        let port = |name: &str, shape: &[i64]| TensorPort {
            name: name.into(),
            datatype: "FP32".into(),
            shape: shape.to_vec(),
        };
        let inputs = vec![port("x", shape), port("y", &[-1])];
        Encoder::new(inputs, 5).expect("inputs")
    }

    fn spec(shape: RequestShape) -> RequestSpec {
        RequestSpec { shape, seed: 3 }
    }

    #[test]
    fn a_chain_has_the_features_of_the_model() {
        let tensors = encoder(&[-1, -1, 7]).tensors(&spec(RequestShape::Chain { steps: 20_000 }));
        assert_eq!(tensors.len(), 1);
        assert_eq!(tensors[0].shape, [1, 20_000, 7]);
        assert_eq!(
            tensors[0].raw.len(),
            20_000 * 7 * 4,
            "also more than the random values"
        );
    }

    #[test]
    fn trees_have_the_heads_of_their_words() {
        let words: Dependencies = "[2,0,2,3]".parse().expect("a tree");
        let tree = Tree::Dependencies(words.into());
        let tensors = encoder(&[-1]).tensors(&spec(RequestShape::Tree(tree)));
        let heads = [2i64, 0, 2, 3].map(i64::to_le_bytes).concat();
        assert_eq!(
            (tensors[1].name.as_str(), &tensors[1].raw[..]),
            ("y", &heads[..])
        );
        let words = tensors[0].raw.chunks_exact(8);
        assert!(words.map(|w| w[0]).all(|word| word < 5));
    }
}
