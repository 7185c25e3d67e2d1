//! Symbolic sizes of axes, some of which are known only when the model runs.

/// The product of a known factor and of sizes that depend on the graph's inputs, for example
/// `8 · batch`. Equal products are equal sizes for every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    factor: i64,
    /// Sorted; a power has one entry for each factor.
    symbols: Vec<u32>,
}

/// The largest number of symbols in a product. The value of a longer product is not tracked.
const MAX_SYMBOLS: usize = 16;

impl Extent {
    /// A known size.
    pub(super) fn known(size: i64) -> Extent {
        Extent {
            factor: size,
            symbols: Vec::new(),
        }
    }

    /// A size that depends on an input.
    pub(super) fn symbol(id: u32) -> Extent {
        Extent {
            factor: 1,
            symbols: vec![id],
        }
    }

    /// The size, if it is known.
    pub(super) fn as_known(&self) -> Option<i64> {
        self.symbols.is_empty().then_some(self.factor)
    }

    /// Whether it is known to be `size`.
    pub(super) fn is(&self, size: usize) -> bool {
        self.as_known()
            .is_some_and(|n| i64::try_from(size) == Ok(n))
    }

    /// Whether it is known to differ from `size`.
    pub(super) fn contradicts(&self, size: usize) -> bool {
        self.as_known().is_some() && !self.is(size)
    }

    /// The product, unless it overflows.
    pub(super) fn times(&self, other: &Extent) -> Option<Extent> {
        let factor = self.factor.checked_mul(other.factor)?;
        if self.symbols.len() + other.symbols.len() > MAX_SYMBOLS {
            return None;
        }
        let mut symbols = [self.symbols.as_slice(), &other.symbols].concat();
        symbols.sort_unstable();
        Some(Extent { factor, symbols })
    }

    /// The product of several sizes, unless it overflows.
    pub(super) fn product<'a>(of: impl IntoIterator<Item = &'a Extent>) -> Option<Extent> {
        of.into_iter()
            .try_fold(Extent::known(1), |product, e| product.times(e))
    }
}
