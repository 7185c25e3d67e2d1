//! What can be tuned: a model, or a cell of a tree.

use super::verify::{CHECKED_ROWS, Check, compare};
use super::{TuneError, VerifyError, candidates};
use crate::execute::team::{SharedTeam, Team};
use crate::execute::{PackError, RunError, Session, SessionError, TreeRows, TreeStep};
use crate::model::{Input, Model, Output, TreeWeights};
use crate::plan::{Configuration, Plan, arrangements, tree_arrangements};
use crate::reference::tree_step;
use gatestream_kernels::{Isa, RowsMut, RowsRef};

/// What a search needs to know of what it tunes.
pub(super) trait Subject: Sync {
    /// The estimate for a size, as sequences and steps, on up to `cores` cores.
    fn estimate(&self, size: (usize, usize), cores: usize) -> Configuration;
    /// Every way to distribute the work over the cores.
    fn arrangements(&self, size: (usize, usize), cores: usize) -> Vec<Configuration>;
    /// The configuration with every schedule.
    fn with_schedules(&self, base: &Configuration) -> Vec<Configuration>;
    /// Packs candidates together.
    fn pack<'s>(
        &'s self,
        all: &[Configuration],
        size: (usize, usize),
        lengths: &[usize],
    ) -> Result<Box<dyn Candidates + 's>, TuneError>;
}

/// Packed candidates, which run in turn.
pub(super) trait Candidates {
    /// Runs as one of them, and compares every bit with the reference.
    fn verify(&mut self, candidate: usize) -> Result<(), VerifyError>;
    /// Runs as one of them.
    fn run(&mut self, candidate: usize) -> Result<(), RunError>;
}

/// Multiply-adds of the reference run that candidates are compared with: about a tenth of a second.
const CHECKED_PRODUCTS: usize = Check::THOROUGH / 10;

impl Subject for Model {
    fn estimate(&self, (batch, steps): (usize, usize), cores: usize) -> Configuration {
        let mut plan = Plan::estimate(self, batch, steps, cores);
        plan.entries.remove(0).configuration
    }

    fn arrangements(&self, size: (usize, usize), cores: usize) -> Vec<Configuration> {
        arrangements(self, size, cores)
    }

    fn with_schedules(&self, base: &Configuration) -> Vec<Configuration> {
        candidates::with_schedules(self, base)
    }

    fn pack<'s>(
        &'s self,
        all: &[Configuration],
        size: (usize, usize),
        lengths: &[usize],
    ) -> Result<Box<dyn Candidates + 's>, TuneError> {
        Ok(Box::new(Sessions::new(self, all, size, lengths)?))
    }
}

/// One session that can run as any candidate, and its input.
struct Sessions<'m> {
    model: &'m Model,
    all: Vec<Configuration>,
    session: Session,
    /// Made when it is first asked for.
    check: Option<Check>,
    size: (usize, usize),
    values: Vec<f32>,
    lengths: Option<Vec<usize>>,
    output: Vec<f32>,
}

impl<'m> Sessions<'m> {
    fn new(
        model: &'m Model,
        all: &[Configuration],
        (batch, steps): (usize, usize),
        lengths: &[usize],
    ) -> Result<Sessions<'m>, TuneError> {
        let session = Session::for_candidates(model, all, batch, steps)?;
        session.pin_caller();
        let signature = model.signature();
        let mut lengths = lengths.to_vec();
        if batch < lengths.len() {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths = (0..batch)
                .map(|s| lengths[s * lengths.len() / batch])
                .collect();
        }
        let dealt = lengths.iter().cycle().take(batch);
        let dealt: Vec<usize> = dealt.map(|&length| length.min(steps)).collect();
        Ok(Sessions {
            model,
            all: all.to_vec(),
            check: None,
            lengths: (!dealt.is_empty()).then_some(dealt),
            values: random_values(1, steps * batch * signature.input),
            output: vec![0.0; steps * batch * signature.output],
            size: (batch, steps),
            session,
        })
    }
}

impl Candidates for Sessions<'_> {
    fn verify(&mut self, candidate: usize) -> Result<(), VerifyError> {
        self.session.run_as(candidate);
        let check = match &mut self.check {
            Some(check) => check,
            none => none.insert(Check::new(
                self.model,
                &self.all,
                self.size,
                CHECKED_PRODUCTS,
            )?),
        };
        check.hold(&mut self.session)
    }

    fn run(&mut self, candidate: usize) -> Result<(), RunError> {
        self.session.run_as(candidate);
        let mut input = Input::new(&self.values, self.size.1, self.size.0);
        if let Some(lengths) = &self.lengths {
            input = input.lengths(lengths);
        }
        self.session.run(&input, &mut Output::new(&mut self.output))
    }
}

fn random_values(seed: u64, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}

/// A size is a number of nodes, and one step.
impl Subject for TreeWeights<'_> {
    fn estimate(&self, (rows, _): (usize, usize), cores: usize) -> Configuration {
        let mut plan = Plan::estimate_tree(self, rows, cores);
        plan.entries.remove(0).configuration
    }

    fn arrangements(&self, _: (usize, usize), cores: usize) -> Vec<Configuration> {
        tree_arrangements(self, cores)
    }

    fn with_schedules(&self, base: &Configuration) -> Vec<Configuration> {
        vec![base.clone()]
    }

    fn pack<'s>(
        &'s self,
        all: &[Configuration],
        (rows, _): (usize, usize),
        _: &[usize],
    ) -> Result<Box<dyn Candidates + 's>, TuneError> {
        Ok(Box::new(TreeSteps::new(self, all, rows)?))
    }
}

/// One step that can run as any candidate, and its rows.
struct TreeSteps<'w> {
    weights: TreeWeights<'w>,
    step: TreeStep,
    rows: usize,
    x: Vec<f32>,
    /// Rows of `h`, and of `c`, of a child.
    child: Vec<f32>,
    states: [Vec<f32>; 2],
}

impl<'w> TreeSteps<'w> {
    fn new(
        weights: &TreeWeights<'w>,
        all: &[Configuration],
        rows: usize,
    ) -> Result<TreeSteps<'w>, TuneError> {
        let plan = Plan::of_candidates(all, rows, 1);
        let team = Team::with_threads(plan.threads()).map_err(SessionError::from)?;
        team.pin_caller();
        let isa = Isa::select().map_err(PackError::from)?;
        let child = if weights.cell().reads_child() {
            rows * weights.hidden_size()
        } else {
            0
        };
        Ok(TreeSteps {
            weights: *weights,
            step: TreeStep::pack(weights, &plan, &SharedTeam::new(team), isa)?,
            rows,
            x: random_values(1, rows * weights.input_size()),
            child: random_values(2, child),
            states: [3, 4].map(|seed| random_values(seed, rows * weights.hidden_size())),
        })
    }

    fn step(&mut self, rows: usize) -> Result<(), RunError> {
        let hidden = self.weights.hidden_size();
        let states = self
            .states
            .each_mut()
            .map(|s| RowsMut::contiguous(s, hidden));
        let x = RowsRef::contiguous(&self.x, self.weights.input_size());
        let child = [RowsRef::contiguous(&self.child, hidden); 2];
        self.step.run(rows, TreeRows { x, child, states })
    }
}

impl Candidates for TreeSteps<'_> {
    fn verify(&mut self, candidate: usize) -> Result<(), VerifyError> {
        let (input, hidden) = (self.weights.input_size(), self.weights.hidden_size());
        let rows = self.rows.min(CHECKED_ROWS);
        let mut expected = self.states.clone();
        let [h, c] = &mut expected;
        for row in 0..rows {
            let of = row * hidden..(row + 1) * hidden;
            let child = self.child.get(of.clone()).unwrap_or_default();
            let x = &self.x[row * input..(row + 1) * input];
            let states = [&mut h[of.clone()], &mut c[of]];
            tree_step(&self.weights, x, [child; 2], states);
        }
        self.step.run_as(candidate);
        self.step(rows)?;
        let mut states = self.states.iter().zip(&expected);
        states.try_for_each(|(found, expected)| compare(found, expected))
    }

    fn run(&mut self, candidate: usize) -> Result<(), RunError> {
        self.step.run_as(candidate);
        self.step(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;

    #[test]
    fn sequences_are_as_long_as_was_asked_for_in_turn() {
        let model = Lstm::new(2, 3).random(1).unwrap();
        let (batch, steps) = (3, 5);
        let plan = [Configuration::with_threads(&model, batch, steps, 1)];
        for (lengths, expected) in [
            (&[][..], [5, 5, 5]),
            (&[2, 9], [2, 5, 2]),
            (&[1, 2, 3, 4], [4, 3, 2]),
            (&[1, 1, 1, 1, 2, 3], [3, 1, 1]),
        ] {
            let mut track = Sessions::new(&model, &plan, (batch, steps), lengths).unwrap();
            track.run(0).unwrap();
            // Past a sequence's end the output is zero; a state of random weights is not.
            let is_running =
                |t: usize, s: usize| track.output[(t * batch + s) * 3..][..3] != [0.0; 3];
            let found = [0, 1, 2].map(|s| (0..steps).filter(|&t| is_running(t, s)).count());
            assert_eq!(found, expected, "{lengths:?}");
        }
    }
}
