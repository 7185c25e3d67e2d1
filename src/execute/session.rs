//! Sessions: packed weights, a team and buffers, ready to run many times.

use std::sync::Arc;

use super::active::Active;
use super::buffers::Buffers;
use super::packed::{PackError, PackedModel};
use super::sequence::{InputValues, Member, Run};
use super::states::StatePlaces;
use super::team::{SharedTeam, Team, TeamError, TeamPanicked, Worker};
use super::trace::{Off, Probe, Tables, Trace};
use crate::kernels::Shared;
use crate::model::{Input, InputError, Layout, Model, Output, Signature};
use crate::plan::{Configuration, Plan};
use crate::reused::reused;

/// Runs one model. A session with a team of its own waits for nobody; sessions on a
/// [`SharedTeam`] take turns.
///
/// [`Session::run`] allocates nothing, starts no thread and, on its own team, takes no lock. The
/// calling thread is worker 0 of the team: see [`Session::pin_caller`].
///
/// ```
/// use cellstream::execute::Session;
/// use cellstream::model::{Input, Lstm, Output};
/// use cellstream::plan::Plan;
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
    /// Empty between runs: room for a caller's buffers, which no run need ask the allocator for.
    layer_states: Vec<Shared<'static>>,
}

/// What one group of workers needs for its sequences.
struct Group {
    buffers: Buffers,
    active: Active,
}

enum TeamHandle {
    Own(Team),
    Shared(SharedTeam),
}

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The team could not be made.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// The weights could not be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// There is no memory for so many sequences or steps.
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
pub enum RunError {
    /// A slice or length that does not fit. Nothing has been written.
    #[error(transparent)]
    Input(#[from] InputError),
    /// More sequences or steps than the session has room for. Nothing has been written.
    #[error(
        "the input has {batch} sequences of {steps} steps, the session has room for {room_batch} of \
         {room_steps}; call reserve({batch}, {steps}) first"
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
    /// A reverse direction needs the end of a sequence first, so it cannot be fed step by step.
    #[error("a model with a reverse direction cannot run step by step; run whole sequences")]
    NotStreamable,
    /// A worker panicked; what the run has written is incomplete.
    #[error(transparent)]
    Team(#[from] TeamPanicked),
}

/// The states of a batch of streams, held by the caller between steps.
///
/// Blocks of `[batch, size]` per layer, as [`Input::h0`] and [`Input::c0`].
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    batch: usize,
    /// Hidden state.
    pub h: Vec<f32>,
    /// Cell state; empty for models with no LSTM layer.
    pub c: Vec<f32>,
}

impl State {
    /// Zero states for `batch` streams.
    pub fn zero(signature: Signature, batch: usize) -> State {
        State {
            batch,
            h: vec![0.0; batch * signature.hidden_state],
            c: vec![0.0; batch * signature.cell_state],
        }
    }

    /// Number of streams.
    pub fn batch(&self) -> usize {
        self.batch
    }
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
        Session::with_handle(packed, TeamHandle::Own(team))
    }

    /// A session on weights that are packed already, with a team of its own.
    ///
    /// # Errors
    /// What [`Team::with_threads`] refuses; [`SessionError::TooLarge`].
    pub fn from_packed(packed: Arc<PackedModel>) -> Result<Session, SessionError> {
        let team = Team::with_threads(packed.plan().threads())?;
        Session::with_handle(packed, TeamHandle::Own(team))
    }

    /// A session on weights that are packed already, with this team, on the cores that it is on.
    /// Sessions that are to run at once need cores of their own: [`Team::with_threads`] gives each
    /// team the same ones.
    ///
    /// # Errors
    /// [`PackError::Threads`] when the team has fewer threads than the plan asks for;
    /// [`SessionError::TooLarge`].
    pub fn with_team(packed: Arc<PackedModel>, team: Team) -> Result<Session, SessionError> {
        Session::with_handle(packed, TeamHandle::Own(team))
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
        let plan = Plan {
            entries: (candidates.iter())
                .flat_map(|c| Plan::of(c.clone(), batch, steps).entries)
                .collect(),
        };
        let mut team = Team::with_threads(plan.threads())?;
        let packed = PackedModel::for_candidates(model, &plan, &mut team)?;
        Session::with_handle(packed, TeamHandle::Own(team))
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
        let states = model.configurations[0].state_sizes().count();
        Ok(Session {
            model,
            team,
            room: (batch, steps),
            fixed: None,
            is_odd: false,
            groups,
            layer_states: Vec::with_capacity(states + 1),
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

    /// Pins the calling thread to the core of worker 0, which is whoever calls [`Session::run`].
    /// Without it the system may put the caller on a core where another worker spins. `false` where
    /// the system refuses, or the team is shared.
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
        self.start_whole(input, output, |_| Off)?;
        Ok(())
    }

    /// As [`Session::run`], to the same bits, and tells where the time went. Allocates the trace.
    ///
    /// ```
    /// # use cellstream::model::{Input, Lstm, Output};
    /// use cellstream::execute::Activity;
    /// # use cellstream::{Plan, Session};
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
        let workers = self.start_whole(input, output, |worker| tables.probe(worker))?;
        Ok(tables.finish(workers))
    }

    /// Runs whole sequences, with a probe for each worker of the team. Returns how many took part.
    fn start_whole<P: Probe>(
        &mut self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        probe: impl Fn(usize) -> P + Sync,
    ) -> Result<usize, RunError> {
        input.check(&self.model.signature(), output)?;
        let given = |states: Option<&[f32]>| {
            states.map(|s| {
                // SAFETY: the slice outlives the run, and a run only reads its initial states.
                unsafe { Shared::from_raw(s.as_ptr().cast_mut(), s.len()) }
            })
        };
        let (h0, c0) = (given(input.h0), given(input.c0));
        let values = output.values.as_deref_mut().map(Shared::new);
        let hn = output.hn.as_deref_mut().map(Shared::new);
        let cn = output.cn.as_deref_mut().map(Shared::new);
        let states = StatePlaces::Blocks {
            initial: (h0, c0),
            last: (hn, cn),
        };
        let from = InputValues::Together(input.values);
        self.start((input, from), states, values, probe)
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
        let input = Input::new(x, 1, state.batch).layout(Layout::TimeMajor);
        let output = Output {
            values: Some(y),
            hn: Some(&mut state.h),
            cn: Some(&mut state.c),
        };
        input.check(&self.model.signature(), &output)?;
        let states = StatePlaces::Same(Shared::new(&mut state.h), Shared::new(&mut state.c));
        let from = (&input, InputValues::Together(x));
        self.start(from, states, Some(Shared::new(y)), |_| Off)?;
        Ok(())
    }

    /// As [`Session::step`], of `batch` streams whose states stand in buffers of their own: for each
    /// layer the hidden state, and after it the cell state where the layer is an LSTM, in the order of
    /// the layers. Each is `[batch, size]`, a vector or a slice, and may go on after that. So a batch of another size
    /// moves no layer's states. `y` `[batch, output]` may be left out: it equals the last layer's hidden state.
    ///
    /// ```
    /// use cellstream::execute::Session;
    /// use cellstream::model::Gru;
    /// use cellstream::plan::Plan;
    ///
    /// let model = Gru::new(3, 8).layers(2).random(1)?;
    /// let mut session = Session::new(&model, &Plan::estimate(&model, 4, 1, 1))?;
    /// let mut states = [vec![0.0; 4 * 8], vec![0.0; 4 * 8]];
    /// let mut y = [0.0; 2 * 8];
    /// session.step_layers(2, &[0.5; 2 * 3], &mut states, Some(&mut y))?;
    /// assert_eq!(states[1][..16], y);
    /// assert_eq!(states[1][16..], [0.0; 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_layers(
        &mut self,
        batch: usize,
        x: &[f32],
        states: &mut [impl AsMut<[f32]>],
        y: Option<&mut [f32]>,
    ) -> Result<(), RunError> {
        let x = InputValues::Together(x);
        self.steps_of((batch, None), x, states, y)
    }

    /// As [`Session::step_layers`], of several steps: stream `b` takes `lengths[b]` of them, and as many as the longest
    /// are in `x` `[steps, batch, input]` and `y` `[steps, batch, output]`, which is zero past a stream's last step.
    /// Faster than one step after the other where products of the inputs, taken together, read the weights once.
    ///
    /// ```
    /// use cellstream::execute::Session;
    /// use cellstream::model::Gru;
    /// use cellstream::plan::Plan;
    ///
    /// let model = Gru::new(3, 8).random(1)?;
    /// let mut session = Session::new(&model, &Plan::estimate(&model, 2, 4, 1))?;
    /// let (mut h, mut y) = ([0.0; 2 * 8], [0.0; 4 * 2 * 8]);
    /// session.steps_layers(&[4, 2], &[0.5; 4 * 2 * 3], &mut [&mut h[..]], Some(&mut y))?;
    /// assert_eq!(h[..8], y[3 * 16..3 * 16 + 8]); // after four steps
    /// assert_eq!(h[8..], y[16 + 8..2 * 16]); // after two
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn steps_layers(
        &mut self,
        lengths: &[usize],
        x: &[f32],
        states: &mut [impl AsMut<[f32]>],
        y: Option<&mut [f32]>,
    ) -> Result<(), RunError> {
        let x = InputValues::Together(x);
        self.steps_of((lengths.len(), Some(lengths)), x, states, y)
    }

    /// As [`Session::steps_layers`], or, without lengths, [`Session::step_layers`], of inputs that may lie apart: then row
    /// `t * batch + b` is that of stream `b` at step `t`.
    ///
    /// # Errors
    /// As [`Session::step`].
    #[doc(hidden)]
    pub fn steps_of(
        &mut self,
        (batch, lengths): (usize, Option<&[usize]>),
        x: InputValues<'_>,
        states: &mut [impl AsMut<[f32]>],
        y: Option<&mut [f32]>,
    ) -> Result<(), RunError> {
        if !self.model.streams {
            return Err(RunError::NotStreamable);
        }
        let steps = lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0));
        let mut input = Input::new(&[], steps, batch).layout(Layout::TimeMajor);
        input.lengths = lengths;
        let output = Output {
            values: y,
            ..Output::default()
        };
        match x {
            InputValues::Together(values) => {
                input.values = values;
                input.check(&self.model.signature(), &output)?;
            }
            InputValues::Apart(rows) => {
                input.check_rows(&self.model.signature(), rows)?;
                input.check_others(&self.model.signature(), &output)?;
            }
        }
        // One more than there are states is refused below.
        let most = self.model.configurations[0].state_sizes().count() + 1;
        let mut buffers: Vec<Shared<'_>> = std::mem::take(&mut self.layer_states);
        buffers.extend(
            states
                .iter_mut()
                .take(most)
                .map(|s| Shared::new(s.as_mut())),
        );
        let ran = self.check_layers(input.batch, &buffers).and_then(|()| {
            let values = output.values.map(Shared::new);
            self.start((&input, x), StatePlaces::Layers(&buffers), values, |_| Off)
        });
        self.layer_states = reused(buffers);
        ran.map(drop)
    }

    /// A buffer for each layer's states, none too short.
    fn check_layers(&self, batch: usize, states: &[Shared<'_>]) -> Result<(), RunError> {
        let mut sizes = self.model.configurations[0].state_sizes();
        let mut buffers = states.iter();
        loop {
            let (expected, found) = match (sizes.next(), buffers.next()) {
                (None, None) => return Ok(()),
                (Some(size), Some(buffer)) if buffer.len() >= batch * size => continue,
                (size, buffer) => (
                    size.map_or(0, |size| batch * size),
                    buffer.map_or(0, Shared::len),
                ),
            };
            let name = "states";
            return Err(RunError::Input(InputError::Values {
                name,
                expected,
                found,
            }));
        }
    }

    /// Runs a checked input, whose values are those beside it, and writes its output to `values`, with a probe for each
    /// worker. Returns how many took part.
    fn start<P: Probe>(
        &mut self,
        (input, from): (&Input<'_>, InputValues<'_>),
        states: StatePlaces<'_>,
        values: Option<Shared<'_>>,
        probe: impl Fn(usize) -> P + Sync,
    ) -> Result<usize, RunError> {
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
        let work = |worker: Worker<'_>| {
            let size = configuration.group_size();
            let group = worker.index / size;
            let run = Run {
                kernels,
                configuration,
                buffers: &groups[group].buffers,
                active: &groups[group].active,
                layout,
                steps,
                batch,
                is_odd,
                input: from,
                states,
                values,
            };
            let member = Member {
                index: worker.index % size,
                first: group * size,
                worker: &worker,
            };
            // SAFETY: each worker calls this once, groups have buffers and sequences of their own,
            // and `&mut self` and the slices' borrows keep everybody else away.
            unsafe { run.work(member, probe(worker.index)) };
        };
        match &mut self.team {
            TeamHandle::Own(team) => team.run_on(configuration.threads, work)?,
            TeamHandle::Shared(team) => team.run_on(configuration.threads, work)?,
        }
        Ok(configuration.threads)
    }
}
