//! The command line that all experiments have.

use std::path::PathBuf;
use std::time::Duration;

use gatestream::machine::Topology;

use crate::record;
use crate::rounds::Rounds;

/// Flags of every experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Small sizes and few rounds: shows that it works, not how fast it is
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each race, one sample of every contender in each
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Seconds of each tuning, for experiments that tune
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// The folder of the record (default: that of this machine and day, or with --quick the
    /// system's temporary folder)
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

impl Settings {
    /// Cores to use.
    pub fn cores(&self) -> usize {
        let all = Topology::detect().team_size();
        self.cores.unwrap_or(all).clamp(1, all)
    }

    /// How to race.
    pub fn rounds(&self) -> Rounds {
        let (count, lap) = if self.quick {
            (3, Duration::from_micros(500))
        } else {
            (21, Duration::from_millis(5))
        };
        Rounds {
            count: self.rounds.unwrap_or(count).max(1),
            lap,
            limit: Duration::from_secs(12),
        }
    }

    /// How many samples of what takes its time by itself: `--rounds`, or 7.
    pub fn samples(&self) -> usize {
        let default = if self.quick { 1 } else { 7 };
        self.rounds.unwrap_or(default).max(1)
    }

    /// The budget of one tuning: `--seconds`, or a default.
    pub fn tuning(&self, default: f64) -> Duration {
        let default = if self.quick { 0.3 } else { default };
        let seconds = self.seconds.unwrap_or(default);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    /// `full`, or with `--quick` its first `few` elements.
    pub fn cut<'a, T>(&self, full: &'a [T], few: usize) -> &'a [T] {
        if self.quick {
            &full[..few.min(full.len())]
        } else {
            full
        }
    }

    /// Where the record goes.
    ///
    /// # Errors
    /// This machine's kind is unknown.
    pub fn folder(&self) -> Result<PathBuf, Box<dyn std::error::Error>> {
        match (&self.results, self.quick) {
            (Some(folder), _) => Ok(folder.clone()),
            (None, true) => Ok(std::env::temp_dir().join("gatestream-experiments")),
            (None, false) => record::folder(),
        }
    }
}
