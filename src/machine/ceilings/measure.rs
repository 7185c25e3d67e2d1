//! Measuring a team of pinned threads.
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
//! and many, because a round counts only if no neighbour broke into it on any core. The resources
//! take turns within a round, so that a neighbour's busy second touches one round of each and not
//! all rounds of one. A sample takes about 1.5 ms: well above the resolution of the clock, well
//! below a time slice.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::super::types::{Level, Topology};
use super::{CeilingsError, Rate, ReadRates, TeamCeilings};
use gatestream_kernels::probe::{dot_chains, fma_chains, read_sum};
use gatestream_kernels::{Isa, IsaError};

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

/// Buffer sizes in bytes of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffers {
    l1: Option<usize>,
    l2: Option<usize>,
    l3: Option<usize>,
    memory: usize,
}

impl Buffers {
    /// Sizes that stay in one level and miss the nearer ones, `threads` cores sharing what is
    /// shared.
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

/// Bytes of a buffer that one core reads from the third level; `None` where the machine describes
/// none.
pub(in crate::machine) fn l3_buffer_bytes(topology: &Topology) -> Option<usize> {
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

pub(super) fn measure_team(
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
            // The directing thread sees the error and gives up; if it is gone, the send fails.
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
    use crate::machine::{Cache, CacheKind};

    #[test]
    fn best_rate_and_spread() {
        let found = best(&mut [50.0, 100.0, 80.0, 10.0, 90.0]);
        assert_eq!(found.value, 100.0);
        approx::assert_relative_eq!(found.spread, 0.2, max_relative = 1e-12);
    }

    #[test]
    fn buffers_per_cache_level() {
        let cache = |level, bytes: usize, cpus: &[usize]| Cache {
            level,
            kind: CacheKind::Unified,
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
}
