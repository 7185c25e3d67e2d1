//! A graph for inputs of certain shapes, ready to run.

use std::sync::Arc;

use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::TypedRunnableModel;
use tract_onnx::tract_hir::internal::*;

use crate::control_flow;
use crate::dense;
use crate::derived::PlanMemory;
use crate::evaluation::{Evaluation, of_tract, planning};
use crate::executors::Executors;
use crate::fusion;
use crate::operators;
use crate::source::{fix_shape, fix_value, graph};
use crate::tensor::Tensor as Value;
use crate::threads::Threads;
use crate::{ElementType, NetworkError};

/// See the [module](self).
pub(crate) struct Plan {
    model: Arc<TypedRunnableModel>,
    threads: Arc<Threads>,
    /// The inputs of the network that it reads, in the order of its own.
    reads: Vec<usize>,
    /// Of each input, in the order of the network.
    pub known: Vec<Known>,
    pub memory: PlanMemory,
    /// Whether a size of a value is known in a run at the earliest.
    has_open_sizes: bool,
}

/// What is known of an input before a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Known {
    Shape(Vec<usize>),
    /// The value decides on shapes or branches.
    Value(Value),
}

/// Most elements of an input whose value a plan may depend on.
const SMALL: usize = 64;

impl Known {
    /// What a plan may know of these inputs: the values of small integers among those of
    /// `by_value`.
    pub fn of(values: &[&Value], by_value: impl Fn(usize) -> bool) -> Vec<Known> {
        let is_small = |value: &Value| match value.data().element_type() {
            ElementType::F32 | ElementType::F64 | ElementType::F16 => false,
            _ => value.data().len() <= SMALL,
        };
        let values = values.iter().enumerate();
        let known = values.map(|(index, value)| {
            if is_small(value) && by_value(index) {
                Known::Value((*value).clone())
            } else {
                Known::Shape(value.shape().to_vec())
            }
        });
        known.collect()
    }

    pub fn is_value(&self) -> bool {
        matches!(self, Known::Value(_))
    }

    pub fn shape(&self) -> Vec<usize> {
        match self {
            Known::Shape(shape) => shape.clone(),
            Known::Value(value) => value.shape().to_vec(),
        }
    }

    /// Whether a plan that knows this is for a value.
    pub fn fits(&self, value: &Value) -> bool {
        match self {
            Known::Shape(shape) => shape == value.shape(),
            Known::Value(of_plan) => of_plan == value,
        }
    }
}

impl Plan {
    /// Prepares a model whose inputs, which have these names, are known so far.
    pub fn new(
        model: &ModelProto,
        executors: &Executors,
        names: &[&str],
        known: Vec<Known>,
    ) -> Result<Plan, NetworkError> {
        let mut graph = graph(model).clone();
        let mut reads = Vec::new();
        for (index, (name, known)) in names.iter().zip(&known).enumerate() {
            match known {
                Known::Shape(shape) => {
                    fix_shape(&mut graph, name, shape);
                    reads.push(index);
                }
                Known::Value(value) => fix_value(&mut graph, name, value),
            }
        }
        let evaluation = Evaluation {
            ir_version: model.ir_version,
            opset_import: &model.opset_import,
            executors,
        };
        control_flow::decide(&mut graph, &evaluation)?;
        // Before the operators of this crate are written, which no file may have.
        operators::check(
            &graph,
            &model.opset_import,
            executors.is_unchecked,
            operators::CheckTime::InPlan,
        )?;
        fusion::fuse(&mut graph, &evaluation);
        dense::rewrite(&mut graph);
        let typed = evaluation.typed(graph)?;
        let outputs = typed.nodes.iter().flat_map(|node| &node.outputs);
        let has_open_sizes = { outputs }.any(|output| !output.fact.shape.is_concrete());
        let mut optimized = typed.into_optimized().map_err(planning)?;
        let memory = executors
            .derived
            .share(&mut optimized, &executors.constants);
        let model = optimized.into_runnable().map_err(planning)?;
        Ok(Plan {
            model,
            known,
            memory,
            threads: Arc::clone(&executors.threads),
            reads,
            has_open_sizes,
        })
    }

    /// Whether values of inputs may decide on sizes that are open.
    pub fn has_open_sizes(&self) -> bool {
        self.has_open_sizes
    }

    /// Runs it on the inputs of the network.
    pub fn run(&self, inputs: &[&Value]) -> Result<Vec<Value>, NetworkError> {
        let failed = |why: String| NetworkError::Run { why };
        let read = self.reads.iter().map(|&index| {
            let value = inputs[index].to_tract().map_err(failed)?;
            Ok(value.into_tvalue())
        });
        let read: TVec<TValue> = read.collect::<Result<_, NetworkError>>()?;
        let ran = self.threads.run(|| self.model.run(read));
        let outputs = ran.map_err(|why| of_tract(why, failed))?;
        let outputs = outputs
            .iter()
            .map(|output| Value::from_tract(output).map_err(failed));
        outputs.collect()
    }
}
