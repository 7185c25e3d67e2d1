//! From symbols to features: a row of a table each.

use super::LayerError;
use super::error::expect;
use crate::model::Matrix;
use gatestream_kernels::Values;

/// A table of `[symbols, features]` (PyTorch `torch.nn.Embedding`, tensor `weight`).
///
/// ```
/// use gatestream::layers::Embedding;
/// use gatestream::model::Matrix;
///
/// let embedding = Embedding::new(Matrix::new(3, 2, vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1])?);
/// let mut features = [0.0; 4];
/// embedding.run(&[2, 0], &mut features)?;
/// assert_eq!(features, [2.0, 2.1, 0.0, 0.1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    symbols: usize,
    features: usize,
    /// `[symbols, features]`.
    table: Values,
}

impl Embedding {
    /// Looks symbols up in `table`, a row per symbol.
    pub fn new(table: Matrix) -> Embedding {
        Embedding {
            symbols: table.rows(),
            features: table.cols(),
            table: table.into_values(),
        }
    }

    /// Number of symbols: they are `0..symbols()`.
    pub fn symbols(&self) -> usize {
        self.symbols
    }

    /// Features of each symbol.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The table, `[symbols, features]`.
    pub fn table(&self) -> &[f32] {
        &self.table
    }

    /// The features of one symbol.
    ///
    /// # Errors
    /// [`LayerError::Symbol`] for a symbol that the table has no row for.
    pub fn row(&self, symbol: usize) -> Result<&[f32], LayerError> {
        if symbol >= self.symbols() {
            return Err(LayerError::Symbol {
                symbol,
                symbols: self.symbols(),
            });
        }
        Ok(self.features_of(symbol))
    }

    fn features_of(&self, symbol: usize) -> &[f32] {
        &self.table[symbol * self.features..][..self.features]
    }

    /// Writes the features of `symbols`, `[symbols.len(), features]`, to `output`.
    ///
    /// Any order of symbols is kept, so time-major symbols give time-major features. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`LayerError::Symbol`], or [`LayerError::Values`] for an output of another size; nothing has
    /// been written then.
    pub fn run(&self, symbols: &[usize], output: &mut [f32]) -> Result<(), LayerError> {
        let features = self.features();
        expect(
            "output",
            output.len(),
            symbols.len().saturating_mul(features),
        )?;
        for &symbol in symbols {
            self.row(symbol)?;
        }
        for (at, &symbol) in symbols.iter().enumerate() {
            output[at * features..][..features].copy_from_slice(self.features_of(symbol));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Embedding {
        let values = (0..12).map(|v| v as f32).collect();
        Embedding::new(Matrix::new(4, 3, values).unwrap())
    }

    #[test]
    fn rows_stand_in_the_order_of_the_symbols() {
        let mut output = [f32::NAN; 9];
        table().run(&[3, 0, 3], &mut output).unwrap();
        assert_eq!(output, [9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 9.0, 10.0, 11.0]);
        table().run(&[], &mut []).unwrap();
    }

    #[test]
    fn symbols_out_of_range() {
        let mut output = [7.0; 6];
        let error = table().run(&[1, 4], &mut output).unwrap_err();
        let expected = LayerError::Symbol {
            symbol: 4,
            symbols: 4,
        };
        assert_eq!(error, expected);
        assert_eq!(
            table()
                .row(usize::MAX)
                .unwrap_err()
                .to_string()
                .lines()
                .count(),
            1
        );
        assert_eq!(output, [7.0; 6]);
    }

    #[test]
    fn an_output_of_another_size_is_refused() {
        let error = table().run(&[1, 2], &mut [0.0; 5]).unwrap_err();
        let expected = LayerError::Values {
            name: "output",
            expected: 6,
            found: 5,
        };
        assert_eq!(error, expected);
    }
}
