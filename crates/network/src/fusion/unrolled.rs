//! Steps of layers among the nodes of a graph.
//!
//! Steps with the same weights whose states follow each other become one layer of as many steps,
//! unless an input depends on an output of the layer, as in a decoder.

use std::collections::{HashMap, HashSet};

use tract_onnx::pb::{GraphProto, NodeProto};

use super::activation::Activation;
use super::cell::{self, Cell};
use super::layer::{self, CellInputs, LayerCall};
use super::replacement::Replacement;
use super::terms::{Terms, Value};
use crate::ElementType;
use crate::control_flow::{ancestors, cone, producers, readers};
use crate::evaluation::{Evaluation, Fact};
use crate::source::names::subgraphs;

/// Most layers of a graph: the time to find them grows with their number times that of the nodes.
const MAX_LAYERS: usize = 256;

/// Writes the steps of a graph as layers, not those within other graphs.
pub(super) fn fuse_steps(graph: &mut GraphProto, evaluation: &Evaluation<'_>) {
    let Some(Replaced { by, values }) = replacement(graph, evaluation) else {
        return;
    };
    let is_kept = |node: &NodeProto| !node.output.iter().any(|name| values.contains(name));
    graph.node.retain(is_kept);
    graph.node.extend(by.nodes);
    graph.initializer.extend(by.constants);
}

/// A step of a layer.
struct Step {
    /// The node that gives the hidden state.
    node: String,
    cell: Cell,
    h_next: Value,
    /// Of an LSTM: the cell state after and before it.
    c_next: Option<Value>,
    c: Option<Value>,
    /// The hidden state before it, where the form of the step tells.
    h: Option<Value>,
}

/// Layers, and the values that they compute.
#[derive(Default)]
struct Replaced {
    by: Replacement,
    values: HashSet<String>,
}

fn replacement(graph: &GraphProto, evaluation: &Evaluation<'_>) -> Option<Replaced> {
    let constants = constants(graph);
    let constant = |name: &str| {
        if constants.contains(name) {
            evaluation.value(cone(graph, &[name])).ok()?
        } else {
            None
        }
    };
    let terms = Terms::new(graph, HashMap::new(), constant, |_| false);
    let steps = steps(graph, &terms);
    let layers = layers(graph, &steps)?;
    let mut names: Vec<&str> = Vec::new();
    for layer in &layers {
        names.extend(layer.values().map(|value| value.name.as_str()));
    }
    let facts = evaluation.facts(cone(graph, &names))?;
    let facts: HashMap<&str, Fact> = names.iter().copied().zip(facts).collect();
    let mut replaced = Replaced::default();
    for layer in &layers {
        if let Some(batch) = layer.batch(&facts) {
            layer.replace(batch, &mut replaced);
        }
    }
    Some(replaced)
}

/// The names of values that depend on constants alone.
fn constants(graph: &GraphProto) -> HashSet<&str> {
    let initializers = graph.initializer.iter();
    let mut names: HashSet<&str> = initializers.map(|tensor| tensor.name.as_str()).collect();
    for node in &graph.node {
        let is_random = node.op_type.starts_with("Random") || subgraphs(node).next().is_some();
        let mut inputs = node.input.iter().filter(|name| !name.is_empty());
        let is_constant = node.op_type == "Constant" || !node.input.is_empty();
        if is_constant && !is_random && inputs.all(|name| names.contains(name.as_str())) {
            names.extend(node.output.iter().map(String::as_str));
        }
    }
    names
}

/// Whether a sum has two products or more, also one with features side by side.
fn has_products(producers: &HashMap<&str, &NodeProto>, sum: &str) -> bool {
    let (mut found, mut open) = (0, vec![sum]);
    for _ in 0..16 {
        let Some(node) = open.pop().and_then(|name| producers.get(name)) else {
            continue;
        };
        let factor = node
            .input
            .first()
            .and_then(|name| producers.get(name.as_str()));
        match node.op_type.as_str() {
            "Add" | "Identity" => open.extend(node.input.iter().map(String::as_str)),
            "MatMul" | "Gemm" if factor.is_some_and(|of| of.op_type == "Concat") => found += 2,
            "MatMul" | "Gemm" => found += 1,
            _ => {}
        }
    }
    found > 1
}

/// All steps, in the order of the graph.
///
/// The operators around a node are compared first: that is fast, and few nodes of most graphs have
/// them.
fn steps(graph: &GraphProto, terms: &Terms<'_>) -> Vec<Step> {
    let producers = producers(graph);
    let of = |name: &String| producers.get(name.as_str()).copied();
    let reads = |node: &NodeProto, operator: &str| {
        let mut inputs = node.input.iter().filter_map(of);
        inputs.any(|input| input.op_type == operator)
    };
    let step = |node: &NodeProto| {
        let h_next = Value::all(node.output.first()?);
        let mut inputs = node.input.iter().filter_map(of);
        match node.op_type.as_str() {
            "Mul" => {
                let states = inputs.filter(|input| Activation::of(input).is_some());
                let mut states = states.filter_map(|input| {
                    let state = Value::all(input.input.first()?);
                    let state = terms.resolve(&state);
                    let is_sum = producers.get(state.name.as_str())?.op_type == "Add";
                    is_sum.then_some(state)
                });
                states.find_map(|c_next| {
                    let step = cell::lstm(terms, &h_next, &c_next, None, None)?;
                    Some(Step {
                        node: node.name.clone(),
                        cell: step.cell,
                        h_next: h_next.clone(),
                        c_next: Some(c_next),
                        c: Some(step.c),
                        h: None,
                    })
                })
            }
            "Add" if inputs.any(|input| input.op_type == "Mul" && reads(input, "Sub")) => {
                let step = cell::gru(terms, &h_next, None)?;
                Some(Step {
                    node: node.name.clone(),
                    cell: step.cell,
                    h_next,
                    c_next: None,
                    c: None,
                    h: Some(step.h),
                })
            }
            _ if Activation::of(node).is_some()
                && has_products(&producers, node.input.first()?) =>
            {
                let width = terms.width(&h_next)?;
                let cell = cell::rnn(terms, &h_next, width)?;
                // One product is a dense layer.
                (cell.gates[0].linear.products.len() > 1).then_some(Step {
                    node: node.name.clone(),
                    cell,
                    h_next,
                    c_next: None,
                    c: None,
                    h: None,
                })
            }
            _ => None,
        }
    };
    graph.node.iter().filter_map(step).collect()
}

/// A step with its hidden state and inputs.
struct Placed<'a> {
    step: &'a Step,
    h: Value,
    inputs: CellInputs,
}

impl Placed<'_> {
    /// The states before it.
    fn states(&self) -> impl Iterator<Item = &Value> {
        [&self.h].into_iter().chain(&self.step.c)
    }
}

/// Steps that follow each other.
struct Layer<'a> {
    steps: Vec<Placed<'a>>,
}

/// `None` if there are none, or too many.
fn layers<'a>(graph: &GraphProto, steps: &'a [Step]) -> Option<Vec<Layer<'a>>> {
    let readers = readers(graph);
    let ends: HashMap<&Value, usize> = (steps.iter().enumerate())
        .map(|(index, step)| (step.c_next.as_ref().unwrap_or(&step.h_next), index))
        .collect();
    // The step before each: it gives the states that the step reads.
    let before = |step: &Step| {
        let reads = |value: &Value| {
            let mut products = step
                .cell
                .gates
                .iter()
                .flat_map(|gate| &gate.linear.products);
            products.any(|(of, _)| of == value)
        };
        if let Some(c) = &step.c {
            let before = *ends.get(c)?;
            return reads(&steps[before].h_next).then_some(before);
        }
        if let Some(h) = &step.h {
            return ends.get(h).copied();
        }
        // Of an RNN: a step that multiplies one of its values with the same matrix.
        let mut products = step.cell.gates[0].linear.products.iter();
        products.find_map(|(of, matrix)| {
            let before = *ends.get(of)?;
            let mut products = steps[before].cell.gates[0].linear.products.iter();
            products
                .any(|(_, other)| other.equals(matrix))
                .then_some(before)
        })
    };
    let before: Vec<Option<usize>> = steps.iter().map(before).collect();
    let mut after: Vec<Option<usize>> = vec![None; steps.len()];
    for (step, before) in before.iter().enumerate() {
        if let Some(before) = before {
            after[*before] = Some(step);
        }
    }
    let mut layers = Vec::new();
    let mut is_taken = vec![false; steps.len()];
    for first in 0..steps.len() {
        if is_taken[first] {
            continue;
        }
        // A step in the middle waits for the first one, unless that refused it.
        if let Some(before) = before[first]
            && !is_taken[before]
        {
            continue;
        }
        let mut chain = vec![first];
        let mut at = first;
        while let Some(next) = after[at].filter(|next| !is_taken[*next] && !chain.contains(next)) {
            chain.push(next);
            at = next;
        }
        for layer in split(graph, &readers, steps, &chain) {
            layers.push(layer);
        }
        if layers.len() > MAX_LAYERS {
            return None;
        }
        chain.into_iter().for_each(|step| is_taken[step] = true);
    }
    (!layers.is_empty()).then_some(layers)
}

/// The layers of steps each of which reads the states of the one before.
fn split<'a>(
    graph: &GraphProto,
    readers: &HashMap<&str, usize>,
    steps: &'a [Step],
    chain: &[usize],
) -> Vec<Layer<'a>> {
    let mut layers: Vec<Layer<'a>> = Vec::new();
    let mut open: Vec<Placed<'a>> = Vec::new();
    for (place, &index) in chain.iter().enumerate() {
        let step = &steps[index];
        let previous = place.checked_sub(1).map(|before| &steps[chain[before]]);
        let placed = match (&step.h, previous) {
            (Some(h), _) => place_step(step, h),
            (None, Some(previous)) => place_step(step, &previous.h_next),
            (None, None) => first(step, chain.get(1).map(|&next| (&steps[next], &step.h_next))),
        };
        let Some(placed) = placed else {
            layers.extend(close(&mut open));
            continue;
        };
        if let Some(last) = open.last() {
            let one = (&last.step.cell, &last.inputs, &last.h);
            let other = (&placed.step.cell, &placed.inputs, &placed.h);
            let goes_on = placed.h == last.step.h_next && layer::has_same_weights(one, other);
            if !goes_on || is_read(readers, last.step) {
                layers.extend(close(&mut open));
            }
        }
        open.push(placed);
    }
    layers.extend(close(&mut open));
    let independent = layers.into_iter().flat_map(|layer| {
        if !depends_on_itself(graph, &layer) {
            return vec![layer];
        }
        let alone = layer
            .steps
            .into_iter()
            .map(|step| Layer { steps: vec![step] });
        alone
            .filter(|layer| layer.steps[0].step.cell.operator != "RNN")
            .collect()
    });
    independent.collect()
}

fn close<'a>(open: &mut Vec<Placed<'a>>) -> Option<Layer<'a>> {
    let steps = std::mem::take(open);
    // A single step of an RNN is as well a dense layer of two inputs.
    let is_layer = match steps.as_slice() {
        [] => false,
        [one] => one.step.cell.operator != "RNN",
        _ => true,
    };
    is_layer.then_some(Layer { steps })
}

fn place_step<'a>(step: &'a Step, h: &Value) -> Option<Placed<'a>> {
    let inputs = CellInputs::of(&step.cell, h)?;
    Some(Placed {
        step,
        h: h.clone(),
        inputs,
    })
}

/// The first step of a chain: its hidden state is the value with the weights of the next step's
/// hidden state, or any of that size.
fn first<'a>(step: &'a Step, next: Option<(&Step, &Value)>) -> Option<Placed<'a>> {
    let next = next.and_then(|(next, h)| Some((next, h, CellInputs::of(&next.cell, h)?)));
    let products = &step.cell.gates[0].linear.products;
    let candidates = products.iter().map(|(of, _)| of);
    let mut placed: Vec<Placed<'a>> = candidates.filter_map(|h| place_step(step, h)).collect();
    if let Some((next, h, inputs)) = &next {
        let same = placed.iter().position(|placed| {
            let one = (&placed.step.cell, &placed.inputs, &placed.h);
            layer::has_same_weights(one, (&next.cell, inputs, h))
        });
        if let Some(same) = same {
            return Some(placed.swap_remove(same));
        }
    }
    placed.pop()
}

/// Whether more than its own output and the next step read the cell state.
fn is_read(readers: &HashMap<&str, usize>, step: &Step) -> bool {
    let c = step.c_next.as_ref();
    c.is_some_and(|c| readers.get(c.name.as_str()).is_some_and(|&count| count > 2))
}

/// Whether an input of a layer depends on one of its outputs.
fn depends_on_itself(graph: &GraphProto, layer: &Layer<'_>) -> bool {
    if layer.steps.len() < 2 {
        return false;
    }
    let inputs = layer.steps.iter().flat_map(|step| &step.inputs.values);
    let names: Vec<&str> = inputs.map(|value| value.name.as_str()).collect();
    let computed = ancestors(graph, &names);
    let mut outputs = layer.steps.iter().flat_map(|step| step.step.outputs());
    outputs.any(|output| computed.contains(output.name.as_str()))
}

impl Step {
    /// The states after it.
    fn outputs(&self) -> impl Iterator<Item = &Value> {
        [&self.h_next].into_iter().chain(&self.c_next)
    }
}

impl Layer<'_> {
    /// The values that the layer reads.
    fn values(&self) -> impl Iterator<Item = &Value> {
        let inputs = self.steps.iter().flat_map(|step| &step.inputs.values);
        inputs.chain(self.steps.iter().take(1).flat_map(Placed::states))
    }

    /// The number of sequences. `None` if the shapes do not fit.
    fn batch(&self, facts: &HashMap<&str, Fact>) -> Option<usize> {
        let first = self.steps.first()?;
        let batch = *facts.get(first.h.name.as_str())?.shape.first()?;
        let has_shape = |value: &Value, width: usize| {
            let fact = facts.get(value.name.as_str());
            value.columns.is_none()
                && fact.is_some_and(|fact| {
                    fact.element_type == ElementType::F32 && fact.shape == [batch, width]
                })
        };
        let inputs_fit = self.steps.iter().all(|step| {
            let mut inputs = step.inputs.values.iter().zip(step.inputs.widths());
            inputs.all(|(value, width)| has_shape(value, width))
        });
        let size = first.step.cell.hidden_size;
        let mut states = first.states();
        (batch > 0 && inputs_fit && states.all(|state| has_shape(state, size))).then_some(batch)
    }

    /// Adds the input `[steps, batch, features]`, and returns its name.
    fn add_input(&self, batch: usize, made: &mut Replacement) -> String {
        let name = &self.steps[0].step.node;
        let mut all = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let mut x = step.inputs.values[0].name.clone();
            if step.inputs.values.len() > 1 {
                let names = step.inputs.values.iter().map(|value| value.name.as_str());
                x = format!("{name}/inputs/{index}");
                made.concat(&names.collect::<Vec<_>>(), &x, 1);
            }
            let shaped = format!("{name}/input/{index}");
            made.reshape(&x, &shaped, &[1, batch, step.inputs.width()]);
            all.push(shaped);
        }
        if all.len() == 1 {
            return all.remove(0);
        }
        let x = format!("{name}/steps");
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        made.concat(&names, &x, 0);
        x
    }

    /// Adds the layer in the place of the steps.
    fn replace(&self, batch: usize, replaced: &mut Replaced) {
        let (first, last) = (&self.steps[0], self.steps[self.steps.len() - 1].step);
        let (name, size) = (first.step.node.as_str(), first.step.cell.hidden_size);
        let made = &mut replaced.by;
        let call = LayerCall {
            cell: &first.step.cell,
            inputs: &first.inputs,
            h: &first.h,
            name,
            is_reversed: false,
            x: self.add_input(batch, made),
            lengths: String::new(),
            initial: first.states().map(|state| state.name.as_str()).collect(),
            batch,
        };
        let outputs = call.add_to(made);
        for (from, to) in outputs.last.iter().zip(last.outputs()) {
            made.reshape(from, &to.name, &[batch, size]);
        }
        let before = &self.steps[..self.steps.len() - 1];
        if !before.is_empty() {
            let flat = format!("{name}/outputs");
            made.reshape(&outputs.y, &flat, &[self.steps.len(), batch, size]);
            for (index, step) in before.iter().enumerate() {
                made.gather(&flat, index, &step.step.h_next.name);
            }
        }
        let hidden = self.steps.iter().map(|step| step.step.h_next.name.clone());
        replaced.values.extend(hidden);
        replaced
            .values
            .extend(last.c_next.iter().map(|c| c.name.clone()));
    }
}
