//! Values that are known before a run: they depend on constants and on shapes alone.

use std::sync::Arc;

use tract_onnx::pb::{GraphProto, ModelProto, OperatorSetIdProto};
use tract_onnx::prelude::{InferenceModel, InferenceModelExt, TypedModel};
use tract_onnx::tract_hir::internal::*;

use crate::dense;
use crate::executors::Executors;
use crate::operators;
use crate::recurrent;
use crate::source::{TableRead, constants, opsets};
use crate::tensor::Tensor as Value;
use crate::{ElementType, NetworkError};

/// Turns graphs of a network into models of tract.
pub(crate) struct Evaluation<'a> {
    pub ir_version: i64,
    pub opset_import: &'a [OperatorSetIdProto],
    pub executors: &'a Executors,
}

/// The type and the shape of a value.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub element_type: ElementType,
    pub shape: Vec<usize>,
}

pub(crate) fn planning(why: TractError) -> NetworkError {
    of_tract(why, |why| NetworkError::Plan { why })
}

/// An error of tract; `of_text` makes one of its text.
pub(crate) fn of_tract(
    why: TractError,
    of_text: impl FnOnce(String) -> NetworkError,
) -> NetworkError {
    match why.downcast() {
        Ok(TableRead { path, why }) => NetworkError::Read { path, why },
        Err(why) => of_text(format!("{why:#}")),
    }
}

impl Evaluation<'_> {
    /// Parses and types a graph.
    pub fn typed(&self, mut graph: GraphProto) -> Result<TypedModel, NetworkError> {
        constants::write_nodes(&mut graph);
        let model = ModelProto {
            ir_version: self.ir_version,
            opset_import: self.opset_import.to_vec(),
            graph: Some(graph),
            ..ModelProto::default()
        };
        let mut onnx = tract_onnx::onnx()
            .with_ignore_value_info(true)
            .with_ignore_output_shapes(true)
            .with_ignore_output_types(true);
        operators::register(&mut onnx);
        dense::register(&mut onnx);
        recurrent::register(&mut onnx);
        constants::register(&mut onnx);
        let Executors {
            regions,
            dense,
            constants,
            ..
        } = self.executors;
        let parsed: TractResult<InferenceModel> = recurrent::while_parsing(regions, || {
            dense::while_parsing(dense, || {
                constants::while_parsing(constants, || onnx.model_for_proto_model(&model))
            })
        });
        let typed = parsed.and_then(|parsed| parsed.into_typed());
        typed
            .and_then(|typed| typed.into_decluttered())
            .map_err(planning)
    }

    /// The only output of a graph whose inputs decide on it by their shapes alone. `None` if a
    /// shape is not known.
    pub fn value(&self, graph: GraphProto) -> Result<Option<Value>, NetworkError> {
        let typed = self.typed(graph)?;
        let outlet = typed.output_outlets().map_err(planning)?[0];
        let fact = typed.outlet_fact(outlet).map_err(planning)?;
        let value = match &fact.konst {
            Some(value) => Some(Arc::clone(value)),
            None => evaluate(typed)?,
        };
        let value = value.map(|value| Value::from_tract(&value));
        value.transpose().map_err(|why| NetworkError::Plan { why })
    }

    /// The types and shapes of the outputs of a graph; `None` if one of them is not known.
    pub fn facts(&self, graph: GraphProto) -> Option<Vec<Fact>> {
        let typed = self.typed(graph).ok()?;
        let outlets = typed.output_outlets().ok()?.iter();
        let facts = outlets.map(|outlet| {
            let fact = typed.outlet_fact(*outlet).ok()?;
            Some(Fact {
                element_type: ElementType::of(fact.datum_type)?,
                shape: fact.shape.as_concrete()?.to_vec(),
            })
        });
        facts.collect()
    }

    /// The version of the ONNX operator set.
    pub fn opset(&self) -> i64 {
        opsets(self.opset_import).next().unwrap_or_default()
    }

    /// The type of the only output of a graph, if it is known.
    pub fn element_type(&self, graph: GraphProto) -> Option<ElementType> {
        let typed = self.typed(graph).ok()?;
        let fact = typed.outlet_fact(*typed.output_outlets().ok()?.first()?);
        ElementType::of(fact.ok()?.datum_type)
    }

    /// As [`Evaluation::value`]: the first element, as an integer.
    pub fn integer(&self, graph: GraphProto) -> Result<Option<i64>, NetworkError> {
        Ok(self.value(graph)?.and_then(|value| value.first_integer()))
    }
}

/// Runs a graph on zeros; its result depends on their shapes alone.
fn evaluate(model: TypedModel) -> Result<Option<Arc<Tensor>>, NetworkError> {
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
    let plan = model.into_runnable().map_err(planning)?;
    let outputs = plan.run(inputs).map_err(planning)?;
    let first = outputs.into_iter().next();
    Ok(first.map(|value| value.into_arc_tensor()))
}
