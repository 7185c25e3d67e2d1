// The symbol of the greatest output of each row, the lowest of equal ones. NaN if an output is NaN.
#include "machine.cuh"

constexpr int THREADS = 256;

struct Choice {
  const float* outputs;  // [count, width]
  const int* rows;       // [count]: where the symbols are written
  float* symbols;
  int count;
  int width;
};

__device__ inline bool replaces(float value, int place, float best, int best_place) {
  if (place < 0) return false;
  if (best_place < 0) return true;
  if (best != best) return false;
  return value != value || value > best || (value == best && place < best_place);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    choose_symbols(const __grid_constant__ Choice run) {
  __shared__ float values[THREADS];
  __shared__ int places[THREADS];
  const int thread = threadIdx.x;
  for (int row = blockIdx.x; row < run.count; row += gridDim.x) {
    const float* outputs = run.outputs + static_cast<size_t>(row) * run.width;
    float best = 0.0f;
    int place = -1;
    for (int k = thread; k < run.width; k += THREADS) {
      const float value = outputs[k];
      if (replaces(value, k, best, place)) {
        best = value;
        place = k;
      }
    }
    values[thread] = best;
    places[thread] = place;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      const int other = thread + half;
      if (thread < half &&
          replaces(values[other], places[other], values[thread], places[thread])) {
        values[thread] = values[other];
        places[thread] = places[other];
      }
      __syncthreads();
    }
    if (thread == 0)
      run.symbols[run.rows[row]] =
          values[0] != values[0] ? values[0] : static_cast<float>(places[0]);
    // The next row uses the same places.
    __syncthreads();
  }
}
