//! Chains: a model over a sequence, one node per step.

use std::sync::Arc;

use super::error::{expect, rows_of};
use super::recurrent::Recurrent;
use super::{NetworkError, Outputs};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, Graph, Growth, NodeId, Ports, PreparedCell,
    RowLayout, Source, WorkerEnv,
};
use gatestream::execute::{Backend, PreparedModel, ResidentModel, ResidentRoom};
use gatestream::model::Model;
use gatestream::plan::Plan;

/// One step of all layers of a forward model: of any cells, with projections or without.
///
/// Input `x` `[E]`; states `h0`, `c0`, `h1`, … `[size]`: for each layer the hidden state and, of an
/// LSTM, the cell state; output `y`, the hidden state of the last layer.
pub struct ChainCell {
    name: String,
    recurrent: Recurrent,
    ports: Ports,
}

impl ChainCell {
    /// A step of `model`, with estimated plans for all batch sizes.
    ///
    /// # Errors
    /// [`NetworkError::Reverse`].
    pub fn new(model: impl Into<Arc<Model>>) -> Result<ChainCell, NetworkError> {
        let recurrent = Recurrent::new(model.into())?;
        let signature = recurrent.model().signature();
        let ports = Ports::new().input("x", signature.input);
        let ports = recurrent.add_states(ports).output("y", signature.output);
        Ok(ChainCell {
            name: "chain".into(),
            recurrent,
            ports,
        })
    }

    /// Sets the name in errors and reports; `chain` by default.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> ChainCell {
        self.name = name.into();
        self
    }

    /// Uses this plan instead of an estimated one. It should be measured with one and with a few
    /// steps (`gatestream tune --steps 1,4`) of several batch sizes. Batches have the rows that it
    /// recommends, unless [`EngineOptions::sizes`](crate::engine::EngineOptions) are set. A worker
    /// with fewer threads than the plan refuses it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use gatestream::model::Lstm;
    /// use gatestream::plan::Plan;
    /// use gatestream_serve::networks::ChainCell;
    ///
    /// let model = Arc::new(Lstm::new(8, 32).random(1)?);
    /// // From a file: Plan::load("model.plan", &model)?
    /// let plan = Plan::estimate(&model, 4, 1, 1);
    /// let cell = ChainCell::new(Arc::clone(&model))?.with_plan(plan)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NetworkError::Plan`].
    pub fn with_plan(mut self, plan: Plan) -> Result<ChainCell, NetworkError> {
        self.recurrent.with_plan(plan)?;
        Ok(self)
    }

    /// Runs on this backend instead of the cores of each worker. States stay on its device, if it
    /// [keeps](Backend::prepare_resident) them.
    #[must_use]
    pub fn with_backend(self, backend: Arc<dyn Backend>) -> ChainCell {
        self.with_backends([backend])
    }

    /// Runs on several backends, such as the GPUs of a machine: worker `w` on the backend `w`, and
    /// so on in turn if there are more workers. The steps of a request stay on one while it has
    /// some in flight.
    #[must_use]
    pub fn with_backends(
        mut self,
        backends: impl IntoIterator<Item = Arc<dyn Backend>>,
    ) -> ChainCell {
        self.recurrent.with_backends(backends.into_iter().collect());
        self
    }
}

impl Cell for ChainCell {
    fn name(&self) -> &str {
        &self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        self.recurrent.cost()
    }

    fn supports_multiple_steps(&self) -> bool {
        true
    }

    fn layout(&self) -> RowLayout {
        RowLayout::GatheredInputs
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let model = self.recurrent.prepare(env)?;
        Ok(Box::new(Prepared { model }))
    }

    fn prepare_resident(
        &self,
        env: &WorkerEnv,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, CellError> {
        self.recurrent.prepare_resident(env, room, None, None)
    }
}

struct Prepared {
    model: Box<dyn PreparedModel>,
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let steps = batch.session_steps(batch.input(0));
        let (mut states, mut outputs) = batch.written();
        let stepped = self.model.step_rows(steps, &mut states, outputs.next());
        stepped.map_err(CellError::new)
    }
}

/// A [`ChainCell`] in [`Cells`]; unfolds sequences.
///
/// ```
/// use gatestream::model::Gru;
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{Outputs, Chain, ChainCell, run_unbatched};
///
/// let mut cells = Cells::new();
/// let chain = Chain::add(&mut cells, ChainCell::new(Gru::new(2, 8).random(1)?)?);
/// // Three steps of two features each; the response is the output of the last step.
/// let graph = chain.unfold(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None, Outputs::Last)?;
/// assert_eq!(run_unbatched(&cells, graph, None)?.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chain {
    cell: CellId,
    input: usize,
    states: Vec<usize>,
}

/// The outputs and states of a response.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainResponse<'a> {
    /// Of the last step, or of all: `[T, output]`.
    pub outputs: &'a [f32],
    /// The states after the last step, in the order of the ports of [`ChainCell`].
    pub states: Vec<&'a [f32]>,
}

impl Chain {
    /// Adds the cell.
    pub fn add(cells: &mut Cells, cell: ChainCell) -> Chain {
        let (input, states) = (
            cell.recurrent.model().signature().input,
            cell.recurrent.states(),
        );
        Chain {
            cell: cells.add(cell),
            input,
            states,
        }
    }

    /// The cell.
    pub fn cell(&self) -> CellId {
        self.cell
    }

    /// The port of the output `y`, after those of the states.
    pub fn y(&self) -> usize {
        self.states.len()
    }

    /// The graph of a sequence `xs` `[T, E]`, from `initial` states, one for each state of the
    /// cell, or from zeros. The response is the output of the last step, or of all: `[T, output]`.
    ///
    /// # Errors
    /// [`NetworkError::Empty`] for a sequence without steps, [`NetworkError::Rows`],
    /// [`NetworkError::Values`].
    pub fn unfold(
        &self,
        xs: &[f32],
        initial: Option<&[&[f32]]>,
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        let (mut graph, nodes) = self.nodes(xs, initial)?;
        let answered = match outputs {
            Outputs::Last => nodes - 1..nodes,
            Outputs::Each => 0..nodes,
        };
        for node in answered {
            graph.answer(NodeId::new(node).output(self.y()));
        }
        Ok(graph)
    }

    /// As [`Chain::unfold`]; after the outputs, the response has the states after the last step
    /// ([`Chain::split`]). A later request that starts from them continues this one, with the same
    /// bits as one request of all steps.
    ///
    /// ```
    /// use gatestream::model::Lstm;
    /// use gatestream_serve::Engine;
    /// use gatestream_serve::cell_graph::Cells;
    /// use gatestream_serve::engine::{EngineOptions, Request};
    /// use gatestream_serve::networks::{Chain, ChainCell, Outputs};
    ///
    /// let mut cells = Cells::new();
    /// let chain = Chain::add(&mut cells, ChainCell::new(Lstm::new(1, 8).random(1)?)?);
    /// let engine = Engine::start(cells, &EngineOptions::default())?;
    /// let run = |xs: &[f32], initial: Option<&[&[f32]]>| {
    ///     let graph = chain.unfold_with_states(xs, initial, Outputs::Last)?;
    ///     Ok::<_, Box<dyn std::error::Error>>(engine.submit(Request::new(graph))?.wait()?.values)
    /// };
    /// let first = run(&[0.1, 0.2], None)?;
    /// let second = run(&[0.3], Some(&chain.split(&first)?.states))?;
    /// assert_eq!(second, run(&[0.1, 0.2, 0.3], None)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Chain::unfold`].
    pub fn unfold_with_states(
        &self,
        xs: &[f32],
        initial: Option<&[&[f32]]>,
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        let mut graph = self.unfold(xs, initial, outputs)?;
        let last = NodeId::new(graph.len() - 1);
        for state in 0..self.states.len() {
            graph.answer(last.output(state));
        }
        Ok(graph)
    }

    /// The parts of a response to [`Chain::unfold_with_states`].
    ///
    /// # Errors
    /// [`NetworkError::Values`] if the response has fewer values than the states.
    pub fn split<'a>(&self, response: &'a [f32]) -> Result<ChainResponse<'a>, NetworkError> {
        let width: usize = self.states.iter().sum();
        // All of a shorter one, so that it is refused.
        let outputs = response.len().saturating_sub(width);
        expect("response", response.len(), outputs + width)?;
        let (outputs, mut rest) = response.split_at(outputs);
        let states = self.states.iter().map(|&size| {
            let (state, after) = rest.split_at(size);
            rest = after;
            state
        });
        Ok(ChainResponse {
            states: states.collect(),
            outputs,
        })
    }

    /// The first steps of a stream: as [`Chain::unfold`], without a response and with the last node
    /// watched, so that the request's [`DynamicGraph`](crate::cell_graph::DynamicGraph) reads its
    /// output and adds the next step ([`Chain::step`]).
    ///
    /// # Errors
    /// As [`Chain::unfold`].
    pub fn open(&self, xs: &[f32], initial: Option<&[&[f32]]>) -> Result<Graph, NetworkError> {
        let (mut graph, nodes) = self.nodes(xs, initial)?;
        graph.watch(NodeId::new(nodes - 1));
        Ok(graph)
    }

    /// Adds a step to a stream: `x` `[E]`, from the states of the watched node `before`. The new
    /// node is watched, too.
    ///
    /// ```
    /// use gatestream::model::Gru;
    /// use gatestream_serve::cell_graph::{Cells, NodeOutputs, DynamicGraph, Growth, NodeId};
    /// use gatestream_serve::networks::{Chain, ChainCell, run_unbatched};
    ///
    /// /// Repeats the input until the first output is positive, at most ten times.
    /// struct Until(Chain, usize);
    ///
    /// impl DynamicGraph for Until {
    ///     fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
    ///         let Until(chain, left) = self;
    ///         if outputs.port(chain.y())[0] > 0.0 || *left == 0 {
    ///             return more.answer(node.output(chain.y()));
    ///         }
    ///         *left -= 1;
    ///         if let Err(error) = chain.step(more, node, &[0.5]) {
    ///             more.fail(error);
    ///         }
    ///     }
    /// }
    ///
    /// let mut cells = Cells::new();
    /// let chain = Chain::add(&mut cells, ChainCell::new(Gru::new(1, 4).random(1)?)?);
    /// let graph = chain.open(&[0.5], None)?;
    /// let answer = run_unbatched(&cells, graph, Some(Box::new(Until(chain, 10))))?;
    /// assert_eq!(answer.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NetworkError::Values`] for another number of features.
    pub fn step(
        &self,
        more: &mut Growth<'_>,
        before: NodeId,
        x: &[f32],
    ) -> Result<NodeId, NetworkError> {
        expect("x", x.len(), self.input)?;
        let mut sources = vec![more.give(x)];
        sources.extend((0..self.states.len()).map(|state| before.output(state)));
        let node = more.node(self.cell, &sources);
        more.watch(node);
        Ok(node)
    }

    /// The graph with a node for each step, and the number of steps.
    fn nodes(
        &self,
        xs: &[f32],
        initial: Option<&[&[f32]]>,
    ) -> Result<(Graph, usize), NetworkError> {
        let steps = rows_of("xs", "step", xs.len(), self.input)?;
        let mut graph = Graph::new();
        let mut sources = vec![Source::Zeros; 1 + self.states.len()];
        if let Some(initial) = initial {
            expect("initial states", initial.len(), self.states.len())?;
            for ((state, size), source) in initial.iter().zip(&self.states).zip(&mut sources[1..]) {
                expect("initial state", state.len(), *size)?;
                *source = graph.give(state);
            }
        }
        for x in xs.chunks_exact(self.input) {
            sources[0] = graph.give(x);
            let node = graph.node(self.cell, &sources);
            for (state, source) in sources[1..].iter_mut().enumerate() {
                *source = node.output(state);
            }
        }
        Ok((graph, steps))
    }
}
