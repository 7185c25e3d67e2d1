//! A session with its input: what most contenders are, and what answers are checked against.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gatestream::tune::{Options, TuneError, Tuned, tune};
use gatestream::{Input, Model, Output, Plan, Session, reference};

use crate::rounds::Contender;
use crate::shapes::numbers;

/// A session, its input and its output.
pub struct Runner {
    session: Session,
    batch: usize,
    steps: usize,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Runner {
    /// A session for the first size of `plan`, on cores that the calling thread is pinned to.
    ///
    /// # Errors
    /// What [`Session::new`] refuses.
    pub fn new(model: &Model, plan: &Plan) -> Result<Runner, Box<dyn std::error::Error>> {
        let (batch, steps) = (plan.batch(), plan.steps());
        let session = Session::new(model, plan)?;
        session.pin_caller();
        let signature = model.signature();
        let mut runner = Runner {
            session,
            batch,
            steps,
            x: numbers(batch * steps * signature.input),
            y: vec![0.0; batch * steps * signature.output],
        };
        runner.run()?;
        Ok(runner)
    }

    /// Runs once.
    ///
    /// # Errors
    /// None for the size that the session was made for.
    pub fn run(&mut self) -> Result<Duration, Box<dyn std::error::Error>> {
        let input = Input::new(&self.x, self.steps, self.batch);
        let start = Instant::now();
        self.session.run(&input, &mut Output::new(&mut self.y))?;
        Ok(start.elapsed())
    }

    /// The input, `[steps, batch, features]`.
    pub fn x(&self) -> &[f32] {
        &self.x
    }

    /// The output of the last run, `[steps, batch, features]`.
    pub fn y(&self) -> &[f32] {
        &self.y
    }

    /// To be timed.
    pub fn contender(&mut self, name: impl Into<String>) -> Contender<'_> {
        Contender::timing_itself(name, || self.run().unwrap_or_default())
    }
}

/// A tuned plan for one size.
///
/// # Errors
/// What [`tune`] refuses.
pub fn tuned(
    model: &Model,
    (batch, steps): (usize, usize),
    cores: usize,
    budget: Duration,
) -> Result<Tuned, TuneError> {
    let options = Options::new(vec![(batch, steps)], cores, budget);
    tune(model, &options, |_| ControlFlow::Continue(()))
}

/// Multiply-adds of the reference run that answers are checked against: less than a second.
const CHECKED: usize = 150_000_000;

/// The reference's answer, over as many first steps as can be had quickly.
pub struct Expected(Vec<f32>);

impl Expected {
    /// For an input `[steps, batch, features]`.
    ///
    /// # Errors
    /// An input of another size.
    pub fn new(
        model: &Model,
        batch: usize,
        x: &[f32],
    ) -> Result<Expected, Box<dyn std::error::Error>> {
        let signature = model.signature();
        let directions = model.layers().iter().flat_map(|layer| layer.directions());
        let weights: usize = directions.map(|d| d.weights().values()).sum();
        let steps = x.len() / signature.input / batch;
        let both = model.layers().iter().any(|l| l.directions().len() > 1);
        let steps = if both {
            // A reverse direction's first output needs all steps.
            steps
        } else {
            (CHECKED / (weights * batch)).clamp(1, steps)
        };
        let mut expected = vec![0.0; steps * batch * signature.output];
        let input = Input::new(&x[..steps * batch * signature.input], steps, batch);
        reference::run(model, &input, &mut Output::new(&mut expected))?;
        Ok(Expected(expected))
    }

    /// Refuses an answer `[steps, batch, features]` that is further from the reference than `most`.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self, name: &str, y: &[f32], most: f32) -> Result<(), String> {
        if y.len() < self.0.len() {
            return Err(format!("{name} gave {} values", y.len()));
        }
        let pairs = self.0.iter().zip(y);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= most;
        match { pairs }.find(|&pair| !near(pair)) {
            None => Ok(()),
            Some((a, b)) => Err(format!("{name} gave {b} where the reference gives {a}")),
        }
    }
}
