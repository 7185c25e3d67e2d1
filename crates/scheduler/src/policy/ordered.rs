//! A set that is taken from in order, and mostly added to in order.
//!
//! The subgraphs of a running batch are taken one after the other, and come back, with their next
//! nodes, in the same order. So what is added beyond the last goes to the end of a list; only the
//! rest needs a tree.

use std::collections::{BTreeSet, VecDeque};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Ordered<T> {
    /// Ascending.
    run: VecDeque<T>,
    /// None of `run`.
    others: BTreeSet<T>,
}

impl<T> Default for Ordered<T> {
    fn default() -> Ordered<T> {
        Ordered {
            run: VecDeque::new(),
            others: BTreeSet::new(),
        }
    }
}

impl<T: Ord + Copy> Ordered<T> {
    /// Adds an item, unless it is there.
    pub fn insert(&mut self, item: T) {
        match self.run.back() {
            Some(last) if *last >= item => {
                if self.run.binary_search(&item).is_err() {
                    self.others.insert(item);
                }
            }
            _ => {
                if self.others.is_empty() || !self.others.contains(&item) {
                    self.run.push_back(item);
                }
            }
        }
    }

    /// The least item.
    pub fn first(&self) -> Option<T> {
        match (self.run.front(), self.others.first()) {
            (Some(a), Some(b)) => Some(*a.min(b)),
            (a, b) => a.or(b).copied(),
        }
    }

    /// Takes an item out; `false` if it is not there.
    pub fn remove(&mut self, item: &T) -> bool {
        if self.run.front() == Some(item) {
            self.run.pop_front();
            return true;
        }
        match self.run.binary_search(item) {
            Ok(at) => {
                self.run.remove(at);
                true
            }
            Err(_) => self.others.remove(item),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.run.len() + self.others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_set_that_a_tree_alone_would_be() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut set, mut tree) = (Ordered::default(), BTreeSet::new());
        for _ in 0..100_000 {
            let item = random.u32(0..60);
            match random.u32(0..4) {
                0 | 1 => {
                    set.insert(item);
                    tree.insert(item);
                }
                2 => assert_eq!(set.remove(&item), tree.remove(&item)),
                _ => {
                    if let Some(first) = set.first() {
                        assert!(set.remove(&first) && tree.remove(&first));
                    }
                }
            }
            assert_eq!(
                (set.first(), set.len()),
                (tree.first().copied(), tree.len())
            );
        }
    }
}
