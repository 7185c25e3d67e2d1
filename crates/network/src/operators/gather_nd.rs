//! GatherND: blocks of a tensor by tuples of indices.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array::GatherNd as Rules;
use tract_onnx::tract_hir::tract_core::ops::cast::cast;

use super::Parsed;
use super::computed::{Computed, computed};
use super::indices::place;
use crate::source::attributes::integer;

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let batch_axes = usize::try_from(integer(node, "batch_dims", 0))?;
    let rules = Rules::new(batch_axes);
    Ok((expand(GatherNd { rules }), Vec::new()))
}

/// The first axes (`rules.batch_dims`) of both inputs are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GatherNd {
    rules: Rules,
}

impl Expansion for GatherNd {
    fn name(&self) -> StaticName {
        "GatherND".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        InferenceRulesOp::rules(&self.rules, solver, inputs, outputs)
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let name = format!("{prefix}.integers");
        let indices = target.wire_node(name, cast(i64::datum_type()), &inputs[1..])?[0];
        target.wire_node(prefix, self.clone(), &[inputs[0], indices])
    }
}

impl GatherNd {
    fn shape<D: DimLike>(&self, data: &[D], indices: &[D]) -> TractResult<TVec<D>> {
        let (tuple, tuples) = indices.split_last().context("the indices have no axis")?;
        let batch = self.rules.batch_dims;
        let tail = batch + tuple.to_usize()?;
        ensure!(
            tail <= data.len() && batch <= tuples.len(),
            "tuples of {tuple} indices, and {batch} batch axes, for data of {} axes",
            data.len()
        );
        Ok(tuples.iter().chain(&data[tail..]).cloned().collect())
    }
}

computed!(GatherNd);

impl Computed for GatherNd {
    const NAME: &'static str = "GatherND";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let shape = self.shape(&inputs[0].shape, &inputs[1].shape)?;
        Ok(tvec!(inputs[0].datum_type.fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (data, indices) = args_2!(inputs);
        let kind = data.datum_type();
        ensure!(kind.is_copy(), "its input is of the type {kind:?}");
        let shape = self.shape(data.shape(), indices.shape())?;
        let mut y = Tensor::zero_dt(kind, &shape)?;
        let batch = self.rules.batch_dims;
        let (batches, axes) = data.shape().split_at(batch);
        ensure!(
            batches == &indices.shape()[..batch],
            "the batch axes of data and indices differ"
        );
        let tuple = *indices.shape().last().context("the indices have no axis")?;
        let (axes, tail) = axes.split_at(tuple);
        let block = tail.iter().product::<usize>() * kind.size_of();
        let of_batch = axes.iter().product::<usize>() * block;
        let tuples = indices.shape()[batch..indices.rank() - 1]
            .iter()
            .product::<usize>();
        if y.as_bytes().is_empty() {
            return Ok(tvec!(y.into_tvalue()));
        }
        let indices = indices.try_as_plain_ram()?;
        let indices = indices.as_slice::<i64>()?;
        for (at, y) in y.as_bytes_mut().chunks_exact_mut(block).enumerate() {
            let mut from = 0;
            for (&index, &size) in indices[at * tuple..][..tuple].iter().zip(axes) {
                from = from * size + place(index, size)?;
            }
            let from = at / tuples * of_batch + from * block;
            y.copy_from_slice(&data.as_bytes()[from..][..block]);
        }
        Ok(tvec!(y.into_tvalue()))
    }
}
