//! Activations of ONNX's recurrent operators, as operators of their own.

use tract_onnx::pb::NodeProto;

use crate::source::attributes::{float, is_standard};

/// An activation with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Activation {
    /// Its name, which is also that of the operator.
    pub name: &'static str,
    /// `alpha` and `beta`, of those that have them.
    pub parameters: Vec<f32>,
}

/// The operators, with the defaults of their parameters.
const OPERATORS: [(&str, &[f32]); 7] = [
    ("Sigmoid", &[]),
    ("Tanh", &[]),
    ("Relu", &[]),
    ("Softsign", &[]),
    ("HardSigmoid", &[0.2, 0.5]),
    ("LeakyRelu", &[0.01]),
    ("Elu", &[1.0]),
];

impl Activation {
    /// `None` for other operators.
    pub fn of(node: &NodeProto) -> Option<Activation> {
        let known = OPERATORS.iter().find(|(name, _)| *name == node.op_type);
        let (name, defaults) = known.filter(|_| is_standard(&node.domain))?;
        let names = ["alpha", "beta"].iter().zip(*defaults);
        let parameters = names.map(|(name, &default)| float(node, name, default));
        Some(Activation {
            name,
            parameters: parameters.collect(),
        })
    }
}
