//! How many phased schedules there are, before and after each rule.
//!
//! For one direction over `T` steps, exactly where a `u128` holds it, else its logarithm. What
//! makes that possible: the products with the state of a step all wait for those of the step
//! before, so the phases that hold them form one line, step after step, and only the input products
//! are free.
//!
//! ```text
//! gap │ block │ gap │ block │ … │ block │ gap      block: a phase with products with the state
//! ```
//!
//! An input product goes into a block or into a gap before its deadline, the block that needs it.
//! The input products of one gap form time-independent phases: in as many ways as there are ordered
//! set partitions of them (the Fubini numbers), or in one way under rule 2, as none of them needs
//! another. Gone through from the last gap to the first, the input products whose deadline has
//! come are exchangeable, so that their number is all there is to remember: [`gaps`] does that,
//! [`step`] finds the ways to order a step.
//!
//! | rules | a gap's products | a block | order of a step's products with the state |
//! |---|---|---|---|
//! | none | ordered set partitions | takes any that may come | any, step by step |
//! | 1 | ordered set partitions | fixed, as are those that come into gaps | the same each step |
//! | 1, 2 | one phase, not none between blocks that do not need one another | fixed | the same |
//! | 1, 2, 3 | all in the first gap | fixed | the same, each block needing the one before |

mod gaps;
mod step;

use std::collections::BTreeMap;
use std::fmt;

use crate::model::{Direction, Layer, Model};

use gaps::{Gap, count};
use step::Shape;

/// A number of schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// Exactly so many.
    Exact(u128),
    /// More than fits: the decimal logarithm, right to nine digits.
    Approximately {
        /// Decimal logarithm.
        log10: f64,
    },
    /// No fewer than this, and for more than one direction more: only those are counted that run
    /// the directions in a fixed way beside or after one another.
    AtLeast {
        /// Decimal logarithm of the bound.
        log10: f64,
    },
}

impl Count {
    /// Its decimal logarithm, or that of the bound.
    pub fn log10(self) -> f64 {
        match self {
            Count::Exact(number) => (number as f64).log10(),
            Count::Approximately { log10 } | Count::AtLeast { log10 } => log10,
        }
    }

    /// The number of pairs.
    #[must_use]
    pub fn times(self, other: Count) -> Count {
        let log10 = self.log10() + other.log10();
        match (self, other) {
            (Count::AtLeast { .. }, _) | (_, Count::AtLeast { .. }) => Count::AtLeast { log10 },
            (Count::Exact(one), Count::Exact(two)) => match one.checked_mul(two) {
                Some(product) => Count::Exact(product),
                None => Count::Approximately { log10 },
            },
            _ => Count::Approximately { log10 },
        }
    }

    fn at_least(self) -> Count {
        let log10 = self.log10();
        Count::AtLeast { log10 }
    }
}

/// `16`, `about 10^632` (also for an exact number of more than 15 digits), `more than 10^1264`.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::Exact(number) if *number < 10_u128.pow(15) => number.fmt(f),
            Count::Exact(_) | Count::Approximately { .. } => {
                write!(f, "about 10^{:.0}", self.log10())
            }
            Count::AtLeast { log10 } => write!(f, "more than 10^{:.0}", log10.floor()),
        }
    }
}

/// The numbers of schedules as the rules are applied one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    /// All phased schedules: every order of phases in which each product is after what it needs.
    pub all: Count,
    /// Those left by rule 1, symmetry across steps.
    pub symmetric: Count,
    /// Those left by rules 1 and 2, dependent neighbours.
    pub dependent: Count,
    /// Those left by all three rules, time-independent phases first.
    pub kept: Count,
    /// Those of them that take no gate's product with the input after its product with the state,
    /// which would round otherwise: what is executed.
    pub in_order: Count,
}

impl Counts {
    /// Nothing to execute, and one way to do it.
    const ONE: Counts = Counts {
        all: Count::Exact(1),
        symmetric: Count::Exact(1),
        dependent: Count::Exact(1),
        kept: Count::Exact(1),
        in_order: Count::Exact(1),
    };

    /// The numbers with their names, in order.
    pub fn rows(&self) -> [(&'static str, Count); 5] {
        [
            ("no pruning", self.all),
            ("rule 1: steps alike", self.symmetric),
            ("rule 2: neighbours depend", self.dependent),
            ("rule 3: time-independent first", self.kept),
            ("input before state in each gate", self.in_order),
        ]
    }

    fn each(self, other: Counts, combine: impl Fn(Count, Count) -> Count) -> Counts {
        Counts {
            all: combine(self.all, other.all),
            symmetric: combine(self.symmetric, other.symmetric),
            dependent: combine(self.dependent, other.dependent),
            kept: combine(self.kept, other.kept),
            in_order: combine(self.in_order, other.in_order),
        }
    }
}

/// The numbers of schedules of one direction over `steps` steps, its input sequence given.
///
/// Up to 128 steps as said there; beyond, [`Count::AtLeast`] what the schedules of runs of 128
/// steps one after another give, except for those kept, whose number does not depend on the steps.
///
/// ```
/// use gatestream::model::Rnn;
/// use gatestream::schedule::{Count, direction_counts};
///
/// let model = Rnn::new(8, 16).random(1)?;
/// let counts = direction_counts(&model.layers()[0].directions()[0], 2);
/// assert_eq!(counts.all, Count::Exact(19));
/// assert_eq!(counts.kept, Count::Exact(2));
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
pub fn direction_counts(direction: &Direction, steps: usize) -> Counts {
    if steps == 0 {
        return Counts::ONE;
    }
    let shape = Shape::of(direction);
    let sum = |ways: Vec<(step::Step, u128)>, gap| {
        let each = ways.into_iter();
        let counts = each.map(|(step, number)| {
            let count = count(&[(step, 1)], steps, gap);
            Count::Exact(number).times(count)
        });
        counts.fold(Count::Exact(0), plus)
    };
    Counts {
        all: count(&shape.free(), steps, Gap::Ordered),
        symmetric: sum(shape.symmetric(), Gap::Ordered),
        dependent: sum(shape.dependent(), Gap::Merged),
        kept: Count::Exact(shape.kept(|_, _| true)),
        in_order: Count::Exact(shape.kept(|input, recurrent| input <= recurrent)),
    }
}

/// The numbers of schedules of a whole model: for one direction [`direction_counts`]; for more,
/// their product.
///
/// After all three rules the product is exact in this sense: the directions of a layer run side by
/// side, phase by phase, and each layer takes its input sequence as given. Before, it is a lower
/// bound: it counts only schedules that execute layer after layer, with the directions of a layer
/// aligned.
pub fn model_counts(model: &Model, steps: usize) -> Counts {
    // Directions of one shape have one number: the layers of a stack are counted once.
    let directions = model.layers().iter().flat_map(Layer::directions);
    let mut known = BTreeMap::new();
    let of_each = directions.map(|direction| {
        let number = || direction_counts(direction, steps);
        *known.entry(Shape::of(direction)).or_insert_with(number)
    });
    let of_each: Vec<_> = of_each.collect();
    let all = { of_each.iter() }.fold(Counts::ONE, |all, each| all.each(*each, Count::times));
    if of_each.len() == 1 || steps == 0 {
        return all;
    }
    Counts {
        all: all.all.at_least(),
        symmetric: all.symmetric.at_least(),
        dependent: all.dependent.at_least(),
        kept: all.kept,
        in_order: all.in_order,
    }
}

fn plus(one: Count, two: Count) -> Count {
    let (big, small) = (one.log10().max(two.log10()), one.log10().min(two.log10()));
    let log10 = if small == f64::NEG_INFINITY {
        big
    } else {
        big + (1.0 + 10_f64.powf(small - big)).log10()
    };
    match (one, two) {
        (Count::Exact(0), other) | (other, Count::Exact(0)) => other,
        (Count::AtLeast { .. }, _) | (_, Count::AtLeast { .. }) => Count::AtLeast { log10 },
        (Count::Exact(one), Count::Exact(two)) => match one.checked_add(two) {
            Some(sum) => Count::Exact(sum),
            None => Count::Approximately { log10 },
        },
        _ => Count::Approximately { log10 },
    }
}
