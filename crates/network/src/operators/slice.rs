//! Slice by bounds that a run computes. tract has bounds before a run, and there clamps them.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array::StridedSlice;
use tract_onnx::tract_hir::tract_core::ops::cast::cast;

use super::computed::{Computed, computed};
use super::indices::{axis_of, constant_integers};
use super::{Parsed, of_tract};

pub(super) fn parse(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    if context.onnx_operator_set_version < 10 {
        return of_tract("Slice")?(context, node);
    }
    let mut present = 3;
    let mut optional = |at: usize| {
        let is_present = node.input.get(at).is_some_and(|name| !name.is_empty());
        present += usize::from(is_present);
        is_present.then_some(present - 1)
    };
    let bounds = StridedSlice {
        optional_axes_input: optional(3),
        optional_steps_input: optional(4),
        begin_mask: 0,
        end_mask: 0,
        shrink_axis_mask: 0,
    };
    Ok((expand(Slice(bounds)), Vec::new()))
}

#[derive(Clone, Debug)]
struct Slice(StridedSlice);

impl Expansion for Slice {
    fn name(&self) -> StaticName {
        "Slice".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        InferenceRulesOp::rules(&self.0, solver, inputs, outputs)
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let is_constant =
            |at: usize| TractResult::Ok(target.outlet_fact(inputs[at])?.konst.is_some());
        if is_constant(1)? && is_constant(2)? {
            return target.wire_node(prefix, self.0.clone(), inputs);
        }
        let count = target.outlet_fact(inputs[1])?.shape.volume().to_usize()?;
        let rank = target.outlet_fact(inputs[0])?.rank();
        let list = |input: Option<usize>, default: Vec<i64>| {
            input.map_or(Ok(default), |input| {
                constant_integers(target, inputs[input])
            })
        };
        let axes = list(self.0.optional_axes_input, (0..count as i64).collect())?;
        let steps = list(self.0.optional_steps_input, vec![1; count])?;
        let axes = axes.iter().map(|&axis| axis_of(axis, rank));
        let operator = SliceAtRun {
            axes: axes.collect::<TractResult<_>>()?,
            steps,
            lengths: (0..count)
                .map(|_| target.symbols.new_with_prefix("length").into())
                .collect(),
        };
        let mut read = tvec!(inputs[0]);
        for (at, name) in [(1, "begins"), (2, "ends")] {
            let name = format!("{prefix}.{name}");
            read.extend(target.wire_node(name, cast(i64::datum_type()), &[inputs[at]])?);
        }
        target.wire_node(prefix, operator, &read)
    }
}

/// Inputs: the data, the begins, the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceAtRun {
    axes: Vec<usize>,
    steps: Vec<i64>,
    /// Of the axes of the result, as symbols.
    lengths: Vec<TDim>,
}

/// The first index and the number of indices from `begin` to before `end`, as ONNX clamps them.
fn range(begin: i64, end: i64, step: i64, size: usize) -> TractResult<(usize, usize)> {
    ensure!(step != 0, "its step is 0");
    let size = size as i64;
    let (first, last) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let bound = |index: i64| {
        let from_begin = if index < 0 {
            index.saturating_add(size)
        } else {
            index
        };
        from_begin.clamp(first, last)
    };
    let (begin, end) = (bound(begin), bound(end));
    let span = if step > 0 { end - begin } else { begin - end };
    let count = span.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
    Ok((begin.max(0) as usize, count as usize))
}

computed!(SliceAtRun);

impl Computed for SliceAtRun {
    const NAME: &'static str = "SliceAtRun";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut shape = inputs[0].shape.to_tvec();
        for (&axis, length) in self.axes.iter().zip(&self.lengths) {
            shape[axis] = length.clone();
        }
        Ok(tvec!(inputs[0].datum_type.fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, begins, ends) = args_3!(inputs);
        let kind = x.datum_type();
        ensure!(kind.is_copy(), "its input is of the type {kind:?}");
        let (begins, ends) = (begins.try_as_plain_ram()?, ends.try_as_plain_ram()?);
        let (begins, ends) = (begins.as_slice::<i64>()?, ends.as_slice::<i64>()?);
        ensure!(
            [begins.len(), ends.len(), self.steps.len()] == [self.axes.len(); 3],
            "its begins, ends, axes and steps are of different lengths"
        );
        let mut y = x.into_tensor();
        for (at, &axis) in self.axes.iter().enumerate() {
            let step = self.steps[at];
            let (begin, count) = range(begins[at], ends[at], step, y.shape()[axis])?;
            y = take(&y, axis, begin, step, count)?;
        }
        Ok(tvec!(y.into_tvalue()))
    }
}

/// `count` places of an axis, from `begin` by steps.
fn take(x: &Tensor, axis: usize, begin: usize, step: i64, count: usize) -> TractResult<Tensor> {
    let size = x.datum_type().size_of();
    let inner = x.shape()[axis + 1..].iter().product::<usize>() * size;
    let length = x.shape()[axis];
    let mut shape: TVec<usize> = x.shape().into();
    shape[axis] = count;
    let mut y = Tensor::zero_dt(x.datum_type(), &shape)?;
    if y.as_bytes().is_empty() {
        return Ok(y);
    }
    for (at, y) in y.as_bytes_mut().chunks_exact_mut(inner).enumerate() {
        let (outer, place) = (at / count, at % count);
        let place = (begin as i64 + place as i64 * step) as usize;
        y.copy_from_slice(&x.as_bytes()[(outer * length + place) * inner..][..inner]);
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn bounds_are_clamped() {
        for size in 0..5 {
            for begin in -7..7 {
                for end in -7..7 {
                    for step in [-3, -2, -1, 1, 2, 3] {
                        let found = range(begin, end, step, size).unwrap();
                        assert_eq!(places(found, step), expected(begin, end, step, size));
                    }
                }
            }
        }
        assert_eq!(range(i64::MIN, i64::MAX, 1, 3).unwrap(), (0, 3));
        assert_eq!(range(i64::MAX, i64::MIN, i64::MIN, 3).unwrap(), (2, 1));
        assert!(range(0, 1, 0, 3).is_err());
    }

    fn places((begin, count): (usize, usize), step: i64) -> Vec<i64> {
        (0..count as i64)
            .map(|at| begin as i64 + at * step)
            .collect()
    }

    /// The rule of Python's slices, index by index.
    fn expected(begin: i64, end: i64, step: i64, size: usize) -> Vec<i64> {
        let size = size as i64;
        let counted = |index: i64| if index < 0 { index + size } else { index };
        let (begin, end) = (counted(begin), counted(end));
        let begin = if step > 0 {
            begin.max(0)
        } else {
            begin.min(size - 1)
        };
        let mut found = Vec::new();
        let mut at = begin;
        while (step > 0 && at < end.min(size)) || (step < 0 && at > end.max(-1)) {
            if (0..size).contains(&at) {
                found.push(at);
            }
            at += step;
        }
        found
    }
}
