//! The explained facts: the output of `--json`, and the source of the page.

use std::path::Path;

use crate::Failure;
use crate::plan::Origin;
use crate::precision;
use gatestream::graph::GraphCounts;
use gatestream::machine::{BoundBy, Ceilings, Machine, Operations, Topology};
use gatestream::model::{Cell, Layer, Model, ResetForm};
use gatestream::partition::{Movement, PanelOrder};
use gatestream::plan::{Cost, Entry, LayerTraffic, PlannedPhase, operations};
use gatestream::schedule::{Count, RULES, model_counts};

/// The request and the plan to explain.
pub struct Question<'a> {
    pub model: &'a Model,
    /// Batch and steps.
    pub size: (usize, usize),
    /// Most cores that a plan may use.
    pub cores: usize,
    /// Of the plan, for the size that it was planned for.
    pub entry: &'a Entry,
    pub origin: Origin,
    pub file: Option<&'a Path>,
    pub machine: &'a Machine,
}

/// All that is said.
#[derive(Debug, serde::Serialize)]
pub struct Facts {
    pub model: ModelFacts,
    pub request: RequestFacts,
    pub graph: GraphFacts,
    pub schedules: Vec<ScheduleFacts>,
    pub plan: PlanFacts,
    pub layers: Vec<LayerFacts>,
    pub moved: MovedFacts,
    pub bound: Option<BoundFacts>,
    /// The estimated time of the chosen configuration.
    pub expected_seconds: f64,
    pub measured: Option<MeasuredFacts>,
}

#[derive(Debug, serde::Serialize)]
pub struct ModelFacts {
    pub cell: String,
    /// Of a GRU: `before` or `after`.
    pub reset: Option<&'static str>,
    pub input: usize,
    pub hidden: usize,
    pub output: usize,
    pub projection: Option<usize>,
    pub layers: usize,
    pub bidirectional: bool,
    /// `mixed` where matrices differ.
    pub precision: String,
    pub weight_bytes: usize,
}

#[derive(Debug, serde::Serialize)]
pub struct RequestFacts {
    pub batch: usize,
    pub steps: usize,
    pub cores: usize,
}

#[derive(Debug, serde::Serialize)]
pub struct GraphFacts {
    /// Of one step, all layers and directions.
    pub products_per_step: u128,
    pub products: u128,
    pub input_products: u128,
    pub dependences: u128,
    pub longest_chain: u128,
}

/// How many schedules are left.
#[derive(Debug, serde::Serialize)]
pub struct ScheduleFacts {
    /// The last rule in half a line, for the page.
    #[serde(skip)]
    pub brief: Option<&'static str>,
    /// The condition of the last rule.
    pub asks: &'static str,
    /// The schedules that it removes, and why none of them is faster.
    pub cuts: Option<&'static str>,
    pub why: Option<&'static str>,
    /// The number in words.
    pub left: String,
    pub log10: f64,
}

#[derive(Debug, serde::Serialize)]
pub struct PlanFacts {
    pub origin: Origin,
    pub file: Option<String>,
    pub choice: String,
    pub threads: usize,
    pub row_groups: usize,
}

/// Layers in a row that are alike, and planned alike.
#[derive(Debug, serde::Serialize)]
pub struct LayerFacts {
    pub first: usize,
    pub last: usize,
    pub phases: Vec<PhaseFacts>,
    /// Steps whose products are taken ahead together; `null` where none are.
    pub chunk_steps: Option<usize>,
    pub order: PanelOrder,
    pub directions: usize,
    #[serde(flatten)]
    pub traffic: LayerTraffic,
}

#[derive(Debug, serde::Serialize)]
pub struct PhaseFacts {
    pub ahead: bool,
    pub products: Vec<ProductFacts>,
}

#[derive(Debug, PartialEq, serde::Serialize)]
pub struct ProductFacts {
    pub weights: Vec<String>,
    pub operand: String,
    pub rows: usize,
    pub depth: usize,
    pub columns: usize,
    pub cores: usize,
}

/// Bytes moved per step, over all layers.
#[derive(Debug, serde::Serialize)]
pub struct MovedFacts {
    /// By core, then private cache from the nearest.
    pub cores: Vec<Vec<IntoFacts>>,
    /// Into the largest private caches of all cores.
    pub all: IntoFacts,
    pub bytes_without_reuse: u64,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct IntoFacts {
    /// Of the cache; 0 where there is none.
    pub level: u8,
    /// The next level: `L2`, `memory`.
    pub from: String,
    pub steps: Movement,
    /// The share of one step in the products computed ahead.
    pub ahead_per_step: u64,
}

#[derive(Debug, serde::Serialize)]
pub struct BoundFacts {
    pub seconds: f64,
    pub by: BoundBy,
    /// All, and by the precision in which they are done.
    pub flops: f64,
    pub operations: Operations,
    pub ceilings: Ceilings,
}

/// The measurement of tuning, for the nearest size of the plan.
#[derive(Debug, serde::Serialize)]
pub struct MeasuredFacts {
    pub batch: usize,
    pub steps: usize,
    pub seconds: f64,
    /// Half the distance between the quartiles over the median.
    pub spread: f64,
    /// The bound for this size over the time.
    pub fraction_of_bound: Option<f64>,
    pub runner_up: Option<RunnerUp>,
}

#[derive(Debug, serde::Serialize)]
pub struct RunnerUp {
    pub choice: String,
    pub seconds: f64,
    pub spread: f64,
}

impl Facts {
    /// Everything, from the library.
    pub fn gather(question: &Question<'_>) -> Result<Facts, Failure> {
        let Question {
            model,
            size: (batch, steps),
            entry,
            ..
        } = *question;
        let configuration = &entry.configuration;
        let topology = &question.machine.topology;
        let traffic = configuration.traffic(model, batch, steps, topology)?;
        let phases = configuration.phases(model, batch, steps)?;
        let counts = GraphCounts::of(model, steps);
        let moved = moved(&traffic, entry, steps, topology);
        let ceilings = question.machine.ceilings.as_ref();
        let bound = |entry: &Entry| {
            ceilings
                .map(|c| entry.bound(model, topology, c))
                .transpose()
        };
        let asked = Entry {
            batch,
            steps,
            ..entry.clone()
        };
        Ok(Facts {
            model: model_facts(model),
            request: RequestFacts {
                batch,
                steps,
                cores: question.cores,
            },
            graph: GraphFacts {
                products_per_step: GraphCounts::of(model, 1).nodes,
                products: counts.nodes,
                input_products: counts.input,
                dependences: counts.edges,
                longest_chain: counts.critical_path,
            },
            schedules: schedule_facts(model, steps),
            plan: PlanFacts {
                origin: question.origin,
                file: question.file.map(|path| path.display().to_string()),
                choice: configuration.to_string(),
                threads: configuration.threads,
                row_groups: configuration.row_groups,
            },
            layers: layer_facts(question, traffic, phases),
            moved,
            bound: match (bound(&asked)?, ceilings) {
                (Some(bound), Some(ceilings)) => Some(BoundFacts {
                    seconds: bound.seconds,
                    by: bound.by,
                    flops: operations(model, batch, steps).all(),
                    operations: operations(model, batch, steps),
                    ceilings: ceilings.clone(),
                }),
                _ => None,
            },
            expected_seconds: configuration.expected(model, batch, steps)?,
            measured: measured_facts(entry, bound(entry)?.map(|bound| bound.seconds)),
        })
    }
}

fn model_facts(model: &Model) -> ModelFacts {
    let first = &model.layers()[0];
    let direction = &first.directions()[0];
    let reset = match direction.cell() {
        Cell::Gru {
            reset: ResetForm::Before,
            ..
        } => Some("before"),
        Cell::Gru {
            reset: ResetForm::After,
            ..
        } => Some("after"),
        _ => None,
    };
    ModelFacts {
        cell: first.kind().to_string(),
        reset,
        input: first.input_size(),
        hidden: first.hidden_size(),
        output: model.signature().output,
        projection: direction.weights().projection.as_ref().map(|p| p.rows()),
        layers: model.layers().len(),
        bidirectional: model.layers().iter().all(|l| l.directions().len() == 2),
        precision: precision::name(model),
        weight_bytes: model.weight_bytes(),
    }
}

fn schedule_facts(model: &Model, steps: usize) -> Vec<ScheduleFacts> {
    let counts = model_counts(model, steps);
    let fact = |count: Count, asks| ScheduleFacts {
        brief: None,
        asks,
        cuts: None,
        why: None,
        left: count.to_string(),
        log10: count.log10(),
    };
    let after = [counts.symmetric, counts.dependent, counts.kept];
    let after = RULES.iter().zip(after).map(|(rule, count)| ScheduleFacts {
        brief: Some(rule.brief),
        cuts: Some(rule.cuts),
        why: Some(rule.why),
        ..fact(count, rule.asks)
    });
    let mut facts = vec![fact(counts.all, "no rule")];
    facts.extend(after);
    facts.push(fact(
        counts.in_order,
        "they keep each sum's order, and so every bit",
    ));
    facts
}

fn layer_facts(
    question: &Question<'_>,
    traffic: Vec<LayerTraffic>,
    phases: Vec<Vec<PlannedPhase>>,
) -> Vec<LayerFacts> {
    let mut all: Vec<LayerFacts> = Vec::new();
    let mut before: Option<(&Layer, &Vec<PlannedPhase>)> = None;
    let (_, steps) = question.size;
    let plans = &question.entry.configuration.layers;
    for (index, layer) in question.model.layers().iter().enumerate() {
        let (plan, phases, traffic) = (&plans[index], &phases[index], &traffic[index]);
        if let (Some((below, same)), Some(last)) = (before, all.last_mut())
            && same == phases
            && plans[index - 1] == *plan
            && below.kind() == layer.kind()
            && last.traffic == *traffic
        {
            last.last = index;
            continue;
        }
        before = Some((layer, phases));
        let is_ahead = plan.directions.iter().any(|d| d.schedule.is_ahead());
        all.push(LayerFacts {
            first: index,
            last: index,
            phases: phases
                .iter()
                .map(|phase| phase_facts(layer, phase))
                .collect(),
            chunk_steps: is_ahead.then_some(plan.chunk_steps.min(steps)),
            order: plan.order,
            directions: layer.directions().len(),
            traffic: traffic.clone(),
        });
    }
    all
}

fn phase_facts(layer: &Layer, phase: &PlannedPhase) -> PhaseFacts {
    let products = phase.products.iter().map(|product| {
        let mut weights: Vec<String> = Vec::new();
        for &(direction, block) in &product.blocks {
            let name = layer.directions()[direction].step().weights_name(block);
            if !weights.contains(&name) {
                weights.push(name);
            }
        }
        ProductFacts {
            weights,
            operand: product.operand.to_string(),
            rows: product.rows,
            depth: product.depth,
            columns: product.columns,
            cores: product.cores,
        }
    });
    PhaseFacts {
        ahead: phase.is_ahead,
        products: products.collect(),
    }
}

fn moved(traffic: &[LayerTraffic], entry: &Entry, steps: usize, topology: &Topology) -> MovedFacts {
    let configuration = &entry.configuration;
    let shared = topology
        .cores
        .first()
        .and_then(|core| topology.shared_cache(core));
    let shared = shared.map(|cache| cache.level);
    let mut cores: Vec<Vec<IntoFacts>> = vec![Vec::new(); configuration.threads];
    for (layer, plan) in traffic.iter().zip(&configuration.layers) {
        let chunk = plan.chunk_steps.min(steps).max(1) as u64;
        for (core, sums) in layer.cores.iter().zip(&mut cores) {
            sums.resize(core.caches.len(), IntoFacts::default());
            let behind = core.caches.iter().skip(1).map(|cache| cache.level);
            let behind = behind.chain(shared).map(|level| format!("L{level}"));
            for (sum, from) in sums.iter_mut().zip(behind.chain(["memory".into()])) {
                sum.from = from;
            }
            for (cache, sum) in core.caches.iter().zip(sums) {
                sum.level = cache.level;
                sum.steps.add(cache.steps, 1);
                sum.ahead_per_step = sum
                    .ahead_per_step
                    .saturating_add(cache.ahead.div_ceil(chunk));
            }
        }
    }
    let mut all = IntoFacts::default();
    for largest in cores.iter().filter_map(|caches| caches.last()) {
        all.level = all.level.max(largest.level);
        all.from.clone_from(&largest.from);
        all.steps.add(largest.steps, 1);
        all.ahead_per_step = all.ahead_per_step.saturating_add(largest.ahead_per_step);
    }
    let forgetful = traffic.iter().map(|layer| layer.forgetful);
    MovedFacts {
        cores,
        all,
        bytes_without_reuse: forgetful.fold(0, u64::saturating_add),
    }
}

fn measured_facts(entry: &Entry, bound: Option<f64>) -> Option<MeasuredFacts> {
    let measured = entry.measured.as_ref()?;
    let seconds = |cost: Cost| cost.median_ns as f64 * 1e-9;
    let spread = |cost: Cost| 0.5 * cost.spread_ns as f64 / cost.median_ns.max(1) as f64;
    Some(MeasuredFacts {
        batch: entry.batch,
        steps: entry.steps,
        seconds: seconds(measured.cost),
        spread: spread(measured.cost),
        fraction_of_bound: bound.map(|bound| bound / seconds(measured.cost).max(1e-12)),
        runner_up: measured.runner_up.as_ref().map(|(choice, cost)| RunnerUp {
            choice: choice.clone(),
            seconds: seconds(*cost),
            spread: spread(*cost),
        }),
    })
}
