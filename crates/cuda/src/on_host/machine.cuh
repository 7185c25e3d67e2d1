// The host's `machine.cuh`: a thread for each thread of CUDA, barriers of the system, and atomic
// words. The text of the kernels is the device's.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

using std::min;

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
// Of kernels whose blocks run one after the other.
#define __shared__ static

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
// As a device: 0 for NaN, the nearest end of the range for what is out of it.
inline int __float2int_rz(float value) {
  if (value != value) return 0;
  return static_cast<int>(std::max(-2147483648.0, std::min(2147483647.0, double(value))));
}

namespace host {

class Barrier {
 public:
  explicit Barrier(unsigned count) { pthread_barrier_init(&barrier_, nullptr, count); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

struct Warp {
  Barrier barrier{32};
  float given[32];
};

struct Block;

struct Cluster {
  explicit Cluster(unsigned threads) : barrier(threads) {}
  Barrier barrier;
  std::vector<Block*> blocks;
};

struct Block {
  Block(unsigned threads, size_t bytes, Cluster* of)
      : barrier(threads), warps(threads / 32), memory(bytes / sizeof(float4) + 1), cluster(of) {}
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<float4> memory;
  Cluster* cluster;
};

struct Index {
  unsigned x, y, z;
};

inline thread_local Block* block;

}  // namespace host

inline thread_local host::Index threadIdx, blockIdx;
inline host::Index blockDim, gridDim;

#define BLOCK_MEMORY(name) float* name = reinterpret_cast<float*>(host::block->memory.data())

inline void __syncthreads() { host::block->barrier.wait(); }

inline float __shfl_xor_sync(unsigned, float value, int lane_mask) {
  host::Warp& warp = host::block->warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  warp.given[lane] = value;
  warp.barrier.wait();
  const float other = warp.given[lane ^ lane_mask];
  warp.barrier.wait();
  return other;
}

struct Stamped {
  unsigned stamp;
  float value;
};

// Words are relaxed, as on a device: nothing but the word itself is ordered by them.
inline void write_stamped(unsigned long long* at, Stamped word) {
  const unsigned long long bits =
      (static_cast<unsigned long long>(word.stamp) << 32) | __float_as_uint(word.value);
  std::atomic_ref<unsigned long long>(*at).store(bits, std::memory_order_relaxed);
}

inline Stamped read_stamped(const unsigned long long* at) {
  const unsigned long long bits =
      std::atomic_ref<unsigned long long>(*const_cast<unsigned long long*>(at))
          .load(std::memory_order_relaxed);
  return {static_cast<unsigned>(bits >> 32), __uint_as_float(static_cast<unsigned>(bits))};
}

inline void write_signal(unsigned* at, unsigned value) {
  std::atomic_ref<unsigned>(*at).store(value, std::memory_order_release);
}

inline void spin_hint() { sched_yield(); }

inline float* in_block(float* here, unsigned rank) {
  const float* memory = reinterpret_cast<const float*>(host::block->memory.data());
  host::Block* other = host::block->cluster->blocks[rank];
  return reinterpret_cast<float*>(other->memory.data()) + (here - memory);
}

inline void cluster_barrier() { host::block->cluster->barrier.wait(); }
