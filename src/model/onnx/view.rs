//! Views: all or part of the data between recurrent nodes, with the meaning of each axis.
//!
//! The nodes between recurrent nodes only rename, permute, split and regroup axes. A view therefore
//! consists of a source and axes, and each axis lists the *parts* folded into it, outermost first.
//! For example, `Y` of a bidirectional LSTM is `[T] [D] [B] [H]`. Transpose(0, 2, 1, 3) gives `[T]
//! [B] [D] [H]`, and Reshape(0, 0, -1) then gives `[T] [B] [D, H]`: the directions concatenated
//! along the features, as the next layer needs them. Reshape without Transpose gives `[T] [D, B]
//! [H]`, which no layer accepts even if the sizes match.

use super::extent::Extent;
use super::tensor::MAX_AXES;

/// The meaning of a part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AxisKind {
    /// An axis of a graph input. Its meaning is known once a recurrent node uses it.
    InputAxis(usize),
    Time,
    Batch,
    Direction,
    LayerDirection,
    Feature,
    /// Length 1, without a meaning.
    One,
}

/// An axis before folding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisPart {
    pub kind: AxisKind,
    pub extent: Extent,
}

impl AxisPart {
    pub(super) fn new(kind: AxisKind, extent: Extent) -> AxisPart {
        AxisPart { kind, extent }
    }

    fn one() -> AxisPart {
        AxisPart::new(AxisKind::One, Extent::known(1))
    }

    /// Whether it can be removed or added without changing the meaning of any value.
    fn is_removable(&self) -> bool {
        self.extent.is(1)
            && !matches!(
                self.kind,
                AxisKind::Time | AxisKind::Batch | AxisKind::Feature
            )
    }
}

/// The origin of the values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ViewSource {
    /// The graph input of this index.
    Input(usize),
    /// `Y` of this layer.
    Sequence(usize),
    /// The sum of both directions of `Y` of this layer.
    Sum(usize),
    /// `Y_h` (or `Y_c`) of these layers, concatenated.
    Final { cell: bool, layers: Vec<usize> },
}

/// A slice of a graph input along one axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InputSlice {
    pub axis: usize,
    pub start: usize,
    pub length: usize,
}

/// A rearrangement of a source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub source: ViewSource,
    /// The axes, each a list of parts.
    pub axes: Vec<Vec<AxisPart>>,
    /// ONNX element type.
    pub element: i32,
    /// Slices of a graph input, at most one along each axis.
    pub slices: Vec<InputSlice>,
    /// The only direction that the view holds, if set.
    pub direction: Option<usize>,
}

/// One axis of the target shape of a Reshape.
pub(super) enum ReshapeSize {
    /// The size of the input's axis of the same index.
    Copy,
    /// The size that the other axes leave.
    Infer,
    /// This size.
    Exact(Extent),
}

const PARTIAL: &str = "takes a slice of an axis; supported slices: whole layers or one direction \
    of states and outputs, and slices of an initial-state input along one axis";

impl View {
    /// Size of an axis.
    pub(super) fn extent(&self, axis: usize) -> Option<Extent> {
        Extent::product(self.axes[axis].iter().map(|a| &a.extent))
    }

    /// Axis `i` of the result is axis `order[i]` of this.
    pub(super) fn transpose(&self, order: &[usize]) -> View {
        let axes = order.iter().map(|&a| self.axes[a].clone()).collect();
        View {
            axes,
            ..self.clone()
        }
    }

    /// Removes an axis of length 1.
    pub(super) fn squeeze(&self, axis: usize) -> Result<View, String> {
        if !self.axes[axis].iter().all(AxisPart::is_removable) {
            return Err(format!(
                "removes axis {axis}, which is not a direction or unit axis of length 1"
            ));
        }
        let mut view = self.clone();
        view.axes.remove(axis);
        Ok(view)
    }

    /// Inserts an axis of length 1.
    pub(super) fn unsqueeze(&self, axis: usize) -> View {
        let mut view = self.clone();
        view.axes.insert(axis, vec![AxisPart::one()]);
        view
    }

    /// Regroups the parts, without reordering them, into axes of the target sizes.
    pub(super) fn reshape(&self, target: &[ReshapeSize]) -> Result<View, String> {
        let mut wanted = Vec::with_capacity(target.len());
        for (place, target) in target.iter().enumerate() {
            wanted.push(match target {
                ReshapeSize::Infer => None,
                ReshapeSize::Exact(extent) => Some(extent.clone()),
                ReshapeSize::Copy if place < self.axes.len() => match self.extent(place) {
                    Some(extent) => Some(extent),
                    None => return Err("copies an axis of untracked size".into()),
                },
                ReshapeSize::Copy => {
                    return Err("copies an axis that its input does not have".into());
                }
            });
        }
        let refused = || {
            "does not fold whole axes in their order; supported: joining or splitting axes without \
             splitting those of the recurrent nodes"
                .to_string()
        };
        let parts: Vec<AxisPart> = self.axes.iter().flatten().cloned().collect();
        let infer = wanted.iter().position(Option::is_none);
        let (before, after) = match infer {
            Some(at) => (&wanted[..at], &wanted[at + 1..]),
            None => (&wanted[..], &wanted[..0]),
        };
        let (mut from, mut to) = (0, parts.len());
        let mut axes = Vec::with_capacity(wanted.len());
        for extent in before.iter().flatten() {
            let (group, used) = take_parts(parts[from..to].iter(), extent).ok_or_else(refused)?;
            from += used;
            axes.push(group);
        }
        let mut tail = Vec::with_capacity(after.len());
        for extent in after.iter().rev().flatten() {
            let reversed = parts[from..to].iter().rev();
            let (mut group, used) = take_parts(reversed, extent).ok_or_else(refused)?;
            group.reverse();
            to -= used;
            tail.push(group);
        }
        let rest = parts[from..to].to_vec();
        if infer.is_some() {
            axes.push(drop_unit_parts(rest));
        } else if rest.iter().all(|a| a.extent.is(1)) && (rest.is_empty() || !axes.is_empty()) {
            if let Some(last) = axes.last_mut() {
                last.extend(rest);
                *last = drop_unit_parts(std::mem::take(last));
            }
        } else {
            return Err(refused());
        }
        axes.extend(tail.into_iter().rev());
        Ok(View {
            axes,
            ..self.clone()
        })
    }

    /// The entries `start .. start + length` of an axis.
    pub(super) fn select(&self, axis: usize, start: usize, length: usize) -> Result<View, String> {
        if self.extent(axis).is_some_and(|e| e.is(length)) && start == 0 {
            return Ok(self.clone());
        }
        let mut view = self.clone();
        let group = &mut view.axes[axis];
        if group.len() > 1 {
            group.retain(|a| !a.extent.is(1));
        }
        let sizes: Vec<Option<usize>> = group
            .iter()
            .map(|a| a.extent.as_known().and_then(|n| usize::try_from(n).ok()))
            .collect();
        let kinds: Vec<AxisKind> = group.iter().map(|a| a.kind).collect();
        match (kinds.as_slice(), sizes.as_slice()) {
            (&[AxisKind::InputAxis(at)], _) => {
                match view.slices.iter_mut().find(|c| c.axis == at) {
                    Some(slice) => {
                        slice.start += start;
                        slice.length = length;
                    }
                    None => view.slices.push(InputSlice {
                        axis: at,
                        start,
                        length,
                    }),
                }
                let length = i64::try_from(length).map_err(|_| PARTIAL)?;
                group[0].extent = Extent::known(length);
            }
            ([AxisKind::Direction], [Some(2)]) if length == 1 => {
                view.direction = Some(start);
                *group = vec![AxisPart::one()];
            }
            ([AxisKind::Direction, AxisKind::Feature], [Some(2), Some(features)])
                if length == *features && start.is_multiple_of(*features) =>
            {
                view.direction = Some(start / features);
                group.remove(0);
            }
            ([AxisKind::LayerDirection], [Some(total)]) => {
                let ViewSource::Final { layers, .. } = &mut view.source else {
                    return Err(PARTIAL.into());
                };
                // `concat` requires equal numbers of directions, so this divides evenly.
                let each = total / layers.len().max(1);
                if each == 2 && length == 1 {
                    view.direction = Some(start % 2);
                    *layers = vec![layers[start / 2]];
                    *group = vec![AxisPart::one()];
                } else if each > 0 && start.is_multiple_of(each) && length.is_multiple_of(each) {
                    *layers = layers[start / each..(start + length) / each].to_vec();
                    group[0].extent = Extent::known(length as i64);
                    if layers.len() == 1 {
                        group[0].kind = AxisKind::Direction;
                    }
                } else {
                    return Err(PARTIAL.into());
                }
            }
            _ => return Err(PARTIAL.into()),
        }
        Ok(view)
    }

    /// Concatenates final states of several layers, or the two directions of one source.
    pub(super) fn concat(views: &[&View], axis: usize) -> Result<View, String> {
        let refused = || {
            "concatenates values other than final states of different layers along the direction \
             axis, or the forward and reverse directions of one value"
                .to_string()
        };
        let first = views[0];
        if views.iter().any(|p| p.axes.len() != first.axes.len()) {
            return Err(refused());
        }
        if views.len() == 1 {
            return Ok(first.clone());
        }
        if let [forward, reverse] = views
            && forward.source == reverse.source
            && (forward.direction, reverse.direction) == (Some(0), Some(1))
            && forward.axes == reverse.axes
        {
            let mut view = View {
                direction: None,
                ..(*forward).clone()
            };
            let both = AxisPart::new(AxisKind::Direction, Extent::known(2));
            let group = &mut view.axes[axis];
            match group.as_slice() {
                [a] if a.kind == AxisKind::Feature => group.insert(0, both),
                [a] if a.kind == AxisKind::One => *group = vec![both],
                _ => return Err(refused()),
            }
            return Ok(view);
        }
        let ViewSource::Final { cell, .. } = first.source else {
            return Err(refused());
        };
        let (mut stacked, mut total, mut each) = (Vec::new(), 0i64, None);
        for view in views {
            let (ViewSource::Final { cell: c, layers }, [part]) =
                (&view.source, view.axes[axis].as_slice())
            else {
                return Err(refused());
            };
            let others = || (0..view.axes.len()).filter(|a| *a != axis);
            let whole = match part.kind {
                AxisKind::Direction | AxisKind::LayerDirection => true,
                // A single direction whose axis was removed and restored.
                AxisKind::One => !view
                    .axes
                    .iter()
                    .flatten()
                    .any(|a| matches!(a.kind, AxisKind::Direction | AxisKind::LayerDirection)),
                _ => false,
            };
            let size = part.extent.as_known().unwrap_or(0);
            let per_layer = size / layers.len().max(1) as i64;
            if !whole
                || *c != cell
                || view.direction.is_some()
                || *each.get_or_insert(per_layer) != per_layer
                || others().any(|a| view.axes[a] != first.axes[a])
                || layers.iter().any(|l| stacked.contains(l))
            {
                return Err(refused());
            }
            stacked.extend_from_slice(layers);
            total += size;
        }
        let mut joined = first.clone();
        joined.source = ViewSource::Final {
            cell,
            layers: stacked,
        };
        joined.axes[axis] = vec![AxisPart::new(
            AxisKind::LayerDirection,
            Extent::known(total),
        )];
        Ok(joined)
    }

    /// Adds the two directions of a layer's output.
    pub(super) fn add(&self, other: &View) -> Result<View, String> {
        match (&self.source, self.direction, other.direction) {
            (ViewSource::Sequence(layer), Some(a), Some(b))
                if a != b && other.source == self.source && other.axes == self.axes =>
            {
                Ok(View {
                    source: ViewSource::Sum(*layer),
                    direction: None,
                    ..self.clone()
                })
            }
            _ => Err(
                "adds values that are not the two directions of one bidirectional node's output Y"
                    .into(),
            ),
        }
    }

    /// Sums over the direction axis of a layer's output.
    pub(super) fn sum_over(&self, axis: usize, keep: bool) -> Result<View, String> {
        match (&self.source, self.axes[axis].as_slice(), self.direction) {
            (ViewSource::Sequence(layer), [part], None)
                if part.kind == AxisKind::Direction && part.extent.is(2) =>
            {
                let mut view = self.clone();
                view.source = ViewSource::Sum(*layer);
                view.axes[axis] = vec![AxisPart::one()];
                if keep { Ok(view) } else { view.squeeze(axis) }
            }
            _ => Err(
                "sums over an axis that is not the direction axis of a bidirectional node's \
                 output Y"
                    .into(),
            ),
        }
    }

    /// The meanings of each axis, without removable parts of folded axes.
    pub(super) fn kinds(&self) -> Vec<Vec<AxisKind>> {
        let kept = |group: &Vec<AxisPart>| -> Vec<AxisKind> {
            group
                .iter()
                .filter(|a| group.len() == 1 || !a.is_removable())
                .map(|a| a.kind)
                .collect()
        };
        self.axes.iter().map(kept).collect()
    }
}

/// The shortest prefix of `parts` with this product as one axis, and its number of parts.
fn take_parts<'a>(
    mut parts: impl Iterator<Item = &'a AxisPart>,
    size: &Extent,
) -> Option<(Vec<AxisPart>, usize)> {
    let mut group: Vec<AxisPart> = Vec::new();
    let mut product = Extent::known(1);
    if size.is(1) {
        return match parts.next() {
            Some(part) if part.extent.is(1) => Some((vec![part.clone()], 1)),
            _ => Some((vec![AxisPart::one()], 0)),
        };
    }
    while product != *size {
        let part = parts.next()?;
        product = product.times(&part.extent)?;
        group.push(part.clone());
    }
    let used = group.len();
    Some((drop_unit_parts(group), used))
}

/// Removes parts of length 1 from a folded axis. An empty axis gets one.
fn drop_unit_parts(mut group: Vec<AxisPart>) -> Vec<AxisPart> {
    if group.len() > 1 {
        let kept: Vec<AxisPart> = group
            .iter()
            .filter(|a| a.kind != AxisKind::One)
            .cloned()
            .collect();
        group = kept;
    }
    if group.is_empty() {
        group.push(AxisPart::one());
    }
    group
}

/// Refuses more than [`MAX_AXES`] axes.
pub(super) fn check_rank(rank: usize) -> Result<(), String> {
    if rank > MAX_AXES {
        return Err(format!(
            "makes {rank} axes; at most {MAX_AXES} are supported"
        ));
    }
    Ok(())
}
