//! Choosing a precision for each layer: the fastest mix whose output stays as close to f32 as asked
//! for.
//!
//! ```text
//! for each layer, each precision below f32:  that layer alone in it, the others in f32
//!     its error over the sample; its time, in turns with f32
//!     a choice, if it is close enough and nowhere slower
//! the fastest mix of these choices that is close enough, as a whole                     (mixes.rs)
//! that mix, and each precision for all layers, if close enough, once more against f32
//!     the fastest of those that are nowhere slower; in doubt, f32
//! ```
//!
//! Layers of one shape take the same time: only the first of them is timed. The error has no noise:
//! answers are exact in every precision, so one run over the sample tells it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::time::Instant;

use super::TuneError;
use super::against_f32::{AgainstF32, Judge, Laps};
use super::mixes::{Choice, fastest};
use super::precision_options::PrecisionOptions;
use crate::model::{CellKind, Layer, Matrix, Model, Precision};

/// Precisions of the layers, first to last, and what they do.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// One for each layer.
    pub precisions: Vec<Precision>,
    /// The most that any value of the output over the sample differs from that in f32.
    pub error: f64,
    /// Its time over that of f32, geometric mean over the sizes.
    pub time: f64,
}

/// A choice of precisions.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The model in them.
    pub model: Model,
    /// What was chosen.
    pub mix: Mix,
    /// The other last mixes, fastest first; f32 is always one of them or chosen.
    pub others: Vec<Mix>,
    /// Mixes whose error was measured.
    pub tried: usize,
}

/// How far a choice of precisions has come.
#[derive(Clone, Copy, Debug)]
pub struct PrecisionProgress {
    /// What is measured now.
    pub stage: &'static str,
    /// Part of the time that is used up, from 0 to 1.
    pub fraction: f64,
}

/// Chooses the precision of each layer: the fastest mix whose output over the sample stays within
/// `most_error` of that in f32. All layers stay in f32 unless the mix is 3 % faster and at none of
/// the sizes slower, a single one where a lower precision saves less than 1 % of the model's time.
/// Times are those of estimated plans, so a choice may differ from one run to the next where two
/// are about equally fast.
///
/// Weights that are in a lower precision already stay so where that precision is chosen. In f32
/// they are the values that these numbers stand for.
///
/// # Errors
/// [`TuneError::NoSize`]; [`TuneError::NoSample`]; [`TuneError::Sample`] for one that does not fit;
/// [`TuneError::MostError`]; [`TuneError::NotComparable`];
/// [`TuneError::BrokenOff`] by `progress`; a session that cannot be made, or gives a wrong answer.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use gatestream::Input;
/// use gatestream::model::Lstm;
/// use gatestream::tune::{PrecisionOptions, choose_precisions};
///
/// let model = Lstm::new(8, 64).layers(2).random(1)?;
/// let values = vec![0.5; 20 * 8];
/// let sample = Input::new(&values, 20, 1);
/// let time = Duration::from_millis(50);
/// let options = PrecisionOptions::new(sample, 0.001, vec![(1, 20)], 1, time);
/// let chosen = choose_precisions(&model, &options, |_| ControlFlow::Continue(()))?;
/// assert_eq!(chosen.mix.precisions.len(), 2);
/// assert!(chosen.mix.error <= 0.001);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn choose_precisions(
    model: &Model,
    options: &PrecisionOptions<'_>,
    mut progress: impl FnMut(&PrecisionProgress) -> ControlFlow<()> + Send,
) -> Result<Chosen, TuneError> {
    // On a thread of its own: the thread that takes part in the runs is pinned to a core.
    std::thread::scope(|scope| {
        let choosing = scope.spawn(|| {
            let mut judge = AgainstF32::new(model, options)?;
            let shapes: Vec<Shape> = model.layers().iter().map(shape).collect();
            let (mix, others) = choose(&shapes, options, &mut judge, &mut progress)?;
            Ok(Chosen {
                model: model.in_precisions(&mix.precisions)?,
                mix,
                others,
                tried: judge.tried(),
            })
        });
        choosing.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

const REDUCED: [Precision; 2] = [Precision::Bf16, Precision::Int8];
/// Time over that of f32 that a choice may take at any size: a difference within the noise.
const NOWHERE_SLOWER: f64 = 1.01;
/// Part of the model's time that a layer in a lower precision must save: less is within the noise.
const MIN_SAVINGS: f64 = 0.01;
/// Speed over f32 that a mix needs to replace it.
const MIN_SPEEDUP: f64 = 1.03;
/// Laps in turns with f32, and those of the last mixes.
const ROUNDS: usize = 5;
const FINAL_ROUNDS: usize = 15;
/// The part of the time that is used up when single layers have been timed, and when the search for
/// mixes ends.
const SINGLE: f64 = 0.4;
const SEARCHED: f64 = 0.7;

/// What a layer's time depends on.
type Shape = (CellKind, Vec<[usize; 4]>);

fn shape(layer: &Layer) -> Shape {
    let directions = layer.directions().iter();
    let sizes = directions.map(|direction| {
        let weights = direction.weights();
        let (u, projection) = (&weights.recurrent, weights.projection.as_ref());
        let projected = projection.map_or(0, Matrix::rows);
        [weights.input.cols(), u.rows(), u.cols(), projected]
    });
    (layer.kind(), sizes.collect())
}

/// The choice, and the other last mixes.
fn choose(
    shapes: &[Shape],
    options: &PrecisionOptions<'_>,
    judge: &mut dyn Judge,
    progress: &mut dyn FnMut(&PrecisionProgress) -> ControlFlow<()>,
) -> Result<(Mix, Vec<Mix>), TuneError> {
    let start = Instant::now();
    let budget = options.budget;
    let mut told = |stage| {
        let fraction = start.elapsed().as_secs_f64() / budget.as_secs_f64().max(1e-9);
        let fraction = fraction.min(1.0);
        match progress(&PrecisionProgress { stage, fraction }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(TuneError::BrokenOff),
        }
    };
    let is_close = |error: f64| error <= options.most_error;

    let mut timed: HashMap<(&Shape, Precision), Vec<f64>> = HashMap::new();
    let mut choices = vec![Vec::new(); shapes.len()];
    for (layer, shape) in shapes.iter().enumerate() {
        for precision in REDUCED {
            told("single layers")?;
            let mut alone = vec![Precision::F32; shapes.len()];
            alone[layer] = precision;
            if !is_close(judge.error(&alone)?) {
                continue;
            }
            let times = match timed.entry((shape, precision)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let laps = Laps {
                        rounds: ROUNDS,
                        time: budget.mul_f64(SINGLE / (2 * shapes.len()) as f64),
                        is_verified: false,
                    };
                    unknown.insert(judge.times(&alone, laps)?)
                }
            };
            let saves = 1.0 - mean(times);
            if saves > MIN_SAVINGS && is_nowhere_slower(times) {
                choices[layer].push(Choice { precision, saves });
            }
        }
    }

    let mut is_close_mix = |mix: &[Precision]| {
        told("mixes")?;
        Ok::<bool, TuneError>(is_close(judge.error(mix)?))
    };
    let mut is_over = || start.elapsed() >= budget.mul_f64(SEARCHED);
    let mut found = vec![fastest(&choices, &mut is_close_mix, &mut is_over)?];
    let exact = vec![Precision::F32; shapes.len()];
    for precision in REDUCED {
        let uniform = vec![precision; shapes.len()];
        if !found.contains(&uniform) && is_close(judge.error(&uniform)?) {
            found.push(uniform);
        }
    }
    found.retain(|mix| *mix != exact);

    let mut best = Mix {
        precisions: exact,
        error: 0.0,
        time: 1.0,
    };
    let mut others = Vec::with_capacity(found.len());
    let time = budget.mul_f64((1.0 - SEARCHED) / found.len().max(1) as f64);
    for precisions in found {
        told("last races")?;
        let laps = Laps {
            rounds: FINAL_ROUNDS,
            time,
            is_verified: true,
        };
        let times = judge.times(&precisions, laps)?;
        let mix = Mix {
            error: judge.error(&precisions)?,
            time: mean(&times),
            precisions,
        };
        let is_better = mix.time < best.time && mix.time * MIN_SPEEDUP < 1.0;
        others.push(if is_better && is_nowhere_slower(&times) {
            std::mem::replace(&mut best, mix)
        } else {
            mix
        });
    }
    others.sort_by(|a, b| a.time.total_cmp(&b.time));
    Ok((best, others))
}

fn is_nowhere_slower(times: &[f64]) -> bool {
    times.iter().all(|&time| time <= NOWHERE_SLOWER)
}

/// Geometric.
fn mean(times: &[f64]) -> f64 {
    let logarithms: f64 = times.iter().map(|time| time.ln()).sum();
    (logarithms / times.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Input;
    use crate::model::{Cell, Direction, Weights};

    /// Layers whose errors add up, and whose times do.
    struct Simulated {
        /// Of each layer in bf16 and in int8.
        errors: Vec<[f64; 2]>,
        /// Of each size what a layer in bf16 and in int8 saves of the time in f32; negative is a
        /// loss.
        saves: Vec<Vec<[f64; 2]>>,
        timed: usize,
    }

    fn sum(layers: &[[f64; 2]], mix: &[Precision]) -> f64 {
        let pairs = layers.iter().zip(mix);
        let of_layer = pairs.map(|(layer, precision)| {
            let at = REDUCED.iter().position(|reduced| reduced == precision);
            at.map_or(0.0, |at| layer[at])
        });
        of_layer.sum()
    }

    impl Judge for Simulated {
        fn error(&mut self, mix: &[Precision]) -> Result<f64, TuneError> {
            Ok(sum(&self.errors, mix))
        }

        fn times(&mut self, mix: &[Precision], laps: Laps) -> Result<Vec<f64>, TuneError> {
            self.timed += 1;
            // A mix that may be chosen was compared with the reference.
            assert_eq!(laps.is_verified, laps.rounds == FINAL_ROUNDS);
            Ok((self.saves.iter().map(|size| 1.0 - sum(size, mix))).collect())
        }
    }

    fn options(most_error: f64) -> PrecisionOptions<'static> {
        let (sample, time) = (Input::new(&[], 0, 0), Duration::from_secs(1 << 20));
        PrecisionOptions::new(sample, most_error, Vec::new(), 1, time)
    }

    fn chosen(most: f64, simulated: &mut Simulated, shapes: &[Shape]) -> (Mix, Vec<Mix>) {
        let mut go_on = |_: &PrecisionProgress| ControlFlow::Continue(());
        choose(shapes, &options(most), simulated, &mut go_on).unwrap()
    }

    fn different(layers: usize) -> Vec<Shape> {
        (0..layers)
            .map(|at| (CellKind::Lstm, vec![[at, 8, 8, 0]]))
            .collect()
    }

    #[test]
    fn the_fastest_of_all_mixes_that_are_close_is_chosen() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            let layers = random.usize(1..=4);
            let mut pairs = |least: f64, most: f64| -> Vec<[f64; 2]> {
                let mut one = || least + (most - least) * random.f64();
                (0..layers).map(|_| [one(), one()]).collect()
            };
            let (errors, saves, most) = (pairs(0.0, 1.0), pairs(0.04, 0.2), pairs(0.0, 2.0)[0][0]);
            let mut simulated = Simulated {
                errors: errors.clone(),
                saves: vec![saves.clone()],
                timed: 0,
            };
            let (mix, others) = chosen(most, &mut simulated, &different(layers));
            // By counting in threes.
            let all = (0..3usize.pow(layers as u32)).map(|number| -> Vec<Precision> {
                let digit = |at: usize| number / 3usize.pow(at as u32) % 3;
                (0..layers).map(|at| Precision::ALL[digit(at)]).collect()
            });
            let close = all.filter(|mix| sum(&errors, mix) <= most);
            let best = close.map(|mix| 1.0 - sum(&saves, &mix)).fold(1.0, f64::min);
            assert!((mix.time - best).abs() < 1e-9, "{mix:?} {best}");
            assert!((mix.error - sum(&errors, &mix.precisions)).abs() < 1e-12);
            let is_exact = |mix: &Mix| mix.precisions.iter().all(|&p| p == Precision::F32);
            assert!(is_exact(&mix) || others.iter().any(is_exact));
            for other in &others {
                assert!(other.time >= mix.time && other.error <= most, "{other:?}");
            }
        }
    }

    #[test]
    fn what_is_slower_at_one_size_or_hardly_faster_is_not_chosen() {
        let choice = |saves: &[f64]| {
            let saves = saves.iter().map(|&saves| vec![[saves, saves - 0.1]]);
            let mut simulated = Simulated {
                errors: vec![[0.1, 0.1]],
                saves: saves.collect(),
                timed: 0,
            };
            let (mix, _) = chosen(1.0, &mut simulated, &different(1));
            mix.precisions[0]
        };
        assert_eq!(choice(&[0.5]), Precision::Bf16);
        assert_eq!(choice(&[0.5, 0.0]), Precision::Bf16);
        assert_eq!(choice(&[0.5, -0.02]), Precision::F32);
        assert_eq!(choice(&[0.02]), Precision::F32);
        assert_eq!(choice(&[0.04]), Precision::Bf16);
        assert_eq!(choice(&[-0.5]), Precision::F32);
    }

    #[test]
    fn a_projection_makes_another_shape() {
        let zeros = |rows, cols| Matrix::new(rows, cols, vec![0.0; rows * cols]).unwrap();
        let layer = |projected: Option<usize>| {
            let weights = Weights {
                input: zeros(64, 8),
                recurrent: zeros(64, projected.unwrap_or(16)),
                input_bias: vec![0.0; 64],
                recurrent_bias: vec![0.0; 64],
                peepholes: None,
                projection: projected.map(|rows| zeros(rows, 16)),
            };
            shape(&Layer::single(Direction::new(Cell::LSTM, weights).unwrap()))
        };
        assert_ne!(layer(None), layer(Some(4)));
        assert_ne!(layer(None), layer(Some(16)));
        assert_eq!(layer(Some(4)), layer(Some(4)));
    }

    #[test]
    fn layers_of_one_shape_are_timed_once() {
        let shapes = vec![(CellKind::Gru, vec![[8, 8, 8, 0]]); 6];
        let mut simulated = Simulated {
            errors: vec![[0.1, 0.1]; 6],
            saves: vec![vec![[0.05, 0.1]; 6]],
            timed: 0,
        };
        let (mix, _) = chosen(1.0, &mut simulated, &shapes);
        assert_eq!(mix.precisions, [Precision::Int8; 6]);
        // Of the single layers two, of the last two.
        assert_eq!(simulated.timed, 4);
    }

    #[test]
    fn whoever_is_told_may_break_off() {
        for after in 0..4 {
            let mut simulated = Simulated {
                errors: vec![[0.1, 0.1]],
                saves: vec![vec![[0.05, 0.1]]],
                timed: 0,
            };
            let mut told = 0;
            let mut progress = |progress: &PrecisionProgress| {
                assert!((0.0..=1.0).contains(&progress.fraction));
                told += 1;
                if told > after {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let found = choose(&different(1), &options(1.0), &mut simulated, &mut progress);
            assert!(matches!(found, Err(TuneError::BrokenOff)), "{found:?}");
        }
    }
}
