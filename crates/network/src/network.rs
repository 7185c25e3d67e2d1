//! Named inputs and outputs, and plans by the shapes of inputs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cellstream::execute::team::catch_panic;
use cellstream::machine::Topology;
use cellstream::model::Precision;
use tract_onnx::pb::tensor_shape_proto::dimension;
use tract_onnx::pb::{ModelProto, ValueInfoProto, type_proto};

use crate::control_flow::deciding_inputs;
use crate::executors::Executors;
use crate::plan::{Known, Plan};
use crate::profile::{ProfiledRun, profiled};
use crate::recurrent::{RegionOptions, Regions};
use crate::source::{self, graph, malformed};
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
}

/// An input or an output of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPort {
    /// Its name.
    pub name: String,
    /// The type of its elements, if the file says so and it is supported.
    pub element_type: Option<ElementType>,
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

/// Most plans that are kept, each for other shapes of the inputs.
const KEPT_PLANS: usize = 8;

/// Most elements of an input whose value a plan may depend on.
const SMALL: usize = 64;

/// Most plans that are made for values that choose branches. Values that change more often, such as
/// a count of steps, would need a plan for each run.
const MAX_PLANS_OF_VALUES: usize = 4;

/// A whole ONNX graph, ready to run.
///
/// ```no_run
/// use cellstream_network::{Network, Tensor};
///
/// let network = Network::open("model.onnx")?;
/// let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
/// for output in network.run(&[("x", &x)])? {
///     println!("{}: {:?}", output.name, output.tensor.shape());
/// }
/// # Ok::<(), cellstream_network::NetworkError>(())
/// ```
pub struct Network {
    model: ModelProto,
    executors: Executors,
    inputs: Vec<NetworkPort>,
    outputs: Vec<NetworkPort>,
    /// For each input: whether the branches of the graph may depend on its value.
    decides: Vec<bool>,
    plans: Mutex<Plans>,
}

#[derive(Default)]
struct Plans {
    /// The plan that was used last is the last.
    kept: Vec<(Vec<Known>, Arc<Plan>)>,
    /// Number of plans that were made for values of inputs that choose branches.
    of_values: usize,
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
        Network::new(source::open(path.as_ref())?, options)
    }

    /// Loads the bytes of a file, which keeps no data in others.
    ///
    /// # Errors
    /// As [`Network::open`].
    pub fn from_bytes(bytes: &[u8], options: NetworkOptions) -> Result<Network, NetworkError> {
        Network::new(source::prepare(bytes, None)?, options)
    }

    fn new(model: ModelProto, options: NetworkOptions) -> Result<Network, NetworkError> {
        let graph = graph(&model);
        let inputs: Vec<NetworkPort> = source::inputs_of(graph).map(port).collect();
        let outputs = graph.output.iter().map(port).collect();
        if inputs.iter().any(|input| input.name.is_empty()) {
            return Err(malformed("an input of the graph has no name"));
        }
        let deciding = deciding_inputs(graph);
        let threads = options
            .threads
            .unwrap_or_else(|| Topology::detect().team_size());
        Ok(Network {
            executors: Executors::new(
                threads,
                RegionOptions {
                    precision: options.precision,
                    clips_outputs: options.clips_outputs,
                },
            ),
            decides: { inputs.iter() }
                .map(|input| deciding.contains(&input.name.as_str()))
                .collect(),
            inputs,
            outputs,
            plans: Mutex::default(),
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
    /// them, which takes longer; the last eight plans are kept.
    ///
    /// # Errors
    /// [`NetworkError::Input`] for a missing, unknown or unfitting input; other errors name the
    /// node that cannot be computed.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<NamedTensor>, NetworkError> {
        let values = self.ordered(inputs)?;
        let plan = self.plan(&values)?;
        // tract panics at some graphs that contradict themselves.
        let ran = catch_panic(|| plan.run(&values));
        let ran = ran.unwrap_or_else(|panic| {
            let why = format!("tract panicked: {}", panic.message());
            Err(NetworkError::Run { why })
        });
        let outputs = self.outputs.iter().zip(ran?);
        let named = outputs.map(|(port, tensor)| NamedTensor {
            name: port.name.clone(),
            tensor,
        });
        Ok(named.collect())
    }

    /// Runs the network as [`Network::run`], and takes the time of each recurrent region.
    ///
    /// ```no_run
    /// # use cellstream_network::{Network, Tensor};
    /// # let network = Network::open("model.onnx")?;
    /// # let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
    /// network.run(&[("x", &x)])?; // the first run also prepares a plan
    /// let profile = network.profile(&[("x", &x)])?.profile;
    /// println!("{:.0} % in recurrent layers", 100.0 * profile.recurrent_share());
    /// # Ok::<(), cellstream_network::NetworkError>(())
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
    fn plan(&self, values: &[&Tensor]) -> Result<Arc<Plan>, NetworkError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(known, _): &(Vec<Known>, Arc<Plan>)| {
            let mut pairs = known.iter().zip(values);
            pairs.all(|(known, value)| match known {
                Known::Shape(shape) => shape == value.shape(),
                Known::Value(of_plan) => of_plan == *value,
            })
        };
        if let Some(at) = plans.kept.iter().position(fits) {
            let found = plans.kept.remove(at);
            let plan = Arc::clone(&found.1);
            plans.kept.push(found);
            return Ok(plan);
        }
        let small = |value: &Tensor| match value.data().element_type() {
            ElementType::F32 | ElementType::F64 | ElementType::F16 => false,
            _ => value.data().len() <= SMALL,
        };
        let known = |by_value: &dyn Fn(usize) -> bool| -> Vec<Known> {
            let values = values.iter().enumerate();
            values
                .map(|(index, value)| match small(value) && by_value(index) {
                    true => Known::Value((*value).clone()),
                    false => Known::Shape(value.shape().to_vec()),
                })
                .collect()
        };
        let has_values =
            |known: &[Known]| known.iter().any(|known| matches!(known, Known::Value(_)));
        let of_values = plans.of_values < MAX_PLANS_OF_VALUES;
        // A single number is a mode; several are data.
        let is_mode = |index: usize| self.decides[index] && values[index].data().len() == 1;
        let first = known(&|index| of_values && is_mode(index));
        let (known, plan) = match self.prepare(&first) {
            Ok(plan) => (first, plan),
            Err(why) => {
                // The values of all small integers may decide on shapes.
                let all = known(&|_| true);
                if !has_values(&all) || all == first {
                    return Err(why);
                }
                let plan = self.prepare(&all)?;
                (all, plan)
            }
        };
        let plan = Arc::new(plan);
        if plans.kept.len() >= KEPT_PLANS {
            plans.kept.remove(0);
        }
        plans.of_values += usize::from(has_values(&known));
        plans.kept.push((known, Arc::clone(&plan)));
        Ok(plan)
    }

    fn prepare(&self, known: &[Known]) -> Result<Plan, NetworkError> {
        let inputs = self.inputs.iter().zip(known);
        let inputs: Vec<_> = inputs
            .map(|(input, known)| (input.name.as_str(), known.clone()))
            .collect();
        let plan = catch_panic(|| Plan::new(&self.model, &self.executors, &inputs));
        plan.unwrap_or_else(|panic| {
            let why = format!("tract panicked: {}", panic.message());
            Err(NetworkError::Plan { why })
        })
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
    NetworkPort {
        name: info.name.clone(),
        element_type: tensor.and_then(|tensor| ElementType::of_onnx(tensor.elem_type)),
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
