//! Rows of states that lie apart, each in a buffer of its own, for all workers of a step to write their columns of.

use crate::kernels::Shared;
use crate::reused::reused;

/// Lists of rows, one list for each port of a cell. What they borrow nobody else can touch while they do.
#[derive(Default)]
pub struct RowLists<'a>(Vec<Vec<Shared<'a>>>);

impl<'a> RowLists<'a> {
    /// So many lists, with room for so many rows each.
    pub fn new(lists: usize, rows: usize) -> RowLists<'a> {
        let list = || Vec::with_capacity(rows);
        RowLists((0..lists).map(|_| list()).collect())
    }

    /// Adds rows to a list.
    pub fn extend(&mut self, list: usize, rows: impl Iterator<Item = &'a mut [f32]>) {
        self.0[list].extend(rows.map(Shared::new));
    }

    /// All lists, to be written.
    pub fn written(&mut self) -> WrittenRows<'_> {
        WrittenRows(&self.0)
    }

    /// The same room without the rows.
    pub fn cleared(self) -> RowLists<'static> {
        RowLists(self.0.into_iter().map(reused).collect())
    }
}

/// Lists of rows that are borrowed to be written. There is no other copy of it.
pub struct WrittenRows<'a>(&'a [Vec<Shared<'a>>]);

impl WrittenRows<'_> {
    /// Nothing.
    pub const NONE: WrittenRows<'static> = WrittenRows(&[]);

    /// How many rows each list has.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.0.iter().map(Vec::len)
    }

    /// All lists, each by itself.
    ///
    /// # Panics
    /// If there is another number of them.
    pub fn split<const N: usize>(&mut self) -> [StateRows<'_>; N] {
        assert_eq!(N, self.0.len(), "states and outputs of the cell");
        std::array::from_fn(|list| StateRows::Apart(ApartRows(&self.0[list])))
    }
}

/// Rows that lie apart, borrowed to be written. There is no other copy of it.
pub struct ApartRows<'a>(&'a [Shared<'a>]);

impl<'a> ApartRows<'a> {
    /// For all workers.
    pub(super) fn all(&self) -> &'a [Shared<'a>] {
        self.0
    }
}

/// Rows of a state that a step writes, and may read before.
pub enum StateRows<'a> {
    /// `[rows, hidden]`.
    Together(&'a mut [f32]),
    /// A row each, `[hidden]`.
    Apart(ApartRows<'a>),
}
