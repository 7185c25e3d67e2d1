//! The ports of a cell: its inputs, states and outputs.

use cellstream::kernels::{RowsMut, RowsRef};

/// An input, state or output of a cell: `width` values per row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    name: String,
    width: usize,
}

impl Port {
    /// A port of `width` values per row. Symbols are ports of width 1: whole numbers below 2²⁴,
    /// which `f32` represents exactly.
    pub fn new(name: impl Into<String>, width: usize) -> Port {
        let name = name.into();
        Port { name, width }
    }

    /// The name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first `rows` rows of a buffer.
    pub(crate) fn rows<'a>(&self, buffer: &'a [f32], rows: usize) -> RowsRef<'a> {
        RowsRef::contiguous(&buffer[..rows * self.width], self.width)
    }

    /// As [`Port::rows`], to be written.
    pub(crate) fn rows_mut<'a>(&self, buffer: &'a mut [f32], rows: usize) -> RowsMut<'a> {
        RowsMut::contiguous(&mut buffer[..rows * self.width], self.width)
    }
}

/// The inputs, states and outputs of a cell.
///
/// A node *reads* the inputs and then the states; it *writes* the states and then the outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    inputs: Vec<Port>,
    states: Vec<Port>,
    outputs: Vec<Port>,
}

impl Ports {
    /// No ports yet.
    pub fn new() -> Ports {
        Ports::default()
    }

    /// Adds a port that is read.
    pub fn input(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.inputs.push(Port::new(name, width));
        self
    }

    /// Adds a port that is read and then overwritten in place. If the next node of the same cell
    /// reads all states of this one, the values are not moved between the two.
    pub fn state(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.states.push(Port::new(name, width));
        self
    }

    /// Adds a port that is written.
    pub fn output(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.outputs.push(Port::new(name, width));
        self
    }

    /// The ports that are only read.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The ports that are read and overwritten.
    pub fn states(&self) -> &[Port] {
        &self.states
    }

    /// The ports that are only written.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// The ports that a node reads, in order: inputs, states.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
        Chained(self.inputs.iter(), self.states.iter())
    }

    /// The ports that a node writes, in order: states, outputs.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
        Chained(self.states.iter(), self.outputs.iter())
    }
}

/// One iterator after another, with an exact length.
#[derive(Clone)]
struct Chained<'a>(std::slice::Iter<'a, Port>, std::slice::Iter<'a, Port>);

impl<'a> Iterator for Chained<'a> {
    type Item = &'a Port;

    fn next(&mut self) -> Option<&'a Port> {
        self.0.next().or_else(|| self.1.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.len() + self.1.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Chained<'_> {}
