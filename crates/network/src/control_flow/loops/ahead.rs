//! Counts the iterations of a loop by computing its condition ahead.

use std::collections::HashSet;

use tract_onnx::pb::GraphProto;
use tract_onnx::tract_hir::internal::*;

use super::{Loop, MAX_ITERATIONS};
use crate::control_flow::cone::{cone, depends_on_values, leaves};
use crate::evaluation::{Evaluation, planning};
use crate::source::input;
use crate::tensor::Tensor as Value;
use crate::{ElementType, NetworkError};

/// The part of a body that decides on the next iteration, and the states that it reads.
pub(super) struct Ahead {
    graph: GraphProto,
    /// The indices and the first values.
    states: Vec<(usize, Value)>,
}

impl Ahead {
    /// `None` if it depends on values that are not known before a run.
    pub fn read(
        of: &Loop,
        graph: &GraphProto,
        evaluation: &Evaluation<'_>,
    ) -> Result<Option<Ahead>, NetworkError> {
        let mut body = of.body.clone();
        // The states that the condition reads, and those that these read.
        let mut needed: Vec<usize> = Vec::new();
        let mut open = vec![of.body.output[0].name.as_str()];
        let mut outer: HashSet<&str> = HashSet::new();
        let own = &of.body.initializer;
        while let Some(name) = open.pop() {
            for leaf in leaves(&of.body, name) {
                let mut states = 0..of.states;
                if let Some(index) = states.find(|&index| of.state(index).0 == leaf) {
                    if !needed.contains(&index) {
                        needed.push(index);
                        open.push(&of.body.output[1 + index].name);
                    }
                } else if ![of.counter(), of.condition()].contains(&leaf)
                    && !own.iter().any(|tensor| tensor.name == leaf)
                {
                    outer.insert(leaf);
                }
            }
        }
        let value = |name: &str| {
            if depends_on_values(graph, name) {
                Ok(None)
            } else {
                evaluation.value(cone(graph, &[name]))
            }
        };
        for name in outer {
            let Some(value) = value(name)? else {
                return Ok(None);
            };
            body.initializer.push(value.to_proto(name));
        }
        let mut states = Vec::new();
        body.input.clear();
        body.input
            .push(input(of.counter(), ElementType::I64, Some(&[])));
        for index in needed {
            let Some(value) = value(&of.node.input[2 + index])? else {
                return Ok(None);
            };
            let kind = value.data().element_type();
            body.input
                .push(input(of.state(index).0, kind, Some(value.shape())));
            states.push((index, value));
        }
        // It is true in each iteration.
        let is_true = Value::new(&[], vec![true]).expect("one element");
        body.initializer.push(is_true.to_proto(of.condition()));
        let mut names = vec![of.body.output[0].name.as_str()];
        names.extend((states.iter()).map(|(index, _)| of.body.output[1 + index].name.as_str()));
        Ok(Some(Ahead {
            graph: cone(&body, &names),
            states,
        }))
    }

    /// Runs it until it ends the loop; `None` after too many iterations.
    pub fn count(
        mut self,
        of: &Loop,
        most: i64,
        evaluation: &Evaluation<'_>,
    ) -> Result<Option<i64>, NetworkError> {
        // An input for each, read or not: the values have a fixed order.
        let reads_counter = self.graph.input.iter().any(|i| i.name == of.counter());
        let model = evaluation.typed(std::mem::take(&mut self.graph))?;
        let kinds = model.input_outlets().map_err(planning)?.iter();
        let kinds = kinds.map(|outlet| Ok(model.outlet_fact(*outlet)?.datum_type));
        let kinds: Vec<DatumType> = kinds.collect::<TractResult<_>>().map_err(planning)?;
        let model = model.into_runnable().map_err(planning)?;
        let tensors = self.states.iter().map(|(_, value)| value.to_tract());
        let mut states: Vec<Tensor> = tensors
            .collect::<Result<_, _>>()
            .map_err(|why| NetworkError::Plan { why })?;
        for iteration in 0..most.min(MAX_ITERATIONS) {
            let counter = reads_counter.then(|| tensor0(iteration));
            let inputs = counter.into_iter().chain(states);
            let inputs = inputs
                .zip(&kinds)
                .map(|(value, kind)| Ok(value.cast_to_dt(*kind)?.into_owned().into_tvalue()));
            let inputs: TVec<TValue> = inputs.collect::<TractResult<_>>().map_err(planning)?;
            let mut outputs = model.run(inputs).map_err(planning)?.into_iter();
            let goes_on = outputs.next().map(|value| Value::from_tract(&value));
            let goes_on = goes_on
                .transpose()
                .map_err(|why| NetworkError::Plan { why })?;
            states = outputs.map(TValue::into_tensor).collect();
            if goes_on.and_then(|value| value.first_integer()) == Some(0) {
                return Ok(Some(iteration + 1));
            }
        }
        Ok((most <= MAX_ITERATIONS).then_some(most))
    }
}
