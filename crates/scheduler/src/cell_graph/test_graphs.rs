//! Cells and graphs that the tests of several modules share, and those of the load generator.

use super::*;

/// A cell that is never run.
pub(crate) struct Named(String, Ports);

impl Named {
    pub(crate) fn new(name: &str, ports: Ports) -> Named {
        Named(name.into(), ports)
    }
}

impl Cell for Named {
    fn name(&self) -> &str {
        &self.0
    }

    fn ports(&self) -> &Ports {
        &self.1
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Err(CellError::new("not to be run"))
    }
}

/// Maximum number of nodes that one node of [`plain_cells`] takes something of.
pub(crate) const TAKES: usize = 3;

/// So many cells, each of which takes up to [`TAKES`] nodes' results.
pub(crate) fn plain_cells(count: usize) -> Cells {
    let mut cells = Cells::new();
    for index in 0..count {
        let ports = (0..TAKES).fold(Ports::new().output("y", 1), |ports, at| {
            ports.input(format!("x{at}"), 1)
        });
        cells.add(Named::new(&format!("plain{index}"), ports));
    }
    cells
}

/// Adds a node of a cell of [`plain_cells`] that takes these nodes' results.
pub(crate) fn plain_node(graph: &mut Graph, cell: usize, from: &[usize]) -> NodeId {
    let mut sources = [Source::Zeros; TAKES];
    for (source, &from) in sources.iter_mut().zip(from) {
        *source = NodeId::new(from).output(0);
    }
    graph.node(CellId::new(cell as u32), &sources)
}

/// A chain of so many nodes of cell 0 of [`plain_cells`], then of cell 1, and so on.
pub(crate) fn plain_chain(lengths: &[usize]) -> Graph {
    let mut graph = Graph::new();
    for (cell, &length) in lengths.iter().enumerate() {
        for _ in 0..length {
            let from: Vec<usize> = graph.len().checked_sub(1).into_iter().collect();
            plain_node(&mut graph, cell, &from);
        }
    }
    graph
}

/// A complete binary tree: the leaves first, of cell 0; the others of cell 1.
pub(crate) fn complete_tree(leaves: usize) -> Graph {
    let mut graph = Graph::new();
    let mut level: Vec<usize> = (0..leaves)
        .map(|_| plain_node(&mut graph, 0, &[]).index())
        .collect();
    while level.len() > 1 {
        let pairs = level.chunks(2);
        level = pairs
            .map(|pair| plain_node(&mut graph, 1, pair).index())
            .collect();
    }
    graph
}

/// A graph without circles, whose nodes are in an order of their own: sources may name later nodes.
pub(crate) fn random_graph(rng: &mut fastrand::Rng, cells: usize, max: usize) -> Graph {
    let nodes = rng.usize(1..=max);
    // `place[n]`: where node n stands in a topological order.
    let mut place: Vec<usize> = (0..nodes).collect();
    if rng.bool() {
        rng.shuffle(&mut place);
    }
    let mut at = vec![0; nodes];
    for (node, &place) in place.iter().enumerate() {
        at[place] = node;
    }
    let near = rng.usize(1..6);
    let mut graph = Graph::new();
    for &place in &place {
        let takes = rng.usize(0..=TAKES.min(place));
        let from: Vec<usize> = (0..takes)
            .map(|_| at[rng.usize(place.saturating_sub(near)..place)])
            .collect();
        plain_node(&mut graph, rng.usize(0..cells), &from);
    }
    graph
}

/// Who takes something of whom, from the sources themselves.
pub(crate) fn takes_of(graph: &Graph, node: usize) -> Vec<usize> {
    let sources = graph.sources(NodeId::new(node)).iter();
    let mut from: Vec<usize> = sources
        .filter_map(|source| match *source {
            Source::Node { node, .. } => Some(node.index()),
            _ => None,
        })
        .collect();
    from.sort_unstable();
    from.dedup();
    from
}
