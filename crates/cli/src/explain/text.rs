//! The facts as a page for readers who do not know the paper. Every term is explained at its first
//! use.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use super::facts::{Facts, IntoFacts, LayerFacts, MeasuredFacts, ProductFacts};
use super::words::{clean, number, plural, ratio, significant, size, time, wrapped, wrapped_at};
use crate::plan::Origin;
use gatestream::machine::{Bytes, Rate};
use gatestream::model::Model;
use gatestream::partition::PanelOrder;
use gatestream::plan::CoreTraffic;

const WIDTH: usize = 100;
/// Column of the text; its subject is to the left.
const MARGIN: usize = 11;
/// Characters of a number of schedules, unless one is longer.
const COUNT: usize = 14;
/// Kinds of layers that are shown; a stack mostly has one or two.
const MAX_KINDS: usize = 2;
/// Rows of a table of cores.
const MAX_ROWS: usize = 8;

/// The whole page; `drawn` is where the graph was written, and of how many steps.
pub fn page(facts: &Facts, model: &Model, drawn: Option<(&Path, usize)>) -> String {
    let mut page = Page(String::new());
    page.model(facts);
    page.graph(facts, model, drawn);
    page.schedules(facts);
    page.plan(facts);
    page.moved(facts);
    page.bound(facts);
    page.0
}

struct Page(String);

impl Page {
    /// A paragraph behind a name.
    fn about(&mut self, name: &str, text: &str) {
        let mut name = name;
        for line in wrapped(text, WIDTH - MARGIN) {
            self.line(&format!("{name:<MARGIN$}{line}"));
            name = "";
        }
    }

    fn line(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    fn model(&mut self, facts: &Facts) {
        let model = &facts.model;
        let reset = model.reset.map(|reset| match reset {
            "before" => ", reset before the product",
            _ => ", reset after the product",
        });
        let projection = model.projection.map(|rows| format!(" projected to {rows}"));
        let text = format!(
            "{}{}: {} inputs, {} units{}, {}{}; {} of weights ({})",
            model.cell,
            reset.unwrap_or_default(),
            model.input,
            model.hidden,
            projection.unwrap_or_default(),
            plural(model.layers as u128, "layer"),
            if model.bidirectional {
                ", two directions"
            } else {
                ""
            },
            size(model.weight_bytes as u64),
            match model.precision.as_str() {
                "mixed" => "of several precisions",
                one => one,
            },
        );
        self.about("model", &text);
        let request = &facts.request;
        let text = format!(
            "{} of {}, on up to {}",
            plural(request.batch as u128, "sequence"),
            plural(request.steps as u128, "step"),
            plural(request.cores as u128, "core"),
        );
        self.about("request", &text);
    }

    fn graph(&mut self, facts: &Facts, model: &Model, drawn: Option<(&Path, usize)>) {
        let graph = &facts.graph;
        let step = model.layers()[0].directions()[0].step();
        let gates = if step.gates.len() > 1 {
            format!("each of the gates {}", step.gates.join(", "))
        } else {
            let cell = model.layers()[0].kind().to_string().to_uppercase();
            format!("the one gate of an {cell}")
        };
        let places = model
            .layers()
            .iter()
            .map(|l| l.directions().len())
            .sum::<usize>();
        let of_each = if places > 1 {
            ", in every layer and direction"
        } else {
            ""
        };
        let projection = match facts.model.projection {
            Some(_) => "; P·m (projection times the cell's output) makes the state",
            None => "",
        };
        let mut text = format!(
            "Each step of {gates} needs W·x (input weights times input) and U·h (recurrent weights \
             times the state of the previous step){of_each}{projection}: {} matrix products per \
             step, {} in all, with {} dependences (one product needs the result of another). Only \
             those with a state depend on the previous step. {} must run one after another on any \
             number of cores.",
            graph.products_per_step,
            number(graph.products),
            number(graph.dependences),
            number(graph.longest_chain),
        );
        if let Some((path, steps)) = drawn {
            let of = if steps < facts.request.steps {
                format!(
                    "{steps} of the {} steps",
                    number(facts.request.steps as u128)
                )
            } else {
                "all steps".into()
            };
            let _ = write!(
                text,
                " Drawn for {of} in {} (dot -Tsvg).",
                clean(&path.display().to_string())
            );
        }
        self.about("products", &text);
    }

    fn schedules(&mut self, facts: &Facts) {
        self.about(
            "schedules",
            "A schedule sorts the products into phases, with a barrier after each. The number of \
             schedules, without rules and after each rule, which keeps the fastest:",
        );
        let rows = &facts.schedules;
        let widest = rows.iter().map(|row| row.left.chars().count()).max();
        let widest = widest.unwrap_or(0).max(COUNT);
        for (index, row) in rows.iter().enumerate() {
            let text = match row.brief {
                Some(brief) => format!("rule {index}, {brief}"),
                None if index == 0 => "with no rule".into(),
                None if facts.model.layers > 1 => {
                    format!("can be run: {}; each layer by itself", row.asks)
                }
                None => format!("can be run: {}", row.asks),
            };
            let mut count = row.left.as_str();
            for line in wrapped(&text, WIDTH - widest - 2) {
                self.line(&format!("{count:>widest$}  {line}"));
                count = "";
            }
        }
    }

    fn plan(&mut self, facts: &Facts) {
        let plan = &facts.plan;
        let file = || clean(plan.file.as_deref().unwrap_or_default());
        let origin = match plan.origin {
            Origin::Tuned => format!("measured, from {}", file()),
            Origin::File => format!("not measured, from {}", file()),
            Origin::Estimate => {
                "by estimate (arithmetic and bytes; `gatestream tune` times instead)".into()
            }
        };
        let groups = match plan.row_groups {
            1 => String::new(),
            n => format!(" in {n} groups, each with all weights and its own sequences"),
        };
        self.about(
            "chosen",
            &format!("{}{groups}, {origin}", plural(plan.threads as u128, "core")),
        );
        let mut before = None;
        for layer in facts.layers.iter().take(MAX_KINDS) {
            self.layer(layer, facts, &mut before);
        }
        if facts.layers.len() > MAX_KINDS {
            let more = facts.layers.len() - MAX_KINDS;
            self.about(
                "",
                &format!(
                    "… and {} more; --json has all",
                    plural(more as u128, "kind of layer")
                ),
            );
        }
    }

    /// `before` is the text of the previous layer, which is not repeated.
    fn layer(&mut self, layer: &LayerFacts, facts: &Facts, before: &mut Option<String>) {
        let mut which = match (facts.model.layers, layer.first == layer.last) {
            (1, _) => String::new(),
            (_, true) => format!("layer {}", layer.first),
            (_, false) => format!("layer {}–{}", layer.first, layer.last),
        };
        if which.chars().count() >= MARGIN {
            self.line(&which);
            which.clear();
        }
        let mut step = 0;
        for phase in &layer.phases {
            let mut name = if phase.ahead {
                "ahead".to_owned()
            } else {
                step += 1;
                format!("phase {step}")
            };
            // The directions' own products are mostly alike.
            for alike in phase.products.chunk_by(|a, b| a == b) {
                let twice = if alike.len() > 1 { " each way" } else { "" };
                let text = format!(
                    "{name:<8}{}{twice}",
                    product_words(&alike[0], layer, phase.ahead)
                );
                for line in wrapped_at(&text, WIDTH - MARGIN, 8) {
                    self.line(&format!("{which:<MARGIN$}{line}"));
                    which.clear();
                }
                name.clear();
            }
        }
        let order = match layer.order {
            PanelOrder::Cyclic => "weights are read in the same order at every step (cyclic)",
            PanelOrder::Serpentine => {
                "weights are read forward and backward in turn, the last first (serpentine)"
            }
        };
        let ahead = match layer.chunk_steps {
            Some(chunk) => {
                let held: u64 = layer
                    .traffic
                    .cores
                    .iter()
                    .map(|core| core.ahead_results)
                    .sum();
                format!(
                    "ahead = before the steps that need it, {} in one product, its {} of results \
                     stored until then; ",
                    plural(chunk as u128, "step"),
                    size(held)
                )
            }
            None => String::new(),
        };
        let said = format!("{ahead}{order}");
        let is_first = before.is_none();
        if before.as_ref() != Some(&said) {
            self.about("", &said);
            *before = Some(said);
        }
        self.owners(layer, is_first);
    }

    fn owners(&mut self, layer: &LayerFacts, with_heading: bool) {
        let cores = &layer.traffic.cores;
        let levels = cores.first().map(|core| &core.caches[..]);
        let mut head = format!("{:<5}{:<21}{:>13}", "core", "owns units", "step weights");
        for cache in levels.unwrap_or_default() {
            let name = format!("L{} {}", cache.level, Bytes(cache.bytes));
            let _ = write!(head, "{name:>13}");
        }
        let _ = write!(head, "{:>15}{:>9}", "ahead weights", "results");
        if with_heading {
            self.line(&format!("{:MARGIN$}{head}", ""));
        }
        let same = |a: &CoreTraffic, b: &CoreTraffic| {
            let part = |c: &CoreTraffic| {
                (
                    c.sequences,
                    c.step_weights,
                    c.ahead_weights,
                    c.ahead_results,
                )
            };
            let lens = |c: &CoreTraffic| c.units.iter().map(Range::len).collect::<Vec<_>>();
            part(a) == part(b) && lens(a) == lens(b) && a.caches == b.caches
        };
        let (shown, left_out) = rows(cores, |a, b| cores.len() > 4 && same(a, b));
        for (first, run) in shown {
            let core = &run[0];
            let mut line = format!(
                "{:<5}{:<21}{:>13}",
                span(first, run.len()),
                units(run),
                size(core.step_weights)
            );
            for cache in &core.caches {
                let _ = write!(line, "{:>13}", kept(core.step_weights, cache.kept));
            }
            let (ahead, results) = (size(core.ahead_weights), size(core.ahead_results));
            let _ = write!(line, "{ahead:>15}{results:>9}");
            self.line(&format!("{:MARGIN$}{line}", ""));
        }
        self.left_out(left_out);
    }

    fn left_out(&mut self, cores: usize) {
        if cores > 0 {
            self.about(
                "",
                &format!("… and {}; --json has all", plural(cores as u128, "core")),
            );
        }
    }

    fn moved(&mut self, facts: &Facts) {
        let moved = &facts.moved;
        self.about(
            "moved",
            "Predicted bytes per step between each core's caches and the next level. At the first \
             step the caches are cold. Products computed ahead are divided among their steps.",
        );
        let head = format!(
            "{:<10}{:<16}{:>15}{:>15}{:>15}",
            "core", "into", "first step", "later steps", "ahead"
        );
        self.line(&format!("{:MARGIN$}{head}", ""));
        let row = |core: &str, of: &IntoFacts| {
            format!(
                "{:MARGIN$}{core:<10}{:<16}{:>15}{:>15}{:>15}",
                "",
                format!("L{} from {}", of.level, of.from),
                size(of.steps.first_step),
                size(of.steps.per_step),
                size(of.ahead_per_step)
            )
        };
        let (shown, left_out) = rows(&moved.cores, |a, b| a == b);
        for (first, run) in shown {
            let mut core = span(first, run.len());
            if run.len() > 1 {
                core += " each";
            }
            for cache in &run[0] {
                self.line(&row(&core, cache));
                core.clear();
            }
        }
        self.left_out(left_out);
        let threads = facts.plan.threads;
        if threads > 1 {
            self.line(&row("all", &moved.all));
            let ours = moved
                .all
                .steps
                .per_step
                .saturating_add(moved.all.ahead_per_step);
            // Of large batches the formula omits values that no cache holds; it is a lower bound.
            let times = match moved.bytes_without_reuse as f64 / ours.max(1) as f64 {
                times if times >= 1.05 => format!(", {} times as much", ratio(times)),
                _ => String::new(),
            };
            self.about(
                "",
                &format!(
                    "A parallel matrix product without reuse of weights between steps moves \
                     {threads}·|x, h| + |W, U| + 2·|results| bytes = {} at every step{times}.",
                    size(moved.bytes_without_reuse),
                ),
            );
        }
        let far = facts.layers.iter().flat_map(|l| &l.traffic.cores);
        let far = far
            .filter(|core| core.home == gatestream::machine::Level::Memory)
            .count();
        if far > 0 {
            self.about(
                "",
                "No cache holds the weights of one core (a shared cache counts in equal parts): \
                 they are read from memory at every step.",
            );
        }
    }

    fn bound(&mut self, facts: &Facts) {
        let Some(bound) = &facts.bound else {
            self.about("bound", "not measured");
            self.measured(facts);
            return;
        };
        let team = match facts.plan.threads {
            1 => &bound.ceilings.one,
            _ => &bound.ceilings.all,
        };
        let rates = &team.read_gbps;
        let mut reads = String::new();
        for (name, rate) in [
            ("L1", rates.l1),
            ("L2", rates.l2),
            ("L3", rates.l3),
            ("memory", Some(rates.memory)),
        ] {
            if let Some(Rate { value, .. }) = rate {
                let _ = write!(
                    reads,
                    "{}{name} {value:.0}",
                    if reads.is_empty() { "" } else { ", " }
                );
            }
        }
        let work = bound.operations;
        let mut peaks = Vec::new();
        let mut request = Vec::new();
        if work.f32 > 0.0 || work.int8 == 0.0 {
            let peak = team.fma_f32_gflops.value;
            peaks.push(format!("f32 arithmetic {peak:.0} GFLOP/s"));
            request.push(format!("{} MFLOP", significant(work.f32 * 1e-6)));
        }
        if work.int8 > 0.0 {
            let peak = team.dot_int8_gops.value;
            peaks.push(format!("int8 arithmetic {peak:.0} GOP/s"));
            request.push(format!("{} MOP in int8", significant(work.int8 * 1e-6)));
        }
        use gatestream::machine::BoundBy;
        let by = match bound.by {
            BoundBy::Compute => "arithmetic",
            BoundBy::L1 => "reading weights from L1",
            BoundBy::L2 => "reading weights from L2",
            BoundBy::L3 => "reading weights from L3",
            BoundBy::Memory => "reading weights from memory",
        };
        self.about(
            "bound",
            &format!(
                "Measured on {}: {}; reading {reads} GB/s. The request is {}, and each step reads \
                 its weights again. No run on these cores can be faster than {}. Most of it is \
                 {by}.",
                plural(team.threads as u128, "core"),
                peaks.join(", "),
                request.join(" and "),
                time(bound.seconds),
            ),
        );
        self.measured(facts);
    }

    fn measured(&mut self, facts: &Facts) {
        self.about(
            "expected",
            &format!(
                "{} by the estimate (activations and barriers included; accurate within a factor \
                 of two; its rates select a plan and may be below the bound)",
                time(facts.expected_seconds)
            ),
        );
        let Some(measured) = &facts.measured else {
            let text = match facts.plan.origin {
                Origin::File => {
                    "nothing: the plan is an estimate, or was edited by hand, which makes its \
                     times invalid"
                }
                _ => "nothing yet: `gatestream tune … -o PLAN`, then --plan PLAN",
            };
            self.about("measured", text);
            return;
        };
        self.about("measured", &measured_words(measured, facts));
    }
}

fn measured_words(measured: &MeasuredFacts, facts: &Facts) -> String {
    let request = &facts.request;
    let mut text = format!(
        "{} ± {:.1} %",
        time(measured.seconds),
        100.0 * measured.spread
    );
    if (measured.batch, measured.steps) != (request.batch, request.steps) {
        let _ = write!(
            text,
            " for {} of {}, the nearest that was tuned",
            plural(measured.batch as u128, "sequence"),
            plural(measured.steps as u128, "step")
        );
    }
    if let Some(fraction) = measured.fraction_of_bound {
        let _ = write!(
            text,
            "; the bound for that is {:.0} % of it",
            100.0 * fraction
        );
    }
    if let Some(second) = &measured.runner_up {
        let _ = write!(
            text,
            ". Runner-up: {} ± {:.1} %: {}",
            time(second.seconds),
            100.0 * second.spread,
            clean(&second.choice)
        );
    }
    text
}

/// `[W_i W_f]·x: [100×64]·[64×512], each chunk on 2 cores`.
fn product_words(product: &ProductFacts, layer: &LayerFacts, ahead: bool) -> String {
    let both = match layer.directions {
        2 if product.operand == "x" => ", both ways",
        _ => "",
    };
    let when = if ahead { "each chunk" } else { "each step" };
    let fused = if product.weights.len() > 1 { "[" } else { "" };
    let end = if product.weights.len() > 1 { "]" } else { "" };
    format!(
        "{fused}{}{end}·{}{both}: [{}×{}]·[{}×{}], {when} on {}",
        product.weights.join(" "),
        match &*product.operand {
            "r∘h" => "(r∘h)",
            plain => plain,
        },
        product.rows,
        product.depth,
        product.depth,
        product.columns,
        plural(product.cores as u128, "core"),
    )
}

/// Rows that are alike made one, each with the place of its first; and how many are left out.
fn rows<T>(all: &[T], same: impl Fn(&T, &T) -> bool) -> (Vec<(usize, &[T])>, usize) {
    let mut runs: Vec<(usize, &[T])> = Vec::new();
    let mut first = 0;
    for run in all.chunk_by(same) {
        if runs.len() == MAX_ROWS {
            break;
        }
        runs.push((first, run));
        first += run.len();
    }
    (runs, all.len() - first)
}

fn span(first: usize, count: usize) -> String {
    match count {
        1 => first.to_string(),
        _ => format!("{first}–{}", first + count - 1),
    }
}

/// Which units, by direction; of several cores how many each.
fn units(cores: &[CoreTraffic]) -> String {
    let core = &cores[0];
    let one = |units: &Range<usize>| match cores.len() {
        1 => format!("{}–{}", units.start, units.end - 1),
        _ => format!("{} each", units.len()),
    };
    if let [forward, reverse] = &core.units[..]
        && forward == reverse
        && !forward.is_empty()
    {
        return format!("{} of both ways", one(forward));
    }
    let words = { core.units.iter().enumerate() }
        .filter(|(_, units)| !units.is_empty())
        .map(|(direction, units)| match (core.units.len(), direction) {
            (1, _) => one(units),
            (_, 0) => format!("fwd {}", one(units)),
            _ => format!("rev {}", one(units)),
        });
    let words: Vec<String> = words.collect();
    if words.is_empty() {
        "none".into()
    } else {
        words.join(", ")
    }
}

fn kept(bytes: u64, kept: f64) -> String {
    match bytes {
        0 => "–".into(),
        _ if kept > 0.995 => "all stay".into(),
        _ if kept < 0.005 => "none stays".into(),
        _ => format!("{:.0} % stay", 100.0 * kept),
    }
}
