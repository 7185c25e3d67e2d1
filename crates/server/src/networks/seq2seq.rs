//! An encoder and a decoder of symbols, greedy or with beam search.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `source` | `[symbols]` | numbers (INT64), or names (BYTES) if the configuration has them |
//! | `target` | `[symbols]` | the best answer, likewise |
//! | `scores`, `lengths` | `[answers]` | of a beam search: `target` has its answers in a row |
//!
//! A streaming request gets each symbol of a greedy decoder in a response of its own.

use std::path::Path;
use std::sync::Arc;

use gatestream::layers::{BeamOptions, Embedding};
use gatestream::model::{TensorFile, Tensors};
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine;
use gatestream_serve::networks::{
    BeamSeq2Seq, DecoderCell, Encoder, EncoderCell, Seq2Seq, Until, WholeCell, beam_answers,
};

use super::symbols::{self, Symbols};
use super::{Answer, Call, Interface, Network, Port, Prepared, layers, matrix};
use crate::error::{ErrorKind, InferError};
use crate::repository::{ModelConfig, Seq2SeqConfig};
use crate::wire::{Data, Datatype, InferRequest, Tensor};

const SOURCE: &str = "source";
const TARGET: &str = "target";
const SCORES: &str = "scores";
const LENGTHS: &str = "lengths";

/// See the [module](self).
pub struct Seq2SeqNetwork {
    pub interface: Interface,
    decoding: Decoding,
    /// Most symbols of a source.
    max_steps: usize,
    source_symbols: Option<Symbols>,
    /// Shared with the callbacks of requests.
    target_symbols: Option<Arc<Symbols>>,
}

enum Decoding {
    Greedy { network: Seq2Seq, until: Until },
    Beam(BeamSeq2Seq),
}

/// Loads both networks of a file of tensors.
///
/// # Errors
/// Why they cannot be loaded.
pub fn load(path: &Path, config: &ModelConfig) -> Result<Prepared, String> {
    let of = config.seq2seq.as_ref();
    let of = of.ok_or("a model of the kind seq2seq needs the table [seq2seq] in config.toml")?;
    if of.beam.is_none() && config.has("seq2seq.length_penalty") {
        return Err("seq2seq.length_penalty has no effect without beam; leave it out".into());
    }
    let max_steps = config.max_steps.unwrap_or(1_000);
    let file = TensorFile::read(path).map_err(|why| why.to_string())?;
    let tensors = file.tensors().map_err(|why| why.to_string())?;
    let symbols = |text: &Option<String>, expected: usize, which: &str| {
        let Some(text) = text else { return Ok(None) };
        let symbols = Symbols::read(text, &tensors).map_err(|why| format!("{which}: {why}"))?;
        if symbols.len() == expected {
            Ok(Some(symbols))
        } else {
            Err(format!(
                "{which}: {} names for {expected} symbols",
                symbols.len()
            ))
        }
    };
    let encoder = encoder(&tensors, of, config, max_steps)?;
    let target = Embedding::new(matrix(&tensors, &of.decoder_embedding)?);
    let source_size = tensors
        .shape(&of.encoder_embedding)
        .and_then(|shape| shape.first().copied())
        .unwrap_or(0);
    let source_symbols = symbols(&of.source_symbols, source_size, "source_symbols")?;
    let target_symbols = symbols(&of.target_symbols, target.symbols(), "target_symbols")?;
    let target_symbols = target_symbols.map(Arc::new);
    let projection = matrix(&tensors, &of.projection)?;
    let bias = match &of.projection_bias {
        Some(name) => tensors.vector(name).map_err(|why| why.to_string())?,
        None => vec![0.0; projection.rows()],
    };
    let decoder = layers(&tensors, &of.decoder, config.precision)?;
    let decoder =
        DecoderCell::new(target, decoder, projection, bias).map_err(|why| why.to_string())?;
    let mut cells = Cells::new();
    let decoding = match of.beam {
        None => {
            let until = Until::Eos {
                eos: of.eos,
                limit: of.limit,
            };
            Seq2Seq::add(&mut cells, encoder, decoder, of.bos)
                .map(|network| Decoding::Greedy { network, until })
        }
        Some(width) => {
            let options =
                BeamOptions::new(of.bos, of.eos, of.limit, width).length_penalty(of.length_penalty);
            BeamSeq2Seq::add(&mut cells, encoder, decoder, options).map(Decoding::Beam)
        }
    };
    let decoding = decoding.map_err(|why| why.to_string())?;
    // Found now instead of in each request.
    if let Decoding::Greedy { network, until } = &decoding {
        network
            .unfold(&[0], *until)
            .map_err(|why| why.to_string())?;
    }
    let is_beam = matches!(decoding, Decoding::Beam(_));
    let target = Port::new(TARGET, symbols::datatype(target_symbols.as_deref()), &[-1]);
    let of_beam = [
        Port::new(SCORES, Datatype::F32, &[-1]),
        Port::new(LENGTHS, Datatype::I64, &[-1]),
    ];
    let outputs = std::iter::once(target).chain(of_beam.into_iter().filter(|_| is_beam));
    Ok(Prepared {
        network: Network::Seq2Seq(Box::new(Seq2SeqNetwork {
            interface: Interface {
                inputs: vec![Port::new(
                    SOURCE,
                    symbols::datatype(source_symbols.as_ref()),
                    &[-1],
                )],
                outputs: outputs.collect(),
                max_batch: 0,
                is_streaming: !is_beam,
                has_states: false,
            },
            decoding,
            max_steps,
            source_symbols,
            target_symbols,
        })),
        cells: Some(cells),
        no_stack: None,
    })
}

fn encoder(
    tensors: &Tensors<'_>,
    of: &Seq2SeqConfig,
    config: &ModelConfig,
    max_steps: usize,
) -> Result<Encoder, String> {
    let embedding = Arc::new(Embedding::new(matrix(tensors, &of.encoder_embedding)?));
    let model = layers(tensors, &of.encoder, config.precision)?;
    Ok(if model.is_forward() {
        EncoderCell::new(embedding, model)
            .map_err(|why| why.to_string())?
            .into()
    } else {
        Encoder::Whole {
            embedding,
            cell: WholeCell::new(model, max_steps).named("encoder"),
        }
    })
}

impl Seq2SeqNetwork {
    /// See [`Network::usual_elements`].
    pub fn usual_elements(&self, input: &str, count: usize) -> Option<Data> {
        let first = self.source_symbols.as_ref()?.first()?;
        (input == SOURCE).then(|| Data::Bytes(vec![first.clone(); count]))
    }

    /// Computes a request.
    ///
    /// # Errors
    /// Unknown symbols; the request was refused, or ended without an answer.
    pub async fn run(
        &self,
        model: &engine::Model,
        request: &InferRequest,
        call: &Call,
    ) -> Result<Answer, InferError> {
        let source = symbols::numbers(request, SOURCE, self.source_symbols.as_ref())?;
        if source.len() > self.max_steps {
            return Err(InferError::new(
                ErrorKind::TooLarge,
                format!(
                    "the source has {} symbols; the maximum is {} (max_steps in config.toml)",
                    source.len(),
                    self.max_steps
                ),
            ));
        }
        let asked = match &self.decoding {
            Decoding::Greedy { network, until } => {
                let (graph, decoding) = network.unfold(&source, *until)?;
                let asked = call.request(graph).grow(decoding);
                match call.parts.clone() {
                    Some(parts) => {
                        let names = self.target_symbols.clone();
                        asked.on_part(move |symbols| {
                            let part = symbols::tensor(TARGET, symbols, names.as_deref());
                            // The client may have gone.
                            let _ = parts.send(part);
                        })
                    }
                    None => asked,
                }
            }
            Decoding::Beam(network) => {
                let (graph, decoding) = network.unfold(&source)?;
                call.request(graph).grow(decoding)
            }
        };
        let response = model.submit(asked)?.await?;
        Ok(Answer {
            outputs: self.outputs(request, &response.values),
            rows: 1,
            queueing: response.timing.queueing,
            computing: response.timing.computing,
        })
    }

    fn outputs(&self, request: &InferRequest, response: &[f32]) -> Vec<Tensor> {
        let names = self.target_symbols.as_deref();
        let Decoding::Beam(_) = self.decoding else {
            let target = symbols::tensor(TARGET, response, names);
            return Vec::from_iter(request.wants(TARGET).then_some(target));
        };
        let (mut target, mut scores, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for answer in beam_answers(response) {
            target.extend_from_slice(answer.symbols);
            scores.push(answer.score);
            lengths.push(answer.symbols.len() as i64);
        }
        let list = |name: &str, len, data| Tensor {
            name: name.to_owned(),
            shape: vec![len],
            data,
        };
        let count = scores.len();
        let all = [
            symbols::tensor(TARGET, &target, names),
            list(SCORES, count, Data::F32(scores)),
            list(LENGTHS, count, Data::I64(lengths)),
        ];
        all.into_iter()
            .filter(|output| request.wants(&output.name))
            .collect()
    }
}
