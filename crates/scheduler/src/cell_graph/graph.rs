//! The graph of one request: nodes are calls of cells, edges are dependences between them.
//!
//! Plain data, filled by an unfold function; [`super::RequestGraph`] is the checked form without
//! values.

use std::ops::Range;

use super::Ports;
use super::cell::{CellId, Cells};

/// A node of a request's graph: nodes are numbered from 0 in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The node that was, or will be, added at `index`.
    pub fn new(index: usize) -> NodeId {
        NodeId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The index, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The result of the node at `port`, counted over its cell's states and then its outputs.
    pub fn output(self, port: usize) -> Source {
        Source::Node { node: self, port }
    }
}

/// The source of the values of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Zeros, of the width of the port.
    Zeros,
    /// Values of the request, from [`Graph::give`].
    Given {
        /// Index of the first value.
        first: usize,
        /// Number of values.
        width: usize,
    },
    /// A result of another node.
    Node {
        /// The node.
        node: NodeId,
        /// The port, counted over its cell's states and then its outputs.
        port: usize,
    },
}

/// One call of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub cell: CellId,
    /// Index of its first length; there is one for each output sequence.
    first_length: u32,
    /// Index of its first source; there is one for each input and then each state.
    first_source: usize,
    end_source: usize,
}

/// The graph of a request.
///
/// ```
/// use gatestream_scheduler::cell_graph::{Cells, Graph, Source};
/// # use gatestream_scheduler::cell_graph::{Cell, CellError, WorkerEnv, Ports, PreparedCell};
/// # struct Sum(Ports);
/// # impl Cell for Sum {
/// #     fn name(&self) -> &str { "sum" }
/// #     fn ports(&self) -> &Ports { &self.0 }
/// #     fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
/// #         unimplemented!()
/// #     }
/// # }
/// let mut cells = Cells::new();
/// let sum = cells.add(Sum(Ports::new().input("x", 2).state("sum", 1)));
///
/// let mut graph = Graph::new();
/// let mut before = Source::Zeros;
/// for x in [[1.0, 2.0], [3.0, 4.0]] {
///     let x = graph.give(&x);
///     before = graph.node(sum, &[x, before]).output(0);
/// }
/// graph.answer(before);
/// assert!(graph.unfold(&cells).is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Number of values that were [taken](Graph::take_given); those here follow them.
    taken: usize,
    given: Vec<f32>,
    nodes: Vec<Node>,
    sources: Vec<Source>,
    /// Elements of output sequences.
    lengths: Vec<usize>,
    answers: Vec<Source>,
    watched: Vec<NodeId>,
}

impl Graph {
    /// An empty graph, which is refused.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds values of the request: an input row, or an initial state.
    pub fn give(&mut self, values: &[f32]) -> Source {
        let first = self.given_len();
        self.given.extend_from_slice(values);
        Source::Given {
            first,
            width: values.len(),
        }
    }

    /// Adds a call of `cell`, which reads `sources`: one for each of its inputs, then one for each
    /// of its states. They are checked when the graph is submitted.
    pub fn node(&mut self, cell: CellId, sources: &[Source]) -> NodeId {
        self.node_of_lengths(cell, sources, &[])
    }

    /// As [`Graph::node`], of a cell with [output sequences](super::Ports::output_sequence).
    /// `lengths` are their numbers of elements.
    pub fn node_of_lengths(
        &mut self,
        cell: CellId,
        sources: &[Source],
        lengths: &[usize],
    ) -> NodeId {
        let id = NodeId::new(self.nodes.len());
        let first_source = self.sources.len();
        self.sources.extend_from_slice(sources);
        let first_length = u32::try_from(self.lengths.len()).unwrap_or(u32::MAX);
        self.lengths.extend_from_slice(lengths);
        self.nodes.push(Node {
            cell,
            first_length,
            first_source,
            end_source: self.sources.len(),
        });
        id
    }

    /// Appends the values of `source` to the response.
    pub fn answer(&mut self, source: Source) {
        self.answers.push(source);
    }

    /// Watches `node`: the request's [`super::DynamicGraph`], which it must have, is called when
    /// the node has been computed.
    pub fn watch(&mut self, node: NodeId) {
        self.watched.push(node);
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The cell of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn cell(&self, node: NodeId) -> CellId {
        self.nodes[node.index()].cell
    }

    /// The sources of the inputs and then of the states of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn sources(&self, node: NodeId) -> &[Source] {
        let node = &self.nodes[node.index()];
        &self.sources[node.first_source..node.end_source]
    }

    /// Elements of the output sequences of a node.
    pub(crate) fn lengths(&self, node: NodeId) -> &[usize] {
        let first_length = |node: &Node| node.first_length as usize;
        let end = self.nodes.get(node.index() + 1).map(first_length);
        let all = first_length(&self.nodes[node.index()])..end.unwrap_or(self.lengths.len());
        self.lengths.get(all).unwrap_or_default()
    }

    /// Number of values of each state and output of a node, whose cell has these ports.
    pub fn written_widths<'a>(
        &'a self,
        node: NodeId,
        ports: &'a Ports,
    ) -> impl Iterator<Item = usize> + 'a {
        let mut lengths = self.lengths(node).iter();
        ports.writes().map(move |port| {
            if port.is_sequence() {
                lengths
                    .next()
                    .map_or(0, |length| length.saturating_mul(port.width()))
            } else {
                port.width()
            }
        })
    }

    /// Number of sources of a node that are inputs; the others are states.
    pub(crate) fn inputs_of(&self, cells: &Cells, node: NodeId) -> usize {
        let cell = cells.get(self.cell(node));
        cell.map_or(0, |cell| cell.ports().inputs().len())
    }

    /// The node of the same cell from which `node` reads all its states.
    pub fn continues(&self, cells: &Cells, node: NodeId) -> Option<NodeId> {
        let states = &self.sources(node)[self.inputs_of(cells, node)..];
        let Some(&Source::Node { node: from, .. }) = states.first() else {
            return None;
        };
        let all = states.iter().enumerate().all(|(at, source)| {
            matches!(*source, Source::Node { node, port } if node == from && port == at)
        });
        (all && self.cell(from) == self.cell(node)).then_some(from)
    }

    /// The sources of the response, in order.
    pub fn answers(&self) -> &[Source] {
        &self.answers
    }

    /// The watched nodes.
    pub fn watched(&self) -> &[NodeId] {
        &self.watched
    }

    /// All values of the request; while it is served, only those that its function added.
    pub fn given(&self) -> &[f32] {
        &self.given
    }

    /// Number of values of the request.
    pub(crate) fn given_len(&self) -> usize {
        self.taken + self.given.len()
    }

    /// Takes the values that were added so far, to be read while the graph grows. Later values are
    /// counted from there.
    pub(crate) fn take_given(&mut self) -> Box<[f32]> {
        debug_assert!(self.taken == 0, "once");
        self.taken = self.given.len();
        std::mem::take(&mut self.given).into_boxed_slice()
    }

    /// A range of the values of the request: the part in `taken`, and the part added later.
    pub(crate) fn given_among<'a>(&'a self, taken: &'a [f32], of: Range<usize>) -> [&'a [f32]; 2] {
        let before = |at: usize| at.min(self.taken);
        let after = |at: usize| at.max(self.taken) - self.taken;
        [
            &taken[before(of.start)..before(of.end)],
            &self.given[after(of.start)..after(of.end)],
        ]
    }

    /// Bytes of the graph, by the capacity of its lists.
    pub fn bytes(&self) -> usize {
        fn of<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        of(&self.given)
            + of(&self.nodes)
            + of(&self.sources)
            + of(&self.lengths)
            + of(&self.answers)
            + of(&self.watched)
    }

    /// The present lengths, from which [`Graph::unfold_from`] unfolds what is added later.
    pub fn mark(&self) -> Mark {
        Mark {
            given: self.given.len(),
            nodes: self.nodes.len(),
            sources: self.sources.len(),
            lengths: self.lengths.len(),
            answers: self.answers.len(),
            watched: self.watched.len(),
        }
    }

    /// Removes all that was added since.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        self.given.truncate(mark.given);
        self.nodes.truncate(mark.nodes);
        self.sources.truncate(mark.sources);
        self.lengths.truncate(mark.lengths);
        self.answers.truncate(mark.answers);
        self.watched.truncate(mark.watched);
    }
}

/// Lengths of a graph's parts ([`Graph::mark`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    given: usize,
    /// Number of nodes.
    pub nodes: usize,
    sources: usize,
    lengths: usize,
    /// Number of values of the response.
    pub answers: usize,
    /// Number of watched nodes.
    pub watched: usize,
}
