//! A view: all or part of what flows between recurrent nodes, with the meaning of each axis.
//!
//! Glue nodes only rename, permute, split and regroup axes, so a value is described by its source
//! and its axes, each a list of *atoms* folded into it, outermost first. `Y` of a bidirectional
//! LSTM is `[T] [D] [B] [H]`; after Transpose(0, 2, 1, 3) it is `[T] [B] [D] [H]`; after
//! Reshape(0, 0, -1) it is `[T] [B] [D, H]`: directions concatenated feature-wise, the form the
//! next layer needs. Reshape without the Transpose would give `[T] [D, B] [H]`, which no layer
//! accepts, although its sizes may fit.

use super::extent::Extent;
use super::tensor::MOST_AXES;

/// What an axis runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Axis of a graph input whose meaning is known once a recurrent node takes it.
    Declared(usize),
    Time,
    Batch,
    Direction,
    LayerDirection,
    Feature,
    /// Length 1, no meaning.
    One,
}

/// One axis before any folding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Atom {
    pub mark: Mark,
    pub extent: Extent,
}

impl Atom {
    pub(super) fn new(mark: Mark, extent: Extent) -> Atom {
        Atom { mark, extent }
    }

    fn one() -> Atom {
        Atom::new(Mark::One, Extent::known(1))
    }

    /// Whether it may come and go without changing any value's meaning.
    fn is_removable(&self) -> bool {
        self.extent.is(1) && !matches!(self.mark, Mark::Time | Mark::Batch | Mark::Feature)
    }
}

/// Where the values come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// Graph input of this index.
    Input(usize),
    /// `Y` of this layer.
    Sequence(usize),
    /// `Y` of this bidirectional layer, directions added.
    Sum(usize),
    /// `Y_h` (or `Y_c`) of these layers, one after the other.
    Final { cell: bool, layers: Vec<usize> },
}

/// The part of a graph input that was cut out along one axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    pub axis: usize,
    pub start: usize,
    pub length: usize,
}

/// A value as a rearrangement of its source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub source: Source,
    /// Axes, each a list of atoms.
    pub axes: Vec<Vec<Atom>>,
    /// ONNX element type.
    pub element: i32,
    /// Parts cut out of a graph input.
    pub cuts: Vec<Cut>,
    /// One direction only, if set.
    pub direction: Option<usize>,
}

/// One axis of a Reshape's target.
pub(super) enum Target {
    /// As the source's axis at the same place.
    Copy,
    /// Whatever is left.
    Infer,
    /// This size.
    Exact(Extent),
}

const PARTIAL: &str = "takes a part of an axis; supported parts: whole layers or one direction of \
     states and outputs, and slices of an initial-state input along one axis";

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

    /// Without an axis of length 1.
    pub(super) fn squeeze(&self, axis: usize) -> Result<View, String> {
        if !self.axes[axis].iter().all(Atom::is_removable) {
            return Err(format!(
                "removes axis {axis}, which is not a direction or unit axis of length 1"
            ));
        }
        let mut view = self.clone();
        view.axes.remove(axis);
        Ok(view)
    }

    /// With a new axis of length 1.
    pub(super) fn unsqueeze(&self, axis: usize) -> View {
        let mut view = self.clone();
        view.axes.insert(axis, vec![Atom::one()]);
        view
    }

    /// Regroups the atoms, in their order, into axes of the target sizes.
    pub(super) fn reshape(&self, target: &[Target]) -> Result<View, String> {
        let mut wanted = Vec::with_capacity(target.len());
        for (place, target) in target.iter().enumerate() {
            wanted.push(match target {
                Target::Infer => None,
                Target::Exact(extent) => Some(extent.clone()),
                Target::Copy if place < self.axes.len() => match self.extent(place) {
                    Some(extent) => Some(extent),
                    None => return Err("copies an axis of untracked size".into()),
                },
                Target::Copy => return Err("copies an axis that its input lacks".into()),
            });
        }
        let refused = || {
            "does not fold whole axes, in their order; supported: joining or splitting axes \
                where the recurrent nodes' own axes stay whole"
                .to_string()
        };
        let atoms: Vec<Atom> = self.axes.iter().flatten().cloned().collect();
        let infer = wanted.iter().position(Option::is_none);
        let (before, after) = match infer {
            Some(at) => (&wanted[..at], &wanted[at + 1..]),
            None => (&wanted[..], &wanted[..0]),
        };
        let (mut from, mut to) = (0, atoms.len());
        let mut axes = Vec::with_capacity(wanted.len());
        for extent in before.iter().flatten() {
            let (group, used) = fold(atoms[from..to].iter(), extent).ok_or_else(refused)?;
            from += used;
            axes.push(group);
        }
        let mut tail = Vec::with_capacity(after.len());
        for extent in after.iter().rev().flatten() {
            let reversed = atoms[from..to].iter().rev();
            let (mut group, used) = fold(reversed, extent).ok_or_else(refused)?;
            group.reverse();
            to -= used;
            tail.push(group);
        }
        let rest = atoms[from..to].to_vec();
        if infer.is_some() {
            axes.push(tidy(rest));
        } else if rest.iter().all(|a| a.extent.is(1)) && (rest.is_empty() || !axes.is_empty()) {
            if let Some(last) = axes.last_mut() {
                last.extend(rest);
                *last = tidy(std::mem::take(last));
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
        let marks: Vec<Mark> = group.iter().map(|a| a.mark).collect();
        match (marks.as_slice(), sizes.as_slice()) {
            (&[Mark::Declared(at)], _) => {
                match view.cuts.iter_mut().find(|c| c.axis == at) {
                    Some(cut) => {
                        cut.start += start;
                        cut.length = length;
                    }
                    None => view.cuts.push(Cut {
                        axis: at,
                        start,
                        length,
                    }),
                }
                let length = i64::try_from(length).map_err(|_| PARTIAL)?;
                group[0].extent = Extent::known(length);
            }
            ([Mark::Direction], [Some(2)]) if length == 1 => {
                view.direction = Some(start);
                *group = vec![Atom::one()];
            }
            ([Mark::Direction, Mark::Feature], [Some(2), Some(features)])
                if length == *features && start.is_multiple_of(*features) =>
            {
                view.direction = Some(start / features);
                group.remove(0);
            }
            ([Mark::LayerDirection], [Some(total)]) => {
                let Source::Final { layers, .. } = &mut view.source else {
                    return Err(PARTIAL.into());
                };
                // Concat keeps the direction counts equal, so this divides evenly.
                let each = total / layers.len().max(1);
                if each == 2 && length == 1 {
                    view.direction = Some(start % 2);
                    *layers = vec![layers[start / 2]];
                    *group = vec![Atom::one()];
                } else if each > 0 && start.is_multiple_of(each) && length.is_multiple_of(each) {
                    *layers = layers[start / each..(start + length) / each].to_vec();
                    group[0].extent = Extent::known(length as i64);
                    if layers.len() == 1 {
                        group[0].mark = Mark::Direction;
                    }
                } else {
                    return Err(PARTIAL.into());
                }
            }
            _ => return Err(PARTIAL.into()),
        }
        Ok(view)
    }

    /// Final states of several layers stacked, or the two directions of one source side by side.
    pub(super) fn concat(parts: &[&View], axis: usize) -> Result<View, String> {
        let refused = || {
            "joins values that are not final states of different layers along the direction axis, \
             nor the forward and reverse parts of one value"
                .to_string()
        };
        let first = parts[0];
        if parts.iter().any(|p| p.axes.len() != first.axes.len()) {
            return Err(refused());
        }
        if parts.len() == 1 {
            return Ok(first.clone());
        }
        if let [forward, reverse] = parts
            && forward.source == reverse.source
            && (forward.direction, reverse.direction) == (Some(0), Some(1))
            && forward.axes == reverse.axes
        {
            let mut view = View {
                direction: None,
                ..(*forward).clone()
            };
            let both = Atom::new(Mark::Direction, Extent::known(2));
            let group = &mut view.axes[axis];
            match group.as_slice() {
                [a] if a.mark == Mark::Feature => group.insert(0, both),
                [a] if a.mark == Mark::One => *group = vec![both],
                _ => return Err(refused()),
            }
            return Ok(view);
        }
        let Source::Final { cell, .. } = first.source else {
            return Err(refused());
        };
        let (mut stacked, mut total, mut each) = (Vec::new(), 0i64, None);
        for part in parts {
            let (Source::Final { cell: c, layers }, [atom]) =
                (&part.source, part.axes[axis].as_slice())
            else {
                return Err(refused());
            };
            let others = || (0..part.axes.len()).filter(|a| *a != axis);
            let whole = match atom.mark {
                Mark::Direction | Mark::LayerDirection => true,
                // A squeezed single direction, given back its axis.
                Mark::One => !part
                    .axes
                    .iter()
                    .flatten()
                    .any(|a| matches!(a.mark, Mark::Direction | Mark::LayerDirection)),
                _ => false,
            };
            let size = atom.extent.as_known().unwrap_or(0);
            let per_layer = size / layers.len().max(1) as i64;
            if !whole
                || *c != cell
                || part.direction.is_some()
                || *each.get_or_insert(per_layer) != per_layer
                || others().any(|a| part.axes[a] != first.axes[a])
                || layers.iter().any(|l| stacked.contains(l))
            {
                return Err(refused());
            }
            stacked.extend_from_slice(layers);
            total += size;
        }
        let mut view = first.clone();
        view.source = Source::Final {
            cell,
            layers: stacked,
        };
        view.axes[axis] = vec![Atom::new(Mark::LayerDirection, Extent::known(total))];
        Ok(view)
    }

    /// The two directions of a layer's output, added.
    pub(super) fn add(&self, other: &View) -> Result<View, String> {
        match (&self.source, self.direction, other.direction) {
            (Source::Sequence(layer), Some(a), Some(b))
                if a != b && other.source == self.source && other.axes == self.axes =>
            {
                Ok(View {
                    source: Source::Sum(*layer),
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

    /// The sum over the direction axis of a layer's output.
    pub(super) fn sum_over(&self, axis: usize, keep: bool) -> Result<View, String> {
        match (&self.source, self.axes[axis].as_slice(), self.direction) {
            (Source::Sequence(layer), [atom], None)
                if atom.mark == Mark::Direction && atom.extent.is(2) =>
            {
                let mut view = self.clone();
                view.source = Source::Sum(*layer);
                view.axes[axis] = vec![Atom::one()];
                if keep { Ok(view) } else { view.squeeze(axis) }
            }
            _ => Err(
                "sums over an axis that is not the direction axis of a bidirectional node's output Y"
                    .into(),
            ),
        }
    }

    /// The marks of each axis, without those of length 1 that mean nothing there.
    pub(super) fn marks(&self) -> Vec<Vec<Mark>> {
        let kept = |group: &Vec<Atom>| -> Vec<Mark> {
            group
                .iter()
                .filter(|a| group.len() == 1 || !a.is_removable())
                .map(|a| a.mark)
                .collect()
        };
        self.axes.iter().map(kept).collect()
    }
}

/// As few atoms from the front as make the size, and how many.
fn fold<'a>(
    mut atoms: impl Iterator<Item = &'a Atom>,
    size: &Extent,
) -> Option<(Vec<Atom>, usize)> {
    let mut group: Vec<Atom> = Vec::new();
    let mut product = Extent::known(1);
    if size.is(1) {
        return match atoms.next() {
            Some(atom) if atom.extent.is(1) => Some((vec![atom.clone()], 1)),
            _ => Some((vec![Atom::one()], 0)),
        };
    }
    while product != *size {
        let atom = atoms.next()?;
        product = product.times(&atom.extent)?;
        group.push(atom.clone());
    }
    let used = group.len();
    Some((tidy(group), used))
}

/// Drops unit atoms that share an axis with others; an empty axis becomes a unit axis.
fn tidy(mut group: Vec<Atom>) -> Vec<Atom> {
    if group.len() > 1 {
        let kept: Vec<Atom> = group
            .iter()
            .filter(|a| a.mark != Mark::One)
            .cloned()
            .collect();
        group = kept;
    }
    if group.is_empty() {
        group.push(Atom::one());
    }
    group
}

/// Refuses more axes than any recurrent graph has.
pub(super) fn check_rank(rank: usize) -> Result<(), String> {
    if rank > MOST_AXES {
        return Err(format!(
            "gives {rank} axes; at most {MOST_AXES} are supported"
        ));
    }
    Ok(())
}
