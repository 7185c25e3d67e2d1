//! How recurrent nodes hang together: one chain of layers, and the ports at its ends.

use super::budget::malformed;
use super::extent::Extent;
use super::glue::is_float;
use super::graph::Declared;
use super::node::Node;
use super::proto::{ValueInfoProto, data_type};
use super::recurrent::Recurrent;
use super::value::Value;
use super::view::{Atom, Mark, Source, View};
use crate::model::{
    Axis, CellKind, Direction, Interface, Layer, LoadError, Merge, Model, Port, QuantisedMatrix,
    Role,
};

/// Nodes in a chain; real stacks have ten or so.
const MOST_LAYERS: usize = 1024;

/// The chain so far.
pub(super) struct Wiring {
    inputs: Vec<Declared>,
    /// The meaning of each input's axes, once a recurrent node has taken it.
    meanings: Vec<Vec<Option<Axis>>>,
    sequence: Option<usize>,
    /// The lengths input of every layer, known after the first.
    lengths: Option<usize>,
    layers: Vec<Stage>,
    states: Vec<StateUse>,
    outputs: Vec<Port>,
    quantised: Vec<QuantisedMatrix>,
}

/// A layer whose merge its reader decides.
struct Stage {
    name: String,
    directions: Vec<Direction>,
    merge: Option<Merge>,
    time: Extent,
    batch: Extent,
}

/// An initial state taken from a graph input, or from a slice of it along one axis.
struct StateUse {
    input: usize,
    cell: bool,
    layer: usize,
    axis: Option<usize>,
    start: usize,
    length: usize,
}

impl Wiring {
    pub(super) fn new(inputs: Vec<Declared>) -> Wiring {
        Wiring {
            meanings: inputs.iter().map(|i| vec![None; i.shape.len()]).collect(),
            inputs,
            sequence: None,
            lengths: None,
            layers: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
            quantised: Vec::new(),
        }
    }

    /// Adds a layer on top of the chain, and gives its outputs Y, Y_h and (LSTM) Y_c.
    pub(super) fn layer(
        &mut self,
        node: Node,
        layer: Recurrent,
        inputs: &[Option<Value>],
    ) -> Result<Vec<View>, LoadError> {
        if self.layers.len() == MOST_LAYERS {
            return Err(node.error(format!("more than {MOST_LAYERS} recurrent nodes")));
        }
        let input = |index: usize| inputs.get(index).and_then(Option::as_ref);
        let (element, time, batch) = self.take_sequence(node, &layer, input(0))?;
        self.take_lengths(node, input(4), &batch)?;
        self.take_state(node, &layer, "initial_h", false, input(5), &batch)?;
        if layer.kind == CellKind::Lstm {
            self.take_state(node, &layer, "initial_c", true, input(6), &batch)?;
        }

        let index = self.layers.len();
        let known = |n: usize| Extent::known(i64::try_from(n).unwrap_or(i64::MAX));
        let axes = |marks: &[Mark]| -> Vec<Vec<Atom>> {
            let size = |mark| match mark {
                Mark::Time => time.clone(),
                Mark::Batch => batch.clone(),
                Mark::Direction => known(layer.directions.len()),
                _ => known(layer.hidden_size),
            };
            marks
                .iter()
                .map(|m| vec![Atom::new(*m, size(*m))])
                .collect()
        };
        let (sequence, state): (&[Mark], &[Mark]) = if layer.batch_major {
            (
                &[Mark::Batch, Mark::Time, Mark::Direction, Mark::Feature],
                &[Mark::Batch, Mark::Direction, Mark::Feature],
            )
        } else {
            (
                &[Mark::Time, Mark::Direction, Mark::Batch, Mark::Feature],
                &[Mark::Direction, Mark::Batch, Mark::Feature],
            )
        };
        let view = |source, marks| View {
            source,
            axes: axes(marks),
            element,
            cuts: Vec::new(),
            direction: None,
        };
        let last = |cell| Source::Final {
            cell,
            layers: vec![index],
        };
        let mut views = vec![
            view(Source::Sequence(index), sequence),
            view(last(false), state),
        ];
        if layer.kind == CellKind::Lstm {
            views.push(view(last(true), state));
        }
        let quantised = layer.quantised.into_iter();
        self.quantised
            .extend(quantised.map(|matrix| QuantisedMatrix {
                layer: index,
                ..matrix
            }));
        self.layers.push(Stage {
            name: node.name().to_string(),
            directions: layer.directions,
            merge: None,
            time,
            batch,
        });
        Ok(views)
    }

    /// Checks that X continues the chain; its element type, steps and sequences.
    fn take_sequence(
        &mut self,
        node: Node,
        layer: &Recurrent,
        x: Option<&Value>,
    ) -> Result<(i32, Extent, Extent), LoadError> {
        let view = match x {
            Some(Value::View(view)) => view,
            Some(other) => {
                return Err(node.error(format!(
                    "X is {}; supported: a graph input, or the output Y of the node before",
                    other.kind()
                )));
            }
            None => return Err(node.error("input 0 (X) is missing")),
        };
        let at = if layer.batch_major {
            [1, 0, 2]
        } else {
            [0, 1, 2]
        };
        let marks = view.marks();
        let arranged = |feature: &[Mark]| {
            let wanted: [&[Mark]; 3] = [&[Mark::Time], &[Mark::Batch], feature];
            marks.len() == 3 && (0..3).all(|i| marks[at[i]] == wanted[i])
        };
        let refuse = |what: &str| {
            let order = if layer.batch_major {
                "[batch] [time]"
            } else {
                "[time] [batch]"
            };
            Err(node.error(format!(
                "X is {what} with axes {}; it must have axes {order} [feature] (layout {}), where \
                 a bidirectional node below gives [direction, feature] folded in that order, or \
                 its directions added",
                describe(&marks),
                i32::from(layer.batch_major)
            )))
        };
        if view.direction.is_some() || !view.cuts.is_empty() {
            return refuse("a part of a value");
        }
        let top = self.layers.len().wrapping_sub(1);
        let (time, batch) = match &view.source {
            Source::Input(input) => {
                if let Some(below) = self.layers.last() {
                    return Err(node.error(format!(
                        "X is graph input {:?}, but node {:?} comes before it; supported: one \
                         chain, where each node takes the output Y of the one before",
                        self.inputs[*input].name, below.name
                    )));
                }
                if !is_float(view.element) {
                    return Err(node.error(format!(
                        "X is graph input {:?} of type {}; supported: float, float16, bfloat16",
                        self.inputs[*input].name,
                        data_type::name(view.element)
                    )));
                }
                if marks.len() != 3 {
                    return refuse("a graph input");
                }
                for (place, axis) in at.iter().zip([Axis::Time, Axis::Batch, Axis::Feature]) {
                    match marks[*place].as_slice() {
                        [Mark::Declared(declared)] => self.mean(node, *input, *declared, axis)?,
                        _ => return refuse("a graph input"),
                    }
                }
                self.sequence = Some(*input);
                let size = |place: usize| {
                    view.extent(at[place])
                        .ok_or_else(|| node.error("X has an axis of untracked size"))
                };
                (size(0)?, size(1)?)
            }
            Source::Sequence(below) | Source::Sum(below) if *below == top => {
                let sum = matches!(view.source, Source::Sum(_));
                let both = self.layers[top].directions.len() == 2 && !sum;
                let feature: &[Mark] = if both {
                    &[Mark::Direction, Mark::Feature]
                } else {
                    &[Mark::Feature]
                };
                if !arranged(feature) {
                    return refuse("the output Y of the node before");
                }
                self.merge(top, sum).map_err(|e| node.error(e))?;
                let below = &self.layers[top];
                (below.time.clone(), below.batch.clone())
            }
            Source::Sequence(other) | Source::Sum(other) => {
                return Err(node.error(format!(
                    "X is the output Y of node {:?}; supported: one chain, where each node takes \
                     the output Y of the one before ({:?})",
                    self.layers[*other].name, self.layers[top].name
                )));
            }
            Source::Final { .. } => {
                return Err(node.error(
                    "X is made of final states; supported: a graph input, or the output Y of the \
                     node before",
                ));
            }
        };
        let features = view.extent(at[2]);
        if features
            .as_ref()
            .is_some_and(|f| f.contradicts(layer.input_size))
        {
            return Err(node.error(format!(
                "X has {} features, but W is for {}",
                features.and_then(|f| f.as_known()).unwrap_or(0),
                layer.input_size
            )));
        }
        Ok((view.element, time, batch))
    }

    /// All layers share one lengths input, or none has any.
    fn take_lengths(
        &mut self,
        node: Node,
        lengths: Option<&Value>,
        batch: &Extent,
    ) -> Result<(), LoadError> {
        const SUPPORTED: &str = "supported: one int32 or int64 graph input of one axis (batch), \
             the same for every node, or none";
        let input = match lengths {
            None => None,
            Some(Value::View(View {
                source: Source::Input(input),
                axes,
                element: data_type::INT32 | data_type::INT64,
                cuts,
                ..
            })) if cuts.is_empty() && axes.len() == 1 => {
                match axes[0].as_slice() {
                    [
                        Atom {
                            mark: Mark::Declared(axis),
                            extent,
                        },
                    ] if compatible(extent, batch) => {
                        self.mean(node, *input, *axis, Axis::Batch)?;
                    }
                    _ => {
                        return Err(
                            node.error(format!("sequence_lens has no batch axis; {SUPPORTED}"))
                        );
                    }
                }
                Some(*input)
            }
            Some(other) => {
                return Err(node.error(format!("sequence_lens is {}; {SUPPORTED}", other.kind())));
            }
        };
        if self.layers.is_empty() {
            self.lengths = input;
        } else if self.lengths != input {
            return Err(node.error(format!(
                "sequence_lens differs from that of node {:?}; {SUPPORTED}",
                self.layers[0].name
            )));
        }
        Ok(())
    }

    fn take_state(
        &mut self,
        node: Node,
        layer: &Recurrent,
        name: &str,
        cell: bool,
        value: Option<&Value>,
        batch: &Extent,
    ) -> Result<(), LoadError> {
        const SUPPORTED: &str =
            "supported: none, zeros, a graph input, or a slice of one for each layer";
        let Some(value) = value else {
            return Ok(());
        };
        let directions = layer.directions.len();
        let (order, at) = if layer.batch_major {
            ("[batch, direction, hidden]", [1, 0, 2])
        } else {
            ("[direction, batch, hidden]", [0, 1, 2])
        };
        let shape = value.shape();
        let fits = |place: usize, size: usize| {
            shape[at[place]]
                .as_ref()
                .is_none_or(|e| !e.contradicts(size))
        };
        if shape.len() != 3
            || !fits(0, directions)
            || !fits(2, layer.hidden_size)
            || shape[at[1]].as_ref().is_some_and(|e| !compatible(e, batch))
        {
            return Err(node.error(format!(
                "{name} does not have the shape {order} with {directions} and {} entries",
                layer.hidden_size
            )));
        }
        let view = match value {
            Value::Zeros(_) => return Ok(()),
            Value::Constant(t) if t.as_floats().is_some() && t.is_zero() => return Ok(()),
            Value::View(view) => view,
            other => {
                return Err(node.error(format!(
                    "{name} is {} with values other than zero; {SUPPORTED}",
                    other.kind()
                )));
            }
        };
        let Source::Input(input) = view.source else {
            return Err(node.error(format!("{name} comes from another node; {SUPPORTED}")));
        };
        if !is_float(view.element) {
            return Err(node.error(format!(
                "{name} is graph input {:?} of type {}; supported: float, float16, bfloat16",
                self.inputs[input].name,
                data_type::name(view.element)
            )));
        }
        let marks = view.marks();
        let refuse = || {
            node.error(format!(
                "{name} is a rearrangement of graph input {:?} that is no slice for each layer; \
                 {SUPPORTED}",
                self.inputs[input].name
            ))
        };
        let declared = |place: usize| match marks[at[place]].as_slice() {
            [Mark::Declared(axis)] => Some(*axis),
            _ => None,
        };
        let (Some(batch_axis), Some(feature_axis)) = (declared(1), declared(2)) else {
            return Err(refuse());
        };
        // The direction axis may have been taken by index, and given back as a unit axis.
        let unit = marks[at[0]] == [Mark::One];
        let (axis, start, length) = match (declared(0), view.cuts.as_slice()) {
            (Some(axis), [cut]) if cut.axis == axis => (Some(axis), cut.start, cut.length),
            (Some(axis), []) => (Some(axis), 0, directions),
            (None, [cut]) if unit && cut.length == 1 => (Some(cut.axis), cut.start, 1),
            (None, []) if unit => (None, 0, 1),
            _ => return Err(refuse()),
        };
        if axis == Some(batch_axis) || axis == Some(feature_axis) {
            return Err(refuse());
        }
        self.mean(node, input, batch_axis, Axis::Batch)?;
        self.mean(node, input, feature_axis, Axis::Feature)?;
        if let Some(axis) = axis {
            self.mean(node, input, axis, Axis::LayerDirection)?;
        }
        self.states.push(StateUse {
            input,
            cell,
            layer: self.layers.len(),
            axis,
            start,
            length,
        });
        Ok(())
    }

    /// Fixes the meaning of an input's axis.
    fn mean(
        &mut self,
        node: Node,
        input: usize,
        axis: usize,
        meaning: Axis,
    ) -> Result<(), LoadError> {
        let slot = &mut self.meanings[input][axis];
        match slot {
            Some(other) if *other != meaning => Err(node.error(format!(
                "axis {axis} of graph input {:?} is taken as {meaning:?} here and as {other:?} \
                 elsewhere; supported: one role for each graph input",
                self.inputs[input].name
            ))),
            _ => {
                *slot = Some(meaning);
                Ok(())
            }
        }
    }

    /// Fixes how the directions of a layer are merged.
    fn merge(&mut self, layer: usize, sum: bool) -> Result<(), String> {
        let stage = &mut self.layers[layer];
        let merge = if sum { Merge::Sum } else { Merge::Concat };
        if *stage.merge.get_or_insert(merge) != merge {
            return Err(format!(
                "the directions of node {:?} are used both added and concatenated; supported: one \
                 of the two",
                stage.name
            ));
        }
        Ok(())
    }

    /// Makes a graph output a port.
    pub(super) fn output(&mut self, info: &ValueInfoProto, value: &Value) -> Result<(), LoadError> {
        const SUPPORTED: &str =
            "supported: Y of the last recurrent node, and Y_h and Y_c of any, rearranged";
        let refuse = |reason: String| {
            Err(LoadError::Tensor {
                name: info.name.clone(),
                reason: format!("this graph output {reason}; {SUPPORTED}"),
            })
        };
        if self.outputs.iter().any(|p| p.name == info.name) {
            return Err(malformed(format!(
                "two graph outputs are named {:?}",
                info.name
            )));
        }
        let Value::View(view) = value else {
            return refuse(format!("is {}", value.kind()));
        };
        if view.direction.is_some() {
            return refuse("is one direction of a bidirectional node".into());
        }
        let role = match &view.source {
            Source::Input(input) => {
                return refuse(format!("is graph input {:?}", self.inputs[*input].name));
            }
            Source::Sequence(layer) | Source::Sum(layer) => {
                if *layer + 1 != self.layers.len() {
                    return refuse(format!(
                        "is Y of node {:?}, which another recurrent node follows",
                        self.layers[*layer].name
                    ));
                }
                let sum = matches!(view.source, Source::Sum(_));
                if let Err(reason) = self.merge(*layer, sum) {
                    return refuse(format!("is refused, since {reason}"));
                }
                Role::Output
            }
            Source::Final { cell, layers } if *cell => Role::FinalCell(layers.clone()),
            Source::Final { layers, .. } => Role::FinalHidden(layers.clone()),
        };
        let declared = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        if let Some(shape) = declared.and_then(|t| t.shape.as_ref()) {
            let clash = |(axis, dim): (usize, &super::proto::DimensionProto)| {
                let size = dim.dim_value.and_then(|n| usize::try_from(n).ok());
                size.is_some_and(|n| view.extent(axis).is_some_and(|e| e.contradicts(n)))
            };
            if shape.dim.len() != view.axes.len() || shape.dim.iter().enumerate().any(clash) {
                return refuse(format!(
                    "declares {} axes whose number or sizes differ from those its nodes give, {}",
                    shape.dim.len(),
                    describe(&view.marks())
                ));
            }
        }
        let axes = view
            .marks()
            .into_iter()
            .map(|group| group.into_iter().map(|mark| axis(mark, &role)).collect())
            .collect();
        self.outputs.push(Port {
            name: info.name.clone(),
            role,
            axes,
            optional: true,
        });
        Ok(())
    }

    /// The model, once every node and output is in.
    pub(super) fn finish(mut self) -> Result<Model, LoadError> {
        if self.layers.is_empty() {
            return Err(malformed(
                "the graph has no recurrent node; supported: LSTM, GRU, RNN and DynamicQuantizeLSTM",
            ));
        }
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for index in 0..self.inputs.len() {
            inputs.push(self.input_port(index)?);
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for stage in self.layers {
            let mut directions = stage.directions.into_iter();
            layers.push(match (directions.next(), directions.next()) {
                (Some(one), None) => Layer::single(one),
                (Some(forward), Some(reverse)) => {
                    Layer::bidirectional(forward, reverse, stage.merge.unwrap_or(Merge::Concat))?
                }
                (None, _) => return Err(malformed("a recurrent node has no direction")),
            });
        }
        let interface = Interface {
            inputs,
            outputs: self.outputs,
        };
        let mut model = Model::with_interface(layers, interface)?;
        model.quantised = self.quantised;
        Ok(model)
    }

    fn input_port(&mut self, index: usize) -> Result<Port, LoadError> {
        let name = self.inputs[index].name.clone();
        let refuse = |reason: String| {
            Err(LoadError::Tensor {
                name: name.clone(),
                reason: format!("this graph input {reason}"),
            })
        };
        let mut uses: Vec<&StateUse> = self.states.iter().filter(|u| u.input == index).collect();
        uses.sort_by_key(|u| u.start);
        let roles = usize::from(self.sequence == Some(index))
            + usize::from(self.lengths == Some(index))
            + usize::from(!uses.is_empty());
        if roles != 1 {
            let how = if roles == 0 {
                "no role"
            } else {
                "several roles"
            };
            return refuse(format!(
                "has {how}; supported: one of the sequence X, sequence_lens, initial_h, initial_c"
            ));
        }
        let role = match uses.first() {
            None if self.sequence == Some(index) => Role::Input,
            None => Role::Lengths,
            Some(first) => {
                let mut end = 0usize;
                let mut slices_fit = true;
                for part in &uses {
                    slices_fit &= part.start == end
                        && part.cell == first.cell
                        && part.axis == first.axis
                        && (part.axis.is_some() || uses.len() == 1);
                    end = end.saturating_add(part.length);
                }
                if let Some(axis) = first.axis {
                    slices_fit &= !self.inputs[index].shape[axis].contradicts(end);
                }
                if !slices_fit {
                    return refuse(
                        "is used in parts that overlap, leave gaps, or mix initial_h with \
                         initial_c; supported: one slice for each layer, that cover it"
                            .into(),
                    );
                }
                let layers = uses.iter().map(|u| u.layer).collect();
                if first.cell {
                    Role::InitialCell(layers)
                } else {
                    Role::InitialHidden(layers)
                }
            }
        };
        let mut axes = Vec::with_capacity(self.meanings[index].len());
        for (axis, meaning) in self.meanings[index].iter().enumerate() {
            axes.push(match meaning {
                Some(meaning) => vec![*meaning],
                None if self.inputs[index].shape[axis].is(1) => vec![Axis::One],
                None => return refuse(format!("has an axis {axis} that no node uses")),
            });
        }
        Ok(Port {
            name: name.clone(),
            role,
            axes,
            optional: false,
        })
    }
}

/// Whether two sizes may be equal, as far as is known now.
fn compatible(a: &Extent, b: &Extent) -> bool {
    match (a.as_known(), b.as_known()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

/// States have one axis over layers and directions, be it of one layer.
fn axis(mark: Mark, role: &Role) -> Axis {
    match mark {
        Mark::Time => Axis::Time,
        Mark::Batch => Axis::Batch,
        Mark::Direction if *role == Role::Output => Axis::Direction,
        Mark::Direction => Axis::LayerDirection,
        Mark::LayerDirection => Axis::LayerDirection,
        Mark::Feature => Axis::Feature,
        // Only graph inputs have declared axes, and no output is a graph input.
        Mark::One | Mark::Declared(_) => Axis::One,
    }
}

/// Axes for messages, e.g. `[time] [direction, batch] [feature]`.
fn describe(axes: &[Vec<Mark>]) -> String {
    let word = |mark: &Mark| match mark {
        Mark::Declared(axis) => format!("input axis {axis}"),
        Mark::Time => "time".into(),
        Mark::Batch => "batch".into(),
        Mark::Direction => "direction".into(),
        Mark::LayerDirection => "layer and direction".into(),
        Mark::Feature => "feature".into(),
        Mark::One => "1".into(),
    };
    let groups: Vec<String> = axes
        .iter()
        .map(|g| {
            let words: Vec<String> = g.iter().map(word).collect();
            format!("[{}]", words.join(", "))
        })
        .collect();
    groups.join(" ")
}
