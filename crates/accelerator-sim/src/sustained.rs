//! The highest rate that a policy sustains.

use crate::arrivals::{Arrival, Arrivals, Lengths};
use crate::outcome::Outcome;
use crate::policy::{Machine, Policy, Waits};

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The accelerator with the network.
    pub machine: Machine,
    /// Lengths of the requests.
    pub lengths: Lengths,
    /// Times of E-BATCH.
    pub waits: Waits,
    /// Simulated seconds of arrivals.
    pub seconds: f64,
    /// Seed of the arrivals.
    pub seed: u64,
}

impl Setting {
    /// Runs a policy at a rate, in requests a second. `watch` sees each arrival.
    pub fn run(&self, policy: Policy, rate: f64, watch: impl FnMut(&Arrival)) -> Outcome {
        let arrivals = Arrivals::new(rate, self.lengths.clone(), self.seed);
        let arrivals = arrivals.until_seconds(self.seconds).inspect(watch);
        policy.run(&self.machine, arrivals, self.waits)
    }

    /// The rate at which all lanes would be busy without a pause.
    pub fn ideal_rate(&self) -> f64 {
        self.machine.ideal_rate(self.lengths.mean())
    }

    /// The highest rate at which the policy answers at least 99 requests for 100 that arrive, both
    /// counted in the last two thirds of the time. Found within one percent, by bisection.
    ///
    /// The time should be many times the latency, as the queue may grow by one percent.
    pub fn sustained_rate(&self, policy: Policy, mut watch: impl FnMut(&Arrival)) -> f64 {
        let (from, to) = (
            (self.seconds / 3.0 * 1e9) as u64,
            (self.seconds * 1e9) as u64,
        );
        let mut is_sustained = |rate: f64| {
            let mut arrived = 0u64;
            let outcome = self.run(policy, rate, |arrival| {
                arrived += u64::from(arrival.time >= from);
                watch(arrival);
            });
            let arrived = arrived as f64 / ((to - from) as f64 / 1e9);
            outcome.throughput_between(from, to) >= 0.99 * arrived
        };
        let (mut low, mut high) = (0.0, self.ideal_rate());
        while high - low > 0.01 * high {
            let middle = (low + high) / 2.0;
            if is_sustained(middle) {
                low = middle
            } else {
                high = middle
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::Accelerator;
    use crate::network::Network;

    /// Sequences of one length on one lane and one layer: a queue with a constant service time,
    /// which sustains every rate below one request in that time.
    #[test]
    fn a_constant_service_time_sustains_its_inverse() {
        let network = Network {
            layers: 1,
            ..Network::mnmt()
        };
        let setting = Setting {
            machine: Machine::new(Accelerator::e_pur(1), network),
            lengths: Lengths::Uniform {
                least: 50,
                most: 50,
            },
            waits: Waits::default(),
            seconds: 400.0,
            seed: 3,
        };
        let service = 50.0 * 65.536e-6;
        let rate = setting.sustained_rate(Policy::Padding, |_| {});
        assert!((rate * service - 1.0).abs() < 0.025, "{rate}");
    }
}
