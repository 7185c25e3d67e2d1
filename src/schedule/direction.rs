//! The schedule of one direction: a place for each of its products, the same at every step.

use std::fmt;
use std::str::FromStr;

use crate::graph::{Product, StepGraph};
use crate::model::{CellKind, Direction};

/// When a product is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhasePlacement {
    /// Before the steps it belongs to, many steps in one product: a hoisted input projection.
    /// Input products only.
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
/// use gatestream::model::Lstm;
/// use gatestream::schedule::{DirectionSchedule, PhasePlacement};
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let direction = &model.layers()[0].directions()[0];
/// let mut schedule = DirectionSchedule::all_ahead(direction);
/// assert_eq!(schedule.to_string(), "aaaa/1111");
/// schedule.input[3] = PhasePlacement::Phase(0);
/// schedule.check(direction)?;
/// assert_eq!(schedule.to_string(), "aaa1/1111");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectionSchedule {
    /// Products of the input weights.
    pub input: Vec<PhasePlacement>,
    /// Products of the recurrent weights; never ahead.
    pub recurrent: Vec<PhasePlacement>,
}

/// Why a schedule cannot be one of a direction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schedule {schedule} is none of this {cell}: {why}")]
#[non_exhaustive]
pub struct ScheduleError {
    /// The schedule.
    pub schedule: DirectionSchedule,
    /// The cell.
    pub cell: CellKind,
    /// What is wrong.
    pub why: &'static str,
}

impl DirectionSchedule {
    /// All input products ahead, recurrent products as early as they can be.
    pub fn all_ahead(direction: &Direction) -> DirectionSchedule {
        let step = StepGraph::of(direction);
        let gates = 0..step.gates() as u8;
        let earliest = |gate| step.earliest_phase(Product::Recurrent(gate)) as u8;
        DirectionSchedule {
            input: vec![PhasePlacement::Ahead; step.gates()],
            recurrent: gates
                .map(|gate| PhasePlacement::Phase(earliest(gate)))
                .collect(),
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

    /// Where `product` is executed; `None` for a projection and for a gate that is not there.
    pub(crate) fn placement(&self, product: Product) -> Option<PhasePlacement> {
        match product {
            Product::Input(gate) => self.input.get(usize::from(gate)).copied(),
            Product::Recurrent(gate) => self.recurrent.get(usize::from(gate)).copied(),
            Product::Projection => None,
        }
    }

    /// Whether no gate's product with the input comes after its product with the state. A gate is
    /// one chain of multiply-adds, input first; its order is part of the answer.
    pub(super) fn is_in_order(&self) -> bool {
        let mut gates = self.input.iter().zip(&self.recurrent);
        gates.all(|(input, recurrent)| input <= recurrent)
    }

    /// Whether any product is taken ahead.
    pub fn is_ahead(&self) -> bool {
        self.input.contains(&PhasePlacement::Ahead)
    }

    /// Whether every input product is taken ahead.
    pub fn is_all_ahead(&self) -> bool {
        self.input
            .iter()
            .all(|place| *place == PhasePlacement::Ahead)
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
        let step = StepGraph::of(direction);
        if self.input.len() != step.gates() || self.recurrent.len() != step.gates() {
            return Some("it has another number of gates");
        }
        if self.recurrent.contains(&PhasePlacement::Ahead) {
            return Some("a product with the state cannot be taken ahead");
        }
        let phases = phases_of_gates(&step);
        let beyond = |place: &PhasePlacement| *place >= PhasePlacement::Phase(phases);
        if self.input.iter().chain(&self.recurrent).any(beyond) {
            return Some("a step has fewer phases");
        }
        if !self.is_in_order() {
            return Some("a gate's product with the input must not come after that with the state");
        }
        let is_late = |product| {
            let place = self.placement(product);
            place.is_some()
                && step
                    .needed_by(product)
                    .any(|each| self.placement(each) >= place)
        };
        if step.products().any(is_late) {
            return Some("a gate must be complete a phase before the product that needs it");
        }
        None
    }
}

/// Phases of a step without that of its projection, which no schedule places.
pub(super) fn phases_of_gates(step: &StepGraph) -> u8 {
    let gates = step
        .products()
        .filter(|product| *product != Product::Projection);
    let last = gates.map(|product| step.earliest_phase(product)).max();
    1 + last.unwrap_or(0) as u8
}

/// A letter per product, input then recurrent: `a` for ahead, or the phase counted from 1.
impl fmt::Display for DirectionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = |places: &[PhasePlacement]| -> String {
            let letter = |place: &PhasePlacement| match place {
                PhasePlacement::Ahead => 'a',
                PhasePlacement::Phase(phase) => char::from(b'1'.saturating_add(*phase)),
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
        let places = |letters: &str| -> Option<Vec<PhasePlacement>> {
            let place = |letter| match letter {
                b'a' => Some(PhasePlacement::Ahead),
                b'1'..=b'9' => Some(PhasePlacement::Phase(letter - b'1')),
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
        assert_eq!(
            parsed.input,
            [PhasePlacement::Ahead, PhasePlacement::Phase(1)]
        );
        assert_eq!(parsed.recurrent, [PhasePlacement::Phase(0)]);
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
