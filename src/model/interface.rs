//! The named inputs and outputs of a model, each with its axes, so that arrays can be given and
//! taken in the shape that the file's own library uses.

use super::{Layer, Model};

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

/// All ports of a model.
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
    /// where all layers have states of one size, since they could not be one array otherwise.
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
        let ports = self
            .interface
            .inputs
            .iter_mut()
            .chain(&mut self.interface.outputs);
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
    use crate::model::Lstm;

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
}
