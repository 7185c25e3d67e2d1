//! Cells: batched computations that own their weights (BatchMaker, section 4.2).
//!
//! The first dimension of each input and output is the batch. A cell does not depend on the choice
//! of rows in a batch.

use std::fmt;
use std::sync::Arc;

use super::{CellCost, Ports};
use gatestream::execute::team::SharedTeam;
use gatestream::execute::{ResidentModel, ResidentRoom, Steps};
use gatestream::kernels::{RowsMut, RowsRef};

/// Why a cell could not be prepared, or did not compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CellError(String);

impl CellError {
    /// An error with the message `why`.
    pub fn new(why: impl fmt::Display) -> CellError {
        CellError(why.to_string())
    }
}

/// The environment that a cell is prepared for: that of one worker.
#[derive(Clone)]
pub struct WorkerEnv {
    /// The worker's team, on cores of its own. Cells of one worker run one after the other.
    pub team: SharedTeam,
    /// Maximum rows of a batch.
    pub rows: usize,
    /// Maximum steps of a batch, at least 1. More than 1 only if the cell [supports
    /// it](Cell::supports_multiple_steps).
    pub steps: usize,
    /// Maximum rows of all steps of a batch together; batches of one step may have more.
    pub step_rows: usize,
    /// The number of the worker, from 0: of several devices a cell uses one for each worker.
    pub worker: usize,
    /// Maximum number of tasks that the worker gets at once, further steps not counted.
    pub tasks_at_once: usize,
}

impl WorkerEnv {
    /// The first worker, with batches of one step of up to `rows` rows.
    pub fn one_step(team: SharedTeam, rows: usize) -> WorkerEnv {
        WorkerEnv {
            team,
            rows,
            steps: 1,
            step_rows: rows,
            worker: 0,
            tasks_at_once: 1,
        }
    }
}

/// The memory layout of the rows of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowLayout {
    /// The rows of each port are in one buffer, one after the other, as [`Batch::split`] needs.
    #[default]
    Contiguous,
    /// Input rows are read in place, from the requests or from the buffers of other cells. States
    /// and outputs are contiguous; states keep their rows from step to step.
    GatheredInputs,
    /// Each row of every port is a separate buffer. Output buffers are passed to the reading node
    /// without a copy. For cells whose results other cells read, as in trees. Batches have one
    /// step.
    Gathered,
}

impl RowLayout {
    /// Whether the input rows are gathered.
    pub fn gathers_inputs(self) -> bool {
        self != RowLayout::Contiguous
    }
}

/// A cell type: a batched computation with its weights.
///
/// Independent nodes of one cell may be rows of one batch. Therefore the results of a row must not
/// depend on other rows, bit for bit. All cells of this crate have this property.
pub trait Cell: Send + Sync {
    /// The name in errors and reports.
    fn name(&self) -> &str;

    /// Its inputs, states and outputs.
    fn ports(&self) -> &Ports;

    /// The known costs of its batches, which are passed to the policy. An engine uses
    /// [`CellCost::rows`] unless its options set other sizes.
    fn cost(&self) -> CellCost {
        CellCost::default()
    }

    /// Whether a batch may contain several steps of a chain, which is useful if the cell then reads
    /// its weights less often. The results must equal those of single steps, bit for bit. A row
    /// keeps its states after its last step; its later outputs are ignored.
    fn supports_multiple_steps(&self) -> bool {
        false
    }

    /// The layout of its batches. Each batch has this layout or is contiguous, as in
    /// `gatestream_serve::networks::run_unbatched`. Ignored if it has sequences, whose rows
    /// are gathered.
    fn layout(&self) -> RowLayout {
        RowLayout::Contiguous
    }

    /// Checks a node, if the cell has sequences: the numbers of elements of its input sequences and
    /// of its output sequences, in the order of the ports. A request with a node that it refuses is
    /// refused when it is submitted; an error of [`PreparedCell::run`] would end all requests of
    /// the batch.
    ///
    /// # Errors
    /// [`CellError`] with the cause.
    fn check_lengths(&self, inputs: &[usize], outputs: &[usize]) -> Result<(), CellError> {
        let _ = (inputs, outputs);
        Ok(())
    }

    /// Packs the weights for a worker, and allocates the buffers.
    ///
    /// # Errors
    /// [`CellError`] with the cause.
    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError>;

    /// Prepares the cell on a device that keeps its states, if it has one; then
    /// [`prepare`](Cell::prepare) is not called. The cell has one input, the states of the
    /// [`ResidentModel`] and no output but that model's.
    ///
    /// # Errors
    /// [`CellError`] with the cause.
    fn prepare_resident(
        &self,
        env: &WorkerEnv,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, CellError> {
        let _ = (env, room);
        Ok(None)
    }
}

/// A cell that is ready to run on its worker.
pub trait PreparedCell: Send {
    /// Computes all rows of `batch`. Should not allocate.
    ///
    /// # Errors
    /// Ends all requests with a row in the batch, at any of its steps; the worker continues. A
    /// panic does the same, and the cell is prepared again.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError>;
}

/// The rows that a cell computes: one step of each, or several if the cell [supports
/// it](Cell::supports_multiple_steps).
pub struct Batch<'a> {
    rows: usize,
    steps: usize,
    /// Steps of each row; `None` if each has one.
    lengths: Option<&'a [usize]>,
    ports: &'a Ports,
    /// One per input.
    inputs: Vec<RowsRef<'a>>,
    /// One per state, then one per output.
    written: Vec<RowsMut<'a>>,
}

impl<'a> Batch<'a> {
    /// One step of the first `rows` rows of each buffer. Each port has a buffer, in the order of
    /// `ports`.
    ///
    /// # Panics
    /// If the number of buffers differs from that of ports, or a buffer has fewer rows.
    pub fn new(
        ports: &'a Ports,
        rows: usize,
        inputs: &'a [Vec<f32>],
        states: &'a mut [Vec<f32>],
        outputs: &'a mut [Vec<f32>],
    ) -> Batch<'a> {
        Batch::checked(ports, rows, None, inputs, states, outputs)
    }

    /// `lengths[r]` steps of each row `r`. Inputs and outputs are `[longest, rows, width]`. States
    /// are `[rows, width]`: those before the first step of a row, then those after its last.
    ///
    /// # Panics
    /// As [`Batch::new`].
    pub fn of_steps(
        ports: &'a Ports,
        lengths: &'a [usize],
        inputs: &'a [Vec<f32>],
        states: &'a mut [Vec<f32>],
        outputs: &'a mut [Vec<f32>],
    ) -> Batch<'a> {
        Batch::checked(ports, lengths.len(), Some(lengths), inputs, states, outputs)
    }

    fn checked(
        ports: &'a Ports,
        rows: usize,
        lengths: Option<&'a [usize]>,
        inputs: &'a [Vec<f32>],
        states: &'a mut [Vec<f32>],
        outputs: &'a mut [Vec<f32>],
    ) -> Batch<'a> {
        assert!(
            (inputs.len(), states.len(), outputs.len())
                == (
                    ports.inputs().len(),
                    ports.states().len(),
                    ports.outputs().len()
                ),
            "a buffer per port"
        );
        let all = rows * steps_of(lengths);
        let inputs = inputs.iter().zip(ports.inputs());
        let states = states.iter_mut().zip(ports.states());
        let outputs = outputs.iter_mut().zip(ports.outputs());
        let mut written: Vec<_> = states.map(|(of, port)| port.rows_mut(of, rows)).collect();
        written.extend(outputs.map(|(of, port)| port.rows_mut(of, all)));
        let inputs = inputs.map(|(of, port)| port.rows(of, all)).collect();
        Batch::of_rows(ports, rows, lengths, inputs, written)
    }

    /// Row views of each input, `[steps, rows]`, and of each state, `[rows]`, then of each output,
    /// `[steps, rows]`. Row `r` has `lengths[r]` steps, or one without `lengths`.
    ///
    /// The cell checks the rows that it uses.
    ///
    /// # Panics
    /// If the number of views differs from that of ports; in debug builds also if there are too few
    /// or too short rows.
    pub fn of_rows(
        ports: &'a Ports,
        rows: usize,
        lengths: Option<&'a [usize]>,
        inputs: Vec<RowsRef<'a>>,
        written: Vec<RowsMut<'a>>,
    ) -> Batch<'a> {
        let steps = steps_of(lengths);
        let states = ports.states().len();
        assert!(
            (inputs.len(), written.len()) == (ports.inputs().len(), ports.writes().len())
                && lengths.is_none_or(|lengths| lengths.len() == rows),
            "rows per port, and lengths of {rows} rows"
        );
        let inputs_fit = || {
            (inputs.iter().zip(ports.inputs()))
                .all(|(of, p)| of.fits(steps * rows, p.fixed_width()))
        };
        let written_fit = || {
            (written.iter().zip(ports.writes()).enumerate()).all(|(index, (of, port))| {
                let steps = if index < states { 1 } else { steps };
                of.fits(steps * rows, port.fixed_width())
            })
        };
        debug_assert!(
            inputs_fit() && written_fit(),
            "{steps} steps of {rows} rows per port"
        );
        Batch {
            rows,
            steps,
            lengths,
            ports,
            inputs,
            written,
        }
    }

    /// The lists of views, to be reused.
    pub fn into_lists(self) -> (Vec<RowsRef<'a>>, Vec<RowsMut<'a>>) {
        (self.inputs, self.written)
    }

    /// The rows of an input: view row `t * rows + r` is row `r` at step `t`.
    pub fn input(&self, port: usize) -> RowsRef<'a> {
        self.inputs[port]
    }

    /// The rows of each state, and those of each output: view row `t * rows + r` is row `r` at step
    /// `t`.
    #[allow(clippy::type_complexity)]
    pub fn written(
        &mut self,
    ) -> (
        impl ExactSizeIterator<Item = RowsMut<'_>>,
        impl ExactSizeIterator<Item = RowsMut<'_>>,
    ) {
        let (states, outputs) = self.written.split_at_mut(self.ports.states().len());
        (
            states.iter_mut().map(RowsMut::reborrow),
            outputs.iter_mut().map(RowsMut::reborrow),
        )
    }

    /// The rows of all states and then of all outputs.
    ///
    /// # Panics
    /// If `N` is not the number of states and outputs.
    pub fn written_rows<const N: usize>(&mut self) -> [RowsMut<'_>; N] {
        assert_eq!(N, self.written.len(), "states and outputs of the cell");
        let mut written = self.written.iter_mut();
        std::array::from_fn(|_| match written.next() {
            Some(rows) => rows.reborrow(),
            None => unreachable!("counted above"),
        })
    }

    /// The steps of this batch for a session whose input is `x`.
    pub fn session_steps(&self, x: RowsRef<'a>) -> Steps<'a> {
        match self.lengths {
            Some(lengths) => Steps::several(lengths, x),
            None => Steps::one(self.rows, x),
        }
    }

    /// Steps of the longest row.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Steps of each row; `None` if each has one.
    pub fn lengths(&self) -> Option<&'a [usize]> {
        self.lengths
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The buffers of all ports: inputs, states, outputs, each `[rows, width]`; with several steps,
    /// inputs and outputs are `[steps, rows, width]`.
    ///
    /// ```
    /// use gatestream_scheduler::cell_graph::{Batch, Ports};
    ///
    /// let ports = Ports::new().input("x", 2).state("sum", 1).output("twice", 2);
    /// let x = [vec![1.0, 2.0, 3.0, 4.0]];
    /// let (mut sums, mut twice) = ([vec![10.0, 20.0]], [vec![0.0; 4]]);
    /// let mut batch = Batch::new(&ports, 2, &x, &mut sums, &mut twice);
    /// let ([x], [sum], [twice]) = batch.split();
    /// for (row, sum) in x.chunks_exact(2).zip(sum) {
    ///     *sum += row[0] + row[1];
    /// }
    /// for (x, twice) in x.iter().zip(twice) {
    ///     *twice = 2.0 * x;
    /// }
    /// assert_eq!(sums, [[13.0, 27.0]]);
    /// ```
    ///
    /// # Panics
    /// If the cell has another number of inputs, states or outputs, or its [layout](Cell::layout)
    /// is not contiguous.
    #[allow(clippy::type_complexity)]
    pub fn split<const I: usize, const S: usize, const O: usize>(
        &mut self,
    ) -> ([&[f32]; I], [&mut [f32]; S], [&mut [f32]; O]) {
        assert_eq!(
            (I, S, O),
            (
                self.ports.inputs().len(),
                self.ports.states().len(),
                self.ports.outputs().len()
            ),
            "inputs, states and outputs of the cell"
        );
        let inputs = std::array::from_fn(|port| self.inputs[port].into_buffer().expect(GATHERED));
        let (mut states, mut outputs) = self.written();
        let states = std::array::from_fn(|_| contiguous(states.next()));
        (
            inputs,
            states,
            std::array::from_fn(|_| contiguous(outputs.next())),
        )
    }
}

/// The message if gathered rows are requested as slices.
const GATHERED: &str = "the rows are gathered, as the cell's layout says";

/// The values of rows in one buffer.
fn contiguous(rows: Option<RowsMut<'_>>) -> &mut [f32] {
    rows.and_then(RowsMut::into_buffer).expect(GATHERED)
}

/// Steps of the longest row.
fn steps_of(lengths: Option<&[usize]>) -> usize {
    lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0))
}

/// The index of a cell in [`Cells`]; by default that of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub(crate) u32);

impl CellId {
    /// The cell that was, or will be, added at `index` to [`Cells`].
    pub const fn new(index: u32) -> CellId {
        CellId(index)
    }

    /// The index, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The cell types of an engine.
///
/// The order of addition is the order in graphs: of the cells with a full batch, the one added last
/// runs first (BatchMaker, section 4.3), which finishes old requests first. If no batch is full,
/// the [`CellSelector`](crate::policy) decides. A cell that was skipped in
/// four batches of a worker runs before both, so that no cell stops the others.
#[derive(Clone, Default)]
pub struct Cells(Vec<Arc<dyn Cell>>);

impl Cells {
    /// No cells.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Adds a cell type. It comes later in graphs than those added before.
    ///
    /// An engine refuses more than 65,536 cell types, of all its models together, with
    /// [`ModelError::TooManyCells`](crate::scheduler::ModelError::TooManyCells).
    pub fn add(&mut self, cell: impl Cell + 'static) -> CellId {
        let id = CellId(self.0.len() as u32);
        self.0.push(Arc::new(cell));
        id
    }

    /// The cell with this id, if it exists.
    pub fn get(&self, id: CellId) -> Option<&Arc<dyn Cell>> {
        self.0.get(id.index())
    }

    /// All cells with their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (CellId, &Arc<dyn Cell>)> {
        let ids = (0..self.0.len()).map(|index| CellId(index as u32));
        ids.zip(&self.0)
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
