//! Named inputs and outputs, and plans by the shapes of inputs.

use std::path::Path;
use std::sync::Arc;

use gatestream::execute::team::catch_panic_silently;
use gatestream::machine::Topology;
use gatestream::model::Precision;
use tract_onnx::pb::tensor_shape_proto::dimension;
use tract_onnx::pb::{ModelProto, ValueInfoProto, type_proto};

use crate::control_flow::deciding_inputs;
use crate::executors::Executors;
use crate::operators;
use crate::plan::{Known, Plan};
use crate::plans::{self, Caller, PlanStats, Plans};
use crate::profile::{ProfiledRun, profiled};
use crate::recurrent::{RegionOptions, Regions};
use crate::source::{self, Source, graph, malformed};
use crate::threads::Threads;
use crate::{ElementType, NetworkError, NetworkPlan, Tensor};

/// Options of a network. Take those that are not set from the default: later versions may add some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkOptions {
    /// Threads of the team that all recurrent nodes share; `None`: one for each core.
    pub threads: Option<usize>,
    /// The precision of weights and products of all recurrent regions; `None`: that of the file.
    pub precision: Option<Precision>,
    /// Whether the `clip` of an LSTM also bounds the input of its output activation, as the text of
    /// ONNX's operator says; ONNX Runtime does not do it.
    pub clips_outputs: bool,
    /// Most bytes of the plans that are kept, each for other shapes of the inputs; `None`: 512 MiB.
    /// The constants of the file do not count, and packed ones that several plans have count once.
    /// The last plan is kept in any case.
    pub plan_bytes: Option<usize>,
    /// Whether operators also run that have not been compared with ONNX's own test cases. Their
    /// results may be wrong.
    pub unchecked: bool,
}

/// Options of a run. Take those that are not set from the default: later versions may add some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The one for whom it runs.
    pub caller: Caller,
}

/// Threads that several networks share: those of a server, for instance. They are started when they
/// are needed first.
///
/// ```no_run
/// use gatestream_network::{Network, NetworkOptions, NetworkThreads};
///
/// let threads = NetworkThreads::new(None);
/// let options = NetworkOptions::default();
/// let encoder = Network::open_on("encoder.onnx", options, &threads)?;
/// let decoder = Network::open_on("decoder.onnx", options, &threads)?;
/// # Ok::<(), gatestream_network::NetworkError>(())
/// ```
#[derive(Clone)]
pub struct NetworkThreads(Arc<Threads>);

impl NetworkThreads {
    /// So many threads; `None`: one for each core.
    pub fn new(threads: Option<usize>) -> NetworkThreads {
        let count = threads.unwrap_or_else(|| Topology::detect().team_size());
        NetworkThreads(Arc::new(Threads::new(count)))
    }
}

/// The plan for inputs of certain shapes: [`Network::prepare`] makes one.
#[derive(Clone)]
pub struct PreparedPlan {
    plan: Arc<Plan>,
    caller: Caller,
}

/// An input or an output of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPort {
    /// Its name.
    pub name: String,
    /// The type of its elements, if the file says so and it is supported.
    pub element_type: Option<ElementType>,
    /// The name of the type that the file says, if it is not supported: `bfloat16`, `string`.
    pub unsupported_type: Option<String>,
    /// Its axes, outermost first, each of a certain size or of any; `None` if the file does not say
    /// how many axes there are.
    pub shape: Option<Vec<Option<usize>>>,
}

/// A tensor with the name of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// The name of the output.
    pub name: String,
    /// Its value.
    pub tensor: Tensor,
}

/// A whole ONNX graph, ready to run.
///
/// ```no_run
/// use gatestream_network::{Network, Tensor};
///
/// let network = Network::open("model.onnx")?;
/// let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
/// for output in network.run(&[("x", &x)])? {
///     println!("{}: {:?}", output.name, output.tensor.shape());
/// }
/// # Ok::<(), gatestream_network::NetworkError>(())
/// ```
pub struct Network {
    model: ModelProto,
    executors: Executors,
    inputs: Vec<NetworkPort>,
    outputs: Vec<NetworkPort>,
    /// For each input: whether the branches of the graph may depend on its value.
    decides: Vec<bool>,
    plans: Plans,
}

impl Network {
    /// Loads a file.
    ///
    /// # Errors
    /// [`NetworkError`]: the file cannot be read, or it is not a model that is supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Network, NetworkError> {
        Network::open_with(path, NetworkOptions::default())
    }

    /// As [`Network::open`], with options.
    ///
    /// # Errors
    /// As [`Network::open`].
    pub fn open_with(
        path: impl AsRef<Path>,
        options: NetworkOptions,
    ) -> Result<Network, NetworkError> {
        let threads = NetworkThreads::new(options.threads);
        Network::new(source::open_shared(path.as_ref())?, options, &threads)
    }

    /// As [`Network::open_with`], on threads that other networks may share.
    ///
    /// # Errors
    /// As [`Network::open`]; [`NetworkError::Options`] if the options have a number of threads.
    pub fn open_on(
        path: impl AsRef<Path>,
        options: NetworkOptions,
        threads: &NetworkThreads,
    ) -> Result<Network, NetworkError> {
        if options.threads.is_some() {
            let why = "a network on given threads takes no number of threads; leave it out";
            return Err(NetworkError::Options(why.into()));
        }
        Network::new(source::open_shared(path.as_ref())?, options, threads)
    }

    /// Loads the bytes of a file, which keeps no data in others.
    ///
    /// # Errors
    /// As [`Network::open`].
    pub fn from_bytes(bytes: &[u8], options: NetworkOptions) -> Result<Network, NetworkError> {
        let threads = NetworkThreads::new(options.threads);
        Network::new(source::shared(bytes, None)?, options, &threads)
    }

    fn new(
        source: Source,
        options: NetworkOptions,
        threads: &NetworkThreads,
    ) -> Result<Network, NetworkError> {
        let Source { model, constants } = source;
        let graph = graph(&model);
        let inputs: Vec<NetworkPort> = source::inputs_of(graph).map(port).collect();
        let outputs = graph.output.iter().map(port).collect();
        if inputs.iter().any(|input| input.name.is_empty()) {
            return Err(malformed("an input of the graph has no name"));
        }
        check_types(&inputs)?;
        operators::check(
            graph,
            &model.opset_import,
            options.unchecked,
            operators::CheckTime::AtOpen,
        )?;
        let deciding = deciding_inputs(graph);
        Ok(Network {
            executors: Executors::new(
                Arc::clone(&threads.0),
                RegionOptions {
                    precision: options.precision,
                    clips_outputs: options.clips_outputs,
                },
                constants,
                options.unchecked,
            ),
            decides: { inputs.iter() }
                .map(|input| deciding.contains(&input.name.as_str()))
                .collect(),
            inputs,
            outputs,
            plans: Plans::new(options.plan_bytes.unwrap_or(plans::DEFAULT_BYTES)),
            model,
        })
    }

    /// The inputs that a run needs.
    pub fn inputs(&self) -> &[NetworkPort] {
        &self.inputs
    }

    /// The outputs, in the order of the results of a run.
    pub fn outputs(&self) -> &[NetworkPort] {
        &self.outputs
    }

    /// Runs the network. The first run with inputs of other shapes than before prepares a plan for
    /// them, which takes longer; plans are kept up to [`NetworkOptions::plan_bytes`]. Threads that
    /// run at the same time do not wait while another one prepares a plan for other shapes.
    ///
    /// # Errors
    /// [`NetworkError::Input`] for a missing, unknown or unfitting input; other errors name the
    /// node that cannot be computed.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<NamedTensor>, NetworkError> {
        self.run_with(inputs, RunOptions::default())
    }

    /// As [`Network::run`], with options.
    ///
    /// # Errors
    /// As [`Network::run`].
    pub fn run_with(
        &self,
        inputs: &[(&str, &Tensor)],
        options: RunOptions,
    ) -> Result<Vec<NamedTensor>, NetworkError> {
        self.run_counted(inputs, options.caller, true)
    }

    /// Runs the network. If that fails, `counts` says whether it counts for
    /// [`Plans::tries_values`].
    pub(crate) fn run_counted(
        &self,
        inputs: &[(&str, &Tensor)],
        caller: Caller,
        counts: bool,
    ) -> Result<Vec<NamedTensor>, NetworkError> {
        let values = self.ordered(inputs)?;
        let plan = self.plan(&values, caller)?;
        self.run_plan(&plan, &values, caller, counts)
    }

    /// Whether plans for inputs of these shapes are kept. They may be for other values. It takes
    /// microseconds. Names that are no inputs are ignored.
    pub fn has_plan(&self, shapes: &[(&str, &[usize])]) -> bool {
        let of_inputs = self.inputs.iter().map(|input| {
            let found = shapes.iter().find(|(name, _)| *name == input.name);
            found.map(|(_, shape)| shape.to_vec())
        });
        let of_inputs: Option<Vec<Vec<usize>>> = of_inputs.collect();
        of_inputs.is_some_and(|shapes| self.plans.has(&shapes))
    }

    /// The plan for these inputs, if it is kept. It takes microseconds.
    ///
    /// # Errors
    /// [`NetworkError::Input`] as for [`Network::run`].
    pub fn prepared(
        &self,
        inputs: &[(&str, &Tensor)],
        options: RunOptions,
    ) -> Result<Option<PreparedPlan>, NetworkError> {
        let values = self.ordered(inputs)?;
        let caller = options.caller;
        let found = self.plans.find(&values, caller);
        Ok(found.map(|plan| PreparedPlan { plan, caller }))
    }

    /// The plan for these inputs, which is made if it is not kept. A server makes plans beside the
    /// thread that runs the network.
    ///
    /// ```no_run
    /// # use gatestream_network::{Network, RunOptions, Tensor};
    /// # let network = Network::open("model.onnx")?;
    /// let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
    /// let plan = network.prepare(&[("x", &x)], RunOptions::default())?;
    /// let outputs = network.run_prepared(&plan, &[("x", &x)])?;
    /// # Ok::<(), gatestream_network::NetworkError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::run`].
    pub fn prepare(
        &self,
        inputs: &[(&str, &Tensor)],
        options: RunOptions,
    ) -> Result<PreparedPlan, NetworkError> {
        let values = self.ordered(inputs)?;
        let caller = options.caller;
        let plan = self.plan(&values, caller)?;
        Ok(PreparedPlan { plan, caller })
    }

    /// Runs the network with a plan of [`Network::prepare`] for the same inputs.
    ///
    /// # Errors
    /// As [`Network::run`]; [`NetworkError::Input`] for an input that the plan is not for.
    pub fn run_prepared(
        &self,
        prepared: &PreparedPlan,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Vec<NamedTensor>, NetworkError> {
        let values = self.ordered(inputs)?;
        let PreparedPlan { plan, caller } = prepared;
        let mut known = plan.known.iter().zip(&values);
        if let Some(index) = known.position(|(known, value)| !known.fits(value)) {
            return Err(NetworkError::Input {
                name: self.inputs[index].name.clone(),
                why: "the plan was prepared for another shape or value; prepare one for this"
                    .into(),
            });
        }
        self.run_plan(plan, &values, *caller, true)
    }

    /// The plans that are kept, and that were made.
    pub fn plan_stats(&self) -> PlanStats {
        self.plans.stats()
    }

    /// Number of nodes of the graph, those of branches and bodies included.
    pub fn nodes(&self) -> usize {
        source::node_names(graph(&self.model)).len()
    }

    fn run_plan(
        &self,
        plan: &Plan,
        values: &[&Tensor],
        caller: Caller,
        counts: bool,
    ) -> Result<Vec<NamedTensor>, NetworkError> {
        let ran = match run_plan(plan, values) {
            Err(why) if plan.has_open_sizes() => {
                let ran = self.run_by_values(plan, values, caller, counts);
                ran.ok_or(why)?
            }
            ran => ran?,
        };
        let outputs = self.outputs.iter().zip(ran);
        let named = outputs.map(|(port, tensor)| NamedTensor {
            name: port.name.clone(),
            tensor,
        });
        Ok(named.collect())
    }

    /// Runs inputs whose plan failed, with a plan that the values of all small integers are part
    /// of: they may decide on sizes that were open. `None`: that fails, too.
    fn run_by_values(
        &self,
        failed: &Plan,
        values: &[&Tensor],
        caller: Caller,
        counts: bool,
    ) -> Option<Vec<Tensor>> {
        let known = Known::of(values, |_| true);
        if known == failed.known || !self.plans.tries_values(counts) {
            return None;
        }
        let plan = match self.plans.find_known(&known, caller) {
            Some(plan) => plan,
            None => Arc::new(self.plan_of(known).ok()?),
        };
        let ran = run_plan(&plan, values).ok()?;
        self.plans.replace_by_values(plan, caller);
        Some(ran)
    }

    /// Runs the network as [`Network::run`], and takes the time of each recurrent region.
    ///
    /// ```no_run
    /// # use gatestream_network::{Network, Tensor};
    /// # let network = Network::open("model.onnx")?;
    /// # let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
    /// network.run(&[("x", &x)])?; // the first run also prepares a plan
    /// let profile = network.profile(&[("x", &x)])?.profile;
    /// println!("{:.0} % in recurrent layers", 100.0 * profile.recurrent_share());
    /// # Ok::<(), gatestream_network::NetworkError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::run`].
    pub fn profile(&self, inputs: &[(&str, &Tensor)]) -> Result<ProfiledRun, NetworkError> {
        let (outputs, profile) = profiled(|| self.run(inputs));
        let outputs = outputs?;
        Ok(ProfiledRun { outputs, profile })
    }

    /// Takes the plans of a file for all recurrent regions that it names; those of others are
    /// estimated. `None`: all are estimated. A plan that does not fit its region or this machine
    /// is refused by the next run.
    ///
    /// # Errors
    /// [`NetworkError::PlanFile`] for a plan with a node that this model does not have.
    pub fn use_plan(&self, plan: Option<NetworkPlan>) -> Result<(), NetworkError> {
        if let Some(plan) = &plan {
            // Any node, as a loop or single operators may be a layer. Nodes of branches and loops
            // get a prefix when these are decided.
            let names = source::node_names(graph(&self.model));
            let is = |node: &str, name: &str| {
                let prefix = node.strip_suffix(name);
                prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('/'))
            };
            let is_here = |node: &&str| names.iter().any(|name| is(node, name));
            if let Some(node) = plan.regions().find(|node| !is_here(node)) {
                let why = format!(
                    "it has a plan for node {node:?}, which is not in this model; tune again"
                );
                return Err(NetworkError::PlanFile { why });
            }
        }
        self.executors.regions.use_plan(plan);
        Ok(())
    }

    /// The regions, for tuning.
    pub(crate) fn regions(&self) -> &Regions {
        &self.executors.regions
    }

    /// The values of all inputs, in order.
    fn ordered<'a>(&self, given: &[(&str, &'a Tensor)]) -> Result<Vec<&'a Tensor>, NetworkError> {
        let refused = |name: &str, why: String| NetworkError::Input {
            name: name.to_owned(),
            why,
        };
        for (index, (name, _)) in given.iter().enumerate() {
            if !self.inputs.iter().any(|input| input.name == *name) {
                let known: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
                let why = format!("the model has no such input; it has {}", known.join(", "));
                return Err(refused(name, why));
            }
            if given[..index].iter().any(|(other, _)| other == name) {
                return Err(refused(name, "it is given twice; give it once".into()));
            }
        }
        let values = self.inputs.iter().map(|input| {
            let found = given.iter().find(|(name, _)| *name == input.name);
            let (_, value) = found.ok_or_else(|| {
                let kind = input.element_type.map_or("any type", ElementType::name);
                refused(&input.name, format!("it is missing; its type is {kind}"))
            })?;
            input
                .check(value)
                .map_err(|why| refused(&input.name, why))?;
            Ok(*value)
        });
        values.collect()
    }

    /// The plan for these inputs.
    fn plan(&self, values: &[&Tensor], caller: Caller) -> Result<Arc<Plan>, NetworkError> {
        self.plans.get(values, caller, || self.make_plan(values))
    }

    fn make_plan(&self, values: &[&Tensor]) -> Result<Plan, NetworkError> {
        // A single number is a mode; several are data.
        let is_mode = |index: usize| self.decides[index] && values[index].data().len() == 1;
        let by_values = self.plans.need_values();
        let mut first = Known::of(values, |index| by_values || is_mode(index));
        if !by_values {
            let modes = first.iter().filter(|known| known.is_value());
            if !self.plans.may_know(&modes.cloned().collect::<Vec<_>>()) {
                first = Known::of(values, |_| false);
            }
        }
        self.plan_of(first.clone()).or_else(|why| {
            // The values of all small integers may decide on shapes.
            let all = Known::of(values, |_| true);
            if !all.iter().any(Known::is_value) || all == first {
                return Err(why);
            }
            self.plan_of(all)
        })
    }

    fn plan_of(&self, known: Vec<Known>) -> Result<Plan, NetworkError> {
        let names: Vec<&str> = self
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        let plan = catch_panic_silently(|| Plan::new(&self.model, &self.executors, &names, known));
        plan.unwrap_or_else(|_| {
            let why = PANICKED.into();
            Err(NetworkError::Plan { why })
        })
    }
}

/// The reason where tract panics, as it does at some graphs: the text of a panic says nothing about
/// the graph. With `RUST_BACKTRACE` set, the panic hook tells it.
pub(crate) const PANICKED: &str =
    "it contradicts itself, or has an operator in a form that is not supported";

/// Runs a plan.
fn run_plan(plan: &Plan, values: &[&Tensor]) -> Result<Vec<Tensor>, NetworkError> {
    let ran = catch_panic_silently(|| plan.run(values));
    ran.unwrap_or_else(|_| {
        let why = PANICKED.into();
        Err(NetworkError::Run { why })
    })
}

/// Checks that tensors of the types of all inputs can be given.
fn check_types(inputs: &[NetworkPort]) -> Result<(), NetworkError> {
    let mut unsupported = inputs
        .iter()
        .filter_map(|input| Some((input, input.unsupported_type.as_ref()?)));
    match unsupported.next() {
        None => Ok(()),
        Some((input, name)) => Err(NetworkError::Input {
            name: input.name.clone(),
            why: format!(
                "its type is {name}, which is not supported; begin the graph with a supported \
                 type, such as float32, and a Cast"
            ),
        }),
    }
}

pub(crate) fn port(info: &ValueInfoProto) -> NetworkPort {
    let kind = info.r#type.as_ref().and_then(|of| of.value.as_ref());
    let tensor = kind.map(|type_proto::Value::TensorType(tensor)| tensor);
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let size = |value: &Option<dimension::Value>| match value {
        Some(dimension::Value::DimValue(size)) if *size > 0 => usize::try_from(*size).ok(),
        _ => None,
    };
    let element_type = tensor.and_then(|tensor| ElementType::of_onnx(tensor.elem_type));
    let of_file = tensor.map_or(0, |tensor| tensor.elem_type);
    NetworkPort {
        name: info.name.clone(),
        element_type,
        unsupported_type: match element_type {
            None if of_file != 0 => Some(ElementType::name_of_onnx(of_file)),
            _ => None,
        },
        shape: shape.map(|shape| shape.dim.iter().map(|dim| size(&dim.value)).collect()),
    }
}

impl NetworkPort {
    /// Checks that a value fits.
    fn check(&self, value: &Tensor) -> Result<(), String> {
        let found = value.data().element_type();
        if let Some(expected) = self.element_type
            && expected != found
        {
            return Err(format!(
                "its type is {expected}, not {found}; convert the values"
            ));
        }
        if let Some(shape) = &self.shape
            && shape.len() != value.shape().len()
        {
            return Err(format!(
                "it has {} axes; give a shape with {} axes",
                value.shape().len(),
                shape.len()
            ));
        }
        Ok(())
    }
}
