//! Operations on rows of data, which the layers around a recurrent core are made of: dot products,
//! softmax, weighted sums, and what is computed value by value.
//!
//! ```text
//! dot:           s[k % 16] = fma(a[k], b[k], s[k % 16]) in the order of k;  then the sum of s
//! weighted sum:  y[j] = fma(w[i], row[i][j], y[j])      in the order of i
//! softmax:       e[k] = exp(x[k] - max x);  s[k % 16] += e[k];  e[k] / (sum of s)
//! sum of s:      s[i] += s[i + 8] for i in 0..8, then 4, 2 and 1
//! ```
//!
//! A sum along a row has [`PARTIAL_SUMS`] parts on every instruction set, however many vectors
//! they fill, so that all sets give the same bits.

use super::math::{self, exp::exp_of_nonpositive};
use super::max::max;
use super::simd::Simd;
use super::{Activation, Isa, IsaError, Visitor, dispatch};

/// Partial sums of a sum along a row: the lanes of the widest vector.
pub const PARTIAL_SUMS: usize = 16;

/// An operation on two rows, value by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// `a * b`.
    Multiply,
    /// `a + b`.
    Add,
    /// The greater of the two, the first of equal ones; NaN where either is NaN.
    Max,
}

/// The logarithm of a sum of exponentials, in parts: `greatest + ln sum`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpSum {
    /// The greatest value; NaN where one of them is NaN, minus infinity where there is none.
    pub greatest: f32,
    /// `Σ_k exp(x[k] - greatest)`.
    pub sum: f32,
}

/// The row operations of one instruction set. All sets give the same bits.
pub trait RowKernels: Send + Sync {
    /// Which instruction set.
    fn isa(&self) -> Isa;
    /// The greatest of `values`; NaN where one of them is NaN, minus infinity where there is none.
    fn max(&self, values: &[f32]) -> f32;
    /// Replaces each value by its `activation`.
    fn activate(&self, activation: Activation, values: &mut [f32]);
    /// The sum of the exponentials of `values`.
    fn exp_sum(&self, values: &[f32]) -> ExpSum;
    /// Replaces `values` by `exp(x[k]) / Σ exp(x)`. Minus infinity gives zero. All are NaN where
    /// one is NaN or infinity, or all are minus infinity.
    fn softmax(&self, values: &mut [f32]);
    /// The dot product of `x` and each row of `rows` `[y.len(), x.len()]`.
    ///
    /// # Panics
    /// If `rows` is shorter.
    fn dots(&self, x: &[f32], rows: &[f32], y: &mut [f32]);
    /// `Σ_k weights[k] · tanh(x[k] + row[k])` of each row of `rows` `[y.len(), x.len()]`.
    ///
    /// # Panics
    /// If `rows` or `weights` is shorter.
    fn additive_scores(&self, x: &[f32], rows: &[f32], weights: &[f32], y: &mut [f32]);
    /// `y[j] = Σ_i weights[i] · rows[i][j]`, with `rows` `[weights.len(), y.len()]`.
    ///
    /// # Panics
    /// If `rows` is shorter.
    fn weighted_sum(&self, weights: &[f32], rows: &[f32], y: &mut [f32]);
    /// Replaces `a` by `a` and `b` combined.
    ///
    /// # Panics
    /// If `b` is shorter.
    fn combine(&self, combine: Combine, a: &mut [f32], b: &[f32]);
    /// Replaces `x` by `t · h + (1 − t) · x`, with the `gate` t and the `transform` h.
    ///
    /// # Panics
    /// If `gate` or `transform` is shorter than `x`.
    fn highway(&self, gate: &[f32], transform: &[f32], x: &mut [f32]);
}

/// The row operations for `isa`.
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks it.
pub fn row_kernels(isa: Isa) -> Result<Box<dyn RowKernels>, IsaError> {
    dispatch(isa, Make)
}

struct Make;

impl Visitor for Make {
    type Out = Box<dyn RowKernels>;
    fn visit<S: Simd>(self, s: S) -> Box<dyn RowKernels> {
        Box::new(Set { s })
    }
}

struct Set<S> {
    s: S,
}

impl<S: Simd> RowKernels for Set<S> {
    fn isa(&self) -> Isa {
        S::ISA
    }

    fn max(&self, values: &[f32]) -> f32 {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            // Of two zeros, the positive one: which the maximum is depends on the lanes.
            || max(s, values) + 0.0,
        )
    }

    fn activate(&self, activation: Activation, values: &mut [f32]) {
        math::activate_values(self.s, activation, values);
    }

    fn exp_sum(&self, values: &[f32]) -> ExpSum {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || {
                let greatest = max(s, values) + 0.0;
                let mut sums = [0.0; PARTIAL_SUMS];
                for values in values.chunks(PARTIAL_SUMS) {
                    let mut lanes = padded(values);
                    exp_less(s, greatest, &mut lanes);
                    lanes[values.len()..].fill(0.0);
                    add(s, &mut sums, &lanes);
                }
                let sum = total(sums);
                ExpSum { greatest, sum }
            },
        )
    }

    fn softmax(&self, values: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || {
                let greatest = max(s, values);
                let mut sums = [0.0; PARTIAL_SUMS];
                for values in values.chunks_mut(PARTIAL_SUMS) {
                    let mut lanes = padded(values);
                    exp_less(s, greatest, &mut lanes);
                    lanes[values.len()..].fill(0.0);
                    add(s, &mut sums, &lanes);
                    values.copy_from_slice(&lanes[..values.len()]);
                }
                let sum = s.splat(total(sums));
                math::map(
                    s,
                    values,
                    #[inline(always)]
                    |e| s.div(e, sum),
                );
            },
        );
    }

    fn dots(&self, x: &[f32], rows: &[f32], y: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || match S::LANES {
                16 => dots::<S, 8, 1>(s, x, rows, y),
                8 => dots::<S, 4, 2>(s, x, rows, y),
                _ => dots::<S, 4, 4>(s, x, rows, y),
            },
        );
    }

    fn additive_scores(&self, x: &[f32], rows: &[f32], weights: &[f32], y: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = additive_score(s, x, &rows[i * x.len()..][..x.len()], weights);
                }
            },
        );
    }

    fn weighted_sum(&self, weights: &[f32], rows: &[f32], y: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || weighted_sum(s, weights, rows, y),
        );
    }

    fn combine(&self, combine: Combine, a: &mut [f32], b: &[f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || match combine {
                Combine::Multiply => zip(
                    s,
                    a,
                    [b],
                    #[inline(always)]
                    |a, [b]| s.mul(a, b),
                ),
                Combine::Add => zip(
                    s,
                    a,
                    [b],
                    #[inline(always)]
                    |a, [b]| s.add(a, b),
                ),
                Combine::Max => zip(
                    s,
                    a,
                    [b],
                    #[inline(always)]
                    |a, [b]| {
                        let greater = s.select(s.lt(a, b), b, a);
                        s.select(s.le(b, b), greater, b)
                    },
                ),
            },
        );
    }

    fn highway(&self, gate: &[f32], transform: &[f32], x: &mut [f32]) {
        let s = self.s;
        s.vectorize(
            #[inline(always)]
            || {
                let one = s.splat(1.0);
                zip(
                    s,
                    x,
                    [gate, transform],
                    #[inline(always)]
                    |x, [t, h]| s.fma(t, h, s.mul(s.sub(one, t), x)),
                );
            },
        );
    }
}

/// Up to [`PARTIAL_SUMS`] values, then zeros.
#[inline(always)]
fn padded(values: &[f32]) -> [f32; PARTIAL_SUMS] {
    let mut lanes = [0.0; PARTIAL_SUMS];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// Replaces each value by `exp(x - greatest)`.
#[inline(always)]
fn exp_less<S: Simd>(s: S, greatest: f32, values: &mut [f32; PARTIAL_SUMS]) {
    let greatest = s.splat(greatest);
    for lanes in values.chunks_exact_mut(S::LANES) {
        s.store(exp_of_nonpositive(s, s.sub(s.load(lanes), greatest)), lanes);
    }
}

#[inline(always)]
fn add<S: Simd>(s: S, sums: &mut [f32; PARTIAL_SUMS], values: &[f32; PARTIAL_SUMS]) {
    let vectors = sums
        .chunks_exact_mut(S::LANES)
        .zip(values.chunks_exact(S::LANES));
    for (sum, value) in vectors {
        s.store(s.add(s.load(sum), s.load(value)), sum);
    }
}

/// The sum of the partial sums, by halves.
#[inline(always)]
fn total(mut sums: [f32; PARTIAL_SUMS]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// `ROWS` rows at a time, whose chains hide each other's latency. The partial sums of one row are
/// `VECTORS` vectors.
#[inline(always)]
fn dots<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    x: &[f32],
    rows: &[f32],
    y: &mut [f32],
) {
    let depth = x.len();
    let rows = &rows[..y.len() * depth];
    for (group, y) in y.chunks_mut(ROWS).enumerate() {
        let rows = &rows[group * ROWS * depth..];
        if y.len() == ROWS {
            dots_of::<S, ROWS, VECTORS>(s, x, rows, y);
        } else {
            for (row, y) in y.chunks_mut(1).enumerate() {
                dots_of::<S, 1, VECTORS>(s, x, &rows[row * depth..], y);
            }
        }
    }
}

#[inline(always)]
fn dots_of<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    x: &[f32],
    rows: &[f32],
    y: &mut [f32],
) {
    let depth = x.len();
    let row: [&[f32]; ROWS] = std::array::from_fn(|r| &rows[r * depth..][..depth]);
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    let whole = depth - depth % PARTIAL_SUMS;
    for at in (0..whole).step_by(PARTIAL_SUMS) {
        let x = vectors::<S, VECTORS>(s, &x[at..]);
        for (sums, row) in sums.iter_mut().zip(row) {
            add_products(s, sums, x, &row[at..]);
        }
    }
    if whole < depth {
        // Zeros add nothing: a partial sum starts from +0, so it is never -0.
        let x = vectors::<S, VECTORS>(s, &padded(&x[whole..]));
        for (sums, row) in sums.iter_mut().zip(row) {
            add_products(s, sums, x, &padded(&row[whole..]));
        }
    }
    for (y, sums) in y.iter_mut().zip(sums) {
        let mut lanes = [0.0; PARTIAL_SUMS];
        for (sum, lanes) in sums.into_iter().zip(lanes.chunks_exact_mut(S::LANES)) {
            s.store(sum, lanes);
        }
        *y = total(lanes);
    }
}

/// The vectors of [`PARTIAL_SUMS`] values.
#[inline(always)]
fn vectors<S: Simd, const VECTORS: usize>(s: S, values: &[f32]) -> [S::F32; VECTORS] {
    let values = &values[..PARTIAL_SUMS];
    std::array::from_fn(
        #[inline(always)]
        |v| s.load(&values[v * S::LANES..]),
    )
}

/// `sums += x ∘ row`.
#[inline(always)]
fn add_products<S: Simd, const VECTORS: usize>(
    s: S,
    sums: &mut [S::F32; VECTORS],
    x: [S::F32; VECTORS],
    row: &[f32],
) {
    let row = vectors::<S, VECTORS>(s, row);
    for (sum, (x, row)) in sums.iter_mut().zip(x.into_iter().zip(row)) {
        *sum = s.fma(x, row, *sum);
    }
}

/// `Σ_k weights[k] · tanh(x[k] + row[k])`.
#[inline(always)]
fn additive_score<S: Simd>(s: S, x: &[f32], row: &[f32], weights: &[f32]) -> f32 {
    let mut sums = [0.0; PARTIAL_SUMS];
    let weights = weights[..x.len()].chunks(PARTIAL_SUMS);
    let parts = (x.chunks(PARTIAL_SUMS).zip(row.chunks(PARTIAL_SUMS))).zip(weights);
    for ((x, row), weights) in parts {
        let (x, row, weights) = (padded(x), padded(row), padded(weights));
        for (at, sum) in sums.chunks_exact_mut(S::LANES).enumerate() {
            let from = at * S::LANES;
            let t = math::tanh(s, s.add(s.load(&x[from..]), s.load(&row[from..])));
            s.store(s.fma(s.load(&weights[from..]), t, s.load(sum)), sum);
        }
    }
    total(sums)
}

/// Vectors of the sum that are kept in registers while all rows pass.
const SUM_VECTORS: usize = 8;

#[inline(always)]
fn weighted_sum<S: Simd>(s: S, weights: &[f32], rows: &[f32], y: &mut [f32]) {
    let width = y.len();
    let rows = &rows[..weights.len() * width];
    if weights.is_empty() {
        y.fill(0.0);
        return;
    }
    let mut first = 0;
    while first + SUM_VECTORS * S::LANES <= width {
        weighted_columns::<S, SUM_VECTORS>(s, weights, &rows[first..], width, &mut y[first..]);
        first += SUM_VECTORS * S::LANES;
    }
    while first + S::LANES <= width {
        weighted_columns::<S, 1>(s, weights, &rows[first..], width, &mut y[first..]);
        first += S::LANES;
    }
    let rest = width - first;
    if rest > 0 {
        let mut sum = s.splat(0.0);
        for (i, weight) in weights.iter().enumerate() {
            let row = padded(&rows[i * width + first..][..rest]);
            sum = s.fma(s.splat(*weight), s.load(&row), sum);
        }
        let mut lanes = [0.0; PARTIAL_SUMS];
        s.store(sum, &mut lanes);
        y[first..].copy_from_slice(&lanes[..rest]);
    }
}

/// `N` vectors of the sum, from columns of `rows` whose rows are `stride` apart.
#[inline(always)]
fn weighted_columns<S: Simd, const N: usize>(
    s: S,
    weights: &[f32],
    rows: &[f32],
    stride: usize,
    y: &mut [f32],
) {
    let mut sums = [s.splat(0.0); N];
    for (i, weight) in weights.iter().enumerate() {
        let weight = s.splat(*weight);
        let row = &rows[i * stride..][..N * S::LANES];
        for (sum, row) in sums.iter_mut().zip(row.chunks_exact(S::LANES)) {
            *sum = s.fma(weight, s.load(row), *sum);
        }
    }
    for (sum, y) in sums.into_iter().zip(y.chunks_exact_mut(S::LANES)) {
        s.store(sum, y);
    }
}

/// Replaces each of `a` by a function of it and the values of `others` at its place.
#[inline(always)]
fn zip<S: Simd, const N: usize>(
    s: S,
    a: &mut [f32],
    others: [&[f32]; N],
    f: impl Fn(S::F32, [S::F32; N]) -> S::F32,
) {
    let others = others.map(|other| &other[..a.len()]);
    let whole = a.len() - a.len() % S::LANES;
    let (vectors, rest) = a.split_at_mut(whole);
    for (at, a) in vectors.chunks_exact_mut(S::LANES).enumerate() {
        let b = others.map(
            #[inline(always)]
            |other| s.load(&other[at * S::LANES..]),
        );
        s.store(f(s.load(a), b), a);
    }
    if !rest.is_empty() {
        let b = others.map(
            #[inline(always)]
            |other| s.load(&padded(&other[whole..])),
        );
        let mut lanes = padded(rest);
        let result = f(s.load(&lanes), b);
        s.store(result, &mut lanes);
        rest.copy_from_slice(&lanes[..rest.len()]);
    }
}
