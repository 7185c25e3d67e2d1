// Rows of an array, one after the other.
#include "machine.cuh"

struct Gathered {
  const float* from;  // [.., width]
  const int* rows;    // [count]
  float* to;          // [count, width]
  int count;
  int width;
};

extern "C" __global__ void gather_rows(const __grid_constant__ Gathered run) {
  for (int i = blockIdx.x; i < run.count; i += gridDim.x) {
    const float* from = run.from + static_cast<size_t>(run.rows[i]) * run.width;
    float* to = run.to + static_cast<size_t>(i) * run.width;
    for (int k = threadIdx.x; k < run.width; k += blockDim.x) to[k] = from[k];
  }
}
