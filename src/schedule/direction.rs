//! The schedule of one direction: a place for each of its products, the same at every step.

use std::fmt;
use std::str::FromStr;

use crate::model::{Cell, CellKind, Direction, ResetForm};

/// When a product is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Before the steps it belongs to, many steps in one product. Input products only.
    Ahead,
    /// In this phase of its step, counted from 0.
    Phase(u8),
}

/// Where each product of one direction is executed, the same at every step (rule 1 of deepcpu
/// section 5.1: time-dependent phases are symmetric across steps).
///
/// One entry per gate, in the order of the weights' blocks of rows: LSTM i f g o, GRU r z n, RNN
/// one. A projection is always a phase of its own, the last one.
///
/// ```
/// use cellstream::model::Lstm;
/// use cellstream::schedule::{DirectionSchedule, Place};
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let direction = &model.layers()[0].directions()[0];
/// let mut schedule = DirectionSchedule::all_ahead(direction);
/// assert_eq!(schedule.to_string(), "aaaa/1111");
/// schedule.input[3] = Place::Phase(0);
/// schedule.check(direction)?;
/// assert_eq!(schedule.to_string(), "aaa1/1111");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectionSchedule {
    /// Products of the input weights.
    pub input: Vec<Place>,
    /// Products of the recurrent weights; never ahead.
    pub recurrent: Vec<Place>,
}

/// Why a schedule cannot be one of a direction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schedule {schedule} is none of this {cell}: {why}")]
pub struct ScheduleError {
    /// The schedule.
    pub schedule: DirectionSchedule,
    /// The cell.
    pub cell: CellKind,
    /// What is wrong.
    pub why: &'static str,
}

/// Whether a GRU applies its reset gate before the product, so that its candidate is a phase later.
pub(super) fn resets_before(cell: &Cell) -> bool {
    let before = ResetForm::Before;
    matches!(cell, Cell::Gru { reset, .. } if *reset == before)
}

impl DirectionSchedule {
    /// All input products ahead, recurrent products as early as they can be.
    pub fn all_ahead(direction: &Direction) -> DirectionSchedule {
        let gates = direction.cell().kind().gates();
        let mut recurrent = vec![Place::Phase(0); gates];
        if resets_before(direction.cell()) {
            recurrent[2] = Place::Phase(1);
        }
        DirectionSchedule {
            input: vec![Place::Ahead; gates],
            recurrent,
        }
    }

    /// No product ahead: every input product in the phase of its gate's recurrent product.
    pub fn none_ahead(direction: &Direction) -> DirectionSchedule {
        let recurrent = DirectionSchedule::all_ahead(direction).recurrent;
        DirectionSchedule {
            input: recurrent.clone(),
            recurrent,
        }
    }

    /// Whether any product is taken ahead.
    pub fn is_ahead(&self) -> bool {
        self.input.contains(&Place::Ahead)
    }

    /// Whether every input product is taken ahead.
    pub fn is_all_ahead(&self) -> bool {
        self.input.iter().all(|place| *place == Place::Ahead)
    }

    /// Checks that `direction` can be executed so: each product after what it needs.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, direction: &Direction) -> Result<(), ScheduleError> {
        match self.fault(direction) {
            None => Ok(()),
            Some(why) => Err(ScheduleError {
                schedule: self.clone(),
                cell: direction.cell().kind(),
                why,
            }),
        }
    }

    fn fault(&self, direction: &Direction) -> Option<&'static str> {
        let gates = direction.cell().kind().gates();
        if self.input.len() != gates || self.recurrent.len() != gates {
            return Some("it has another number of gates");
        }
        if self.recurrent.contains(&Place::Ahead) {
            return Some("a product with the state cannot be taken ahead");
        }
        let phases = 1 + u8::from(resets_before(direction.cell()));
        let all = self.input.iter().chain(&self.recurrent);
        if { all }.any(|place| matches!(place, Place::Phase(phase) if *phase >= phases)) {
            return Some("a step has fewer phases");
        }
        // A gate is one chain of multiply-adds, input first; its order is part of the answer.
        let mut gates = self.input.iter().zip(&self.recurrent);
        if gates.any(|(input, recurrent)| input > recurrent) {
            return Some("a gate's product with the input must not come after that with the state");
        }
        if phases == 2 {
            // The reset gate is needed between the phases; its product with the state follows.
            if self.recurrent[0] != Place::Phase(0) || self.input[0] == Place::Phase(1) {
                return Some("the reset gate must be complete after the first phase");
            }
            if self.recurrent[2] != Place::Phase(1) {
                return Some("the candidate's product needs the reset state, in the second phase");
            }
        }
        None
    }
}

/// A letter per product, input then recurrent: `a` for ahead, or the phase counted from 1.
impl fmt::Display for DirectionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = |places: &[Place]| -> String {
            let letter = |place: &Place| match place {
                Place::Ahead => 'a',
                Place::Phase(phase) => char::from(b'1'.saturating_add(*phase)),
            };
            places.iter().map(letter).collect()
        };
        write!(f, "{}/{}", letters(&self.input), letters(&self.recurrent))
    }
}

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no schedule: expected a letter per input product, `/`, and a letter per recurrent \
     product, each `a` for ahead or a phase from 1 to 9"
)]
pub struct ParseScheduleError(pub String);

/// Reads what [`fmt::Display`] shows. Whether a direction can be executed so is for
/// [`DirectionSchedule::check`] to say.
impl FromStr for DirectionSchedule {
    type Err = ParseScheduleError;
    fn from_str(text: &str) -> Result<DirectionSchedule, ParseScheduleError> {
        let places = |letters: &str| -> Option<Vec<Place>> {
            let place = |letter| match letter {
                b'a' => Some(Place::Ahead),
                b'1'..=b'9' => Some(Place::Phase(letter - b'1')),
                _ => None,
            };
            letters.bytes().map(place).collect()
        };
        let parsed = text.split_once('/').and_then(|(input, recurrent)| {
            Some(DirectionSchedule {
                input: places(input)?,
                recurrent: places(recurrent)?,
            })
        });
        parsed.ok_or_else(|| ParseScheduleError(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_parse_back() {
        for text in ["aaaa/1111", "a1a/111", "a12/112", "a/1", "/", "123456789/a"] {
            let schedule: DirectionSchedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), text);
        }
        let parsed: DirectionSchedule = "a2/1".parse().unwrap();
        assert_eq!(parsed.input, [Place::Ahead, Place::Phase(1)]);
        assert_eq!(parsed.recurrent, [Place::Phase(0)]);
        for text in [
            "",
            "aaaa",
            "aaaa/111/",
            "aaaa/0111",
            "A/1",
            "a /1",
            "a/é",
            "aa:/111",
        ] {
            let error = text.parse::<DirectionSchedule>().unwrap_err();
            assert!(error.to_string().contains("expected"), "{error}");
        }
    }
}
