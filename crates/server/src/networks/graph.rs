//! A whole ONNX graph: the names, types and shapes of the tensors are those of the file.
//!
//! ```text
//! admitted    within the limits of the model and of the server
//! planned     if no plan for its shapes is kept: on a thread beside the one that runs the graph
//! waits       for its turn: a graph runs one request after the other, and few graphs run at once
//! runs        on the threads that all graphs of the server share
//! ```
//!
//! A request that waits holds no thread: it ends when its deadline passes or its client goes. One
//! that runs is answered at its deadline, too, but the run goes on to its end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream::machine::{Topology, return_free_memory};
use gatestream_network as network;
use gatestream_network::{
    Caller, ElementType, NetworkOptions, NetworkPlan, NetworkPort, NetworkThreads, PlanStats,
    PreparedPlan, RunOptions,
};
use gatestream_serve::scheduler::{LimitOf, Limits};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::admission::{Admission, Admissions, Admitted, Needs};
use super::planners::Planners;
use super::{Answer, Call, Interface, Network, Port, Prepared, plan_file};
use crate::error::{ErrorKind, InferError};
use crate::repository::ModelConfig;
use crate::wire::{Data, Datatype, InferRequest, Tensor};

/// Bytes of ended requests whose memory is given back to the system.
const LARGE_BYTES: usize = 16 << 20;

/// Graphs that run at once, for each core: more than one, so that long runs do not stop short ones.
const RUNS_OF_CORE: usize = 4;

/// What all graphs of a server share.
pub struct GraphHost {
    threads: NetworkThreads,
    planners: Arc<Planners>,
    runs: Arc<Semaphore>,
    admission: Arc<Admission>,
}

impl GraphHost {
    /// `limits`: those of all graphs together.
    pub fn new(limits: Limits) -> GraphHost {
        let cores = Topology::detect().team_size();
        GraphHost {
            threads: NetworkThreads::new(None),
            // The other half is for the threads that run.
            planners: Arc::new(Planners::new((cores / 2).max(1))),
            runs: Arc::new(Semaphore::new(cores * RUNS_OF_CORE)),
            admission: Admission::new(limits, LimitOf::Engine),
        }
    }

    /// Gives the memory of large requests that have ended back to the system. Called now and then.
    pub fn tidy(&self) {
        if self.admission.take_ended(LARGE_BYTES) {
            return_free_memory();
        }
    }
}

/// See the [module](self).
pub struct GraphNetwork {
    pub interface: Interface,
    /// Whether the file says the number of axes of each input.
    pub has_all_ranks: bool,
    graph: Arc<network::Network>,
    /// Those of each request.
    nodes: usize,
    admissions: Admissions,
    planners: Arc<Planners>,
    /// One permit: of the request that runs.
    turn: Arc<Semaphore>,
    /// Those of all graphs.
    runs: Arc<Semaphore>,
}

/// Loads a graph.
///
/// # Errors
/// Why it cannot be loaded.
pub fn load(path: &Path, config: &ModelConfig, host: &GraphHost) -> Result<Prepared, String> {
    let options = NetworkOptions {
        precision: config.precision,
        unchecked: config.unchecked,
        plan_bytes: config.plan_bytes,
        ..NetworkOptions::default()
    };
    let graph = network::Network::open_on(path, options, &host.threads);
    let graph = graph.map_err(|why| why.to_string())?;
    if let Some(file) = plan_file(path, config)? {
        let plan = NetworkPlan::load(file).map_err(|why| why.to_string())?;
        graph.use_plan(Some(plan)).map_err(|why| why.to_string())?;
    }
    let interface = Interface {
        inputs: ports("input", graph.inputs())?,
        outputs: ports("output", graph.outputs())?,
        max_batch: 0,
        is_streaming: false,
        has_states: false,
    };
    Ok(Prepared {
        network: Network::Graph(GraphNetwork {
            interface,
            has_all_ranks: graph.inputs().iter().all(|port| port.shape.is_some()),
            nodes: graph.nodes(),
            graph: Arc::new(graph),
            admissions: Admissions::new(config.limits.limits(), &host.admission),
            planners: Arc::clone(&host.planners),
            turn: Arc::new(Semaphore::new(1)),
            runs: Arc::clone(&host.runs),
        }),
        cells: None,
        no_stack: None,
    })
}

/// # Errors
/// An input or an output has a type that no tensor of a request has.
fn ports(kind: &str, of: &[NetworkPort]) -> Result<Vec<Port>, String> {
    let ports = of.iter().map(|of| match &of.unsupported_type {
        Some(found) => Err(format!(
            "{kind} {:?} has elements of the type {found}, which graphs here do not take; convert \
             it in the graph (Cast), and give it another type there",
            of.name
        )),
        None => Ok(port(of)),
    });
    ports.collect()
}

fn port(of: &NetworkPort) -> Port {
    let axis = |axis: &Option<usize>| axis.map_or(-1, |size| size.try_into().unwrap_or(i64::MAX));
    let shape: Vec<i64> = of.shape.iter().flatten().map(axis).collect();
    // A type that the file does not name is that of most tensors.
    let datatype = of.element_type.and_then(datatype).unwrap_or(Datatype::F32);
    Port::new(&of.name, datatype, &shape)
}

/// The inputs of a request, for the graph.
struct Inputs(Vec<(String, network::Tensor)>);

impl Inputs {
    fn of(tensors: Vec<Tensor>) -> Result<Inputs, InferError> {
        let inputs = tensors.into_iter().map(|input| {
            let data = to_graph(input.data).ok_or_else(|| no_strings(&input.name))?;
            Ok((input.name, network::Tensor::new(&input.shape, data)?))
        });
        Ok(Inputs(inputs.collect::<Result<_, InferError>>()?))
    }

    fn named(&self) -> Vec<(&str, &network::Tensor)> {
        let inputs = self.0.iter();
        inputs
            .map(|(name, tensor)| (name.as_str(), tensor))
            .collect()
    }
}

/// What a thread needs for a part of a request. It holds the request's share of the limits and its
/// permits until that is done, also if nobody waits for it any more.
struct Job {
    graph: Arc<network::Network>,
    inputs: Vec<Tensor>,
    options: RunOptions,
    _admitted: Arc<Admitted>,
    _permits: Vec<OwnedSemaphorePermit>,
}

/// The outputs of a run and its time.
type Run = (Vec<Tensor>, Duration);

impl Job {
    fn prepare(self) -> Result<PreparedPlan, InferError> {
        let inputs = Inputs::of(self.inputs)?;
        Ok(self.graph.prepare(&inputs.named(), self.options)?)
    }

    /// `None`: there is no plan.
    fn run(self, plan: Option<PreparedPlan>) -> Result<Option<Run>, InferError> {
        let begun = Instant::now();
        let inputs = Inputs::of(self.inputs)?;
        let found = match plan {
            Some(plan) => Some(plan),
            None => self.graph.prepared(&inputs.named(), self.options)?,
        };
        let Some(plan) = found else {
            return Ok(None);
        };
        let outputs = self.graph.run_prepared(&plan, &inputs.named())?;
        let outputs = outputs.into_iter().map(|output| {
            let shape = output.tensor.shape().to_vec();
            Ok(Tensor {
                name: output.name,
                shape,
                data: from_graph(output.tensor.into_data())?,
            })
        });
        let outputs = outputs.collect::<Result<_, InferError>>()?;
        Ok(Some((outputs, begun.elapsed())))
    }
}

/// Runs a job on a thread that may block.
async fn on_thread<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, InferError> + Send + 'static,
) -> Result<T, InferError> {
    let done = spawn_blocking(job).await;
    done.map_err(|why| InferError::new(ErrorKind::Internal, why))?
}

fn no_strings(input: &str) -> InferError {
    InferError::invalid(format!("input {input:?} has the datatype BYTES"))
}

fn ended(_: AcquireError) -> InferError {
    InferError::new(ErrorKind::Unavailable, "the model is being unloaded")
}

impl GraphNetwork {
    /// See [`Network::learn`].
    pub fn learn(&mut self, outputs: &[Tensor]) {
        for port in &mut self.interface.outputs {
            let answered = outputs.iter().find(|output| output.name == port.name);
            if let Some(answered) = answered {
                port.datatype = answered.data.datatype();
            }
        }
    }

    /// The plans for shapes of inputs.
    pub fn plans(&self) -> PlanStats {
        self.graph.plan_stats()
    }

    /// Computes a request. Dropping the future ends it, unless it runs.
    ///
    /// # Errors
    /// It exceeds a limit; its deadline passes; tensors that do not fit.
    pub async fn run(&self, request: &InferRequest, call: &Call) -> Result<Answer, InferError> {
        for given in &request.inputs {
            if matches!(given.data, Data::Bytes(_)) {
                return Err(no_strings(&given.name));
            }
        }
        let needs = Needs {
            client: call.client,
            nodes: self.nodes,
            bytes: request.bytes(),
        };
        let admitted = Arc::new(self.admissions.admit(needs)?);
        call.in_time(self.answer(request, call, &admitted)).await
    }

    async fn answer(
        &self,
        request: &InferRequest,
        call: &Call,
        admitted: &Arc<Admitted>,
    ) -> Result<Answer, InferError> {
        let submitted = Instant::now();
        let job = |permits| Job {
            graph: Arc::clone(&self.graph),
            inputs: request.inputs.clone(),
            options: RunOptions {
                caller: Caller(call.client.0),
            },
            _admitted: Arc::clone(admitted),
            _permits: permits,
        };
        let planned = async || {
            let permits = self.planners.permits(call.client).await;
            let job = job(permits.map_err(ended)?.into());
            on_thread(move || job.prepare()).await
        };
        let shapes = request.inputs.iter();
        let shapes: Vec<(&str, &[usize])> = shapes
            .map(|input| (input.name.as_str(), input.shape.as_slice()))
            .collect();
        let mut plan = None;
        if !self.graph.has_plan(&shapes) {
            plan = Some(planned().await?);
        }
        loop {
            // In this order: a request that waits for its turn keeps no other graph from running.
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let run = Arc::clone(&self.runs).acquire_owned().await;
            let job = job(vec![turn.map_err(ended)?, run.map_err(ended)?]);
            let ran = on_thread(move || job.run(plan)).await?;
            if let Some((mut outputs, computing)) = ran {
                outputs.retain(|output| request.wants(&output.name));
                let queueing = submitted.elapsed().saturating_sub(computing);
                return Ok(Answer {
                    outputs,
                    rows: 1,
                    queueing,
                    computing,
                });
            }
            // The plans that are kept are for other values.
            plan = Some(planned().await?);
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
