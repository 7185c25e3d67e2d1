//! What a session accepts, refuses and keeps, besides the numbers.

mod common;

use common::{Batch, Random, Results};
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::execute::{PackError, PackedModel, RunError, Session, SessionError, State, Steps};
use gatestream::kernels::{RowsMut, RowsRef};
use gatestream::machine::Topology;
use gatestream::model::{Gru, Input, InputError, Layout, Lstm, Merge, Model, Output};
use gatestream::plan::{InputProjectionBy, OwnersShare, Plan, PlanError};
use gatestream::reference;
use gatestream::schedule::PhasePlacement;

fn lstm() -> Model {
    Lstm::new(3, 20).layers(2).random(1).unwrap()
}

fn session(model: &Model, batch: usize, steps: usize) -> Session {
    Session::new(model, &Plan::with_threads(model, batch, steps, 2)).unwrap()
}

#[test]
fn empty_batches_and_sequences_end_with_the_initial_states() {
    let model = lstm();
    let mut random = Random::new(1);
    let mut session = session(&model, 4, 4);
    for (batch, steps) in [(0, 0), (0, 4), (4, 0), (0, 100)] {
        let h0 = random.values(batch * 40);
        let c0 = random.values(batch * 40);
        let input = Input::new(&[], steps, batch).h0(&h0).c0(&c0);
        let (mut hn, mut cn) = (vec![9.0; batch * 40], vec![9.0; batch * 40]);
        let mut output = Output::new(&mut []).hn(&mut hn).cn(&mut cn);
        if steps > 4 {
            let refused = session.run(&input, &mut output).unwrap_err();
            assert!(matches!(refused, RunError::Capacity { .. }));
            continue;
        }
        session.run(&input, &mut output).unwrap();
        assert_eq!((hn, cn), (h0, c0), "{batch} sequences of {steps} steps");
    }
}

#[test]
fn buffers_of_layers_states_are_counted_and_measured() {
    let mut session = session(&lstm(), 3, 1);
    let (x, good) = ([0.5; 3 * 3], [60, 60, 60, 60]);
    let mut run = |lengths: &[usize]| {
        let mut states: Vec<_> = lengths.iter().map(|&length| vec![0.0; length]).collect();
        let states = states
            .iter_mut()
            .map(|state| RowsMut::contiguous(state, 20));
        session.step_rows(Steps::one(3, RowsRef::contiguous(&x, 3)), states, None)
    };
    run(&good).unwrap();
    for (lengths, one) in [
        (&good[..3], (60, 0)),
        (&[60; 5], (0, 60)),
        (&[60; 50], (0, 60)),
        (&[60, 60, 59, 60], (60, 59)),
    ] {
        let refused = run(lengths).unwrap_err();
        let RunError::Input(InputError::Values {
            name: "states",
            expected,
            found,
        }) = refused
        else {
            panic!("{lengths:?}: {refused}");
        };
        assert_eq!((expected, found), one, "{lengths:?}");
        run(&good).unwrap();
    }
}

#[test]
fn sequences_of_length_zero() {
    let model = lstm();
    let mut random = Random::new(2);
    let mut batch = Batch::full(&mut random, &model, 3, 4);
    batch.lengths = Some(vec![4, 0, 2]);
    batch.h0 = Some(random.values(3 * 40));
    let mut found = Results::dirty(&model, &batch);
    let mut session = session(&model, 3, 4);
    session.run(&batch.input(), &mut found.output()).unwrap();
    for step in 0..4 {
        let rows: Vec<_> = found.values[step * 60..(step + 1) * 60]
            .chunks(20)
            .collect();
        assert!(rows[1].iter().all(|&y| y == 0.0));
        assert_eq!(rows[2].iter().all(|&y| y == 0.0), step >= 2);
    }
    let h0 = batch.h0.unwrap();
    assert_eq!(found.hn[20..40], h0[20..40]);
    assert_eq!(found.hn[60 + 20..60 + 40], h0[60 + 20..60 + 40]);
}

/// Not given is zero, to the bit, whatever an earlier run left in the session and whichever of the
/// two it is.
#[test]
fn a_state_that_is_not_given_is_zero_beside_one_that_is() {
    let model = lstm();
    let mut random = Random::new(3);
    let mut session = session(&model, 3, 4);
    let both = Batch::full(&mut random, &model, 3, 4);
    let (h0, c0) = (random.values(3 * 40), random.values(3 * 40));
    let zeros = vec![0.0; 3 * 40];
    let mut answer = |h0: Option<&[f32]>, c0: Option<&[f32]>| {
        let mut input = both.input();
        (input.h0, input.c0) = (h0, c0);
        let mut found = Results::dirty(&model, &both);
        session.run(&input, &mut found.output()).unwrap();
        [found.values, found.hn, found.cn].map(|v| v.into_iter().map(f32::to_bits).collect())
    };
    let full: [Vec<u32>; 3] = answer(Some(&h0), Some(&c0));
    let alone = answer(Some(&h0), None);
    assert_eq!(alone, answer(Some(&h0), Some(&zeros)));
    assert_ne!(alone, full);
    let alone = answer(None, Some(&c0));
    assert_eq!(alone, answer(Some(&zeros), Some(&c0)));
    assert_ne!(alone, full);
}

#[test]
fn what_does_not_fit_is_named_and_nothing_is_written() {
    let model = lstm();
    let mut session = session(&model, 2, 4);
    let x = vec![0.0; 3 * 2 * 4];
    let mut y = vec![7.0; 20 * 2 * 4];
    let short = vec![0.0; 5];
    let cases: Vec<(Input<'_>, &str)> = vec![
        (
            Input::new(&x[1..], 4, 2),
            "input: expected 24 values, found 23",
        ),
        (
            Input::new(&x, 4, 2).lengths(&[1]),
            "lengths: expected one per sequence, 2, found 1",
        ),
        (
            Input::new(&x, 4, 2).lengths(&[1, 5]),
            "lengths: sequence 1 has 5 steps but the input has 4",
        ),
        (
            Input::new(&x, 4, 2).h0(&short),
            "h0: expected 80 values, found 5",
        ),
        (
            Input::new(&x, 4, 2).c0(&short),
            "c0: expected 80 values, found 5",
        ),
        (
            Input::new(&x, usize::MAX, 2),
            "the product of batch, steps and features is too large for memory; use fewer",
        ),
    ];
    for (input, message) in cases {
        let refused = session.run(&input, &mut Output::new(&mut y)).unwrap_err();
        assert_eq!(refused.to_string(), message);
    }
    let mut hn = vec![7.0; 3];
    for (output, name) in [
        (Output::new(&mut [0.0; 3]), "output"),
        (Output::new(&mut y).hn(&mut hn), "hn"),
    ] {
        let mut output = output;
        let refused = session.run(&Input::new(&x, 4, 2), &mut output).unwrap_err();
        assert!(
            matches!(refused, RunError::Input(InputError::Values { name: n, .. }) if n == name)
        );
    }
    assert!(y.iter().all(|&v| v == 7.0));
}

#[test]
fn a_larger_input_is_refused_until_room_is_reserved() {
    let model = lstm();
    let mut random = Random::new(3);
    let mut session = session(&model, 1, 2);
    let batch = Batch::full(&mut random, &model, 2, 5);
    let mut found = Results::dirty(&model, &batch);
    let refused = session
        .run(&batch.input(), &mut found.output())
        .unwrap_err();
    assert!(refused.to_string().contains("reserve(2, 5)"), "{refused}");
    session.reserve(2, 5).unwrap();
    session.run(&batch.input(), &mut found.output()).unwrap();
    found.assert_same(&Results::reference(&model, &batch), "after reserve");
}

#[test]
fn reservations_beyond_memory() {
    let model = lstm();
    let mut random = Random::new(5);
    let mut session = session(&model, 1, 2);
    for (batch, steps) in [
        (usize::MAX, 2),
        (1 << 60, 16),
        (1 << 40, 1 << 10),
        (1, usize::MAX),
    ] {
        let refused = session.reserve(batch, steps).unwrap_err();
        assert!(
            matches!(refused, SessionError::TooLarge { .. }),
            "{refused}"
        );
        let mut plan = Plan::with_threads(&model, 1, 2, 2);
        (plan.entries[0].batch, plan.entries[0].steps) = (batch, steps);
        assert!(matches!(
            Session::new(&model, &plan),
            Err(SessionError::TooLarge { .. })
        ));
    }
    let batch = Batch::full(&mut random, &model, 1, 2);
    let mut found = Results::dirty(&model, &batch);
    session.run(&batch.input(), &mut found.output()).unwrap();
    found.assert_same(&Results::reference(&model, &batch), "after refusals");
}

#[test]
fn a_pinned_caller_gets_the_same_cores_again() {
    let model = lstm();
    // A thread of its own, since it stays pinned.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = Topology::detect();
            let first = session(&model, 1, 1);
            assert!(first.pin_caller());
            assert_eq!(Topology::detect(), before);
            let second = session(&model, 1, 1);
            assert!(second.pin_caller());
        });
    });
}

#[test]
fn a_team_of_the_callers_own_serves_one_session() {
    let model = lstm();
    let plan = Plan::with_threads(&model, 2, 3, 2);
    let mut team = Team::with_threads(2).unwrap();
    let packed = PackedModel::new(&model, &plan, &mut team).unwrap();
    let mut session = Session::with_team(packed, team).unwrap();
    let mut random = Random::new(6);
    let batch = Batch::ragged(&mut random, &model, 2, 3);
    let mut found = Results::dirty(&model, &batch);
    session.run(&batch.input(), &mut found.output()).unwrap();
    found.assert_same(&Results::reference(&model, &batch), "own team");
}

#[test]
fn layout_of_batch_first_models() {
    let plain = lstm();
    let model = lstm().batch_first();
    assert_eq!(plain.layout(), Layout::TimeMajor);
    assert_eq!(model.layout(), Layout::BatchMajor);
    let mut random = Random::new(7);
    let values = random.values(4 * 3 * 3);
    let input = Input::new(&values, 4, 3);
    let mut session = session(&model, 3, 4);
    let mut run = |input: Input<'_>| {
        let mut found = vec![0.0; 4 * 3 * 20];
        let mut output = Output::new(&mut found);
        session.run(&input, &mut output).unwrap();
        found
    };
    let reference = |model: &Model, input: Input<'_>| {
        let mut expected = vec![0.0; 4 * 3 * 20];
        reference::run(model, &input, &mut Output::new(&mut expected)).unwrap();
        expected
    };
    let batch_major = run(input);
    assert_eq!(batch_major, reference(&model, input));
    assert_eq!(
        batch_major,
        reference(&plain, input.layout(Layout::BatchMajor))
    );
    let time_major = run(input.layout(Layout::TimeMajor));
    assert_eq!(time_major, reference(&plain, input));
    assert_ne!(time_major, batch_major);
}

#[test]
fn any_output_may_be_left_out() {
    let model = Gru::new(3, 20).bidirectional(Merge::Sum).random(1).unwrap();
    let mut random = Random::new(4);
    let batch = Batch::full(&mut random, &model, 2, 3);
    let expected = Results::reference(&model, &batch);
    let mut session = session(&model, 2, 3);
    let mut hn = vec![0.0; expected.hn.len()];
    let mut output = Output::default().hn(&mut hn);
    session.run(&batch.input(), &mut output).unwrap();
    assert_eq!(hn, expected.hn);
    session.run(&batch.input(), &mut Output::default()).unwrap();
}

#[test]
fn streams_are_joined_split_and_copied() {
    // Layers of other sizes, so that no block has the place of another.
    let parts = [
        Lstm::new(3, 5).random(1).unwrap(),
        Gru::new(5, 4).random(2).unwrap(),
        Lstm::new(4, 6).random(3).unwrap(),
    ];
    let layers = parts.iter().flat_map(|part| part.layers().to_vec());
    let model = Model::new(layers.collect()).unwrap();
    let mut random = Random::new(7);
    let batch = Batch::full(&mut random, &model, 3, 6);
    let expected = Results::reference(&model, &batch);
    let mut session = session(&model, 4, 6);
    let row = |values: &[f32], width: usize, (stream, t): (usize, usize)| {
        values[(t * 3 + stream) * width..][..width].to_vec()
    };
    // Steps of these streams at these times.
    let mut step = |state: &mut State, rows: &[(usize, usize)]| {
        let x: Vec<f32> = rows
            .iter()
            .flat_map(|&at| row(&batch.values, 3, at))
            .collect();
        let right: Vec<f32> = { rows.iter() }
            .flat_map(|&at| row(&expected.values, 6, at))
            .collect();
        let mut y = vec![0.0; rows.len() * 6];
        session.step(&x, state, &mut y).unwrap();
        assert_eq!(y, right, "{rows:?}");
        session.packed().clone()
    };
    let signature = model.signature();
    let mut first = State::zero(signature, 1);
    let mut others = State::zero(signature, 2);
    step(&mut first, &[(0, 0)]);
    let packed = step(&mut others, &[(1, 0), (2, 0)]);
    // Stream 0 comes between the others, a step later than they.
    step(&mut others, &[(1, 1), (2, 1)]);
    let mut joined = packed
        .state_of(&[(&others, 0), (&first, 0), (&others, 1), (&first, 0)])
        .unwrap();
    assert_eq!(joined.batch(), 4);
    step(&mut joined, &[(1, 2), (0, 1), (2, 2), (0, 1)]);
    let mut left = packed.state_of(&[(&joined, 2), (&joined, 3)]).unwrap();
    step(&mut left, &[(2, 3), (0, 2)]);
    let none = packed.state_of(&[]).unwrap();
    assert_eq!((none.batch(), none.h.len()), (0, 0));
    let refused = packed.state_of(&[(&left, 2)]).unwrap_err();
    assert_eq!(
        refused,
        InputError::Stream {
            stream: 2,
            batch: 2
        }
    );
    left.c.pop();
    let refused = packed.state_of(&[(&left, 0)]).unwrap_err();
    assert!(matches!(refused, InputError::Values { name: "states", .. }));
    let refused = State::try_zero(signature, usize::MAX / 2);
    assert_eq!(refused, Err(InputError::TooLarge));
    let refused = State::try_zero(signature, 1 << 44);
    assert_eq!(refused, Err(InputError::TooLarge));
}

#[test]
fn a_reverse_direction_cannot_be_streamed() {
    let model = Gru::new(3, 20)
        .bidirectional(Merge::Concat)
        .random(1)
        .unwrap();
    let mut session = session(&model, 1, 1);
    let mut state = State::zero(model.signature(), 1);
    let refused = session.step(&[0.0; 3], &mut state, &mut [0.0; 40]);
    assert_eq!(refused, Err(RunError::NotStreamable));
}

#[test]
fn sessions_share_weights_and_teams_and_take_turns() {
    let model = lstm();
    let plan = Plan::with_threads(&model, 2, 6, 2);
    let mut team = Team::with_threads(2).unwrap();
    let packed = PackedModel::new(&model, &plan, &mut team).unwrap();
    let team = SharedTeam::new(team);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (packed, team, model) = (packed.clone(), team.clone(), &model);
            scope.spawn(move || {
                let mut session = Session::on_team(packed, team).unwrap();
                let mut random = Random::new(seed);
                for _ in 0..20 {
                    let batch = Batch::ragged(&mut random, model, 2, 6);
                    let mut found = Results::dirty(model, &batch);
                    session.run(&batch.input(), &mut found.output()).unwrap();
                    found.assert_same(&Results::reference(model, &batch), "in turn");
                }
            });
        }
    });
    assert_eq!(
        std::sync::Arc::strong_count(&packed),
        1,
        "no session kept the weights"
    );
}

#[test]
fn each_request_runs_by_the_entry_nearest_to_its_size() {
    let model = lstm();
    let mut random = Random::new(9);
    let mut plan = Plan::with_threads(&model, 8, 40, 2);
    for (batch, steps, threads) in [(1, 1, 1), (8, 1, 2), (1, 40, 1)] {
        let other = Plan::with_threads(&model, batch, steps, threads);
        plan.entries.extend(other.entries);
    }
    plan.entries[3].configuration.layers[0].chunk_steps = 3;
    let mut session = Session::new(&model, &plan).unwrap();
    for (batch, steps, entry) in [(8, 33, 0), (1, 2, 1), (6, 1, 2), (2, 40, 3)] {
        assert_eq!(plan.nearest(batch, steps), entry);
        let batch = Batch::ragged(&mut random, &model, batch, steps);
        let mut found = Results::dirty(&model, &batch);
        session.run(&batch.input(), &mut found.output()).unwrap();
        found.assert_same(&Results::reference(&model, &batch), entry);
    }
    // Entries that split the weights alike share them.
    let one = Session::new(&model, &Plan::with_threads(&model, 8, 40, 2)).unwrap();
    let bytes = one.packed().bytes();
    assert_eq!(session.packed().bytes(), 2 * bytes);
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let model = lstm();
    let good = Plan::with_threads(&model, 1, 1, 2);
    let other = Lstm::new(3, 20).random(1).unwrap();
    assert!(matches!(
        Session::new(&other, &good),
        Err(SessionError::Pack(PackError::Plan(PlanError::Count { .. })))
    ));
    let mut empty = good.clone();
    empty.entries[0].configuration.layers[1].chunk_steps = 0;
    assert_eq!(empty.check(&model), Err(PlanError::EmptyChunk { layer: 1 }));
    for threads in [0, usize::MAX] {
        let mut wrong = good.clone();
        wrong.entries[0].configuration.threads = threads;
        assert!(matches!(
            Session::new(&model, &wrong),
            Err(SessionError::Pack(PackError::Plan(
                PlanError::Threads { .. }
            )))
        ));
    }
    let many = Plan::estimate(&model, 1, 1, usize::MAX);
    assert!(many.check(&model).is_ok() && many.threads() <= 2);
    let mut gap = good.clone();
    let partition = &mut gap.entries[0].configuration.layers[0].directions[0].partition;
    partition.units[1].start = 17;
    assert!(matches!(
        gap.check(&model),
        Err(PlanError::Partition { layer: 0, .. })
    ));
    // More ways to cut the weights than anybody needs: refused before any is packed.
    let wide = Lstm::new(1024, 1024).random(1).unwrap();
    let cuts = (1..64).map(|cut| {
        let mut plan = Plan::with_threads(&wide, 1, cut, 2);
        let partition = &mut plan.entries[0].configuration.layers[0].directions[0].partition;
        partition.units = vec![0..16 * cut, 16 * cut..1024];
        plan.entries.remove(0)
    });
    let hostile = Plan {
        entries: cuts.collect(),
    };
    assert!(matches!(
        Session::new(&wide, &hostile),
        Err(SessionError::Pack(PackError::TooLarge { .. }))
    ));
    for rows in [0, 3] {
        let mut ahead = good.clone();
        ahead.entries[0].configuration.layers[1].ahead = InputProjectionBy::Rows {
            workers: rows,
            owners_share: OwnersShare::HALF,
        };
        let refused = PlanError::Ahead {
            layer: 1,
            rows,
            workers: 2,
        };
        assert_eq!(ahead.check(&model), Err(refused));
    }
    for row_groups in [0, 3] {
        let mut groups = good.clone();
        groups.entries[0].configuration.row_groups = row_groups;
        let refused = PlanError::RowGroups {
            threads: 2,
            row_groups,
        };
        assert_eq!(groups.check(&model), Err(refused));
    }
    let mut late = good.clone();
    let schedule = &mut late.entries[0].configuration.layers[0].directions[0].schedule;
    schedule.input[0] = PhasePlacement::Phase(1);
    assert!(matches!(
        late.check(&model),
        Err(PlanError::Schedule { layer: 0, .. })
    ));
    let team = SharedTeam::new(Team::with_threads(1).unwrap());
    let packed = Session::new(&model, &good).unwrap().packed().clone();
    assert!(matches!(
        Session::on_team(packed, team),
        Err(SessionError::Pack(PackError::Threads {
            planned: 2,
            found: 1
        }))
    ));
}
