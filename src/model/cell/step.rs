//! One step of a cell as data: its matrix products, and what each of them multiplies.
//!
//! The graph, the schedules, the plan and the executor are derived from this description; none of
//! them knows a cell by name.

use std::fmt;

/// One of the products of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Product {
    /// `W_gate · x`. Gates are counted in the order of the weights' blocks of rows.
    Input(u8),
    /// `U_gate · h`, or `U_gate · (r∘h)` for the candidate of a GRU that resets before.
    Recurrent(u8),
    /// `P · m`, the projection of an LSTM's new state.
    Projection,
}

impl Product {
    /// Whether its operand is made of the state of the step before, so that it has to wait for the
    /// recurrence: all but input products.
    pub fn needs_state(self) -> bool {
        !matches!(self, Product::Input(_))
    }

    /// The gate that it is part of; `None` for a projection.
    pub fn gate(self) -> Option<usize> {
        match self {
            Product::Input(gate) | Product::Recurrent(gate) => Some(usize::from(gate)),
            Product::Projection => None,
        }
    }
}

/// The matrix that a product multiplies its weights with. Products with the same operand can be
/// one product (deepcpu section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operand {
    /// Where it comes from.
    pub source: OperandSource,
    /// Its symbol in formulas.
    pub symbol: &'static str,
}

/// Where the values of an operand come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperandSource {
    /// The layer's input, the same for both directions.
    Input,
    /// A state after the step before.
    State,
    /// The hidden state of a tree node's child that is no state of the step.
    Child,
    /// These gates of the same step, elementwise.
    Gates(&'static [u8]),
}

impl Operand {
    /// `x`, the layer's input.
    pub const INPUT: Operand = Operand {
        source: OperandSource::Input,
        symbol: "x",
    };
    /// `h`, the direction's state after the step before.
    pub const STATE: Operand = Operand {
        source: OperandSource::State,
        symbol: "h",
    };

    /// The gates of the same step that it is made of.
    pub fn gates(&self) -> &'static [u8] {
        match self.source {
            OperandSource::Gates(gates) => gates,
            OperandSource::Input | OperandSource::State | OperandSource::Child => &[],
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol)
    }
}

/// A product, its operand, and the slot of the pre-activations that it is added to.
///
/// Products of one slot are one chain of multiply-adds, in the order in which the cell lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepProduct {
    /// Which product.
    pub product: Product,
    /// What it multiplies its weights with.
    pub operand: Operand,
    /// Where it is added; a projection has pre-activations of its own.
    pub slot: usize,
}

/// What one step of a cell computes, but for its elementwise functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellStep {
    /// The gates' names, in the order of the weights' blocks of rows.
    pub gates: &'static [&'static str],
    /// The products: input, then recurrent, each in the order of the gates, then the projection.
    pub products: &'static [StepProduct],
    /// Whether the cell has a cell state beside its hidden state.
    pub has_cell_state: bool,
    /// Elementwise work per hidden unit, counted in activations.
    pub activations: u8,
}

impl CellStep {
    /// The product of the description that is `product`.
    pub fn find(&self, product: Product) -> Option<&'static StepProduct> {
        self.products.iter().find(|each| each.product == product)
    }

    /// The products of the same step that `product` needs: all of the gates that its operand is
    /// made of.
    pub fn needed_by(&self, product: Product) -> impl Iterator<Item = Product> + use<> {
        let gates = self.find(product).map_or(&[][..], |of| of.operand.gates());
        let products = self.products.iter().map(|each| each.product);
        products.filter(move |needed| match needed {
            Product::Input(gate) | Product::Recurrent(gate) => gates.contains(gate),
            Product::Projection => false,
        })
    }

    /// Slots of pre-activations per hidden unit.
    pub fn slots(&self) -> usize {
        let of_units = self.products.iter().map(|product| product.slot + 1);
        of_units.max().unwrap_or(0)
    }

    /// The first phase in which `product` can be executed, counted from 0: the longest chain of
    /// products that leads to it.
    pub fn earliest_phase(&self, product: Product) -> usize {
        let needed = self.needed_by(product);
        let after = needed.map(|needed| self.earliest_phase(needed) + 1);
        after.max().unwrap_or(0)
    }

    /// The phases of a step: products on its longest chain. Two of a GRU that resets before the
    /// product and of an LSTM with a projection, else one.
    pub fn phases(&self) -> usize {
        let products = self.products.iter();
        let last = products.map(|each| self.earliest_phase(each.product));
        1 + last.max().unwrap_or(0)
    }

    /// The name of a product's weights: `W_i`, `U_f`, `P`; `W` and `U` where a gate has no name.
    pub fn weights_name(&self, product: Product) -> String {
        let of = |matrix: &str, gate: u8| match self.gates.get(usize::from(gate)) {
            Some(name) if !name.is_empty() => format!("{matrix}_{name}"),
            _ => matrix.to_owned(),
        };
        match product {
            Product::Input(gate) => of("W", gate),
            Product::Recurrent(gate) => of("U", gate),
            Product::Projection => "P".to_owned(),
        }
    }
}

/// `W_gate · x`, added to `slot`.
pub(super) const fn input(gate: u8, slot: usize) -> StepProduct {
    StepProduct {
        product: Product::Input(gate),
        operand: Operand::INPUT,
        slot,
    }
}

/// `U_gate · operand`, added to `slot`.
pub(super) const fn recurrent(gate: u8, operand: Operand, slot: usize) -> StepProduct {
    StepProduct {
        product: Product::Recurrent(gate),
        operand,
        slot,
    }
}

/// The first `N - 1` products, then `last`.
pub(super) const fn with_last<const N: usize>(
    products: &[StepProduct],
    last: StepProduct,
) -> [StepProduct; N] {
    let mut all = [last; N];
    let mut index = 0;
    while index + 1 < N {
        all[index] = products[index];
        index += 1;
    }
    all
}
