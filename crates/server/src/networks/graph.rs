//! A whole ONNX graph: the names, types and shapes of the tensors are those of the file.
//!
//! Its requests run one after the other on a thread with a team of its own, beside the workers of
//! the engine.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use cellstream_network as network;
use cellstream_network::{ElementType, NetworkOptions, NetworkPlan, NetworkPort};
use tokio::sync::oneshot;

use super::{Answer, Call, Interface, Network, Port, Prepared, plan_file};
use crate::error::{ErrorKind, InferError};
use crate::repository::ModelConfig;
use crate::wire::{Data, Datatype, InferRequest, Tensor};

/// Requests that wait, unless the model's limit is lower.
const WAITING: usize = 1024;

/// See the [module](self).
pub struct GraphNetwork {
    pub interface: Interface,
    waiting: usize,
    /// Its drop ends the thread.
    jobs: SyncSender<Job>,
}

struct Job {
    inputs: Vec<Tensor>,
    deadline: Option<Instant>,
    submitted: Instant,
    reply: oneshot::Sender<Result<Answer, InferError>>,
}

/// Loads a graph, and starts its thread.
///
/// # Errors
/// Why it cannot be loaded.
pub fn load(path: &Path, config: &ModelConfig) -> Result<Prepared, String> {
    let options = NetworkOptions {
        precision: config.precision,
        unchecked: config.unchecked,
        ..NetworkOptions::default()
    };
    let graph = network::Network::open_with(path, options).map_err(|why| why.to_string())?;
    if let Some(file) = plan_file(path, config)? {
        let plan = NetworkPlan::load(file).map_err(|why| why.to_string())?;
        graph.use_plan(Some(plan)).map_err(|why| why.to_string())?;
    }
    let interface = Interface {
        inputs: graph.inputs().iter().map(port).collect(),
        outputs: graph.outputs().iter().map(port).collect(),
        max_batch: 0,
        is_streaming: false,
        has_states: false,
    };
    let waiting = config.limits.requests.unwrap_or(WAITING).clamp(1, WAITING);
    let (jobs, received) = sync_channel(waiting);
    std::thread::Builder::new()
        .name("cellstream-graph".into())
        .spawn(move || run_jobs(&graph, &received))
        .map_err(|why| why.to_string())?;
    Ok(Prepared {
        network: Network::Graph(GraphNetwork {
            interface,
            waiting,
            jobs,
        }),
        cells: None,
    })
}

fn port(of: &NetworkPort) -> Port {
    let axis = |axis: &Option<usize>| axis.map_or(-1, |size| size.try_into().unwrap_or(i64::MAX));
    let shape: Vec<i64> = of.shape.iter().flatten().map(axis).collect();
    // A type that the file does not name is that of most tensors.
    let datatype = of.element_type.and_then(datatype).unwrap_or(Datatype::F32);
    Port::new(&of.name, datatype, &shape)
}

fn run_jobs(graph: &network::Network, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let begun = Instant::now();
        // The client has gone.
        if job.reply.is_closed() {
            continue;
        }
        let answer = match job.deadline {
            Some(deadline) if deadline <= begun => Err(InferError::new(
                ErrorKind::Late,
                "the request's deadline has passed",
            )),
            _ => run_job(graph, job.inputs).map(|outputs| Answer {
                outputs,
                rows: 1,
                queueing: begun.saturating_duration_since(job.submitted),
                computing: begun.elapsed(),
            }),
        };
        let _ = job.reply.send(answer);
    }
}

fn run_job(graph: &network::Network, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, InferError> {
    let mut given = Vec::with_capacity(inputs.len());
    for input in inputs {
        let data = to_graph(input.data).ok_or_else(|| {
            InferError::invalid(format!("input {:?} has the datatype BYTES", input.name))
        })?;
        given.push((input.name, network::Tensor::new(&input.shape, data)?));
    }
    let given: Vec<(&str, &network::Tensor)> = given
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let outputs = graph.run(&given)?.into_iter().map(|output| {
        let shape = output.tensor.shape().to_vec();
        Ok(Tensor {
            name: output.name,
            shape,
            data: from_graph(output.tensor.into_data())?,
        })
    });
    outputs.collect()
}

impl GraphNetwork {
    /// Computes a request.
    ///
    /// # Errors
    /// Too many requests wait; tensors that do not fit.
    pub async fn run(&self, request: &InferRequest, call: &Call) -> Result<Answer, InferError> {
        for given in &request.inputs {
            self.check_shape(given)?;
        }
        let (reply, answer) = oneshot::channel();
        let job = Job {
            inputs: request.inputs.clone(),
            deadline: call.deadline,
            submitted: Instant::now(),
            reply,
        };
        let ended = || InferError::new(ErrorKind::Unavailable, "the model is being unloaded");
        match self.jobs.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Err(InferError::new(
                    ErrorKind::Overloaded,
                    format!(
                        "overloaded: {} requests of the model wait; try again later",
                        self.waiting
                    ),
                ));
            }
            Err(TrySendError::Disconnected(_)) => return Err(ended()),
        }
        let mut answer = answer.await.map_err(|_| ended())??;
        answer.outputs.retain(|output| request.wants(&output.name));
        Ok(answer)
    }

    /// Refuses a tensor of another shape than the file says, if it says one.
    fn check_shape(&self, given: &Tensor) -> Result<(), InferError> {
        let port = self
            .interface
            .inputs
            .iter()
            .find(|port| port.name == given.name);
        let Some(port) = port.filter(|port| !port.shape.is_empty()) else {
            return Ok(());
        };
        let fits = |(axis, size): (&i64, &usize)| *axis < 0 || usize::try_from(*axis) == Ok(*size);
        let is_same =
            port.shape.len() == given.shape.len() && port.shape.iter().zip(&given.shape).all(fits);
        match is_same {
            true => Ok(()),
            false => Err(InferError::invalid(format!(
                "input {:?} has the shape {:?}; expected: {:?}",
                given.name, given.shape, port.shape
            ))),
        }
    }
}

macro_rules! conversions {
    ($($variant:ident)*) => {
        fn datatype(of: ElementType) -> Option<Datatype> {
            match of {
                $(ElementType::$variant => Some(Datatype::$variant),)*
                _ => None,
            }
        }

        fn to_graph(data: Data) -> Option<network::Data> {
            match data {
                $(Data::$variant(values) => Some(values.into()),)*
                Data::Bytes(_) => None,
            }
        }

        fn from_graph(data: network::Data) -> Result<Data, InferError> {
            match data {
                $(network::Data::$variant(values) => Ok(Data::$variant(values)),)*
                data => Err(InferError::new(
                    ErrorKind::Unsupported,
                    format!("an output has elements of the type {}", data.element_type()),
                )),
            }
        }
    };
}

conversions! { F32 F64 F16 I64 I32 I16 I8 U64 U32 U16 U8 Bool }
