//! Writes `Loop` nodes with a known number of iterations as `Scan` nodes.
//!
//! The number is known if the largest number is, and if the condition depends on the counter and on
//! states that are known before a run, such as a counter of the exporter: these states are computed
//! ahead.

mod ahead;
mod scan;

use tract_onnx::pb::{GraphProto, NodeProto};

use self::ahead::Ahead;
use super::cone::{cone, depends_on_values};
use crate::NetworkError;
use crate::evaluation::Evaluation;
use crate::source::names::prefix;

/// Largest number of iterations that are computed ahead.
const MAX_ITERATIONS: i64 = 100_000;

/// Writes the loops of a graph, not those within others.
pub(super) fn count_loops(
    graph: &mut GraphProto,
    evaluation: &Evaluation<'_>,
) -> Result<(), NetworkError> {
    let mut at = 0;
    while at < graph.node.len() {
        let found = Loop::read(&graph.node[at]);
        if let Some(found) = found
            && let Some(iterations) = found.iterations(graph, evaluation)?
            && iterations > 0
        {
            let nodes = found.into_scan(graph, iterations, evaluation);
            graph.node.splice(at..=at, nodes);
        }
        at += 1;
    }
    Ok(())
}

/// A `Loop` node.
struct Loop {
    node: NodeProto,
    /// Its values have names that no other graph has.
    body: GraphProto,
    states: usize,
}

impl Loop {
    /// `None` for other nodes, and for a body that does not fit.
    fn read(node: &NodeProto) -> Option<Loop> {
        if node.op_type != "Loop" {
            return None;
        }
        let mut attributes = node.attribute.iter();
        let mut body = attributes.find(|one| one.name == "body")?.g.clone()?;
        let states = body.input.len().checked_sub(2)?;
        if node.input.len() != states + 2
            || body.output.len() <= states
            || node.output.len() + 1 > body.output.len()
        {
            return None;
        }
        prefix(&mut body, &format!("{}/body/", node.name));
        Some(Loop {
            node: node.clone(),
            body,
            states,
        })
    }

    /// The value of the body that `Identity` nodes give this name.
    fn origin<'a>(&'a self, mut name: &'a str) -> &'a str {
        let copied = |name: &str| {
            let mut nodes = self
                .body
                .node
                .iter()
                .filter(|node| node.op_type == "Identity");
            let node = nodes.find(|node| node.output.first().is_some_and(|o| o == name))?;
            node.input.first()
        };
        // A file may have nodes that read each other.
        for _ in 0..self.body.node.len() {
            match copied(name) {
                Some(from) => name = from,
                None => break,
            }
        }
        name
    }

    fn counter(&self) -> &str {
        &self.body.input[0].name
    }

    fn condition(&self) -> &str {
        &self.body.input[1].name
    }

    /// The name of a state within the body, before and after an iteration.
    fn state(&self, index: usize) -> (&str, &str) {
        let before = &self.body.input[2 + index].name;
        (before, self.origin(&self.body.output[1 + index].name))
    }

    /// Whether a state never changes.
    fn is_constant(&self, index: usize) -> bool {
        let (before, after) = self.state(index);
        before == after
    }

    /// The number of iterations; `None` if it is not known.
    fn iterations(
        &self,
        graph: &GraphProto,
        evaluation: &Evaluation<'_>,
    ) -> Result<Option<i64>, NetworkError> {
        let known = |name: &str, default| match name {
            "" => Ok(Some(default)),
            _ if depends_on_values(graph, name) => Ok(None),
            _ => evaluation.integer(cone(graph, &[name])),
        };
        let most = known(&self.node.input[0], i64::MAX)?;
        let first = known(&self.node.input[1], 1)?;
        let (Some(most), Some(first)) = (most, first) else {
            return Ok(None);
        };
        if first == 0 || most <= 0 {
            return Ok(Some(0));
        }
        if self.origin(&self.body.output[0].name) == self.condition() {
            return Ok((most <= MAX_ITERATIONS).then_some(most));
        }
        let Some(ahead) = Ahead::read(self, graph, evaluation)? else {
            return Ok(None);
        };
        ahead.count(self, most, evaluation)
    }
}
