//! What runs, while it runs.

use std::io::IsTerminal;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::sweep::compare::{Contender, Next};
use crate::workload::arrivals::Arrivals;

/// A bar on a terminal, nothing elsewhere. It moves between runs only: drawing takes time from what is measured.
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

/// Says what comes next.
pub fn show(bar: &ProgressBar, next: Next<'_>) {
    let Contender { policy, settings } = next.contender;
    let at = match next.arrivals {
        Arrivals::Poisson { rate } => format!("at {rate:.1}/s"),
        Arrivals::Trace(_) => "as traced".into(),
        Arrivals::Closed { outstanding } => format!("with {outstanding} users"),
    };
    // The bar's length is of the runs that have ended; nobody knows how long runs take before one has.
    let is_first = bar.message().is_empty();
    let mut left = String::new();
    if !is_first {
        bar.inc(1);
        left = format!(", {} left", HumanDuration(bar.eta()));
    }
    bar.set_message(format!(
        "run {} of {}{left}  {policy}, {settings}, {at}, round {}",
        bar.position() + 1,
        bar.length().unwrap_or(0),
        next.round + 1
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Rows, Settings};
    use cellstream_serve::policy::PolicyKind;

    #[test]
    fn the_bar_shows_what_has_ended_and_names_what_runs() {
        let bar = ProgressBar::hidden();
        bar.set_length(3);
        let contender = Contender {
            policy: PolicyKind::Merge,
            settings: Settings {
                batch: Rows::each(4, 1),
                bucket_width: None,
            },
        };
        for round in 0..3 {
            let arrivals = &Arrivals::Poisson { rate: 2.5 };
            let contender = &contender;
            show(
                &bar,
                Next {
                    contender,
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
