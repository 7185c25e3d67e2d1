//! Memory of values that were kept for somebody who has taken them, for the next that are.
//!
//! A tree's node gives two rows, which its parent takes one or two batches later. To allocate and free them anew was a seventh of
//! what it costs to gather a tree's row and to hand it on (hidden size 1024, 4 KiB each).

use rustc_hash::FxHashMap;

/// See the [module](self).
pub(super) struct Spare {
    by_width: FxHashMap<usize, Vec<Box<[f32]>>>,
    /// Most of one width.
    most: usize,
}

impl Spare {
    /// Of a worker whose batches have up to so many rows. Of each width there is room for two batches' rows of two ports; what is
    /// more is freed.
    pub fn new(rows: usize) -> Spare {
        Spare {
            by_width: FxHashMap::default(),
            most: 4 * rows,
        }
    }

    /// A copy of `values`.
    pub fn copy(&mut self, values: &[f32]) -> Box<[f32]> {
        match self.used(values.len()) {
            Some(mut spare) => {
                spare.copy_from_slice(values);
                spare
            }
            None => values.into(),
        }
    }

    /// Room for so many values, whatever stands there.
    pub fn room(&mut self, width: usize) -> Box<[f32]> {
        self.used(width).unwrap_or_else(|| vec![0.0; width].into())
    }

    fn used(&mut self, width: usize) -> Option<Box<[f32]>> {
        self.by_width.get_mut(&width).and_then(Vec::pop)
    }

    /// Nobody needs these values any more.
    pub fn put(&mut self, values: Box<[f32]>) {
        let spare = self.by_width.entry(values.len()).or_default();
        if spare.len() < self.most {
            spare.push(values);
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.by_width.values().all(Vec::is_empty)
    }

    /// Lets go of all.
    pub fn clear(&mut self) {
        self.by_width.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_used_again_for_values_of_its_width() {
        let mut spare = Spare::new(1);
        let first = spare.copy(&[1.0, 2.0]);
        let address = first.as_ptr();
        spare.put(first);
        assert_eq!(*spare.copy(&[3.0]), [3.0], "of another width");
        let again = spare.copy(&[4.0, 5.0]);
        assert_eq!((again.as_ptr(), &*again), (address, &[4.0, 5.0][..]));
        let other = spare.copy(&[6.0, 7.0]);
        assert_ne!(other.as_ptr(), address, "taken");
    }

    #[test]
    fn what_is_more_than_there_is_room_for_is_freed() {
        let mut spare = Spare::new(2);
        for _ in 0..100 {
            spare.put(vec![0.0; 3].into());
            spare.put(vec![0.0; 5].into());
        }
        let kept = |spare: &Spare| spare.by_width.values().map(Vec::len).sum::<usize>();
        assert_eq!(kept(&spare), 2 * 8);
        assert!(!spare.is_empty());
        spare.clear();
        assert_eq!(kept(&spare), 0);
        assert!(spare.is_empty());
    }
}
