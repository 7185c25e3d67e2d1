//! The ways to order the products of one step, written as what its gaps and blocks accept.

use std::collections::BTreeMap;

use crate::graph::StepGraph;
use crate::model::Direction;

/// The dependences within a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// Number of products with the state, the projection last.
    state: usize,
    /// Of those: the second needs the first.
    order: Vec<(usize, usize)>,
    /// Of each input product: those that need it before the next step.
    needed_by: Vec<Vec<usize>>,
}

/// Gaps and blocks between which nothing becomes available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slots {
    /// Gaps that may stay empty.
    pub gaps: usize,
    /// Gaps that may not.
    pub forced: usize,
    /// Blocks that take input products.
    pub blocks: usize,
}

/// Input products whose deadline comes, then slots, going from last to first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Segment {
    /// How many input products may go into these slots and all earlier ones.
    pub arrive: usize,
    /// The slots.
    pub slots: Slots,
}

/// A step from the gap after its last block to its first block.
pub(super) type Step = Vec<Segment>;

impl Shape {
    pub(super) fn of(direction: &Direction) -> Shape {
        let step = StepGraph::of(direction);
        let (state, inputs): (Vec<_>, Vec<_>) =
            step.products().partition(|product| product.needs_state());
        let users = |product| {
            let users = step.users_of(product);
            users.filter_map(|user| state.iter().position(|each| *each == user))
        };
        let order = state.iter().enumerate();
        let order = order.flat_map(|(at, &product)| users(product).map(move |user| (at, user)));
        Shape {
            order: order.collect(),
            needed_by: inputs.iter().map(|&input| users(input).collect()).collect(),
            state: state.len(),
        }
    }

    /// With no rule: every order of the products with the state in blocks that take any input
    /// product, and how often it comes.
    pub(super) fn free(&self) -> Vec<(Step, u128)> {
        let mut steps = BTreeMap::new();
        for order in self.orders() {
            let deadlines = (0..self.needed_by.len()).map(|input| order.deadline(self, input));
            let step = order.step(deadlines.collect(), |_| false, true);
            *steps.entry(step).or_default() += 1;
        }
        steps.into_iter().collect()
    }

    /// Under rule 1: an input product is in a fixed block at every step, or in gaps at every step.
    pub(super) fn symmetric(&self) -> Vec<(Step, u128)> {
        self.placed(|_, _, _| false, |_, _| true)
    }

    /// Under rules 1 and 2: a gap between blocks that do not need one another must not be empty.
    ///
    /// From step to step they always do: a last block holds a product that the next state is made
    /// of, a first block one that needs that state.
    pub(super) fn dependent(&self) -> Vec<(Step, u128)> {
        self.dependent_where(|_, _| true)
    }

    fn dependent_where(&self, gate: impl Fn(usize, usize) -> bool) -> Vec<(Step, u128)> {
        self.placed(|order, places, gap| !order.depends(self, places, gap), gate)
    }

    /// Under all rules: no gap may need to be filled. Only those of which `gate` holds for the
    /// blocks of the two products of each gate whose input product is in a block.
    pub(super) fn kept(&self, gate: impl Fn(usize, usize) -> bool) -> u128 {
        let ways = self.dependent_where(gate).into_iter();
        let unforced =
            ways.filter(|(step, _)| step.iter().all(|segment| segment.slots.forced == 0));
        unforced.map(|(_, number)| number).sum()
    }

    fn placed(
        &self,
        forced: impl Fn(&Order, &[Option<usize>], usize) -> bool,
        gate: impl Fn(usize, usize) -> bool,
    ) -> Vec<(Step, u128)> {
        let mut steps = BTreeMap::new();
        for order in self.orders() {
            // Each input product in a block before its deadline, or (`None`) in gaps.
            let mut all = vec![Vec::new()];
            for input in 0..self.needed_by.len() {
                let blocks = 0..order.deadline(self, input);
                let blocks = blocks.filter(|block| gate(*block, order.block_of[input]));
                let blocks = blocks.map(Some);
                let places: Vec<_> = std::iter::once(None).chain(blocks).collect();
                let longer = |before: &Vec<_>, place| [before.as_slice(), &[place]].concat();
                let each = all.iter();
                all = each
                    .flat_map(|before| places.iter().map(move |place| longer(before, *place)))
                    .collect();
            }
            for places in all {
                let free = (0..places.len()).filter(|input| places[*input].is_none());
                let deadlines = free.map(|input| order.deadline(self, input)).collect();
                let step = order.step(deadlines, |gap| forced(&order, &places, gap), false);
                *steps.entry(step).or_default() += 1;
            }
        }
        steps.into_iter().collect()
    }

    /// All orders of the products with the state.
    fn orders(&self) -> Vec<Order> {
        let mut orders = Vec::new();
        let mut block_of = vec![0; self.state];
        loop {
            let blocks = 1 + block_of.iter().copied().max().unwrap_or(0);
            let no_gap = (0..blocks).all(|block| block_of.contains(&block));
            let ordered =
                { self.order.iter() }.all(|&(first, then)| block_of[first] < block_of[then]);
            if no_gap && ordered {
                let block_of = block_of.clone();
                orders.push(Order { block_of, blocks });
            }
            // Count up in base `state`.
            let Some(digit) = block_of.iter().rposition(|block| block + 1 < self.state) else {
                return orders;
            };
            block_of[digit] += 1;
            block_of[digit + 1..].fill(0);
        }
    }
}

/// The products with the state of one step in blocks.
struct Order {
    block_of: Vec<usize>,
    blocks: usize,
}

impl Order {
    /// The gap before the block that needs `input` (gap `k` is the one before block `k`), at most
    /// the one after the last block.
    fn deadline(&self, shape: &Shape, input: usize) -> usize {
        let users = shape.needed_by[input].iter();
        let blocks = users.map(|product| self.block_of[*product]);
        blocks.min().unwrap_or(self.blocks)
    }

    /// Whether the block after `gap` needs the one before it, the input products being in `places`.
    fn depends(&self, shape: &Shape, places: &[Option<usize>], gap: usize) -> bool {
        let around = |first: Option<usize>, then: usize| {
            first == Some(gap - 1) && self.block_of[then] == gap
        };
        let mut order = shape.order.iter();
        let mut inputs = places.iter().zip(&shape.needed_by);
        order.any(|&(first, then)| around(Some(self.block_of[first]), then))
            || inputs.any(|(place, users)| users.iter().any(|then| around(*place, *then)))
    }

    /// The step whose free input products have these deadlines.
    fn step(
        &self,
        deadlines: Vec<usize>,
        forced: impl Fn(usize) -> bool,
        blocks_take: bool,
    ) -> Step {
        let mut step = Step::new();
        for gap in (1..=self.blocks).rev() {
            let arrive = deadlines
                .iter()
                .filter(|deadline| **deadline == gap)
                .count();
            if arrive > 0 || step.is_empty() {
                let slots = Slots::default();
                step.push(Segment { arrive, slots });
            }
            let slots = step.last_mut().map(|segment| &mut segment.slots);
            if let Some(slots) = slots {
                if gap < self.blocks && forced(gap) {
                    slots.forced += 1
                } else {
                    slots.gaps += 1
                }
                slots.blocks += usize::from(blocks_take);
            }
        }
        step
    }
}
