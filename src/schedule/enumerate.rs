//! The schedules that survive the three rules, made directly.
//!
//! A step's phases must each need the one before (rule 2), and no time-independent phase stands
//! between them (rule 3), so a step has as many phases as its longest chain of products: one, or
//! two in a GRU that resets before (candidate after reset gate); a projection adds its own. What is
//! left to choose, the same at every step (rule 1), is for each input product whether it is taken
//! ahead or in which phase before it is needed, and the phase of a product with the state that may
//! be in either:
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
//! GRU that resets before adds only ones with more meetings. Chunks of steps, the wavefront over
//! layers and steps, and the order of panels are choices beside the phases, not among them: they
//! say in which pieces a phase is executed and by whom.

use crate::model::{Direction, Layer, Model};

use super::direction::resets_before;
use super::{DirectionSchedule, Place};

/// All schedules of `direction` that can be executed to the last bit alike, in a fixed order: all
/// input products ahead first, none ahead second, then the rest.
///
/// They are those of [`surviving_schedules`] that take no gate's product with the input after its
/// product with the state.
///
/// ```
/// use cellstream::model::Gru;
/// use cellstream::schedule::schedules;
///
/// let model = Gru::new(8, 16).random(1)?;
/// let all = schedules(&model.layers()[0].directions()[0]);
/// let names: Vec<_> = all.iter().map(|schedule| schedule.to_string()).collect();
/// assert_eq!(names[..4], ["aaa/111", "111/111", "aa1/111", "a1a/111"]);
/// assert_eq!(names.len(), 8);
/// # Ok::<(), cellstream::model::ModelError>(())
/// ```
pub fn schedules(direction: &Direction) -> Vec<DirectionSchedule> {
    let in_order = |schedule: &DirectionSchedule| {
        let mut gates = schedule.input.iter().zip(&schedule.recurrent);
        gates.all(|(input, recurrent)| input <= recurrent)
    };
    let mut schedules = surviving_schedules(direction);
    schedules.retain(in_order);
    schedules
}

/// All schedules of `direction` that survive the three rules, in the order of [`schedules`].
pub fn surviving_schedules(direction: &Direction) -> Vec<DirectionSchedule> {
    let (first, second) = (Place::Phase(0), Place::Phase(1));
    let gates = direction.cell().kind().gates();
    let (inputs, recurrent) = match resets_before(direction.cell()) {
        false => (
            vec![vec![Place::Ahead, first]; gates],
            vec![vec![first]; gates],
        ),
        true => {
            let anywhere = vec![Place::Ahead, first, second];
            let inputs = vec![vec![Place::Ahead, first], anywhere.clone(), anywhere];
            (inputs, vec![vec![first], vec![first, second], vec![second]])
        }
    };
    let mut schedules = vec![
        DirectionSchedule::all_ahead(direction),
        DirectionSchedule::none_ahead(direction),
    ];
    for recurrent in choices(&recurrent) {
        for input in choices(&inputs) {
            let recurrent = recurrent.clone();
            let schedule = DirectionSchedule { input, recurrent };
            if !schedules[..2].contains(&schedule) {
                schedules.push(schedule);
            }
        }
    }
    schedules
}

/// How many schedules a model has: the product over its directions of how many [`schedules`] gives. Too
/// many to list for more than a few layers (they need not be: layers do not compete, so each can be
/// chosen by itself). `None` if it is more than a `u128` holds.
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
