//! The schedules that the three rules leave, enumerated from the graph of a step.
//!
//! By rule 1 a schedule is a placement of the products of one step, the same at every step. By rule
//! 3 an input product is either taken ahead, before all steps, or is in a phase of its step
//! together with a product that needs the state. By rule 2 each phase needs the one before, so that
//! a step has as many phases as its longest chain of products. The enumerator lists the placements
//! in that many phases in which every product comes after what it needs, and keeps those of which
//! rule 2 holds. What it finds (the tests compare it with a search through all phased schedules):
//!
//! | direction | choices | schedules |
//! |---|---|---|
//! | RNN | `W`: ahead, 1 | 2 |
//! | GRU, reset after | three `W` | 2³ = 8 |
//! | LSTM, with or without projection or peepholes | four `W` | 2⁴ = 16 |
//! | GRU, reset before | `U_z`: 1, 2; `W_r`: ahead, 1; `W_z`, `W_n`: ahead, 1, 2 | 2·2·3·3 = 36 |
//!
//! A gate is one chain of multiply-adds, input first, and its order is part of the answer. In a GRU
//! that resets before, 6 of the 36 would take `W_z` in phase 2 after `U_z` in phase 1, and so
//! another order; 30 are left to execute. Nothing is lost: with `W_z` in phase 1 as well no product
//! is later.
//!
//! The directions of a layer choose for themselves, phase `k` of a step of one running beside phase
//! `k` of the other; so do the layers of a stack, each taking its input sequence as given. Letting
//! the directions run staggered by a phase adds no schedule where a step has one phase, and for a
//! GRU that resets before adds only ones with more barriers. Chunks of steps, the wavefront over
//! layers and steps, and the order of panels are choices beside the phases, not among them: they
//! say in which pieces a phase is executed and by whom.

use crate::graph::{Product, StepGraph};
use crate::model::{Direction, Layer, Model};

use super::direction::phases_of_gates;
use super::{DirectionSchedule, PhasePlacement};

/// All schedules of `direction` that can be executed to the last bit alike, in a fixed order: all
/// input products ahead first, none ahead second, then the rest.
///
/// They are those of [`surviving_schedules`] that take no gate's product with the input after its
/// product with the state.
///
/// ```
/// use gatestream::model::Gru;
/// use gatestream::schedule::schedules;
///
/// let model = Gru::new(8, 16).random(1)?;
/// let all = schedules(&model.layers()[0].directions()[0]);
/// let names: Vec<_> = all.iter().map(|schedule| schedule.to_string()).collect();
/// assert_eq!(names[..4], ["aaa/111", "111/111", "aa1/111", "a1a/111"]);
/// assert_eq!(names.len(), 8);
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
pub fn schedules(direction: &Direction) -> Vec<DirectionSchedule> {
    let mut schedules = surviving_schedules(direction);
    schedules.retain(DirectionSchedule::is_in_order);
    schedules
}

/// All schedules of `direction` that survive the three rules, in the order of [`schedules`].
pub fn surviving_schedules(direction: &Direction) -> Vec<DirectionSchedule> {
    let step = StepGraph::of(direction);
    let first = [
        DirectionSchedule::all_ahead(direction),
        DirectionSchedule::none_ahead(direction),
    ];
    let phases = phases_of_gates(&step);
    let anywhere: Vec<_> = (0..phases).map(PhasePlacement::Phase).collect();
    let or_ahead: Vec<_> = [PhasePlacement::Ahead]
        .into_iter()
        .chain(anywhere.clone())
        .collect();
    let inputs = choices(&vec![or_ahead; step.gates()]);
    let mut schedules = first.to_vec();
    for recurrent in choices(&vec![anywhere; step.gates()]) {
        for input in &inputs {
            let schedule = DirectionSchedule {
                input: input.clone(),
                recurrent: recurrent.clone(),
            };
            if survives(&schedule, &step, phases) && !first.contains(&schedule) {
                schedules.push(schedule);
            }
        }
    }
    schedules
}

/// Whether every product comes after what it needs, and the rules hold.
fn survives(schedule: &DirectionSchedule, step: &StepGraph, phases: u8) -> bool {
    let gates = || {
        step.products()
            .filter(|product| *product != Product::Projection)
    };
    let is_ordered = gates().all(|product| {
        let place = schedule.placement(product);
        step.needed_by(product)
            .all(|needed| schedule.placement(needed) < place)
    });
    let in_phase = |product: Product, phase: u8| {
        schedule.placement(product) == Some(PhasePlacement::Phase(phase))
    };
    // Rule 3: what needs no state is ahead, or with what needs one.
    let depends_on_time =
        |phase| gates().any(|product| product.needs_state() && in_phase(product, phase));
    // Rule 2.
    let needs_the_one_before = |phase: u8| {
        gates()
            .filter(|product| in_phase(*product, phase))
            .any(|product| {
                step.needed_by(product)
                    .any(|needed| in_phase(needed, phase - 1))
            })
    };
    // A projection needs all gates, so nothing after the phases of the gates is left to choose.
    is_ordered && (0..phases).all(depends_on_time) && (1..phases).all(needs_the_one_before)
}

/// The number of schedules of a model: the product over its directions of the number that
/// [`schedules`] gives. These are too many to list for more than a few layers, and need not be
/// listed: the schedule of each layer can be chosen by itself. `None` if it is more than a `u128`
/// holds.
pub fn schedule_count(model: &Model) -> Option<u128> {
    let mut directions = model.layers().iter().flat_map(Layer::directions);
    directions.try_fold(1_u128, |all, direction| {
        all.checked_mul(schedules(direction).len() as u128)
    })
}

/// One of each, in all ways; the last changes fastest.
fn choices<T: Clone>(options: &[Vec<T>]) -> Vec<Vec<T>> {
    options.iter().fold(vec![Vec::new()], |chosen, options| {
        let with = |before: &Vec<T>, option: &T| {
            let mut choice = before.clone();
            choice.push(option.clone());
            choice
        };
        let each = chosen.iter();
        each.flat_map(|before| options.iter().map(move |option| with(before, option)))
            .collect()
    })
}
