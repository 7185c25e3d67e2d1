//! Cells: what is computed for many requests at once, with the weights inside.
//!
//! BatchMaker, section 4.2: weights are embedded in the cell, and the first dimension of everything
//! that goes in and out is the batch. Which rows stand in a batch is nobody's business here.

use std::fmt;
use std::sync::Arc;

use super::CellCost;

use cellstream::execute::team::SharedTeam;
use cellstream::execute::{InputValues, StateRows, WrittenRows};

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
    pub fn takes(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
        Chained(self.inputs.iter(), self.states.iter())
    }

    /// What a node gives, in order: states, outputs.
    pub fn gives(&self) -> impl ExactSizeIterator<Item = &Port> + Clone {
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
pub struct Place {
    /// The worker's team, on cores of its own. Cells of one worker run one after the other.
    pub team: SharedTeam,
    /// Most rows of a batch.
    pub rows: usize,
    /// Most steps of a batch, at least 1: more only for a cell that [takes steps](Cell::takes_steps).
    pub steps: usize,
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

    /// What its batches cost, as far as that is known: the facts that a policy decides by. An engine
    /// uses [`CellCost::rows`] unless its options say other sizes.
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

    /// Whether it reads inputs by `Batch::input` alone, which is this crate's own: then their rows are not gathered, but may be
    /// where they came with their requests, or where they were kept.
    #[doc(hidden)]
    fn reads_apart(&self) -> bool {
        false
    }

    /// Whether it writes states and outputs by `Batch::written_rows` alone, which is this crate's own: then each of their rows is a
    /// buffer of its own, which is handed on as it is. Such a cell reads inputs apart, too, and takes one step at a time.
    #[doc(hidden)]
    fn writes_apart(&self) -> bool {
        false
    }

    /// Packs the weights where a worker will read them.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn prepare(&self, place: &Place) -> Result<Box<dyn PreparedCell>, CellError>;
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
    inputs: &'a [Vec<f32>],
    /// Of each input all rows, of a cell that [reads them apart](Cell::reads_apart); none where inputs are in buffers.
    apart: &'a [Vec<&'a [f32]>],
    states: &'a mut [Vec<f32>],
    outputs: &'a mut [Vec<f32>],
    /// Of each state and then of each output all rows, of a cell that [writes them apart](Cell::writes_apart); none where they
    /// are in buffers.
    written: WrittenRows<'a>,
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
        let steps = lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0));
        let fits = |ports: &[Port], buffers: &[Vec<f32>], steps: usize| {
            let mut both = ports.iter().zip(buffers);
            ports.len() == buffers.len() && both.all(|(p, b)| b.len() >= steps * rows * p.width)
        };
        assert!(
            fits(&ports.inputs, inputs, steps)
                && fits(&ports.states, states, 1)
                && fits(&ports.outputs, outputs, steps),
            "a buffer per port, of {steps} steps of {rows} rows at least"
        );
        Batch {
            rows,
            steps,
            lengths,
            ports,
            inputs,
            apart: &[],
            states,
            outputs,
            written: WrittenRows::NONE,
        }
    }

    /// One step of rows that all lie apart: those of each input, and those of each state and then of each output.
    ///
    /// # Panics
    /// If there is another number of lists than of ports, or a list has another number of rows.
    pub(crate) fn of_rows_apart(
        ports: &'a Ports,
        rows: usize,
        apart: &'a [Vec<&'a [f32]>],
        written: WrittenRows<'a>,
    ) -> Batch<'a> {
        assert!(
            apart.len() == ports.inputs.len() && apart.iter().all(|list| list.len() == rows),
            "rows of each input"
        );
        assert!(
            written.lengths().len() == ports.gives().len()
                && written.lengths().all(|len| len == rows),
            "rows of each state and output"
        );
        Batch {
            rows,
            steps: 1,
            lengths: None,
            ports,
            inputs: &[],
            apart,
            states: &mut [],
            outputs: &mut [],
            written,
        }
    }

    /// The same with inputs whose rows lie apart: all of them, in the order of its buffer, for each port; or for none.
    pub(crate) fn with_rows_apart(mut self, apart: &'a [Vec<&'a [f32]>]) -> Batch<'a> {
        let all = self.steps * self.rows;
        debug_assert!(
            apart.is_empty() || apart.len() == self.ports.inputs.len(),
            "rows of each input"
        );
        debug_assert!(apart.iter().all(|rows| rows.len() == all), "of each step");
        self.apart = apart;
        self
    }

    /// All rows of an input, wherever they lie: `[steps, rows, width]`.
    pub(crate) fn input(&self, port: usize) -> InputValues<'a> {
        let all = self.steps * self.rows;
        match self.apart.get(port) {
            Some(rows) => InputValues::Apart(rows),
            None => {
                let width = self.ports.inputs[port].width;
                InputValues::Together(&self.inputs[port][..all * width])
            }
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

    /// The buffers of states and outputs as they are, one for each port. Each begins with [`Batch::rows`] rows of its port's
    /// width (outputs with as many for each of [`Batch::steps`]), and may go on after that, with states of others: for cells of
    /// this crate, which keep off them.
    pub(crate) fn buffers(&mut self) -> (&mut [Vec<f32>], &mut [Vec<f32>]) {
        (self.states, self.outputs)
    }

    /// # Panics
    /// If the cell says that it reads inputs apart, and reads them side by side.
    fn assert_gathered(&self) {
        assert!(
            self.apart.is_empty(),
            "inputs lie apart, as the cell said that it reads them"
        );
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
    /// If the cell has another number of inputs, states or outputs ([`Batch::slices`] takes any).
    #[allow(clippy::type_complexity)]
    pub fn split<const I: usize, const S: usize, const O: usize>(
        &mut self,
    ) -> ([&[f32]; I], [&mut [f32]; S], [&mut [f32]; O]) {
        let (ports, of_all) = (self.ports, self.steps * self.rows);
        self.assert_gathered();
        assert_eq!(I, self.inputs.len(), "inputs of the cell");
        let buffers = self.inputs;
        let inputs = std::array::from_fn(|i| &buffers[i][..of_all * ports.inputs[i].width]);
        let (states, outputs) = self.written();
        (inputs, states, outputs)
    }

    /// The rows of all states and then of all outputs, wherever they lie.
    pub(crate) fn written_rows<const N: usize>(&mut self) -> [StateRows<'_>; N] {
        if self.written.lengths().len() > 0 {
            return self.written.split();
        }
        let count = self.states.len();
        assert_eq!(
            N,
            count + self.outputs.len(),
            "states and outputs of the cell"
        );
        let both = self.states.iter_mut().chain(&mut *self.outputs);
        let mut both = both.zip(self.ports.gives());
        std::array::from_fn(|_| match both.next() {
            Some((buffer, port)) => StateRows::Together(&mut buffer[..self.rows * port.width]),
            None => unreachable!("counted above"),
        })
    }

    /// States and outputs, as [`Batch::split`].
    pub(crate) fn written<const S: usize, const O: usize>(
        &mut self,
    ) -> ([&mut [f32]; S], [&mut [f32]; O]) {
        let (rows, of_all) = (self.rows, self.steps * self.rows);
        assert_eq!(
            (S, O),
            (self.states.len(), self.outputs.len()),
            "states and outputs of the cell"
        );
        (
            cut(rows, &self.ports.states, self.states),
            cut(of_all, &self.ports.outputs, self.outputs),
        )
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
        let (rows, ports) = (self.rows, self.ports);
        let of_all = self.steps * rows;
        self.assert_gathered();
        let inputs = self.inputs.iter().zip(&ports.inputs);
        let states = self.states.iter_mut().zip(&ports.states);
        let outputs = self.outputs.iter_mut().zip(&ports.outputs);
        (
            inputs
                .map(|(of, port)| &of[..of_all * port.width])
                .collect(),
            states
                .map(|(of, port)| &mut of[..rows * port.width])
                .collect(),
            outputs
                .map(|(of, port)| &mut of[..of_all * port.width])
                .collect(),
        )
    }
}

/// The first rows of all buffers, of which there are as many as counted.
fn cut<'b, const N: usize>(
    rows: usize,
    ports: &[Port],
    buffers: &'b mut [Vec<f32>],
) -> [&'b mut [f32]; N] {
    let mut both = ports.iter().zip(buffers);
    std::array::from_fn(|_| match both.next() {
        Some((port, buffer)) => &mut buffer[..rows * port.width],
        None => unreachable!("counted by the caller"),
    })
}

/// Which cell of [`Cells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub(crate) u16);

impl CellId {
    /// Its place among the cells, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The cell types of an engine.
///
/// Those added later come later in the graphs of requests: of cells with full batches the latest is run first (BatchMaker,
/// section 4.3), so that what is nearly done gets done. So a cell that always fills its batches keeps all before it waiting, also
/// those of other networks, whatever the priority of their requests: networks that have nothing to do with each other are
/// better served by an engine each. Where no batch is full, cells take turns by what their rows are worth
/// ([crate documentation](crate), step 3).
#[derive(Clone, Default)]
pub struct Cells(Vec<Arc<dyn Cell>>);

impl Cells {
    /// None yet.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Adds a cell type, which comes later in graphs than all before.
    ///
    /// # Panics
    /// With more than 65,536 cell types.
    pub fn add(&mut self, cell: impl Cell + 'static) -> CellId {
        let id = u16::try_from(self.0.len()).expect("at most 65,536 cell types");
        self.0.push(Arc::new(cell));
        CellId(id)
    }

    /// One of them, if there is one of that id.
    pub fn get(&self, id: CellId) -> Option<&Arc<dyn Cell>> {
        self.0.get(id.index())
    }

    /// All, with their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (CellId, &Arc<dyn Cell>)> {
        let ids = (0..self.0.len()).map(|index| CellId(index as u16));
        ids.zip(&self.0)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
