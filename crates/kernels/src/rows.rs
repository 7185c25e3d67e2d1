//! Views of rows: in one buffer, a stride apart, or gathered from buffers of their own.
//!
//! [`RowsRef`] is borrowed to read, [`RowsMut`] to write. [`SharedRows`] is a [`RowsMut`] as the
//! workers of a team hold it, and [`Columns`] the part of it that one worker owns.

use std::ops::Range;

use super::shared::Shared;

/// Rows that are read. Each may be longer than what is read of it.
///
/// ```
/// use gatestream_kernels::RowsRef;
///
/// let values = [1.0, 2.0, 3.0, 4.0];
/// let contiguous = RowsRef::contiguous(&values, 2);
/// let rows = [&values[2..], &values[..2]];
/// let gathered = RowsRef::gathered(&rows);
/// assert_eq!(contiguous.row(1, 2), gathered.row(0, 2));
/// assert_eq!((contiguous.row_len(1), gathered.row_len(1)), (2, 2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RowsRef<'a, T = f32>(Storage<'a, T>);

#[derive(Clone, Copy, Debug)]
enum Storage<'a, T> {
    Contiguous { values: &'a [T], stride: usize },
    Gathered(&'a [&'a [T]]),
}

impl RowsRef<'static> {
    /// No rows.
    pub const EMPTY: RowsRef<'static> = RowsRef::contiguous(&[], 0);
}

impl<'a, T> RowsRef<'a, T> {
    /// Row `r` starts at `values[r * stride]`.
    pub const fn contiguous(values: &'a [T], stride: usize) -> RowsRef<'a, T> {
        RowsRef(Storage::Contiguous { values, stride })
    }

    /// Row `r` is `rows[r]`.
    pub const fn gathered(rows: &'a [&'a [T]]) -> RowsRef<'a, T> {
        RowsRef(Storage::Gathered(rows))
    }

    /// Whether each row is a buffer of its own.
    pub fn is_gathered(&self) -> bool {
        matches!(self.0, Storage::Gathered(_))
    }

    /// The buffer, if all rows are in one.
    pub fn into_buffer(self) -> Option<&'a [T]> {
        match self.0 {
            Storage::Contiguous { values, .. } => Some(values),
            Storage::Gathered(_) => None,
        }
    }

    /// Values in all rows.
    pub fn values(&self) -> usize {
        match self.0 {
            Storage::Contiguous { values, .. } => values.len(),
            Storage::Gathered(rows) => rows.iter().map(|row| row.len()).sum(),
        }
    }

    /// Whether there are `rows` rows of `width` values.
    pub fn fits(&self, rows: usize, width: usize) -> bool {
        match self.0 {
            Storage::Contiguous { values, stride } => fits(values.len(), stride, rows, width),
            Storage::Gathered(list) => {
                list.len() >= rows && list[..rows].iter().all(|row| row.len() >= width)
            }
        }
    }

    /// Values of a row; of contiguous rows, those up to the next.
    ///
    /// # Panics
    /// If the rows are gathered, and there is no such row.
    pub fn row_len(&self, row: usize) -> usize {
        match self.0 {
            Storage::Contiguous { stride, .. } => stride,
            Storage::Gathered(rows) => rows[row].len(),
        }
    }

    /// The first `len` values of a row.
    ///
    /// # Panics
    /// If there is no such row, or it is shorter.
    #[inline(always)]
    pub fn row(&self, row: usize, len: usize) -> &'a [T] {
        match self.0 {
            Storage::Contiguous { values, stride } => &values[row * stride..][..len],
            Storage::Gathered(rows) => &rows[row][..len],
        }
    }
}

/// Whether a buffer of `len` values holds `rows` rows of `width`, `stride` apart, none of which
/// overlap.
fn fits(len: usize, stride: usize, rows: usize, width: usize) -> bool {
    let Some(before_last) = rows.checked_sub(1) else {
        return true;
    };
    let end = before_last.checked_mul(stride);
    let end = end.and_then(|start| start.checked_add(width));
    (rows == 1 || stride >= width) && end.is_some_and(|end| end <= len)
}

/// Rows that are written, and may be read before.
///
/// ```
/// use gatestream_kernels::RowsMut;
///
/// let (mut first, mut second) = ([0.0; 2], [0.0; 2]);
/// let mut list = [&mut first[..], &mut second[..]];
/// RowsMut::gathered(&mut list).row(1, 2).fill(1.0);
/// assert_eq!((first, second), ([0.0; 2], [1.0; 2]));
/// ```
#[derive(Debug)]
pub struct RowsMut<'a>(SharedRows<'a>);

impl<'a> RowsMut<'a> {
    /// Row `r` starts at `values[r * stride]`.
    pub fn contiguous(values: &'a mut [f32], stride: usize) -> RowsMut<'a> {
        RowsMut(SharedRows::contiguous(Shared::new(values), stride))
    }

    /// Row `r` is `rows[r]`.
    pub fn gathered(rows: &'a mut [&mut [f32]]) -> RowsMut<'a> {
        // SAFETY: a reference and a pointer to a slice have the same layout. The list is borrowed
        // for `'a`, so that its references are not used otherwise.
        let rows = unsafe { std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len()) };
        RowsMut(SharedRows(SharedStorage::Gathered { rows, step: 1 }))
    }

    /// As [`RowsRef::row_len`].
    ///
    /// # Panics
    /// As [`RowsRef::row_len`].
    pub fn row_len(&self, row: usize) -> usize {
        match self.0.0 {
            SharedStorage::Contiguous { stride, .. } => stride,
            SharedStorage::Gathered { rows, step } => rows[row * step].0.len(),
        }
    }

    /// The first `len` values of a row.
    ///
    /// # Panics
    /// If there is no such row, or it is shorter.
    pub fn row(&mut self, row: usize, len: usize) -> &mut [f32] {
        // SAFETY: the rows are borrowed mutably, and so is this view of them.
        unsafe { self.0.write(row, 0..len) }
    }

    /// Whether there are `rows` rows of `width` values, none of which overlap.
    pub fn fits(&self, rows: usize, width: usize) -> bool {
        self.0.fits(rows, width)
    }

    /// Values in all rows.
    pub fn values(&self) -> usize {
        self.0.values()
    }

    /// The same rows, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> RowsMut<'_> {
        RowsMut(self.0)
    }

    /// The buffer, if all rows are in one.
    pub fn into_buffer(self) -> Option<&'a mut [f32]> {
        match self.0.0 {
            // SAFETY: this view is the only one, and ends here.
            SharedStorage::Contiguous { memory, .. } => unsafe {
                Some(memory.write(0..memory.len()))
            },
            SharedStorage::Gathered { .. } => None,
        }
    }

    /// A view for several workers.
    pub fn share(self) -> SharedRows<'a> {
        self.0
    }
}

/// Rows that several workers read and write, each at places of its own: see [`Shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedRows<'a>(SharedStorage<'a>);

#[derive(Clone, Copy, Debug)]
enum SharedStorage<'a> {
    Contiguous {
        memory: Shared<'a>,
        stride: usize,
    },
    /// Row `r` is `rows[r * step]`.
    Gathered {
        rows: &'a [RowPointer],
        step: usize,
    },
}

/// A row in a buffer of its own.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct RowPointer(*mut [f32]);

// SAFETY: the pointer is only followed by the unsafe methods of `SharedRows`, whose callers promise
// that no two threads touch one element at once with either writing it.
unsafe impl Send for RowPointer {}
// SAFETY: as above.
unsafe impl Sync for RowPointer {}

impl SharedRows<'static> {
    /// No rows.
    pub const EMPTY: SharedRows<'static> =
        SharedRows(SharedStorage::Gathered { rows: &[], step: 1 });
}

impl<'a> SharedRows<'a> {
    /// Row `r` starts at element `r * stride`.
    pub fn contiguous(memory: Shared<'a>, stride: usize) -> SharedRows<'a> {
        SharedRows(SharedStorage::Contiguous { memory, stride })
    }

    /// Rows `first`, `first + step`, `first + 2 * step` and so on.
    ///
    /// # Panics
    /// If the rows end before `first`.
    pub fn every(self, first: usize, step: usize) -> SharedRows<'a> {
        SharedRows(match self.0 {
            SharedStorage::Contiguous { memory, stride } => SharedStorage::Contiguous {
                memory: memory.skip(first * stride),
                stride: stride * step,
            },
            SharedStorage::Gathered { rows, step: by } => SharedStorage::Gathered {
                rows: &rows[first * by..],
                step: by * step,
            },
        })
    }

    /// Values in all rows.
    pub fn values(&self) -> usize {
        match self.0 {
            SharedStorage::Contiguous { memory, .. } => memory.len(),
            SharedStorage::Gathered { rows, step } => {
                let rows = rows.iter().step_by(step);
                rows.map(|row| row.0.len()).sum()
            }
        }
    }

    /// Whether there are `rows` rows of `width` values, none of which overlap.
    pub fn fits(&self, rows: usize, width: usize) -> bool {
        match self.0 {
            SharedStorage::Contiguous { memory, stride } => fits(memory.len(), stride, rows, width),
            SharedStorage::Gathered { rows: list, step } => {
                let list = list.iter().step_by(step);
                list.len() >= rows && list.take(rows).all(|row| row.0.len() >= width)
            }
        }
    }

    /// Columns of a row, to read.
    ///
    /// # Safety
    /// No other thread writes them while the result is alive.
    ///
    /// # Panics
    /// If there are no such columns.
    #[inline(always)]
    pub unsafe fn read(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let (memory, first) = self.place(row);
        // SAFETY: the caller's promise.
        unsafe { memory.read(first + columns.start..first + columns.end) }
    }

    /// Columns of a row, to write.
    ///
    /// # Safety
    /// No other thread reads or writes them while the result is alive.
    ///
    /// # Panics
    /// If there are no such columns.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise, not the borrow's
    pub unsafe fn write(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        let (memory, first) = self.place(row);
        // SAFETY: the caller's promise.
        unsafe { memory.write(first + columns.start..first + columns.end) }
    }

    /// All rows, to read.
    ///
    /// # Safety
    /// No other thread writes any of them while the result is used.
    ///
    /// # Panics
    /// If the rows are every other of a list.
    pub unsafe fn read_all(&self) -> RowsRef<'a> {
        match self.0 {
            // SAFETY: the caller's promise.
            SharedStorage::Contiguous { memory, stride } => unsafe {
                RowsRef::contiguous(memory.read(0..memory.len()), stride)
            },
            SharedStorage::Gathered { rows, step } => {
                assert_eq!(step, 1, "every row of a list");
                // SAFETY: a reference and a pointer to a slice have the same layout; the rows live
                // for `'a`, and the caller keeps writers away.
                unsafe {
                    RowsRef::gathered(std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len()))
                }
            }
        }
    }

    /// The buffer of a row, and where the row starts in it.
    #[inline(always)]
    fn place(&self, row: usize) -> (Shared<'a>, usize) {
        match self.0 {
            SharedStorage::Contiguous { memory, stride } => (memory, row * stride),
            SharedStorage::Gathered { rows, step } => {
                let RowPointer(row) = rows[row * step];
                // SAFETY: the list was made of slices that are borrowed mutably for `'a`.
                (unsafe { Shared::from_raw(row.cast(), row.len()) }, 0)
            }
        }
    }
}

/// One worker's columns of shared rows.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The rows.
    pub rows: SharedRows<'a>,
    /// The worker's first column.
    pub first: usize,
    /// Row `r` is row `order[r]` of `rows`; `None` is row `r`.
    pub order: Option<&'a [usize]>,
}

impl<'a> Columns<'a> {
    /// The columns from `first` on, of rows in order.
    pub fn new(rows: SharedRows<'a>, first: usize) -> Columns<'a> {
        Columns {
            rows,
            first,
            order: None,
        }
    }

    /// Some of the worker's columns of a row, to read.
    ///
    /// # Safety
    /// As [`SharedRows::read`].
    #[inline(always)]
    pub(super) unsafe fn read(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let columns = self.first + columns.start..self.first + columns.end;
        // SAFETY: the caller's promise.
        unsafe { self.rows.read(nth(self.order, row), columns) }
    }

    /// Some of the worker's columns of a row, to write.
    ///
    /// # Safety
    /// As [`SharedRows::write`].
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise, not the borrow's
    pub(super) unsafe fn write(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        let columns = self.first + columns.start..self.first + columns.end;
        // SAFETY: the caller's promise.
        unsafe { self.rows.write(nth(self.order, row), columns) }
    }
}

/// The row that stands at place `row` of an order.
#[inline(always)]
pub(super) fn nth(order: Option<&[usize]>, row: usize) -> usize {
    order.map_or(row, |order| order[row])
}

/// One worker's columns of rows that are only read.
#[derive(Clone, Copy, Debug)]
pub struct ReadColumns<'a> {
    /// The rows.
    pub rows: RowsRef<'a>,
    /// The worker's first column.
    pub first: usize,
}

/// Empties a vector and keeps its memory for elements of another type, of the same size: a list of
/// borrowed rows that is made for every batch does not allocate.
///
/// ```
/// use gatestream_kernels::recycle_vec;
///
/// let mut kept: Vec<&'static [f32]> = Vec::with_capacity(2);
/// let values = vec![1.0, 2.0];
/// let mut rows: Vec<&[f32]> = kept;
/// rows.extend([&values[..1], &values[1..]]);
/// kept = recycle_vec(rows);
/// assert_eq!((kept.len(), kept.capacity()), (0, 2));
/// ```
pub fn recycle_vec<T, U>(mut vec: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    vec.clear();
    let mut vec = std::mem::ManuallyDrop::new(vec);
    // SAFETY: the memory was allocated by a vector for as many elements of this size and alignment,
    // none of which are left; the other vector is forgotten.
    unsafe { Vec::from_raw_parts(vec.as_mut_ptr().cast(), 0, vec.capacity()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a model of memory: what a view gives is what plain indexing gives.
    #[test]
    fn contiguous_and_gathered_rows() {
        let mut values: Vec<f32> = (0..30).map(|value| value as f32).collect();
        let of = |row: usize, from: usize, to: usize| -> Vec<f32> {
            (from..to).map(|column| (row * 5 + column) as f32).collect()
        };
        let list: Vec<&[f32]> = values.chunks(5).collect();
        let order = [4, 0, 3];
        for rows in [RowsRef::contiguous(&values, 5), RowsRef::gathered(&list)] {
            assert!((0..6).all(|row| rows.row(row, 3) == of(row, 0, 3)));
            assert!(rows.fits(6, 5) && !rows.fits(7, 5) && !rows.fits(2, 6));
        }
        let check = |rows: SharedRows<'_>| {
            let every = rows.every(1, 2);
            for row in 0..3 {
                // SAFETY: one thread, and no result outlives its line.
                unsafe {
                    assert_eq!(rows.read(row, 1..4), of(row, 1, 4));
                    assert_eq!(every.read(row, 1..4), of(1 + 2 * row, 1, 4));
                    let columns = Columns {
                        rows,
                        first: 2,
                        order: Some(&order),
                    };
                    assert_eq!(columns.read(row, 1..3), of(order[row], 3, 5));
                    columns.write(row, 0..1)[0] += 100.0;
                    assert_eq!(
                        rows.read_all().row(order[row], 3)[2],
                        of(order[row], 2, 3)[0] + 100.0
                    );
                    columns.write(row, 0..1)[0] -= 100.0;
                }
            }
            assert!(rows.fits(6, 5) && !rows.fits(7, 5) && !rows.fits(6, 6));
            assert_eq!(rows.values(), 30);
        };
        check(RowsMut::contiguous(&mut values, 5).share());
        let mut list: Vec<&mut [f32]> = values.chunks_mut(5).collect();
        check(RowsMut::gathered(&mut list).share());
    }

    #[test]
    fn rows_that_overlap_do_not_fit() {
        let mut values = [0.0; 10];
        let rows = RowsMut::contiguous(&mut values, 2).share();
        assert!(rows.fits(4, 2) && rows.fits(1, 10) && rows.fits(0, 99));
        assert!(!rows.fits(2, 3));
    }

    #[test]
    fn a_recycled_vector_keeps_its_memory() {
        let values = [1.0];
        let mut list: Vec<&[f32]> = Vec::with_capacity(8);
        let address = list.as_ptr().cast::<()>();
        list.extend([&values[..], &values[..]]);
        let list: Vec<&'static [f32]> = recycle_vec(list);
        assert_eq!((list.len(), list.capacity()), (0, 8));
        assert_eq!(list.as_ptr().cast(), address);
    }
}
