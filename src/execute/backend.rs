//! What runs a model: this CPU, or another device. The seam is above packed weights, so that a
//! backend packs, plans and holds buffers in its own way.

use super::team::SharedTeam;
use super::{
    PackError, PackedModel, ResidentModel, ResidentNetwork, ResidentRoom, RunError, Session,
    SessionError, Steps,
};
use crate::model::{Input, Model, Output, Signature};
use crate::plan::Plan;
use gatestream_kernels::RowsMut;

/// A device that models run on.
pub trait Backend: Send + Sync {
    /// Its name in reports and errors.
    fn name(&self) -> &str;

    /// Copies the weights to where they are read, with room for the plan's batch and steps. A
    /// backend may ignore what the plan says of cores and caches.
    ///
    /// # Errors
    /// A plan that does not fit the model, or what the device lacks.
    fn prepare(&self, model: &Model, plan: &Plan) -> Result<Box<dyn PreparedModel>, SessionError>;

    /// Copies the weights for single steps, with states that stay on the device. `None` from a
    /// backend that computes in the host's memory, as [`Cpu`] does.
    ///
    /// ```
    /// use gatestream::execute::{Backend, Cpu, ResidentNetwork, ResidentRoom};
    /// use gatestream::model::Gru;
    ///
    /// let model = Gru::new(3, 8).random(1)?;
    /// let room = ResidentRoom { rows: 4, slots: 16, in_flight: 2 };
    /// let network = ResidentNetwork::of_model(&model);
    /// assert!(Cpu::new().prepare_resident(&network, room)?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Backend::prepare`]; [`SessionError::Backend`] for a model with a reverse direction.
    fn prepare_resident(
        &self,
        network: &ResidentNetwork<'_>,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, SessionError> {
        let _ = (network, room);
        Ok(None)
    }
}

/// A model on a [`Backend`], ready to run many times.
///
/// A call is made once a run or a batch, never once a step. CPUs give the bits of
/// [`reference::run`](crate::reference::run). Another device may have another
/// [order of sums](crate::reference::SumOrder), and gives the bits of
/// [`reference::run_in`](crate::reference::run_in) with it.
pub trait PreparedModel: Send {
    /// The sizes of inputs, outputs and states.
    fn signature(&self) -> Signature;

    /// As [`Session::reserve`].
    ///
    /// # Errors
    /// As [`Session::reserve`].
    fn reserve(&mut self, batch: usize, steps: usize) -> Result<(), SessionError>;

    /// As [`Session::run`].
    ///
    /// # Errors
    /// As [`Session::run`].
    fn run(&mut self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), RunError>;

    /// As [`Session::step_rows`].
    ///
    /// # Errors
    /// As [`Session::step_rows`].
    fn step_rows<'s>(
        &mut self,
        steps: Steps<'_>,
        states: &mut dyn Iterator<Item = RowsMut<'s>>,
        y: Option<RowsMut<'_>>,
    ) -> Result<(), RunError>;
}

/// This computer's cores.
///
/// ```
/// use gatestream::execute::{Backend, Cpu};
/// use gatestream::model::{Gru, Input, Output};
/// use gatestream::plan::Plan;
///
/// let model = Gru::new(3, 8).random(1)?;
/// let mut prepared = Cpu::new().prepare(&model, &Plan::estimate(&model, 1, 2, 1))?;
/// let mut output = [0.0; 2 * 8];
/// prepared.run(&Input::new(&[0.5; 2 * 3], 2, 1), &mut Output::new(&mut output))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Cpu {
    team: Option<SharedTeam>,
}

impl Cpu {
    /// Each model gets a team of its own.
    pub fn new() -> Cpu {
        Cpu::default()
    }

    /// All models take turns on this team.
    pub fn on_team(team: SharedTeam) -> Cpu {
        Cpu { team: Some(team) }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn prepare(&self, model: &Model, plan: &Plan) -> Result<Box<dyn PreparedModel>, SessionError> {
        Ok(Box::new(match &self.team {
            None => Session::new(model, plan)?,
            Some(shared) => {
                let packed = shared.turn(|team| PackedModel::new(model, plan, team));
                Session::on_team(packed.map_err(PackError::from)??, shared.clone())?
            }
        }))
    }
}

impl PreparedModel for Session {
    fn signature(&self) -> Signature {
        Session::signature(self)
    }

    fn reserve(&mut self, batch: usize, steps: usize) -> Result<(), SessionError> {
        Session::reserve(self, batch, steps)
    }

    fn run(&mut self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), RunError> {
        Session::run(self, input, output)
    }

    fn step_rows<'s>(
        &mut self,
        steps: Steps<'_>,
        states: &mut dyn Iterator<Item = RowsMut<'s>>,
        y: Option<RowsMut<'_>>,
    ) -> Result<(), RunError> {
        Session::step_rows(self, steps, states, y)
    }
}
