//! `Plan` and `tune`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use gatestream::model as core;
use gatestream::plan::{self, Stamp};
use gatestream::tune::{Effort, Options};
use pyo3::prelude::*;

use crate::count::{Count, threads};
use crate::errors::Error;
use crate::interrupt::{Progress, watched};
use crate::model::Model;
use crate::time::duration;

/// How a session runs a model on this machine, for requests of certain sizes.
#[pyclass(frozen, module = "gatestream")]
pub struct Plan {
    pub plan: plan::Plan,
    /// What it is for: its text names the model.
    model: Arc<core::Model>,
}

/// The effort of this name.
pub fn effort(name: &str) -> Result<Effort, Error> {
    match name {
        "estimate" => Ok(Effort::Estimate),
        "measure" => Ok(Effort::Measure),
        "exhaustive" => Ok(Effort::Exhaustive),
        _ => Err(Error::input(format!(
            "effort {name:?} is unknown; use estimate, measure or exhaustive"
        ))),
    }
}

#[pymethods]
impl Plan {
    /// A plan without measuring. Without ``batch`` and ``steps`` it has the usual sizes: 1, 4 and
    /// 16 sequences of 1, 10 and 100 steps.
    #[staticmethod]
    #[pyo3(signature = (model, batch=None, steps=None, *, threads=None))]
    fn estimate(
        model: &Model,
        batch: Option<Count>,
        steps: Option<Count>,
        threads: Option<Count>,
    ) -> PyResult<Plan> {
        let cores = self::threads(threads)?;
        let plan = match (batch, steps) {
            (None, None) => plan::Plan::estimate_usual(&model.0, cores),
            (batch, steps) => {
                let size = |asked: Option<Count>| asked.unwrap_or_else(|| Count::from(1_usize));
                let batch = size(batch).positive("batch")?;
                let steps = size(steps).positive("steps")?;
                plan::Plan::estimate(&model.0, batch, steps, cores)
            }
        };
        Ok(Plan::of(plan, model))
    }

    /// Reads a plan that was made for this model on this machine.
    ///
    /// :raises PlanError: for any other.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, model: &Model) -> PyResult<Plan> {
        let plan = py.detach(|| plan::Plan::load(path, &model.0).map_err(Error::from))?;
        Ok(Plan::of(plan, model))
    }

    /// As :meth:`load`; where that raises an error, as :meth:`estimate`.
    #[staticmethod]
    fn load_or_estimate(py: Python<'_>, path: PathBuf, model: &Model) -> PyResult<Plan> {
        let loaded =
            py.detach(|| plan::Plan::load_or_estimate(path, &model.0).map_err(Error::from))?;
        Ok(Plan::of(loaded.plan, model))
    }

    /// Writes the plan, whole or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| self.plan.save(path, &self.model).map_err(Error::from))?)
    }

    #[staticmethod]
    fn _from_text(model: &Model, text: &str) -> PyResult<Plan> {
        let stamp = Stamp::detect().map_err(Error::from)?;
        let plan = plan::Plan::from_text(text.as_bytes(), &model.0, &stamp);
        Ok(Plan::of(plan.map_err(Error::from)?, model))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Model, String))> {
        let stamp = Stamp::detect().map_err(Error::from)?;
        let text = self
            .plan
            .to_text(&self.model, &stamp)
            .map_err(Error::from)?;
        let make = py.get_type::<Plan>().getattr("_from_text")?;
        Ok((make, (Model(Arc::clone(&self.model)), text)))
    }

    /// The most threads that a run uses.
    #[getter]
    fn threads(&self) -> usize {
        self.plan.threads()
    }

    /// Sequences and steps of each entry.
    #[getter]
    fn sizes(&self) -> Vec<(usize, usize)> {
        self.plan
            .entries
            .iter()
            .map(|e| (e.batch, e.steps))
            .collect()
    }

    /// Whether all entries were measured.
    #[getter]
    fn is_tuned(&self) -> bool {
        self.plan.is_tuned()
    }

    fn __eq__(&self, other: &Plan) -> bool {
        self.plan == other.plan
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_tuned() {
            "tuned"
        } else {
            "estimated"
        };
        format!("<gatestream.Plan {kind} for {:?}>", self.sizes())
    }
}

impl Plan {
    fn of(plan: plan::Plan, model: &Model) -> Plan {
        Plan {
            plan,
            model: Arc::clone(&model.0),
        }
    }
}

/// Finds the fastest plan by measuring. Ctrl-C ends it.
///
/// :param sizes: sequences and steps of the requests to tune for.
/// :param seconds: time for all sizes together.
/// :param lengths: lengths of the sequences, repeated in turn; a longer one is cut to the steps of
///     the size. By default every sequence has all steps.
/// :param progress: called with the fraction of the time, from 0 to 1, and a text. Where it returns
///     ``False``, the tuning ends with its result so far.
#[pyfunction]
#[pyo3(signature = (model, sizes, *, threads=None, seconds=20.0, effort="measure",
    lengths=Vec::new(), progress=None))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn tune(
    py: Python<'_>,
    model: &Model,
    sizes: Vec<(Count, Count)>,
    threads: Option<Count>,
    seconds: f64,
    effort: &str,
    lengths: Vec<Count>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Plan> {
    let sizes = sizes.into_iter().map(|(batch, steps)| {
        let (batch, steps) = (batch.positive("batch")?, steps.positive("steps")?);
        Ok::<_, Error>((batch, steps))
    });
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let lengths = { lengths.into_iter() }.map(|length| length.any("a length"));
    let mut options = Options::new(sizes, self::threads(threads)?, duration(seconds)?);
    options.effort = self::effort(effort)?;
    options.lengths = lengths.collect::<Result<_, _>>()?;
    let network = &model.0;
    let tuned = watched(py, progress, |watch| {
        gatestream::tune::tune(network, &options, |now| {
            let (size, sizes) = now.size;
            let goes_on = watch.goes_on(Progress {
                fraction: now.fraction,
                stage: format!("size {} of {sizes}, {}", size + 1, now.stage),
            });
            if goes_on {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    })?;
    Ok(Plan::of(tuned.map_err(Error::from)?.plan, model))
}
