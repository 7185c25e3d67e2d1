//! Buffers for weights. Large ones are mapped pages, which are unmapped when dropped.
//!
//! On the heap, packed weights would lie behind those of the model, and an allocator that returns
//! only the end of the heap would keep the memory of the dropped model.
//!
//! Large pages (2 MiB) are requested where the system supports them: they reduce TLB misses, and
//! hardware prefetchers stop at page boundaries.

use std::ops::{Deref, DerefMut, Range};

use aligned_vec::{AVec, ConstAlign};
use memmap2::MmapMut;

/// Memory that starts on a cache line.
pub type Aligned<T = f32> = AVec<T, ConstAlign<64>>;

/// A number of at most eight bytes, without padding, any of whose bits are one.
pub trait Word: Copy + Default + PartialEq + Send + Sync + std::fmt::Debug + sealed::Word {}

impl Word for f32 {}
impl Word for i32 {}
impl Word for u32 {}
impl Word for u16 {}
impl Word for i8 {}

mod sealed {
    /// Keeps the list of words to those that this module has looked at.
    pub trait Word {}
    impl Word for f32 {}
    impl Word for i32 {}
    impl Word for u32 {}
    impl Word for u16 {}
    impl Word for i8 {}
}

/// A zeroed buffer that starts on a cache line.
pub fn zeroed<T: Word>(len: usize) -> Aligned<T> {
    let mut buffer = AVec::new(64);
    buffer.resize(len, T::default());
    buffer
}

/// As [`zeroed`]; `None` where there is no memory for it.
pub fn try_zeroed<T: Word>(len: usize) -> Option<Aligned<T>> {
    let mut buffer = AVec::new(64);
    buffer.try_reserve_exact(len).ok()?;
    buffer.resize(len, T::default());
    Some(buffer)
}

/// From this many bytes on, values are pages of their own. What the last page leaves empty is a few
/// hundredths then.
const OWN_PAGES: usize = 128 << 10;

/// Bytes of a large page, on x86-64 and, as a rule, on AArch64. Only whole ones are asked for, so
/// that none stays half empty unless the system gives large pages without being asked.
const LARGE_PAGE: usize = 2 << 20;

/// Values of a fixed number that stay for long. Unless made from a `Vec`, they start on a cache
/// line.
#[derive(Debug)]
pub struct Values<T: Word = f32>(Memory<T>);

#[derive(Debug)]
enum Memory<T: Word> {
    Vec(Vec<T>),
    Aligned(Aligned<T>),
    /// The words in some bytes of pages of their own.
    Pages(MmapMut, Range<usize>),
}

impl<T: Word> Values<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Values<T> {
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes >= OWN_PAGES
            && let Some(memory) = pages(bytes)
        {
            return Values(memory);
        }
        Values(Memory::Aligned(zeroed(len)))
    }
}

/// Zeroed pages for `bytes` bytes; `None` where there are none. Memory takes what is written, so
/// that what is mapped to start on a large page costs addresses alone.
fn pages<T: Word>(bytes: usize) -> Option<Memory<T>> {
    if bytes < LARGE_PAGE {
        return Some(Memory::Pages(MmapMut::map_anon(bytes).ok()?, 0..bytes));
    }
    let pages = MmapMut::map_anon(bytes.checked_add(LARGE_PAGE)?).ok()?;
    let first = pages.as_ptr().align_offset(LARGE_PAGE);
    let of = first..first.checked_add(bytes)?;
    // Where the system has none, or may not give any, small pages do.
    #[cfg(target_os = "linux")]
    let _ = pages.advise_range(
        memmap2::Advice::HugePage,
        first,
        bytes / LARGE_PAGE * LARGE_PAGE,
    );
    (of.end <= pages.len()).then_some(Memory::Pages(pages, of))
}

impl<T: Word> From<Vec<T>> for Values<T> {
    fn from(values: Vec<T>) -> Values<T> {
        Values(Memory::Vec(values))
    }
}

impl<T: Word> Deref for Values<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Memory::Vec(values) => values,
            Memory::Aligned(values) => values,
            Memory::Pages(pages, of) => {
                let bytes = &pages[of.clone()];
                // SAFETY: these bytes start on a page, aligned for words, are as many as fit, and
                // every bit pattern is a valid word.
                unsafe {
                    std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
                }
            }
        }
    }
}

impl<T: Word> DerefMut for Values<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Vec(values) => values,
            Memory::Aligned(values) => values,
            Memory::Pages(pages, of) => {
                let bytes = &mut pages[of.clone()];
                // SAFETY: as above, and the pages are borrowed for as long as the values.
                unsafe {
                    std::slice::from_raw_parts_mut(
                        bytes.as_mut_ptr().cast(),
                        bytes.len() / size_of::<T>(),
                    )
                }
            }
        }
    }
}

impl<T: Word> Clone for Values<T> {
    fn clone(&self) -> Values<T> {
        let mut copy = Values::zeroed(self.len());
        copy.copy_from_slice(self);
        copy
    }
}

impl<T: Word> PartialEq for Values<T> {
    fn eq(&self, other: &Values<T>) -> bool {
        self[..] == other[..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_values_are_zeroed_aligned_and_writable() {
        check(|at| at as f32, -1.0);
        check(|at| at as u16, 1);
        check(|at| at as i8, 1);
    }

    fn check<T: Word>(value: impl Fn(usize) -> T, other: T) {
        let own_pages = OWN_PAGES / size_of::<T>();
        let large = LARGE_PAGE / size_of::<T>();
        for len in [
            0,
            1,
            17,
            own_pages - 1,
            own_pages,
            own_pages + 1,
            large - 1,
            large,
            large + 1,
        ] {
            let mut values = Values::<T>::zeroed(len);
            assert_eq!((values.len(), values.as_ptr() as usize % 64), (len, 0));
            if let Memory::Pages(..) = values.0
                && len >= large
            {
                assert!((values.as_ptr() as usize).is_multiple_of(LARGE_PAGE));
            }
            assert!(values.iter().all(|v| *v == T::default()));
            for (at, place) in values.iter_mut().enumerate() {
                *place = value(at);
            }
            assert!(values.iter().enumerate().all(|(at, v)| *v == value(at)));
            let copy = values.clone();
            assert!(copy == values && copy == Values::from(values.to_vec()));
            if let Some(last) = values.last_mut() {
                *last = if *last == other { T::default() } else { other };
                assert!(copy != values);
            }
        }
    }
}
