//! A step of a tree's cell on a team: the products of a part as sessions run them, and gates whose
//! states are the caller's own rows.
//!
//! ```text
//! each worker, for its own units
//!   z = bias;  for each operand: z += weights · operand      reads whole rows
//!   barrier, where the states are an operand
//!   states = gates(z)                                        writes own columns only
//! ```

use std::sync::Arc;

use super::buffers::Buffer;
use super::packed::{PackError, Parts};
use super::part::PackedPart;
use super::products::{InputRows, Products, sweep};
use super::session::{RunError, SessionError, fits};
use super::team::SharedTeam;
use crate::model::{InputError, OperandSource, TreeCell, TreeWeights};
use crate::plan::Plan;
use crate::schedule::PanelOrder;
use gatestream_kernels::{
    Blocking, Columns, GateJob, Isa, Kernels, ReadColumns, RowsMut, RowsRef, kernels,
};

/// A cell of a TreeLSTM, packed for a team, with room for a batch of nodes.
///
/// Every plan, team and batch gives the bits of [`tree_step`](crate::reference::tree_step).
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::execute::{TreeRows, TreeStep};
/// use gatestream::kernels::{RowsMut, RowsRef};
/// use gatestream::model::{Matrix, TreeWeights};
/// use gatestream::plan::Plan;
///
/// let (weights, bias) = (Matrix::new(3 * 4, 2, vec![0.1; 3 * 4 * 2])?, vec![0.0; 3 * 4]);
/// let leaf = TreeWeights::leaf(&weights, &bias)?;
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut step = TreeStep::new(&leaf, &Plan::estimate_tree(&leaf, 8, 1), &team)?;
/// let (x, mut h, mut c) = ([0.5; 3 * 2], [0.0; 3 * 4], [0.0; 3 * 4]); // three leaves
/// step.run(3, TreeRows {
///     x: RowsRef::contiguous(&x, 2),
///     child: [RowsRef::EMPTY; 2],
///     states: [&mut h[..], &mut c].map(|state| RowsMut::contiguous(state, 4)),
/// })?;
/// assert!(h.iter().all(|value| *value == h[0] && *value > 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TreeStep {
    team: SharedTeam,
    kernels: Box<dyn Kernels>,
    cell: TreeCell,
    input: usize,
    hidden: usize,
    plan: Plan,
    /// One per entry of the plan.
    configurations: Vec<TreeConfiguration>,
    /// The configuration to run as, where it is not chosen by size.
    fixed: Option<usize>,
    /// Nodes there is room for.
    room: usize,
    /// One per worker.
    buffers: Vec<WorkerBuffers>,
    /// The number of runs so far is odd.
    is_odd: bool,
}

struct TreeConfiguration {
    order: PanelOrder,
    blocking: Blocking,
    parts: Vec<Arc<PackedPart>>,
}

struct WorkerBuffers {
    /// `[rows][panels][slots][lanes]`.
    z: Buffer,
    scratch: Buffer<u32>,
}

/// The rows of a batch of nodes: contiguous, or gathered.
#[derive(Debug)]
pub struct TreeRows<'a> {
    /// `x` `[E]`; [`RowsRef::EMPTY`] for a [`TreeCell::Binary`].
    pub x: RowsRef<'a>,
    /// `h` and `c` `[H]` of the right child of a [`TreeCell::Binary`], or of the child that a
    /// [`TreeCell::Child`] adds; [`RowsRef::EMPTY`] for others.
    pub child: [RowsRef<'a>; 2],
    /// `h` and `c` `[H]`, overwritten; see [`TreeCell`] for what they are before.
    pub states: [RowsMut<'a>; 2],
}

impl TreeStep {
    /// Packs the weights on the threads of `team`, for the instruction set that [`Isa::select`]
    /// names, with room for the plan's batch.
    ///
    /// # Errors
    /// [`SessionError::Pack`] for a plan that does not fit the cell or the team, or an instruction
    /// set that is not there; [`SessionError::TooLarge`].
    pub fn new(
        weights: &TreeWeights<'_>,
        plan: &Plan,
        team: &SharedTeam,
    ) -> Result<TreeStep, SessionError> {
        plan.check_tree(weights).map_err(PackError::from)?;
        let isa = Isa::select().map_err(PackError::from)?;
        TreeStep::pack(weights, plan, team, isa)
    }

    /// Packs a plan whose entries have been checked; several may be for the same size.
    pub(crate) fn pack(
        weights: &TreeWeights<'_>,
        plan: &Plan,
        team: &SharedTeam,
        isa: Isa,
    ) -> Result<TreeStep, SessionError> {
        let kernels = kernels(isa).map_err(PackError::from)?;
        let (step, lanes) = (weights.step_weights(), kernels.lanes());
        let packed = team.turn(|team| Parts::pack(plan, team, lanes, weights.bytes(), |_, _| step));
        let parts = packed.map_err(PackError::from)??;
        let configurations = plan.entries.iter().map(|entry| {
            let layer = &entry.configuration.layers[0];
            TreeConfiguration {
                order: layer.order,
                blocking: layer.directions[0].blocking,
                parts: parts.of(0, 0, &layer.directions[0]),
            }
        });
        let mut step = TreeStep {
            team: team.clone(),
            kernels,
            cell: weights.cell(),
            input: weights.input_size(),
            hidden: weights.hidden_size(),
            configurations: configurations.collect(),
            plan: plan.clone(),
            fixed: None,
            room: 0,
            buffers: Vec::new(),
            is_odd: false,
        };
        step.reserve(plan.batch())?;
        Ok(step)
    }

    /// Makes room for `rows` nodes, if there is less. Allocates.
    ///
    /// # Errors
    /// [`SessionError::TooLarge`]; the step keeps the room it had.
    pub fn reserve(&mut self, rows: usize) -> Result<(), SessionError> {
        if rows > self.room || self.buffers.is_empty() {
            let workers = 0..self.plan.threads();
            let buffers: Option<_> = workers
                .map(|worker| self.worker_buffers(worker, rows))
                .collect();
            let (batch, steps) = (rows, 1);
            self.buffers = buffers.ok_or(SessionError::TooLarge { batch, steps })?;
            self.room = rows;
        }
        Ok(())
    }

    /// The largest that a worker needs in any configuration; `None` where there is no memory.
    fn worker_buffers(&self, worker: usize, rows: usize) -> Option<WorkerBuffers> {
        let parts = || {
            self.configurations
                .iter()
                .filter_map(|c| c.parts.get(worker))
        };
        let (lanes, slots) = (self.kernels.lanes(), self.cell.step().slots());
        let z_row = parts().map(|part| part.z_row(lanes, slots)).max();
        let words = parts().map(|part| part.scratch_words(rows, 0)).max();
        Some(WorkerBuffers {
            z: Buffer::new(rows, z_row.unwrap_or(0))?,
            scratch: Buffer::new(words.unwrap_or(0), 1)?,
        })
    }

    /// Runs every batch by this entry of the plan from now on.
    pub(crate) fn run_as(&mut self, entry: usize) {
        self.fixed = Some(entry.min(self.configurations.len() - 1));
    }

    /// A step of `rows` nodes. Allocates nothing.
    ///
    /// # Errors
    /// Rows that are too few or too short, or that the cell does not read, and more of them than
    /// there is room for: nothing has been written then. [`RunError::Team`].
    pub fn run(&mut self, rows: usize, given: TreeRows<'_>) -> Result<(), RunError> {
        let TreeRows { x, child, states } = given;
        let [h, c] = states.map(RowsMut::share);
        if rows > self.room {
            return Err(RunError::Capacity {
                batch: rows,
                steps: 1,
                room_batch: self.room,
                room_steps: 1,
            });
        }
        read("x", x, self.cell.reads_input(), (rows, self.input))?;
        for of_child in child {
            read(
                "child",
                of_child,
                self.cell.reads_child(),
                (rows, self.hidden),
            )?;
        }
        for state in [h, c] {
            fits("states", state, rows, self.hidden)?;
        }
        let multiplies_state = self.cell.multiplies_state();
        let before = if multiplies_state {
            // SAFETY: products alone read them; all workers meet before one of them writes.
            unsafe { h.read_all() }
        } else {
            RowsRef::EMPTY
        };
        let entry = self.fixed.unwrap_or_else(|| self.plan.nearest(rows, 1));
        let configuration = &self.configurations[entry];
        let sweep = sweep(configuration.order, self.is_odd);
        self.is_odd ^= true;
        let operand = |source| {
            let operand = match source {
                OperandSource::Input => x,
                OperandSource::State => before,
                OperandSource::Child => child[0],
                OperandSource::Gates(_) => RowsRef::EMPTY,
            };
            InputRows::new(operand, rows)
        };
        let kernel = self.cell.gate_kernel();
        let part = |worker: usize| {
            let (part, buffers) = (&configuration.parts[worker], &self.buffers[worker]);
            let products = Products {
                kernels: &*self.kernels,
                part,
                slots: self.cell.step().slots(),
                blocking: configuration.blocking,
                scratch: buffers.scratch.share(),
            };
            // SAFETY: the buffer is this worker's alone, which uses it in one of the two below at a
            // time.
            let z = unsafe { buffers.z.share().write(0..rows * products.z_row()) };
            (part, products, z)
        };
        let multiply = |worker: usize| {
            let (_, products, z) = part(worker);
            products.phase(0, operand, sweep, z);
        };
        let compute_gates = |worker: usize| {
            let (part, _, z) = part(worker);
            let first = part.units.start;
            let [h, c] = [h, c].map(|rows| Columns::new(rows, first));
            let job = GateJob {
                z,
                rows,
                units: part.units.len(),
                peepholes: None,
                before: h,
                c,
                h,
                y: None,
                child: Some(child.map(|rows| ReadColumns { rows, first })),
            };
            // SAFETY: own columns, which no other thread accesses; all workers have read what they
            // need of them before. Kernels of trees do not read `before`.
            unsafe { self.kernels.gates(kernel, job) };
        };
        self.team.run_shares(configuration.parts.len(), |share| {
            share.iter().for_each(multiply);
            if multiplies_state {
                share.barrier();
            }
            share.iter().for_each(compute_gates);
        })?;
        Ok(())
    }
}

/// Refuses rows that are too few or too short, or any where none are read.
fn read(
    name: &'static str,
    given: RowsRef<'_>,
    is_read: bool,
    (rows, width): (usize, usize),
) -> Result<(), InputError> {
    let found = given.values();
    match (is_read, found) {
        (true, _) if given.fits(rows, width) => Ok(()),
        (false, 0) => Ok(()),
        _ => Err(InputError::Values {
            name,
            expected: if is_read { rows * width } else { 0 },
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::execute::counting::Counting;
    use crate::execute::team::Team;
    use crate::machine::{CacheModel, L3Latency};
    use crate::model::{Matrix, Precision};
    use crate::reference::tree_step;

    fn team(threads: usize) -> SharedTeam {
        SharedTeam::new(Team::with_threads(threads).unwrap())
    }

    /// Weights of all four cells, with `hidden` units, of which leaves, children and nodes read
    /// `input` features.
    struct Cells {
        matrices: Vec<Matrix>,
        bias: Vec<f32>,
    }

    impl Cells {
        fn random(
            input: usize,
            hidden: usize,
            precision: Precision,
            rng: &mut fastrand::Rng,
        ) -> Cells {
            let mut random =
                |len: usize| -> Vec<f32> { (0..len).map(|_| 2.0 * rng.f32() - 1.0).collect() };
            let shapes = [
                (3, input),
                (5, hidden),
                (5, hidden),
                (1, input),
                (1, hidden),
                (3, hidden),
            ];
            let matrices = shapes.map(|(gates, cols)| {
                let matrix = Matrix::new(gates * hidden, cols, random(gates * hidden * cols));
                matrix.unwrap().in_precision(precision).unwrap()
            });
            let bias = random(5 * hidden);
            let matrices = matrices.into();
            Cells { matrices, bias }
        }

        fn all(&self) -> [TreeWeights<'_>; 4] {
            let m = &self.matrices;
            let hidden = self.bias.len() / 5;
            let bias = |gates: usize| &self.bias[..gates * hidden];
            [
                TreeWeights::leaf(&m[0], bias(3)),
                TreeWeights::binary(&m[1], &m[2], bias(5)),
                TreeWeights::child(&m[3], &m[4], bias(1)),
                TreeWeights::node(&m[0], &m[5], bias(3)),
            ]
            .map(Result::unwrap)
        }
    }

    /// Random rows of a batch: `x`, a child's states, states.
    struct Batch {
        rows: usize,
        widths: [usize; 5],
        values: [Vec<f32>; 5],
    }

    impl Batch {
        fn random(rows: usize, weights: &TreeWeights<'_>, rng: &mut fastrand::Rng) -> Batch {
            let (cell, hidden) = (weights.cell(), weights.hidden_size());
            let child = if cell.reads_child() { hidden } else { 0 };
            let widths = [weights.input_size(), child, child, hidden, hidden];
            let values = widths.map(|width| {
                let values = (0..rows * width).map(|_| 2.0 * rng.f32() - 1.0);
                values.collect()
            });
            Batch {
                rows,
                widths,
                values,
            }
        }

        fn expected(&self, weights: &TreeWeights<'_>) -> [Vec<f32>; 2] {
            let mut states = [self.values[3].clone(), self.values[4].clone()];
            for row in 0..self.rows {
                let of = |index: usize| row * self.widths[index]..(row + 1) * self.widths[index];
                let [x, child_h, child_c] = [0, 1, 2].map(|index| &self.values[index][of(index)]);
                let [h, c] = &mut states;
                tree_step(
                    weights,
                    x,
                    [child_h, child_c],
                    [&mut h[of(3)], &mut c[of(4)]],
                );
            }
            states
        }

        /// The states after a step of these rows, each in a buffer of its own where `gathered`.
        fn run(&self, step: &mut TreeStep, gathered: bool) -> [Vec<f32>; 2] {
            let mut states = [self.values[3].clone(), self.values[4].clone()];
            let width = self.widths[3];
            let lists = [0, 1, 2].map(|index| -> Vec<&[f32]> {
                let width = self.widths[index].max(1);
                self.values[index].chunks_exact(width).collect()
            });
            let read = |index: usize| {
                if gathered {
                    RowsRef::gathered(&lists[index])
                } else {
                    RowsRef::contiguous(&self.values[index], self.widths[index])
                }
            };
            let (x, child) = (read(0), [read(1), read(2)]);
            let mut run = |states| step.run(self.rows, TreeRows { x, child, states }).unwrap();
            if gathered {
                let mut lists = states
                    .each_mut()
                    .map(|s| s.chunks_exact_mut(width).collect::<Vec<_>>());
                run(lists.each_mut().map(|list| RowsMut::gathered(list)));
            } else {
                run(states.each_mut().map(|s| RowsMut::contiguous(s, width)))
            }
            states
        }
    }

    #[test]
    fn every_plan_instruction_set_and_kind_of_rows_gives_the_bits_of_plain_loops() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut narrow = Team::with_threads(4).unwrap();
        narrow.leave_out([1, 3]);
        let [one, two, three] = [1, 2, 3].map(team);
        let teams = [one, two, three, SharedTeam::new(narrow)];
        for (index, hidden) in [1, 4, 16, 23, 64, 100].into_iter().enumerate() {
            let precision = Precision::ALL[index % 3];
            let cells = Cells::random(1 + rng.usize(..20), hidden, precision, &mut rng);
            for weights in cells.all() {
                let batch = Batch::random(7, &weights, &mut rng);
                let expected = batch.expected(&weights);
                let sets = Isa::available().into_iter();
                for (isa, team) in sets.flat_map(|isa| teams.iter().map(move |team| (isa, team))) {
                    for order in [PanelOrder::Cyclic, PanelOrder::Serpentine] {
                        let mut plan = Plan::estimate_tree(&weights, 9, team.threads());
                        let threads = crate::plan::Configuration::of_tree(&weights, team.threads());
                        plan.entries[0].configuration = threads;
                        plan.entries[0].configuration.layers[0].order = order;
                        let mut step = TreeStep::pack(&weights, &plan, team, isa).unwrap();
                        // Forth, and back.
                        for gathered in [false, true] {
                            let found = batch.run(&mut step, gathered);
                            let case = (weights.cell(), hidden, isa, team.threads(), order);
                            assert_eq!(found, expected, "{case:?}, gathered: {gathered}");
                        }
                    }
                }
            }
        }
    }

    /// Blocking for weights that no private cache holds reads nothing beyond them, and changes no
    /// bit.
    #[test]
    fn blocking_gives_the_same_bits() {
        let mut rng = fastrand::Rng::with_seed(2);
        let cells = Cells::random(5, 260, Precision::F32, &mut rng);
        let weights = cells.all()[1];
        let mut plan = Plan::estimate_tree(&weights, 14, 1);
        let blocking = CacheModel::new(0, L3Latency::High).blocking(usize::MAX);
        plan.entries[0].configuration.layers[0].directions[0].blocking = blocking;
        let mut step = TreeStep::new(&weights, &plan, &team(1)).unwrap();
        let batch = Batch::random(14, &weights, &mut rng);
        assert_eq!(batch.run(&mut step, false), batch.expected(&weights));
    }

    /// Five gates are packed as three and two, which take the same rows.
    #[test]
    fn rows_are_quantised_once_an_operand() {
        let mut rng = fastrand::Rng::with_seed(3);
        let cells = Cells::random(5, 40, Precision::Int8, &mut rng);
        let weights = cells.all()[1];
        let plan = Plan::of(crate::plan::Configuration::of_tree(&weights, 2), 3, 1);
        let mut step = TreeStep::new(&weights, &plan, &team(2)).unwrap();
        let (kernels, asked) = Counting::kernels(Isa::select().unwrap());
        step.kernels = kernels;
        let batch = Batch::random(3, &weights, &mut rng);
        batch.run(&mut step, false);
        let (workers, operands) = (2, 2);
        let quantised = asked.prepared_rows.load(Ordering::Relaxed);
        assert_eq!(quantised, workers * operands * batch.rows);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut rng = fastrand::Rng::with_seed(4);
        let cells = Cells::random(5, 20, Precision::F32, &mut rng);
        let [leaf, binary, ..] = cells.all();
        let team = team(1);
        let plan = Plan::estimate_tree(&leaf, 2, 1);
        let mut step = TreeStep::new(&leaf, &plan, &team).unwrap();
        let whole = [0.5; 40];
        let rows = |width| RowsRef::contiguous(&whole, width);
        let mut run = |rows, x, child, state: usize| {
            let [mut h, mut c] = [[0.0; 40]; 2];
            let states = [&mut h[..], &mut c].map(|s| RowsMut::contiguous(&mut s[..state], 20));
            step.run(
                rows,
                TreeRows {
                    x,
                    child: [child; 2],
                    states,
                },
            )
        };
        assert_eq!(run(2, rows(5), RowsRef::EMPTY, 40), Ok(()));
        for (x, child, state, name) in [
            (RowsRef::EMPTY, RowsRef::EMPTY, 40, "x"),
            (rows(5), rows(20), 40, "child"),
            (rows(5), RowsRef::EMPTY, 39, "states"),
        ] {
            let refused = run(2, x, child, state);
            let Err(RunError::Input(InputError::Values { name: found, .. })) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(found, name);
        }
        let refused = run(3, rows(5), RowsRef::EMPTY, 40);
        assert!(matches!(refused, Err(RunError::Capacity { batch: 3, .. })));
        assert!(matches!(
            step.reserve(usize::MAX),
            Err(SessionError::TooLarge { .. })
        ));
        let two = Plan::of(crate::plan::Configuration::of_tree(&binary, 2), 2, 1);
        let refused = TreeStep::new(&binary, &two, &team).err();
        assert!(matches!(
            refused,
            Some(SessionError::Pack(PackError::Threads { .. }))
        ));
    }
}
