//! Cells of recurrent layers, recognised among the terms of a graph.
//!
//! ```text
//! LSTM    c' = f c + i g,  h' = o act(c')           f, i, o, g: activations of linear terms
//! GRU     h' = z h + (1 - z) n                      or h' = n + z (h - n)
//!         n = act(x W + r (h R + b))                or n = act(x W + (r h) R + b)
//! RNN     h' = act(x W + h R + b)
//! ```
//!
//! The formulas are those of ONNX's operators LSTM, GRU and RNN. The order of factors and terms is
//! free. All else, such as peepholes, is left as it is.

use super::activation::Activation;
use super::terms::{Linear, Matrix, Term, Terms, Value};

/// A layer of one direction.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// `LSTM`, `GRU` or `RNN`.
    pub operator: &'static str,
    pub hidden_size: usize,
    pub gates: Vec<Gate>,
    /// The activations as the operator lists them.
    pub activations: Vec<Activation>,
    /// GRU: the reset gate multiplies the product of the hidden state.
    pub is_linear_before_reset: bool,
}

/// A gate, in the order of the operator.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    /// The products of the inputs, and outside of a GRU's candidate those of the hidden state.
    pub linear: Linear,
    /// Of a GRU's candidate: the product of the hidden state with its bias.
    pub recurrent: Option<(Matrix, Vec<f32>)>,
}

impl Gate {
    fn new(linear: Linear) -> Gate {
        Gate {
            linear,
            recurrent: None,
        }
    }

    /// The matrix of a value, if it is a term.
    pub fn matrix(&self, of: &Value) -> Option<&Matrix> {
        let mut products = self.linear.products.iter();
        products
            .find(|(value, _)| value == of)
            .map(|(_, matrix)| matrix)
    }
}

/// The cell state of an LSTM before and after a step, and its hidden state after it.
#[derive(Clone, Debug)]
pub(super) struct LstmStep {
    pub cell: Cell,
    pub c: Value,
}

/// A product of an activation and another value.
struct Gated {
    activation: Activation,
    gate: Value,
    other: Value,
}

/// The ways to read a product of two values as one with an activation.
fn gated(terms: &Terms<'_>, value: &Value) -> Vec<Gated> {
    let Term::Multiply(a, b) = terms.term(value) else {
        return Vec::new();
    };
    let read = |gate: &Value, other: &Value| match terms.term(gate) {
        Term::Activation(activation, gate) => Some(Gated {
            activation,
            gate,
            other: terms.resolve(other),
        }),
        _ => None,
    };
    read(&a, &b).into_iter().chain(read(&b, &a)).collect()
}

/// The LSTM whose step gives these hidden and cell states.
///
/// `hidden_size` and `c`: as far as they are known.
pub(super) fn lstm(
    terms: &Terms<'_>,
    h_next: &Value,
    c_next: &Value,
    hidden_size: Option<usize>,
    c: Option<&Value>,
) -> Option<LstmStep> {
    let c_next = terms.resolve(c_next);
    let is_cell_state = |value: &Value| match terms.term(value) {
        Term::Activation(activation, of) => (terms.resolve(&of) == c_next).then_some(activation),
        _ => None,
    };
    let output = gated(terms, h_next).into_iter().find_map(|product| {
        Some((
            product.activation,
            product.gate,
            is_cell_state(&product.other)?,
        ))
    });
    let (gate_activation, o, output_activation) = output?;
    let width = match hidden_size {
        Some(size) => size,
        None => terms.width(&o)?,
    };
    let Term::Sum(a, b) = terms.term(&c_next) else {
        return None;
    };
    let (a, b) = (gated(terms, &a), gated(terms, &b));
    let orders = a
        .iter()
        .flat_map(|a| b.iter().flat_map(move |b| [(a, b), (b, a)]));
    for (forget, input) in orders {
        if c.is_some_and(|c| *c != forget.other)
            || forget.activation != gate_activation
            || input.activation != gate_activation
        {
            continue;
        }
        let Term::Activation(candidate_activation, g) = terms.term(&input.other) else {
            continue;
        };
        let gates = [&input.gate, &o, &forget.gate, &g];
        let gates: Option<Vec<Gate>> = gates
            .into_iter()
            .map(|gate| terms.linear(gate, width).map(Gate::new))
            .collect();
        let Some(gates) = gates else {
            continue;
        };
        return Some(LstmStep {
            c: forget.other.clone(),
            cell: Cell {
                operator: "LSTM",
                hidden_size: width,
                gates,
                activations: vec![gate_activation, candidate_activation, output_activation],
                is_linear_before_reset: false,
            },
        });
    }
    None
}

/// The hidden state of a GRU before a step, and its cell.
#[derive(Clone, Debug)]
pub(super) struct GruStep {
    pub cell: Cell,
    pub h: Value,
}

/// The GRU whose step gives this hidden state.
pub(super) fn gru(
    terms: &Terms<'_>,
    h_next: &Value,
    hidden_size: Option<usize>,
) -> Option<GruStep> {
    let Interpolation { z, n, h } = interpolation(terms, h_next)?;
    let Term::Activation(gate_activation, z) = terms.term(&z) else {
        return None;
    };
    let Term::Activation(candidate_activation, n) = terms.term(&n) else {
        return None;
    };
    let hidden_size = match hidden_size {
        Some(size) => size,
        None => terms.width(&z)?,
    };
    let (reset, candidate) = candidate_of(terms, &n, &h, hidden_size)?;
    if reset.activation != gate_activation {
        return None;
    }
    let gate = |value: &Value| terms.linear(value, hidden_size).map(Gate::new);
    let is_linear_before_reset = candidate.is_linear_before_reset;
    let cell = Cell {
        operator: "GRU",
        hidden_size,
        gates: vec![gate(&z)?, gate(&reset.gate)?, candidate.gate],
        activations: vec![gate_activation, candidate_activation],
        is_linear_before_reset,
    };
    Some(GruStep { cell, h })
}

/// `z h + (1 - z) n`.
struct Interpolation {
    z: Value,
    n: Value,
    h: Value,
}

/// Reads a value as an interpolation, also in the form `n + z (h - n)`.
fn interpolation(terms: &Terms<'_>, value: &Value) -> Option<Interpolation> {
    let Term::Sum(a, b) = terms.term(value) else {
        return None;
    };
    let product = |value: &Value| match terms.term(value) {
        Term::Multiply(a, b) => Some([(a.clone(), b.clone()), (b, a)]),
        _ => None,
    };
    let is = |a: &Value, b: &Value| terms.resolve(a) == terms.resolve(b);
    let made = |z, n, h: &Value| {
        let h = terms.resolve(h);
        Some(Interpolation { z, n, h })
    };
    for (first, second) in [(&a, &b), (&b, &a)] {
        for (z, other) in product(first).into_iter().flatten() {
            if let Term::Difference(h, n) = terms.term(&other)
                && is(&n, second)
            {
                return made(z, n, &h);
            }
            for (rest, n) in product(second).into_iter().flatten() {
                if let Term::Difference(one, of) = terms.term(&rest)
                    && matches!(terms.term(&one), Term::Constant(row) if row == [1.0])
                    && is(&of, &z)
                {
                    return made(z, n, &other);
                }
            }
        }
    }
    None
}

struct Reset {
    activation: Activation,
    gate: Value,
}

struct Candidate {
    gate: Gate,
    is_linear_before_reset: bool,
}

/// The reset gate of a candidate, and the candidate as a gate.
fn candidate_of(
    terms: &Terms<'_>,
    n: &Value,
    h: &Value,
    hidden_size: usize,
) -> Option<(Reset, Candidate)> {
    // x W + (r h) R: a product of a value that is itself r h.
    if let Some(mut linear) = terms.linear(n, hidden_size) {
        let is_reset = |of: &Value| gated(terms, of).into_iter().find(|g| g.other == *h);
        let found = linear.products.iter().enumerate();
        let mut found = found.filter_map(|(at, (of, _))| Some((at, is_reset(of)?)));
        let (at, reset) = found.next()?;
        let (_, matrix) = linear.products.remove(at);
        return Some((
            Reset {
                activation: reset.activation,
                gate: reset.gate,
            },
            Candidate {
                gate: Gate {
                    linear,
                    recurrent: Some((matrix, vec![0.0; hidden_size])),
                },
                is_linear_before_reset: false,
            },
        ));
    }
    // x W + r (h R + b): one of the terms is a product with an activation.
    let mut rest = Vec::new();
    let mut found = None;
    let mut open = vec![n.clone()];
    while let Some(value) = open.pop() {
        if rest.len() + open.len() > 16 {
            return None;
        }
        match terms.term(&value) {
            Term::Sum(a, b) => open.extend([a, b]),
            Term::Multiply(..) if found.is_none() => found = Some(value),
            _ => rest.push(value),
        }
    }
    let mut linear = Linear {
        products: Vec::new(),
        bias: vec![0.0; hidden_size],
    };
    for value in rest {
        let part = terms.linear(&value, hidden_size)?;
        linear.products.extend(part.products);
        let sums = linear.bias.iter_mut().zip(part.bias);
        sums.for_each(|(sum, value)| *sum += value);
    }
    let products = gated(terms, &found?);
    products.into_iter().find_map(|product| {
        let Linear { products, bias } = terms.linear(&product.other, hidden_size)?;
        let [(of, matrix)] = products.as_slice() else {
            return None;
        };
        (of == h).then(|| {
            let gate = Gate {
                linear: linear.clone(),
                recurrent: Some((matrix.clone(), bias)),
            };
            (
                Reset {
                    activation: product.activation,
                    gate: product.gate,
                },
                Candidate {
                    gate,
                    is_linear_before_reset: true,
                },
            )
        })
    })
}

/// The RNN whose step gives this hidden state.
pub(super) fn rnn(terms: &Terms<'_>, h_next: &Value, hidden_size: usize) -> Option<Cell> {
    let Term::Activation(activation, sum) = terms.term(h_next) else {
        return None;
    };
    Some(Cell {
        operator: "RNN",
        hidden_size,
        gates: vec![Gate::new(terms.linear(&sum, hidden_size)?)],
        activations: vec![activation],
        is_linear_before_reset: false,
    })
}
