use std::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;

use gatestream::execute::PackedModel;
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::layers::Sequences;
use gatestream::machine::Topology;
use gatestream::model::Layout;
use gatestream::tune::{Options, tune};
use gatestream::{Input, Model, Output, Plan, Session};

/// Where plans come from.
#[derive(Clone, Copy, Debug)]
pub struct Planning {
    /// The most cores to use.
    pub cores: usize,
    /// Time to tune each stack; `None` for an estimate.
    pub budget: Option<Duration>,
}

impl Planning {
    /// Estimates for all cores of this machine.
    pub fn estimate() -> Planning {
        let cores = Topology::detect().team_size();
        Planning {
            cores,
            budget: None,
        }
    }

    fn plan(self, model: &Model, batch: usize, steps: usize) -> Result<Plan, Box<dyn Error>> {
        let Some(budget) = self.budget else {
            return Ok(Plan::estimate(model, batch, steps, self.cores));
        };
        let options = Options::new(vec![(batch, steps)], self.cores, budget);
        Ok(tune(model, &options, |_| ControlFlow::Continue(()))?.plan)
    }
}

/// A recurrent stack that is to run on the team of an application.
pub struct Planned {
    model: Model,
    plan: Plan,
}

impl Planned {
    /// For a number of sequences, and their steps.
    pub fn new(
        model: Model,
        (batch, steps): (usize, usize),
        planning: Planning,
    ) -> Result<Planned, Box<dyn Error>> {
        let plan = planning.plan(&model, batch, steps)?;
        Ok(Planned { model, plan })
    }
}

/// Encoders on one team: they never run at once.
pub fn on_one_team<const N: usize>(
    cores: usize,
    planned: [Planned; N],
) -> Result<(SharedTeam, [Encoder; N]), Box<dyn Error>> {
    let mut team = Team::new(&Topology::detect().cpus_for_team(cores))?;
    team.pin_caller();
    let mut packed = Vec::new();
    for Planned { model, plan } in planned {
        packed.push(PackedModel::new(&model, &plan, &mut team)?);
    }
    let team = SharedTeam::new(team);
    let encoders = packed.into_iter().map(|packed| {
        Ok(Encoder {
            session: Session::on_team(packed, team.clone())?,
            output: Vec::new(),
            blocks: Vec::new(),
            states: Vec::new(),
        })
    });
    let encoders: Vec<Encoder> = encoders.collect::<Result<_, Box<dyn Error>>>()?;
    let encoders = encoders.try_into().map_err(|_| "as many as planned")?;
    Ok((team, encoders))
}

/// A recurrent stack, and room for its output.
pub struct Encoder {
    session: Session,
    /// `[batch, steps, features]`.
    output: Vec<f32>,
    /// `[2, batch, hidden]`.
    blocks: Vec<f32>,
    /// `[batch, 2 * hidden]`.
    states: Vec<f32>,
}

impl Encoder {
    /// The output at each step; zero past the end of a sequence.
    pub fn steps(&mut self, x: &Sequences<'_>) -> Result<Sequences<'_>, Box<dyn Error>> {
        let features = self.session.signature().output;
        self.session.reserve(x.batch, x.steps)?;
        self.output.resize(x.batch * x.steps * features, 0.0);
        self.session
            .run(&input(x), &mut Output::new(&mut self.output))?;
        Ok(Sequences::new(&self.output, x.batch, x.steps, features))
    }

    /// The final states of both directions of one layer, `[batch, 2 * hidden]`.
    pub fn final_states(&mut self, x: &Sequences<'_>) -> Result<&[f32], Box<dyn Error>> {
        let size = self.session.signature().hidden_state;
        let hidden = size / 2;
        self.session.reserve(x.batch, x.steps)?;
        self.blocks.resize(x.batch * size, 0.0);
        self.states.resize(x.batch * size, 0.0);
        let mut output = Output::default().hn(&mut self.blocks);
        self.session.run(&input(x), &mut output)?;
        let blocks = self.blocks.chunks(x.batch * hidden).enumerate();
        for (direction, block) in blocks {
            for (row, state) in block.chunks(hidden).zip(self.states.chunks_mut(size)) {
                state[direction * hidden..][..hidden].copy_from_slice(row);
            }
        }
        Ok(&self.states)
    }
}

fn input<'a>(x: &Sequences<'a>) -> Input<'a> {
    let input = Input::new(x.values, x.steps, x.batch).layout(Layout::BatchMajor);
    match x.lengths {
        Some(lengths) => input.lengths(lengths),
        None => input,
    }
}
