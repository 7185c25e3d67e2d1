//! A graph for inputs of certain shapes, ready to run.

use std::sync::Arc;

use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto, TensorShapeProto, type_proto};
use tract_onnx::prelude::{
    Framework, InferenceModel, InferenceModelExt, TypedModel, TypedRunnableModel,
};
use tract_onnx::tract_hir::internal::*;

use crate::operators;
use crate::recurrent::{self, Regions, while_parsing};
use crate::source::{decide_branches, graph};
use crate::tensor::Tensor as Value;
use crate::{ElementType, NetworkError};

/// See the [module](self).
pub(crate) struct Plan {
    model: Arc<TypedRunnableModel>,
    /// The inputs of the network that it reads, in the order of its own.
    reads: Vec<usize>,
}

/// What is known of an input before a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Known {
    Shape(Vec<usize>),
    /// The value decides on shapes or branches.
    Value(Value),
}

impl Plan {
    /// Prepares a model whose inputs are known so far.
    pub fn new(
        model: &ModelProto,
        regions: &Arc<Regions>,
        inputs: &[(&str, Known)],
    ) -> Result<Plan, NetworkError> {
        let mut graph = graph(model).clone();
        let mut reads = Vec::new();
        for (index, (name, known)) in inputs.iter().enumerate() {
            match known {
                Known::Shape(shape) => {
                    fix_shape(&mut graph, name, shape);
                    reads.push(index);
                }
                Known::Value(value) => fix_value(&mut graph, name, value),
            }
        }
        let of = |graph: GraphProto| ModelProto {
            ir_version: model.ir_version,
            opset_import: model.opset_import.clone(),
            graph: Some(graph),
            ..ModelProto::default()
        };
        decide_branches(&mut graph, &|cone| condition(&of(cone.clone()), regions))?;
        let typed = typed(&of(graph), regions)?;
        let optimized = typed.into_optimized().map_err(planning)?;
        let model = optimized.into_runnable().map_err(planning)?;
        Ok(Plan { model, reads })
    }

    /// Runs it on the inputs of the network.
    pub fn run(&self, inputs: &[&Value]) -> Result<Vec<Value>, NetworkError> {
        let failed = |why: String| NetworkError::Run { why };
        let read = self.reads.iter().map(|&index| {
            let value = inputs[index].to_tract().map_err(failed)?;
            Ok(value.into_tvalue())
        });
        let read: TVec<TValue> = read.collect::<Result<_, NetworkError>>()?;
        let outputs = self
            .model
            .run(read)
            .map_err(|why| failed(format!("{why:#}")))?;
        let outputs = outputs.iter().map(|output| {
            // A size that tract has kept symbolic until now.
            let output = match output.datum_type() == TDim::datum_type() {
                true => output
                    .cast_to::<i64>()
                    .map_err(|why| failed(format!("{why:#}")))?,
                false => std::borrow::Cow::Borrowed(&**output),
            };
            Value::from_tract(&output).map_err(failed)
        });
        outputs.collect()
    }
}

fn planning(why: TractError) -> NetworkError {
    NetworkError::Plan {
        why: format!("{why:#}"),
    }
}

/// Parses and types a graph.
fn typed(model: &ModelProto, regions: &Arc<Regions>) -> Result<TypedModel, NetworkError> {
    let mut onnx = tract_onnx::onnx()
        .with_ignore_value_info(true)
        .with_ignore_output_shapes(true)
        .with_ignore_output_types(true);
    operators::register(&mut onnx);
    recurrent::register(&mut onnx);
    let parsed: TractResult<InferenceModel> =
        while_parsing(regions, || onnx.model_for_proto_model(model));
    let typed = parsed.and_then(|parsed| parsed.into_typed());
    typed
        .and_then(|typed| typed.into_decluttered())
        .map_err(planning)
}

/// The value of a condition that depends on constants and shapes alone.
fn condition(model: &ModelProto, regions: &Arc<Regions>) -> Result<Option<bool>, NetworkError> {
    let typed = typed(model, regions)?;
    let outlet = typed.output_outlets().map_err(planning)?[0];
    let fact = typed.outlet_fact(outlet).map_err(planning)?;
    let known = match &fact.konst {
        Some(value) => Some(Arc::clone(value)),
        None => evaluate(&typed)?,
    };
    let known = known.map(|value| {
        value.cast_to::<i64>().and_then(|value| {
            Ok(value
                .try_as_plain_ram()?
                .as_slice::<i64>()?
                .first()
                .copied())
        })
    });
    Ok(known
        .transpose()
        .map_err(planning)?
        .flatten()
        .map(|value| value != 0))
}

/// Runs a graph on zeros; its result depends on their shapes alone.
fn evaluate(model: &TypedModel) -> Result<Option<Arc<Tensor>>, NetworkError> {
    let inputs = model
        .input_outlets()
        .map_err(planning)?
        .iter()
        .map(|outlet| {
            let fact = model.outlet_fact(*outlet)?;
            let shape = fact.shape.as_concrete().context("a size is not known")?;
            Ok(Tensor::zero_dt(fact.datum_type, shape)?.into_tvalue())
        });
    let inputs: TractResult<TVec<TValue>> = inputs.collect();
    let Ok(inputs) = inputs else {
        return Ok(None);
    };
    let plan = model.clone().into_runnable().map_err(planning)?;
    let outputs = plan.run(inputs).map_err(planning)?;
    Ok(outputs
        .into_iter()
        .next()
        .map(|value| value.into_arc_tensor()))
}

/// Gives an input its shape.
fn fix_shape(graph: &mut GraphProto, name: &str, shape: &[usize]) {
    let Some(input) = graph.input.iter_mut().find(|input| input.name == name) else {
        return;
    };
    let dim = shape.iter().map(|&size| Dimension {
        value: Some(dimension::Value::DimValue(size as i64)),
        ..Dimension::default()
    });
    if let Some(type_proto::Value::TensorType(tensor)) =
        input.r#type.as_mut().and_then(|of| of.value.as_mut())
    {
        tensor.shape = Some(TensorShapeProto { dim: dim.collect() });
    }
}

/// Makes an input a constant.
fn fix_value(graph: &mut GraphProto, name: &str, value: &Value) {
    graph.input.retain(|input| input.name != name);
    graph.initializer.push(TensorProto {
        name: name.to_owned(),
        dims: value.shape().iter().map(|&size| size as i64).collect(),
        data_type: onnx_number(value.data().element_type()),
        raw_data: value.to_bytes(),
        ..TensorProto::default()
    });
}

fn onnx_number(kind: ElementType) -> i32 {
    let numbers = 1..=13;
    let mut of_kind = numbers.filter(|&number| ElementType::of_onnx(number) == Some(kind));
    of_kind.next().expect("every type has a number")
}
