//! The greatest output of a dense layer: all outputs computed, or screened in int8 first.

use std::sync::Arc;

use super::dense_argmax::ArgmaxScratch;
use super::screened::Screened;
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;
use crate::machine::CacheModel;
use crate::model::Matrix;
use gatestream_kernels::Isa;

/// A dense layer that gives only the index of its greatest output, with scratch for a number of
/// rows on one team.
///
/// Weights of f32 that exceed the workers' private caches are read in int8 first, a quarter of the
/// bytes. Error bounds of int8 leave a few outputs that can be the greatest. Only these are
/// computed in f32, from the rows of `weights`. The symbols equal those of [`Dense::argmax_on`] for
/// any weights (speed: `benches/argmax.rs`). For rows whose outputs differ by less than the bounds,
/// such as those of a layer of zeros, all outputs are computed as well.
///
/// ```
/// use std::sync::Arc;
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::Argmax;
/// use gatestream::model::Matrix;
///
/// let team = SharedTeam::new(Team::with_threads(2)?);
/// let weights = Arc::new(Matrix::new(3, 1, vec![1.0, 2.0, -1.0])?);
/// let mut argmax = Argmax::new(&weights, &[0.0; 3], Isa::select()?, &team, 8)?;
/// let mut symbols = [0.0; 2];
/// argmax.run(&[10.0, -10.0], &mut symbols)?;
/// assert_eq!(symbols, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Argmax {
    team: SharedTeam,
    way: Way,
}

enum Way {
    Whole {
        dense: Dense,
        scratch: ArgmaxScratch,
    },
    Screened(Box<Screened>),
}

impl Argmax {
    /// Packs `weights` `[outputs, inputs]` and `bias` `[outputs]`, for up to `rows` rows. If they
    /// are read in int8 first, it also keeps the weights themselves: 9 bytes for each in all.
    ///
    /// # Errors
    /// As [`Dense::on_team`].
    pub fn new(
        weights: &Arc<Matrix>,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
        rows: usize,
    ) -> Result<Argmax, LayerError> {
        let screened = if Screened::pays(weights, team.threads(), CacheModel::here()) {
            Screened::new(weights, bias, isa, team, rows)?
        } else {
            None
        };
        let way = match screened {
            Some(screened) => Way::Screened(Box::new(screened)),
            None => {
                let dense = Dense::on_team(weights, bias, isa, team)?;
                let scratch = ArgmaxScratch::new(&dense, rows, team.threads());
                Way::Whole { dense, scratch }
            }
        };
        let team = team.clone();
        Ok(Argmax { team, way })
    }

    /// Features of an input row.
    pub fn inputs(&self) -> usize {
        match &self.way {
            Way::Whole { dense, .. } => dense.inputs(),
            Way::Screened(screened) => screened.inputs(),
        }
    }

    /// Whether weights are read in int8 first.
    #[cfg(test)]
    pub(super) fn is_screened(&self) -> bool {
        matches!(self.way, Way::Screened(_))
    }

    /// Bytes of packed weights: where they are read in int8 first, that is of both.
    pub fn weight_bytes(&self) -> usize {
        match &self.way {
            Way::Whole { dense, .. } => dense.weight_bytes(),
            Way::Screened(screened) => screened.weight_bytes(),
        }
    }

    /// Writes the index of the greatest output of each row of `x` `[rows, inputs]` to `symbols`
    /// `[rows]`: the lowest of equal ones, NaN if an output of the row is NaN. Allocates nothing.
    ///
    /// # Errors
    /// As [`Dense::argmax_on`].
    pub fn run(&mut self, x: &[f32], symbols: &mut [f32]) -> Result<(), LayerError> {
        match &mut self.way {
            Way::Whole { dense, scratch } => dense.argmax_on(&self.team, x, scratch, symbols),
            Way::Screened(screened) => screened.argmax_on(&self.team, x, symbols),
        }
    }
}
