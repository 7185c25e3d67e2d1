//! The measured ceilings of a machine, and the shortest time they allow for a piece of work.

mod measure;

use super::types::{Level, Topology};
use gatestream_kernels::probe::fma_chains;
use gatestream_kernels::{Isa, IsaError};
pub(super) use measure::l3_buffer_bytes;
use measure::measure_team;

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Rate {
    /// In units of 10^9 per second (GFLOP/s or GB/s), the whole team together.
    pub value: f64,
    /// (best - median round) / best: near 0 on a quiet machine.
    pub spread: f64,
}

/// Read bandwidth by the level that holds the data, in GB/s (10^9 bytes).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ReadRates {
    /// From the first-level data cache; `None` where the machine does not describe one.
    pub l1: Option<Rate>,
    /// From the second level, likewise.
    pub l2: Option<Rate>,
    /// From the third level, likewise.
    pub l3: Option<Rate>,
    /// From memory.
    pub memory: Rate,
}

/// What a team of pinned threads, one per core, can do at most.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TeamCeilings {
    /// How many threads.
    pub threads: usize,
    /// Whether the system let every thread be pinned; if not, the rates may be too low.
    pub pinned: bool,
    /// Rate of f32 fused multiply-adds, two flops each, in GFLOP/s.
    pub fma_f32_gflops: Rate,
    /// Rate of int8 multiply-adds, two operations each, in GOP/s: with the quickest dot product
    /// that the CPU has.
    pub dot_int8_gops: Rate,
    /// Read bandwidth.
    pub read_gbps: ReadRates,
}

/// The measured ceilings of a machine with one instruction set.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Ceilings {
    /// The instruction set it was measured with.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::isa_name"))]
    pub isa: Isa,
    /// One core alone.
    pub one: TeamCeilings,
    /// Every core at once ([`Topology::team_size`]); equal to `one` on a single core.
    pub all: TeamCeilings,
}

/// What limits a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum BoundBy {
    /// The units that multiply and add.
    Compute,
    /// Reading from L1.
    L1,
    /// Reading from L2.
    L2,
    /// Reading from L3.
    L3,
    /// Reading from memory.
    Memory,
}

/// Multiplications and additions, each counted as one, by the units that do them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Operations {
    /// In f32, those with bf16 weights among them: they are widened and multiplied in f32.
    pub f32: f64,
    /// In int8 with sums of 32 bits.
    pub int8: f64,
}

impl Operations {
    /// All of them.
    pub fn all(&self) -> f64 {
        self.f32 + self.int8
    }
}

/// Of f32.
impl From<f64> for Operations {
    fn from(flops: f64) -> Operations {
        Operations {
            f32: flops,
            int8: 0.0,
        }
    }
}

/// The shortest time the ceilings allow.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Bound {
    /// In seconds.
    pub seconds: f64,
    /// What sets it.
    pub by: BoundBy,
}

/// Why ceilings could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CeilingsError {
    /// The instruction set is not there.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// No memory for the buffers.
    #[error("measuring memory needs {bytes} bytes per thread, which this system refuses")]
    OutOfMemory {
        /// What one thread asked for.
        bytes: usize,
    },
    /// A measuring thread could not be started or stopped early.
    #[error("a measuring thread did not run: {0}")]
    Thread(String),
}

impl Ceilings {
    /// Measures one core alone, then every core at once; takes between one and two seconds.
    ///
    /// # Errors
    /// [`CeilingsError`]: this CPU lacks `isa`, or memory or threads are refused.
    pub fn measure(topology: &Topology, isa: Isa) -> Result<Ceilings, CeilingsError> {
        fma_chains(isa, 0)?; // refuse an absent instruction set before any thread starts
        let one = measure_team(topology, isa, 1)?;
        let all = match topology.team_size() {
            1 => one,
            threads => measure_team(topology, isa, threads)?,
        };
        Ok(Ceilings { isa, one, all })
    }

    /// The shortest time that `threads` threads need for `work` (a number alone is of f32) while
    /// reading `bytes` from `resident_level`, all threads' work counted together: max(work / peak,
    /// bytes / bandwidth), as in the roofline model (Williams, Waterman, Patterson, "Roofline",
    /// CACM 52(4), 2009). The two overlap at best, hence the maximum. Operations of f32 and of int8
    /// have peaks of their own and take turns, as they wait for the same units.
    ///
    /// A team between the two measured ones is granted `threads` x the single core's rate, but no
    /// more than all cores' rate: never less than it really has, so the bound stays a bound. A
    /// level without a measured rate counts as the next farther one.
    pub fn bound(
        &self,
        work: impl Into<Operations>,
        bytes: f64,
        resident_level: Level,
        threads: usize,
    ) -> Bound {
        let work = work.into();
        let rate = |of: &dyn Fn(&TeamCeilings) -> f64| {
            let (one, all) = (of(&self.one), of(&self.all));
            let threads = threads.max(1);
            if threads >= self.all.threads {
                // A single-core figure above the team's would be noise, yet must not be exceeded.
                all.max(one)
            } else {
                (one * threads as f64).min(all.max(one))
            }
        };
        let (level, by) = self.measured_level(resident_level);
        // No work takes no time, at a peak that was not measured, too.
        let time = |work: f64, peak: f64| if work > 0.0 { work / (1e9 * peak) } else { 0.0 };
        let compute = time(work.f32, rate(&|team| team.fma_f32_gflops.value))
            + time(work.int8, rate(&|team| team.dot_int8_gops.value));
        let reading = bytes / (1e9 * rate(&|team| team.read_gbps.at(level).value));
        if reading > compute {
            Bound {
                seconds: reading,
                by,
            }
        } else {
            Bound {
                seconds: compute,
                by: BoundBy::Compute,
            }
        }
    }

    fn measured_level(&self, level: Level) -> (Level, BoundBy) {
        let rates = [&self.one.read_gbps, &self.all.read_gbps];
        let has = |of: fn(&ReadRates) -> Option<Rate>| rates.iter().all(|r| of(r).is_some());
        match level {
            Level::L1 if has(|r| r.l1) => (Level::L1, BoundBy::L1),
            Level::L1 | Level::L2 if has(|r| r.l2) => (Level::L2, BoundBy::L2),
            Level::L1 | Level::L2 | Level::L3 if has(|r| r.l3) => (Level::L3, BoundBy::L3),
            _ => (Level::Memory, BoundBy::Memory),
        }
    }
}

impl ReadRates {
    /// The rate of a level, or of the next farther one that has been measured.
    pub fn at(&self, level: Level) -> Rate {
        let (l1, l2, l3) = match level {
            Level::L1 => (self.l1, self.l2, self.l3),
            Level::L2 => (None, self.l2, self.l3),
            Level::L3 => (None, None, self.l3),
            Level::Memory => (None, None, None),
        };
        l1.or(l2).or(l3).unwrap_or(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64) -> Rate {
        Rate { value, spread: 0.0 }
    }

    /// One core: 100 GFLOP/s, 400 GOP/s in int8, reads 200, 100, 50, 10 GB/s; four cores: 4x in
    /// caches, 2x in memory.
    fn ceilings() -> Ceilings {
        let team = |threads: usize, private: f64, memory: f64| TeamCeilings {
            threads,
            pinned: true,
            fma_f32_gflops: rate(100.0 * private),
            dot_int8_gops: rate(400.0 * private),
            read_gbps: ReadRates {
                l1: Some(rate(200.0 * private)),
                l2: Some(rate(100.0 * private)),
                l3: Some(rate(50.0 * private)),
                memory: rate(memory),
            },
        };
        Ceilings {
            isa: Isa::Portable,
            one: team(1, 1.0, 10.0),
            all: team(4, 4.0, 20.0),
        }
    }

    #[track_caller]
    fn expect(bound: Bound, seconds: f64, by: BoundBy) {
        assert_eq!(bound.by, by);
        approx::assert_relative_eq!(bound.seconds, seconds, max_relative = 1e-12);
    }

    #[test]
    fn the_slower_of_arithmetic_and_reading_is_the_bound() {
        let c = ceilings();
        // 1e9 flops at 100 GFLOP/s: 10 ms; 1e9 bytes: 5, 10, 20, 100 ms.
        expect(c.bound(1e9, 1e9, Level::L1, 1), 0.010, BoundBy::Compute);
        expect(c.bound(1e9, 1e9, Level::L3, 1), 0.020, BoundBy::L3);
        expect(c.bound(1e9, 1e9, Level::Memory, 1), 0.100, BoundBy::Memory);
        expect(c.bound(0.0, 1e9, Level::L1, 1), 0.005, BoundBy::L1);
        expect(c.bound(0.0, 1e9, Level::L2, 1), 0.010, BoundBy::L2);
        expect(c.bound(0.0, 0.0, Level::L2, 1), 0.0, BoundBy::Compute);
    }

    #[test]
    fn peaks_by_arithmetic() {
        let c = ceilings();
        let int8 = |int8: f64| Operations { f32: 0.0, int8 };
        // 1e9 operations at 400 GOP/s: 2.5 ms.
        expect(
            c.bound(int8(1e9), 0.0, Level::L1, 1),
            0.0025,
            BoundBy::Compute,
        );
        expect(c.bound(int8(1e9), 1e9, Level::L1, 1), 0.005, BoundBy::L1);
        expect(
            c.bound(int8(1e9), 0.0, Level::L1, 4),
            0.000625,
            BoundBy::Compute,
        );
        let both = Operations {
            f32: 1e9,
            int8: 1e9,
        };
        expect(c.bound(both, 1e9, Level::L2, 1), 0.0125, BoundBy::Compute);
        assert_eq!(both.all(), 2e9);
    }

    #[test]
    fn a_team_has_no_more_than_all_cores_have() {
        let c = ceilings();
        expect(c.bound(1e9, 0.0, Level::L1, 2), 0.005, BoundBy::Compute);
        expect(c.bound(1e9, 0.0, Level::L1, 4), 0.0025, BoundBy::Compute);
        expect(c.bound(1e9, 0.0, Level::L1, 64), 0.0025, BoundBy::Compute);
        expect(c.bound(0.0, 1e9, Level::Memory, 3), 0.050, BoundBy::Memory);
        expect(c.bound(0.0, 1e9, Level::Memory, 0), 0.100, BoundBy::Memory);
    }

    #[test]
    fn a_level_without_a_rate_is_the_next_farther_one() {
        let mut c = ceilings();
        c.one.read_gbps.l3 = None;
        c.all.read_gbps.l3 = None;
        expect(c.bound(0.0, 1e9, Level::L3, 1), 0.100, BoundBy::Memory);
        c.one.read_gbps.l1 = None;
        c.all.read_gbps.l1 = None;
        expect(c.bound(0.0, 1e9, Level::L1, 1), 0.010, BoundBy::L2);
    }

    /// No absolute rates, which belong to the machine; but every described level has one.
    #[test]
    fn the_machine_is_measured() {
        let topology = Topology::detect();
        let ceilings = Ceilings::measure(&topology, Isa::available()[0]).unwrap();
        assert_eq!(ceilings.one.threads, 1);
        assert_eq!(ceilings.all.threads, topology.team_size());
        let first = topology.cpus_for_team(1)[0];
        let mut cores = topology.cores.iter();
        let core = cores.find(|core| core.cpus.contains(&first)).unwrap();
        for team in [&ceilings.one, &ceilings.all] {
            let reads = &team.read_gbps;
            for (level, rate) in [(1, reads.l1), (2, reads.l2), (3, reads.l3)] {
                assert_eq!(rate.is_some(), topology.cache_at(core, level).is_some());
            }
            let rates = [reads.l1, reads.l2, reads.l3, Some(reads.memory)];
            let peaks = [team.fma_f32_gflops, team.dot_int8_gops];
            for rate in rates.into_iter().flatten().chain(peaks) {
                assert!(rate.value > 0.0 && rate.value.is_finite(), "{team:?}");
                assert!((0.0..1.0).contains(&rate.spread), "{team:?}");
            }
        }
    }
}
