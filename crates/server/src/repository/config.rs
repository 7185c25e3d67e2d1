//! `config.toml` of a model.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gatestream::model::Precision;
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::Limits;
use serde::{Deserialize, Deserializer};

/// The contents of a `config.toml`. All entries have defaults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    pub kind: Option<Kind>,
    /// `f32`, `bf16` or `int8`; as stored if it is not set.
    #[serde(deserialize_with = "parsed")]
    pub precision: Option<Precision>,
    /// Of a graph: whether operators run that have not passed ONNX's own test cases.
    pub unchecked: bool,
    /// The batching policy; that of the server if it is not set.
    #[serde(deserialize_with = "parsed")]
    pub policy: Option<PolicyKind>,
    /// A plan of `gatestream tune`, the name of a file beside the model's.
    pub plan: Option<String>,
    /// Share of the workers, relative to other models of the same policy.
    pub weight: NonZeroU32,
    pub versions: Versions,
    /// Most sequences of a request.
    pub max_batch: usize,
    /// Most steps of a sequence; 10,000 if it is not set, or 1,000 where layers read in both
    /// directions and buffers are allocated for as many.
    pub max_steps: Option<usize>,
    /// Most bytes of the plans that a graph keeps for shapes of its inputs; 512 MiB if it is not
    /// set.
    pub plan_bytes: Option<usize>,
    pub limits: LimitsConfig,
    pub sequences: SequencesConfig,
    pub safetensors: SafetensorsConfig,
    pub seq2seq: Option<Seq2SeqConfig>,
    pub tree: Option<TreeConfig>,
    /// The names of the entries that are set, such as `weight` and `limits.bytes`.
    #[serde(skip)]
    pub given: Vec<String>,
    /// Requests that are run before the model is ready.
    pub warm_up: Vec<WarmUpConfig>,
}

impl Default for ModelConfig {
    fn default() -> ModelConfig {
        ModelConfig {
            kind: None,
            precision: None,
            unchecked: false,
            policy: None,
            plan: None,
            weight: NonZeroU32::MIN,
            versions: Versions::default(),
            max_batch: 64,
            max_steps: None,
            plan_bytes: None,
            limits: LimitsConfig::default(),
            sequences: SequencesConfig::default(),
            safetensors: SafetensorsConfig::default(),
            seq2seq: None,
            tree: None,
            given: Vec::new(),
            warm_up: Vec::new(),
        }
    }
}

impl ModelConfig {
    /// Reads the text of a `config.toml`.
    ///
    /// # Errors
    /// An unknown entry, or a value that is not of its type.
    pub fn parse(text: &str) -> Result<ModelConfig, toml::de::Error> {
        let mut config: ModelConfig = toml::from_str(text)?;
        for (name, value) in toml::from_str::<toml::Table>(text)? {
            match value.as_table().filter(|table| !table.is_empty()) {
                None => config.given.push(name),
                Some(table) => {
                    let entries = table.keys().map(|entry| format!("{name}.{entry}"));
                    config.given.extend(entries);
                }
            }
        }
        Ok(config)
    }

    /// Whether an entry such as `limits.bytes` is set.
    pub fn has(&self, entry: &str) -> bool {
        self.given.iter().any(|given| given == entry)
    }
}

/// Kinds of networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Recurrent layers.
    Stack,
    /// Encoder and decoder of symbols.
    Seq2seq,
    /// A child-sum TreeLSTM.
    Tree,
    /// A whole ONNX graph.
    Graph,
}

impl Kind {
    /// The name in a `config.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stack => "stack",
            Kind::Seq2seq => "seq2seq",
            Kind::Tree => "tree",
            Kind::Graph => "graph",
        }
    }
}

/// The versions that are loaded.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Versions {
    Named(VersionsName),
    Listed(Vec<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionsName {
    Latest,
    All,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions::Named(VersionsName::Latest)
    }
}

impl Versions {
    /// Those of the existing versions, in ascending order, that are loaded.
    pub fn of(&self, existing: &[u64]) -> Vec<u64> {
        match self {
            Versions::Named(VersionsName::Latest) => existing.last().copied().into_iter().collect(),
            Versions::Named(VersionsName::All) => existing.to_vec(),
            Versions::Listed(listed) => {
                let listed = |version: &&u64| listed.contains(version);
                existing.iter().filter(listed).copied().collect()
            }
        }
    }
}

/// Limits of a model. Those of the server count, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    pub requests: Option<usize>,
    pub nodes: Option<usize>,
    pub request_nodes: Option<usize>,
    pub bytes: Option<usize>,
    pub sequences: Option<usize>,
    pub client_requests: Option<usize>,
}

impl LimitsConfig {
    pub fn limits(&self) -> Limits {
        let or = |limit: Option<usize>| limit.unwrap_or(usize::MAX);
        Limits {
            requests: or(self.requests),
            nodes: or(self.nodes),
            request_nodes: or(self.request_nodes),
            bytes: or(self.bytes),
            streams: or(self.sequences),
            client_requests: or(self.client_requests),
        }
    }
}

/// Sequences whose states the server holds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SequencesConfig {
    /// Ends a sequence so long after its last request.
    #[serde(rename = "idle_seconds", deserialize_with = "seconds")]
    pub idle: Duration,
    /// Most open sequences of a client.
    pub per_client: usize,
    /// Whether the model takes only requests of sequences. Clients of Triton read it from the
    /// model's configuration, and then send sequences.
    pub only: bool,
}

impl Default for SequencesConfig {
    fn default() -> SequencesConfig {
        SequencesConfig {
            idle: Duration::from_secs(60),
            per_client: 1024,
            only: false,
        }
    }
}

/// The recurrent layers of a safetensors file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SafetensorsConfig {
    /// The beginning of the names of their tensors, if the file has several stacks.
    pub prefix: Option<String>,
}

/// Names of the tensors of an encoder and a decoder, and the decoding.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seq2SeqConfig {
    /// The beginning of the names of the encoder's recurrent tensors.
    pub encoder: String,
    pub encoder_embedding: String,
    /// The beginning of the names of the decoder's recurrent tensors.
    pub decoder: String,
    pub decoder_embedding: String,
    /// `[symbols, features]`.
    pub projection: String,
    /// `[symbols]`; zeros if it is not set.
    pub projection_bias: Option<String>,
    /// The first symbol that the decoder reads.
    pub bos: usize,
    /// The symbol that ends an answer.
    pub eos: usize,
    /// Most symbols of an answer.
    pub limit: usize,
    /// Hypotheses of a beam search; greedy decoding if it is not set.
    pub beam: Option<usize>,
    #[serde(default)]
    pub length_penalty: f32,
    /// Names of the symbols of sources, for inputs of strings, separated by spaces; or the name of
    /// an entry of the file's metadata after `metadata:`.
    pub source_symbols: Option<String>,
    /// Likewise of answers.
    pub target_symbols: Option<String>,
}

/// Names of the tensors of a child-sum TreeLSTM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeConfig {
    /// The beginning of the names of the cell's tensors `ioux.weight` `[3H, E]` (input, output,
    /// update), `iouh.weight` `[3H, H]`, `fx.weight` `[H, E]`, `fh.weight` `[H, H]`, and their
    /// biases.
    #[serde(default)]
    pub prefix: String,
    /// The table of words `[words, E]`; requests have features of words if it is not set.
    pub embedding: Option<String>,
}

/// A request that is run before the model is ready.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpConfig {
    /// The shapes of inputs by their names, the axis of the batch included. An input whose axes all
    /// have a size needs none.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The elements of inputs by their names: one value for all, or a list. Usually zeros; the
    /// first symbol of a source of names, the heads of a tree without branches.
    pub values: BTreeMap<String, serde_json::Value>,
}

fn parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let name = String::deserialize(deserializer)?;
    name.parse().map(Some).map_err(serde::de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(
            toml::from_str::<ModelConfig>(""),
            Ok(ModelConfig::default())
        );
    }

    #[test]
    fn unknown_entries_and_values_are_named() {
        for (text, named) in [
            ("windows = 1", "windows"),
            ("precision = \"f31\"", "f31"),
            ("[sequences]\nidle_seconds = -1.0", "negative"),
            ("[seq2seq]\nencoder = \"e\"", "missing field"),
            ("weight = 0", "nonzero"),
            ("policy = \"padding\"", "cellular, shortest, ebatch"),
        ] {
            let error = toml::from_str::<ModelConfig>(text).expect_err(text);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn versions_are_the_latest_all_or_a_list() {
        let of = |text: &str| {
            let config: ModelConfig = toml::from_str(text).expect("valid");
            config.versions.of(&[1, 2, 10])
        };
        assert_eq!(of(""), [10]);
        assert_eq!(of("versions = \"latest\""), [10]);
        assert_eq!(of("versions = \"all\""), [1, 2, 10]);
        assert_eq!(of("versions = [1, 3]"), [1]);
    }
}
