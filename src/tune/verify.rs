//! Compares a candidate with the reference before it is timed.

use crate::execute::{RunError, Session};
use crate::model::{Input, InputError, Model, Output};
use crate::plan::{Configuration, flops};
use crate::reference;
use gatestream_kernels::TALL_TILE_ROWS;

/// Why a check did not come to its end, or how it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The reference refused the input, which is a defect of the check.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The session refused or broke off.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Some value differs from the reference in some bit.
    #[error(
        "the answer differs from the reference; this is a defect of gatestream, please report it"
    )]
    Differs,
}

/// Sequences, or nodes of a tree, that are checked: more than any tile has rows.
pub(super) const CHECKED_ROWS: usize = *TALL_TILE_ROWS.end() + 1;

/// A short run with the reference's answer, for sessions of any number of configurations.
///
/// ```
/// use gatestream::model::Lstm;
/// use gatestream::tune::Check;
/// use gatestream::{Plan, Session};
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let plan = Plan::estimate(&model, 2, 10, 2);
/// let mut session = Session::new(&model, &plan)?;
/// let configuration = plan.entries[0].configuration.clone();
/// Check::new(&model, &[configuration], (2, 10), Check::THOROUGH)?.hold(&mut session)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Check {
    values: Vec<f32>,
    steps: usize,
    batch: usize,
    expected: Vec<f32>,
    found: Vec<f32>,
}

impl Check {
    /// Multiply-adds of a thorough check: the reference takes about a second for them.
    pub const THOROUGH: usize = 200_000_000;

    /// The expected output of a run of `configurations` of at most `steps` steps and `batch`
    /// sequences. It covers a chunk boundary if about `products` multiply-adds allow it, and has at
    /// least 3 steps and 2 sequences if the request has, or 8 sequences where a configuration
    /// allows tall tiles.
    ///
    /// # Errors
    /// None for any model: the input is made to fit.
    pub fn new(
        model: &Model,
        configurations: &[Configuration],
        (batch, steps): (usize, usize),
        products: usize,
    ) -> Result<Check, VerifyError> {
        let layers = configurations.iter().flat_map(|c| &c.layers);
        let chunk = layers.map(|layer| layer.chunk_steps).max().unwrap_or(1);
        let of_row = flops(model, 1, 1) / 2.0;
        let rows = (products as f64 / of_row.max(1.0)) as usize;
        let mut layers = configurations.iter().flat_map(|c| &c.layers);
        let are_tall = layers.any(|layer| {
            let mut directions = layer.directions.iter();
            directions.any(|direction| direction.blocking.tile_rows > 0)
        });
        let min_batch = if are_tall {
            TALL_TILE_ROWS.start() + 1
        } else {
            2
        };
        let (steps, batch) = checked(chunk, rows, min_batch, (batch, steps));
        let signature = model.signature();
        let mut random = fastrand::Rng::with_seed(2);
        let values: Vec<f32> = (0..steps * batch * signature.input)
            .map(|_| 2.0 * random.f32() - 1.0)
            .collect();
        let mut expected = vec![0.0; steps * batch * signature.output];
        let input = Input::new(&values, steps, batch);
        reference::run(model, &input, &mut Output::new(&mut expected))?;
        let found = vec![f32::NAN; expected.len()];
        Ok(Check {
            values,
            steps,
            batch,
            expected,
            found,
        })
    }

    /// Runs the session and compares every value, bit for bit (two NaNs are equal).
    ///
    /// # Errors
    /// [`VerifyError::Differs`], or what the session refuses.
    pub fn hold(&mut self, session: &mut Session) -> Result<(), VerifyError> {
        self.found.fill(f32::NAN);
        let input = Input::new(&self.values, self.steps, self.batch);
        session.run(&input, &mut Output::new(&mut self.found))?;
        compare(&self.found, &self.expected)
    }
}

/// Requires the same bits, or a NaN in both.
pub(super) fn compare(found: &[f32], expected: &[f32]) -> Result<(), VerifyError> {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if found.iter().zip(expected).all(same) {
        Ok(())
    } else {
        Err(VerifyError::Differs)
    }
}

/// The steps and sequences to check of a run of `steps` and `batch`, where the longest chunk is of
/// `chunk` steps and `rows` steps of one sequence may be taken, but at least 3 of `min_batch`.
fn checked(
    chunk: usize,
    rows: usize,
    min_batch: usize,
    (batch, steps): (usize, usize),
) -> (usize, usize) {
    const MIN_STEPS: usize = 3;
    // Over the boundary of a chunk, with a step whose state comes from beyond it.
    let steps = steps.min(chunk.saturating_add(2).max(MIN_STEPS));
    let batch = batch.min(CHECKED_ROWS);
    let batch = batch.min((rows / steps.clamp(1, MIN_STEPS)).max(min_batch));
    let steps = steps.min((rows / batch.max(1)).max(MIN_STEPS));
    (steps, batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Lstm;
    use crate::plan::Plan;

    #[test]
    fn checks_cross_a_chunk_where_the_cost_allows() {
        let rows = |products: usize| Check::THOROUGH / products;
        // Everything of a small run; over a chunk of a long one.
        assert_eq!(checked(10, rows(1000), 2, (1, 5)), (5, 1));
        assert_eq!(checked(10, rows(1000), 2, (64, 100)), (12, CHECKED_ROWS));
        assert_eq!(checked(1, rows(1000), 2, (64, 100)), (3, CHECKED_ROWS));
        // 80 rows of 2.5 million products: steps give way before sequences.
        assert_eq!(
            checked(10, rows(2_500_000), 2, (64, 100)),
            (5, CHECKED_ROWS)
        );
        // 10 rows: then sequences, to a floor of both.
        assert_eq!(checked(10, rows(20_000_000), 2, (64, 100)), (3, 3));
        assert_eq!(checked(10, rows(200_000_000), 2, (64, 100)), (3, 2));
        assert_eq!(checked(10, rows(200_000_000), 2, (1, 1)), (1, 1));
        assert_eq!(checked(10, rows(200_000_000), 8, (64, 100)), (3, 8));
        assert_eq!(checked(10, rows(200_000_000), 8, (4, 100)), (3, 4));
    }

    #[test]
    fn checks_fill_tiles_of_every_height() {
        for height in TALL_TILE_ROWS {
            let (_, batch) = checked(1, 1000, 2, (height, 100));
            assert_eq!(batch, height);
        }
        assert!(checked(1, 1000, 2, (64, 100)).1 > *TALL_TILE_ROWS.end());
    }

    #[test]
    fn two_nans_are_equal() {
        let payload = f32::from_bits(f32::NAN.to_bits() | 1);
        assert!(compare(&[1.0, payload], &[1.0, f32::NAN]).is_ok());
        assert!(compare(&[0.0], &[-0.0]).is_err() && compare(&[f32::NAN], &[0.0]).is_err());
    }

    #[test]
    fn a_session_of_another_model_does_not_pass() {
        let model = Lstm::new(5, 20).random(1).unwrap();
        let [same, other] = [1, 2].map(|seed| Lstm::new(5, 20).random(seed).unwrap());
        let plan = Plan::with_threads(&model, 3, 9, 2);
        let configuration = plan.entries[0].configuration.clone();
        let mut check = Check::new(&model, &[configuration], (3, 9), Check::THOROUGH).unwrap();
        let mut session = Session::new(&same, &plan).unwrap();
        check.hold(&mut session).unwrap();
        let mut session = Session::new(&other, &plan).unwrap();
        assert!(matches!(
            check.hold(&mut session),
            Err(VerifyError::Differs)
        ));
    }
}
