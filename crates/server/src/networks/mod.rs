//! The networks that the server runs: tensors in, requests of the engine, tensors out.

mod admission;
mod graph;
mod planners;
mod seq2seq;
mod stack;
mod symbols;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream::model::{FileKind, Matrix, Model, Precision, SafetensorsOptions, Tensors};
use gatestream_serve::cell_graph::{Cells, Graph};
use gatestream_serve::engine::{self, Request, Response, SubmitError};
use gatestream_serve::scheduler::{ClientId, Reason, Refused, Timing};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::{ErrorKind, InferError};
use crate::listener::{Client, Tenant};
use crate::repository::{Kind, ModelConfig, PREFIX_OPTION};
use crate::wire::{Data, Datatype, InferRequest, RequestOptions, Tensor};
pub use admission::{Admission, Admissions, Needs};
pub use graph::{GraphHost, GraphNetwork};
pub use seq2seq::Seq2SeqNetwork;
pub use stack::{Part, StackNetwork, States, Wanted};
pub use tree::TreeNetwork;

/// An input or an output of a network. Axes of any size are -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub datatype: Datatype,
    pub shape: Vec<i64>,
    pub is_optional: bool,
}

impl Port {
    fn new(name: &str, datatype: Datatype, shape: &[i64]) -> Port {
        Port {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
            is_optional: false,
        }
    }

    fn optional(self) -> Port {
        Port {
            is_optional: true,
            ..self
        }
    }
}

/// The inputs and outputs of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Optional ones are not told to clients: tools fill all inputs of a model with random values.
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Most sequences of a request, if the first axis of each tensor is that of sequences; else 0.
    pub max_batch: usize,
    /// Whether a request may have several responses.
    pub is_streaming: bool,
    /// Whether the server can hold the states of its sequences.
    pub has_states: bool,
}

impl Interface {
    /// The inputs that a request needs.
    pub fn needed(&self) -> impl Iterator<Item = &Port> {
        self.inputs.iter().filter(|port| !port.is_optional)
    }

    /// The axes of a tensor in a model configuration of Triton: without that of the batch.
    pub fn dims<'a>(&self, port: &'a Port) -> &'a [i64] {
        match self.max_batch {
            0 => &port.shape,
            _ => port.shape.get(1..).unwrap_or_default(),
        }
    }
}

/// A network, ready to be added to an engine.
pub struct Prepared {
    pub network: Network,
    /// The cells of the network; `None`: it runs on threads of its own.
    pub cells: Option<Cells>,
    /// Why the file, which is run as a graph, is no stack of layers.
    pub no_stack: Option<String>,
}

/// A network.
pub enum Network {
    Stack(StackNetwork),
    Seq2Seq(Box<Seq2SeqNetwork>),
    Tree(TreeNetwork),
    Graph(GraphNetwork),
}

/// A request beside its tensors.
#[derive(Clone)]
pub struct Call {
    pub priority: u8,
    pub deadline: Option<Instant>,
    pub client: ClientId,
    /// The owner of its sequence.
    pub tenant: Tenant,
    /// Gets the parts of an answer as they are computed.
    pub parts: Option<UnboundedSender<Tensor>>,
}

/// The outputs of a request and its times.
#[derive(Debug)]
pub struct Answer {
    pub outputs: Vec<Tensor>,
    /// Sequences.
    pub rows: usize,
    pub queueing: Duration,
    pub computing: Duration,
}

impl Call {
    /// A request of the usual priority, without a deadline.
    pub fn of_client(client: &Client) -> Call {
        Call {
            priority: RequestOptions::default().engine_priority(),
            deadline: None,
            client: client.id,
            tenant: client.tenant,
            parts: None,
        }
    }

    /// Waits at most until the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Late`], or that of the future.
    pub async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, InferError>>,
    ) -> Result<T, InferError> {
        let Some(deadline) = self.deadline else {
            return answer.await;
        };
        let answer = tokio::time::timeout_at(deadline.into(), answer).await;
        answer.unwrap_or_else(|_| Err(InferError::late()))
    }

    fn request(&self, graph: Graph) -> Request {
        let request = Request::new(graph)
            .priority(self.priority)
            .client(self.client);
        match self.deadline {
            Some(deadline) => request.deadline(deadline),
            None => request,
        }
    }
}

impl Network {
    /// Loads the network of a file.
    ///
    /// # Errors
    /// Why it cannot be loaded, with the name of the tensor, node or entry.
    pub fn load(
        path: &Path,
        config: &ModelConfig,
        name: &str,
        graphs: &GraphHost,
    ) -> Result<Prepared, String> {
        let file = FileKind::of(path).map_err(|why| why.to_string())?;
        let is_onnx = file == FileKind::Onnx;
        let mut no_stack = None;
        let kind = match (config.kind, config.seq2seq.is_some(), config.tree.is_some()) {
            (Some(kind), ..) => kind,
            (None, true, _) => Kind::Seq2seq,
            (None, false, true) => Kind::Tree,
            (None, false, false) if is_onnx => {
                // A file without other operators is a stack of layers.
                no_stack = Model::open(path).err().map(|why| why.to_string());
                if no_stack.is_some() {
                    Kind::Graph
                } else {
                    Kind::Stack
                }
            }
            (None, false, false) => Kind::Stack,
        };
        check_entries(kind, config)?;
        match kind {
            Kind::Stack => stack::load(path, config, name),
            Kind::Seq2seq => seq2seq::load(path, config),
            Kind::Tree => tree::load(path, config),
            Kind::Graph => Ok(Prepared {
                no_stack,
                ..graph::load(path, config, graphs)?
            }),
        }
    }

    pub fn interface(&self) -> &Interface {
        match self {
            Network::Stack(network) => &network.interface,
            Network::Seq2Seq(network) => &network.interface,
            Network::Tree(network) => &network.interface,
            Network::Graph(network) => &network.interface,
        }
    }

    /// Whether the number of axes of each input is known.
    pub fn has_all_ranks(&self) -> bool {
        match self {
            Network::Graph(network) => network.has_all_ranks,
            _ => true,
        }
    }

    /// Elements that an input may have where zeros would be refused.
    pub fn usual_elements(&self, input: &str, count: usize) -> Option<Data> {
        match self {
            Network::Stack(network) => network.usual_elements(input, count),
            Network::Seq2Seq(network) => network.usual_elements(input, count),
            Network::Tree(network) => network.usual_elements(input, count),
            Network::Graph(_) => None,
        }
    }

    /// Takes the types of outputs whose types the file does not say from those of an answer.
    pub fn learn(&mut self, outputs: &[Tensor]) {
        if let Network::Graph(network) = self {
            network.learn(outputs);
        }
    }

    /// Refuses inputs and outputs that the network does not have, and inputs that are missing,
    /// given twice, or of another shape.
    ///
    /// # Errors
    /// The name of the first.
    pub fn check(&self, request: &InferRequest) -> Result<(), InferError> {
        check_names(self.interface(), request)
    }

    /// Computes a request. Dropping the future cancels it.
    ///
    /// # Errors
    /// Inputs that do not fit; the request was refused, or ended without an answer.
    pub async fn run(
        &self,
        model: Option<&engine::Model>,
        request: &InferRequest,
        call: &Call,
    ) -> Result<Answer, InferError> {
        self.check(request)?;
        let on_engine =
            || model.ok_or_else(|| InferError::not_found("the model was unloaded; load it again"));
        match self {
            Network::Stack(network) => network.run(on_engine()?, request, call).await,
            Network::Seq2Seq(network) => network.run(on_engine()?, request, call).await,
            Network::Tree(network) => network.run(on_engine()?, request, call).await,
            Network::Graph(network) => network.run(request, call).await,
        }
    }
}

fn check_names(interface: &Interface, request: &InferRequest) -> Result<(), InferError> {
    let names = |ports: &[Port]| {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        names.join(", ")
    };
    for (index, input) in request.inputs.iter().enumerate() {
        let port = interface.inputs.iter().find(|port| port.name == input.name);
        let Some(port) = port else {
            return Err(InferError::invalid(format!(
                "the model has no input {:?}; it has {}",
                input.name,
                names(&interface.inputs)
            )));
        };
        if request.inputs[..index]
            .iter()
            .any(|other| other.name == input.name)
        {
            return Err(InferError::invalid(format!(
                "input {:?} is given twice",
                input.name
            )));
        }
        check_shape(port, input)?;
    }
    for port in interface.needed() {
        if !request.inputs.iter().any(|input| input.name == port.name) {
            return Err(InferError::invalid(format!(
                "input {:?} is missing",
                port.name
            )));
        }
    }
    for output in &request.outputs {
        if !interface.outputs.iter().any(|port| port.name == *output) {
            return Err(InferError::invalid(format!(
                "the model has no output {output:?}; it has {}",
                names(&interface.outputs)
            )));
        }
    }
    Ok(())
}

/// Refuses a tensor of another shape than metadata tell, if they tell one.
fn check_shape(port: &Port, given: &Tensor) -> Result<(), InferError> {
    let fits = |(axis, size): (&i64, &usize)| *axis < 0 || usize::try_from(*axis) == Ok(*size);
    let (expected, found) = (&port.shape, &given.shape);
    let is_same = expected.len() == found.len() && expected.iter().zip(found).all(fits);
    if is_same || expected.is_empty() {
        return Ok(());
    }
    Err(InferError::invalid(format!(
        "input {:?} has the shape {found:?}; expected: {expected:?}, where -1 is any size",
        given.name
    )))
}

/// Refuses entries of a configuration that have no effect for a kind.
fn check_entries(kind: Kind, config: &ModelConfig) -> Result<(), String> {
    let is_graph = kind == Kind::Graph;
    let is_stack = kind == Kind::Stack;
    let has = |entry: &str| {
        let (table, _) = entry.split_once('.').unwrap_or((entry, ""));
        match entry {
            "plan" => is_stack || is_graph,
            "precision" => kind != Kind::Tree,
            "policy" | "weight" | "max_steps" => !is_graph,
            "max_batch" | "limits.sequences" | PREFIX_OPTION => is_stack,
            "plan_bytes" | "unchecked" => is_graph,
            _ => match table {
                "sequences" | "safetensors" => is_stack,
                "seq2seq" => kind == Kind::Seq2seq,
                "tree" => kind == Kind::Tree,
                _ => true,
            },
        }
    };
    let Some(entry) = config.given.iter().find(|entry| !has(entry)) else {
        return Ok(());
    };
    let place = if entry == PREFIX_OPTION {
        PREFIX_OPTION.to_owned()
    } else {
        format!("config.toml: {entry:?}")
    };
    Err(format!(
        "{place} has no effect for a model of the kind {}; leave it out",
        kind.name()
    ))
}

/// The input of this name.
fn input<'a>(request: &'a InferRequest, name: &str) -> Option<&'a Tensor> {
    request.inputs.iter().find(|input| input.name == name)
}

/// Submits the graphs of a request together and waits for all responses.
async fn submitted(
    model: &engine::Model,
    graphs: Vec<Graph>,
    call: &Call,
) -> Result<Vec<Response>, InferError> {
    let (count, nodes) = (graphs.len(), graphs.iter().map(Graph::len).sum::<usize>());
    let mut requests: Vec<Request> = graphs
        .into_iter()
        .map(|graph| call.request(graph))
        .collect();
    if count == 1
        && let Some(request) = requests.pop()
    {
        return Ok(vec![model.submit(request)?.await?]);
    }
    let tickets = model.submit_all(requests).map_err(|error| {
        // Together they may exceed what is never free.
        let too_large = match &error.why {
            SubmitError::Refused(Refused::Overloaded { what, most, .. }) => match what {
                Reason::Requests | Reason::ClientRequests => count > *most,
                Reason::Nodes => nodes > *most,
                _ => false,
            },
            _ => false,
        };
        let error = InferError::from(error);
        if too_large {
            InferError::new(ErrorKind::TooLarge, error)
        } else {
            error
        }
    })?;
    let mut responses = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        responses.push(ticket.await?);
    }
    Ok(responses)
}

/// The longest times of requests that were submitted together.
fn longest(responses: &[Response]) -> Timing {
    let timings = responses.iter().map(|response| response.timing);
    timings.fold(Timing::default(), |longest, timing| Timing {
        queueing: longest.queueing.max(timing.queueing),
        computing: longest.computing.max(timing.computing),
    })
}

/// The file of the plan, beside the model's.
///
/// # Errors
/// The name is a path.
fn plan_file(path: &Path, config: &ModelConfig) -> Result<Option<PathBuf>, String> {
    match &config.plan {
        Some(name) if name.contains(['/', '\\']) => Err(format!(
            "plan {name:?} must be the name of a file beside the model's"
        )),
        name => Ok(name.as_ref().map(|name| path.with_file_name(name))),
    }
}

fn in_precision(model: Model, precision: Option<Precision>) -> Result<Model, String> {
    match precision {
        Some(precision) => model
            .into_precision(precision)
            .map_err(|why| why.to_string()),
        None => Ok(model),
    }
}

/// The recurrent layers whose tensors have names of this beginning.
fn layers(
    tensors: &Tensors<'_>,
    prefix: &str,
    precision: Option<Precision>,
) -> Result<Arc<Model>, String> {
    let options = SafetensorsOptions::new().prefix(prefix);
    let model = Model::from_tensors(tensors, &options).map_err(|why| why.to_string())?;
    Ok(Arc::new(in_precision(model, precision)?))
}

fn matrix(tensors: &Tensors<'_>, name: &str) -> Result<Matrix, String> {
    tensors.matrix(name).map_err(|why| why.to_string())
}
