//! Builds the chain of recurrent layers and its input and output ports.

use super::budget::malformed;
use super::extent::Extent;
use super::gate_order::OperatorKind;
use super::node::{GraphInput, Node};
use super::proto::{ValueInfoProto, data_type};
use super::recurrent::RecurrentNode;
use super::value::Value;
use super::view::{AxisKind, AxisPart, View, ViewSource};
use crate::model::{Axis, Direction, LoadError, Merge, Port, QuantisedMatrix, Role};

mod ports;

/// Largest number of recurrent nodes; real stacks have about ten.
const MAX_LAYERS: usize = 1024;

/// The layers and ports found so far.
pub(super) struct ChainBuilder {
    inputs: Vec<GraphInput>,
    /// The meaning of the axes of each input, known once a recurrent node uses it.
    meanings: Vec<Vec<Option<Axis>>>,
    sequence: Option<usize>,
    /// The lengths input of all layers, known after the first layer.
    lengths: Option<usize>,
    layers: Vec<ChainLayer>,
    states: Vec<StateInput>,
    outputs: Vec<Port>,
    quantised: Vec<QuantisedMatrix>,
}

/// A layer. The node that uses its output decides how its directions are merged.
struct ChainLayer {
    name: String,
    directions: Vec<Direction>,
    merge: Option<Merge>,
    time: Extent,
    batch: Extent,
}

/// The input sequence of a layer.
struct Sequence {
    /// ONNX element type.
    element: i32,
    time: Extent,
    batch: Extent,
}

/// An initial state that is a graph input, or a slice of one along an axis.
struct StateInput {
    input: usize,
    cell: bool,
    layer: usize,
    axis: Option<usize>,
    start: usize,
    length: usize,
}

impl ChainBuilder {
    pub(super) fn new(inputs: Vec<GraphInput>) -> ChainBuilder {
        ChainBuilder {
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

    /// Adds a layer at the end of the chain. Returns its outputs Y, Y_h and, for an LSTM, Y_c.
    pub(super) fn layer(
        &mut self,
        node: Node,
        layer: RecurrentNode,
        inputs: &[Option<Value>],
    ) -> Result<Vec<View>, LoadError> {
        if self.layers.len() == MAX_LAYERS {
            return Err(node.error(format!("more than {MAX_LAYERS} recurrent nodes")));
        }
        let input = |index: usize| inputs.get(index).and_then(Option::as_ref);
        let Sequence {
            element,
            time,
            batch,
        } = self.take_sequence(node, &layer, input(0))?;
        self.take_lengths(node, input(4), &batch)?;
        self.take_state(node, &layer, "initial_h", false, input(5), &batch)?;
        if layer.kind == OperatorKind::Lstm {
            self.take_state(node, &layer, "initial_c", true, input(6), &batch)?;
        }

        let index = self.layers.len();
        let known = |n: usize| Extent::known(i64::try_from(n).unwrap_or(i64::MAX));
        let axes = |kinds: &[AxisKind]| -> Vec<Vec<AxisPart>> {
            let size = |kind| match kind {
                AxisKind::Time => time.clone(),
                AxisKind::Batch => batch.clone(),
                AxisKind::Direction => known(layer.directions.len()),
                _ => known(layer.hidden_size),
            };
            kinds
                .iter()
                .map(|m| vec![AxisPart::new(*m, size(*m))])
                .collect()
        };
        let (sequence, state): (&[AxisKind], &[AxisKind]) = if layer.batch_major {
            (
                &[
                    AxisKind::Batch,
                    AxisKind::Time,
                    AxisKind::Direction,
                    AxisKind::Feature,
                ],
                &[AxisKind::Batch, AxisKind::Direction, AxisKind::Feature],
            )
        } else {
            (
                &[
                    AxisKind::Time,
                    AxisKind::Direction,
                    AxisKind::Batch,
                    AxisKind::Feature,
                ],
                &[AxisKind::Direction, AxisKind::Batch, AxisKind::Feature],
            )
        };
        let view = |source, kinds| View {
            source,
            axes: axes(kinds),
            element,
            slices: Vec::new(),
            direction: None,
        };
        let last = |cell| ViewSource::Final {
            cell,
            layers: vec![index],
        };
        let mut views = vec![
            view(ViewSource::Sequence(index), sequence),
            view(last(false), state),
        ];
        if layer.kind == OperatorKind::Lstm {
            views.push(view(last(true), state));
        }
        let quantised = layer.quantised.into_iter();
        self.quantised
            .extend(quantised.map(|matrix| QuantisedMatrix {
                layer: index,
                ..matrix
            }));
        self.layers.push(ChainLayer {
            name: node.name().to_string(),
            directions: layer.directions,
            merge: None,
            time,
            batch,
        });
        Ok(views)
    }

    /// Checks that X continues the chain.
    fn take_sequence(
        &mut self,
        node: Node,
        layer: &RecurrentNode,
        x: Option<&Value>,
    ) -> Result<Sequence, LoadError> {
        let view = match x {
            Some(Value::View(view)) => view,
            Some(other) => {
                return Err(node.error(format!(
                    "X is {}; supported: a graph input, or the output Y of the previous node",
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
        let kinds = view.kinds();
        let arranged = |feature: &[AxisKind]| {
            let wanted: [&[AxisKind]; 3] = [&[AxisKind::Time], &[AxisKind::Batch], feature];
            kinds.len() == 3 && (0..3).all(|i| kinds[at[i]] == wanted[i])
        };
        let refuse = |what: &str| {
            let order = if layer.batch_major {
                "[batch] [time]"
            } else {
                "[time] [batch]"
            };
            Err(node.error(format!(
                "X is {what} with axes {}; it must have axes {order} [feature] (layout {}); after \
                 a bidirectional node, the last axis is [direction, feature] in that order, or \
                 the sum of its directions",
                describe(&kinds),
                i32::from(layer.batch_major)
            )))
        };
        if view.direction.is_some() || !view.slices.is_empty() {
            return refuse("a part of a value");
        }
        let top = self.layers.len().wrapping_sub(1);
        let (time, batch) = match &view.source {
            ViewSource::Input(input) => {
                if let Some(below) = self.layers.last() {
                    return Err(node.error(format!(
                        "X is graph input {:?}, but node {:?} precedes this one; supported: one \
                         chain, where each node takes the output Y of the previous one",
                        self.inputs[*input].name, below.name
                    )));
                }
                if !data_type::is_float(view.element) {
                    return Err(node.error(format!(
                        "X is graph input {:?} of type {}; supported: float, float16, bfloat16",
                        self.inputs[*input].name,
                        data_type::name(view.element)
                    )));
                }
                if kinds.len() != 3 {
                    return refuse("a graph input");
                }
                for (place, axis) in at.iter().zip([Axis::Time, Axis::Batch, Axis::Feature]) {
                    match kinds[*place].as_slice() {
                        [AxisKind::InputAxis(declared)] => {
                            self.set_meaning(node, *input, *declared, axis)?
                        }
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
            ViewSource::Sequence(below) | ViewSource::Sum(below) if *below == top => {
                let sum = matches!(view.source, ViewSource::Sum(_));
                let both = self.layers[top].directions.len() == 2 && !sum;
                let feature: &[AxisKind] = if both {
                    &[AxisKind::Direction, AxisKind::Feature]
                } else {
                    &[AxisKind::Feature]
                };
                if !arranged(feature) {
                    return refuse("the output Y of the previous node");
                }
                self.set_merge(top, sum).map_err(|e| node.error(e))?;
                let below = &self.layers[top];
                (below.time.clone(), below.batch.clone())
            }
            ViewSource::Sequence(other) | ViewSource::Sum(other) => {
                return Err(node.error(format!(
                    "X is the output Y of node {:?}; supported: one chain, where each node takes \
                     the output Y of the previous one ({:?})",
                    self.layers[*other].name, self.layers[top].name
                )));
            }
            ViewSource::Final { .. } => {
                return Err(node.error(
                    "X is made of final states; supported: a graph input, or the output Y of the \
                     previous node",
                ));
            }
        };
        let features = view.extent(at[2]);
        if features
            .as_ref()
            .is_some_and(|f| f.contradicts(layer.input_size))
        {
            return Err(node.error(format!(
                "X has {} features, but W has {}",
                features.and_then(|f| f.as_known()).unwrap_or(0),
                layer.input_size
            )));
        }
        Ok(Sequence {
            element: view.element,
            time,
            batch,
        })
    }

    /// Checks that all layers have the same lengths input, or none.
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
                source: ViewSource::Input(input),
                axes,
                element: data_type::INT32 | data_type::INT64,
                slices,
                ..
            })) if slices.is_empty() && axes.len() == 1 => {
                match axes[0].as_slice() {
                    [
                        AxisPart {
                            kind: AxisKind::InputAxis(axis),
                            extent,
                        },
                    ] if may_equal(extent, batch) => {
                        self.set_meaning(node, *input, *axis, Axis::Batch)?;
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
        layer: &RecurrentNode,
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
            || shape[at[1]].as_ref().is_some_and(|e| !may_equal(e, batch))
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
        let ViewSource::Input(input) = view.source else {
            return Err(node.error(format!("{name} is an output of another node; {SUPPORTED}")));
        };
        if !data_type::is_float(view.element) {
            return Err(node.error(format!(
                "{name} is graph input {:?} of type {}; supported: float, float16, bfloat16",
                self.inputs[input].name,
                data_type::name(view.element)
            )));
        }
        let kinds = view.kinds();
        let refuse = || {
            node.error(format!(
                "{name} is a rearrangement of graph input {:?}, not a slice for each layer; \
                 {SUPPORTED}",
                self.inputs[input].name
            ))
        };
        let declared = |place: usize| match kinds[at[place]].as_slice() {
            [AxisKind::InputAxis(axis)] => Some(*axis),
            _ => None,
        };
        let (Some(batch_axis), Some(feature_axis)) = (declared(1), declared(2)) else {
            return Err(refuse());
        };
        // The direction axis may have been removed by an index and restored as an axis of length 1.
        let unit = kinds[at[0]] == [AxisKind::One];
        let (axis, start, length) = match (declared(0), view.slices.as_slice()) {
            (Some(axis), [slice]) if slice.axis == axis => (Some(axis), slice.start, slice.length),
            (Some(axis), []) => (Some(axis), 0, directions),
            (None, [slice]) if unit && slice.length == 1 => (Some(slice.axis), slice.start, 1),
            (None, []) if unit => (None, 0, 1),
            _ => return Err(refuse()),
        };
        if axis == Some(batch_axis) || axis == Some(feature_axis) {
            return Err(refuse());
        }
        self.set_meaning(node, input, batch_axis, Axis::Batch)?;
        self.set_meaning(node, input, feature_axis, Axis::Feature)?;
        if let Some(axis) = axis {
            self.set_meaning(node, input, axis, Axis::LayerDirection)?;
        }
        self.states.push(StateInput {
            input,
            cell,
            layer: self.layers.len(),
            axis,
            start,
            length,
        });
        Ok(())
    }

    /// Sets the meaning of an axis of an input.
    fn set_meaning(
        &mut self,
        node: Node,
        input: usize,
        axis: usize,
        meaning: Axis,
    ) -> Result<(), LoadError> {
        let slot = &mut self.meanings[input][axis];
        match slot {
            Some(other) if *other != meaning => Err(node.error(format!(
                "axis {axis} of graph input {:?} is {meaning:?} here and {other:?} elsewhere; \
                 supported: one role for each graph input",
                self.inputs[input].name
            ))),
            _ => {
                *slot = Some(meaning);
                Ok(())
            }
        }
    }

    /// Sets how the directions of a layer are merged.
    fn set_merge(&mut self, layer: usize, sum: bool) -> Result<(), String> {
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

    /// Adds the port of a graph output.
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
            ViewSource::Input(input) => {
                return refuse(format!("is graph input {:?}", self.inputs[*input].name));
            }
            ViewSource::Sequence(layer) | ViewSource::Sum(layer) => {
                if *layer + 1 != self.layers.len() {
                    return refuse(format!(
                        "is Y of node {:?}, which another recurrent node follows",
                        self.layers[*layer].name
                    ));
                }
                let sum = matches!(view.source, ViewSource::Sum(_));
                if let Err(reason) = self.set_merge(*layer, sum) {
                    return refuse(format!("is not supported: {reason}"));
                }
                Role::Output
            }
            ViewSource::Final { cell, layers } if *cell => Role::FinalCell(layers.clone()),
            ViewSource::Final { layers, .. } => Role::FinalHidden(layers.clone()),
        };
        let declared = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        if let Some(shape) = declared.and_then(|t| t.shape.as_ref()) {
            let clash = |(axis, dim): (usize, &super::proto::DimensionProto)| {
                let size = dim.dim_value.and_then(|n| usize::try_from(n).ok());
                size.is_some_and(|n| view.extent(axis).is_some_and(|e| e.contradicts(n)))
            };
            if shape.dim.len() != view.axes.len() || shape.dim.iter().enumerate().any(clash) {
                return refuse(format!(
                    "declares {} axes whose number or sizes differ from those of its value, {}",
                    shape.dim.len(),
                    describe(&view.kinds())
                ));
            }
        }
        let axes = view
            .kinds()
            .into_iter()
            .map(|group| group.into_iter().map(|kind| axis(kind, &role)).collect())
            .collect();
        self.outputs.push(Port {
            name: info.name.clone(),
            role,
            axes,
            optional: true,
        });
        Ok(())
    }
}

/// Whether two sizes may be equal.
fn may_equal(a: &Extent, b: &Extent) -> bool {
    match (a.as_known(), b.as_known()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

/// The axis of a port. The axis of directions of a state covers layers and directions, even for one
/// layer.
fn axis(kind: AxisKind, role: &Role) -> Axis {
    match kind {
        AxisKind::Time => Axis::Time,
        AxisKind::Batch => Axis::Batch,
        AxisKind::Direction if *role == Role::Output => Axis::Direction,
        AxisKind::Direction => Axis::LayerDirection,
        AxisKind::LayerDirection => Axis::LayerDirection,
        AxisKind::Feature => Axis::Feature,
        // Only views of graph inputs have input axes, and an output is never such a view.
        AxisKind::One | AxisKind::InputAxis(_) => Axis::One,
    }
}

/// The axes for messages, such as `[time] [direction, batch] [feature]`.
fn describe(axes: &[Vec<AxisKind>]) -> String {
    let word = |kind: &AxisKind| match kind {
        AxisKind::InputAxis(axis) => format!("input axis {axis}"),
        AxisKind::Time => "time".into(),
        AxisKind::Batch => "batch".into(),
        AxisKind::Direction => "direction".into(),
        AxisKind::LayerDirection => "layer and direction".into(),
        AxisKind::Feature => "feature".into(),
        AxisKind::One => "1".into(),
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
