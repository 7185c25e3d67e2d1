//! Unbatched execution of a request, one node at a time: the specification of its response. Batched
//! execution must return the same bits.

use crate::cell_graph::{
    Batch, CellError, CellId, Cells, DynamicGraph, Graph, GraphError, Growth, NodeId, NodeOutputs,
    Ports, PreparedCell, Resident, Source, WorkerEnv,
};
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream_scheduler::engine::EngineGrowth;

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnbatchedError {
    /// Its graph, or an addition to it, was refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A cell could not be prepared or failed, or the `DynamicGraph` ended the request.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// Runs one request: each node in a batch of one row, when its sources are computed. Prepares all
/// cells first; [`UnbatchedRunner`] does so once for several requests.
///
/// # Errors
/// [`UnbatchedError`]: an invalid graph, or the error of a cell or of `grow`.
pub fn run_unbatched(
    cells: &Cells,
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
) -> Result<Vec<f32>, UnbatchedError> {
    UnbatchedRunner::new(cells)?.run(graph, grow)
}

/// Cells that are prepared for [`run_unbatched`].
pub struct UnbatchedRunner {
    cells: Cells,
    prepared: Vec<Box<dyn PreparedCell>>,
}

impl UnbatchedRunner {
    /// Prepares all cells, on one thread and for one row.
    ///
    /// # Errors
    /// The error of a cell.
    pub fn new(cells: &Cells) -> Result<UnbatchedRunner, UnbatchedError> {
        let team = Team::with_threads(1).map_err(CellError::new)?;
        let env = WorkerEnv::one_step(SharedTeam::new(team), 1);
        let prepared: Result<_, CellError> =
            cells.iter().map(|(_, cell)| cell.prepare(&env)).collect();
        Ok(UnbatchedRunner {
            cells: cells.clone(),
            prepared: prepared?,
        })
    }

    /// As [`run_unbatched`].
    ///
    /// # Errors
    /// As [`run_unbatched`].
    pub fn run(
        &mut self,
        graph: Graph,
        grow: Option<Box<dyn DynamicGraph>>,
    ) -> Result<Vec<f32>, UnbatchedError> {
        let mut walk = Walk::new(&self.cells, graph, grow)?;
        loop {
            let Some(node) = walk.ready().next() else {
                return Ok(walk.answer());
            };
            let cell = walk.graph.cell(node);
            let prepared = &mut *self.prepared[cell.index()];
            let reads = walk.reads(node);
            let outputs = match self.cells.get(cell) {
                Some(cell) if cell.ports().has_sequences() => {
                    let widths = walk.graph.written_widths(node, cell.ports());
                    run_sequences(cell.ports(), prepared, reads, widths)?
                }
                _ => {
                    let outputs = run_rows(&self.cells, prepared, cell, &[reads])?;
                    outputs.into_iter().next().unwrap_or_default()
                }
            };
            walk.give(node, outputs)?;
        }
    }
}

/// Runs a cell on rows that each have the values of all read ports. Returns the results of each.
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

/// Runs a cell with sequences on one row of values of all read ports, for results of these widths.
fn run_sequences(
    ports: &Ports,
    prepared: &mut dyn PreparedCell,
    mut reads: Vec<Vec<f32>>,
    widths: impl Iterator<Item = usize>,
) -> Result<Vec<Vec<f32>>, CellError> {
    let mut written = reads.split_off(ports.inputs().len());
    written.extend(widths.skip(written.len()).map(|width| vec![0.0; width]));
    let inputs: Vec<[&[f32]; 1]> = reads.iter().map(|values| [&values[..]]).collect();
    let inputs = inputs.iter().map(|row| RowsRef::gathered(row)).collect();
    let mut rows: Vec<[&mut [f32]; 1]> =
        written.iter_mut().map(|values| [&mut values[..]]).collect();
    let rows = rows.iter_mut().map(|row| RowsMut::gathered(row)).collect();
    prepared.run(&mut Batch::of_rows(ports, 1, None, inputs, rows))?;
    Ok(written)
}

/// A request in execution.
pub(super) struct Walk<'c> {
    cells: &'c Cells,
    pub graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    resident: Resident,
    /// The results of each computed node.
    outputs: Vec<Option<Vec<Vec<f32>>>>,
}

impl<'c> Walk<'c> {
    pub fn new(
        cells: &'c Cells,
        graph: Graph,
        grow: Option<Box<dyn DynamicGraph>>,
    ) -> Result<Walk<'c>, UnbatchedError> {
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

    /// The nodes that can be computed now.
    pub fn ready(&self) -> impl Iterator<Item = NodeId> {
        let waiting = (0..self.outputs.len()).filter(|&node| self.outputs[node].is_none());
        let is_there = |source: &Source| match *source {
            Source::Node { node, .. } => self.outputs[node.index()].is_some(),
            Source::Zeros | Source::Given { .. } => true,
        };
        let nodes = waiting.map(NodeId::new);
        nodes.filter(move |node| self.graph.sources(*node).iter().all(is_there))
    }

    /// The values that a node reads, port by port.
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

    /// Stores the results of a node, and grows the graph if the node is watched.
    pub fn give(&mut self, node: NodeId, outputs: Vec<Vec<f32>>) -> Result<(), UnbatchedError> {
        if self.graph.watched().contains(&node)
            && let Some(grow) = &mut self.grow
        {
            let before = self.graph.mark();
            let rows: Vec<&[f32]> = outputs.iter().map(Vec::as_slice).collect();
            let mut more = Growth::new(&mut self.graph);
            grow.grow(node, NodeOutputs::new(&rows), &mut more);
            debug_assert!(more.take_deferred().is_empty(), "only streams defer");
            if let Some(why) = more.failure() {
                return Err(why.clone().into());
            }
            (self.resident).grown(self.cells, &self.graph, before, Some(node))?;
            self.outputs.resize(self.graph.len(), None);
        }
        self.outputs[node.index()] = Some(outputs);
        Ok(())
    }

    /// The response, when no node is left.
    pub fn answer(&self) -> Vec<f32> {
        let answers = self.graph.answers().iter();
        answers.flat_map(|source| self.value(source)).collect()
    }
}
