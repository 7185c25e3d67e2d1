//! Throughput under overload, and latency and energy at half of it, by policy, for the networks
//! and accelerators of the paper.
//!
//! ```text
//! cargo run --release -p cellstream-accelerator-sim --example throughput [-- SECONDS]
//! ```

use std::time::Instant;

use cellstream_accelerator_sim::accelerator::Accelerator;
use cellstream_accelerator_sim::arrivals::{Arrivals, Lengths};
use cellstream_accelerator_sim::network::Network;
use cellstream_accelerator_sim::outcome::Outcome;
use cellstream_accelerator_sim::policy::{
    EBatchPolicy, Machine, bucketing, cellular, ebatch, padding,
};

#[derive(Clone, Copy)]
enum Policy {
    Padding,
    Bucketing,
    Cellular,
    EBatch(Option<usize>),
}

impl Policy {
    fn name(self) -> String {
        match self {
            Policy::Padding => "padding".into(),
            Policy::Bucketing => "bucketing".into(),
            Policy::Cellular => "cellular".into(),
            Policy::EBatch(None) => "E-BATCH".into(),
            Policy::EBatch(Some(cap)) => format!("E-BATCH, N = {cap}"),
        }
    }

    fn run(self, machine: &Machine, arrivals: Arrivals, seconds: f64) -> Outcome {
        let arrivals = arrivals.until_seconds(seconds);
        match self {
            Policy::Padding => padding(machine, arrivals),
            Policy::Bucketing => bucketing(machine, arrivals, 10),
            Policy::Cellular => cellular(machine, arrivals, 5),
            Policy::EBatch(max_steps) => {
                let wait = 20 * machine.step_time();
                ebatch(machine, arrivals, EBatchPolicy { max_steps, wait })
            }
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let seconds: f64 = seconds.unwrap_or(120.0);
    let uniform = |least, most| Lengths::Uniform { least, most };
    for (network_name, network, lengths) in [
        ("MNMT", Network::mnmt(), uniform(20, 100)),
        ("DeepSpeech 2", Network::deep_speech_2(), uniform(10, 1800)),
    ] {
        for (name, accelerator) in [
            ("E-PUR", Accelerator::e_pur(64)),
            ("systolic", Accelerator::systolic(128)),
        ] {
            let machine = Machine::new(accelerator, network);
            // All lanes busy, and no time for reading weights.
            let Lengths::Uniform { least, most } = lengths;
            let steps = (least + most) as f64 / 2.0 * network.layers as f64;
            let ideal = accelerator.lanes as f64 / (steps * machine.step_time() as f64 / 1e9);
            println!("\n{network_name} on {name}: at most {ideal:.0} requests/s");
            for policy in [
                Policy::Padding,
                Policy::Bucketing,
                Policy::Cellular,
                Policy::EBatch(Some(64)),
                Policy::EBatch(Some(256)),
                Policy::EBatch(None),
            ] {
                let start = Instant::now();
                let run =
                    |rate: f64| policy.run(&machine, Arrivals::new(rate, lengths, 1), seconds);
                // More requests than any policy can serve; the first third fills the queues.
                let (from, to) = (seconds / 3.0 * 1e9, seconds * 1e9);
                let served = run(2.0 * ideal).throughput_between(from as u64, to as u64);
                let outcome = run(served / 2.0);
                let joules = outcome.joules_per_request(&accelerator, &network);
                println!(
                    "{:<18} {served:>7.0} requests/s; at half: {:>8.1} ms, {joules:.3} J/request; \
                     simulated in {:.1?}",
                    policy.name(),
                    1e3 * outcome.mean_latency(),
                    start.elapsed()
                );
            }
        }
    }
}
