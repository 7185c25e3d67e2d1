//! From named arrays in a file's own axes to the slices that a run takes, and back.
//!
//! Every axis of a [`Port`] is a product of meanings, so an array is described by one stride per
//! meaning; copying is then the same loop for every layout. Nothing here is on a hot path.

use super::interface::{Axis, Interface, Port, Role};
use super::{Input, Layer, Layout, Model, Output};

/// An n-dimensional array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// The elements.
    pub elements: Elements,
}

/// Elements of an [`Array`].
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Values and states.
    Floats(Vec<f32>),
    /// Lengths.
    Integers(Vec<i64>),
}

/// Why named arrays do not make an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// No port has this name.
    #[error("{name:?} is not an {side} of this model; it has {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// "input" or "output".
        side: &'static str,
        /// The names there are.
        known: String,
    },
    /// A name was given twice.
    #[error("{name:?} is given twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A port that must be given was not.
    #[error("{name:?} is missing; its axes are {axes}")]
    Missing {
        /// The name.
        name: String,
        /// Its axes.
        axes: String,
    },
    /// The array's shape does not fit the port's axes.
    #[error("{name:?} has shape {found:?}; its axes are {axes}")]
    Shape {
        /// The name.
        name: String,
        /// The shape given.
        found: Vec<usize>,
        /// The axes, with the sizes that are known.
        axes: String,
    },
    /// Floats where integers are needed, or the reverse.
    #[error("{name:?} must hold {expected}")]
    Type {
        /// The name.
        name: String,
        /// What it must hold.
        expected: &'static str,
    },
    /// The elements are not as many as the shape says.
    #[error("{name:?} holds {found} elements, another number than its shape {shape:?} says")]
    Elements {
        /// The name.
        name: String,
        /// Elements given.
        found: usize,
        /// The shape given.
        shape: Vec<usize>,
    },
    /// An array without an axis over steps or sequences, of which there are several.
    #[error("{name:?} has no axis for {size} {what}; give inputs of 1")]
    NoAxis {
        /// The name.
        name: String,
        /// "steps" or "sequences".
        what: &'static str,
        /// How many there are.
        size: usize,
    },
    /// More sequences than there is room for the states of.
    #[error(
        "{name:?} has {batch} sequences of {state} state values each, more than there is room for; \
         give fewer sequences (at most {MOST_STATES} values, and what memory holds)"
    )]
    TooLarge {
        /// The input sequence's name.
        name: String,
        /// Its sequences.
        batch: usize,
        /// Hidden or cell state values of one sequence, all layers together.
        state: usize,
    },
    /// A length below zero.
    #[error("{name:?}: sequence {sequence} has length {length}; lengths are counted from 0")]
    NegativeLength {
        /// The name.
        name: String,
        /// Index of the sequence.
        sequence: usize,
        /// The value given.
        length: i64,
    },
}

/// Values of all initial hidden, or cell, states together, 1 GiB of each: an input without elements
/// may claim any number of sequences.
const MOST_STATES: usize = 1 << 28;

/// The sizes behind a model's ports. It keeps no weights, so the model may be dropped.
#[derive(Clone, Debug)]
pub struct ArrayMap {
    interface: Interface,
    input: usize,
    /// Features of one direction of the last layer's output, and its directions.
    output: (usize, usize),
    /// Per layer: directions, hidden state size, cell state size.
    layers: Vec<(usize, usize, usize)>,
}

/// Everything that a run takes, as owned values in time-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedInput {
    /// `[steps, batch, features]`.
    pub values: Vec<f32>,
    /// Steps.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Steps of each sequence.
    pub lengths: Option<Vec<usize>>,
    /// Initial hidden state, blocks as [`Input::h0`].
    pub h0: Vec<f32>,
    /// Initial cell state, blocks as [`Input::c0`].
    pub c0: Vec<f32>,
}

impl OwnedInput {
    /// As a run takes it.
    pub fn borrow(&self) -> Input<'_> {
        Input {
            values: &self.values,
            steps: self.steps,
            batch: self.batch,
            layout: Some(Layout::TimeMajor),
            lengths: self.lengths.as_deref(),
            h0: Some(&self.h0),
            c0: Some(&self.c0),
        }
    }
}

/// Everything that a run gives, as owned values in time-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedOutput {
    /// `[steps, batch, features]`.
    pub values: Vec<f32>,
    /// Final hidden state, blocks as [`Input::h0`].
    pub hn: Vec<f32>,
    /// Final cell state, blocks as [`Input::c0`].
    pub cn: Vec<f32>,
}

impl OwnedOutput {
    /// As a run takes it.
    pub fn borrow(&mut self) -> Output<'_> {
        Output::new(&mut self.values)
            .hn(&mut self.hn)
            .cn(&mut self.cn)
    }
}

/// Elements between neighbours along each meaning, 0 where an array lacks it.
#[derive(Clone, Copy, Debug, Default)]
struct Strides {
    time: usize,
    batch: usize,
    direction: usize,
    layer_direction: usize,
    feature: usize,
}

/// Sizes along each meaning; `None` where the array itself must tell.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    time: Option<usize>,
    batch: Option<usize>,
    direction: usize,
    layer_direction: usize,
    feature: usize,
}

impl Sizes {
    fn of(&self, axis: Axis) -> Option<usize> {
        match axis {
            Axis::Time => self.time,
            Axis::Batch => self.batch,
            Axis::Direction => Some(self.direction),
            Axis::LayerDirection => Some(self.layer_direction),
            Axis::Feature => Some(self.feature),
            Axis::One => Some(1),
        }
    }

    /// The axes of `port` in words, with the sizes that are known.
    fn describe(&self, port: &Port) -> String {
        let name = |axis: &Axis| {
            let name = match axis {
                Axis::Time => "steps",
                Axis::Batch => "batch",
                Axis::Direction => "directions",
                Axis::LayerDirection => "layers*directions",
                Axis::Feature => "features",
                Axis::One => return "1".to_string(),
            };
            match self.of(*axis) {
                Some(size) => format!("{name}={size}"),
                None => name.to_string(),
            }
        };
        let folded = |axes: &Vec<Axis>| axes.iter().map(name).collect::<Vec<_>>().join("*");
        let all: Vec<_> = port.axes.iter().map(folded).collect();
        format!("[{}]", all.join(", "))
    }
}

impl ArrayMap {
    /// The map of `model`'s ports.
    pub fn new(model: &Model) -> ArrayMap {
        let last = &model.layers()[model.layers().len() - 1];
        let sizes = |layer: &Layer| {
            let direction = &layer.directions()[0];
            let cell = direction.cell_state_size();
            (layer.directions().len(), direction.output_size(), cell)
        };
        let directions = last.output_size() / last.directions()[0].output_size();
        ArrayMap {
            interface: model.interface().clone(),
            input: model.signature().input,
            output: (last.directions()[0].output_size(), directions),
            layers: model.layers().iter().map(sizes).collect(),
        }
    }

    /// The ports.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Sizes along the axes of `port`, and the state sizes of the layers it covers.
    fn sizes(&self, role: &Role, time: Option<usize>, batch: Option<usize>) -> Sizes {
        let (direction, layer_direction, feature) = match role {
            Role::Input => (1, 1, self.input),
            Role::Lengths => (1, 1, 1),
            Role::Output => (self.output.1, 1, self.output.0),
            Role::InitialHidden(layers) | Role::FinalHidden(layers) => {
                let directions = layers.iter().map(|&l| self.layers[l].0).sum();
                (
                    1,
                    directions,
                    layers.first().map_or(0, |&l| self.layers[l].1),
                )
            }
            Role::InitialCell(layers) | Role::FinalCell(layers) => {
                let directions = layers.iter().map(|&l| self.layers[l].0).sum();
                (
                    1,
                    directions,
                    layers.first().map_or(0, |&l| self.layers[l].2),
                )
            }
        };
        Sizes {
            time,
            batch,
            direction,
            layer_direction,
            feature,
        }
    }

    /// Values of all states per sequence.
    fn state_size(&self, cell: bool) -> usize {
        let layers = self.layers.iter();
        layers.map(|&(d, h, c)| d * if cell { c } else { h }).sum()
    }

    /// Every state value of `layers`: where it is in a state buffer, and where in an array with
    /// these strides.
    fn pair(
        &self,
        layers: &[usize],
        cell: bool,
        batch: usize,
        strides: Strides,
        mut each: impl FnMut(usize, usize),
    ) {
        let size = |layer: usize| match cell {
            true => self.layers[layer].2,
            false => self.layers[layer].1,
        };
        // A block for each layer and direction.
        let mut index = 0;
        for &layer in layers {
            let below: usize = (0..layer).map(|l| self.layers[l].0 * size(l)).sum();
            for direction in 0..self.layers[layer].0 {
                let block = (below + direction * size(layer)) * batch;
                for sequence in 0..batch {
                    let row = index * strides.layer_direction + sequence * strides.batch;
                    for f in 0..size(layer) {
                        each(
                            block + sequence * size(layer) + f,
                            row + f * strides.feature,
                        );
                    }
                }
                index += 1;
            }
        }
    }

    /// The input that named arrays make.
    ///
    /// # Errors
    /// Names that are unknown, missing or repeated; arrays of the wrong type or shape, or that hold
    /// another number of elements than their shape says; more sequences than there is room for.
    pub fn input(&self, arrays: &[(String, Array)]) -> Result<OwnedInput, ArrayError> {
        let mut given = Vec::new();
        for (index, (name, array)) in arrays.iter().enumerate() {
            let known = &self.interface.inputs;
            let port = find(known, name, "input")?;
            if arrays[..index].iter().any(|(other, _)| other == name) {
                return Err(ArrayError::Twice { name: name.clone() });
            }
            given.push((port, array));
        }
        let missing =
            |port: &&Port| !port.optional && !given.iter().any(|(p, _)| p.name == port.name);
        if let Some(port) = self.interface.inputs.iter().find(missing) {
            return Err(ArrayError::Missing {
                name: port.name.clone(),
                axes: self.sizes(&port.role, None, None).describe(port),
            });
        }
        // The input sequence first: it tells steps and batch, which the others must agree with.
        given.sort_by_key(|(port, _)| port.role != Role::Input);
        let mut input = OwnedInput {
            values: Vec::new(),
            steps: 0,
            batch: 0,
            lengths: None,
            h0: Vec::new(),
            c0: Vec::new(),
        };
        for (port, array) in given {
            let (time, batch) = match port.role {
                Role::Input => (None, None),
                _ => (Some(input.steps), Some(input.batch)),
            };
            let sizes = self.sizes(&port.role, time, batch);
            check_elements(port, array)?;
            let (sizes, strides) = resolve(port, &array.shape, sizes)?;
            match &port.role {
                Role::Input => {
                    input.steps = sizes.time.unwrap_or(1);
                    input.batch = sizes.batch.unwrap_or(1);
                    let from = floats(port, array)?;
                    input.h0 = zeros(port, input.batch, self.state_size(false))?;
                    input.c0 = zeros(port, input.batch, self.state_size(true))?;
                    input.values.reserve_exact(from.len());
                    // Of an empty array, one axis may be as long as its shape pleases.
                    let steps = if from.is_empty() { 0 } else { input.steps };
                    for step in 0..steps {
                        for sequence in 0..input.batch {
                            let row = step * strides.time + sequence * strides.batch;
                            let feature = |f| from[row + f * strides.feature];
                            input.values.extend((0..sizes.feature).map(feature));
                        }
                    }
                }
                Role::Lengths => input.lengths = Some(lengths(port, array)?),
                Role::InitialHidden(layers) | Role::InitialCell(layers) => {
                    let cell = matches!(port.role, Role::InitialCell(_));
                    let from = floats(port, array)?;
                    let state = if cell { &mut input.c0 } else { &mut input.h0 };
                    self.pair(layers, cell, input.batch, strides, |value, at| {
                        state[value] = from[at];
                    });
                }
                // Loaders put only input roles among the inputs.
                Role::Output | Role::FinalHidden(_) | Role::FinalCell(_) => {}
            }
        }
        Ok(input)
    }

    /// Room for what a run of `input` gives.
    pub fn room(&self, input: &OwnedInput) -> OwnedOutput {
        let features = self.output.0 * self.output.1;
        OwnedOutput {
            values: vec![0.0; input.steps * input.batch * features],
            hn: vec![0.0; input.batch * self.state_size(false)],
            cn: vec![0.0; input.batch * self.state_size(true)],
        }
    }

    /// Refuses a name that is no output, before anything is run for it.
    ///
    /// # Errors
    /// [`ArrayError::Unknown`] with the names there are.
    pub fn check_output(&self, name: &str) -> Result<(), ArrayError> {
        find(&self.interface.outputs, name, "output").map(|_| ())
    }

    /// One output as a named array, in its port's axes.
    ///
    /// # Errors
    /// [`ArrayError::Unknown`] with the names there are; [`ArrayError::NoAxis`].
    pub fn output(
        &self,
        name: &str,
        input: &OwnedInput,
        results: &OwnedOutput,
    ) -> Result<Array, ArrayError> {
        let port = find(&self.interface.outputs, name, "output")?;
        let sizes = self.sizes(&port.role, Some(input.steps), Some(input.batch));
        let folded = |axes: &Vec<Axis>| axes.iter().map(|&a| sizes.of(a).unwrap_or(1)).product();
        let shape: Vec<usize> = port.axes.iter().map(folded).collect();
        let (_, strides) = resolve(port, &shape, sizes)?;
        let mut to = vec![0.0; shape.iter().product()];
        match &port.role {
            Role::FinalHidden(layers) | Role::FinalCell(layers) => {
                let cell = matches!(port.role, Role::FinalCell(_));
                let state = if cell { &results.cn } else { &results.hn };
                self.pair(layers, cell, input.batch, strides, |value, at| {
                    to[at] = state[value];
                });
            }
            _ => {
                let mut from = results.values.iter();
                let steps = if to.is_empty() { 0 } else { input.steps };
                for step in 0..steps {
                    for sequence in 0..input.batch {
                        for direction in 0..sizes.direction {
                            let row = step * strides.time
                                + sequence * strides.batch
                                + direction * strides.direction;
                            for (f, value) in (0..sizes.feature).zip(&mut from) {
                                to[row + f * strides.feature] = *value;
                            }
                        }
                    }
                }
            }
        }
        Ok(Array {
            shape,
            elements: Elements::Floats(to),
        })
    }
}

fn find<'a>(ports: &'a [Port], name: &str, side: &'static str) -> Result<&'a Port, ArrayError> {
    ports.iter().find(|p| p.name == name).ok_or_else(|| {
        let known: Vec<_> = ports.iter().map(|p| p.name.as_str()).collect();
        ArrayError::Unknown {
            name: name.to_string(),
            side,
            known: known.join(", "),
        }
    })
}

/// Solves the unknown sizes from `shape`, and gives the strides of each meaning.
fn resolve(port: &Port, shape: &[usize], mut sizes: Sizes) -> Result<(Sizes, Strides), ArrayError> {
    let refused = |sizes: &Sizes| ArrayError::Shape {
        name: port.name.clone(),
        found: shape.to_vec(),
        axes: sizes.describe(port),
    };
    let given = sizes;
    if shape.len() != port.axes.len() {
        return Err(refused(&given));
    }
    let mut strides = Strides::default();
    let mut inner = 1;
    for (&length, axes) in shape.iter().zip(&port.axes).rev() {
        let known = axes.iter().filter_map(|&a| sizes.of(a));
        let known = known.fold(1, usize::saturating_mul);
        let mut unknown = axes.iter().filter(|&&a| sizes.of(a).is_none());
        if let Some(axis) = unknown.next() {
            if unknown.next().is_some() || known == 0 || !length.is_multiple_of(known) {
                return Err(refused(&given));
            }
            let size = Some(length / known);
            match axis {
                Axis::Time => sizes.time = size,
                _ => sizes.batch = size,
            }
        } else if known != length {
            return Err(refused(&given));
        }
        for &axis in axes.iter().rev() {
            let stride = match axis {
                Axis::Time => &mut strides.time,
                Axis::Batch => &mut strides.batch,
                Axis::Direction => &mut strides.direction,
                Axis::LayerDirection => &mut strides.layer_direction,
                Axis::Feature => &mut strides.feature,
                Axis::One => continue,
            };
            *stride = inner;
            // Too large only in an array without elements, where no stride is used.
            inner = inner.saturating_mul(sizes.of(axis).unwrap_or(1));
        }
    }
    let lacks = |axis| !port.axes.iter().flatten().any(|&a| a == axis);
    let mut over = vec![(Axis::Batch, "sequences")];
    if matches!(port.role, Role::Input | Role::Output) {
        over.push((Axis::Time, "steps"));
    }
    for (axis, what) in over {
        if let Some(size) = sizes.of(axis).filter(|&size| size != 1)
            && lacks(axis)
        {
            let name = port.name.clone();
            return Err(ArrayError::NoAxis { name, what, size });
        }
    }
    Ok((sizes, strides))
}

/// Arrays are public data: their elements may be fewer than their shape says.
fn check_elements(port: &Port, array: &Array) -> Result<(), ArrayError> {
    let found = match &array.elements {
        Elements::Floats(values) => values.len(),
        Elements::Integers(values) => values.len(),
    };
    // An axis of length 0 makes an array empty, however long the others are.
    let said = match array.shape.contains(&0) {
        true => Some(0),
        false => (array.shape.iter()).try_fold(1, |all: usize, &length| all.checked_mul(length)),
    };
    match said == Some(found) {
        true => Ok(()),
        false => Err(ArrayError::Elements {
            name: port.name.clone(),
            found,
            shape: array.shape.clone(),
        }),
    }
}

/// Zero states of `batch` sequences, or a refusal where an allocation would abort.
fn zeros(port: &Port, batch: usize, state: usize) -> Result<Vec<f32>, ArrayError> {
    let too_large = || ArrayError::TooLarge {
        name: port.name.clone(),
        batch,
        state,
    };
    let count = batch.checked_mul(state);
    let count = count.filter(|&count| count <= MOST_STATES);
    let count = count.ok_or_else(too_large)?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| too_large())?;
    values.resize(count, 0.0);
    Ok(values)
}

fn floats<'a>(port: &Port, array: &'a Array) -> Result<&'a [f32], ArrayError> {
    match &array.elements {
        Elements::Floats(values) => Ok(values),
        Elements::Integers(_) => Err(ArrayError::Type {
            name: port.name.clone(),
            expected: "floats",
        }),
    }
}

fn lengths(port: &Port, array: &Array) -> Result<Vec<usize>, ArrayError> {
    let Elements::Integers(values) = &array.elements else {
        return Err(ArrayError::Type {
            name: port.name.clone(),
            expected: "integers",
        });
    };
    let length = |(sequence, &length): (usize, &i64)| {
        usize::try_from(length).map_err(|_| ArrayError::NegativeLength {
            name: port.name.clone(),
            sequence,
            length,
        })
    };
    values.iter().enumerate().map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Lstm, Merge};

    fn floats_of(shape: &[usize], value: impl Fn(&[usize]) -> f32) -> Array {
        let mut values = Vec::new();
        for flat in 0..shape.iter().product::<usize>() {
            let mut rest = flat;
            let mut index = vec![0; shape.len()];
            for (at, size) in index.iter_mut().zip(shape).rev() {
                *at = rest % size;
                rest /= size;
            }
            values.push(value(&index));
        }
        Array {
            shape: shape.to_vec(),
            elements: Elements::Floats(values),
        }
    }

    fn model() -> Model {
        let lstm = Lstm::new(3, 2).layers(2).bidirectional(Merge::Concat);
        lstm.random(1).unwrap()
    }

    #[test]
    fn batch_first_input_is_turned_and_states_keep_their_blocks() {
        let map = ArrayMap::new(&model().batch_first());
        let x = floats_of(&[2, 5, 3], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32);
        let h0 = floats_of(&[4, 2, 2], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32);
        let input = map
            .input(&[("input".into(), x), ("h0".into(), h0)])
            .unwrap();
        assert_eq!((input.steps, input.batch), (5, 2));
        let at = |t: usize, b: usize, f: usize| input.values[(t * 2 + b) * 3 + f];
        assert_eq!(at(4, 1, 2), 142.0);
        assert_eq!(at(3, 0, 1), 31.0);
        assert_eq!(input.h0[(2 * 2 + 1) * 2 + 1], 211.0);
        assert_eq!(input.c0, [0.0; 16]);
    }

    #[test]
    fn directions_before_the_batch_are_taken_apart() {
        let mut interface = model().interface().clone();
        let output = interface.outputs.iter_mut().find(|p| p.name == "output");
        output.unwrap().axes = [Axis::Time, Axis::Direction, Axis::Batch, Axis::Feature]
            .map(|a| vec![a])
            .to_vec();
        let model = Model::with_interface(model().layers().to_vec(), interface).unwrap();
        let map = ArrayMap::new(&model);
        let x = floats_of(&[3, 2, 3], |_| 0.0);
        let input = map.input(&[("input".into(), x)]).unwrap();
        let mut results = map.room(&input);
        results.values = (0..3 * 2 * 4).map(|v| v as f32).collect();
        let y = map.output("output", &input, &results).unwrap();
        assert_eq!(y.shape, [3, 2, 2, 2]);
        // Step 2, direction 1, sequence 0, feature 1.
        let Elements::Floats(values) = y.elements else {
            panic!("outputs are floats");
        };
        assert_eq!(values[((2 * 2 + 1) * 2) * 2 + 1], ((2 * 2) * 4 + 3) as f32);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let map = ArrayMap::new(&model());
        let x = || ("input".to_string(), floats_of(&[3, 2, 3], |_| 0.0));
        let message = |arrays: &[(String, Array)]| map.input(arrays).unwrap_err().to_string();
        assert_eq!(
            message(&[]),
            "\"input\" is missing; its axes are [steps, batch, features=3]"
        );
        assert_eq!(
            message(&[("x".into(), x().1)]),
            "\"x\" is not an input of this model; it has input, lengths, h0, c0"
        );
        assert_eq!(message(&[x(), x()]), "\"input\" is given twice");
        assert_eq!(
            message(&[("input".into(), floats_of(&[3, 2, 4], |_| 0.0))]),
            "\"input\" has shape [3, 2, 4]; its axes are [steps, batch, features=3]"
        );
        assert_eq!(
            message(&[x(), ("h0".into(), floats_of(&[4, 3, 2], |_| 0.0))]),
            "\"h0\" has shape [4, 3, 2]; its axes are [layers*directions=4, batch=2, features=2]"
        );
        let lengths = |values: Vec<i64>| Array {
            shape: vec![values.len()],
            elements: Elements::Integers(values),
        };
        assert_eq!(
            message(&[x(), ("lengths".into(), lengths(vec![1, -1]))]),
            "\"lengths\": sequence 1 has length -1; lengths are counted from 0"
        );
        assert_eq!(
            message(&[x(), ("lengths".into(), floats_of(&[2], |_| 1.0))]),
            "\"lengths\" must hold integers"
        );
        assert!(
            map.check_output("out")
                .unwrap_err()
                .to_string()
                .contains("output, hn, cn")
        );
    }

    #[test]
    fn arrays_that_contradict_themselves_are_refused() {
        let map = ArrayMap::new(&model());
        let x = |shape: &[usize], count: usize| Array {
            shape: shape.to_vec(),
            elements: Elements::Floats(vec![1.0; count]),
        };
        for (shape, count) in [
            (vec![3, 2, 3], 17),
            (vec![3, 2, 3], 19),
            (vec![0, 2, 3], 6),
            (vec![usize::MAX, usize::MAX, 3], 3),
            (vec![1 << 62, 4, 3], 0),
        ] {
            let given = [("input".to_string(), x(&shape, count))];
            let error = map.input(&given).unwrap_err();
            assert!(matches!(error, ArrayError::Elements { .. }), "{shape:?}");
            let text = error.to_string();
            assert!(text.contains(&format!("{count} elements")), "{text}");
        }
        let given = [
            ("input".to_string(), x(&[3, 2, 3], 18)),
            ("h0".to_string(), x(&[4, 2, 2], 15)),
        ];
        let error = map.input(&given).unwrap_err().to_string();
        assert!(error.starts_with("\"h0\" holds 15 elements"), "{error}");
    }

    #[test]
    fn sequences_without_steps_are_refused_where_their_states_have_no_room() {
        let map = ArrayMap::new(&model());
        let empty = |shape: [usize; 3]| Array {
            shape: shape.to_vec(),
            elements: Elements::Floats(vec![]),
        };
        // Eight values of state for each sequence.
        for batch in [MOST_STATES / 8 + 1, 1 << 40, usize::MAX] {
            let given = [("input".to_string(), empty([0, batch, 3]))];
            let error = map.input(&given).unwrap_err();
            let name = "input".to_string();
            assert_eq!(
                error,
                ArrayError::TooLarge {
                    name,
                    batch,
                    state: 8
                }
            );
        }
        let given = [("input".to_string(), empty([usize::MAX, 0, 3]))];
        let input = map.input(&given).unwrap();
        assert_eq!((input.steps, input.batch), (usize::MAX, 0));
        assert!(input.values.is_empty() && input.h0.is_empty());
    }

    #[test]
    fn an_array_without_a_batch_axis_is_of_one_sequence() {
        let mut interface = model().interface().clone();
        let output = interface.outputs.iter_mut().find(|p| p.name == "output");
        output.unwrap().axes.remove(1);
        let model = Model::with_interface(model().layers().to_vec(), interface).unwrap();
        let map = ArrayMap::new(&model);
        let of = |batch| {
            let x = floats_of(&[3, batch, 3], |_| 0.0);
            let input = map.input(&[("input".into(), x)]).unwrap();
            map.output("output", &input, &map.room(&input))
        };
        assert_eq!(of(1).unwrap().shape, [3, 4]);
        assert_eq!(
            of(2).unwrap_err().to_string(),
            "\"output\" has no axis for 2 sequences; give inputs of 1"
        );
    }
}
