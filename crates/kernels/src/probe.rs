//! Loops that do nothing but keep one resource busy, so that timing them gives a machine's
//! ceilings.
//!
//! [`fma_chains`] keeps the FMA units busy: one chain `a = fma(a, m, c)` waits for its own latency
//! (4 or 5 cycles on the cores that matter), so it takes latency x units independent chains to fill
//! the units, all in registers. [`dot_chains`] does the same with int8 dot products. [`read_sum`]
//! keeps the load ports busy: every loaded vector goes into one integer addition, the cheapest
//! thing that still forces the load.

use super::simd::{Dot, DotJob, Simd};
use super::{Isa, IsaError, Visitor, dispatch};
use std::hint::black_box;

/// Vectors summed side by side in [`read_sum`]; also how far its loop is unrolled.
const READ_STREAMS: usize = 8;

/// Runs `steps` fused multiply-adds on every chain; returns how many flops that was (two for each
/// lane of each multiply-add).
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks `isa`.
pub fn fma_chains(isa: Isa, steps: u64) -> Result<u64, IsaError> {
    struct Chains(u64);
    impl Visitor for Chains {
        type Out = u64;
        fn visit<S: Simd>(self, s: S) -> u64 {
            // Three quarters of the registers: more than latency x units (4 x 2 on x86, 4 x 4 on
            // NEON), and no spills.
            if S::REGISTERS >= 32 {
                run::<S, 24>(s, self.0)
            } else {
                run::<S, 12>(s, self.0)
            }
        }
    }
    fn run<S: Simd, const CHAINS: usize>(s: S, steps: u64) -> u64 {
        let (factor, summand) = black_box((0.75f32, 0.5f32));
        let sums = s.vectorize(
            #[inline(always)]
            || {
                let (factor, summand) = (s.splat(factor), s.splat(summand));
                // The chains settle at 2, far from subnormals and infinity.
                let mut chains = [s.splat(1.0); CHAINS];
                for _ in 0..steps {
                    for chain in &mut chains {
                        *chain = s.fma(*chain, factor, summand);
                    }
                }
                let mut out = [0.0; 64];
                for chain in chains {
                    black_box(&mut out);
                    s.store(chain, &mut out);
                }
                out
            },
        );
        black_box(sums);
        steps * (2 * CHAINS * S::LANES) as u64
    }
    dispatch(isa, Chains(steps))
}

/// Runs `steps` int8 dot products on every chain, with the quickest instruction of this CPU;
/// returns how many operations that was (two for each of the four bytes of each lane).
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks `isa`.
pub fn dot_chains(isa: Isa, steps: u64) -> Result<u64, IsaError> {
    let done = run_dot_chains(isa, steps, WEIGHTS)?;
    black_box(done.chains);
    Ok(done.operations)
}

/// Weights of a lane of [`dot_chains`]. With four equal bytes they make 0, so that a chain, which
/// is its own left operand, keeps the value it starts from and no byte leaves ±127.
const WEIGHTS: [i8; 4] = [100, -75, 50, -75];

/// What [`run_dot_chains`] did.
struct DotsDone {
    operations: u64,
    /// By chain: what each lane held at the start, and what its first lane holds now.
    chains: Vec<(i32, i32)>,
}

fn run_dot_chains(isa: Isa, steps: u64, weights: [i8; 4]) -> Result<DotsDone, IsaError> {
    struct Chains(u64, [i8; 4]);
    impl Visitor for Chains {
        type Out = DotsDone;
        fn visit<S: Simd>(self, s: S) -> DotsDone {
            // The latency is 4 or 5 cycles here, too; with more chains compilers have kept some in
            // memory.
            if S::REGISTERS >= 32 {
                run::<S, 16>(s, self)
            } else {
                run::<S, 12>(s, self)
            }
        }
    }
    struct Job<'a, const CHAINS: usize> {
        steps: u64,
        weights: i32,
        starts: [i32; CHAINS],
        ends: &'a mut [i32; CHAINS],
    }
    impl<S: Simd, const CHAINS: usize> DotJob<S> for Job<'_, CHAINS> {
        #[inline(always)]
        fn run<D: Dot<S>>(self, s: S, dot: D) {
            let weights = s.splat_i32(self.weights);
            let mut chains = [weights; CHAINS];
            for (chain, &start) in chains.iter_mut().zip(&self.starts) {
                *chain = s.splat_i32(start);
            }
            for _ in 0..self.steps {
                for chain in &mut chains {
                    // Were the left operand constant, what does not add up on its own would be
                    // worked out once, before the loop.
                    *chain = dot.dot4(s, *chain, *chain, weights);
                }
            }
            let mut out = [0.0; 64];
            for (chain, end) in chains.into_iter().zip(self.ends) {
                s.store(s.from_bits(chain), black_box(&mut out));
                *end = out[0].to_bits() as i32;
            }
        }
    }
    fn run<S: Simd, const CHAINS: usize>(s: S, Chains(steps, weights): Chains) -> DotsDone {
        // Chains that start alike would be one.
        let starts = std::array::from_fn(|chain| {
            let byte = (chain as i32 + 1 + S::BYTE_ZERO) as u8;
            i32::from_ne_bytes([byte; 4])
        });
        let weights = i32::from_ne_bytes(weights.map(|weight| weight as u8));
        let (starts, weights) = black_box((starts, weights));
        let mut ends = [0; CHAINS];
        let job = Job::<CHAINS> {
            steps,
            weights,
            starts,
            ends: &mut ends,
        };
        s.with_dot(false, job);
        DotsDone {
            operations: steps * (2 * 4 * CHAINS * S::LANES) as u64,
            chains: starts.into_iter().zip(ends).collect(),
        }
    }
    dispatch(isa, Chains(steps, weights))
}

/// Reads `data` from front to back `passes` times, and returns the wrapping sum of the bit patterns
/// of all that was read.
///
/// # Errors
/// [`IsaError::Unavailable`] if this CPU lacks `isa`.
pub fn read_sum(isa: Isa, data: &[f32], passes: usize) -> Result<u32, IsaError> {
    struct Read<'a>(&'a [f32], usize);
    impl Visitor for Read<'_> {
        type Out = u32;
        fn visit<S: Simd>(self, s: S) -> u32 {
            let Read(data, passes) = self;
            let tail = data.len() % (READ_STREAMS * S::LANES);
            let (vectors, rest) = data.split_at(data.len() - tail);
            let mut lanes = [0.0f32; 64];
            s.vectorize(
                #[inline(always)]
                || {
                    // The sums live in registers across passes: an L1 pass takes some 200 cycles,
                    // and adding up lanes after each would show.
                    let mut sums = [s.splat_i32(0); READ_STREAMS];
                    for _ in 0..passes {
                        // Hiding where the data comes from keeps the compiler from reading it once.
                        let vectors = black_box(vectors);
                        for block in vectors.chunks_exact(READ_STREAMS * S::LANES) {
                            for (stream, sum) in sums.iter_mut().enumerate() {
                                let vector = s.load(&block[stream * S::LANES..]);
                                *sum = s.add_i32(*sum, s.to_bits(vector));
                            }
                        }
                    }
                    let mut all = sums[0];
                    for &sum in &sums[1..] {
                        all = s.add_i32(all, sum);
                    }
                    s.store(s.from_bits(all), &mut lanes);
                },
            );
            let total = |of: &[f32]| of.iter().fold(0u32, |sum, x| sum.wrapping_add(x.to_bits()));
            total(&lanes[..S::LANES]).wrapping_add(total(rest).wrapping_mul(passes as u32))
        }
    }
    dispatch(isa, Read(data, passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_read_once_a_pass() {
        // Distinct bit patterns, so that a skipped, doubled or swapped-in element changes the sum.
        let data: Vec<f32> = (1..=1003)
            .map(|i: u32| f32::from_bits(i * i * 4096 + i))
            .collect();
        for isa in Isa::available() {
            for len in [0, 1, 31, 127, 128, 129, 256, 1003] {
                let expected: u64 = data[..len].iter().map(|x| u64::from(x.to_bits()) * 3).sum();
                assert_eq!(
                    read_sum(isa, &data[..len], 3),
                    Ok(expected as u32),
                    "{isa} {len}"
                );
            }
        }
    }

    #[test]
    fn every_chain_adds_a_dot_product_a_step() {
        for isa in Isa::available() {
            let kept = run_dot_chains(isa, 5, WEIGHTS).unwrap();
            assert!(kept.chains.iter().all(|(start, end)| start == end), "{isa}");
            // Other weights: one step adds four times each chain's own value, and where the left
            // operand is unsigned maybe the zero that it stands above, times the sum of the
            // weights.
            let moved = run_dot_chains(isa, 1, [1; 4]).unwrap();
            for (chain, (start, end)) in moved.chains.iter().enumerate() {
                let added = end - start - 4 * (chain as i32 + 1);
                assert!(added == 0 || added == 4 * 128, "{isa} {chain}: {added}");
            }
        }
    }

    #[test]
    fn dot_products_are_counted_four_to_a_lane() {
        for isa in Isa::available() {
            let one = dot_chains(isa, 1).unwrap();
            assert_eq!(dot_chains(isa, 10).unwrap(), 10 * one);
            let lanes = match isa {
                Isa::Avx512 => 16,
                Isa::Avx2 => 8,
                Isa::Neon => 4,
                Isa::Portable => continue,
            };
            let chains = run_dot_chains(isa, 1, WEIGHTS).unwrap().chains.len();
            assert_eq!(one, 2 * 4 * lanes * chains as u64);
        }
    }

    #[test]
    fn flops_are_counted_per_lane() {
        for isa in Isa::available() {
            let one = fma_chains(isa, 1).unwrap();
            assert_eq!(fma_chains(isa, 10).unwrap(), 10 * one);
            let lanes = match isa {
                Isa::Avx512 => 16,
                Isa::Avx2 => 8,
                Isa::Neon => 4,
                Isa::Portable => continue,
            };
            assert_eq!(one % (2 * lanes), 0);
        }
    }
}
