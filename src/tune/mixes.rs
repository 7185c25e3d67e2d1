//! Mixes of precisions, one for each layer, in the order in which they are tried: fastest first.
//!
//! ```text
//! time of a mix = the time in f32, less the savings of each of its layers alone
//! few mixes:  all of them, fastest first; the first that is close enough to f32
//! else:       layer after layer, greatest savings first: its fastest precision that keeps the mix
//!             close
//! ```
//!
//! Whether a mix is close is asked of the whole mix: errors of layers add up, cancel, or are
//! amplified by the layers after them.

use crate::model::Precision;

/// A precision below f32 that a layer may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub precision: Precision,
    /// Savings of this layer alone, as a part of the model's time in f32.
    pub saves: f64,
}

/// So many mixes are all looked at: three precisions of five layers.
const FEW: usize = 243;

/// The fastest mix that `is_close` finds no fault with; without a choice f32 stays, which is close
/// by definition. Once `is_over` says so, no more than twice as many mixes are asked for as there
/// are layers.
pub(super) fn fastest<E>(
    layers: &[Vec<Choice>],
    is_close: &mut dyn FnMut(&[Precision]) -> Result<bool, E>,
    is_over: &mut dyn FnMut() -> bool,
) -> Result<Vec<Precision>, E> {
    let mut layers = layers.to_vec();
    for choices in &mut layers {
        choices.sort_by(|a, b| b.saves.total_cmp(&a.saves));
    }
    let mixes = layers.iter().try_fold(1usize, |mixes, choices| {
        let mixes = mixes.checked_mul(1 + choices.len())?;
        (mixes <= FEW).then_some(mixes)
    });
    if mixes.is_some() {
        for (mix, _) in all(&layers) {
            if mix.iter().all(|&p| p == Precision::F32) || is_close(&mix)? {
                return Ok(mix);
            }
            if is_over() {
                break;
            }
        }
    }
    layer_after_layer(&layers, is_close)
}

/// All mixes with what they save, fastest first.
fn all(layers: &[Vec<Choice>]) -> Vec<(Vec<Precision>, f64)> {
    let mut mixes = vec![(Vec::new(), 0.0)];
    for choices in layers {
        let stay = Choice {
            precision: Precision::F32,
            saves: 0.0,
        };
        let longer = |(mix, saves): &(Vec<Precision>, f64)| {
            let (mix, saves) = (mix.clone(), *saves);
            let each = choices.iter().chain([&stay]).map(move |choice| {
                let mut mix = mix.clone();
                mix.push(choice.precision);
                (mix, saves + choice.saves)
            });
            each.collect::<Vec<_>>()
        };
        mixes = mixes.iter().flat_map(longer).collect();
    }
    mixes.sort_by(|a, b| b.1.total_cmp(&a.1));
    mixes
}

fn layer_after_layer<E>(
    layers: &[Vec<Choice>],
    is_close: &mut dyn FnMut(&[Precision]) -> Result<bool, E>,
) -> Result<Vec<Precision>, E> {
    let mut mix = vec![Precision::F32; layers.len()];
    let saves = |layer: usize| layers[layer].first().map_or(0.0, |choice| choice.saves);
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|&a, &b| saves(b).total_cmp(&saves(a)));
    for layer in order {
        for choice in &layers[layer] {
            mix[layer] = choice.precision;
            if is_close(&mix)? {
                break;
            }
            mix[layer] = Precision::F32;
        }
    }
    Ok(mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Of each layer: what bf16 and int8 save, and the errors they bring.
    type Layer = [(f64, f64); 2];
    const REDUCED: [Precision; 2] = [Precision::Bf16, Precision::Int8];

    fn choices(layers: &[Layer]) -> Vec<Vec<Choice>> {
        let each = |layer: &Layer| {
            let pairs = REDUCED.into_iter().zip(layer);
            let choices = pairs.map(|(precision, &(saves, _))| Choice { precision, saves });
            choices.collect()
        };
        layers.iter().map(each).collect()
    }

    fn sum(layers: &[Layer], mix: &[Precision], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
        let of_layer = |(layer, precision): (&Layer, &Precision)| {
            let at = REDUCED.iter().position(|p| p == precision);
            at.map_or(0.0, |at| of(&layer[at]))
        };
        layers.iter().zip(mix).map(of_layer).sum()
    }

    fn found(layers: &[Layer], most: f64, is_over: bool) -> (Vec<Precision>, usize) {
        let mut asked = 0;
        let mut is_close = |mix: &[Precision]| {
            asked += 1;
            Ok::<bool, Infallible>(sum(layers, mix, |layer| layer.1) <= most)
        };
        let Ok(mix) = fastest(&choices(layers), &mut is_close, &mut || is_over);
        (mix, asked)
    }

    /// Cases with so many layers, and the most error.
    fn cases(count: std::ops::RangeInclusive<usize>) -> Vec<(Vec<Layer>, f64)> {
        let mut random = fastrand::Rng::with_seed(1);
        let case = |_| {
            let mut one = || (0.01 + 0.2 * random.f64(), random.f64());
            let most_layers: Vec<Layer> = (0..*count.end()).map(|_| [one(), one()]).collect();
            let layers = most_layers[..random.usize(count.clone())].to_vec();
            let most = 0.6 * layers.len() as f64 * random.f64();
            (layers, most)
        };
        (0..200).map(case).collect()
    }

    #[test]
    fn of_few_mixes_none_that_is_close_is_faster() {
        for (layers, most) in cases(1..=5) {
            let (mix, _) = found(&layers, most, false);
            assert!(sum(&layers, &mix, |layer| layer.1) <= most);
            // By counting in threes, not by the search's own list.
            for number in 0..3usize.pow(layers.len() as u32) {
                let digit = |at: usize| number / 3usize.pow(at as u32) % 3;
                let other: Vec<_> = (0..layers.len())
                    .map(|at| Precision::ALL[digit(at)])
                    .collect();
                if sum(&layers, &other, |layer| layer.1) <= most {
                    let saves = [&mix, &other].map(|mix| sum(&layers, mix, |layer| layer.0));
                    assert!(saves[0] >= saves[1] - 1e-12, "{mix:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn of_many_no_layer_could_be_faster_alone() {
        for (layers, most) in cases(6..=12) {
            let (mix, asked) = found(&layers, most, false);
            assert!(asked <= 2 * layers.len());
            assert!(sum(&layers, &mix, |layer| layer.1) <= most);
            for layer in 0..layers.len() {
                for precision in REDUCED {
                    let mut other = mix.clone();
                    other[layer] = precision;
                    let saves = [&mix, &other].map(|mix| sum(&layers, mix, |layer| layer.0));
                    let is_close = sum(&layers, &other, |layer| layer.1) <= most;
                    assert!(saves[1] <= saves[0] + 1e-12 || !is_close);
                }
            }
        }
    }

    #[test]
    fn out_of_time_few_more_are_asked_for() {
        for (layers, most) in cases(1..=5) {
            let (mix, asked) = found(&layers, most, true);
            assert!(asked <= 1 + 2 * layers.len());
            assert!(sum(&layers, &mix, |layer| layer.1) <= most);
        }
    }

    #[test]
    fn a_layer_without_a_choice_stays() {
        let choices = [
            vec![],
            vec![Choice {
                precision: Precision::Bf16,
                saves: 0.1,
            }],
        ];
        let mut all = |_: &[Precision]| Ok::<bool, Infallible>(true);
        let Ok(mix) = fastest(&choices, &mut all, &mut || false);
        assert_eq!(mix, [Precision::F32, Precision::Bf16]);
        let Ok(mix) = fastest(&choices[..1], &mut all, &mut || false);
        assert_eq!(mix, [Precision::F32]);
    }
}
