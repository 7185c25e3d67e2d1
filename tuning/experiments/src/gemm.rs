//! The opponent: a general matrix multiplication, in parallel on pinned threads.
//!
//! It is as good as a careful user would make it: the weights stand row by row in the order that
//! the library packs fastest, threads are pinned, and each place that uses it tries every split and
//! keeps the fastest ([`Gemm::best_split`]).

use std::time::{Duration, Instant};

use gatestream::machine::Topology;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Whose inner loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The crate `matrixmultiply`.
    MatrixMultiply,
    /// OpenBLAS, each part on one thread; needs the feature `openblas`.
    #[cfg(feature = "openblas")]
    OpenBlas,
}

impl Library {
    /// Those that are built in.
    pub const ALL: &[Library] = &[
        Library::MatrixMultiply,
        #[cfg(feature = "openblas")]
        Library::OpenBlas,
    ];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Library::MatrixMultiply => "parallel GEMM",
            #[cfg(feature = "openblas")]
            Library::OpenBlas => "OpenBLAS",
        }
    }
}

/// How a product is cut for the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Not at all: one thread.
    Whole,
    /// Columns of the right operand, in this number of parts.
    Columns(usize),
    /// Rows of the left operand, in this number of parts.
    Rows(usize),
}

/// `c[rows, columns] (+)= a[rows, depth] · b[depth, columns]`, all row by row.
pub struct Product<'a> {
    /// Rows of `a` and `c`.
    pub rows: usize,
    /// Columns of `a`, rows of `b`.
    pub depth: usize,
    /// Columns of `b` and `c`.
    pub columns: usize,
    /// Left operand.
    pub a: &'a [f32],
    /// Right operand, the weights.
    pub b: &'a [f32],
    /// Result.
    pub c: &'a mut [f32],
    /// Adds to what stands in `c`.
    pub add: bool,
}

/// Pinned threads that multiply.
pub struct Gemm {
    pool: ThreadPool,
    cores: usize,
    library: Library,
}

/// A part of a product as the libraries take it.
#[derive(Clone, Copy)]
struct Part {
    rows: usize,
    depth: usize,
    columns: usize,
    a: *const f32,
    b: *const f32,
    /// From one row of `b` and `c` to the next.
    stride: usize,
    c: *mut f32,
    add: bool,
}

// SAFETY: `multiply` makes parts that write disjoint elements and read only what no part writes,
// and returns when all are done.
unsafe impl Send for Part {}
// SAFETY: as above; a shared part can only be copied.
unsafe impl Sync for Part {}

impl Gemm {
    /// So many threads, each pinned to a core.
    ///
    /// # Errors
    /// Threads are refused.
    pub fn new(cores: usize, library: Library) -> Result<Gemm, ThreadPoolBuildError> {
        #[cfg(feature = "openblas")]
        openblas::one_thread_each();
        let cpus = Topology::detect().cpus_for_team(cores);
        let pin = move |thread: usize| {
            let id = cpus[thread % cpus.len()];
            core_affinity::set_for_current(core_affinity::CoreId { id });
        };
        let pool = ThreadPoolBuilder::new().num_threads(cores);
        Ok(Gemm {
            pool: pool.start_handler(pin).build()?,
            cores,
            library,
        })
    }

    /// One of each library, for as many cores.
    ///
    /// # Errors
    /// Threads are refused.
    pub fn of_each(cores: usize) -> Result<Vec<Gemm>, ThreadPoolBuildError> {
        let libraries = Library::ALL.iter();
        libraries
            .map(|library| Gemm::new(cores, *library))
            .collect()
    }

    /// Whose inner loops.
    pub fn library(&self) -> Library {
        self.library
    }

    /// Runs `work` on the first of the threads, where [`Gemm::multiply`] must be called, and says
    /// how long it took there.
    pub fn time(&self, work: impl FnOnce() + Send) -> Duration {
        self.pool.install(|| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
    }

    /// Every split that makes sense for a number of rows.
    pub fn splits(&self, rows: usize) -> Vec<Split> {
        let mut splits = vec![Split::Whole];
        for parts in 2..=self.cores {
            splits.push(Split::Columns(parts));
            if rows >= 4 * parts {
                splits.push(Split::Rows(parts));
            }
        }
        splits
    }

    /// The split that `run` is fastest with.
    pub fn best_split(&self, rows: usize, mut run: impl FnMut(Split) -> Duration) -> Split {
        let splits = self.splits(rows);
        let mut best = vec![Duration::MAX; splits.len()];
        let start = Instant::now();
        for round in 0..5 {
            if round > 1 && start.elapsed() > Duration::from_secs(1) {
                break;
            }
            for (best, split) in best.iter_mut().zip(&splits) {
                *best = run(*split).min(*best);
            }
        }
        let fastest = (0..splits.len()).min_by_key(|&index| best[index]);
        splits[fastest.unwrap_or(0)]
    }

    /// The time of a number of equal products, one after the other.
    pub fn time_of(&self, times: usize, split: Split, product: Product<'_>) -> Duration {
        let Product { c, .. } = product;
        self.time(|| {
            for _ in 0..times {
                self.multiply(
                    split,
                    Product {
                        c: &mut *c,
                        ..product
                    },
                );
            }
        })
    }

    /// Multiplies. Call it within [`Gemm::time`].
    ///
    /// # Panics
    /// If a slice is shorter than the sizes say.
    pub fn multiply(&self, split: Split, product: Product<'_>) {
        let Product {
            rows,
            depth,
            columns,
            a,
            b,
            c,
            add,
        } = product;
        assert!(a.len() >= rows * depth && b.len() >= depth * columns);
        assert!(c.len() >= rows * columns);
        let whole = Part {
            rows,
            depth,
            columns,
            a: a.as_ptr(),
            b: b.as_ptr(),
            stride: columns,
            c: c.as_mut_ptr(),
            add,
        };
        let library = self.library;
        match split {
            Split::Whole => whole.run(library),
            Split::Columns(parts) | Split::Rows(parts) => rayon::scope(|scope| {
                for at in 1..parts {
                    let part = whole.cut(split, at);
                    scope.spawn(move |_| { part }.run(library));
                }
                whole.cut(split, 0).run(library);
            }),
        }
    }
}

/// `0..size` in parts of whole grains: the one at `at`.
fn range(size: usize, grain: usize, at: usize, parts: usize) -> std::ops::Range<usize> {
    let bound = |at: usize| (size.div_ceil(grain) * at / parts * grain).min(size);
    bound(at)..bound(at + 1)
}

impl Part {
    /// The part at `at` of a whole product.
    fn cut(self, split: Split, at: usize) -> Part {
        let (rows, columns) = match split {
            Split::Whole => (0..self.rows, 0..self.columns),
            // Whole cache lines.
            Split::Columns(parts) => (0..self.rows, range(self.columns, 16, at, parts)),
            Split::Rows(parts) => (range(self.rows, 1, at, parts), 0..self.columns),
        };
        // SAFETY: the ranges are within the whole, so the offsets are within its slices.
        unsafe {
            Part {
                rows: rows.len(),
                columns: columns.len(),
                a: self.a.add(rows.start * self.depth),
                b: self.b.add(columns.start),
                c: self.c.add(rows.start * self.stride + columns.start),
                ..self
            }
        }
    }

    fn run(self, library: Library) {
        let beta = if self.add { 1.0 } else { 0.0 };
        match library {
            // SAFETY: the pointers and strides describe parts of slices that outlive the call, and
            // no other thread touches this part of the result.
            Library::MatrixMultiply => unsafe {
                matrixmultiply::sgemm(
                    self.rows,
                    self.depth,
                    self.columns,
                    1.0,
                    self.a,
                    self.depth as isize,
                    1,
                    self.b,
                    self.stride as isize,
                    1,
                    beta,
                    self.c,
                    self.stride as isize,
                    1,
                );
            },
            #[cfg(feature = "openblas")]
            Library::OpenBlas => openblas::multiply(self, beta),
        }
    }
}

#[cfg(feature = "openblas")]
mod openblas {
    use std::ffi::c_int;

    use super::Part;

    const ROW_MAJOR: c_int = 101;
    const AS_IT_IS: c_int = 111;

    #[link(name = "openblas")]
    unsafe extern "C" {
        fn openblas_set_num_threads(threads: c_int);
        #[allow(clippy::too_many_arguments)] // the library's own
        fn cblas_sgemm(
            order: c_int,
            a_form: c_int,
            b_form: c_int,
            rows: c_int,
            columns: c_int,
            depth: c_int,
            alpha: f32,
            a: *const f32,
            a_stride: c_int,
            b: *const f32,
            b_stride: c_int,
            beta: f32,
            c: *mut f32,
            c_stride: c_int,
        );
    }

    /// Its own threads would keep spinning on the cores of the next contender.
    pub fn one_thread_each() {
        // SAFETY: takes any positive number.
        unsafe { openblas_set_num_threads(1) };
    }

    pub fn multiply(part: Part, beta: f32) {
        let [rows, depth, columns, stride] =
            [part.rows, part.depth, part.columns, part.stride].map(|size| size as c_int);
        // SAFETY: as for the other library.
        unsafe {
            cblas_sgemm(
                ROW_MAJOR, AS_IT_IS, AS_IT_IS, rows, columns, depth, 1.0, part.a, depth, part.b,
                stride, beta, part.c, stride,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::numbers;

    #[test]
    fn every_split_of_every_library_multiplies() {
        let (rows, depth, columns) = (9, 7, 50);
        let (a, b) = (numbers(rows * depth), numbers(depth * columns));
        let expected: Vec<f32> = (0..rows * columns)
            .map(|at| {
                let (row, column) = (at / columns, at % columns);
                let products = (0..depth).map(|k| a[row * depth + k] * b[k * columns + column]);
                1.0 + products.sum::<f32>()
            })
            .collect();
        for &library in Library::ALL {
            let gemm = Gemm::new(2, library).unwrap();
            let splits = [
                Split::Whole,
                Split::Columns(2),
                Split::Columns(3),
                Split::Rows(2),
            ];
            assert!(
                splits
                    .iter()
                    .filter(|s| gemm.splits(rows).contains(s))
                    .count()
                    == 3
            );
            for split in splits {
                let mut c = vec![1.0; rows * columns];
                gemm.time(|| {
                    let (a, b, c) = (&a, &b, &mut c);
                    gemm.multiply(
                        split,
                        Product {
                            rows,
                            depth,
                            columns,
                            a,
                            b,
                            c,
                            add: true,
                        },
                    );
                });
                let near = c.iter().zip(&expected).all(|(c, e)| (c - e).abs() < 1e-5);
                assert!(near, "{library:?} {split:?}");
            }
        }
    }
}
