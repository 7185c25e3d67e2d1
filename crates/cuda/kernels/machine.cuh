// What differs between a GPU and the host that tests these kernels: memory that several threads
// use, and clusters. The tests have a header of the same name.
#pragma once

// The block's shared memory, whose size the launch gives.
#define BLOCK_MEMORY(name) \
  extern __shared__ float4 block_memory[]; \
  float* name = reinterpret_cast<float*>(block_memory)

// A value and the stamp of its step, which are written and read at once.
struct Stamped {
  unsigned stamp;
  float value;
};

__device__ inline void write_stamped(unsigned long long* at, Stamped word) {
  unsigned long long bits =
      (static_cast<unsigned long long>(word.stamp) << 32) | __float_as_uint(word.value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(bits) : "memory");
}

__device__ inline Stamped read_stamped(const unsigned long long* at) {
  unsigned long long bits;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
  return {static_cast<unsigned>(bits >> 32), __uint_as_float(static_cast<unsigned>(bits))};
}

// Writes a word that the host reads. What launches before this one wrote, it reads after the word.
__device__ inline void write_signal(unsigned* at, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Called in loops that wait for a word. On a GPU other warps run meanwhile.
__device__ inline void spin_hint() {}

#if CLUSTER
// The place of `here`, in the shared memory of this block, in that of another block.
__device__ inline float* in_block(float* here, unsigned rank) {
  float* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
  return there;
}

// Waits for all threads of the cluster. What they wrote before it, all read after it. Not
// `.aligned`: the threads of a warp may come from different branches.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
#endif
