//! TopK, also of sizes, which tract keeps symbolic. A `k` above the length of the axis is an error;
//! tract would give a result of another shape than it says.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::tract_core::ops::array::Topk;
use tract_onnx::tract_hir::tract_core::ops::cast::cast;

use super::Parsed;
use super::computed::{Computed, computed};
use super::indices::integers;
use crate::source::attributes::integer;

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let top_k = TopK {
        axis: integer(node, "axis", -1),
        largest: integer(node, "largest", 1) == 1,
    };
    Ok((expand(top_k), Vec::new()))
}

#[derive(Clone, Debug)]
struct TopK {
    axis: i64,
    largest: bool,
}

impl TopK {
    fn axis(&self, rank: i64) -> usize {
        let axis = if self.axis < 0 {
            self.axis + rank
        } else {
            self.axis
        };
        axis.clamp(0, (rank - 1).max(0)) as usize
    }
}

impl Expansion for TopK {
    fn name(&self) -> StaticName {
        "TopK".into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(2)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 2)?;
        // The values of a symbolic input are integers.
        solver.given(&inputs[0].datum_type, move |solver, datum| {
            let values = if datum == TDim::datum_type() {
                i64::datum_type()
            } else {
                datum
            };
            solver.equals(&outputs[0].datum_type, values)
        })?;
        solver.equals(&outputs[1].datum_type, i64::datum_type())?;
        solver.equals(&inputs[0].rank, &outputs[0].rank)?;
        solver.equals(&inputs[0].rank, &outputs[1].rank)?;
        solver.given(&inputs[0].rank, move |solver, rank| {
            let axis = self.axis(rank);
            for index in (0..rank as usize).filter(|index| *index != axis) {
                solver.equals(&inputs[0].shape[index], &outputs[0].shape[index])?;
                solver.equals(&inputs[0].shape[index], &outputs[1].shape[index])?;
            }
            solver.given(&inputs[1].value, move |solver, k| {
                let k = k.cast_to::<TDim>()?;
                let k = k.try_as_plain_ram()?.as_slice::<TDim>()?.first().cloned();
                let k = k.context("k is empty")?;
                solver.equals(&outputs[0].shape[axis], k.clone())?;
                solver.equals(&outputs[1].shape[axis], k)
            })
        })
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let fact = target.outlet_fact(inputs[0])?;
        let axis = self.axis(fact.rank() as i64);
        let values = if fact.datum_type == TDim::datum_type() {
            let name = format!("{prefix}.integers");
            target.wire_node(name, cast(i64::datum_type()), &[inputs[0]])?[0]
        } else {
            inputs[0]
        };
        let operator = Topk {
            axis,
            largest: self.largest,
            fallback_k: target.symbols.new_with_prefix("k").into(),
        };
        let length = target.outlet_fact(values)?.shape[axis].clone();
        let count = target.outlet_fact(inputs[1])?.konst.clone();
        let values = match (count, length.to_usize()) {
            (Some(count), Ok(length)) => {
                check(&count, length)?;
                values
            }
            _ => {
                let name = format!("{prefix}.checked");
                target.wire_node(name, CheckedValues { axis }, &[values, inputs[1]])?[0]
            }
        };
        target.wire_node(prefix, operator, &[values, inputs[1]])
    }
}

fn check(count: &Tensor, length: usize) -> TractResult<()> {
    for k in integers(count)? {
        let is_right = usize::try_from(k).is_ok_and(|k| k <= length);
        ensure!(is_right, "k is {k}; its axis has {length} values");
    }
    Ok(())
}

/// The values, after a check of `k` against their axis.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckedValues {
    axis: usize,
}

computed!(CheckedValues);

impl Computed for CheckedValues {
    const NAME: &'static str = "CheckedValues";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (values, count) = args_2!(inputs);
        check(&count, values.shape()[self.axis])?;
        Ok(tvec!(values))
    }
}
