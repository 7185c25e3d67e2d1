//! Cells: what is computed for many requests at once, with the weights inside.
//!
//! BatchMaker, section 4.2: weights are embedded in the cell, and the first dimension of everything
//! that goes in and out is the batch. Which rows stand in a batch is nobody's business here.

use std::fmt;
use std::sync::Arc;

use super::CellCost;
use cellstream::execute::Steps;
use cellstream::execute::team::SharedTeam;
use cellstream::kernels::{RowsMut, RowsRef};

/// Something that goes into a cell or comes out of it: `width` values per row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    name: String,
    width: usize,
}

impl Port {
    /// A port of `width` values per row. Symbols are ports of width 1: whole numbers below 2²⁴, all of
    /// which an `f32` holds exactly.
    pub fn new(name: impl Into<String>, width: usize) -> Port {
        let name = name.into();
        Port { name, width }
    }

    /// What errors call it.
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

/// What a cell takes and gives.
///
/// A node of a graph *takes* the inputs and then the states, and *gives* the states and then the
/// outputs.
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

    /// Adds a port that is read and then overwritten in place. Where the next node of the same cell takes
    /// all states of this one, the values stay where they are between the two.
    pub fn state(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.states.push(Port::new(name, width));
        self
    }

    /// Adds a port that is written.
    pub fn output(mut self, name: impl Into<String>, width: usize) -> Ports {
        self.outputs.push(Port::new(name, width));
        self
    }

    /// Those that are read.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Those that are read and overwritten.
    pub fn states(&self) -> &[Port] {
        &self.states
    }

    /// Those that are written.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// What a node takes, in order: inputs, states.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
        Chained(self.inputs.iter(), self.states.iter())
    }

    /// What a node gives, in order: states, outputs.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
        Chained(self.states.iter(), self.outputs.iter())
    }
}

/// One iterator after another, which knows how many are left.
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

/// Why a cell could not be made ready, or did not compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CellError(String);

impl CellError {
    /// An error that says `why`.
    pub fn new(why: impl fmt::Display) -> CellError {
        CellError(why.to_string())
    }
}

/// Where a cell will run: one worker's.
#[derive(Clone)]
pub struct WorkerEnv {
    /// The worker's team, on cores of its own. Cells of one worker run one after the other.
    pub team: SharedTeam,
    /// Most rows of a batch.
    pub rows: usize,
    /// Most steps of a batch, at least 1: more only for a cell that [takes steps](Cell::takes_steps).
    pub steps: usize,
}

/// Where the rows of a batch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowLayout {
    /// The rows of each port are in one buffer, one after the other: what [`Batch::split`] and
    /// [`Batch::slices`] need.
    #[default]
    Contiguous,
    /// Those of inputs are where they came with their requests, or where other cells wrote them:
    /// they are not copied. States and outputs are contiguous, and states stay in their rows from
    /// step to step.
    GatheredInputs,
    /// Those of all ports are gathered, states and outputs each in a buffer of its own, which is
    /// passed to the node that takes it without a copy: for cells whose values are taken by other
    /// cells, as in trees. Batches have one step.
    Gathered,
}

impl RowLayout {
    /// Whether inputs are gathered.
    pub(crate) fn gathers_inputs(self) -> bool {
        self != RowLayout::Contiguous
    }
}

/// A cell type: a batched computation with its weights.
///
/// Two nodes of the same cell that do not depend on each other may be rows of one batch; so each row's
/// results must not depend on the others', to the last bit. Everything in this crate computes that way.
pub trait Cell: Send + Sync {
    /// What errors and reports call it.
    fn name(&self) -> &str;

    /// What it takes and gives.
    fn ports(&self) -> &Ports;

    /// What its batches cost, as far as that is known: the facts that a policy decides by. An
    /// engine uses [`CellCost::rows`] unless its options say other sizes.
    fn cost(&self) -> CellCost {
        CellCost::default()
    }

    /// Whether it computes several steps of a chain in one batch faster than one after the other, as where weights are
    /// then read once. Only then a batch ever has more than one step. The results must be those of one step after the
    /// other, to the last bit; a row that has had as many steps as its length says keeps its states, and what its
    /// outputs are past that is not looked at.
    fn takes_steps(&self) -> bool {
        false
    }

    /// How it wants the rows of its ports. Each of its batches has them so, or all contiguous, as
    /// where a request is [run alone](crate::networks::run_alone).
    fn layout(&self) -> RowLayout {
        RowLayout::Contiguous
    }

    /// Packs the weights where a worker will read them.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError>;
}

/// A cell on its worker: weights packed, room taken.
pub trait PreparedCell: Send {
    /// Computes all rows of `batch`. Should not allocate.
    ///
    /// # Errors
    /// Ends all requests that have a row in the batch, at whichever of its steps; the worker goes on. A panic does the
    /// same, and the cell is prepared anew.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError>;
}

/// The rows that a cell is run on: a step of each, or, of a cell that [takes steps](Cell::takes_steps), several.
pub struct Batch<'a> {
    rows: usize,
    steps: usize,
    /// Steps of each row; `None` if each has one.
    lengths: Option<&'a [usize]>,
    ports: &'a Ports,
    /// Of each input.
    inputs: Vec<RowsRef<'a>>,
    /// Of each state, and then of each output.
    written: Vec<RowsMut<'a>>,
}

impl<'a> Batch<'a> {
    /// One step of the first `rows` rows of each buffer; a buffer a port, in the order of `ports`.
    ///
    /// # Panics
    /// If there is another number of buffers than of ports, or a buffer has fewer rows.
    pub fn new(
        ports: &'a Ports,
        rows: usize,
        inputs: &'a [Vec<f32>],
        states: &'a mut [Vec<f32>],
        outputs: &'a mut [Vec<f32>],
    ) -> Batch<'a> {
        Batch::checked(ports, rows, None, inputs, states, outputs)
    }

    /// Steps of as many rows as there are `lengths`: as many of each as its length says. Inputs and outputs are
    /// `[longest, rows, width]`, states `[rows, width]`, before a row's first step and after its last.
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
                == (ports.inputs.len(), ports.states.len(), ports.outputs.len()),
            "a buffer per port"
        );
        let all = rows * steps_of(lengths);
        let inputs = inputs.iter().zip(&ports.inputs);
        let states = states.iter_mut().zip(&ports.states);
        let outputs = outputs.iter_mut().zip(&ports.outputs);
        let mut written: Vec<_> = states.map(|(of, port)| port.rows_mut(of, rows)).collect();
        written.extend(outputs.map(|(of, port)| port.rows_mut(of, all)));
        let inputs = inputs.map(|(of, port)| port.rows(of, all)).collect();
        Batch::of_rows(ports, rows, lengths, inputs, written)
    }

    /// Rows wherever they are: those of each input, `[steps, rows]`, and those of each state,
    /// `[rows]`, and then of each output, `[steps, rows]`. Steps are as many of each row as
    /// `lengths` says; without it one.
    ///
    /// The cell that runs the batch checks the rows that it uses.
    ///
    /// # Panics
    /// If there are rows of another number of ports; in debug builds also for too few or too short
    /// rows.
    pub fn of_rows(
        ports: &'a Ports,
        rows: usize,
        lengths: Option<&'a [usize]>,
        inputs: Vec<RowsRef<'a>>,
        written: Vec<RowsMut<'a>>,
    ) -> Batch<'a> {
        let steps = steps_of(lengths);
        let states = ports.states.len();
        assert!(
            (inputs.len(), written.len()) == (ports.inputs.len(), ports.writes().len())
                && lengths.is_none_or(|lengths| lengths.len() == rows),
            "rows per port, and lengths of {rows} rows"
        );
        let inputs_fit =
            || (inputs.iter().zip(&ports.inputs)).all(|(of, p)| of.fits(steps * rows, p.width));
        let written_fit = || {
            (written.iter().zip(ports.writes()).enumerate()).all(|(index, (of, port))| {
                let steps = if index < states { 1 } else { steps };
                of.fits(steps * rows, port.width)
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

    /// The lists that it was made of.
    pub(crate) fn into_lists(self) -> (Vec<RowsRef<'a>>, Vec<RowsMut<'a>>) {
        (self.inputs, self.written)
    }

    /// The rows of an input: row `t * rows + r` is that of row `r` at step `t`.
    pub fn input(&self, port: usize) -> RowsRef<'a> {
        self.inputs[port]
    }

    /// The rows of each state, and those of each output: row `t * rows + r` is that of row `r` at
    /// step `t`.
    #[allow(clippy::type_complexity)]
    pub fn written(
        &mut self,
    ) -> (
        impl ExactSizeIterator<Item = RowsMut<'_>>,
        impl ExactSizeIterator<Item = RowsMut<'_>>,
    ) {
        let (states, outputs) = self.written.split_at_mut(self.ports.states.len());
        (
            states.iter_mut().map(RowsMut::reborrow),
            outputs.iter_mut().map(RowsMut::reborrow),
        )
    }

    /// The rows of all states and then of all outputs.
    ///
    /// # Panics
    /// If the cell has another number of them.
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

    /// Steps of the longest row: 1 unless the cell [takes several](Cell::takes_steps).
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

    /// All ports at once: inputs, states, outputs, each `[rows, width]`; of several steps inputs and outputs are
    /// `[steps, rows, width]`.
    ///
    /// ```
    /// use cellstream_serve::cell_graph::{Batch, Ports};
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
    /// If the cell has another number of inputs, states or outputs ([`Batch::slices`] takes any),
    /// or its [layout](Cell::layout) is not contiguous.
    #[allow(clippy::type_complexity)]
    pub fn split<const I: usize, const S: usize, const O: usize>(
        &mut self,
    ) -> ([&[f32]; I], [&mut [f32]; S], [&mut [f32]; O]) {
        assert_eq!(
            (I, S, O),
            (
                self.ports.inputs.len(),
                self.ports.states.len(),
                self.ports.outputs.len()
            ),
            "inputs, states and outputs of the cell"
        );
        let inputs = std::array::from_fn(|port| self.contiguous_input(port));
        let (mut states, mut outputs) = self.written();
        let states = std::array::from_fn(|_| contiguous(states.next()));
        (
            inputs,
            states,
            std::array::from_fn(|_| contiguous(outputs.next())),
        )
    }

    /// The values of an input.
    fn contiguous_input(&self, port: usize) -> &'a [f32] {
        self.inputs[port].into_buffer().expect(GATHERED)
    }

    /// As [`Batch::split`], for a cell that does not know how many ports it has until it runs. Makes three short lists.
    ///
    /// ```
    /// use cellstream_serve::cell_graph::{Batch, Ports};
    ///
    /// // Two steps of one row, in buffers for two.
    /// let ports = Ports::new().input("x", 1).state("sum", 1).output("y", 1);
    /// let x = [vec![1.0, 2.0, 9.0, 9.0]];
    /// let (mut sums, mut y) = ([vec![10.0, 20.0]], [vec![0.0; 4]]);
    /// let mut batch = Batch::of_steps(&ports, &[2], &x, &mut sums, &mut y);
    /// let (inputs, mut states, mut outputs) = batch.slices();
    /// assert_eq!((inputs[0].len(), states[0].len(), outputs[0].len()), (2, 1, 2));
    /// for (x, y) in inputs[0].iter().zip(&mut *outputs[0]) {
    ///     states[0][0] += x;
    ///     *y = states[0][0];
    /// }
    /// assert_eq!((sums, y), ([vec![13.0, 20.0]], [vec![11.0, 13.0, 0.0, 0.0]]));
    /// ```
    #[allow(clippy::type_complexity)]
    pub fn slices(&mut self) -> (Vec<&[f32]>, Vec<&mut [f32]>, Vec<&mut [f32]>) {
        let inputs = 0..self.inputs.len();
        let inputs = inputs.map(|port| self.contiguous_input(port)).collect();
        let (states, outputs) = self.written();
        let values = |rows| contiguous(Some(rows));
        (
            inputs,
            states.map(values).collect(),
            outputs.map(values).collect(),
        )
    }
}

/// What is wrong where rows are taken as slices that are none.
const GATHERED: &str = "the rows are gathered, as the cell's layout says";

/// The values of rows in one buffer.
fn contiguous(rows: Option<RowsMut<'_>>) -> &mut [f32] {
    rows.and_then(RowsMut::into_buffer).expect(GATHERED)
}

/// Most steps of a row.
fn steps_of(lengths: Option<&[usize]>) -> usize {
    lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0))
}

/// The index of a cell in [`Cells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub(crate) u16);

impl CellId {
    /// The index, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The cell types of an engine.
///
/// The order of addition is the order in graphs: of the cells with a full batch, the one added last
/// runs first (BatchMaker, section 4.3), which finishes old requests first. If no batch is full, the
/// cell selector decides ([crate documentation](crate), step 3). A cell that was skipped in four
/// batches of a worker runs before both, so that no cell stops the others.
#[derive(Clone, Default)]
pub struct Cells(Vec<Arc<dyn Cell>>);

impl Cells {
    /// No cells.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Adds a cell type. It comes later in graphs than those added before.
    ///
    /// # Panics
    /// With more than 65,536 cell types.
    pub fn add(&mut self, cell: impl Cell + 'static) -> CellId {
        let id = u16::try_from(self.0.len()).expect("at most 65,536 cell types");
        self.0.push(Arc::new(cell));
        CellId(id)
    }

    /// The cell with this id, if it exists.
    pub fn get(&self, id: CellId) -> Option<&Arc<dyn Cell>> {
        self.0.get(id.index())
    }

    /// All cells with their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (CellId, &Arc<dyn Cell>)> {
        let ids = (0..self.0.len()).map(|index| CellId(index as u16));
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
