//! Memory that several workers write at once, each at places of its own.

use std::marker::PhantomData;
use std::ops::Range;

use super::values::Word;

/// A borrowed buffer, of which several workers hold copies and each touches a part.
///
/// Which worker may touch which part is the caller's protocol (see `src/execute/README.md`); this
/// type only keeps every access within the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer is only followed by the unsafe methods below, whose callers promise that no
// two threads touch one element at once with either writing it.
unsafe impl<T: Word> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for Shared<'_, T> {}

impl<'a, T: Word> Shared<'a, T> {
    /// Shares `buffer` for as long as it is borrowed.
    pub fn new(buffer: &'a mut [T]) -> Shared<'a, T> {
        Shared {
            start: buffer.as_mut_ptr(),
            len: buffer.len(),
            borrow: PhantomData,
        }
    }

    /// Shares the `len` elements at `start`.
    ///
    /// # Safety
    /// They stay allocated and initialised for `'a`, and during it every writer does so
    /// through a copy of the result.
    pub unsafe fn from_raw(start: *mut T, len: usize) -> Shared<'a, T> {
        Shared {
            start,
            len,
            borrow: PhantomData,
        }
    }

    /// What comes from element `first` on.
    ///
    /// # Panics
    /// If the buffer ends before it.
    pub fn skip(&self, first: usize) -> Shared<'a, T> {
        assert!(first <= self.len);
        Shared {
            // SAFETY: that is within the buffer, or its end.
            start: unsafe { self.start.add(first) },
            len: self.len - first,
            borrow: PhantomData,
        }
    }

    /// Elements in the whole buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the buffer, to read.
    ///
    /// # Safety
    /// No other thread writes any element of `range` while the result is alive.
    ///
    /// # Panics
    /// If `range` is not within the buffer.
    #[inline(always)]
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is within the buffer, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A part of the buffer, to write.
    ///
    /// # Safety
    /// No other thread reads or writes any element of `range` while the result is alive.
    ///
    /// # Panics
    /// If `range` is not within the buffer.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise, not the borrow's
    pub unsafe fn write(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is within the buffer, and the caller keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
