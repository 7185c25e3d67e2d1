//! Progress bar.

use std::io::IsTerminal;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::sweep::NextRun;
use crate::workload::Arrivals;

/// A bar if stderr is a terminal. It is drawn between runs only, because drawing slows down
/// the targets.
pub fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(runs);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// Shows the next run.
pub fn show(bar: &ProgressBar, next: NextRun<'_>) {
    let at = match next.arrivals {
        Arrivals::Poisson { rate } => format!("at {rate:.1}/s"),
        Arrivals::Trace(_) => "as traced".into(),
        Arrivals::Closed { outstanding } => format!("with {outstanding} users"),
    };
    // The bar counts runs that have ended; the time of a run is unknown before the first ends.
    let is_first = bar.message().is_empty();
    let mut left = String::new();
    if !is_first {
        bar.inc(1);
        left = format!(", {} left", HumanDuration(bar.eta()));
    }
    bar.set_message(format!(
        "run {} of {}{left}  {}, {at}, round {}",
        bar.position() + 1,
        bar.length().unwrap_or(0),
        next.candidate,
        next.round + 1
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::compare::tests::candidate;
    use cellstream_serve::policy::PolicyKind;

    #[test]
    fn the_bar_names_the_next_run() {
        let bar = ProgressBar::hidden();
        bar.set_length(3);
        let candidate = &candidate(PolicyKind::Merge, 4);
        for round in 0..3 {
            let arrivals = &Arrivals::Poisson { rate: 2.5 };
            show(
                &bar,
                NextRun {
                    candidate,
                    arrivals,
                    round,
                },
            );
            let run = round + 1;
            let (begins, message) = (format!("run {run} of 3"), bar.message());
            assert!(message.starts_with(&begins), "{message}");
            assert_eq!(message.contains(" left"), round > 0, "{message}");
            let ends = format!("merge, batch 4, at 2.5/s, round {run}");
            assert!(message.ends_with(&ends), "{message}");
            assert_eq!(bar.position(), round as u64);
        }
    }
}
