//! OneHot: indices out of range have no element that is on.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::Parsed;
use super::computed::{Computed, computed};
use super::indices::{axis_of, constant_integers, integers, place};
use crate::source::attributes::integer;

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let axis = integer(node, "axis", -1);
    Ok((expand(OneHot { axis, depth: 0 }), Vec::new()))
}

/// Inputs: the indices, the depth, the values of off and on. The typed operator has the depth.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OneHot {
    axis: i64,
    depth: usize,
}

impl Expansion for OneHot {
    fn name(&self) -> StaticName {
        "OneHot".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 3)?;
        check_output_arity(outputs, 1)?;
        solver.equals(&inputs[2].datum_type, &outputs[0].datum_type)?;
        solver.equals(inputs[0].rank.bex() + 1, &outputs[0].rank)?;
        solver.given(&inputs[0].rank, move |solver, rank| {
            let axis = axis_of(self.axis, rank as usize + 1)?;
            for at in 0..rank as usize {
                let to = at + usize::from(at >= axis);
                solver.equals(&inputs[0].shape[at], &outputs[0].shape[to])?;
            }
            solver.given(&inputs[1].value, move |solver, depth| {
                solver.equals(&outputs[0].shape[axis], first(&integers(&depth)?)?.to_dim())
            })
        })
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let operator = OneHot {
            axis: self.axis,
            depth: first(&constant_integers(target, inputs[1])?)?,
        };
        target.wire_node(prefix, operator, &[inputs[0], inputs[2]])
    }
}

fn first(depth: &[i64]) -> TractResult<usize> {
    let depth = depth.first().context("its depth is empty")?;
    usize::try_from(*depth).with_context(|| format!("its depth is {depth}"))
}

computed!(OneHot);

impl Computed for OneHot {
    const NAME: &'static str = "OneHot";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut shape = inputs[0].shape.to_tvec();
        shape.insert(axis_of(self.axis, shape.len() + 1)?, self.depth.to_dim());
        Ok(tvec!(inputs[1].datum_type.fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (indices, values) = args_2!(inputs);
        let kind = values.datum_type();
        ensure!(
            kind.is_copy() && values.len() == 2,
            "its values are {} of {kind:?}; it must have two",
            values.len()
        );
        let axis = axis_of(self.axis, indices.rank() + 1)?;
        let mut shape: TVec<usize> = indices.shape().into();
        let inner = shape[axis..].iter().product::<usize>();
        shape.insert(axis, self.depth);
        let (off, on) = values.as_bytes().split_at(kind.size_of());
        let mut y = Tensor::zero_dt(kind, &shape)?;
        let bytes = y.as_bytes_mut();
        bytes
            .chunks_exact_mut(off.len())
            .for_each(|y| y.copy_from_slice(off));
        for (at, index) in integers(&indices)?.into_iter().enumerate() {
            if let Ok(place) = place(index, self.depth) {
                let to = (at / inner * self.depth + place) * inner + at % inner;
                bytes[to * on.len()..][..on.len()].copy_from_slice(on);
            }
        }
        Ok(tvec!(y.into_tvalue()))
    }
}
