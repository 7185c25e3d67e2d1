//! Indices into a tensor. tract's operators read other elements, or panic, where an index is out
//! of range: theirs get indices that have been checked, and are not negative.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array;
use tract_onnx::tract_hir::tract_core::ops::cast::cast;

use super::Parsed;
use super::computed::{Computed, computed, passes_on_rules};
use crate::source::attributes::{attribute, integer};

pub(super) fn parse_gather(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let axis = integer(node, "axis", 0);
    Ok(checked(array::Gather::new(axis), IndexedAxes::Along(axis)))
}

pub(super) fn parse_gather_elements(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<Parsed> {
    let axis = integer(node, "axis", 0);
    Ok(checked(
        array::GatherElements::new(axis),
        IndexedAxes::Along(axis),
    ))
}

/// Also `Scatter`, its name before opset 11.
pub(super) fn parse_scatter_elements(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<Parsed> {
    let axis = integer(node, "axis", 0);
    let operator = array::ScatterElements::new(axis, reduction(node)?);
    Ok(checked(operator, IndexedAxes::Along(axis)))
}

pub(super) fn parse_scatter_nd(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    Ok(checked(
        array::ScatterNd::new(reduction(node)?),
        IndexedAxes::Tuples,
    ))
}

fn reduction(node: &NodeProto) -> TractResult<array::ScatterReduction> {
    let name = attribute(node, "reduction").map_or(&b"none"[..], |one| &one.s);
    array::ScatterReduction::parse(std::str::from_utf8(name)?)
}

fn checked(operator: impl Expansion, axes: IndexedAxes) -> Parsed {
    let operator = Box::new(operator);
    (expand(Checked { operator, axes }), Vec::new())
}

/// The axes of the data that the second input has indices of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexedAxes {
    /// All of this axis.
    Along(i64),
    /// The last axis of the indices has one of each axis, from the first.
    Tuples,
}

/// An operator of tract whose second input has indices of its first.
#[derive(Clone, Debug)]
struct Checked {
    operator: Box<dyn Expansion>,
    axes: IndexedAxes,
}

impl Expansion for Checked {
    passes_on_rules!(operator);

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let data = target.outlet_fact(inputs[0])?.shape.clone();
        let axes = match self.axes {
            IndexedAxes::Along(axis) => {
                let axis = axis_of(axis, data.rank())?;
                axis..axis + 1
            }
            IndexedAxes::Tuples => 0..data.rank(),
        };
        let indices = if target.outlet_fact(inputs[1])?.datum_type == i64::datum_type() {
            inputs[1]
        } else {
            let name = format!("{prefix}.integers");
            target.wire_node(name, cast(i64::datum_type()), &inputs[1..2])?[0]
        };
        let sizes = data.as_concrete().map(|sizes| sizes[axes.clone()].into());
        let read = match sizes {
            Some(_) => tvec!(indices),
            None => tvec!(indices, inputs[0]),
        };
        let check = CheckedIndices { axes, sizes };
        let mut inputs: TVec<OutletId> = inputs.into();
        inputs[1] = target.wire_node(format!("{prefix}.indices"), check, &read)?[0];
        self.operator.wire(prefix, target, &inputs)
    }
}

/// The index of an axis, which may be counted from the last one.
pub(super) fn axis_of(axis: i64, rank: usize) -> TractResult<usize> {
    let found = if axis < 0 { axis + rank as i64 } else { axis };
    let found = usize::try_from(found).ok().filter(|axis| *axis < rank);
    found.with_context(|| format!("its axis is {axis}; its input has {rank} axes"))
}

/// The place of an index, which may be counted from the end.
pub(crate) fn place(index: i64, size: usize) -> TractResult<usize> {
    let found = if index < 0 {
        index.saturating_add(size as i64)
    } else {
        index
    };
    let found = usize::try_from(found).ok().filter(|place| *place < size);
    found.with_context(|| {
        format!("index {index} is out of range: its axis has {size} elements; correct the index")
    })
}

/// The elements as integers.
pub(crate) fn integers(value: &Tensor) -> TractResult<Vec<i64>> {
    let value = value.cast_to::<i64>()?;
    Ok(value.try_as_plain_ram()?.as_slice::<i64>()?.to_vec())
}

/// The integers of an input that must be known before a run, such as axes.
pub(super) fn constant_integers(target: &TypedModel, input: OutletId) -> TractResult<Vec<i64>> {
    let value = target.outlet_fact(input)?.konst.as_ref();
    integers(value.context("an input must be a constant, and depends on values of the run")?)
}

/// Indices that are in range, counted from the first element.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckedIndices {
    axes: std::ops::Range<usize>,
    /// The lengths of these axes; `None`: those of the second input.
    sizes: Option<TVec<usize>>,
}

computed!(CheckedIndices);

impl Computed for CheckedIndices {
    const NAME: &'static str = "CheckedIndices";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(i64::datum_type().fact(inputs[0].shape.clone())))
    }

    fn compute(&self, mut inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let sizes = match (&self.sizes, inputs.get(1)) {
            (Some(sizes), _) => sizes.clone(),
            (None, Some(data)) => data.shape()[self.axes.clone()].into(),
            (None, None) => bail!("indices without their data"),
        };
        let mut indices = inputs.remove(0).into_tensor();
        let tuple = match *sizes {
            [_] => 1,
            _ => *indices.shape().last().context("the indices have no axis")?,
        };
        ensure!(
            tuple <= sizes.len(),
            "{tuple} indices for data of {} axes",
            sizes.len()
        );
        let mut plain = indices.try_as_plain_ram_mut()?;
        for tuple in plain.as_slice_mut::<i64>()?.chunks_mut(tuple.max(1)) {
            for (index, &size) in tuple.iter_mut().zip(&sizes) {
                *index = place(*index, size)? as i64;
            }
        }
        Ok(tvec!(indices.into_tvalue()))
    }
}
