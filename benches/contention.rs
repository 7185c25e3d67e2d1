//! Waiting times beside other users: other models, large requests, full limits, busy cores.
//!
//! ```text
//! cargo bench --bench contention              all cases
//! cargo bench --bench contention -- streams   the cases whose names begin so
//! ```
//!
//! Prints CSV: the case, the load beside it, the measure and its value. Times are in milliseconds.
//! The cases pass or fail nothing: records of them are in `benches/record`.

#[path = "contention/bounds.rs"]
mod bounds;
#[path = "contention/cases.rs"]
mod cases;
#[path = "contention/load.rs"]
mod load;

fn main() {
    // `cargo bench` passes its own flags, too.
    let names: Vec<String> = (std::env::args().skip(1))
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    println!("case,beside,measure,value");
    for (name, case) in cases::ALL {
        let is_named = |begin: &String| name.starts_with(begin.as_str());
        if names.is_empty() || names.iter().any(is_named) {
            case(&mut |beside, measure, value| println!("{name},{beside},{measure},{value:.3}"));
        }
    }
}
