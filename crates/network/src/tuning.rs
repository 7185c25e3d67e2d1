//! The fastest plan of each recurrent region, for the sizes that it has in a run.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use gatestream::Plan;
use gatestream::plan::Stamp;
use gatestream::tune::{Effort, Options, tune};

use crate::{Network, NetworkError, NetworkPlan, Tensor};

/// Options of a tuning. Take those that are not set from the default: later versions may add some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkTuning {
    /// The time for all regions together. Those that take longer in a run get more of it.
    pub budget: Duration,
    /// The effort of the search.
    pub effort: Effort,
}

impl Default for NetworkTuning {
    /// 20 seconds, [`Effort::Measure`].
    fn default() -> NetworkTuning {
        NetworkTuning {
            budget: Duration::from_secs(20),
            effort: Effort::default(),
        }
    }
}

/// The state of a tuning.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TuningProgress<'a> {
    /// The node that is tuned now.
    pub node: &'a str,
    /// The part of the budget that is used up, from 0 to 1.
    pub fraction: f64,
}

/// The result of a tuning.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TunedNetwork {
    /// The plans of all regions, to be saved.
    pub plan: NetworkPlan,
    /// The regions, in the order of their names.
    pub regions: Vec<TunedRegion>,
    /// The caller has ended the tuning. Regions that it had not reached keep their plan.
    pub interrupted: bool,
}

/// A region and its plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TunedRegion {
    /// The name of the node.
    pub node: String,
    /// An entry for each size of the run, and those of other sizes that an earlier plan had.
    pub plan: Plan,
}

/// The sizes and the time of a region in a run.
#[derive(Default)]
struct Met {
    /// Sequences and steps.
    sizes: Vec<(usize, usize)>,
    time: Duration,
}

/// The part of the budget that all regions share evenly. The others get it by their time.
const EVEN: f64 = 0.25;

impl Network {
    /// Runs the network once, then finds the fastest plan of each recurrent region for the sizes
    /// of that run, and uses it from now on. Sizes of other inputs that the plan in use has are
    /// kept. `progress` is called after each round and each region, and may end the tuning.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// use gatestream_network::{Network, NetworkTuning, Tensor};
    ///
    /// let network = Network::open("model.onnx")?;
    /// let x = Tensor::new(&[1, 100, 80], vec![0.0f32; 8000])?;
    /// let tuned = network.tune(&[("x", &x)], NetworkTuning::default(), |progress| {
    ///     eprintln!("{:.0} %", 100.0 * progress.fraction);
    ///     ControlFlow::Continue(())
    /// })?;
    /// tuned.plan.save("model.plan")?;
    /// # Ok::<(), gatestream_network::NetworkError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::run`]; [`NetworkError::Tune`].
    pub fn tune(
        &self,
        inputs: &[(&str, &Tensor)],
        options: NetworkTuning,
        mut progress: impl FnMut(&TuningProgress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<TunedNetwork, NetworkError> {
        self.run(inputs)?;
        let profile = self.profile(inputs)?.profile;
        let mut met: BTreeMap<&str, Met> = BTreeMap::new();
        for run in profile
            .regions
            .iter()
            .filter(|run| run.batch * run.steps > 0)
        {
            let met = met.entry(&run.node).or_default();
            met.time += run.time;
            if !met.sizes.contains(&(run.batch, run.steps)) {
                met.sizes.push((run.batch, run.steps));
            }
        }
        let (count, recurrent) = (met.len(), profile.recurrent().as_secs_f64());
        let mut tuned = TunedNetwork {
            plan: self.regions().plan(),
            regions: Vec::new(),
            interrupted: false,
        };
        let mut done = 0.0;
        for (node, met) in met {
            let share =
                EVEN / count as f64 + (1.0 - EVEN) * met.time.as_secs_f64() / recurrent.max(1e-9);
            let refused = |why: &dyn std::fmt::Display| NetworkError::Tune {
                node: node.into(),
                why: why.to_string(),
            };
            let Some(region) = self.regions().of_node(node) else {
                continue;
            };
            let model = region.model();
            let stamp = Stamp::detect().map_err(|why| refused(&why))?;
            let budget = options.budget.mul_f64(share);
            let cores = self.regions().threads.count();
            let mut of_region = Options::new(met.sizes, cores, budget);
            of_region.effort = options.effort;
            let found = tune(model, &of_region, |of_region| {
                let fraction = (done + share * of_region.fraction).min(1.0);
                progress(&TuningProgress { node, fraction })
            });
            let mut found = found.map_err(|why| refused(&why))?;
            let earlier = tuned.plan.region(node);
            let earlier = earlier.map(|text| Plan::from_text(text.as_bytes(), model, &stamp));
            if let Some(Ok(earlier)) = earlier {
                found.keep(earlier);
            }
            let text = found.plan.to_text(model, &stamp);
            tuned.plan.set(node, text.map_err(|why| refused(&why))?);
            tuned.regions.push(TunedRegion {
                node: node.into(),
                plan: found.plan,
            });
            done += share;
            // A region whose time ends before its first round has not reported yet.
            let fraction = done.min(1.0);
            if found.interrupted || progress(&TuningProgress { node, fraction }).is_break() {
                tuned.interrupted = true;
                break;
            }
        }
        self.regions().use_plan(Some(tuned.plan.clone()));
        Ok(tuned)
    }
}
