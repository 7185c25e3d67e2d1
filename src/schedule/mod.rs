//! Phased schedules as data: which products of a step are executed when.
//!
//! A step of a direction is executed in phases, all of whose products may run at once; a phase
//! needs the results of the one before. Input products need no state, so they may be taken *ahead*:
//! many steps in one product, before those steps begin (deepcpu section 5.1).
//!
//! A [`DirectionSchedule`] is the compact form that a plan holds and an executor follows; a
//! [`PhasedSchedule`] is what it means, product by product, for a [`crate::graph::Graph`].
//! [`RULES`] cut the phased schedules down to the few that [`surviving_schedules`] lists, of which
//! [`schedules`] leaves out those that would change a rounding; [`Counts`] says how many there are
//! before and after each.

mod count;
mod direction;
mod enumerate;
mod phased;
mod rules;

pub use crate::partition::PanelOrder;
pub use count::{Count, Counts, direction_counts, model_counts};
pub use direction::{DirectionSchedule, ParseScheduleError, PhasePlacement, ScheduleError};
pub use enumerate::{schedule_count, schedules, surviving_schedules};
pub use phased::{Fused, Phase, PhasedError, PhasedSchedule};
pub use rules::{RULES, Rule};
