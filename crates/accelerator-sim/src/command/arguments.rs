//! The arguments of `simulate`.

use std::path::PathBuf;

use clap::ValueEnum;
use gatestream_command::{Failure, in_existing_directory, seconds};

use super::lengths::LengthsOption;
use crate::accelerator::Accelerator;
use crate::arrivals::Lengths;
use crate::energy::Energy;
use crate::network::Network;
use crate::policy::{Machine, Policy, Waits};
use crate::sustained::Setting;

/// Simulates batching policies on accelerators of recurrent networks, under load.
///
/// Requests arrive at Poisson times. A policy divides them among lanes, which evaluate their steps
/// side by side, layer by layer; the weights of a layer are read from the main memory before each
/// pass. Times are cycles of the accelerator, energies are counted accesses times constants of
/// data sheets: no part is measured on this computer. The same seed gives the same requests to
/// every policy.
///
/// answered/s: from the start to the last completion. weights: bytes of weights that are read for
/// each request. useful, wasted: parts of the lanes' time that sequences and padding take; the rest
/// is idle or reads weights. background: the part of the energy that is leakage, background and
/// refresh.
///
/// With --sustained, each policy is measured at the highest rate that it sustains: in the last two
/// thirds of the time it answers 99 requests for 100 that arrive. The rate is found within 1 %.
///
/// Ctrl-C ends the command; runs that have ended are reported.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// Accelerator
    #[arg(long, value_enum, default_value_t)]
    pub accelerator: AcceleratorKind,
    /// Network
    #[arg(long, value_enum, default_value_t)]
    pub network: NetworkKind,
    /// Layers, instead of those of the network
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub layers: Option<u32>,
    /// Hidden size, instead of that of the network
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub hidden: Option<u32>,
    /// Lanes (default: 64 of e-pur, 128 of systolic)
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub lanes: Option<u32>,
    /// Policies: padding, bucketing or bucketing:WIDTH, cellular or cellular:STEPS, ebatch,
    /// ebatch:N, ebatch:by-load
    #[arg(
        long,
        value_name = "POLICY,…",
        value_delimiter = ',',
        default_value = "padding,bucketing,cellular,ebatch:64,ebatch:256,ebatch"
    )]
    pub policies: Vec<Policy>,
    /// Requests per second
    #[arg(long, value_name = "R,…", value_delimiter = ',', value_parser = rate)]
    pub rates: Vec<f64>,
    /// Fractions of the rate at which all lanes would be busy (default: 0.1,0.25,0.5,0.75)
    #[arg(long, value_name = "F,…", value_delimiter = ',', conflicts_with = "rates",
        value_parser = rate)]
    pub load: Vec<f64>,
    /// Measure each policy at the highest rate that it sustains
    #[arg(long, conflicts_with_all = ["rates", "load"])]
    pub sustained: bool,
    /// Simulated seconds of arrivals
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub seconds: f64,
    /// Steps of the requests: uniform:LEAST..MOST, normal:MEAN,DEVIATION,LEAST..MOST, or a file
    /// with one length per line, whose histogram is drawn from (default: uniform:20..100 for mnmt,
    /// uniform:10..1800 for deep-speech-2)
    #[arg(long, value_name = "L")]
    pub lengths: Option<LengthsOption>,
    /// Longest wait of E-BATCH for a fuller batch
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = milliseconds)]
    pub wait: f64,
    /// Time from the arrival of a request to its deadline, which ebatch:by-load heeds; the part of
    /// late requests is shown
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub deadline: Option<f64>,
    /// Bandwidth of the main memory (default: 25.6)
    #[arg(long, value_name = "GB/S", value_parser = rate)]
    pub memory_bandwidth: Option<f64>,
    /// Energy of a byte of the main memory (default: 43.5)
    #[arg(long, value_name = "PJ", value_parser = rate)]
    pub memory_energy: Option<f64>,
    /// Read the weights of a layer while the layer before is evaluated
    #[arg(long)]
    pub overlap: bool,
    /// Seed of the arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write all results to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Print one JSON object per result
    #[arg(long)]
    pub json: bool,
}

/// Most requests of a run: the times of all are kept.
const MAX_REQUESTS: f64 = 1e8;

/// An accelerator by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AcceleratorKind {
    /// E-PUR: four units with dot products of 64, 500 MHz
    #[default]
    EPur,
    /// Output-stationary array of 128 × 128, as a TPU, 700 MHz
    Systolic,
}

/// A network of the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NetworkKind {
    /// Machine translation: 8 LSTM layers of 1024 units
    #[default]
    Mnmt,
    /// Speech recognition: 5 GRU layers of 800 units
    #[value(name = "deep-speech-2")]
    DeepSpeech2,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e9 => Ok(rate),
        _ => Err("expected a number above 0, at most 10^9".into()),
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=3.6e6).contains(&ms) => Ok(ms),
        _ => Err("expected milliseconds from 0 to 3600000".into()),
    }
}

/// The name of a value, as its option takes it.
pub fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

impl Arguments {
    /// The distribution of lengths.
    pub fn lengths(&self) -> LengthsOption {
        let (least, most) = match self.network {
            NetworkKind::Mnmt => (20, 100),
            NetworkKind::DeepSpeech2 => (10, 1800),
        };
        self.lengths
            .clone()
            .unwrap_or(LengthsOption::Drawn(Lengths::Uniform { least, most }))
    }

    fn machine(&self) -> Machine {
        let lanes = |default| self.lanes.map_or(default, |lanes| lanes as usize);
        let mut accelerator = match self.accelerator {
            AcceleratorKind::EPur => Accelerator::e_pur(lanes(64)),
            AcceleratorKind::Systolic => Accelerator::systolic(lanes(128)),
        };
        if let Some(gigabytes) = self.memory_bandwidth {
            accelerator.memory_bandwidth = gigabytes * 1e9;
        }
        let network = match self.network {
            NetworkKind::Mnmt => Network::mnmt(),
            NetworkKind::DeepSpeech2 => Network::deep_speech_2(),
        };
        let or = |given: Option<u32>, default| given.map_or(default, |number| number as usize);
        let network = Network {
            layers: or(self.layers, network.layers),
            hidden_size: or(self.hidden, network.hidden_size),
            ..network
        };
        let machine = Machine::new(accelerator, network);
        if self.overlap {
            machine.overlap_fetches()
        } else {
            machine
        }
    }

    /// The energies.
    pub fn energy(&self, machine: &Machine) -> Energy {
        let mut energy = Energy::of(&machine.accelerator);
        if let Some(picojoules) = self.memory_energy {
            energy.memory_byte = picojoules * 1e-12;
        }
        energy
    }

    /// What is simulated.
    ///
    /// # Errors
    /// The file of lengths cannot be read; the results cannot be written where they should.
    pub fn setting(&self) -> Result<Setting, Failure> {
        if let Some(path) = &self.csv {
            in_existing_directory(path, "--csv")?;
        }
        let nanoseconds = |ms: f64| (ms * 1e6).round() as u64;
        Ok(Setting {
            machine: self.machine(),
            lengths: self.lengths().read()?,
            waits: Waits {
                wait: nanoseconds(self.wait),
                allowed: self.deadline.map(nanoseconds),
            },
            seconds: self.seconds,
            seed: self.seed,
        })
    }

    /// The rates, in requests a second: one for [`Arguments::sustained`], the highest that may be.
    ///
    /// # Errors
    /// A run would have more than 10^8 requests.
    pub fn rates(&self, setting: &Setting) -> Result<Vec<f64>, Failure> {
        let ideal = setting.ideal_rate();
        let loads = if self.load.is_empty() {
            &[0.1, 0.25, 0.5, 0.75][..]
        } else {
            &self.load
        };
        let rates = match (self.sustained, self.rates.is_empty()) {
            (true, _) => vec![ideal],
            (false, true) => loads.iter().map(|load| load * ideal).collect(),
            (false, false) => self.rates.clone(),
        };
        let most = rates.iter().copied().fold(0.0, f64::max) * self.seconds;
        if most > MAX_REQUESTS {
            return Err(Failure::usage(format!(
                "{most:.1e} requests in {} s are too many; at most {MAX_REQUESTS:.0e}: give fewer \
                 --seconds or lower rates",
                self.seconds
            )));
        }
        Ok(rates)
    }
}
