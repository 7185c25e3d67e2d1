//! Sessions: packed weights, a team and buffers, ready to run many times.

use std::sync::Arc;

use super::active::Active;
use super::buffers::Buffers;
use super::packed::{PackError, PackedModel};
use super::run::{CallerState, Members, Run};
use super::state::{State, StateBlock, state_blocks};
use super::steps::Steps;
use super::team::{HostThreads, Share, SharedTeam, Team, TeamError, TeamPanicked};
use super::trace::{Off, Probe, Tables, Trace};
use super::walk;
use crate::model::{Input, InputError, Layout, Model, Output, Signature};
use crate::plan::{Configuration, Plan};
use gatestream_kernels::{RowsMut, RowsRef, Shared, SharedRows, recycle_vec};

/// Runs one model. A session with its own team runs independently; sessions on a
/// [`SharedTeam`] take turns.
///
/// [`Session::run`] allocates nothing, starts no thread and, on its own team, takes no lock. The
/// calling thread is worker 0 of the team: see [`Session::pin_caller`].
///
/// ```
/// use gatestream::execute::Session;
/// use gatestream::model::{Input, Lstm, Output};
/// use gatestream::plan::Plan;
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let (steps, batch) = (5, 2);
/// let plan = Plan::estimate(&model, batch, steps, 2);
/// let mut session = Session::new(&model, &plan)?;
/// drop(model); // the session keeps packed weights of its own
///
/// let input = vec![0.5; steps * batch * 8];
/// let mut output = vec![0.0; steps * batch * 16];
/// session.run(&Input::new(&input, steps, batch), &mut Output::new(&mut output))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    model: Arc<PackedModel>,
    team: TeamHandle,
    /// Sequences and steps there is room for.
    room: (usize, usize),
    /// The configuration to run as, where it is not chosen by size.
    fixed: Option<usize>,
    /// The steps of all runs so far are odd.
    is_odd: bool,
    groups: Vec<Group>,
    /// Empty between runs: memory for the list of a caller's states.
    states: Vec<CallerState<'static>>,
}

/// What one group of workers needs for its sequences.
struct Group {
    buffers: Buffers,
    active: Active,
}

enum TeamHandle {
    Own(Box<Team>),
    Shared(SharedTeam),
}

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The team could not be made.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// The weights could not be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Another [`Backend`](super::Backend) cannot run the model.
    #[error("{0}")]
    Backend(String),
    /// There is no memory for these sequences or steps.
    #[error("no memory for {batch} sequences of {steps} steps; make room for fewer")]
    TooLarge {
        /// Sequences asked for.
        batch: usize,
        /// Steps asked for.
        steps: usize,
    },
}

/// Everything that a session for these sizes writes to, for each group of workers.
fn room(model: &PackedModel, batch: usize, steps: usize) -> Result<Vec<Group>, SessionError> {
    let groups = model.configurations.iter().map(|c| c.row_groups).max();
    let group = |index: usize| {
        let configurations = model.configurations.iter();
        let using: Vec<_> = configurations.filter(|c| c.row_groups > index).collect();
        let fewest = using.iter().map(|c| c.row_groups).min()?;
        let group_batch = batch.div_ceil(fewest);
        Some(Group {
            buffers: Buffers::new(model.kernels.lanes(), &using, group_batch, steps)?,
            active: Active::with_room(batch, group_batch, steps)?,
        })
    };
    let groups: Option<_> = (0..groups.unwrap_or(1)).map(group).collect();
    groups.ok_or(SessionError::TooLarge { batch, steps })
}

/// Why a run was refused, or ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A slice or length that does not fit. Nothing has been written.
    #[error(transparent)]
    Input(#[from] InputError),
    /// More sequences or steps than the session has room for. Nothing has been written.
    #[error(
        "the input has {batch} sequences of {steps} steps, the session has room for {room_batch} \
         of {room_steps}; call reserve({batch}, {steps}) first"
    )]
    Capacity {
        /// Sequences of the input.
        batch: usize,
        /// Steps of the input.
        steps: usize,
        /// Sequences there is room for.
        room_batch: usize,
        /// Steps there is room for.
        room_steps: usize,
    },
    /// A slot that a [`ResidentModel`](super::ResidentModel) does not have, or one that occurs
    /// twice in a step. Nothing was started.
    #[error("slot {slot} is not one of {slots} slots, or occurs twice in the step")]
    Slot {
        /// The slot.
        slot: usize,
        /// Number of slots.
        slots: usize,
    },
    /// As many steps of a [`ResidentModel`](super::ResidentModel) as there is room for are started
    /// and not finished. Nothing was started.
    #[error(
        "{in_flight} steps are in flight, which is all that there is room for; finish one first"
    )]
    InFlight {
        /// Number of steps in flight.
        in_flight: usize,
    },
    /// A reverse direction needs the end of a sequence first, so it cannot be fed step by step.
    #[error("a model with a reverse direction cannot run step by step; run whole sequences")]
    NotStreamable,
    /// A worker panicked; what the run has written is incomplete.
    #[error(transparent)]
    Team(#[from] TeamPanicked),
    /// Another [`Backend`](super::Backend) failed; what the run has written is incomplete.
    #[error("{0}")]
    Backend(String),
}

/// A checked run.
struct Call<'a> {
    /// Its sizes, lengths and layout.
    input: &'a Input<'a>,
    /// Its values.
    rows: RowsRef<'a>,
    /// In the order of [`Session::step_rows`].
    states: &'a [CallerState<'a>],
    output: Option<SharedRows<'a>>,
}

impl Session {
    /// Makes a team of the plan's threads and packs the weights on it, with room for the plan's
    /// batch and steps.
    ///
    /// # Errors
    /// What [`Team::with_threads`] and [`PackedModel::new`] refuse; [`SessionError::TooLarge`].
    pub fn new(model: &Model, plan: &Plan) -> Result<Session, SessionError> {
        plan.check(model).map_err(PackError::from)?;
        let mut team = Team::with_threads(plan.threads())?;
        let packed = PackedModel::new(model, plan, &mut team)?;
        Session::with_handle(packed, TeamHandle::Own(team.into()))
    }

    /// A session on weights that are packed already, with a team of its own.
    ///
    /// # Errors
    /// What [`Team::with_threads`] refuses; [`SessionError::TooLarge`].
    pub fn from_packed(packed: Arc<PackedModel>) -> Result<Session, SessionError> {
        let team = Team::with_threads(packed.plan().threads())?;
        Session::with_handle(packed, TeamHandle::Own(team.into()))
    }

    /// A session on weights that are packed already, with this team, on the cores that it is on.
    /// Sessions that are to run at once need cores of their own, which [`Team::with_threads`] gives
    /// them while there are any.
    ///
    /// # Errors
    /// [`PackError::Threads`] when the team has fewer threads than the plan asks for;
    /// [`SessionError::TooLarge`].
    pub fn with_team(packed: Arc<PackedModel>, team: Team) -> Result<Session, SessionError> {
        Session::with_handle(packed, TeamHandle::Own(team.into()))
    }

    /// A session on weights that are packed already, on a team that others use too.
    ///
    /// # Errors
    /// As [`Session::with_team`].
    pub fn on_team(packed: Arc<PackedModel>, team: SharedTeam) -> Result<Session, SessionError> {
        Session::with_handle(packed, TeamHandle::Shared(team))
    }

    /// A session that can run as any of `candidates`, all for the same size, as
    /// [`Session::run_as`] says.
    pub(crate) fn for_candidates(
        model: &Model,
        candidates: &[Configuration],
        batch: usize,
        steps: usize,
    ) -> Result<Session, SessionError> {
        let plan = Plan::of_candidates(candidates, batch, steps);
        let mut team = Team::with_threads(plan.threads())?;
        let packed = PackedModel::for_candidates(model, &plan, &mut team)?;
        Session::with_handle(packed, TeamHandle::Own(team.into()))
    }

    /// Runs every request by this entry of the plan from now on.
    pub(crate) fn run_as(&mut self, entry: usize) {
        self.fixed = Some(entry.min(self.model.configurations.len() - 1));
    }

    fn with_handle(model: Arc<PackedModel>, team: TeamHandle) -> Result<Session, SessionError> {
        let planned = model.plan().threads();
        let found = match &team {
            TeamHandle::Own(team) => team.threads(),
            TeamHandle::Shared(team) => team.threads(),
        };
        if planned > found {
            return Err(PackError::Threads { planned, found }.into());
        }
        let (batch, steps) = (model.plan().batch(), model.plan().steps());
        let groups = room(&model, batch, steps)?;
        // One more than there are is refused.
        let states = model.configurations[0].state_sizes().count() + 1;
        Ok(Session {
            model,
            team,
            room: (batch, steps),
            fixed: None,
            is_odd: false,
            groups,
            states: Vec::with_capacity(states),
        })
    }

    /// The packed weights, to make more sessions from.
    pub fn packed(&self) -> &Arc<PackedModel> {
        &self.model
    }

    /// The sizes of inputs, outputs and states.
    pub fn signature(&self) -> Signature {
        self.model.signature()
    }

    /// Pins the calling thread, which acts as worker 0, to the core of worker 0. This reduces the
    /// variance of run times. While other processes use the cores of the team, the thread may run
    /// on any of them. `false` where the system refuses, or the team is shared.
    ///
    /// A session never pins its caller by itself: threads that the caller starts would inherit it.
    /// Where a run finds the caller on a worker's core, it moves the caller to the core of worker
    /// 0, which the caller may leave again.
    pub fn pin_caller(&self) -> bool {
        match &self.team {
            TeamHandle::Own(team) => team.pin_caller(),
            TeamHandle::Shared(_) => false,
        }
    }

    /// Makes room for `batch` sequences of `steps` steps, if there is less. Allocates.
    ///
    /// # Errors
    /// [`SessionError::TooLarge`]; the session keeps the room it had.
    pub fn reserve(&mut self, batch: usize, steps: usize) -> Result<(), SessionError> {
        let larger = (batch.max(self.room.0), steps.max(self.room.1));
        if larger != self.room {
            self.groups = room(&self.model, larger.0, larger.1)?;
            self.room = larger;
        }
        Ok(())
    }

    /// Runs the model over `input` and writes what `output` asks for.
    ///
    /// An input of no sequences or no steps is no error: outputs are empty and final states are the
    /// initial ones, as for any sequence of length 0.
    ///
    /// # Errors
    /// Slices that do not fit, or more sequences or steps than there is room for: nothing has been
    /// written then.
    pub fn run(&mut self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), RunError> {
        self.start_whole(input, output, None, |_| Off)?;
        Ok(())
    }

    /// As [`Session::run`], to the same bits, on threads that `host` lends for this run, if the
    /// session was made with [`Team::for_host`]; on its own threads otherwise.
    ///
    /// ```
    /// use gatestream::execute::PackedModel;
    /// use gatestream::execute::team::{HostThreads, Team};
    /// # use gatestream::model::{Input, Lstm, Output};
    /// # use gatestream::{Plan, Session};
    /// # struct Scoped;
    /// # impl HostThreads for Scoped {
    /// #     fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
    /// #         std::thread::scope(|scope| {
    /// #             (1..count).for_each(|_| drop(scope.spawn(task)));
    /// #             task();
    /// #         });
    /// #     }
    /// # }
    /// # let model = Lstm::new(8, 16).random(1)?;
    /// # let (steps, batch) = (5, 2);
    /// # let input = vec![0.5; steps * batch * 8];
    /// # let mut output = vec![0.0; steps * batch * 16];
    /// let plan = Plan::with_threads(&model, batch, steps, 2);
    /// let mut team = Team::for_host(2)?;
    /// let packed = PackedModel::new(&model, &plan, &mut team)?;
    /// let mut session = Session::with_team(packed, team)?;
    /// let (input, mut output) = (Input::new(&input, steps, batch), Output::new(&mut output));
    /// session.run_on_host(&input, &mut output, &Scoped)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_on_host(
        &mut self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        host: &dyn HostThreads,
    ) -> Result<(), RunError> {
        self.start_whole(input, output, Some(host), |_| Off)?;
        Ok(())
    }

    /// As [`Session::run`], to the same bits, and tells where the time went. Allocates the trace.
    ///
    /// ```
    /// # use gatestream::model::{Input, Lstm, Output};
    /// use gatestream::execute::Activity;
    /// # use gatestream::{Plan, Session};
    /// # let model = Lstm::new(8, 16).random(1)?;
    /// # let (steps, batch) = (5, 2);
    /// # let mut session = Session::new(&model, &Plan::estimate(&model, batch, steps, 2))?;
    /// # let input = vec![0.5; steps * batch * 8];
    /// # let mut output = vec![0.0; steps * batch * 16];
    /// let (input, mut output) = (Input::new(&input, steps, batch), Output::new(&mut output));
    /// let trace = session.run_traced(&input, &mut output)?;
    /// let caller = &trace.workers[0];
    /// assert_eq!(caller.spent(Activity::Gates).calls, 5); // once a step
    /// assert!(caller.spent(Activity::Gates).time < trace.wall);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_traced(
        &mut self,
        input: &Input<'_>,
        output: &mut Output<'_>,
    ) -> Result<Trace, RunError> {
        let plan = self.model.plan();
        let tables = Tables::new(plan.threads(), self.model.configurations[0].layers.len());
        let workers = self.start_whole(input, output, None, |worker| tables.probe(worker))?;
        Ok(tables.finish(workers))
    }

    /// Runs whole sequences, with a probe for each worker of the team. Returns how many took part.
    fn start_whole<P: Probe>(
        &mut self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        host: Option<&dyn HostThreads>,
        probe: impl Fn(usize) -> P + Sync,
    ) -> Result<usize, RunError> {
        let signature = self.model.signature();
        input.check(&signature, output)?;
        let given = |states: Option<&[f32]>| {
            states.map(|s| {
                // SAFETY: the slice outlives the run, and a run only reads its initial states.
                unsafe { Shared::from_raw(s.as_ptr().cast_mut(), s.len()) }
            })
        };
        let h = [given(input.h0), output.hn.as_deref_mut().map(Shared::new)];
        let c = [given(input.c0), output.cn.as_deref_mut().map(Shared::new)];
        let (mut before_h, mut before_c) = (0, 0);
        let mut states: Vec<CallerState<'_>> = std::mem::take(&mut self.states);
        for direction in self.model.configurations[0].directions() {
            states.push(CallerState::of_blocks(h, before_h, direction.state));
            before_h += input.batch * direction.state;
            if direction.step.has_cell_state {
                states.push(CallerState::of_blocks(c, before_c, direction.hidden));
                before_c += input.batch * direction.hidden;
            }
        }
        let output = output.values.as_deref_mut();
        let call = Call {
            input,
            rows: RowsRef::contiguous(input.values, signature.input),
            states: &states,
            output: output
                .map(|values| SharedRows::contiguous(Shared::new(values), signature.output)),
        };
        let ran = self.start(call, host, probe);
        self.states = recycle_vec(states);
        ran
    }

    /// One step of `state.batch()` streams: `x` is `[batch, input]`, `y` `[batch, output]`, and
    /// `state` goes from before the step to after it.
    ///
    /// Any interleaving of streams over sessions gives the bits of running each whole.
    ///
    /// # Errors
    /// As [`Session::run`]; [`RunError::NotStreamable`] for a model with a reverse direction.
    pub fn step(&mut self, x: &[f32], state: &mut State, y: &mut [f32]) -> Result<(), RunError> {
        if !self.model.streams {
            return Err(RunError::NotStreamable);
        }
        let signature = self.model.signature();
        let batch = state.batch();
        let output = Output {
            values: Some(&mut *y),
            hn: Some(&mut state.h),
            cn: Some(&mut state.c),
        };
        let input = Input::new(x, 1, batch).layout(Layout::TimeMajor);
        input.check(&signature, &output)?;
        let model = Arc::clone(&self.model);
        let (mut h, mut c) = (&mut state.h[..], &mut state.c[..]);
        let states = state_blocks(&model).map(|block| {
            let of = if block.is_cell_state { &mut c } else { &mut h };
            take_block(of, batch, block.size)
        });
        let steps = Steps::one(batch, RowsRef::contiguous(x, signature.input));
        self.step_rows(
            steps,
            states,
            Some(RowsMut::contiguous(y, signature.output)),
        )
    }

    /// As [`PackedModel::state_of`].
    ///
    /// # Errors
    /// As [`PackedModel::state_of`].
    pub fn state_of(&self, streams: &[(&State, usize)]) -> Result<State, InputError> {
        self.model.state_of(streams)
    }

    /// The states of a stream, in the order of [`Session::step_rows`].
    pub(crate) fn state_blocks(&self) -> impl Iterator<Item = StateBlock> {
        state_blocks(&self.model)
    }

    /// Values per stream of each state, in the order of [`Session::step_rows`].
    pub fn state_sizes(&self) -> impl Iterator<Item = usize> {
        self.model.configurations[0].state_sizes()
    }

    /// A step of each stream, or several: the one function that streaming and serving need.
    ///
    /// `states` has the rows of each state, a row a stream: for each layer the hidden state and, of
    /// an LSTM, then the cell state, in the order of the layers ([`Session::state_sizes`]). They go
    /// from before the first step to after the last. `y` has rows of the output, as many as `steps`
    /// has of the input, which are zero past a stream's last step; without it nothing is written
    /// but the states.
    ///
    /// Rows may be contiguous or gathered, each in a buffer of its own, and may be longer than is
    /// needed. Several steps at once are faster than one after the other where products of the
    /// inputs, taken together, read the weights once. Any interleaving gives the same bits.
    ///
    /// ```
    /// use gatestream::execute::{Session, Steps};
    /// use gatestream::kernels::{RowsMut, RowsRef};
    /// use gatestream::model::Gru;
    /// use gatestream::plan::Plan;
    ///
    /// let model = Gru::new(3, 8).random(1)?;
    /// let mut session = Session::new(&model, &Plan::estimate(&model, 2, 4, 1))?;
    /// let (x, mut y) = ([0.5; 4 * 2 * 3], [0.0; 4 * 2 * 8]);
    /// let (mut first, mut second) = ([0.0; 8], [0.0; 8]);
    /// let mut rows = [&mut first[..], &mut second[..]];
    /// session.step_rows(
    ///     Steps::several(&[4, 2], RowsRef::contiguous(&x, 3)),
    ///     [RowsMut::gathered(&mut rows)],
    ///     Some(RowsMut::contiguous(&mut y, 8)),
    /// )?;
    /// assert_eq!(first, y[3 * 16..3 * 16 + 8]); // after four steps
    /// assert_eq!(second, y[16 + 8..2 * 16]); // after two
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_rows<'s>(
        &mut self,
        steps: Steps<'_>,
        states: impl IntoIterator<Item = RowsMut<'s>>,
        y: Option<RowsMut<'_>>,
    ) -> Result<(), RunError> {
        if !self.model.streams {
            return Err(RunError::NotStreamable);
        }
        let (signature, batch) = (self.model.signature(), steps.batch());
        let mut input = Input::new(&[], steps.steps(), batch).layout(Layout::TimeMajor);
        input.lengths = steps.lengths();
        input.check_rows(&signature, steps.x())?;
        input.check_others(&signature, &Output::default())?;
        let output = y.map(RowsMut::share);
        if let Some(y) = output {
            fits("output", y, steps.steps() * batch, signature.output)?;
        }
        let mut list: Vec<CallerState<'_>> = std::mem::take(&mut self.states);
        // One more than there are is refused.
        let max = self.model.configurations[0].state_sizes().count() + 1;
        list.extend((states.into_iter().take(max)).map(|s| CallerState::in_place(s.share())));
        let ran = self.check_states(batch, &list).and_then(|()| {
            let call = Call {
                input: &input,
                rows: steps.x(),
                states: &list,
                output,
            };
            self.start(call, None, |_| Off)
        });
        self.states = recycle_vec(list);
        ran.map(drop)
    }

    /// Rows for each state, none too short.
    fn check_states(&self, batch: usize, states: &[CallerState<'_>]) -> Result<(), RunError> {
        let mut given = states.iter().filter_map(|state| state.after);
        for size in self.state_sizes() {
            let rows = given.next().unwrap_or(SharedRows::EMPTY);
            fits("states", rows, batch, size)?;
        }
        match given.next() {
            None => Ok(()),
            Some(more) => Err(RunError::Input(InputError::Values {
                name: "states",
                expected: 0,
                found: more.values(),
            })),
        }
    }

    /// Runs a checked call, with a probe for each worker. Returns how many took part.
    fn start<P: Probe>(
        &mut self,
        call: Call<'_>,
        host: Option<&dyn HostThreads>,
        probe: impl Fn(usize) -> P + Sync,
    ) -> Result<usize, RunError> {
        let Call {
            input,
            rows,
            states,
            output,
        } = call;
        let Input { batch, steps, .. } = *input;
        let (room_batch, room_steps) = self.room;
        if batch > room_batch || steps > room_steps {
            return Err(RunError::Capacity {
                batch,
                steps,
                room_batch,
                room_steps,
            });
        }
        let nearest = || self.model.plan.nearest(batch, steps);
        let entry = self.fixed.unwrap_or_else(nearest);
        let configuration = &self.model.configurations[entry];
        let layout = input.layout_for(&self.model.signature());
        let row_groups = configuration.row_groups;
        for (index, group) in self.groups.iter_mut().enumerate().take(row_groups) {
            group.active.set(input, layout, (index, row_groups));
        }
        let (groups, kernels) = (&self.groups, &*self.model.kernels);
        let is_odd = self.is_odd;
        self.is_odd ^= steps % 2 == 1;
        let size = configuration.group_size();
        let work_on = |share: &Share<'_>, group: usize| {
            let members = Members {
                share,
                first: group * size,
                size,
            };
            let Some(first) = members.own().next() else {
                return;
            };
            let run = Run {
                kernels,
                configuration,
                buffers: &groups[group].buffers,
                active: &groups[group].active,
                layout,
                steps,
                batch,
                is_odd,
                input: rows,
                states,
                values: output,
            };
            // SAFETY: each thread calls this once for its workers of a group, groups have buffers
            // and sequences of their own, and `&mut self` and the slices' borrows keep everybody
            // else away.
            unsafe { walk::work(&run, members, probe(members.first + first)) };
        };
        let work = |share: &Share<'_>| (0..row_groups).for_each(|group| work_on(share, group));
        let threads = configuration.threads;
        match (&mut self.team, P::IS_OFF) {
            (TeamHandle::Own(team), true) => match host {
                Some(host) => team.run_on_host(host, threads, work)?,
                None => team.run_shares(threads, work)?,
            },
            (TeamHandle::Shared(team), true) => team.run_shares(threads, work)?,
            // The table of a trace is one worker's.
            (TeamHandle::Own(team), false) => team.run_on(threads, |w| work(w.share()))?,
            (TeamHandle::Shared(team), false) => team.run_on(threads, |w| work(w.share()))?,
        }
        Ok(threads)
    }
}

/// Takes the first block of `[batch, size]`.
fn take_block<'a>(blocks: &mut &'a mut [f32], batch: usize, size: usize) -> RowsMut<'a> {
    let (block, others) = std::mem::take(blocks).split_at_mut(batch * size);
    *blocks = others;
    RowsMut::contiguous(block, size)
}

/// Refuses rows that are too few or too short.
pub(super) fn fits(
    name: &'static str,
    of: SharedRows<'_>,
    rows: usize,
    width: usize,
) -> Result<(), InputError> {
    if of.fits(rows, width) {
        return Ok(());
    }
    Err(InputError::Values {
        name,
        expected: rows * width,
        found: of.values(),
    })
}
