//! Steps whose states stay on the device, which runs them as late as it may.

use std::collections::VecDeque;

use gatestream::execute::{
    EmbeddingTable, ResidentModel, ResidentNetwork, ResidentProjection, ResidentRoom, ResidentStep,
    ResultOf, ResultRow, RunError, SessionError,
};
use gatestream::kernels::RowsRef;
use gatestream::layers::{Embedding, argmax};
use gatestream::model::{
    Builder, Cell, Gru, InputError, Lstm, Matrix, Merge, Model, Precision, ResetForm,
};
use gatestream::reference;

use super::Host;
use super::cases::{CLUSTERS, SMALL, bits, cells, f32_weights, random, reference_states};
use crate::Device;
use crate::resident::ResidentStack;

pub(super) const FEATURES: usize = 3;

const ROOM: ResidentRoom = ResidentRoom {
    rows: 3,
    slots: 4,
    in_flight: 3,
};

fn stack(device: Device, model: &Model, room: ResidentRoom) -> Option<ResidentStack<Host>> {
    let host = Host::with_limits_of(device)?;
    let network = ResidentNetwork::of_model(model);
    Some(ResidentStack::new(host, &network, &f32_weights(), room).unwrap())
}

/// Sizes of the states, in the order of the layers.
pub(super) fn sizes(model: &Model) -> Vec<usize> {
    let directions = model.layers().iter().map(|layer| &layer.directions()[0]);
    let sizes = directions.flat_map(|of| [of.output_size(), of.cell_state_size()]);
    sizes.filter(|size| *size > 0).collect()
}

/// A sequence in a slot.
struct Sequence {
    slot: usize,
    /// The step of the schedule with its first step.
    first: usize,
    x: Vec<f32>,
    initial: Option<Vec<f32>>,
}

/// Starts the steps of all sequences, three ahead of the results, which are compared with those of
/// whole runs.
fn check(device: Device, model: &Model) {
    let Some(mut stack) = stack(device, model, ROOM) else {
        return;
    };
    let states = sizes(model);
    let all_states: usize = states.iter().sum();
    let sequence = |slot, first, steps: usize, seed, is_zero: bool| Sequence {
        slot,
        first,
        x: random(steps * FEATURES, seed),
        initial: (!is_zero).then(|| random(all_states, seed + 1)),
    };
    // The third one gets the slot of the first when that has ended, and one of zeros follows it.
    let sequences = [
        sequence(2, 0, 2, 10, false),
        sequence(0, 1, 4, 20, true),
        sequence(2, 2, 2, 30, false),
        sequence(3, 1, 1, 40, true),
        sequence(2, 4, 1, 50, true),
    ];
    let output = model.signature().output;
    let mut in_flight: VecDeque<Vec<(ResultRow, usize, usize)>> = VecDeque::new();
    let expected: Vec<_> = (sequences.iter())
        .map(|of| reference_states(model, &of.x, of.initial.as_deref(), &states))
        .collect();
    let mut results = Vec::new();
    let mut finish = |stack: &mut ResidentStack<Host>, rows: Vec<(ResultRow, usize, usize)>| {
        stack.finish(&mut results).unwrap();
        let mut rest = &results[..];
        for (result, of, step) in rows {
            let (y, after) = &expected[of];
            let (found, expected) = match result.of {
                ResultOf::Output => {
                    let found = rest.split_off(..output).unwrap();
                    (found, &y[step * output..][..output])
                }
                ResultOf::State(state) => {
                    let found = rest.split_off(..states[state]).unwrap();
                    let before: usize = states[..state].iter().sum();
                    (found, &after[step][before..][..states[state]])
                }
            };
            assert_eq!(bits(found), bits(expected), "{result:?} of {of} at {step}");
        }
        assert!(rest.is_empty());
    };
    for step in 0..5 {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for (index, of) in sequences.iter().enumerate() {
            let steps = of.x.len() / FEATURES;
            if !(of.first..of.first + steps).contains(&step) {
                continue;
            }
            if step == of.first {
                let mut rest = of.initial.as_deref().unwrap_or_default();
                let given: Vec<&[f32]> = (states.iter())
                    .map(|size| rest.split_off(..*size).unwrap_or_default())
                    .collect();
                let given = of.initial.is_some().then_some(&given[..]);
                stack.load(of.slot, given).unwrap();
            }
            rows.push((index, step - of.first));
        }
        // Rows change their places from step to step.
        if step % 2 == 1 {
            rows.reverse();
        }
        let x: Vec<f32> = (rows.iter())
            .flat_map(|(of, step)| &sequences[*of].x[step * FEATURES..][..FEATURES])
            .copied()
            .collect();
        let slots: Vec<usize> = rows.iter().map(|(of, _)| sequences[*of].slot).collect();
        let kinds = (0..states.len()).map(ResultOf::State);
        let kinds = kinds.chain([ResultOf::Output]);
        // Not all values of all rows.
        let asked: Vec<(ResultRow, usize, usize)> = kinds
            .flat_map(|of| (0..rows.len()).map(move |row| ResultRow { row, of }))
            .filter(|result| result.of == ResultOf::Output || (result.row + step) % 2 == 0)
            .map(|result| (result, rows[result.row].0, rows[result.row].1))
            .collect();
        let results: Vec<ResultRow> = asked.iter().map(|(result, ..)| *result).collect();
        if in_flight.len() == ROOM.in_flight {
            finish(&mut stack, in_flight.pop_front().unwrap());
        }
        let started = stack.start(&ResidentStep {
            x: RowsRef::contiguous(&x, FEATURES),
            slots: &slots,
            results: &results,
        });
        started.unwrap();
        in_flight.push_back(asked);
    }
    // States after all steps that were started.
    let mut stored: Vec<Vec<f32>> = states.iter().map(|size| vec![0.0; *size]).collect();
    let mut views: Vec<&mut [f32]> = stored.iter_mut().map(|state| &mut state[..]).collect();
    stack.store(sequences[1].slot, &mut views).unwrap();
    assert_eq!(bits(&stored.concat()), bits(&expected[1].1[3]));
    while let Some(rows) = in_flight.pop_front() {
        finish(&mut stack, rows);
    }
    assert!(stack.is_finished().unwrap());
}

#[test]
fn steps_in_flight_have_the_bits_of_whole_runs() {
    for device in [SMALL, CLUSTERS] {
        for cell in cells() {
            let model = Builder::<Cell>::with_cell(cell, FEATURES, 9)
                .random(1)
                .unwrap();
            check(device, &model);
        }
        let model = Lstm::new(FEATURES, 33).layers(3).random(2).unwrap();
        check(device, &model);
        let model = Gru::new(FEATURES, 40).reset(ResetForm::Before).layers(2);
        check(device, &model.random(3).unwrap());
    }
}

#[test]
fn what_there_is_no_room_for_is_refused_and_changes_nothing() {
    let model = Lstm::new(FEATURES, 4).random(4).unwrap();
    let Some(mut on_host) = stack(SMALL, &model, ROOM) else {
        return;
    };
    let x = random(8 * FEATURES, 5);
    let start = |stack: &mut ResidentStack<Host>, slots: &[usize], results: &[ResultRow]| {
        stack.start(&ResidentStep {
            x: RowsRef::contiguous(&x, FEATURES),
            slots,
            results,
        })
    };
    let output = |row| ResultRow {
        row,
        of: ResultOf::Output,
    };
    let refused = start(&mut on_host, &[0, 1, 2, 3], &[]);
    assert!(matches!(refused, Err(RunError::Capacity { batch: 4, .. })));
    for slots in [[4, 0], [1, 1]] {
        let refused = start(&mut on_host, &slots, &[]);
        assert_eq!(
            refused,
            Err(RunError::Slot {
                slot: slots[0],
                slots: 4
            })
        );
    }
    let of = ResultOf::State(2);
    for result in [output(1), ResultRow { row: 0, of }] {
        let refused = start(&mut on_host, &[0], &[result]);
        assert!(matches!(refused, Err(RunError::Input(_))), "{refused:?}");
    }
    let refused = on_host.load(0, Some(&[&[0.0; 4], &[0.0; 3]]));
    let expected = InputError::Values {
        name: "states",
        expected: 8,
        found: 7,
    };
    assert_eq!(refused, Err(RunError::Input(expected)));
    for _ in 0..3 {
        start(&mut on_host, &[1], &[output(0)]).unwrap();
    }
    let refused = start(&mut on_host, &[1], &[output(0)]);
    assert_eq!(refused, Err(RunError::InFlight { in_flight: 3 }));
    let (y, _) = reference_states(&model, &[&x[..3]; 3].concat(), None, &sizes(&model));
    let mut results = Vec::new();
    for y in y.chunks(4) {
        on_host.finish(&mut results).unwrap();
        assert_eq!(bits(&results), bits(y));
    }
    on_host.finish(&mut results).unwrap();
    assert!(results.is_empty());

    let both = Lstm::new(FEATURES, 4).bidirectional(Merge::Concat);
    let host = Host::with_limits_of(SMALL).unwrap();
    let both = both.random(5).unwrap();
    let network = ResidentNetwork::of_model(&both);
    let refused = ResidentStack::new(host, &network, &f32_weights(), ROOM);
    assert!(matches!(refused, Err(SessionError::Backend(_))));
}

/// Symbols, of which the last half has the outputs of the first: the greatest is there twice.
const SYMBOLS: usize = 600;
pub(super) const GO: usize = 7;

pub(super) struct Translation {
    pub table: Embedding,
    pub encoder: Model,
    pub decoder: Model,
    pub weights: Matrix,
    pub bias: Vec<f32>,
}

impl Translation {
    pub fn new(precision: Precision) -> Translation {
        let (hidden, half) = (6, SYMBOLS / 2);
        let table = Matrix::new(SYMBOLS, FEATURES, random(SYMBOLS * FEATURES, 60)).unwrap();
        let weights = random(half * hidden, 61).repeat(2);
        let weights = Matrix::new(SYMBOLS, hidden, weights).unwrap();
        Translation {
            table: Embedding::new(table),
            encoder: Lstm::new(FEATURES, hidden).random(62).unwrap(),
            decoder: Lstm::new(FEATURES, hidden).random(63).unwrap(),
            weights: weights.in_precision(precision).unwrap(),
            bias: random(half, 64).repeat(2),
        }
    }

    fn network(&self) -> ResidentNetwork<'_> {
        ResidentNetwork {
            model: &self.decoder,
            embedding: Some(EmbeddingTable {
                symbols: SYMBOLS,
                values: self.table.table(),
            }),
            projection: Some(ResidentProjection {
                weights: &self.weights,
                bias: &self.bias,
            }),
        }
    }

    /// The symbols by plain loops.
    pub fn expected(&self, source: &[usize], steps: usize) -> Vec<f32> {
        let states = sizes(&self.encoder);
        let features: Vec<f32> = (source.iter())
            .flat_map(|symbol| self.table.row(*symbol).unwrap())
            .copied()
            .collect();
        let (_, after) = reference_states(&self.encoder, &features, None, &states);
        let mut state = after.last().unwrap().clone();
        let mut symbol = GO;
        (0..steps)
            .map(|_| {
                let x = self.table.row(symbol).unwrap();
                let (y, after) = reference_states(&self.decoder, x, Some(&state), &states);
                state = after[0].clone();
                let outputs = reference::dense(&self.weights, &self.bias, &y);
                symbol = argmax(&outputs).unwrap();
                symbol as f32
            })
            .collect()
    }
}

/// The symbols of a step of a decoder.
fn step(decoder: &mut ResidentStack<Host>, slots: &[usize]) -> Vec<f32> {
    let of = ResultOf::State(0);
    let results: Vec<_> = (0..slots.len()).map(|row| ResultRow { row, of }).collect();
    let step = ResidentStep {
        x: RowsRef::contiguous(&[], 0),
        slots,
        results: &results,
    };
    decoder.start(&step).unwrap();
    let mut found = Vec::new();
    decoder.finish(&mut found).unwrap();
    found
}

/// A symbol without features makes its own row NaN, and no other.
#[test]
fn a_symbol_that_there_is_not_spoils_its_own_row() {
    let of = Translation::new(Precision::F32);
    let Some(host) = Host::with_limits_of(SMALL) else {
        return;
    };
    let mut decoder = ResidentStack::new(host, &of.network(), &f32_weights(), ROOM).unwrap();
    let zeros = [0.0; 6];
    let unknown = [SYMBOLS as f32, -1.0, 0.5, f32::NAN];
    for (slot, symbol) in [1.0, unknown[0], unknown[1]].into_iter().enumerate() {
        decoder
            .load(slot, Some(&[&[symbol], &zeros, &zeros]))
            .unwrap();
    }
    let found = step(&mut decoder, &[1, 0, 2]);
    assert!(found[0].is_nan() && found[2].is_nan(), "{found:?}");
    let (y, _) = reference_states(&of.decoder, of.table.row(1).unwrap(), None, &[6, 6]);
    let outputs = reference::dense(&of.weights, &of.bias, &y);
    assert_eq!(found[1], argmax(&outputs).unwrap() as f32);
    for (slot, symbol) in unknown[2..].iter().enumerate() {
        decoder
            .load(slot, Some(&[&[*symbol], &zeros, &zeros]))
            .unwrap();
    }
    assert!(
        step(&mut decoder, &[0, 1])
            .iter()
            .all(|symbol| symbol.is_nan())
    );
}
