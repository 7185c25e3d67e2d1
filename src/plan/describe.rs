//! A configuration in words, to compare it with another.

use std::fmt;

use super::{Configuration, DirectionPlan, InputProjectionBy, LayerPlan, OwnersShare};
use crate::schedule::PanelOrder;
use gatestream_kernels::{Blocking, Prefetch, Stripes};

/// One line: cores, slices, chunks of input products, order of panels, blocking.
/// Layers that are alike are described once.
impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = |count: usize| if count == 1 { "core" } else { "cores" };
        write!(f, "{} {}", self.threads, cores(self.threads))?;
        if self.row_groups > 1 {
            write!(f, " in {} groups of sequences", self.row_groups)?;
        }
        let layers: Vec<String> = (self.layers.iter())
            .map(|layer| layer.words(self.group_size()))
            .collect();
        let mut first = 0;
        while first < layers.len() {
            let alike = layers[first..].iter().take_while(|l| **l == layers[first]);
            let last = first + alike.count() - 1;
            match (first, last) {
                (0, last) if last + 1 == layers.len() => write!(f, "; {}", layers[first])?,
                (first, last) if first == last => write!(f, "; layer {first}: {}", layers[first])?,
                _ => write!(f, "; layers {first}–{last}: {}", layers[first])?,
            }
            first = last + 1;
        }
        Ok(())
    }
}

impl LayerPlan {
    fn words(&self, workers: usize) -> String {
        let owners: Vec<usize> = (0..workers).filter(|&w| self.is_owner(w)).collect();
        let units = match &owners[..] {
            [_] if workers == 1 => String::from("all units"),
            [one] => format!("all units on core {one}"),
            many if self.directions.iter().all(|d| !d.partition.is_shared()) => {
                format!("a direction on each of {} cores", many.len())
            }
            many if many.len() == workers => String::from("units split"),
            many => format!("units split over cores {many:?}"),
        };
        let schedules = of_directions(self, |d| d.schedule.to_string());
        let ahead = match (
            self.directions.iter().any(|d| d.schedule.is_ahead()),
            self.ahead,
        ) {
            (false, _) => String::new(),
            (true, InputProjectionBy::Owners) => format!(", chunks of {}", self.chunk_steps),
            (
                true,
                InputProjectionBy::Rows {
                    workers,
                    owners_share,
                },
            ) => {
                let owners = (0..workers).filter(|&worker| self.is_owner(worker)).count();
                let share = match owners_share {
                    _ if owners == 0 || owners == workers => String::new(),
                    OwnersShare::NONE => ", none by owners".into(),
                    OwnersShare::EVEN => ", an even share by owners".into(),
                    share => format!(", {}/8 of an even share by owners", share.eighths()),
                };
                let chunk = self.chunk_steps;
                format!(", chunks of {chunk} by {workers} cores{share}")
            }
        };
        let order = match self.order {
            PanelOrder::Cyclic => "cyclic",
            PanelOrder::Serpentine => "serpentine",
        };
        let is_plain = |d: &DirectionPlan| d.blocking == Blocking::default();
        let blocking = if self.directions.iter().all(is_plain) {
            String::new()
        } else {
            let words = of_directions(self, |d| blocking_words(d.blocking));
            format!(", {words}")
        };
        format!("{units}, schedule {schedules}{ahead}, {order}{blocking}")
    }
}

/// The words of all directions, once where they are the same.
fn of_directions(layer: &LayerPlan, words: impl Fn(&DirectionPlan) -> String) -> String {
    let mut words: Vec<String> = layer.directions.iter().map(words).collect();
    words.dedup();
    words.join(" and ")
}

fn blocking_words(blocking: Blocking) -> String {
    let stripes = match blocking.stripes {
        Stripes::One => "",
        Stripes::Two => "2 stripes, ",
    };
    let tiles = match blocking.tile_rows {
        0 => String::new(),
        rows => format!("tiles of up to {rows} rows, "),
    };
    let prefetch = match blocking.prefetch {
        Prefetch::Off => "no prefetching",
        Prefetch::ManyPasses => "prefetching in many passes",
        Prefetch::AllPasses => "prefetching in all passes",
    };
    format!("{stripes}{tiles}{prefetch}")
}

#[cfg(test)]
mod tests {
    use crate::model::{Lstm, Merge};
    use crate::plan::{Configuration, InputProjectionBy};
    use crate::schedule::{DirectionSchedule, PanelOrder};
    use gatestream_kernels::{Blocking, Prefetch, Stripes};

    #[test]
    fn alike_layers_are_described_once() {
        let model = Lstm::new(4, 64).layers(3).random(1).unwrap();
        let mut plan = Configuration::with_threads(&model, 1, 10, 2);
        assert_eq!(
            plan.to_string(),
            "2 cores; units split, schedule aaaa/1111, chunks of 10, cyclic"
        );
        plan.layers[2].order = PanelOrder::Serpentine;
        plan.layers[2].ahead = InputProjectionBy::even_rows(2);
        assert_eq!(
            plan.to_string(),
            "2 cores; layers 0–1: units split, schedule aaaa/1111, chunks of 10, cyclic; layer 2: \
             units split, schedule aaaa/1111, chunks of 10 by 2 cores, serpentine"
        );
    }

    #[test]
    fn other_blocking_than_the_plain_one_is_described() {
        let model = Lstm::new(4, 64).random(1).unwrap();
        let mut plan = Configuration::with_threads(&model, 1, 10, 1);
        plan.layers[0].directions[0].blocking = Blocking {
            stripes: Stripes::Two,
            tile_rows: 14,
            prefetch: Prefetch::AllPasses,
        };
        assert_eq!(
            plan.to_string(),
            "1 core; all units, schedule aaaa/1111, chunks of 10, cyclic, 2 stripes, tiles of up \
             to 14 rows, prefetching in all passes"
        );
    }

    #[test]
    fn directions_apart_and_one_core_have_words_of_their_own() {
        let model = Lstm::new(4, 64)
            .bidirectional(Merge::Sum)
            .random(1)
            .unwrap();
        let mut plan = Configuration::with_threads(&model, 1, 10, 2);
        let direction = &model.layers()[0].directions()[1];
        plan.layers[0].directions[1].schedule = DirectionSchedule::none_ahead(direction);
        assert_eq!(
            plan.to_string(),
            "2 cores; a direction on each of 2 cores, schedule aaaa/1111 and 1111/1111, chunks of \
             10, cyclic"
        );
        let plan = Configuration::with_threads(&model, 4, 1, 1);
        let words = "1 core; all units, schedule aaaa/1111, chunks of 1, cyclic";
        assert_eq!(plan.to_string(), words);
    }
}
