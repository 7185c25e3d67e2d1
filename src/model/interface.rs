//! The named inputs and outputs of a model with their axes. They let arrays have the shapes of the
//! library that the model file comes from.

use super::{Layer, Model, ModelError};

/// The meaning of an axis of a port. An axis with several meanings lists them outermost first, for
/// example `[Direction, Feature]` for PyTorch's concatenated output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "safetensors", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "safetensors", serde(rename_all = "snake_case"))]
pub enum Axis {
    /// Steps of the sequence.
    Time,
    /// Sequences.
    Batch,
    /// Directions of one layer.
    Direction,
    /// Layers, and the directions of each: the first axis of PyTorch's states.
    LayerDirection,
    /// Values of one step: input features, or the output of one direction.
    Feature,
    /// An axis of length 1 without a meaning.
    One,
}

/// The content of a port. Layers are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "safetensors", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "safetensors", serde(rename_all = "snake_case"))]
pub enum Role {
    /// The input sequence, `Time × Batch × Feature`.
    Input,
    /// The number of steps of each sequence, `Batch`, integers.
    Lengths,
    /// Initial hidden state of these layers.
    InitialHidden(Vec<usize>),
    /// Initial cell state of these layers.
    InitialCell(Vec<usize>),
    /// The output sequence of the last layer.
    Output,
    /// Final hidden state of these layers.
    FinalHidden(Vec<usize>),
    /// Final cell state of these layers.
    FinalCell(Vec<usize>),
}

impl Role {
    fn is_input(&self) -> bool {
        match self {
            Role::Input | Role::Lengths | Role::InitialHidden(_) | Role::InitialCell(_) => true,
            Role::Output | Role::FinalHidden(_) | Role::FinalCell(_) => false,
        }
    }

    fn state(&self) -> Option<PortState<'_>> {
        let (layers, is_cell) = match self {
            Role::Input | Role::Lengths | Role::Output => return None,
            Role::InitialHidden(layers) | Role::FinalHidden(layers) => (layers, false),
            Role::InitialCell(layers) | Role::FinalCell(layers) => (layers, true),
        };
        Some(PortState { layers, is_cell })
    }

    /// Whether two inputs hold the same values, or the same state of a layer.
    fn overlaps(&self, other: &Role) -> bool {
        match (self.state(), other.state()) {
            (Some(one), Some(other)) => {
                one.is_cell == other.is_cell
                    && one.layers.iter().any(|layer| other.layers.contains(layer))
            }
            _ => self == other,
        }
    }
}

/// The state that a port holds.
struct PortState<'a> {
    layers: &'a [usize],
    is_cell: bool,
}

/// One named input or output array.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "safetensors", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "safetensors", serde(deny_unknown_fields))]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its content.
    pub role: Role,
    /// Its axes, outermost first. Each lists its meanings, outermost first.
    pub axes: Vec<Vec<Axis>>,
    /// Whether it may be omitted. Omitted lengths mean full sequences, omitted states mean zero.
    pub optional: bool,
}

impl Port {
    /// Checks the port against the layers, of which there is at least one.
    fn check(&self, layers: &[Layer]) -> Result<(), String> {
        use Axis::{Batch, Direction, Feature, LayerDirection, Time};
        // Allowed axes with their size; 0 if the input decides it.
        let mut allowed = match self.role {
            Role::Input => vec![(Time, 0), (Batch, 0), (Feature, layers[0].input_size())],
            Role::Lengths => vec![(Batch, 0)],
            Role::Output => {
                let last = &layers[layers.len() - 1];
                let size = last.directions()[0].output_size();
                let directions = last.output_size() / size;
                vec![
                    (Time, 0),
                    (Batch, 0),
                    (Direction, directions),
                    (Feature, size),
                ]
            }
            _ => vec![(Batch, 0)],
        };
        if let Some(state) = self.role.state() {
            let mut directions = 0;
            let mut first_size = None;
            for (index, &number) in state.layers.iter().enumerate() {
                let Some(layer) = layers.get(number) else {
                    let last = layers.len() - 1;
                    return Err(format!("there is no layer {number}; use 0 to {last}"));
                };
                if state.layers[..index].contains(&number) {
                    return Err(format!("layer {number} is listed twice; list it once"));
                }
                let direction = &layer.directions()[0];
                let size = if state.is_cell {
                    direction.cell_state_size()
                } else {
                    direction.output_size()
                };
                if size == 0 {
                    let kind = layer.kind();
                    return Err(format!("layer {number} ({kind}) has no cell state"));
                }
                if *first_size.get_or_insert(size) != size {
                    return Err("the states of its layers differ in size; use one port each".into());
                }
                directions += layer.directions().len();
            }
            let Some(size) = first_size else {
                return Err("it lists no layer; list at least one".into());
            };
            allowed.extend([(LayerDirection, directions), (Feature, size)]);
        }
        let count = |axis| self.axes.iter().flatten().filter(|&&a| a == axis).count();
        for axis in [Time, Batch, Direction, LayerDirection, Feature] {
            let size = allowed
                .iter()
                .find(|(a, _)| *a == axis)
                .map(|&(_, size)| size);
            match (count(axis), size) {
                (0, Some(size)) if size > 1 => {
                    return Err(format!("the axis {axis:?} of length {size} is missing"));
                }
                (2.., _) => return Err(format!("the axis {axis:?} is given twice")),
                (1, None) => return Err(format!("{axis:?} is not an axis of {:?}", self.role)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// All ports of a model.
///
/// Rules, checked by [`Model::with_interface`]:
/// - The names of the inputs differ, and so do the names of the outputs.
/// - One input has the role [`Role::Input`] and at most one [`Role::Lengths`]. All other inputs are
///   initial states; a state of a layer is in at most one of them. Outputs are output sequences and
///   final states.
/// - A state port lists at least one layer and none twice. All of them have a state of that kind,
///   and the states have equal sizes.
/// - An axis appears once and matches the role: time in sequences, directions in the output
///   sequence, layers with directions in states, features in all ports except lengths. Axes of
///   directions and features may be omitted only if their length is 1. A port without a time (or
///   batch) axis supports only runs of one step (or sequence).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "safetensors", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "safetensors", serde(deny_unknown_fields))]
pub struct Interface {
    /// The inputs.
    pub inputs: Vec<Port>,
    /// The outputs.
    pub outputs: Vec<Port>,
}

impl Interface {
    /// PyTorch's interface: inputs `input` `[T, B, E]`, `lengths` `[B]`, `h0` and `c0`
    /// `[layers × directions, B, size]`; outputs `output` `[T, B, directions × size]`, `hn`, `cn`.
    /// State ports exist only if the states of all layers have the same size. Unlike in PyTorch,
    /// one of `h0` and `c0` may be given alone; the other is zero.
    pub fn pytorch(layers: &[Layer]) -> Interface {
        use Axis::{Batch, Direction, Feature, LayerDirection, Time};
        let port = |name: &str, role, axes: &[&[Axis]], optional| Port {
            name: name.into(),
            role,
            axes: axes.iter().map(|a| a.to_vec()).collect(),
            optional,
        };
        let all: Vec<usize> = (0..layers.len()).collect();
        let state: &[&[Axis]] = &[&[LayerDirection], &[Batch], &[Feature]];
        let mut inputs = vec![
            port(
                "input",
                Role::Input,
                &[&[Time], &[Batch], &[Feature]],
                false,
            ),
            port("lengths", Role::Lengths, &[&[Batch]], true),
        ];
        let mut outputs = vec![port(
            "output",
            Role::Output,
            &[&[Time], &[Batch], &[Direction, Feature]],
            true,
        )];
        let directions = || layers.iter().flat_map(Layer::directions);
        let uniform = |size: fn(&super::Direction) -> usize| {
            let first = directions().next().map(size);
            directions().all(|d| Some(size(d)) == first) && first.is_some_and(|s| s > 0)
        };
        if uniform(super::Direction::output_size) {
            inputs.push(port("h0", Role::InitialHidden(all.clone()), state, true));
            outputs.push(port("hn", Role::FinalHidden(all.clone()), state, true));
        }
        if uniform(super::Direction::cell_state_size) {
            inputs.push(port("c0", Role::InitialCell(all.clone()), state, true));
            outputs.push(port("cn", Role::FinalCell(all), state, true));
        }
        Interface { inputs, outputs }
    }

    /// Checks the rules of [`Interface`].
    pub(super) fn check(&self, layers: &[Layer]) -> Result<(), ModelError> {
        let refused = |port: &str, reason: String| {
            let port = port.to_string();
            Err(ModelError::Interface { port, reason })
        };
        for (ports, inputs) in [(&self.inputs, true), (&self.outputs, false)] {
            for (index, port) in ports.iter().enumerate() {
                if ports[..index].iter().any(|other| other.name == port.name) {
                    return refused(&port.name, "the name is given twice".into());
                }
                if port.role.is_input() != inputs {
                    let side = if inputs { "input" } else { "output" };
                    return refused(
                        &port.name,
                        format!("{:?} is not a role of an {side}", port.role),
                    );
                }
                port.check(layers).or_else(|why| refused(&port.name, why))?;
                let before = &ports[..index];
                if inputs && before.iter().any(|other| port.role.overlaps(&other.role)) {
                    let why = "another input has the same content; remove one of them";
                    return refused(&port.name, why.into());
                }
            }
        }
        if !self.inputs.iter().any(|port| port.role == Role::Input) {
            let why = "no input has the role of the sequence; add one";
            return refused("input", why.into());
        }
        Ok(())
    }

    /// The input with this name.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|p| p.name == name)
    }

    /// The output with this name.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|p| p.name == name)
    }
}

impl Model {
    /// The same model with the batch as the first axis of `input` and `output`, as PyTorch's
    /// `batch_first=True`. States keep their axes, as in PyTorch. Only ports whose first two axes
    /// are time and batch change, so a second call has no effect.
    #[must_use]
    pub fn batch_first(mut self) -> Model {
        self.interface = self.interface.batch_first();
        self
    }
}

impl Interface {
    /// As [`Model::batch_first`].
    #[must_use]
    pub(super) fn batch_first(mut self) -> Interface {
        let ports = self.inputs.iter_mut().chain(&mut self.outputs);
        for port in ports.filter(|p| matches!(p.role, Role::Input | Role::Output)) {
            if let [first, second, ..] = port.axes.as_mut_slice()
                && (first.as_slice(), second.as_slice()) == (&[Axis::Time], &[Axis::Batch])
            {
                std::mem::swap(first, second);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Merge};

    #[test]
    fn batch_first_is_idempotent() {
        let model = Lstm::new(3, 2).random(1).unwrap();
        let once = model.clone().batch_first();
        for ports in [&once.interface.inputs, &once.interface.outputs] {
            assert_eq!(ports[0].axes[0], [Axis::Batch]);
            assert_eq!(ports[0].axes[1], [Axis::Time]);
        }
        assert_ne!(once, model);
        assert_eq!(once.clone().batch_first(), once);
    }

    #[test]
    fn refuses_interfaces_that_break_a_rule() {
        let lstm = Lstm::new(3, 2).layers(2).bidirectional(Merge::Concat);
        let lstm = lstm.random(1).unwrap();
        let gru = Gru::new(3, 2).random(1).unwrap();
        // Layers of two sizes: states of 2, then of 5.
        let upper = Lstm::new(4, 5).random(1).unwrap();
        let uneven = Model::new(vec![lstm.layers()[0].clone(), upper.layers()[0].clone()]).unwrap();
        type Change = fn(&mut Interface);
        let h0: fn(&mut Interface) -> &mut Port =
            |i| i.inputs.iter_mut().find(|p| p.name == "h0").unwrap();
        let with = |model: &Model, change: &dyn Fn(&mut Interface)| {
            let mut interface = model.interface().clone();
            change(&mut interface);
            Model::with_interface(model.layers().to_vec(), interface)
        };
        let cases: &[(&Model, Change, &str, &str)] = &[
            (
                &lstm,
                |i| i.inputs[2].role = Role::InitialHidden(vec![0, 2]),
                "h0",
                "no layer 2",
            ),
            (
                &lstm,
                |i| i.inputs[2].role = Role::InitialHidden(vec![1, 1]),
                "h0",
                "twice",
            ),
            (
                &lstm,
                |i| i.inputs[2].role = Role::InitialHidden(vec![]),
                "h0",
                "lists no layer",
            ),
            (
                &lstm,
                |i| i.outputs[1].role = Role::FinalCell(vec![7]),
                "hn",
                "use 0 to 1",
            ),
            (
                &gru,
                |i| i.inputs[2].role = Role::InitialCell(vec![0]),
                "h0",
                "no cell state",
            ),
            (
                &lstm,
                |i| i.inputs[0].axes[1] = vec![Axis::Time],
                "input",
                "Time is given twice",
            ),
            (
                &lstm,
                |i| i.outputs[0].axes[2] = vec![Axis::Feature, Axis::Direction, Axis::Feature],
                "output",
                "Feature is given twice",
            ),
            (
                &lstm,
                |i| i.outputs[0].axes[2] = vec![Axis::Feature],
                "output",
                "Direction of length 2 is missing",
            ),
            (
                &lstm,
                |i| i.inputs[2].axes[0] = vec![Axis::Direction],
                "h0",
                "Direction is not an axis",
            ),
            (&lstm, |i| drop(i.inputs.remove(0)), "input", "add one"),
            (
                &lstm,
                |i| {
                    i.inputs.push(Port {
                        name: "x".into(),
                        ..i.inputs[0].clone()
                    })
                },
                "x",
                "another input",
            ),
            (
                &lstm,
                |i| {
                    i.inputs.push(Port {
                        name: "h1".into(),
                        ..i.inputs[2].clone()
                    })
                },
                "h1",
                "another input",
            ),
            (
                &lstm,
                |i| i.inputs[3].name = "h0".into(),
                "h0",
                "the name is given twice",
            ),
            (
                &lstm,
                |i| i.outputs.push(i.outputs[0].clone()),
                "output",
                "the name is given twice",
            ),
            (
                &lstm,
                |i| i.inputs[1].role = Role::Output,
                "lengths",
                "not a role of an input",
            ),
        ];
        for (model, change, name, part) in cases {
            match with(model, change) {
                Err(ModelError::Interface { port, reason }) => {
                    assert_eq!(port, *name, "{reason}");
                    assert!(reason.contains(part), "{part:?} in {reason:?}");
                }
                other => panic!("{name} ({part}): {other:?}"),
            }
        }
        let both = with(&uneven, &|i| {
            i.inputs.push(Port {
                name: "h0".into(),
                ..h0(&mut lstm.interface().clone()).clone()
            });
        });
        assert!(both.unwrap_err().to_string().contains("differ in size"));
        // Axes of length 1 may be omitted, and the order is free.
        let turned = with(&gru, &|i| {
            i.inputs[2].axes = vec![vec![Axis::Feature], vec![Axis::One], vec![Axis::Batch]];
        });
        assert!(turned.is_ok());
    }
}
