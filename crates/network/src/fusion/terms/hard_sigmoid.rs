//! `HardSigmoid` written as a clipped sum.

use tract_onnx::pb::NodeProto;

use super::super::activation::Activation;
use super::{Term, Terms, Value};
use crate::source::attributes::attribute;

/// A value and a number that it is multiplied with or added to.
struct Scaled<'a> {
    name: &'a str,
    constant: f32,
}

impl Terms<'_> {
    /// `HardSigmoid` as Keras writes it: `factor · clip(scale · x + shift, 0, 1 / factor)`.
    pub(super) fn hard_sigmoid(&self, node: &NodeProto, value: &Value) -> Option<Term> {
        let producer = |name: &str| self.producers.get(name).map(|(node, _)| *node);
        let (clip, factor) = match node.op_type.as_str() {
            "Mul" => {
                let Scaled { name, constant } = self.scaled(node)?;
                (producer(name)?, constant)
            }
            _ => (node, 1.0),
        };
        if clip.op_type != "Clip" {
            return None;
        }
        let limit = |input: usize, name: &str| match attribute(clip, name) {
            Some(limit) => Some(limit.f),
            None => self.scalar(clip.input.get(input)?),
        };
        let (least, most) = (limit(1, "min")?, limit(2, "max")?);
        if least != 0.0 || (most * factor - 1.0).abs() > 1e-6 {
            return None;
        }
        let sum = producer(clip.input.first()?).filter(|node| node.op_type == "Add")?;
        let shifted = self.scaled(sum)?;
        let product = producer(shifted.name).filter(|node| node.op_type == "Mul");
        let scaled = product.and_then(|product| self.scaled(product));
        let scaled = scaled.unwrap_or(Scaled {
            name: shifted.name,
            constant: 1.0,
        });
        let parameters = vec![scaled.constant * factor, shifted.constant * factor];
        let name = "HardSigmoid";
        let activation = Activation { name, parameters };
        Some(Term::Activation(activation, value.of(scaled.name)))
    }

    /// The operands of a node one of which is a number.
    fn scaled<'n>(&self, node: &'n NodeProto) -> Option<Scaled<'n>> {
        let [a, b] = node.input.as_slice() else {
            return None;
        };
        let read = |name: &'n str, other: &str| {
            let constant = self.scalar(other)?;
            Some(Scaled { name, constant })
        };
        read(a, b).or_else(|| read(b, a))
    }
}
