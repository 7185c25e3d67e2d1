//! The models that are loaded: names, versions, engines.
//!
//! One engine serves all models of a policy. A model is replaced by a new load: requests go to the
//! new one at once, the old one answers what it has accepted and keeps its open sequences until
//! they end.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use gatestream_serve::Engine;
use gatestream_serve::engine::{self, EngineOptions, ModelOptions};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::LimitOf;

use crate::error::{ErrorKind, InferError};
use crate::networks::{Admission, Admissions, GraphHost, Network};
use crate::repository::{ModelConfig, Repository};
use crate::sequences::{SequenceKey, SequenceLimits, Sequences};
use crate::statistics::Statistics;
use crate::warm_up;

/// When a client should ask again for a model that is being loaded.
const LOADING: Duration = Duration::from_secs(1);

/// A version of a model that is loaded.
pub struct LoadedModel {
    pub name: String,
    pub version: u64,
    pub network: Network,
    /// `None`: the network runs on threads of its own.
    pub model: Option<engine::Model>,
    pub sequences: Sequences,
    pub statistics: Statistics,
    pub takes_only_sequences: bool,
    /// Why its file, which is run as a graph, is no stack of layers.
    no_stack: Option<String>,
}

impl LoadedModel {
    /// Number of batches of cells; of a network on threads of its own, that of its requests.
    pub fn batches(&self) -> u64 {
        let stats = self.model.as_ref().and_then(|model| model.stats());
        stats.map_or(self.statistics.success.count(), |stats| {
            stats.cells.iter().flat_map(|cell| &cell.batches).sum()
        })
    }
}

/// A model of the repository, loaded or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    pub name: String,
    /// Empty: none is loaded.
    pub version: String,
    pub is_ready: bool,
    /// Whether it is loaded now, or soon, and none of its versions is ready.
    pub is_loading: bool,
    /// Why it is not ready; of one that is ready, why its last load has failed, or why it is run as
    /// a graph.
    pub reason: String,
}

impl IndexEntry {
    /// The name of the state in the protocol.
    pub fn state(&self) -> &'static str {
        if self.is_ready {
            "READY"
        } else if self.is_loading {
            "LOADING"
        } else {
            "UNAVAILABLE"
        }
    }
}

/// See the [module](self).
pub struct Models {
    repository: Repository,
    options: EngineOptions,
    graphs: GraphHost,
    /// Of requests that wait for another one of their sequence.
    waiting: Arc<Admission>,
    engines: Mutex<HashMap<PolicyKind, Arc<Engine>>>,
    loaded: RwLock<HashMap<String, Versions>>,
    /// Held during a load or an unload, so that no two of them start an engine of one policy.
    changing: Mutex<()>,
}

/// The loaded versions of a model.
#[derive(Default)]
struct Versions {
    current: BTreeMap<u64, Arc<LoadedModel>>,
    /// Replaced, but with open sequences.
    old: Vec<Arc<LoadedModel>>,
    /// Why the last load has failed.
    failure: String,
    /// A load is under way, or soon.
    is_loading: bool,
}

/// A model whose last load has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedModel {
    pub name: String,
    pub why: String,
    /// Whether a version of an earlier load is served.
    pub is_served: bool,
}

impl Models {
    pub fn new(repository: Repository, options: EngineOptions) -> Models {
        Models {
            repository,
            graphs: GraphHost::new(options.limits),
            waiting: Admission::new(options.limits, LimitOf::Engine),
            options,
            engines: Mutex::default(),
            loaded: RwLock::default(),
            changing: Mutex::default(),
        }
    }

    /// Announces the loads of all models of the repository: until its load has ended, a model is
    /// unavailable instead of unknown.
    ///
    /// # Errors
    /// The repository cannot be read.
    pub fn announce_all(&self) -> Result<(), InferError> {
        let names = self.names()?;
        let mut all = self.write();
        for name in names {
            all.entry(name).or_default().is_loading = true;
        }
        Ok(())
    }

    /// Loads all models of the repository. Those that cannot be loaded are in the index, with the
    /// reason.
    ///
    /// # Errors
    /// The repository cannot be read.
    pub fn load_all(&self) -> Result<(), InferError> {
        for name in self.names()? {
            // The error is in the log and in the index.
            let _ = self.load(&name);
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, InferError> {
        self.repository.names().map_err(|why| {
            // Clients do not learn paths.
            tracing::error!("the repository cannot be read: {why}");
            InferError::new(ErrorKind::Internal, "the repository cannot be read")
        })
    }

    /// Loads a model, or loads it again.
    ///
    /// # Errors
    /// There is no such model in the repository, or it cannot be loaded; what was loaded stays.
    pub fn load(&self, name: &str) -> Result<(), InferError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.load_versions(name).map_err(|error| {
            tracing::error!(model = name, "the model cannot be loaded: {error}");
            // Clients do not learn paths.
            let message = self.repository.without_paths(&error.message);
            InferError { message, ..error }
        });
        let mut all = self.write();
        if let Some(versions) = all.get_mut(name) {
            versions.is_loading = false;
        }
        match loaded {
            Ok(current) => {
                let versions = all.entry(name.to_owned()).or_default();
                versions.failure.clear();
                let old = std::mem::replace(&mut versions.current, current);
                versions.old.extend(old.into_values());
                drop(all);
                self.retire();
                Ok(())
            }
            Err(error) => {
                let is_gone = error.kind == ErrorKind::NotFound;
                let versions = all.entry(name.to_owned()).or_default();
                if !is_gone {
                    versions.failure = error.message.clone();
                } else if versions.current.is_empty() && versions.old.is_empty() {
                    all.remove(name);
                }
                Err(error)
            }
        }
    }

    fn load_versions(&self, name: &str) -> Result<BTreeMap<u64, Arc<LoadedModel>>, InferError> {
        let entry = self.repository.entry(name).map_err(InferError::invalid)?;
        let entry = entry.ok_or_else(|| {
            InferError::not_found(format!("the repository has no model {name:?}"))
        })?;
        self.write().entry(name.to_owned()).or_default().is_loading = true;
        let mut versions: BTreeMap<u64, Arc<LoadedModel>> = BTreeMap::new();
        for (version, path) in entry.versions {
            match self.load_version(name, version, &path, &entry.config) {
                Ok(loaded) => drop(versions.insert(version, Arc::new(loaded))),
                Err(why) => {
                    versions.values().for_each(|loaded| remove(loaded));
                    let why = format!("version {version} of model {name:?}: {why}");
                    return Err(InferError::invalid(why));
                }
            }
        }
        Ok(versions)
    }

    fn load_version(
        &self,
        name: &str,
        version: u64,
        path: &Path,
        config: &ModelConfig,
    ) -> Result<LoadedModel, String> {
        let mut prepared = Network::load(path, config, name, &self.graphs)?;
        let options = ModelOptions {
            name: format!("{name}/{version}"),
            weight: config.weight,
            limits: config.limits.limits(),
            ..ModelOptions::default()
        };
        let model = match prepared.cells {
            None => None,
            Some(cells) => Some(self.add(cells, config, &options)?),
        };
        let network = &mut prepared.network;
        let ran = warm_up::run(network, model.as_ref(), config, name, warm_up::LONGEST);
        if let Err(why) = ran {
            if let Some(model) = model {
                model.remove();
            }
            return Err(why);
        }
        match &prepared.no_stack {
            None => tracing::info!(model = name, version, "loaded"),
            Some(why) => tracing::info!(
                model = name,
                version,
                "loaded as a graph, because it is no stack of layers: {why}"
            ),
        }
        Ok(LoadedModel {
            name: name.to_owned(),
            version,
            network: prepared.network,
            model,
            sequences: Sequences::new(SequenceLimits {
                idle: config.sequences.idle,
                per_client: config.sequences.per_client,
                waiting: Admissions::new(config.limits.limits(), &self.waiting),
            }),
            statistics: Statistics::default(),
            takes_only_sequences: config.sequences.only,
            no_stack: prepared.no_stack,
        })
    }

    /// Adds a model to the engine of its policy, which is started for the first one.
    fn add(
        &self,
        cells: gatestream_serve::cell_graph::Cells,
        config: &ModelConfig,
        options: &ModelOptions,
    ) -> Result<engine::Model, String> {
        #[cfg(feature = "faults")]
        let cells = crate::faults::add_panics(&cells);
        let policy = config.policy.unwrap_or(self.options.policy);
        // Not locked while weights are packed, which takes long: probes look at the engines, too.
        let engine = self.engines().get(&policy).cloned();
        if let Some(engine) = engine {
            let added = engine.add_model(cells, options);
            return added.map_err(|why| why.to_string());
        }
        let engine_options = EngineOptions {
            policy,
            ..self.options.clone()
        };
        let engine = Engine::start_with(cells, &engine_options, options);
        let engine = engine.map_err(|why| why.to_string())?;
        for warning in engine.warnings() {
            tracing::warn!("{warning}");
        }
        let model = engine.model().clone();
        self.engines().insert(policy, Arc::new(engine));
        Ok(model)
    }

    /// Unloads a model: it answers what it has accepted, and its sequences end.
    ///
    /// # Errors
    /// It is not loaded.
    pub fn unload(&self, name: &str) -> Result<(), InferError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = self.write().remove(name);
        let is_loaded = |versions: &Versions| !versions.current.is_empty();
        let versions = removed
            .filter(is_loaded)
            .ok_or_else(|| InferError::not_found(format!("model {name:?} is not loaded")))?;
        for model in versions.current.into_values().chain(versions.old) {
            model.sequences.end_all("the model was unloaded");
            remove(&model);
        }
        tracing::info!(model = name, "unloaded");
        Ok(())
    }

    /// Removes replaced models that have no open sequences and that no request has found: a request
    /// that is about to be submitted would be refused. No further request finds them.
    fn retire(&self) {
        let mut ended = Vec::new();
        for versions in self.write().values_mut() {
            let is_used = |model: &Arc<LoadedModel>| {
                model.sequences.len() > 0 || Arc::strong_count(model) > 1
            };
            let (used, unused): (Vec<_>, Vec<_>) = versions.old.drain(..).partition(is_used);
            versions.old = used;
            ended.extend(unused);
        }
        for model in ended {
            remove(&model);
        }
    }

    /// Ends idle sequences, and gives back memory. Called now and then.
    pub fn tidy(&self, now: Instant) {
        let all: Vec<Arc<LoadedModel>> = {
            let loaded = self.read();
            let models = loaded
                .values()
                .flat_map(|n| n.current.values().chain(&n.old));
            models.cloned().collect()
        };
        for model in all {
            model.sequences.expire(now);
        }
        self.retire();
        self.graphs.tidy();
    }

    /// The version of this number, or the latest one for an empty text. A sequence that is open at
    /// a replaced version goes on there.
    ///
    /// # Errors
    /// It is not loaded, or not yet.
    pub fn find(
        &self,
        name: &str,
        version: &str,
        sequence: Option<&SequenceKey>,
    ) -> Result<Arc<LoadedModel>, InferError> {
        let loaded = self.read();
        let versions = loaded
            .get(name)
            .ok_or_else(|| InferError::not_found(format!("model {name:?} is not loaded")))?;
        if let Some(key) = sequence
            && let Some(old) = { versions.old.iter() }.find(|model| model.sequences.has(key))
        {
            return Ok(Arc::clone(old));
        }
        let found = match version {
            "" => versions.current.values().next_back(),
            version => version
                .parse()
                .ok()
                .and_then(|v: u64| versions.current.get(&v)),
        };
        found.cloned().ok_or_else(|| {
            if !versions.current.is_empty() {
                InferError::not_found(format!("model {name:?} has no version {version:?}"))
            } else if versions.is_loading {
                let mut error = InferError::new(
                    ErrorKind::Unavailable,
                    format!("model {name:?} is being loaded; try again later"),
                );
                error.retry_after = Some(LOADING);
                error
            } else {
                let why = &versions.failure;
                InferError::not_found(format!("model {name:?} is not loaded: {why}"))
            }
        })
    }

    /// The models whose last load has failed, by name.
    pub fn failures(&self) -> Vec<FailedModel> {
        let loaded = self.read();
        let failed = loaded
            .iter()
            .filter(|(_, versions)| !versions.failure.is_empty());
        let failed = failed.map(|(name, versions)| FailedModel {
            name: name.clone(),
            why: versions.failure.clone(),
            is_served: !versions.current.is_empty(),
        });
        let mut failed: Vec<FailedModel> = failed.collect();
        failed.sort_by(|a, b| a.name.cmp(&b.name));
        failed
    }

    /// All loaded versions, by name and version.
    pub fn all(&self) -> Vec<Arc<LoadedModel>> {
        let loaded = self.read();
        let models = loaded
            .values()
            .flat_map(|versions| versions.current.values());
        let mut models: Vec<_> = models.cloned().collect();
        models.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        models
    }

    /// The loaded versions of a model.
    pub fn versions(&self, name: &str) -> Vec<u64> {
        let loaded = self.read();
        let versions = loaded
            .get(name)
            .map(|versions| versions.current.keys().copied());
        versions.into_iter().flatten().collect()
    }

    /// All models of the repository, and those that are loaded.
    ///
    /// # Errors
    /// The repository cannot be read.
    pub fn index(&self) -> Result<Vec<IndexEntry>, InferError> {
        let mut names = self.names()?;
        let loaded = self.read();
        names.extend(loaded.keys().cloned());
        names.sort();
        names.dedup();
        let mut entries = Vec::new();
        for name in names {
            let none = Versions::default();
            let versions = loaded.get(&name).unwrap_or(&none);
            entries.extend(versions.current.iter().map(|(version, model)| IndexEntry {
                name: name.clone(),
                version: version.to_string(),
                is_ready: true,
                is_loading: false,
                reason: match &model.no_stack {
                    Some(why) if versions.failure.is_empty() => {
                        format!("run as a graph, because it is no stack of layers: {why}")
                    }
                    _ => versions.failure.clone(),
                },
            }));
            if versions.current.is_empty() {
                let reason = match (versions.is_loading, versions.failure.is_empty()) {
                    (true, _) => "loading".to_owned(),
                    (false, true) => "unloaded".to_owned(),
                    (false, false) => versions.failure.clone(),
                };
                entries.push(IndexEntry {
                    name,
                    version: String::new(),
                    is_ready: false,
                    is_loading: versions.is_loading,
                    reason,
                });
            }
        }
        Ok(entries)
    }

    /// Number of open sequences, those of replaced models included.
    pub fn open_sequences(&self) -> usize {
        let loaded = self.read();
        let models = loaded
            .values()
            .flat_map(|n| n.current.values().chain(&n.old));
        models.map(|model| model.sequences.len()).sum()
    }

    /// The engines, by policy.
    pub fn running_engines(&self) -> Vec<(PolicyKind, Arc<Engine>)> {
        let engines = self.engines();
        engines
            .iter()
            .map(|(policy, engine)| (*policy, Arc::clone(engine)))
            .collect()
    }

    fn engines(&self) -> MutexGuard<'_, HashMap<PolicyKind, Arc<Engine>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Versions>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<String, Versions>> {
        self.loaded.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a model has answered what it has accepted, and frees its weights.
fn remove(model: &LoadedModel) {
    if let Some(model) = &model.model {
        model.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::in_process::repository;

    #[test]
    fn a_replaced_model_stays_for_requests_that_have_found_it() {
        let folder = repository();
        let repository = Repository::open(folder.path()).expect("a repository");
        let models = Models::new(repository, EngineOptions::default());
        models.load("speech").expect("loaded");
        let found = models.find("speech", "", None).expect("a model");
        let in_engine = found.model.clone().expect("cells");

        models.load("speech").expect("loaded again");
        models.tidy(Instant::now());
        let network = match &found.network {
            Network::Stack(network) => network,
            _ => panic!("a stack"),
        };
        assert!(in_engine.stream(network.cell(), None).is_ok());
        drop(found);
        models.tidy(Instant::now());
        assert!(in_engine.stats().is_none(), "it is removed");
        assert!(models.find("speech", "", None).is_ok());
    }
}
