//! The named inputs and outputs of a model, each with its axes, so that arrays can be given and
//! taken in the shape that the file's own library uses.

use super::{Layer, Model, ModelError};

/// What one axis of a port runs over. Several meanings in one axis are listed outermost first,
/// e.g. `[Direction, Feature]` for PyTorch's concatenated output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Steps of the sequence.
    Time,
    /// Sequences.
    Batch,
    /// Directions of one layer.
    Direction,
    /// Layers, then directions within each: PyTorch's first axis of states.
    LayerDirection,
    /// Values of one step (input features, or one direction's output).
    Feature,
    /// An axis of length 1 with no meaning.
    One,
}

/// What a port carries. Layers are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The input sequence, `Time × Batch × Feature`.
    Input,
    /// Steps of each sequence, `Batch`, integers.
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

    /// The layers of a state, and whether it is the cell state.
    fn state(&self) -> Option<(&[usize], bool)> {
        match self {
            Role::Input | Role::Lengths | Role::Output => None,
            Role::InitialHidden(layers) | Role::FinalHidden(layers) => Some((layers, false)),
            Role::InitialCell(layers) | Role::FinalCell(layers) => Some((layers, true)),
        }
    }

    /// Whether two inputs carry the same value.
    fn meets(&self, other: &Role) -> bool {
        match (self.state(), other.state()) {
            (Some((layers, cell)), Some((others, of_cell))) => {
                cell == of_cell && layers.iter().any(|layer| others.contains(layer))
            }
            _ => self == other,
        }
    }
}

/// One named array that goes in or comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What it carries.
    pub role: Role,
    /// Its axes, outermost first; each is a list of what is folded into it, outermost first.
    pub axes: Vec<Vec<Axis>>,
    /// Whether it may be left out (lengths: all full; states: zero).
    pub optional: bool,
}

impl Port {
    /// What is wrong with it for these layers, of which there is at least one.
    fn check(&self, layers: &[Layer]) -> Result<(), String> {
        use Axis::{Batch, Direction, Feature, LayerDirection, Time};
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
        if let Some((covered, cell)) = self.role.state() {
            let size = |direction: &super::Direction| match cell {
                true => direction.cell_state_size(),
                false => direction.output_size(),
            };
            let (mut directions, mut sizes) = (0, None);
            for (index, &layer) in covered.iter().enumerate() {
                let Some(of) = layers.get(layer) else {
                    let last = layers.len() - 1;
                    return Err(format!("there is no layer {layer}; use 0 to {last}"));
                };
                if covered[..index].contains(&layer) {
                    return Err(format!("layer {layer} is in it twice"));
                }
                let size = size(&of.directions()[0]);
                if size == 0 {
                    return Err(format!("layer {layer} ({}) has no cell state", of.kind()));
                }
                if *sizes.get_or_insert(size) != size {
                    return Err("its layers' states differ in size; use one port for each".into());
                }
                directions += of.directions().len();
            }
            let Some(size) = sizes else {
                return Err("it is the state of no layer; name one".into());
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
                    return Err(format!("the axis {axis:?}, {size} long, is missing"));
                }
                (2.., _) => return Err(format!("the axis {axis:?} is there twice")),
                (1, None) => return Err(format!("{axis:?} is no axis of {:?}", self.role)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// All ports of a model.
///
/// What [`Model::with_interface`] accepts:
/// - names differ among the inputs, and among the outputs;
/// - one input has the role [`Role::Input`], at most one [`Role::Lengths`], the others initial states,
///   each of a layer in at most one of them; outputs are output sequences and final states;
/// - a state is of one layer or more, none twice, each with a state of that kind and all of one size;
/// - an axis is there once and fits the role: time only in sequences, directions only in the output
///   sequence, layers and directions only in states, features in all but lengths. Those of directions
///   and features may be missing only where they are 1 long; time and batch may be missing where runs
///   are of one step or sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What may be given.
    pub inputs: Vec<Port>,
    /// What may be asked for.
    pub outputs: Vec<Port>,
}

impl Interface {
    /// PyTorch's: inputs `input` `[T, B, E]`, `lengths` `[B]`, `h0` and `c0` `[layers × directions,
    /// B, size]`; outputs `output` `[T, B, directions × size]`, `hn`, `cn`. State ports exist only
    /// where all layers have states of one size, since they could not be one array otherwise. Unlike
    /// PyTorch's, an LSTM may be given one of `h0` and `c0`: the other is zero.
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

    /// Refuses what breaks the rules above.
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
                        format!("{:?} is no role of an {side}", port.role),
                    );
                }
                port.check(layers).or_else(|why| refused(&port.name, why))?;
                let before = &ports[..index];
                if inputs && before.iter().any(|other| port.role.meets(&other.role)) {
                    let why = "another input carries the same; each may be given once only";
                    return refused(&port.name, why.into());
                }
            }
        }
        match self.inputs.iter().any(|port| port.role == Role::Input) {
            true => Ok(()),
            false => refused(
                "input",
                "no input has this role, the sequence; give one".into(),
            ),
        }
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
    /// The same model with the batch before the time in the first two axes of `input` and `output`,
    /// as PyTorch's `batch_first=True`; states keep their axes, as there. Only a port whose axes
    /// start with time, then batch, is changed, so that doing it twice is doing it once.
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
    fn batch_first_twice_is_batch_first_once() {
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
    fn interfaces_that_would_give_wrong_numbers_are_refused() {
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
                "no layer",
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
                "Time is there twice",
            ),
            (
                &lstm,
                |i| i.outputs[0].axes[2] = vec![Axis::Feature, Axis::Direction, Axis::Feature],
                "output",
                "Feature is there twice",
            ),
            (
                &lstm,
                |i| i.outputs[0].axes[2] = vec![Axis::Feature],
                "output",
                "Direction, 2 long, is missing",
            ),
            (
                &lstm,
                |i| i.inputs[2].axes[0] = vec![Axis::Direction],
                "h0",
                "Direction is no axis",
            ),
            (&lstm, |i| drop(i.inputs.remove(0)), "input", "give one"),
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
                "no role of an input",
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
        // Axes of length 1 may be left out, and others put in any order.
        let turned = with(&gru, &|i| {
            i.inputs[2].axes = vec![vec![Axis::Feature], vec![Axis::One], vec![Axis::Batch]];
        });
        assert!(turned.is_ok());
    }
}
