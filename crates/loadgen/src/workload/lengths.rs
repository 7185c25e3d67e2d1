//! Distributions of the lengths of requests.

use std::sync::Arc;

use fastrand::Rng;

/// Lengths of requests, in steps.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// The distribution of section 7.1 of Gao et al. (2018), for 100,000 sentences of WMT-15
    /// Europarl: mean 24, 99 % below 100, longest 330.
    ///
    /// A log-normal distribution, rounded up and truncated at the longest, has these properties.
    /// Both lengths of a pair have it; their logarithms are correlated like those of the WMT-22
    /// test sets.
    Paper {
        /// The longest; 330 in the paper, 50 in its figure 11.
        longest: usize,
    },
    /// One length.
    Fixed(usize),
    /// Rows of a file, all with the same probability: source and target. They are equal unless
    /// the workload has pairs.
    Rows(Arc<[(usize, usize)]>),
}

/// Parameters of the log-normal distribution: mean 24, 99th percentile 99.
const LOG_MEAN: f64 = 2.888;
const LOG_DEVIATION: f64 = 0.734;
/// Correlation of the logarithms of the lengths of a pair.
const CORRELATION: f64 = 0.95;
/// The paper's longest sentence.
pub(super) const LONGEST: usize = 330;

impl Lengths {
    /// The paper's distribution, truncated at `longest`.
    ///
    /// # Errors
    /// `longest` is not in 1..=330.
    pub fn paper(longest: usize) -> Result<Lengths, String> {
        if !(1..=LONGEST).contains(&longest) {
            return Err(format!(
                "paper:{longest} is not in 1..={LONGEST}, the paper's longest"
            ));
        }
        Ok(Lengths::Paper { longest })
    }

    /// Draws a length.
    pub fn draw(&self, random: &mut Rng) -> usize {
        self.draw_pair(random).0
    }

    /// Draws a source and a target length.
    pub fn draw_pair(&self, random: &mut Rng) -> (usize, usize) {
        match self {
            Lengths::Fixed(length) => (*length, *length),
            Lengths::Rows(rows) => rows[random.usize(..rows.len())],
            // A pair is rejected as a whole, which keeps the correlation.
            Lengths::Paper { longest } => loop {
                let (a, b) = two_normals(random);
                let b = CORRELATION * a + (1.0 - CORRELATION * CORRELATION).sqrt() * b;
                let [source, target] =
                    [a, b].map(|z| (LOG_MEAN + LOG_DEVIATION * z).exp().ceil() as usize);
                if source <= *longest && target <= *longest {
                    return (source.max(1), target.max(1));
                }
            },
        }
    }

    /// The largest length; for pairs, of sources.
    pub fn longest(&self) -> usize {
        match self {
            Lengths::Paper { longest } => *longest,
            Lengths::Fixed(length) => *length,
            Lengths::Rows(rows) => rows.iter().map(|row| row.0).max().unwrap_or(0),
        }
    }

    /// Whether all draws are equal.
    pub fn is_fixed(&self) -> bool {
        match self {
            Lengths::Paper { longest } => *longest == 1,
            Lengths::Fixed(_) => true,
            Lengths::Rows(rows) => rows.iter().all(|row| row == &rows[0]),
        }
    }
}

/// Two independent draws of the standard normal distribution (Box and Muller 1958).
fn two_normals(random: &mut Rng) -> (f64, f64) {
    // The argument of the logarithm is above 0.
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * random.f64()).sin_cos();
    (radius * cos, radius * sin)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn drawn(lengths: &Lengths) -> Vec<(usize, usize)> {
        let mut random = Rng::with_seed(24);
        (0..DRAWS).map(|_| lengths.draw_pair(&mut random)).collect()
    }

    #[test]
    fn paper_has_its_mean_percentile_and_longest() {
        let pairs = drawn(&Lengths::paper(330).unwrap());
        let (sources, targets): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
        for lengths in [sources, targets] {
            let mean = lengths.iter().sum::<usize>() as f64 / DRAWS as f64;
            // The standard deviation is 20: five of the mean's are 0.22.
            assert!((mean - 24.0).abs() < 0.22, "{mean}");
            let below = lengths.iter().filter(|&&l| l < 100).count() as f64 / DRAWS as f64;
            assert!((below - 0.99).abs() < 0.0012, "{below}");
            let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
            assert!(*least >= 1 && *most <= 330 && *most > 250, "{least} {most}");
        }
    }

    #[test]
    fn lengths_of_a_pair_are_correlated() {
        let logs: Vec<(f64, f64)> = (drawn(&Lengths::paper(330).unwrap()).iter())
            .map(|&(a, b)| ((a as f64).ln(), (b as f64).ln()))
            .collect();
        let mean =
            |of: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / DRAWS as f64;
        let (a, b) = (mean(&|p| p.0), mean(&|p| p.1));
        let covariance = mean(&|p| (p.0 - a) * (p.1 - b));
        let variances = mean(&|p| (p.0 - a).powi(2)) * mean(&|p| (p.1 - b).powi(2));
        let correlation = covariance / variances.sqrt();
        // Rounding up, and cutting off the longest, changes the mean slightly.
        assert!((correlation - 0.95).abs() < 0.01, "{correlation}");
    }

    #[test]
    fn the_longest_can_be_set() {
        let pairs = drawn(&Lengths::paper(50).unwrap());
        assert_eq!(pairs.iter().map(|p| p.0.max(p.1)).max(), Some(50));
        assert!(Lengths::paper(0).is_err() && Lengths::paper(331).is_err());
    }
}
