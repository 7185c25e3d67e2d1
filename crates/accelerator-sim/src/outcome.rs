//! The result of a run.

use crate::energy::{Counts, Energy};
use crate::network::Network;
use crate::policy::Machine;

/// Latencies, and counted work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds from arrival to completion of each request, in the order of completion.
    pub latencies: Vec<f32>,
    /// Nanoseconds from the start to the completion of each, in the same order.
    pub completions: Vec<u64>,
    /// The work.
    pub counts: Counts,
}

impl Outcome {
    pub(crate) fn complete(&mut self, arrived: u64, now: u64) {
        self.latencies.push(((now - arrived) as f64 / 1e9) as f32);
        self.completions.push(now);
    }

    /// Nanoseconds from the start to the last completion.
    pub fn end(&self) -> u64 {
        self.completions.last().copied().unwrap_or(0)
    }

    /// Requests a second, from the start to the last completion.
    pub fn throughput(&self) -> f64 {
        self.latencies.len() as f64 / (self.end().max(1) as f64 / 1e9)
    }

    /// Requests a second that complete between two times, in nanoseconds.
    pub fn throughput_between(&self, from: u64, to: u64) -> f64 {
        let until = |time: u64| self.completions.partition_point(|&at| at < time);
        (until(to) - until(from)) as f64 / ((to - from).max(1) as f64 / 1e9)
    }

    /// Seconds.
    pub fn mean_latency(&self) -> f64 {
        let all: f64 = self
            .latencies
            .iter()
            .map(|&latency| f64::from(latency))
            .sum();
        all / self.latencies.len().max(1) as f64
    }

    /// The latency, in seconds, below which this fraction of the requests is; 0 without requests.
    pub fn latency_percentile(&self, fraction: f64) -> f64 {
        let mut sorted = self.latencies.clone();
        if sorted.is_empty() {
            return 0.0;
        }
        let rank = (fraction * sorted.len() as f64).ceil() as usize;
        let index = rank.clamp(1, sorted.len()) - 1;
        let (_, value, _) = sorted.select_nth_unstable_by(index, f32::total_cmp);
        f64::from(*value)
    }

    /// The part of all evaluated steps that is padding.
    pub fn padded(&self) -> f64 {
        let Counts {
            lane_steps,
            padded_lane_steps,
            ..
        } = self.counts;
        padded_lane_steps as f64 / (lane_steps + padded_lane_steps).max(1) as f64
    }

    /// How the lanes spent the time from the start to the last completion.
    pub fn lane_time(&self, machine: &Machine) -> LaneTime {
        let lanes = machine.accelerator.lanes as f64;
        let all = self.end().max(1) as f64 * lanes;
        let of = |lane_steps: u64| lane_steps as f64 * machine.step_time() as f64 / all;
        LaneTime {
            useful: of(self.counts.lane_steps),
            wasted: of(self.counts.padded_lane_steps),
        }
    }

    /// Bytes of weights from the main memory, for each request.
    pub fn weight_bytes_per_request(&self) -> f64 {
        self.counts.weight_bytes as f64 / self.requests()
    }

    /// Joules for each request.
    pub fn joules_per_request(&self, energy: &Energy, network: &Network) -> Joules {
        let seconds = self.end() as f64 / 1e9;
        Joules {
            dynamic: self.counts.dynamic(energy, network) / self.requests(),
            background: seconds * energy.static_power / self.requests(),
        }
    }

    fn requests(&self) -> f64 {
        self.latencies.len().max(1) as f64
    }
}

/// Parts of the lanes' time; the rest is idle, or spent on reading weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneTime {
    /// Steps of sequences.
    pub useful: f64,
    /// Steps of padding.
    pub wasted: f64,
}

/// Energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joules {
    /// In proportion to the work.
    pub dynamic: f64,
    /// In proportion to the time: leakage, background and refresh ([`Energy::static_power`]).
    pub background: f64,
}

impl Joules {
    /// The sum.
    pub fn total(self) -> f64 {
        self.dynamic + self.background
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_latencies_of_requests() {
        let mut outcome = Outcome::default();
        assert_eq!(outcome.latency_percentile(0.5), 0.0);
        outcome.latencies = (1..=10).rev().map(|value| value as f32).collect();
        for (fraction, expected) in [
            (0.0, 1.0),
            (0.5, 5.0),
            (0.9, 9.0),
            (0.91, 10.0),
            (1.0, 10.0),
        ] {
            assert_eq!(outcome.latency_percentile(fraction), expected);
        }
    }
}
