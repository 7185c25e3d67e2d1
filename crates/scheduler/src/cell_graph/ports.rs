//! The ports of a cell: its inputs, states and outputs.

use gatestream::kernels::{RowsMut, RowsRef};

/// An input, state or output of a cell: `width` values per row, or a sequence of any number of
/// elements of `width` values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    name: String,
    width: usize,
    is_sequence: bool,
}

impl Port {
    /// A port of `width` values per row. Symbols are ports of width 1: whole numbers below 2²⁴,
    /// which `f32` represents exactly.
    pub fn new(name: impl Into<String>, width: usize) -> Port {
        Port {
            name: name.into(),
            width,
            is_sequence: false,
        }
    }

    fn sequence(name: impl Into<String>, width: usize) -> Port {
        Port {
            is_sequence: true,
            ..Port::new(name, width)
        }
    }

    /// The name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Values per row, or per element of a sequence.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether each row is a sequence, whose length its node says.
    pub fn is_sequence(&self) -> bool {
        self.is_sequence
    }

    /// Values that every row has: none of a sequence.
    pub fn fixed_width(&self) -> usize {
        if self.is_sequence { 0 } else { self.width }
    }

    /// The first `rows` rows of a buffer.
    pub fn rows<'a>(&self, buffer: &'a [f32], rows: usize) -> RowsRef<'a> {
        RowsRef::contiguous(&buffer[..rows * self.width], self.width)
    }

    /// As [`Port::rows`], to be written.
    pub fn rows_mut<'a>(&self, buffer: &'a mut [f32], rows: usize) -> RowsMut<'a> {
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

    /// Adds a port that is read: sequences of any number of elements of `width` values. Each node
    /// reads one, which has at least one element.
    ///
    /// A cell with a sequence computes a whole request, or a large part of one, in one node. Rows
    /// of a batch may have sequences of different lengths; the [layout](super::RowLayout) is
    /// [`Gathered`](super::RowLayout::Gathered). In a batch of contiguous rows, as
    /// `gatestream_serve::engine::calibrate` makes them, each sequence has one element.
    pub fn input_sequence(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.inputs.push(Port::sequence(name, width));
        self
    }

    /// Adds a port that is written: sequences of elements of `width` values. The node says how many
    /// ([`Graph::node_of_lengths`](super::Graph::node_of_lengths)).
    pub fn output_sequence(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.outputs.push(Port::sequence(name, width));
        self
    }

    /// Whether a port is a sequence.
    pub fn has_sequences(&self) -> bool {
        let mut ports = self.inputs.iter().chain(&self.outputs);
        ports.any(Port::is_sequence)
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
