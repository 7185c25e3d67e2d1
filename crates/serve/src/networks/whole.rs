//! Whole sequences: a model over a sequence, in one node.

use std::sync::Arc;

use super::error::{expect, rows_of};
use super::recurrent::Recurrent;
use super::{NetworkError, Outputs};
use crate::cell_graph::{
    Batch, Cell, CellCost, CellError, CellId, Cells, Graph, Ports, PreparedCell, Source, WorkerEnv,
};
use gatestream::execute::{Backend, PreparedModel};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::model::{Direction, Input, Layer, Layout, Model, Output};
use gatestream::plan::Plan;

/// A run of a model over a whole sequence: of any layers, also reverse and bidirectional ones.
///
/// Input sequence `x` `[T, E]`; inputs `h0` and, of a model with LSTM layers, `c0`: the initial
/// states of all layers and directions, one after the other, as in
/// [`Input`](gatestream::model::Input). Output sequence `y` `[T, output]`; outputs `last`, the last
/// element of `y`, and `hn`, `cn`, the final states.
///
/// Requests of different lengths share a batch. A forward model is served better as a
/// [`Chain`](super::Chain), whose requests join and leave at every step.
pub struct WholeCell {
    name: String,
    recurrent: Recurrent,
    max_steps: usize,
    ports: Ports,
}

impl WholeCell {
    /// Runs of `model` over up to `max_steps` steps, with estimated plans for all batch sizes.
    ///
    /// No other batch of the worker starts while one of this cell runs, so `max_steps` and the rows
    /// of a batch ([`ModelOptions::sizes`](crate::engine::ModelOptions::sizes)) bound the wait of
    /// others. Each worker allocates the buffers of that many steps and rows.
    pub fn new(model: impl Into<Arc<Model>>, max_steps: usize) -> WholeCell {
        let recurrent = Recurrent::whole(model.into());
        let signature = recurrent.model().signature();
        let cells = (signature.cell_state > 0).then_some(signature.cell_state);
        let ports = Ports::new()
            .input_sequence("x", signature.input)
            .input("h0", signature.hidden_state);
        let ports = cells
            .into_iter()
            .fold(ports, |ports, c| ports.input("c0", c));
        let ports = ports
            .output_sequence("y", signature.output)
            .output("last", signature.output)
            .output("hn", signature.hidden_state);
        let ports = cells
            .into_iter()
            .fold(ports, |ports, c| ports.output("cn", c));
        WholeCell {
            name: "whole".into(),
            recurrent,
            max_steps,
            ports,
        }
    }

    pub(super) fn recurrent(&self) -> &Recurrent {
        &self.recurrent
    }

    /// Sizes of the final hidden states and, with LSTM layers, of the final cell states.
    pub(super) fn states(&self) -> Vec<usize> {
        let inputs = &self.ports.inputs()[1..];
        inputs.iter().map(|port| port.width()).collect()
    }

    /// Sets the name in errors and reports; `whole` by default.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> WholeCell {
        self.name = name.into();
        self
    }

    /// Uses this plan instead of an estimated one, as
    /// [`ChainCell::with_plan`](super::ChainCell::with_plan). It should be measured with the usual
    /// numbers of steps.
    ///
    /// # Errors
    /// [`NetworkError::Plan`].
    pub fn with_plan(mut self, plan: Plan) -> Result<WholeCell, NetworkError> {
        self.recurrent.with_plan(plan)?;
        Ok(self)
    }

    /// Runs on this backend instead of the cores of each worker.
    #[must_use]
    pub fn with_backend(mut self, backend: Arc<dyn Backend>) -> WholeCell {
        self.recurrent.with_backends(vec![backend]);
        self
    }
}

impl Cell for WholeCell {
    fn name(&self) -> &str {
        &self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn cost(&self) -> CellCost {
        self.recurrent.cost()
    }

    fn check_lengths(&self, inputs: &[usize], outputs: &[usize]) -> Result<(), CellError> {
        let (steps, max) = (inputs[0], self.max_steps);
        if steps > max {
            let why = format!("the sequence has {steps} steps; the maximum is {max}");
            return Err(CellError::new(why));
        }
        if outputs[0] == steps {
            Ok(())
        } else {
            Err(CellError::new("`y` has as many elements as `x`"))
        }
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let steps = self.max_steps.max(1);
        let model = self.recurrent.prepare_whole(env, steps)?;
        let layers = self.recurrent.model().layers().iter();
        let sizes = |size: fn(&Direction) -> usize| -> Vec<usize> {
            let directions = layers.clone().flat_map(Layer::directions);
            directions.map(size).collect()
        };
        let signature = model.signature();
        let room = |values: usize| Vec::with_capacity(env.rows * values);
        Ok(Box::new(Prepared {
            x: room(steps * signature.input),
            y: room(steps * signature.output),
            lengths: Vec::with_capacity(env.rows),
            h: States::new(sizes(Direction::output_size), env.rows),
            c: States::new(sizes(Direction::cell_state_size), env.rows),
            model,
        }))
    }
}

/// The model with buffers of a batch.
struct Prepared {
    model: Box<dyn PreparedModel>,
    /// `[rows, steps, E]`.
    x: Vec<f32>,
    /// `[rows, steps, output]`.
    y: Vec<f32>,
    /// Steps of each row.
    lengths: Vec<usize>,
    h: States,
    c: States,
}

/// Hidden or cell states of a batch: a block `[rows, size]` for each layer and direction.
struct States {
    sizes: Vec<usize>,
    /// Before the run.
    first: Vec<f32>,
    /// After it.
    last: Vec<f32>,
}

impl States {
    fn new(sizes: Vec<usize>, rows: usize) -> States {
        let room = || Vec::with_capacity(rows * sizes.iter().sum::<usize>());
        States {
            first: room(),
            last: room(),
            sizes,
        }
    }

    /// Copies the initial states of `rows` rows.
    fn load(&mut self, rows: usize, from: RowsRef<'_>) {
        let width: usize = self.sizes.iter().sum();
        self.first.clear();
        let mut begin = 0;
        for size in &self.sizes {
            for row in 0..rows {
                let row = &from.row(row, width)[begin..][..*size];
                self.first.extend_from_slice(row);
            }
            begin += size;
        }
        self.last.resize(self.first.len(), 0.0);
    }

    /// Copies the final states of a row.
    fn store(&self, row: usize, rows: usize, mut to: &mut [f32]) {
        let mut begin = 0;
        for &size in &self.sizes {
            let (of, others) = to.split_at_mut(size);
            of.copy_from_slice(&self.last[begin + row * size..][..size]);
            (begin, to) = (begin + rows * size, others);
        }
    }
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let (rows, signature) = (batch.rows(), self.model.signature());
        let has_cells = signature.cell_state > 0;
        let x = batch.input(0);
        self.lengths.clear();
        let lengths = (0..rows).map(|row| x.row_len(row) / signature.input.max(1));
        self.lengths.extend(lengths);
        let steps = self.lengths.iter().copied().max().unwrap_or(0);
        let x_size = steps * signature.input;
        self.x.resize(rows * x_size, 0.0);
        for (row, to) in self.x.chunks_exact_mut(x_size.max(1)).enumerate() {
            let len = self.lengths[row] * signature.input;
            to[..len].copy_from_slice(x.row(row, len));
        }
        self.y.resize(rows * steps * signature.output, 0.0);
        self.h.load(rows, batch.input(1));
        if has_cells {
            self.c.load(rows, batch.input(2));
        }
        let mut input = Input::new(&self.x, steps, rows)
            .layout(Layout::BatchMajor)
            .lengths(&self.lengths)
            .h0(&self.h.first);
        let mut output = Output::new(&mut self.y).hn(&mut self.h.last);
        if has_cells {
            input = input.c0(&self.c.first);
            output = output.cn(&mut self.c.last);
        }
        self.model
            .run(&input, &mut output)
            .map_err(CellError::new)?;
        let (_, written) = batch.written();
        for (port, to) in written.enumerate() {
            self.store(port, (rows, steps), to);
        }
        Ok(())
    }
}

impl Prepared {
    /// Copies the results of all rows to an output.
    fn store(&self, port: usize, (rows, steps): (usize, usize), mut to: RowsMut<'_>) {
        let signature = self.model.signature();
        for (row, &length) in self.lengths.iter().enumerate() {
            let y = &self.y[row * steps * signature.output..][..length * signature.output];
            match port {
                Y => to.row(row, y.len()).copy_from_slice(y),
                LAST => {
                    // Padding has no steps, and nobody reads it.
                    if let Some(last) = y.chunks_exact(signature.output.max(1)).last() {
                        to.row(row, last.len()).copy_from_slice(last);
                    }
                }
                HN => self.h.store(row, rows, to.row(row, signature.hidden_state)),
                _ => self.c.store(row, rows, to.row(row, signature.cell_state)),
            }
        }
    }
}

/// Output ports.
const Y: usize = 0;
const LAST: usize = 1;
const HN: usize = 2;
const CN: usize = 3;

/// A [`WholeCell`] in [`Cells`]; makes requests of sequences.
///
/// ```
/// use gatestream::model::{Lstm, Merge};
/// use gatestream_serve::cell_graph::Cells;
/// use gatestream_serve::networks::{Outputs, Whole, WholeCell, run_unbatched};
///
/// let model = Lstm::new(2, 8).bidirectional(Merge::Concat).random(1)?;
/// let mut cells = Cells::new();
/// let whole = Whole::add(&mut cells, WholeCell::new(model, 100)); // up to 100 steps
/// // Three steps of two features each; the response is the output of all steps.
/// let graph = whole.unfold(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None, Outputs::Each)?;
/// assert_eq!(run_unbatched(&cells, graph, None)?.len(), 3 * 2 * 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Whole {
    cell: CellId,
    input: usize,
    /// Values of `h0` and, if it has them, of `c0`.
    states: Vec<usize>,
}

impl Whole {
    /// Adds the cell.
    pub fn add(cells: &mut Cells, cell: WholeCell) -> Whole {
        Whole {
            input: cell.ports.inputs()[0].width(),
            states: cell.states(),
            cell: cells.add(cell),
        }
    }

    /// The cell.
    pub fn cell(&self) -> CellId {
        self.cell
    }

    /// The port of the output sequence.
    pub fn y(&self) -> usize {
        Y
    }

    /// The port of the output of the last step.
    pub fn last(&self) -> usize {
        LAST
    }

    /// The port of the final hidden states of all layers and directions.
    pub fn hn(&self) -> usize {
        HN
    }

    /// The port of the final cell states; `None` without LSTM layers.
    pub fn cn(&self) -> Option<usize> {
        (self.states.len() > 1).then_some(CN)
    }

    /// The graph of a sequence `xs` `[T, E]`, from `initial` states `h0` and, with LSTM layers,
    /// `c0`, or from zeros. The response is the output of the last step, or of all: `[T, output]`.
    /// Its only node is number 0: `graph.answer(NodeId::new(0).output(whole.hn()))` adds the final
    /// hidden states to the response.
    ///
    /// A reverse direction has read only the last element of the sequence at its last step; the
    /// final states have read all of it in each direction.
    ///
    /// # Errors
    /// [`NetworkError::Empty`] for a sequence without steps, [`NetworkError::Rows`],
    /// [`NetworkError::Values`]. An engine refuses a sequence that is too long.
    pub fn unfold(
        &self,
        xs: &[f32],
        initial: Option<&[&[f32]]>,
        outputs: Outputs,
    ) -> Result<Graph, NetworkError> {
        let steps = rows_of("xs", "step", xs.len(), self.input)?;
        let mut graph = Graph::new();
        let mut sources = vec![Source::Zeros; 1 + self.states.len()];
        sources[0] = graph.give(xs);
        if let Some(initial) = initial {
            expect("initial states", initial.len(), self.states.len())?;
            for ((state, size), source) in initial.iter().zip(&self.states).zip(&mut sources[1..]) {
                expect("initial state", state.len(), *size)?;
                *source = graph.give(state);
            }
        }
        let node = graph.node_of_lengths(self.cell, &sources, &[steps]);
        graph.answer(node.output(match outputs {
            Outputs::Last => LAST,
            Outputs::Each => Y,
        }));
        Ok(graph)
    }
}
