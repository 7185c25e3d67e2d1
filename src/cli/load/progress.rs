//! What runs, while it runs.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::arrivals::Arrivals;
use super::compare::{Contender, Next};

/// A bar on a terminal, nothing elsewhere. It moves between runs only: drawing takes time from what is measured.
pub fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} run {pos} of {len}, {eta} left  {wide_msg}");
    let bar = ProgressBar::new(runs);
    if let Ok(style) = style {
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
    // Counted as they begin.
    bar.inc(1);
    bar.set_message(format!(
        "{policy}, {settings}, {at}, round {}",
        next.round + 1
    ));
}
