//! [`ArrayMap`]: copies between named arrays and the buffers of a run.

use super::axes::{Resolved, Sizes, Strides, resolve};
use super::{Array, ArrayError, Elements, MAX_STATES, OwnedInput, OwnedOutput};
use crate::model::{Axis, Interface, Layer, Model, Port, Role};

/// Converts named arrays to the input of a run, and its output to named arrays.
///
/// It holds the ports and sizes of a model but no weights, so the model may be dropped.
///
/// ```
/// use gatestream::model::{Array, ArrayMap, Elements, Lstm};
/// use gatestream::reference;
///
/// let model = Lstm::new(3, 4).random(1)?;
/// let map = ArrayMap::new(&model);
/// let x = Array { shape: vec![5, 2, 3], elements: Elements::Floats(vec![0.1; 30]) };
/// let input = map.input(&[("input".into(), x)])?;
/// let mut results = map.output_buffers(&input);
/// reference::run(&model, &input.borrow(), &mut results.borrow())?;
/// assert_eq!(map.output("output", &input, &results)?.shape, [5, 2, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ArrayMap {
    interface: Interface,
    /// Features of an input step.
    input_features: usize,
    /// Features of one direction of the last layer's output.
    output_features: usize,
    /// Directions of the last layer's output: 1 if they are summed.
    output_directions: usize,
    layers: Vec<LayerSizes>,
}

#[derive(Clone, Copy, Debug)]
struct LayerSizes {
    directions: usize,
    /// Hidden state of one direction.
    hidden: usize,
    /// Cell state of one direction.
    cell: usize,
}

impl LayerSizes {
    fn of(layer: &Layer) -> LayerSizes {
        let direction = &layer.directions()[0];
        LayerSizes {
            directions: layer.directions().len(),
            hidden: direction.output_size(),
            cell: direction.cell_state_size(),
        }
    }

    fn state(&self, kind: StateKind) -> usize {
        match kind {
            StateKind::Hidden => self.hidden,
            StateKind::Cell => self.cell,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum StateKind {
    Hidden,
    Cell,
}

impl StateKind {
    fn of(role: &Role) -> StateKind {
        match role {
            Role::InitialCell(_) | Role::FinalCell(_) => StateKind::Cell,
            _ => StateKind::Hidden,
        }
    }
}

impl ArrayMap {
    /// The map for the ports of `model`.
    pub fn new(model: &Model) -> ArrayMap {
        let last = &model.layers()[model.layers().len() - 1];
        let output_features = last.directions()[0].output_size();
        ArrayMap {
            interface: model.interface().clone(),
            input_features: model.signature().input,
            output_features,
            output_directions: last.output_size() / output_features,
            layers: model.layers().iter().map(LayerSizes::of).collect(),
        }
    }

    /// The ports.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Sizes along the axes of a port with this role.
    fn sizes(&self, role: &Role, time: Option<usize>, batch: Option<usize>) -> Sizes {
        let mut sizes = Sizes {
            time,
            batch,
            direction: 1,
            layer_direction: 1,
            feature: 1,
        };
        match role {
            Role::Input => sizes.feature = self.input_features,
            Role::Lengths => {}
            Role::Output => {
                sizes.direction = self.output_directions;
                sizes.feature = self.output_features;
            }
            Role::InitialHidden(layers)
            | Role::FinalHidden(layers)
            | Role::InitialCell(layers)
            | Role::FinalCell(layers) => {
                let kind = StateKind::of(role);
                let covered = || layers.iter().map(|&layer| self.layers[layer]);
                sizes.layer_direction = covered().map(|layer| layer.directions).sum();
                sizes.feature = covered().next().map_or(0, |layer| layer.state(kind));
            }
        }
        sizes
    }

    /// State values of one sequence over all layers.
    fn state_size(&self, kind: StateKind) -> usize {
        let layers = self.layers.iter();
        layers
            .map(|layer| layer.directions * layer.state(kind))
            .sum()
    }

    /// Calls `visit` for every state value of `layers` with its index in a state buffer and its
    /// index in an array with these strides.
    fn for_each_state(
        &self,
        layers: &[usize],
        kind: StateKind,
        batch: usize,
        strides: Strides,
        mut visit: impl FnMut(usize, usize),
    ) {
        // Counts the blocks of the array, one for each layer and direction.
        let mut array_block = 0;
        for &layer in layers {
            let size = self.layers[layer].state(kind);
            let lower = self.layers[..layer].iter();
            let below: usize = lower.map(|l| l.directions * l.state(kind)).sum();
            for direction in 0..self.layers[layer].directions {
                let block = (below + direction * size) * batch;
                for sequence in 0..batch {
                    let row = array_block * strides.layer_direction + sequence * strides.batch;
                    for f in 0..size {
                        visit(block + sequence * size + f, row + f * strides.feature);
                    }
                }
                array_block += 1;
            }
        }
    }

    /// Converts named arrays to the input of a run.
    ///
    /// # Errors
    /// [`ArrayError`] for names that are unknown, missing or repeated; for arrays of the wrong type
    /// or shape, or whose number of elements does not match their shape; and for more sequences
    /// than the limit on states allows.
    pub fn input(&self, arrays: &[(String, Array)]) -> Result<OwnedInput, ArrayError> {
        let mut given = Vec::new();
        for (index, (name, array)) in arrays.iter().enumerate() {
            let port = find(&self.interface.inputs, name, "input")?;
            if arrays[..index].iter().any(|(other, _)| other == name) {
                return Err(ArrayError::Twice { name: name.clone() });
            }
            given.push((port, array));
        }
        let is_missing =
            |port: &&Port| !port.optional && !given.iter().any(|(p, _)| p.name == port.name);
        if let Some(port) = self.interface.inputs.iter().find(is_missing) {
            return Err(ArrayError::Missing {
                name: port.name.clone(),
                axes: self.sizes(&port.role, None, None).describe(port),
            });
        }
        // The input sequence comes first: it decides steps and batch for the other arrays.
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
            check_elements(port, array)?;
            let known = self.sizes(&port.role, time, batch);
            let Resolved { sizes, strides } = resolve(port, &array.shape, known)?;
            match &port.role {
                Role::Input => {
                    input.steps = sizes.time.unwrap_or(1);
                    input.batch = sizes.batch.unwrap_or(1);
                    let from = floats(port, array)?;
                    input.h0 = zeros(port, input.batch, self.state_size(StateKind::Hidden))?;
                    input.c0 = zeros(port, input.batch, self.state_size(StateKind::Cell))?;
                    input.values.reserve_exact(from.len());
                    // One axis of an empty array may have any length.
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
                    let kind = StateKind::of(&port.role);
                    let from = floats(port, array)?;
                    let state = match kind {
                        StateKind::Hidden => &mut input.h0,
                        StateKind::Cell => &mut input.c0,
                    };
                    self.for_each_state(layers, kind, input.batch, strides, |value, at| {
                        state[value] = from[at];
                    });
                }
                // `Interface::check` refuses inputs with these roles.
                Role::Output | Role::FinalHidden(_) | Role::FinalCell(_) => {}
            }
        }
        Ok(input)
    }

    /// Allocates zeroed buffers for the output of a run of `input`.
    pub fn output_buffers(&self, input: &OwnedInput) -> OwnedOutput {
        let features = self.output_features * self.output_directions;
        OwnedOutput {
            values: vec![0.0; input.steps * input.batch * features],
            hn: vec![0.0; input.batch * self.state_size(StateKind::Hidden)],
            cn: vec![0.0; input.batch * self.state_size(StateKind::Cell)],
        }
    }

    /// Checks that the model has an output `name`, so that a caller can fail before the run.
    ///
    /// # Errors
    /// [`ArrayError::Unknown`] with the names of all outputs.
    pub fn check_output(&self, name: &str) -> Result<(), ArrayError> {
        find(&self.interface.outputs, name, "output").map(|_| ())
    }

    /// Converts one output of a run to a named array in the axes of its port.
    ///
    /// # Errors
    /// [`ArrayError::Unknown`] with the names of all outputs. [`ArrayError::NoAxis`] if the port
    /// has no axis for steps or sequences and the input has several.
    pub fn output(
        &self,
        name: &str,
        input: &OwnedInput,
        results: &OwnedOutput,
    ) -> Result<Array, ArrayError> {
        let port = find(&self.interface.outputs, name, "output")?;
        let sizes = self.sizes(&port.role, Some(input.steps), Some(input.batch));
        let length = |axes: &Vec<Axis>| axes.iter().map(|&a| sizes.of(a).unwrap_or(1)).product();
        let shape: Vec<usize> = port.axes.iter().map(length).collect();
        let Resolved { strides, .. } = resolve(port, &shape, sizes)?;
        let mut to = vec![0.0; shape.iter().product()];
        match &port.role {
            Role::FinalHidden(layers) | Role::FinalCell(layers) => {
                let kind = StateKind::of(&port.role);
                let state = match kind {
                    StateKind::Hidden => &results.hn,
                    StateKind::Cell => &results.cn,
                };
                self.for_each_state(layers, kind, input.batch, strides, |value, at| {
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

/// Checks the number of elements: the fields of [`Array`] are public and may not match.
fn check_elements(port: &Port, array: &Array) -> Result<(), ArrayError> {
    let found = match &array.elements {
        Elements::Floats(values) => values.len(),
        Elements::Integers(values) => values.len(),
    };
    // An axis of length 0 makes an array empty, however long the others are.
    let expected = if array.shape.contains(&0) {
        Some(0)
    } else {
        let mut lengths = array.shape.iter();
        lengths.try_fold(1usize, |product, &length| product.checked_mul(length))
    };
    if expected == Some(found) {
        return Ok(());
    }
    Err(ArrayError::Elements {
        name: port.name.clone(),
        found,
        shape: array.shape.clone(),
    })
}

/// Zero states of `batch` sequences, or an error if they exceed the limit or the memory.
fn zeros(port: &Port, batch: usize, state: usize) -> Result<Vec<f32>, ArrayError> {
    let too_large = || ArrayError::TooLarge {
        name: port.name.clone(),
        batch,
        state,
    };
    let count = batch
        .checked_mul(state)
        .filter(|&count| count <= MAX_STATES);
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
