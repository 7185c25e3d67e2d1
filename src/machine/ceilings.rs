//! The measured ceilings of a machine, and the shortest time they allow for a piece of work.
//!
//! ```text
//! for each team (one thread; every core):
//!     pin one thread to each core; each fills its own buffers (first touch, on its own node)
//!     ROUNDS times:
//!         for each resource (FMA units, dot products, L1, L2, L3, memory):
//!             SAMPLES times: all start at one agreed instant and do a fixed amount of work;
//!                            rate = work of all / (last end - agreed start)
//!             the round's rate = median of its samples
//!     ceiling = best round; spread = (best - median round) / best
//! ```
//!
//! Whatever else runs on the machine can only lower a sample, so the best round is nearest to the
//! truth; the median inside a round keeps one lucky clock reading from setting it. Rounds are short
//! and many, because a round counts only if no neighbour broke into it on any core. The resources take
//! turns within a round, so that a neighbour's busy second touches one round of each and not all
//! rounds of one. A sample takes about 1.5 ms: well above the resolution of the clock, well below a time
//! slice.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::topology::{Level, Topology};
use crate::kernels::probe::{dot_chains, fma_chains, read_sum};
use crate::kernels::{Isa, IsaError};

const ROUNDS: usize = 11;
/// Rounds before those: they find out how much work fills a sample.
const WARM_UP: usize = 3;
const SAMPLES: usize = 3;
const SAMPLE: Duration = Duration::from_micros(1500);
/// From sending a job to its agreed start: long enough for sleeping threads to wake.
const HEAD_START: Duration = Duration::from_micros(300);
/// Start of the buffers, in bytes: no smaller than any cache line or vector of today.
const LINE: usize = 128;
/// A memory sample reads this part of the buffer, the next one the next part.
const MEMORY_WINDOWS: usize = 4;

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
    /// Rate of int8 multiply-adds, two operations each, in GOP/s: with the quickest dot product that
    /// the CPU has.
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
    /// reading `bytes` from `resident_level`, all threads' work counted together:
    /// max(work / peak, bytes / bandwidth), as in the roofline model (Williams, Waterman, Patterson,
    /// "Roofline", CACM 52(4), 2009). The two overlap at best, hence the maximum. Operations of f32 and
    /// of int8 have peaks of their own and take turns, as they wait for the same units.
    ///
    /// A team between the two measured ones is granted `threads` x the single core's rate, but no
    /// more than all cores' rate: never less than it really has, so the bound stays a bound. A level
    /// without a measured rate counts as the next farther one.
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

/// Buffer sizes in bytes of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffers {
    l1: Option<usize>,
    l2: Option<usize>,
    l3: Option<usize>,
    memory: usize,
}

impl Buffers {
    /// Sizes that stay in one level and miss the nearer ones, `threads` cores sharing what is shared.
    fn for_team(topology: &Topology, cpus: &[usize]) -> Buffers {
        let core = topology.cores.iter().find(|c| c.cpus.contains(&cpus[0]));
        let cache = |level| core.and_then(|core| topology.cache_at(core, level));
        // The part of a cache that falls to one thread of this team.
        let share = |level| {
            cache(level).map(|cache| {
                let threads = cpus.iter().filter(|cpu| cache.cpus.contains(cpu)).count();
                cache.bytes / threads.max(1)
            })
        };
        let (l1, l2, l3) = (share(1), share(2), share(3));
        let nearest = l2.or(l1).unwrap_or(0);
        let last = l3.or(l2).or(l1).unwrap_or(0);
        Buffers {
            l1: l1.map(|bytes| bytes / 2),
            // Half is still many times L1; all of it would compete with code and stacks.
            l2: l2.map(|bytes| bytes / 2),
            // The second term is for caches that hold little more per core than L2 does.
            l3: l3.map(|bytes| (4 * nearest).min(nearest + bytes / 2)),
            // Four times the cache, so that what is read again has been evicted long before; where
            // that is more than 256 MiB a thread, at least half as large again as the cache.
            memory: (4 * last).clamp(64 << 20, (256 << 20).max(last + last / 2)),
        }
    }
}

/// Bytes of a buffer that one core reads from the third level; `None` where the machine describes none.
pub(super) fn l3_buffer_bytes(topology: &Topology) -> Option<usize> {
    Buffers::for_team(topology, &topology.cpus_for_team(1)).l3
}

/// The resources that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Fma,
    Dot,
    Read(Level),
}

/// One sample to be taken: `repeats` of the resource's unit of work, from `start` on.
#[derive(Clone, Copy)]
struct Job {
    resource: Resource,
    repeats: u64,
    start: Instant,
}

/// One thread's answer.
struct Done {
    /// Operations or bytes.
    work: u64,
    end: Instant,
}

fn measure_team(
    topology: &Topology,
    isa: Isa,
    threads: usize,
) -> Result<TeamCeilings, CeilingsError> {
    let cpus = topology.cpus_for_team(threads);
    let sizes = Buffers::for_team(topology, &cpus);
    std::thread::scope(|scope| {
        // The scope joins the threads; they end when their job channel closes.
        let (ready, readies) = mpsc::channel();
        let (done, dones) = mpsc::channel();
        let mut jobs = Vec::new();
        for &cpu in &cpus {
            let (send, receive) = mpsc::channel();
            let (ready, done) = (ready.clone(), done.clone());
            jobs.push(send);
            std::thread::Builder::new()
                .name(format!("ceilings-{cpu}"))
                .spawn_scoped(scope, move || {
                    measuring_thread(isa, cpu, sizes, ready, receive, done);
                })
                .map_err(|e| CeilingsError::Thread(e.to_string()))?;
        }
        drop((ready, done));

        let mut pinned = true;
        for _ in &cpus {
            let ended = |_| CeilingsError::Thread("it ended early".to_string());
            pinned &= readies.recv().map_err(ended)??;
        }
        let team = Team { jobs, dones };
        let levels = [
            (Level::L1, sizes.l1),
            (Level::L2, sizes.l2),
            (Level::L3, sizes.l3),
            (Level::Memory, Some(sizes.memory)),
        ];
        let reads = levels
            .into_iter()
            .filter(|(_, size)| size.is_some())
            .map(|(level, _)| Resource::Read(level));
        let mut courses: Vec<Course> = [Resource::Fma, Resource::Dot]
            .into_iter()
            .chain(reads)
            .map(|resource| Course {
                resource,
                repeats: 1,
                best_sample: 0.0,
                medians: Vec::new(),
            })
            .collect();
        for round in 0..WARM_UP + ROUNDS {
            for course in &mut courses {
                if round == WARM_UP {
                    course.medians.clear();
                }
                team.round(course)?;
            }
        }
        let mut rate = |of: Resource| {
            let found = courses.iter_mut().find(|course| course.resource == of);
            found.map(|course| best(&mut course.medians))
        };
        let none = Rate {
            value: 0.0,
            spread: 0.0,
        };
        Ok(TeamCeilings {
            threads,
            pinned,
            fma_f32_gflops: rate(Resource::Fma).unwrap_or(none),
            dot_int8_gops: rate(Resource::Dot).unwrap_or(none),
            read_gbps: ReadRates {
                l1: rate(Resource::Read(Level::L1)),
                l2: rate(Resource::Read(Level::L2)),
                l3: rate(Resource::Read(Level::L3)),
                memory: rate(Resource::Read(Level::Memory)).unwrap_or(none),
            },
        })
    })
}

/// The measuring threads, seen from the one that directs them.
struct Team {
    jobs: Vec<mpsc::Sender<Job>>,
    dones: mpsc::Receiver<Result<Done, IsaError>>,
}

/// What the whole team did in one sample.
struct Sample {
    work: u64,
    seconds: f64,
}

impl Sample {
    fn rate(&self) -> f64 {
        self.work as f64 / self.seconds * 1e-9
    }
}

impl Team {
    fn sample(&self, resource: Resource, repeats: u64) -> Result<Sample, CeilingsError> {
        let gone = || CeilingsError::Thread("it ended early".to_string());
        let start = Instant::now() + HEAD_START;
        for job in &self.jobs {
            let sent = job.send(Job {
                resource,
                repeats,
                start,
            });
            sent.map_err(|_| gone())?;
        }
        let (mut work, mut end) = (0, start);
        for _ in &self.jobs {
            let done = self.dones.recv().map_err(|_| gone())??;
            work += done.work;
            end = end.max(done.end);
        }
        Ok(Sample {
            work,
            seconds: (end - start).as_secs_f64().max(1e-9),
        })
    }

    /// Takes one round and keeps its median. How much work fills a sample follows from the best
    /// sample so far, so that interrupted ones cannot leave all later samples too short to matter.
    fn round(&self, course: &mut Course) -> Result<(), CeilingsError> {
        let mut samples = [0.0; SAMPLES];
        for rate in &mut samples {
            let sample = self.sample(course.resource, course.repeats)?;
            *rate = sample.rate();
            if course.resource != Resource::Read(Level::Memory) && *rate >= course.best_sample {
                course.best_sample = *rate;
                let fitting = course.repeats as f64 * SAMPLE.as_secs_f64() / sample.seconds;
                course.repeats = (fitting as u64).clamp(1, 16 * course.repeats);
            }
        }
        course.medians.push(median(&mut samples));
        Ok(())
    }
}

/// The measurement of one resource, under way.
struct Course {
    resource: Resource,
    repeats: u64,
    /// In units of 10^9 per second.
    best_sample: f64,
    medians: Vec<f64>,
}

fn measuring_thread(
    isa: Isa,
    cpu: usize,
    sizes: Buffers,
    ready: mpsc::Sender<Result<bool, CeilingsError>>,
    jobs: mpsc::Receiver<Job>,
    done: mpsc::Sender<Result<Done, IsaError>>,
) {
    let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
    let memory = match filled(sizes.memory) {
        Ok(buffer) => buffer,
        Err(error) => {
            // The directing thread sees the error and gives up; nobody listens if it is gone.
            let _ = ready.send(Err(error));
            return;
        }
    };
    if ready.send(Ok(pinned)).is_err() {
        return;
    }
    // A vector that straddles two cache lines loads at half the rate: start on a line.
    let memory = &memory[memory.as_ptr().align_offset(LINE).min(memory.len())..];
    // Nearer levels read the front of the one buffer.
    let front = |size: Option<usize>| &memory[..size.unwrap_or(0) / 4];
    let window = memory.len() / MEMORY_WINDOWS / (LINE / 4) * (LINE / 4);
    let mut next_window = 0;
    for job in jobs {
        let data = match job.resource {
            Resource::Fma | Resource::Dot => &[],
            Resource::Read(Level::L1) => front(sizes.l1),
            Resource::Read(Level::L2) => front(sizes.l2),
            Resource::Read(Level::L3) => front(sizes.l3),
            Resource::Read(Level::Memory) => {
                next_window = (next_window + 1) % MEMORY_WINDOWS;
                &memory[next_window * window..][..window]
            }
        };
        let in_cache = !matches!(job.resource, Resource::Read(Level::Memory));
        if in_cache {
            // The thread slept, and another resource had its turn: bring the data back.
            std::hint::black_box(read_sum(isa, data, 1).ok());
        }
        while Instant::now() < job.start {
            std::hint::spin_loop();
        }
        let work = match job.resource {
            Resource::Fma => fma_chains(isa, job.repeats * 1000),
            Resource::Dot => dot_chains(isa, job.repeats * 1000),
            Resource::Read(_) => read_sum(isa, data, job.repeats as usize).map(|sum| {
                std::hint::black_box(sum);
                job.repeats * size_of_val(data) as u64
            }),
        };
        let end = Instant::now();
        if done.send(work.map(|work| Done { work, end })).is_err() {
            return;
        }
    }
}

/// A buffer every page of which has been written: pages never written are all one page of zeros.
fn filled(bytes: usize) -> Result<Vec<f32>, CeilingsError> {
    let mut buffer = Vec::new();
    let refused = |_| CeilingsError::OutOfMemory { bytes };
    buffer.try_reserve_exact(bytes / 4).map_err(refused)?;
    buffer.resize(bytes / 4, 1.0);
    Ok(buffer)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The best round, and how far the median one falls short of it.
fn best(rounds: &mut [f64]) -> Rate {
    let typical = median(rounds);
    let value = rounds[rounds.len() - 1];
    let spread = (value - typical) / value;
    Rate { value, spread }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64) -> Rate {
        Rate { value, spread: 0.0 }
    }

    /// One core: 100 GFLOP/s, 400 GOP/s in int8, reads 200, 100, 50, 10 GB/s; four cores: 4x in caches,
    /// 2x in memory.
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
    fn each_kind_of_arithmetic_has_its_own_peak_and_they_take_turns() {
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

    #[test]
    fn a_rate_is_the_best_round_and_its_distance_from_the_median_one() {
        let found = best(&mut [50.0, 100.0, 80.0, 10.0, 90.0]);
        assert_eq!(found.value, 100.0);
        approx::assert_relative_eq!(found.spread, 0.2, max_relative = 1e-12);
    }

    #[test]
    fn each_buffer_stays_in_its_level_and_misses_the_nearer_ones() {
        let cache = |level, bytes: usize, cpus: &[usize]| super::super::Cache {
            level,
            kind: super::super::CacheKind::Unified,
            bytes,
            line_bytes: 64,
            cpus: cpus.to_vec(),
            sharing_cores: cpus.len(),
        };
        let mut topology = Topology::count_only(&[0, 1], String::new());
        topology.caches.push(cache(3, 32 << 20, &[0, 1]));
        let one = Buffers::for_team(&topology, &[0]);
        let two = Buffers::for_team(&topology, &[0, 1]);
        assert_eq!(one.l1, Some(16 << 10));
        assert_eq!(one.l2, Some(128 << 10));
        assert_eq!((one.l3, two.l3), (Some(1 << 20), Some(1 << 20)));
        assert_eq!((one.memory, two.memory), (128 << 20, 64 << 20));

        // No L3: memory follows from L2, and is never small.
        topology.caches.pop();
        let none = Buffers::for_team(&topology, &[0]);
        assert_eq!((none.l3, none.memory), (None, 64 << 20));
        // A huge L3: at least half as large again as the cache, although above 256 MiB.
        topology.caches.push(cache(3, 400 << 20, &[0, 1]));
        assert_eq!(Buffers::for_team(&topology, &[0]).memory, 600 << 20);
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
