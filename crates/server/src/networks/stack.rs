//! Recurrent layers.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `input` | `[batch, steps, features]` | FP32 |
//! | `lengths` | `[batch, 1]` | optional: the steps of each sequence; others are padding |
//! | `h0`, `c0` | `[batch, states]` | optional: initial states of all layers and directions |
//! | `output` | `[batch, steps, features]` | zeros after the end of a sequence |
//! | `hn`, `cn` | `[batch, states]` | final states |

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use gatestream::Plan;
use gatestream::model::{Layer, Model, SafetensorsOptions, Signature};
use gatestream_serve::cell_graph::{CellId, Cells, Graph, NodeId};
use gatestream_serve::engine;
use gatestream_serve::networks::{Outputs, Stack};

use super::{Answer, Call, Interface, Network, Port, Prepared};
use super::{in_precision, input, longest, plan_file, submitted};
use crate::error::{ErrorKind, InferError};
use crate::repository::ModelConfig;
use crate::wire::{Data, Datatype, InferRequest, Tensor};

pub const INPUT: &str = "input";
pub const OUTPUT: &str = "output";
const LENGTHS: &str = "lengths";
const H0: &str = "h0";
const C0: &str = "c0";
pub const HN: &str = "hn";
pub const CN: &str = "cn";

/// As many as all requests of an engine may have by default.
const MOST_OUTPUT_BYTES: usize = 1 << 30;

/// See the [module](self).
pub struct StackNetwork {
    pub interface: Interface,
    stack: Stack,
    signature: Signature,
    max_steps: usize,
    /// Of a chain, in the order of its states.
    states: Vec<LayerState>,
}

/// A state of a layer.
#[derive(Clone, Copy)]
struct LayerState {
    is_cell_state: bool,
    size: usize,
}

/// Initial or final states of a sequence: those of all layers and directions, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct States {
    pub h: Vec<f32>,
    pub c: Vec<f32>,
}

/// Steps of a sequence whose states the server holds.
pub struct Part<'a> {
    /// `[steps, features]`; steps after `count` are padding.
    pub xs: Cow<'a, [f32]>,
    pub count: usize,
    /// Initial states, in the order of the chain's; `None`: none are given.
    pub initial: Option<Vec<f32>>,
}

/// The tensors of a request.
struct Batch<'a> {
    x: Cow<'a, [f32]>,
    batch: usize,
    steps: usize,
    lengths: Vec<usize>,
    h0: Option<Cow<'a, [f32]>>,
    c0: Option<Cow<'a, [f32]>>,
}

/// Loads the layers of a file.
///
/// # Errors
/// Why they cannot be loaded.
pub fn load(path: &Path, config: &ModelConfig, name: &str) -> Result<Prepared, String> {
    let model = match &config.safetensors.prefix {
        Some(prefix) => Model::open_with(path, &SafetensorsOptions::new().prefix(prefix)),
        None => Model::open(path),
    };
    let model = in_precision(model.map_err(|why| why.to_string())?, config.precision)?;
    let plan = match plan_file(path, config)? {
        Some(file) => Some(Plan::load(file, &model).map_err(|why| why.to_string())?),
        None => None,
    };
    let signature = model.signature();
    let states = model.layers().iter().flat_map(layer_states).collect();
    let usual_steps = if model.is_forward() { 10_000 } else { 1_000 };
    let max_steps = config.max_steps.unwrap_or(usual_steps);
    let mut cells = Cells::new();
    let stack = Stack::add(&mut cells, Arc::new(model), plan, max_steps)
        .map_err(|why| format!("{name}: {why}"))?;
    let has_states = matches!(stack, Stack::Chain(_));
    let of_sequences = |entry: &&String| entry.contains("sequences");
    if !has_states && let Some(entry) = config.given.iter().find(of_sequences) {
        return Err(format!(
            "config.toml: {entry:?} has no effect: a layer reads in reverse, so states cannot be \
             held; leave it out"
        ));
    }
    if config.sequences.only && config.has("max_batch") {
        let why = "config.toml: \"max_batch\" has no effect beside sequences.only; leave it out";
        return Err(why.into());
    }
    let batch = if config.sequences.only {
        1
    } else {
        config.max_batch.max(1)
    };
    Ok(Prepared {
        network: Network::Stack(StackNetwork {
            interface: interface(signature, batch, has_states),
            stack,
            signature,
            max_steps,
            states,
        }),
        cells: Some(cells),
        no_stack: None,
    })
}

fn layer_states(layer: &Layer) -> impl Iterator<Item = LayerState> {
    let cell = layer.directions()[0].cell_state_size();
    let h = LayerState {
        is_cell_state: false,
        size: layer.output_size(),
    };
    let c = LayerState {
        is_cell_state: true,
        size: cell,
    };
    std::iter::once(h).chain((cell > 0).then_some(c))
}

fn interface(of: Signature, max_batch: usize, has_states: bool) -> Interface {
    let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let floats = |name, shape: &[i64]| Port::new(name, Datatype::F32, shape);
    let mut inputs = vec![
        floats(INPUT, &[-1, -1, size(of.input)]),
        Port::new(LENGTHS, Datatype::I64, &[-1, 1]).optional(),
        floats(H0, &[-1, size(of.hidden_state)]).optional(),
    ];
    let mut outputs = vec![
        floats(OUTPUT, &[-1, -1, size(of.output)]),
        floats(HN, &[-1, size(of.hidden_state)]),
    ];
    if of.cell_state > 0 {
        inputs.push(floats(C0, &[-1, size(of.cell_state)]).optional());
        outputs.push(floats(CN, &[-1, size(of.cell_state)]));
    }
    Interface {
        inputs,
        outputs,
        max_batch,
        is_streaming: false,
        has_states,
    }
}

impl StackNetwork {
    /// See [`Network::usual_elements`].
    pub fn usual_elements(&self, input: &str, count: usize) -> Option<Data> {
        (input == LENGTHS).then(|| Data::I64(vec![1; count]))
    }

    /// The cell of a stream.
    pub fn cell(&self) -> CellId {
        self.stack.cell()
    }

    /// Computes a request.
    ///
    /// # Errors
    /// Tensors that do not fit; the request was refused, or ended without an answer.
    pub async fn run(
        &self,
        model: &engine::Model,
        request: &InferRequest,
        call: &Call,
    ) -> Result<Answer, InferError> {
        let given = self.batch(request)?;
        let wants = Wanted::of(request);
        let graphs = (0..given.batch).map(|row| self.graph(&given, row, wants));
        let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
        let responses = submitted(model, graphs, call).await?;
        let timing = longest(&responses);
        let (steps, output) = (given.steps, self.signature.output);
        let mut y = Vec::with_capacity(if wants.output {
            given.batch * steps * output
        } else {
            0
        });
        let mut all = States::default();
        for (row, response) in responses.iter().enumerate() {
            let values = &response.values;
            let outputs = if wants.output {
                given.lengths[row] * output
            } else {
                output
            };
            let (outputs, states) = values.split_at(outputs);
            if wants.output {
                y.extend_from_slice(outputs);
                y.resize((row + 1) * steps * output, 0.0);
            }
            if wants.states {
                let states = self.split(states);
                all.h.extend_from_slice(&states.h);
                all.c.extend_from_slice(&states.c);
            }
        }
        Ok(Answer {
            outputs: self.outputs(request, given.batch, steps, y, all),
            rows: given.batch,
            queueing: timing.queueing,
            computing: timing.computing,
        })
    }

    /// The outputs that a request asks for.
    pub fn outputs(
        &self,
        request: &InferRequest,
        batch: usize,
        steps: usize,
        y: Vec<f32>,
        states: States,
    ) -> Vec<Tensor> {
        let of = self.signature;
        let y = (OUTPUT, vec![batch, steps, of.output], y);
        let hn = (HN, vec![batch, of.hidden_state], states.h);
        let cn = (CN, vec![batch, of.cell_state], states.c);
        { [y, hn, cn].into_iter() }
            .filter(|(name, shape, _)| request.wants(name) && (*name != CN || shape[1] > 0))
            .map(|(name, shape, values)| Tensor {
                name: name.to_owned(),
                shape,
                data: Data::F32(values),
            })
            .collect()
    }

    /// The graph of one of the sequences.
    fn graph(&self, given: &Batch<'_>, row: usize, wants: Wanted) -> Result<Graph, InferError> {
        let of = self.signature;
        let xs = &given.x[row * given.steps * of.input..][..given.lengths[row] * of.input];
        let h0 = given
            .h0
            .as_deref()
            .map(|h0| &h0[row * of.hidden_state..][..of.hidden_state]);
        let c0 = given
            .c0
            .as_deref()
            .map(|c0| &c0[row * of.cell_state..][..of.cell_state]);
        let outputs = if wants.output {
            Outputs::Each
        } else {
            Outputs::Last
        };
        match &self.stack {
            Stack::Chain(chain) => {
                let initial = self.joined(h0, c0);
                let initial: Option<Vec<&[f32]>> = initial.as_ref().map(|states| {
                    let mut rest = &states[..];
                    let parts = self.states.iter().map(|state| {
                        let (part, after) = rest.split_at(state.size);
                        rest = after;
                        part
                    });
                    parts.collect()
                });
                Ok(if wants.states {
                    chain.unfold_with_states(xs, initial.as_deref(), outputs)?
                } else {
                    chain.unfold(xs, initial.as_deref(), outputs)?
                })
            }
            Stack::Whole(whole) => {
                let zeros = vec![0.0; of.hidden_state.max(of.cell_state)];
                let initial = [
                    h0.unwrap_or(&zeros[..of.hidden_state]),
                    c0.unwrap_or(&zeros[..of.cell_state]),
                ];
                let initial = &initial[..if of.cell_state > 0 { 2 } else { 1 }];
                let mut graph = whole.unfold(xs, Some(initial), outputs)?;
                if wants.states {
                    let node = NodeId::new(0);
                    graph.answer(node.output(whole.hn()));
                    if let Some(cn) = whole.cn() {
                        graph.answer(node.output(cn));
                    }
                }
                Ok(graph)
            }
        }
    }

    /// The tensors of a request.
    ///
    /// # Errors
    /// Tensors of other shapes or types.
    fn batch<'a>(&self, request: &'a InferRequest) -> Result<Batch<'a>, InferError> {
        let of = self.signature;
        let x = required(request, INPUT)?;
        let &[batch, steps, features] = &x.shape[..] else {
            return Err(shape_error(x, "[batch, steps, features]"));
        };
        if features != of.input {
            return Err(shape_error(x, &format!("[batch, steps, {}]", of.input)));
        }
        if batch == 0 || steps == 0 {
            return Err(shape_error(x, "one or more sequences of one or more steps"));
        }
        let limits = [
            ("sequences", batch, self.interface.max_batch, "max_batch"),
            ("steps", steps, self.max_steps, "max_steps"),
        ];
        for (what, found, most, entry) in limits {
            if found > most {
                return Err(InferError::new(
                    ErrorKind::TooLarge,
                    format!(
                        "input {INPUT:?} has {found} {what}; the maximum is {most} ({entry} in \
                         config.toml)"
                    ),
                ));
            }
        }
        let lengths = match input(request, LENGTHS) {
            None => vec![steps; batch],
            Some(given) => {
                let lengths = given.indices()?;
                if lengths.len() != batch || lengths.iter().any(|&len| len == 0 || len > steps) {
                    return Err(InferError::invalid(format!(
                        "input {LENGTHS:?} must have {batch} elements from 1 to {steps}"
                    )));
                }
                lengths
            }
        };
        // Outputs are padded to the longest sequence, which the engine's limit does not count.
        let output = (batch * steps).saturating_mul(of.output * size_of::<f32>());
        if request.wants(OUTPUT) && output > MOST_OUTPUT_BYTES {
            return Err(InferError::new(
                ErrorKind::TooLarge,
                format!("output {OUTPUT:?} would have {output} bytes; divide the request"),
            ));
        }
        Ok(Batch {
            x: x.floats()?,
            batch,
            steps,
            lengths,
            h0: state(request, H0, batch, of.hidden_state)?,
            c0: state(request, C0, batch, of.cell_state)?,
        })
    }

    /// The steps of one sequence `[1, steps, features]`.
    ///
    /// # Errors
    /// Tensors of other shapes or types.
    pub fn sequence<'a>(&self, request: &'a InferRequest) -> Result<Part<'a>, InferError> {
        let given = self.batch(request)?;
        if given.batch != 1 {
            return Err(InferError::invalid(
                "a request of a sequence has one sequence: batch 1",
            ));
        }
        Ok(Part {
            count: given.lengths[0],
            initial: self.joined(given.h0.as_deref(), given.c0.as_deref()),
            xs: given.x,
        })
    }

    /// Features of an input step.
    pub fn features(&self) -> usize {
        self.signature.input
    }

    /// States in the order of the chain's; `None`: none is given.
    fn joined(&self, h0: Option<&[f32]>, c0: Option<&[f32]>) -> Option<Vec<f32>> {
        if h0.is_none() && c0.is_none() {
            return None;
        }
        let (mut h, mut c) = (h0.unwrap_or_default(), c0.unwrap_or_default());
        let mut joined = Vec::new();
        for state in &self.states {
            let of = if state.is_cell_state { &mut c } else { &mut h };
            match of.split_at_checked(state.size) {
                Some((part, rest)) => {
                    joined.extend_from_slice(part);
                    *of = rest;
                }
                // Only the other one is given.
                None => joined.resize(joined.len() + state.size, 0.0),
            }
        }
        Some(joined)
    }

    /// States of the order of the response as those of the protocol.
    pub fn split(&self, mut values: &[f32]) -> States {
        let mut states = States::default();
        if matches!(self.stack, Stack::Whole(_)) {
            let (h, c) = values.split_at(self.signature.hidden_state);
            (states.h, states.c) = (h.to_vec(), c.to_vec());
            return states;
        }
        for state in &self.states {
            let (part, rest) = values.split_at(state.size);
            let of = if state.is_cell_state {
                &mut states.c
            } else {
                &mut states.h
            };
            of.extend_from_slice(part);
            values = rest;
        }
        states
    }
}

/// The parts of a response that a request asks for.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub output: bool,
    pub states: bool,
}

impl Wanted {
    pub fn of(request: &InferRequest) -> Wanted {
        Wanted {
            output: request.wants(OUTPUT),
            states: request.wants(HN) || request.wants(CN),
        }
    }
}

fn required<'a>(request: &'a InferRequest, name: &str) -> Result<&'a Tensor, InferError> {
    input(request, name).ok_or_else(|| InferError::invalid(format!("input {name:?} is missing")))
}

fn shape_error(tensor: &Tensor, expected: &str) -> InferError {
    InferError::invalid(format!(
        "input {:?} has the shape {:?}; expected: {expected}",
        tensor.name, tensor.shape
    ))
}

fn state<'a>(
    request: &'a InferRequest,
    name: &str,
    batch: usize,
    size: usize,
) -> Result<Option<Cow<'a, [f32]>>, InferError> {
    let Some(tensor) = input(request, name) else {
        return Ok(None);
    };
    let values = tensor.floats()?;
    if values.len() == batch * size {
        Ok(Some(values))
    } else {
        Err(shape_error(tensor, &format!("[{batch}, {size}]")))
    }
}
