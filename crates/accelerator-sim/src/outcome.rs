//! The result of a run.

use crate::accelerator::Accelerator;
use crate::energy::{Counts, Energy};
use crate::network::Network;

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

    /// The part of all evaluated steps that is padding.
    pub fn padded(&self) -> f64 {
        let Counts {
            lane_steps,
            padded_lane_steps,
            ..
        } = self.counts;
        padded_lane_steps as f64 / (lane_steps + padded_lane_steps).max(1) as f64
    }

    /// Bytes of weights from the main memory, for each request.
    pub fn weight_bytes_per_request(&self) -> f64 {
        self.counts.weight_bytes as f64 / self.latencies.len().max(1) as f64
    }

    /// Joules for each request, of work and of time.
    pub fn joules_per_request(&self, accelerator: &Accelerator, network: &Network) -> f64 {
        let energy = Energy::of(accelerator);
        let seconds = self.end() as f64 / 1e9;
        let all = self.counts.dynamic(&energy, network) + seconds * energy.static_power;
        all / self.latencies.len().max(1) as f64
    }
}
