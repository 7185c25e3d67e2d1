//! Steps of inputs that lie apart are those of the same rows side by side, to the last bit.

use super::{InputValues, RunError, Session};
use crate::model::{Gru, InputError, Lstm, Model, Precision};
use crate::plan::Plan;

const INPUT: usize = 9;
const HIDDEN: usize = 40;

/// Everything that some steps give: the output and all states.
fn run(
    session: &mut Session,
    of: (usize, Option<&[usize]>),
    x: InputValues<'_>,
    sizes: usize,
) -> Result<Vec<u32>, RunError> {
    let (batch, lengths) = of;
    let steps = lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0));
    let mut states = vec![vec![0.25; batch * HIDDEN]; sizes];
    let mut y = vec![0.0; steps * batch * HIDDEN];
    session.steps_of(of, x, &mut states, Some(&mut y))?;
    states.push(y);
    Ok(states
        .concat()
        .iter()
        .map(|value| value.to_bits())
        .collect())
}

fn models() -> [(Model, usize); 2] {
    [
        (Lstm::new(INPUT, HIDDEN).layers(2).random(1).unwrap(), 4),
        (Gru::new(INPUT, HIDDEN).random(1).unwrap(), 1),
    ]
}

#[test]
fn rows_wherever_they_lie_give_the_same_bits() {
    let mut rng = fastrand::Rng::with_seed(3);
    for (model, states) in models() {
        for precision in Precision::ALL {
            let model = model.clone().into_precision(precision).unwrap();
            for (threads, steps) in [(1, 1), (2, 1), (1, 3), (3, 3)] {
                let lengths: Vec<usize> = (0..21).map(|_| rng.usize(0..=steps)).collect();
                let lengths = (steps > 1).then_some(&lengths[..]);
                let longest = lengths.map_or(1, |l| l.iter().copied().max().unwrap_or(0));
                let plan = Plan::with_threads(&model, 21, steps, threads);
                let mut session = Session::new(&model, &plan).unwrap();
                let mut rows: Vec<Vec<f32>> = (0..longest * 21)
                    .map(|_| (0..INPUT).map(|_| 2.0 * rng.f32() - 1.0).collect())
                    .collect();
                rows[0].fill(0.0);
                let side_by_side = rows.concat();
                // What lies apart may be the same row twice.
                let mut apart: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                if let [first, .., last] = &mut apart[..] {
                    *last = first;
                }
                let mut together = side_by_side.clone();
                let end = together.len() - INPUT;
                together.copy_within(..INPUT, end);
                let [apart, together] =
                    [InputValues::Apart(&apart), InputValues::Together(&together)]
                        .map(|x| run(&mut session, (21, lengths), x, states).unwrap());
                assert!(
                    apart == together,
                    "{precision:?}, {threads} threads, {steps} steps"
                );
            }
        }
    }
}

#[test]
fn rows_that_are_not_as_many_or_as_long_are_refused() {
    for (model, states) in models() {
        let mut session = Session::new(&model, &Plan::estimate(&model, 3, 2, 1)).unwrap();
        let (whole, short, long) = ([0.5; INPUT], [0.5; INPUT - 1], [0.5; INPUT + 1]);
        let lengths = [2, 1, 0];
        let lists: [&[&[f32]]; 5] = [
            &[&whole, &whole],
            &[&whole[..]; 3],
            &[&whole[..]; 7],
            &[&whole, &short, &whole],
            &[&long, &short, &whole],
        ];
        let cases = [
            (None, "input", 3 * INPUT, 2 * INPUT),
            (Some(&lengths[..]), "input", 6 * INPUT, 3 * INPUT),
            (Some(&lengths), "input", 6 * INPUT, 7 * INPUT),
            (None, "a row of the input", INPUT, INPUT - 1),
            (None, "a row of the input", INPUT, INPUT + 1),
        ];
        for (rows, (lengths, name, expected, found)) in lists.into_iter().zip(cases) {
            let refused = run(&mut session, (3, lengths), InputValues::Apart(rows), states);
            let error = InputError::Values {
                name,
                expected,
                found,
            };
            assert_eq!(refused, Err(RunError::Input(error)));
        }
    }
}
