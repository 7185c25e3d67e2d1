// The outputs of two directions, added.
#include "machine.cuh"

struct Pairs {
  const float* from;  // [rows, 2, width]
  float* to;          // [rows, width]
  int rows;
  int width;
};

extern "C" __global__ void add_directions(const __grid_constant__ Pairs run) {
  for (int row = blockIdx.x; row < run.rows; row += gridDim.x) {
    const float* pair = run.from + static_cast<size_t>(row) * 2 * run.width;
    float* sum = run.to + static_cast<size_t>(row) * run.width;
    for (int k = threadIdx.x; k < run.width; k += blockDim.x)
      sum[k] = pair[k] + pair[run.width + k];
  }
}
