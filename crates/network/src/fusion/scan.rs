//! Scans whose body is one step of a layer.
//!
//! Keras masks steps: at a masked step of a sequence its states keep their values, and the output
//! is zero or the output before. Any steps may be masked. So the other steps of each sequence are
//! moved to its begin, the layer runs on them with lengths, and its outputs are moved back.

use std::collections::HashMap;

use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto};

use super::cell::{self, Cell};
use super::layer::{CellInputs, LayerCall, LayerOutputs};
use super::replacement::Replacement;
use super::terms::{Mask, Term, Terms, Value};
use crate::ElementType;
use crate::control_flow::{cone, depends_on_values, leaves};
use crate::evaluation::{Evaluation, Fact};
use crate::operators::{COMPACT_STEPS, EXPAND_STEPS};
use crate::source::attributes::{attribute, integer_attribute};
use crate::source::names::prefix;
use crate::tensor::Tensor;

/// Writes the scans of a graph that are layers as such, not those within others.
pub(super) fn fuse_scans(graph: &mut GraphProto, evaluation: &Evaluation<'_>) {
    let mut at = 0;
    while at < graph.node.len() {
        let layer = Scan::read(&graph.node[at], graph, evaluation)
            .and_then(|scan| scan.layer(graph, evaluation));
        if let Some(Replacement { nodes, constants }) = layer {
            graph.node.splice(at..=at, nodes);
            graph.initializer.extend(constants);
        }
        at += 1;
    }
}

/// A `Scan` node of opset 9 or later whose sequences have the steps as their first axis.
struct Scan {
    name: String,
    body: GraphProto,
    states: Vec<State>,
    /// By the name of a step within the body.
    sequences: HashMap<String, Sequence>,
    /// Values of the body that are stacked, with the name of the result.
    outputs: Vec<(String, String)>,
    is_reversed: bool,
}

struct State {
    before: String,
    after: String,
    initial: String,
    fact: Fact,
    /// The name of its last value; empty if nothing reads it.
    last: String,
}

struct Sequence {
    name: String,
    fact: Fact,
}

impl Scan {
    fn read(node: &NodeProto, graph: &GraphProto, evaluation: &Evaluation<'_>) -> Option<Scan> {
        if node.op_type != "Scan" || evaluation.opset() < 9 {
            return None;
        }
        let mut body = attribute(node, "body")?.g.clone()?;
        prefix(&mut body, &format!("{}/step/", node.name));
        let count = usize::try_from(attribute(node, "num_scan_inputs")?.i).ok()?;
        let states = node.input.len().checked_sub(count)?;
        let fits = body.input.len() == node.input.len()
            && body.output.len() >= states
            && node.output.len() <= body.output.len();
        if !fits || count == 0 {
            return None;
        }
        let integers = |name: &str| attribute(node, name).map_or(&[][..], |of| &of.ints);
        let axes = integers("scan_input_axes")
            .iter()
            .chain(integers("scan_output_axes"));
        if axes.clone().any(|&axis| axis != 0) {
            return None;
        }
        let outputs = body.output.len() - states;
        let [inputs_reversed, outputs_reversed] = [
            direction(integers("scan_input_directions"), count)?,
            direction(integers("scan_output_directions"), outputs)?,
        ];
        if outputs > 0 && inputs_reversed != outputs_reversed {
            return None;
        }
        let names: Vec<&str> = node.input.iter().map(String::as_str).collect();
        let mut facts = evaluation.facts(cone(graph, &names))?.into_iter();
        let result = |index: usize| node.output.get(index).cloned().unwrap_or_default();
        let states: Vec<State> = (0..states)
            .map(|index| {
                Some(State {
                    before: body.input[index].name.clone(),
                    after: body.output[index].name.clone(),
                    initial: node.input[index].clone(),
                    fact: facts.next()?,
                    last: result(index),
                })
            })
            .collect::<Option<_>>()?;
        let sequences = (states.len()..node.input.len()).map(|index| {
            let sequence = Sequence {
                name: node.input[index].clone(),
                fact: facts.next()?,
            };
            Some((body.input[index].name.clone(), sequence))
        });
        let sequences = sequences.collect::<Option<_>>()?;
        let outputs = (states.len()..body.output.len())
            .map(|index| (body.output[index].name.clone(), result(index)))
            .filter(|(_, result)| !result.is_empty());
        Some(Scan {
            name: node.name.clone(),
            outputs: outputs.collect(),
            body,
            states,
            sequences,
            is_reversed: inputs_reversed,
        })
    }

    /// The value of a constant of the body; it may be outside of the body.
    fn constant(
        &self,
        name: &str,
        graph: &GraphProto,
        evaluation: &Evaluation<'_>,
    ) -> Option<Tensor> {
        let mut part = cone(&self.body, &[name]);
        if !part.input.is_empty() {
            return None;
        }
        let own = &self.body.initializer;
        let outside = leaves(&self.body, name);
        let outside = outside
            .into_iter()
            .filter(|leaf| !own.iter().any(|tensor| tensor.name == *leaf));
        for name in outside {
            if depends_on_values(graph, name) {
                return None;
            }
            let value = evaluation.value(cone(graph, &[name])).ok()??;
            part.initializer.push(value.to_proto(name));
        }
        evaluation.value(part).ok()?
    }

    /// The layer that computes the same. Adds nothing to the graph.
    fn layer(&self, graph: &GraphProto, evaluation: &Evaluation<'_>) -> Option<Replacement> {
        let of_sequences = self
            .sequences
            .iter()
            .map(|(name, sequence)| (name, &sequence.fact));
        let of_states = self.states.iter().map(|state| (&state.before, &state.fact));
        let widths = of_sequences.chain(of_states);
        let widths = widths.filter_map(|(name, fact)| Some((name.clone(), *fact.shape.last()?)));
        let terms = Terms::new(
            &self.body,
            widths.collect(),
            |name| self.constant(name, graph, evaluation),
            |name| {
                let sequence = self.sequences.get(name);
                sequence.is_some_and(|one| one.fact.element_type == ElementType::Bool)
            },
        );
        let states: Vec<usize> = (0..self.states.len())
            .filter(|&index| {
                let fact = &self.states[index].fact;
                fact.element_type == ElementType::F32 && fact.shape.len() == 2
            })
            .collect();
        let pairs = states.iter().flat_map(|&h| {
            let others = states.iter().filter(move |&&c| c != h);
            others.map(move |&c| (h, Some(c)))
        });
        // Any cell state shows an LSTM, so the layers without one come last.
        let alone = states.iter().map(|&h| (h, None));
        let mut all = pairs.chain(alone);
        all.find_map(|(h, c)| self.step(&terms, h, c)?.replace(self, &terms))
    }

    /// The step of a layer whose states have these indices.
    fn step(&self, terms: &Terms<'_>, h: usize, c: Option<usize>) -> Option<Step> {
        let hidden_size = self.states[h].fact.shape[1];
        let before = Value::all(&self.states[h].before);
        let Update {
            mask,
            value: h_next,
        } = self.update(terms, h);
        let cell = match c {
            Some(c) => {
                let c_before = Value::all(&self.states[c].before);
                let c_next = self.update(terms, c);
                if c_next.mask != mask {
                    return None;
                }
                let size = Some(hidden_size);
                cell::lstm(terms, &h_next, &c_next.value, size, Some(&c_before))?.cell
            }
            None => match cell::gru(terms, &h_next, Some(hidden_size)) {
                Some(step) if step.h == before => step.cell,
                _ => cell::rnn(terms, &h_next, hidden_size)?,
            },
        };
        let inputs = CellInputs::of(&cell, &before)?;
        Some(Step {
            h,
            c,
            mask,
            h_next,
            cell,
            inputs,
        })
    }

    /// The value of a state after a step that is not masked.
    fn update(&self, terms: &Terms<'_>, state: usize) -> Update {
        let state = &self.states[state];
        let after = terms.resolve(&Value::all(&state.after));
        match terms.term(&after) {
            Term::Select(mask, when, otherwise)
                if terms.resolve(&otherwise) == Value::all(&state.before) =>
            {
                Update {
                    mask: Some(mask),
                    value: terms.resolve(&when),
                }
            }
            _ => Update {
                mask: None,
                value: after,
            },
        }
    }
}

fn direction(directions: &[i64], count: usize) -> Option<bool> {
    let first = directions.first().copied().unwrap_or(0);
    let are_equal = directions.iter().all(|&one| one == first);
    let fits = directions.is_empty() || directions.len() == count;
    (are_equal && fits).then_some(first == 1)
}

struct Update {
    mask: Option<Mask>,
    value: Value,
}

/// The output of a layer at masked steps.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Masked {
    Zero,
    /// The output before; at first this value.
    Held(String),
}

/// The step of a layer.
struct Step {
    h: usize,
    c: Option<usize>,
    mask: Option<Mask>,
    h_next: Value,
    cell: Cell,
    inputs: CellInputs,
}

impl Step {
    /// The layer in the place of the scan; `None` if the scan computes more than its outputs.
    fn replace(&self, scan: &Scan, terms: &Terms<'_>) -> Option<Replacement> {
        let name = &scan.name;
        let size = self.cell.hidden_size;
        let batch = scan.states[self.h].fact.shape[0];
        let sequences = self.inputs.values.iter();
        let sequences: Vec<&Sequence> = sequences
            .map(|value| {
                scan.sequences
                    .get(&value.name)
                    .filter(|_| value.columns.is_none())
            })
            .collect::<Option<_>>()?;
        let steps = *sequences.first()?.fact.shape.first()?;
        let fits = |sequence: &&Sequence| {
            sequence.fact.element_type == ElementType::F32
                && matches!(*sequence.fact.shape, [s, b, _] if s == steps && b == batch)
        };
        let is_state = |index: usize| scan.states[index].fact.shape == [batch, size];
        if steps == 0
            || batch == 0
            || !sequences.iter().all(fits)
            || !self.c.is_none_or(is_state)
            || (self.mask.is_some() && scan.is_reversed)
        {
            return None;
        }
        let mut made = Replacement::default();
        let mut x = sequences[0].name.clone();
        if sequences.len() > 1 {
            let names: Vec<&str> = sequences.iter().map(|one| one.name.as_str()).collect();
            x = format!("{name}/inputs");
            made.concat(&names, &x, 2);
        }
        let mut lengths = String::new();
        let mask = match &self.mask {
            None => None,
            Some(mask) => {
                let sequence = scan.sequences.get(&mask.name)?;
                (sequence.fact.shape == [steps, batch, 1]).then_some(())?;
                let compact = format!("{name}/steps");
                lengths = format!("{name}/lengths");
                let node = made.add(COMPACT_STEPS, &[&x, &sequence.name], &[&compact, &lengths]);
                node.attribute.push(negated(mask.is_negated));
                x = compact;
                Some((sequence.name.clone(), mask.is_negated))
            }
        };
        let before = Value::all(&scan.states[self.h].before);
        let states: Vec<usize> = [self.h].into_iter().chain(self.c).collect();
        let initial = states
            .iter()
            .map(|&state| scan.states[state].initial.as_str());
        let call = LayerCall {
            cell: &self.cell,
            inputs: &self.inputs,
            h: &before,
            name,
            is_reversed: scan.is_reversed,
            x,
            lengths,
            initial: initial.collect(),
            batch,
        };
        let LayerOutputs { y, last } = call.add_to(&mut made);
        for (&state, last) in states.iter().zip(&last) {
            let to = &scan.states[state].last;
            if !to.is_empty() {
                made.reshape(last, to, &[batch, size]);
            }
        }

        let shape = [steps, batch, size];
        let expand = |made: &mut Replacement, masked: Masked, to: &str| match &mask {
            None => made.reshape(&y, to, &shape),
            Some((mask, is_negated)) => {
                let flat = format!("{to}/flat");
                made.reshape(&y, &flat, &shape);
                let mut inputs = vec![flat.as_str(), mask];
                if let Masked::Held(first) = &masked {
                    inputs.push(first);
                }
                let node = made.add(EXPAND_STEPS, &inputs, &[to]);
                node.attribute.push(negated(*is_negated));
            }
        };
        for (within, result) in &scan.outputs {
            let masked = self.masked(scan, terms, &Value::all(within))?;
            expand(&mut made, masked, result);
        }
        for (index, state) in scan.states.iter().enumerate() {
            if states.contains(&index) {
                continue;
            }
            // A state that only holds the output.
            let held = Masked::Held(state.initial.clone());
            let fits = state.fact.shape == [batch, size] && !scan.is_reversed;
            let masked = self.masked(scan, terms, &Value::all(&state.after))?;
            (fits && (masked == held || self.mask.is_none())).then_some(())?;
            if !state.last.is_empty() {
                let all = format!("{}/all", state.last);
                expand(&mut made, masked, &all);
                made.gather(&all, steps - 1, &state.last);
            }
        }
        Some(made)
    }

    /// The output at masked steps of a value that is the hidden state at others. `None` if it is
    /// another value.
    fn masked(&self, scan: &Scan, terms: &Terms<'_>, value: &Value) -> Option<Masked> {
        let hidden = &scan.states[self.h];
        let value = terms.resolve(value);
        let Some(mask) = &self.mask else {
            return (value == self.h_next).then_some(Masked::Zero);
        };
        let Term::Select(of, when, otherwise) = terms.term(&value) else {
            return None;
        };
        if of != *mask || terms.resolve(&when) != self.h_next {
            return None;
        }
        let otherwise = terms.resolve(&otherwise);
        if otherwise == Value::all(&hidden.before) {
            return Some(Masked::Held(hidden.initial.clone()));
        }
        let mut states = scan.states.iter();
        let held = states.find(|state| otherwise == Value::all(&state.before));
        if let Some(held) = held {
            let after = terms.resolve(&Value::all(&held.after));
            return (after == value).then(|| Masked::Held(held.initial.clone()));
        }
        terms.is_zero(&otherwise).then_some(Masked::Zero)
    }
}

fn negated(is_negated: bool) -> AttributeProto {
    integer_attribute("negated", i64::from(is_negated))
}
