//! The left operand of a tile.

use super::super::rows::nth;
use super::tiles::RowTiles;
use super::{Product, RowsRef};

/// The rows that tiles multiply with: of the job itself, or what was made of them.
#[derive(Clone, Copy)]
pub(super) struct Lhs<'a, T> {
    /// Each where it stands.
    rows: RowsRef<'a, T>,
    /// See [`Product::order`].
    order: Option<&'a [usize]>,
    /// Words of a row.
    pub words: usize,
    /// For tall tiles: `[tile][word][row of the tile]`, else nothing.
    pub by_steps: &'a [u32],
}

impl<'a, T> Lhs<'a, T> {
    /// Rows as they stand.
    pub fn new(rows: RowsRef<'a, T>, words: usize) -> Lhs<'a, T> {
        Lhs {
            rows,
            order: None,
            words,
            by_steps: &[],
        }
    }

    /// A row.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [T] {
        self.rows.row(nth(self.order, row), self.words)
    }

    /// Where `M` rows start. Not inlined: computing the addresses would compete with them for the
    /// registers of the loop over the rows.
    #[inline(never)]
    pub fn separate<const M: usize>(&self, row: usize) -> Separate<T, M> {
        Separate(std::array::from_fn(|m| self.row(row + m).as_ptr()))
    }

    /// Where a tall tile of `M` rows starts.
    #[inline(always)]
    pub fn by_steps<const M: usize>(&self, row: usize) -> BySteps<T, M> {
        const { assert!(size_of::<T>() == size_of::<u32>()) };
        let tile = &self.by_steps[row * self.words..][..M * self.words];
        BySteps(tile.as_ptr().cast())
    }
}

impl<'a> Lhs<'a, f32> {
    /// The job's own.
    pub fn of(job: &Product<'a>) -> Lhs<'a, f32> {
        Lhs {
            order: job.order,
            ..Lhs::new(job.rows, job.weights.depth())
        }
    }

    /// Lays rows out step by step in `scratch`, for tiles that are tall.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn lay_out(&self, tiles: RowTiles, scratch: &mut [u32]) {
        let scratch = &mut scratch[..tiles.rows * self.words];
        let firsts = (0..).step_by(tiles.height);
        for (first, scratch) in firsts.zip(scratch.chunks_mut(tiles.height * self.words)) {
            macro_rules! of_rows {
                ($($m:literal)*) => {
                    match scratch.len() / self.words {
                        $($m => self.lay_out_tile::<$m>(first, scratch),)*
                        _ => unreachable!("rows of a tall tile"),
                    }
                };
            }
            of_rows! { 7 8 9 10 11 12 13 14 }
        }
    }

    /// The same for a tile of `M` rows. `M` is a constant so that the loops are unrolled.
    fn lay_out_tile<const M: usize>(&self, first: usize, scratch: &mut [u32]) {
        /// Steps at a time, whose values stand in a line of each row.
        const BLOCK: usize = 16;
        let rows: [&[f32]; M] = std::array::from_fn(|m| self.row(first + m));
        let (steps, _) = scratch.as_chunks_mut::<M>();
        let (blocks, rest) = steps.as_chunks_mut::<BLOCK>();
        for (block, steps) in blocks.iter_mut().enumerate() {
            for (m, row) in rows.iter().enumerate() {
                let (values, _) = row[block * BLOCK..].as_chunks::<BLOCK>();
                for (step, value) in steps.iter_mut().zip(&values[0]) {
                    step[m] = value.to_bits();
                }
            }
        }
        let done = blocks.len() * BLOCK;
        for (k, step) in (done..).zip(rest) {
            for (value, row) in step.iter_mut().zip(&rows) {
                *value = row[k].to_bits();
            }
        }
    }
}

/// Where the words of a tile's rows stand.
pub(super) trait Stand<T>: Copy {
    /// Where word `word` of row `row` of the tile is, which is among those of the rows.
    fn at(&self, row: usize, word: usize) -> *const T;
}

/// Each row has a pointer of its own.
#[derive(Clone, Copy)]
pub(super) struct Separate<T, const M: usize>([*const T; M]);

impl<T: Copy, const M: usize> Stand<T> for Separate<T, M> {
    #[inline(always)]
    fn at(&self, row: usize, word: usize) -> *const T {
        self.0[row].wrapping_add(word)
    }
}

/// Step after step, those of all `M` rows side by side.
#[derive(Clone, Copy)]
pub(super) struct BySteps<T, const M: usize>(*const T);

impl<T: Copy, const M: usize> Stand<T> for BySteps<T, M> {
    #[inline(always)]
    fn at(&self, row: usize, word: usize) -> *const T {
        self.0.wrapping_add(word * M + row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_laid_out_word_by_word_tile_by_tile() {
        for (count, height, words) in [(16, 8, 40), (15, 8, 33), (14, 14, 16), (7, 7, 1)] {
            let stride = words + 3;
            let values: Vec<f32> = (0..count * stride).map(|at| at as f32).collect();
            let lhs = Lhs::new(RowsRef::contiguous(&values, stride), words);
            let tiles = RowTiles {
                rows: count,
                height,
                are_tall: true,
            };
            let mut scratch = vec![0; count * words + 5];
            lhs.lay_out(tiles, &mut scratch);
            for (row, word) in (0..count).flat_map(|row| (0..words).map(move |w| (row, w))) {
                let first = row / height * height;
                let of_tile = height.min(count - first);
                let at = first * words + word * of_tile + row % height;
                let expected = values[row * stride + word];
                assert_eq!(
                    f32::from_bits(scratch[at]),
                    expected,
                    "row {row}, word {word}"
                );
            }
            assert!(scratch[count * words..].iter().all(|word| *word == 0));
        }
    }
}
