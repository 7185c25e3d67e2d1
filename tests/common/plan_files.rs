//! What plan files may hold.

use gatestream::model::Model;
use gatestream::plan::{Cost, Measured, Plan};

use super::Random;

/// Any plan that is legal, measured or not, its entries in the order of files.
pub fn random_plan(random: &mut Random, model: &Model) -> Plan {
    let mut plan = random.plan(model, 4, 9);
    plan.entries.sort_by_key(|entry| (entry.batch, entry.steps));
    for entry in &mut plan.entries {
        entry.measured = random_measurement(random);
    }
    plan.check(model).unwrap();
    plan
}

fn random_measurement(random: &mut Random) -> Option<Measured> {
    const WORDS: [&str; 6] = [
        "",
        "o in its step, cyclic",
        "cost_ns 1: two: colons",
        "  spaces  ",
        "two\nlines\r\n# and \\u{41} \u{1b}[2J",
        "größer ≥ 1 🦀",
    ];
    let mut cost = || Cost {
        median_ns: random.0.u64(..) >> random.0.u32(0..64),
        spread_ns: random.0.u64(..) >> random.0.u32(0..64),
    };
    let (first, second) = (cost(), cost());
    let words = WORDS[random.0.usize(..WORDS.len())].to_string();
    random.0.bool().then(|| Measured {
        cost: first,
        runner_up: random.0.bool().then_some((words, second)),
    })
}
