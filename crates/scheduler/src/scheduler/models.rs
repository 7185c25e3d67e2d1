//! The models of a scheduler: their cells among those of all models, and their accounts.
//!
//! A model is one set of cells. Its graphs number its cells from 0; tasks have the id of the cell
//! among those of all models: the first id of the model is added. Ids of removed models are used
//! again.

use std::num::NonZeroU32;
use std::ops::Range;

use super::account::{Account, Admission};
use super::{Counts, LimitOf, Limits, ModelKey, NewModel, Scheduler, Usage};
use crate::cell_graph::{CellCost, CellId};

/// The share of a model in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShare {
    /// Where models wait for the same worker, they get times of it in proportion to their weights.
    pub weight: NonZeroU32,
    /// What the model holds at most, beside the limits of the engine.
    pub limits: Limits,
}

impl Default for ModelShare {
    /// Weight 1, no limits of its own.
    fn default() -> ModelShare {
        ModelShare {
            weight: NonZeroU32::MIN,
            limits: Limits::NONE,
        }
    }
}

/// Why a model was not added or not removed. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// It has no cell.
    #[error("the model has no cells; add at least one")]
    NoCell,
    /// All models together would have more cells than there are ids.
    #[error(
        "the model has {cells} cells; not as many ids of {max} are free in a row; remove other \
         models first"
    )]
    TooManyCells {
        /// Its cells.
        cells: usize,
        /// Maximum cells of all models.
        max: usize,
    },
    /// The model was removed, or belongs to another engine.
    #[error("the engine does not have the model; it was removed, or belongs to another engine")]
    NoModel,
    /// The model is not idle.
    #[error(
        "the model has {requests} requests, {streams} open streams and {tasks} running tasks; \
         drain it before it is removed"
    )]
    Busy {
        /// Requests and segments of streams that have not ended.
        requests: u64,
        /// Open streams.
        streams: usize,
        /// Tasks at workers.
        tasks: usize,
    },
}

impl ModelError {
    /// Refuses more cells than the ids of a scheduler without models.
    pub fn check_cells(cells: usize) -> Result<(), ModelError> {
        if cells > MAX_CELLS {
            Err(ModelError::TooManyCells {
                cells,
                max: MAX_CELLS,
            })
        } else {
            Ok(())
        }
    }
}

/// Maximum number of cells of all models.
const MAX_CELLS: usize = 1 << 16;

pub(super) struct Model {
    pub key: ModelKey,
    cells: Range<usize>,
    pub account: Account,
    /// Tasks at workers.
    pub tasks: usize,
}

impl Model {
    pub fn first_cell(&self) -> CellId {
        CellId(self.cells.start as u32)
    }
}

/// A cell of a model.
#[derive(Clone, Copy)]
struct ModelCell {
    /// The index of its model.
    model: usize,
    /// Maximum number of steps of the same rows that a worker gets at once.
    steps_at_once: usize,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Models {
    models: Vec<Option<Model>>,
    /// Models that were ever added.
    added: u32,
    /// By id; `None` if the id is free.
    cells: Vec<Option<ModelCell>>,
}

impl Models {
    pub fn add(&mut self, cells: usize, limits: Limits) -> Result<&Model, ModelError> {
        if cells == 0 {
            return Err(ModelError::NoCell);
        }
        let first = self.free_ids(cells).ok_or(ModelError::TooManyCells {
            cells,
            max: MAX_CELLS,
        })?;
        let free = self.models.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.models.push(None);
            self.models.len() - 1
        });
        let key = ModelKey {
            index: index as u32,
            number: self.added,
        };
        self.added += 1;
        let cells = first..first + cells;
        self.cells.resize(self.cells.len().max(cells.end), None);
        self.cells[cells.clone()].fill(Some(ModelCell {
            model: index,
            steps_at_once: 1,
        }));
        Ok(self.models[index].insert(Model {
            key,
            cells,
            account: Account::new(LimitOf::Model, limits),
            tasks: 0,
        }))
    }

    /// The first of so many free ids in a row.
    fn free_ids(&self, cells: usize) -> Option<usize> {
        let mut first = 0;
        for (id, cell) in self.cells.iter().enumerate() {
            if cell.is_some() {
                first = id + 1;
            } else if id + 1 - first == cells {
                return Some(first);
            }
        }
        (first + cells <= MAX_CELLS).then_some(first)
    }

    pub fn remove(&mut self, key: ModelKey) -> Result<(), ModelError> {
        let model = self.get(key).ok_or(ModelError::NoModel)?;
        let (usage, tasks) = (model.account.usage, model.tasks);
        if usage.live() > 0 || usage.streams > 0 || tasks > 0 {
            return Err(ModelError::Busy {
                requests: usage.live(),
                streams: usage.streams,
                tasks,
            });
        }
        let cells = model.cells.clone();
        self.cells[cells].fill(None);
        self.models[key.index()] = None;
        Ok(())
    }

    pub fn get(&self, key: ModelKey) -> Option<&Model> {
        let model = self.models.get(key.index())?.as_ref();
        model.filter(|model| model.key == key)
    }

    pub fn get_mut(&mut self, key: ModelKey) -> Option<&mut Model> {
        let model = self.models.get_mut(key.index())?.as_mut();
        model.filter(|model| model.key == key)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().flatten()
    }

    /// The model of a task's cell.
    pub fn of_cell(&mut self, cell: CellId) -> Option<&mut Model> {
        let model = (*self.cells.get(cell.index())?)?.model;
        self.models[model].as_mut()
    }

    pub fn key_of_cell(&self, cell: CellId) -> Option<ModelKey> {
        let model = self.cells.get(cell.index()).copied().flatten()?.model;
        self.models[model].as_ref().map(|model| model.key)
    }

    pub fn set_steps_at_once(&mut self, key: ModelKey, steps: &[usize]) {
        let Some(model) = self.get(key) else {
            return;
        };
        let cells = model.cells.clone();
        for (cell, &steps) in self.cells[cells].iter_mut().flatten().zip(steps) {
            cell.steps_at_once = steps;
        }
    }

    pub fn steps_at_once(&self, cell: CellId) -> usize {
        let cell = self.cells.get(cell.index()).copied().flatten();
        cell.map_or(1, |cell| cell.steps_at_once)
    }
}

impl Scheduler {
    /// Adds a model of cells with these costs. The first model is the default of
    /// [`Requirements::model`](super::Requirements::model).
    ///
    /// # Errors
    /// [`ModelError::NoCell`], [`ModelError::TooManyCells`].
    pub fn add_model(
        &mut self,
        costs: &[CellCost],
        share: ModelShare,
    ) -> Result<ModelKey, ModelError> {
        let model = self.models.add(costs.len(), share.limits)?;
        self.policy.add_model(NewModel {
            index: model.key.index(),
            weight: share.weight,
            first_cell: model.first_cell(),
            costs,
        });
        Ok(model.key)
    }

    /// Gives a worker, with each task of the model, further steps of its rows: up to `steps` by
    /// cell, the first included, as long as they have at most [`Scheduler::STEP_ROWS`] rows
    /// together and only states pass between them. The worker may compute them in one batch. One
    /// step of each cell by default.
    pub fn set_steps_at_once(&mut self, model: ModelKey, steps: &[usize]) {
        self.models.set_steps_at_once(model, steps);
    }

    /// From now on accepts only requests of the model that
    /// [continue](super::Requirements::continues) others.
    pub fn handle_drain_model(&mut self, model: ModelKey) {
        if let Some(model) = self.models.get_mut(model) {
            model.account.admission = Admission::Continuing;
        }
    }

    /// Removes a model. Its key is refused from now on ([`Refused::NoModel`](super::Refused)), and
    /// models that are added later may have the ids of its cells.
    ///
    /// # Errors
    /// [`ModelError::Busy`] if it has live requests, open streams or running tasks,
    /// [`ModelError::NoModel`].
    pub fn remove_model(&mut self, model: ModelKey) -> Result<(), ModelError> {
        self.models.remove(model)?;
        self.policy.remove_model(model.index());
        Ok(())
    }

    /// The id of the model's first cell in tasks; those of the others follow. `None` if the model
    /// was removed.
    pub fn first_cell(&self, model: ModelKey) -> Option<CellId> {
        self.models.get(model).map(Model::first_cell)
    }

    /// Number of the model's requests so far, by how they ended.
    pub fn model_counts(&self, model: ModelKey) -> Option<Counts> {
        self.models.get(model).map(|model| model.account.counts)
    }

    /// The part of the limits that the model uses.
    pub fn model_usage(&self, model: ModelKey) -> Option<Usage> {
        self.models.get(model).map(|model| model.account.usage)
    }

    /// Number of the model's ready rows, which wait for a worker.
    pub fn model_ready(&self, model: ModelKey) -> Option<usize> {
        self.models.get(model).map(|model| model.account.ready)
    }

    /// Whether the model accepts no new requests, because it or the engine drains.
    pub fn is_model_draining(&self, model: ModelKey) -> bool {
        self.check_draining(model).is_err()
    }

    /// The model of the cell of a task.
    pub fn model_of(&self, cell: CellId) -> Option<ModelKey> {
        self.models.key_of_cell(cell)
    }

    /// Number of the model's tasks at workers; it is removed only without any.
    pub fn model_tasks(&self, model: ModelKey) -> Option<usize> {
        self.models.get(model).map(|model| model.tasks)
    }
}
