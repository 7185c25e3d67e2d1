//! Writes a loop as a `Scan` node.

use std::collections::{HashMap, HashSet};

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, ValueInfoProto, type_proto};

use super::Loop;
use crate::ElementType;
use crate::control_flow::cone::{cone, depends_on_values, identity, is_end, leaves, sources};
use crate::evaluation::Evaluation;
use crate::source::input;
use crate::source::names::rename;
use crate::tensor::Tensor as Value;

impl Loop {
    /// The counter, and the states that count from a known integer; with their first values.
    fn counters(&self, graph: &GraphProto, evaluation: &Evaluation<'_>) -> HashMap<String, i64> {
        let mut counters = HashMap::from([(self.counter().to_owned(), 0)]);
        for index in 0..self.states {
            let (before, after) = self.state(index);
            let mut nodes = self.body.node.iter();
            let update = nodes.find(|node| node.output.first().is_some_and(|name| name == after));
            let steps = update
                .filter(|node| node.op_type == "Add")
                .and_then(|node| {
                    let mut inputs = node.input.iter().map(String::as_str);
                    let (first, second) = (inputs.next()?, inputs.next()?);
                    match before {
                        _ if before == first => Some(second),
                        _ if before == second => Some(first),
                        _ => None,
                    }
                });
            let is_one = |name: &str| {
                let part = cone(&self.body, &[name]);
                part.input.is_empty() && matches!(evaluation.integer(part), Ok(Some(1)))
            };
            if !steps.is_some_and(|name| !self.depends_on_run(name) && is_one(name)) {
                continue;
            }
            let first = &self.node.input[2 + index];
            if !depends_on_values(graph, first)
                && let Ok(Some(first)) = evaluation.integer(cone(graph, &[first]))
            {
                counters.insert(before.to_owned(), first);
            }
        }
        counters
    }

    /// Whether a value of the body depends on more than its constants.
    fn depends_on_run(&self, name: &str) -> bool {
        let constants = &self.body.initializer;
        let leaves = leaves(&self.body, name);
        !leaves
            .into_iter()
            .all(|leaf| constants.iter().any(|tensor| tensor.name == leaf))
    }

    /// Takes the nodes out of the body that read a value from outside at the place of a counter:
    /// each becomes a sequence that the scan reads.
    fn take_sequences(
        &mut self,
        graph: &mut GraphProto,
        iterations: i64,
        evaluation: &Evaluation<'_>,
    ) -> Vec<Sequence> {
        let counters = self.counters(graph, evaluation);
        let nodes = self.body.node.iter().flat_map(|node| &node.output);
        let mut own: HashSet<String> = nodes.cloned().collect();
        own.extend(self.body.input.iter().map(|input| input.name.clone()));
        own.extend(
            self.body
                .initializer
                .iter()
                .map(|tensor| tensor.name.clone()),
        );
        let (mut sequences, mut given) = (Vec::new(), HashSet::new());
        let loop_name = self.node.name.clone();
        self.body.node.retain(|node| {
            let axis = node.attribute.iter().find(|one| one.name == "axis");
            let ([from, at], [step]) = (node.input.as_slice(), node.output.as_slice()) else {
                return true;
            };
            let Some(first) = counters.get(at) else {
                return true;
            };
            if node.op_type != "Gather"
                || axis.is_some_and(|axis| axis.i != 0)
                || own.contains(from)
            {
                return true;
            }
            let Some(kind) = evaluation.element_type(cone(graph, &[from])) else {
                return true;
            };
            let name = format!("{step}/steps");
            let places = format!("{loop_name}/places/{first}");
            if given.insert(*first) {
                let all: Vec<i64> = (0..iterations).map(|at| first.saturating_add(at)).collect();
                let all = Value::new(&[all.len()], all).expect("as many elements");
                graph.initializer.push(all.to_proto(&places));
            }
            sequences.push(Sequence {
                within: input(step, kind, None),
                node: NodeProto {
                    name: name.clone(),
                    input: vec![from.clone(), places],
                    output: vec![name.clone()],
                    ..node.clone()
                },
                name,
            });
            false
        });
        sequences
    }

    /// The outputs that are read, and the states that these depend on.
    fn live(&self, graph: &GraphProto) -> Live {
        let nodes = graph.node.iter().filter(|node| node.name != self.node.name);
        let mut read: HashSet<&str> = nodes.flat_map(sources).collect();
        read.extend(graph.output.iter().map(|output| output.name.as_str()));
        let is_read = |index: &usize| {
            let output = self.node.output.get(*index);
            output.is_some_and(|name| read.contains(name.as_str()))
        };
        let after = |index: usize| self.body.output[1 + index].name.as_str();
        let outputs = self.body.output.len() - 1;
        let scans: Vec<usize> = (self.states..outputs).filter(is_read).collect();
        let mut states: HashSet<usize> = HashSet::new();
        let ends: Vec<usize> = (0..self.states)
            .filter(|index| is_read(index) && !self.is_constant(*index))
            .collect();
        let mut open: Vec<usize> = [scans.as_slice(), &ends].concat();
        let mut seen: HashSet<usize> = open.iter().copied().collect();
        while let Some(index) = open.pop() {
            for leaf in leaves(&self.body, after(index)) {
                let mut all = 0..self.states;
                let state = all.find(|&state| self.state(state).0 == leaf);
                if let Some(state) = state.filter(|&state| !self.is_constant(state)) {
                    states.insert(state);
                    if seen.insert(state) {
                        open.push(state);
                    }
                }
            }
        }
        let (mut states, lasts) = {
            let lasts = ends.iter().copied().filter(|end| !states.contains(end));
            let lasts: Vec<usize> = lasts.collect();
            (states.into_iter().collect::<Vec<_>>(), lasts)
        };
        states.sort_unstable();
        Live {
            states,
            lasts,
            scans,
        }
    }

    /// The nodes that take its place.
    pub(super) fn into_scan(
        mut self,
        graph: &mut GraphProto,
        iterations: i64,
        evaluation: &Evaluation<'_>,
    ) -> Vec<NodeProto> {
        let name = self.node.name.clone();
        let mut sequences = self.take_sequences(graph, iterations, evaluation);
        let constant: Vec<usize> = (0..self.states).filter(|&i| self.is_constant(i)).collect();
        let Live {
            states: changing,
            lasts,
            scans,
        } = self.live(graph);
        // States that never change are values from outside.
        let outside: HashMap<String, String> = (constant.iter())
            .map(|&index| {
                let before = self.state(index).0.to_owned();
                (before, self.node.input[2 + index].clone())
            })
            .collect();
        let counter = self.counter().to_owned();
        let condition = self.condition().to_owned();
        let mut body = std::mem::take(&mut self.body);
        let all = [changing.as_slice(), &lasts, &scans].concat();
        let names: Vec<&str> = (all.iter())
            .map(|&index| body.output[1 + index].name.as_str())
            .collect();
        // Without the nodes that nothing reads any more, those of the condition among them.
        let nodes = cone(&body, &names).node;
        body.node = nodes.into_iter().take_while(|node| !is_end(node)).collect();
        let is_true = Value::new(&[], vec![true]).expect("one element");
        body.initializer.push(is_true.to_proto(&condition));
        // The counter is a sequence, too.
        let counts = Value::new(&[iterations as usize], (0..iterations).collect::<Vec<_>>());
        let counts_name = format!("{name}/iterations");
        let counts = counts.expect("as many elements").to_proto(&counts_name);
        let reads_counter = body.node.iter().any(|node| node.input.contains(&counter));
        let reads_nothing = sequences.is_empty() && !reads_counter;
        if sequences.is_empty() || reads_counter {
            graph.initializer.push(counts);
            sequences.push(Sequence {
                node: identity(&counts_name, &format!("{counts_name}/steps")),
                name: format!("{counts_name}/steps"),
                within: input(&counter, ElementType::I64, Some(&[])),
            });
        }
        let states_within = changing.iter().map(|&index| {
            let mut state = body.input[2 + index].clone();
            // Sizes by names of the file are not those of the inputs.
            let kind = state.r#type.as_mut().and_then(|of| of.value.as_mut());
            if let Some(type_proto::Value::TensorType(tensor)) = kind {
                tensor.shape = None;
            }
            state
        });
        let within = sequences.iter().map(|sequence| sequence.within.clone());
        let inputs: Vec<_> = states_within.chain(within).collect();
        let flag = format!("{name}/counts");
        if reads_nothing {
            let end = Value::new(&[], vec![i64::MAX]).expect("one element");
            let end_name = format!("{name}/end");
            body.initializer.push(end.to_proto(&end_name));
            body.node.push(NodeProto {
                op_type: "Less".into(),
                input: vec![counter.clone(), end_name],
                ..identity(&counter, &flag)
            });
        }
        // A node for each: an output of the body may be read twice, or be an input.
        let outputs: Vec<_> = (all.iter())
            .map(|&index| {
                let mut output = body.output[1 + index].clone();
                let own = format!("{name}/output/{index}");
                body.node.push(if reads_nothing {
                    // A scan must read a sequence.
                    NodeProto {
                        op_type: "Where".into(),
                        input: vec![flag.clone(), output.name.clone(), output.name.clone()],
                        ..identity(&output.name, &own)
                    }
                } else {
                    identity(&output.name, &own)
                });
                output.name = own;
                output.r#type = None;
                output
            })
            .collect();
        (body.input, body.output) = (inputs, outputs);
        rename(&mut body, &|name| outside.get(name).cloned());

        let states = changing.iter();
        let states = states.map(|&index| self.node.input[2 + index].clone());
        let result = |index: usize| match self.node.output.get(index).map(String::as_str) {
            None | Some("") => format!("{name}/unread/{index}"),
            Some(output) => output.to_owned(),
        };
        let each = |index: usize| format!("{name}/each/{index}");
        let (states_after, scanned) = (changing.iter(), scans.iter());
        let outputs = (states_after.map(|&index| result(index)))
            .chain(lasts.iter().map(|&index| each(index)))
            .chain(scanned.map(|&index| result(index)));
        let count = AttributeProto {
            name: "num_scan_inputs".into(),
            r#type: AttributeType::Int as i32,
            i: sequences.len() as i64,
            ..AttributeProto::default()
        };
        let graph_of = AttributeProto {
            name: "body".into(),
            r#type: AttributeType::Graph as i32,
            g: Some(body),
            ..AttributeProto::default()
        };
        let names = sequences.iter().map(|sequence| sequence.name.clone());
        let scan = NodeProto {
            op_type: "Scan".into(),
            input: states.chain(names).collect(),
            output: outputs.collect(),
            attribute: vec![count, graph_of],
            ..self.node.clone()
        };
        let kept = constant.iter().filter_map(|&index| {
            let output = self.node.output.get(index)?;
            (!output.is_empty()).then(|| identity(&self.node.input[2 + index], output))
        });
        let last = format!("{name}/last");
        if !lasts.is_empty() {
            let value = Value::new(&[], vec![iterations - 1]).expect("one element");
            graph.initializer.push(value.to_proto(&last));
        }
        let lasts = lasts.iter().map(|&index| NodeProto {
            name: format!("{name}/last/{index}"),
            op_type: "Gather".into(),
            input: vec![each(index), last.clone()],
            output: vec![result(index)],
            ..NodeProto::default()
        });
        let sequences = sequences.into_iter().map(|sequence| sequence.node);
        kept.chain(sequences).chain([scan]).chain(lasts).collect()
    }
}

/// The parts of a loop that are read.
struct Live {
    /// States that iterations read.
    states: Vec<usize>,
    /// States that no iteration reads: only their last value is read.
    lasts: Vec<usize>,
    /// Outputs with a value for each iteration.
    scans: Vec<usize>,
}

/// A value that a scan reads step by step.
struct Sequence {
    name: String,
    /// The node that gives it.
    node: NodeProto,
    /// One step of it, as an input of the body.
    within: ValueInfoProto,
}
