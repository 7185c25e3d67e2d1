//! A pool of row buffers. Nodes of a tree return two rows each, which their parent reads one or two
//! batches later; the pool avoids an allocation for each.

use rustc_hash::FxHashMap;

/// See the [module](self).
pub(super) struct BufferPool {
    by_width: FxHashMap<usize, Vec<Box<[f32]>>>,
    /// Maximum number of buffers of one width.
    max: usize,
}

impl BufferPool {
    /// A pool that frees all buffers.
    pub fn new() -> BufferPool {
        BufferPool {
            by_width: FxHashMap::default(),
            max: 0,
        }
    }

    /// Keeps buffers of batches of up to `rows` rows, too: the rows of two ports of two batches for
    /// each of these widths. Sequences have any number of values, and are freed.
    pub fn expect_rows(&mut self, rows: usize, widths: impl IntoIterator<Item = usize>) {
        self.max = self.max.max(4 * rows);
        for width in widths {
            self.by_width.entry(width).or_default();
        }
    }

    /// A copy of `values`.
    pub fn copy(&mut self, values: &[f32]) -> Box<[f32]> {
        match self.used(values.len()) {
            Some(mut buffer) => {
                buffer.copy_from_slice(values);
                buffer
            }
            None => values.into(),
        }
    }

    /// A buffer of `width` arbitrary values.
    pub fn buffer(&mut self, width: usize) -> Box<[f32]> {
        self.used(width).unwrap_or_else(|| vec![0.0; width].into())
    }

    fn used(&mut self, width: usize) -> Option<Box<[f32]>> {
        self.by_width.get_mut(&width).and_then(Vec::pop)
    }

    /// Returns a buffer to the pool.
    pub fn put(&mut self, values: Box<[f32]>) {
        if let Some(buffers) = self.by_width.get_mut(&values.len())
            && buffers.len() < self.max
        {
            buffers.push(values);
        }
    }

    /// Whether the pool has no buffer.
    pub fn is_empty(&self) -> bool {
        self.by_width.values().all(Vec::is_empty)
    }

    /// Frees all buffers.
    pub fn clear(&mut self) {
        self.by_width.values_mut().for_each(|of| *of = Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_used_again_for_values_of_its_width() {
        let mut pool = BufferPool::new();
        pool.expect_rows(1, [1, 2]);
        let first = pool.copy(&[1.0, 2.0]);
        let address = first.as_ptr();
        pool.put(first);
        assert_eq!(*pool.copy(&[3.0]), [3.0], "of another width");
        let again = pool.copy(&[4.0, 5.0]);
        assert_eq!((again.as_ptr(), &*again), (address, &[4.0, 5.0][..]));
        let other = pool.copy(&[6.0, 7.0]);
        assert_ne!(other.as_ptr(), address, "taken");
    }

    #[test]
    fn buffers_of_other_widths_and_beyond_the_maximum_are_freed() {
        let mut pool = BufferPool::new();
        pool.expect_rows(2, [3, 5]);
        for width in 0..100 {
            pool.put(vec![0.0; 3].into());
            pool.put(vec![0.0; 5].into());
            pool.put(vec![0.0; 6 + width].into());
        }
        let kept = |pool: &BufferPool| pool.by_width.values().map(Vec::len).sum::<usize>();
        assert_eq!(kept(&pool), 2 * 8);
        assert!(!pool.is_empty());
        pool.clear();
        assert_eq!(kept(&pool), 0);
        assert!(pool.is_empty());
    }
}
