//! Reads the activation lists of recurrent nodes.

use super::attributes::Attributes;
use super::node::Node;
use crate::model::{Activation, LoadError};

const SUPPORTED: &str = "Affine, Relu, LeakyRelu, ThresholdedRelu, Tanh, ScaledTanh, Sigmoid, \
     HardSigmoid, Elu, Softsign, Softplus";

/// The unused values of `activation_alpha` or `activation_beta`. Activations that have such a
/// parameter take values in order; others take none (ONNX operator text; so does ONNX Runtime).
struct Parameters<'a> {
    name: &'static str,
    rest: &'a [f32],
}

impl Parameters<'_> {
    fn next(&mut self) -> Option<f32> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }
}

/// The `count` activations in the node's attributes, or `None` if it has no `activations`.
pub(super) fn read(
    node: Node,
    attributes: &Attributes,
    count: usize,
) -> Result<Option<Vec<Activation>>, LoadError> {
    let list = |name| {
        Ok::<_, LoadError>(Parameters {
            name,
            rest: attributes.floats(name)?.unwrap_or_default(),
        })
    };
    let mut alphas = list("activation_alpha")?;
    let mut betas = list("activation_beta")?;
    let names = attributes.strings("activations")?;
    let mut found = Vec::with_capacity(count);
    for name in names.iter().flatten() {
        found.push(one(node, name, &mut alphas, &mut betas)?);
    }
    if names.is_some() && found.len() != count {
        return Err(node.error(format!(
            "{} activations; give {count} (one list for each direction)",
            found.len()
        )));
    }
    for list in [alphas, betas] {
        if !list.rest.is_empty() {
            return Err(node.error(format!(
                "{} has {} more values than its activations have parameters",
                list.name,
                list.rest.len()
            )));
        }
    }
    Ok(names.map(|_| found))
}

fn one(
    node: Node,
    name: &str,
    alphas: &mut Parameters,
    betas: &mut Parameters,
) -> Result<Activation, LoadError> {
    // Defaults are those of the ONNX operators of the same names. Affine and ScaledTanh are not
    // operators any more, and ONNX Runtime's default for ThresholdedRelu is not 1.0: their
    // parameters are required.
    let required = |list: &mut Parameters| {
        list.next().ok_or_else(|| {
            node.error(format!(
                "{name} needs a value in {}, because its default differs between runtimes",
                list.name
            ))
        })
    };
    // ONNX Runtime ignores case, and some exporters depend on it.
    Ok(match name.to_ascii_lowercase().as_str() {
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "relu" => Activation::Relu,
        "softsign" => Activation::Softsign,
        "softplus" => Activation::Softplus,
        "affine" => Activation::Affine {
            alpha: required(alphas)?,
            beta: required(betas)?,
        },
        "scaledtanh" => Activation::ScaledTanh {
            alpha: required(alphas)?,
            beta: required(betas)?,
        },
        "thresholdedrelu" => Activation::ThresholdedRelu {
            alpha: required(alphas)?,
        },
        "leakyrelu" => Activation::LeakyRelu {
            alpha: alphas.next().unwrap_or(0.01),
        },
        "elu" => Activation::Elu {
            alpha: alphas.next().unwrap_or(1.0),
        },
        "hardsigmoid" => Activation::HardSigmoid {
            alpha: alphas.next().unwrap_or(0.2),
            beta: betas.next().unwrap_or(0.5),
        },
        _ => {
            return Err(node.error(format!(
                "activation {name:?} is not supported; supported: {SUPPORTED}"
            )));
        }
    })
}
