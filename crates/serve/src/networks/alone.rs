//! The specification of a request's answer: its graph, one node after the other, each alone.
//!
//! No batch, no schedule, no other request: whoever serves a request must answer with these bits.

use crate::cell_graph::{
    Batch, CellError, CellId, Cells, DynamicGraph, Graph, GraphError, Growth, NodeId, NodeOutputs,
    PreparedCell, Resident, Source, WorkerEnv,
};
use cellstream::execute::team::{SharedTeam, Team};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AloneError {
    /// Its graph, or what was added to it, was refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A cell could not be made ready or did not compute, or what grew the graph ended the request.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// Answers one request by itself: each node, as soon as what it takes is there, by its cell with a batch of
/// one. Makes all cells ready first; [`Alone`] does so once for several requests.
///
/// # Errors
/// What is wrong with the graph; what a cell, or `grow`, ended the request with.
pub fn run_alone(
    cells: &Cells,
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
) -> Result<Vec<f32>, AloneError> {
    Alone::new(cells)?.run(graph, grow)
}

/// Cells made ready for [`run_alone`].
pub struct Alone {
    cells: Cells,
    prepared: Vec<Box<dyn PreparedCell>>,
}

impl Alone {
    /// Makes all cells ready, on one thread and for one row.
    ///
    /// # Errors
    /// Why one could not be.
    pub fn new(cells: &Cells) -> Result<Alone, AloneError> {
        let team = Team::with_threads(1).map_err(CellError::new)?;
        let env = WorkerEnv {
            team: SharedTeam::new(team),
            rows: 1,
            steps: 1,
        };
        let prepared: Result<_, CellError> =
            cells.iter().map(|(_, cell)| cell.prepare(&env)).collect();
        Ok(Alone {
            cells: cells.clone(),
            prepared: prepared?,
        })
    }

    /// As [`run_alone`].
    ///
    /// # Errors
    /// As [`run_alone`].
    pub fn run(
        &mut self,
        graph: Graph,
        grow: Option<Box<dyn DynamicGraph>>,
    ) -> Result<Vec<f32>, AloneError> {
        let mut walk = Walk::new(&self.cells, graph, grow)?;
        loop {
            let Some(node) = walk.ready().next() else {
                return Ok(walk.answer());
            };
            let cell = walk.graph.cell(node);
            let outputs = run_rows(
                &self.cells,
                &mut *self.prepared[cell.index()],
                cell,
                &[walk.reads(node)],
            )?;
            walk.give(node, outputs.into_iter().next().unwrap_or_default())?;
        }
    }
}

/// Runs a cell on some rows, of which each holds what it takes, port by port. Returns what each gives.
pub(super) fn run_rows(
    cells: &Cells,
    prepared: &mut dyn PreparedCell,
    cell: CellId,
    rows: &[Vec<Vec<f32>>],
) -> Result<Vec<Vec<Vec<f32>>>, CellError> {
    let cell = (cells.get(cell)).ok_or_else(|| CellError::new("there is no such cell"))?;
    let ports = cell.ports();
    let mut taken = (0..ports.reads().len())
        .map(|port| {
            rows.iter()
                .flat_map(|row| row[port].iter().copied())
                .collect()
        })
        .collect::<Vec<Vec<f32>>>();
    let mut states = taken.split_off(ports.inputs().len());
    let outputs = ports.outputs().iter();
    let mut outputs: Vec<_> = outputs.map(|p| vec![0.0; rows.len() * p.width()]).collect();
    let mut batch = Batch::new(ports, rows.len(), &taken, &mut states, &mut outputs);
    prepared.run(&mut batch)?;
    states.append(&mut outputs);
    let row = |row: usize| {
        let gives = ports.writes().zip(&states);
        gives
            .map(|(port, values)| values[row * port.width()..][..port.width()].to_vec())
            .collect()
    };
    Ok((0..rows.len()).map(row).collect())
}

/// A request on its way.
pub(super) struct Walk<'c> {
    cells: &'c Cells,
    pub graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    resident: Resident,
    /// What each node gave, once it has.
    outputs: Vec<Option<Vec<Vec<f32>>>>,
}

impl<'c> Walk<'c> {
    pub fn new(
        cells: &'c Cells,
        graph: Graph,
        grow: Option<Box<dyn DynamicGraph>>,
    ) -> Result<Walk<'c>, AloneError> {
        graph.unfold(cells)?;
        graph.check_watched(grow.is_some())?;
        Ok(Walk {
            cells,
            resident: Resident::of(cells, &graph),
            outputs: vec![None; graph.len()],
            graph,
            grow,
        })
    }

    /// Nodes that can be computed now.
    pub fn ready(&self) -> impl Iterator<Item = NodeId> {
        let waiting = (0..self.outputs.len()).filter(|&node| self.outputs[node].is_none());
        let is_there = |source: &Source| match *source {
            Source::Node { node, .. } => self.outputs[node.index()].is_some(),
            Source::Zeros | Source::Given { .. } => true,
        };
        let nodes = waiting.map(NodeId::new);
        nodes.filter(move |node| self.graph.sources(*node).iter().all(is_there))
    }

    /// What a node takes, port by port.
    pub fn reads(&self, node: NodeId) -> Vec<Vec<f32>> {
        let cell = self.cells.get(self.graph.cell(node));
        let widths = cell.map(|cell| cell.ports().reads().map(|port| port.width()));
        let both = self
            .graph
            .sources(node)
            .iter()
            .zip(widths.into_iter().flatten());
        both.map(|(source, width)| match source {
            Source::Zeros => vec![0.0; width],
            other => self.value(other),
        })
        .collect()
    }

    fn value(&self, source: &Source) -> Vec<f32> {
        match *source {
            Source::Zeros => Vec::new(),
            Source::Given { first, width } => self.graph.given()[first..first + width].to_vec(),
            Source::Node { node, port } => {
                let outputs = self.outputs[node.index()].as_ref();
                outputs.map_or(Vec::new(), |outputs| outputs[port].clone())
            }
        }
    }

    /// Takes what a node gave, and grows the graph where the node is watched.
    pub fn give(&mut self, node: NodeId, outputs: Vec<Vec<f32>>) -> Result<(), AloneError> {
        if self.graph.watched().contains(&node)
            && let Some(grow) = &mut self.grow
        {
            let before = self.graph.mark();
            let rows: Vec<&[f32]> = outputs.iter().map(Vec::as_slice).collect();
            let mut more = Growth::new(&mut self.graph);
            grow.grow(node, NodeOutputs::new(&rows), &mut more);
            debug_assert!(more.take_deferred().is_empty(), "only streams put off");
            if let Some(why) = more.failure() {
                return Err(why.clone().into());
            }
            (self.resident).grown(self.cells, &self.graph, before, Some(node))?;
            self.outputs.resize(self.graph.len(), None);
        }
        self.outputs[node.index()] = Some(outputs);
        Ok(())
    }

    /// The answer, once no node is left.
    pub fn answer(&self) -> Vec<f32> {
        let answers = self.graph.answers().iter();
        answers.flat_map(|source| self.value(source)).collect()
    }
}
