//! Steps of gathered rows are those of the same rows in one buffer, to the last bit.

use super::{RunError, Session, Steps};
use crate::model::{Gru, InputError, Lstm, Model, Precision};
use crate::plan::Plan;
use gatestream_kernels::{RowsMut, RowsRef};

const INPUT: usize = 9;

/// Everything that some steps give: the output and all states. Where `gathered`, each row of them
/// is a buffer of its own, longer than the row.
fn run(
    session: &mut Session,
    lengths: Option<&[usize]>,
    batch: usize,
    x: RowsRef<'_>,
    gathered: bool,
) -> Result<Vec<u32>, RunError> {
    let steps = lengths.map_or(1, |lengths| lengths.iter().copied().max().unwrap_or(0));
    let of = match lengths {
        Some(lengths) => Steps::several(lengths, x),
        None => Steps::one(batch, x),
    };
    let hidden = session.signature().output;
    let stride = if gathered { hidden + 3 } else { hidden };
    let mut states = vec![vec![0.25; batch * stride]; session.state_sizes().count()];
    let mut y = vec![0.0; steps * batch * stride];
    if gathered {
        let lists = states
            .iter_mut()
            .map(|state| state.chunks_mut(stride).collect());
        let mut lists: Vec<Vec<&mut [f32]>> = lists.collect();
        let mut y = y.chunks_mut(stride).collect::<Vec<_>>();
        let states = lists.iter_mut().map(|list| RowsMut::gathered(list));
        session.step_rows(of, states, Some(RowsMut::gathered(&mut y)))?;
    } else {
        let states = states
            .iter_mut()
            .map(|state| RowsMut::contiguous(state, stride));
        session.step_rows(of, states, Some(RowsMut::contiguous(&mut y, stride)))?;
    }
    states.push(y);
    let rows = states.iter().flat_map(|of| of.chunks(stride));
    Ok(rows
        .flat_map(|row| row[..hidden].iter().map(|value| value.to_bits()))
        .collect())
}

fn models() -> [Model; 3] {
    [
        Lstm::new(INPUT, 40).layers(2).random(1).unwrap(),
        // Whole groups of units, whose cell states are computed where the caller keeps them.
        Lstm::new(INPUT, 48).random(2).unwrap(),
        Gru::new(INPUT, 40).random(1).unwrap(),
    ]
}

#[test]
fn rows_wherever_they_lie_give_the_same_bits() {
    let mut rng = fastrand::Rng::with_seed(3);
    for model in models() {
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
                let mut contiguous = rows.concat();
                let end = contiguous.len() - INPUT;
                contiguous.copy_within(..INPUT, end);
                // Rows may be longer than is read of them, and more.
                rows.push(vec![f32::NAN]);
                rows.iter_mut().for_each(|row| row.push(f32::NAN));
                let mut longer: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                // Two gathered rows may be the same one.
                longer[longest * 21 - 1] = longer[0];
                let exact = longer[..longest * 21].iter().map(|row| &row[..INPUT]);
                let exact: Vec<&[f32]> = exact.collect();
                let all = [
                    RowsRef::contiguous(&contiguous, INPUT),
                    RowsRef::gathered(&exact),
                    RowsRef::gathered(&longer),
                ];
                let [contiguous, gathered] = [false, true]
                    .map(|writes| all.map(|x| run(&mut session, lengths, 21, x, writes).unwrap()));
                let case = format!("{precision:?}, {threads} threads, {steps} steps");
                assert!(contiguous[0] == contiguous[1], "input: {case}");
                assert!(contiguous[0] == contiguous[2], "longer input: {case}");
                assert!(contiguous == gathered, "states: {case}");
            }
        }
    }
}

#[test]
fn rows_that_are_too_few_or_too_short_are_refused() {
    for model in models() {
        let mut session = Session::new(&model, &Plan::estimate(&model, 3, 2, 1)).unwrap();
        let (whole, short) = ([0.5; INPUT], [0.5; INPUT - 1]);
        let lengths = [2, 1, 0];
        let lists: [&[&[f32]]; 3] = [
            &[&whole, &whole],
            &[&whole[..]; 3],
            &[&whole, &short, &whole],
        ];
        let cases = [
            (None, 3 * INPUT, 2 * INPUT),
            (Some(&lengths[..]), 6 * INPUT, 3 * INPUT),
            (None, 3 * INPUT, 3 * INPUT - 1),
        ];
        for (rows, (lengths, expected, found)) in lists.into_iter().zip(cases) {
            let refused = run(&mut session, lengths, 3, RowsRef::gathered(rows), false);
            let error = InputError::Values {
                name: "input",
                expected,
                found,
            };
            assert_eq!(refused, Err(RunError::Input(error)));
        }
    }
}

/// A list of states that panics takes the session's list with it.
#[test]
fn a_session_serves_after_a_panic_of_its_caller() {
    let model = &models()[0];
    let mut session = Session::new(model, &Plan::estimate(model, 1, 1, 1)).unwrap();
    let x = RowsRef::contiguous(&[0.5; INPUT], INPUT);
    let states = std::iter::from_fn(|| -> Option<RowsMut<'_>> { panic!("no states") });
    let call = std::panic::AssertUnwindSafe(|| session.step_rows(Steps::one(1, x), states, None));
    assert!(std::panic::catch_unwind(call).is_err());
    run(&mut session, None, 1, x, false).unwrap();
}
