// The products of the input for all steps, before the recurrence: one chain of fused
// multiply-adds for each output, from the bias, in the order of the features. These are the bits of
// the CPU's kernels.
//
// A prologue defines the weights' type.
#include "machine.cuh"
#include "weights.cuh"

constexpr int SIDE = 16;             // threads of a block: SIDE x SIDE
constexpr int EACH = 4;              // outputs of a thread: EACH x EACH
constexpr int BLOCK = SIDE * EACH;   // outputs of a block: BLOCK x BLOCK
constexpr int DEPTH = 16;            // features at once

struct Products {
  const float* input;    // [steps, batch, features]
  const void* weights;   // [columns, features]
  const float* bias;     // [columns]
  const int* lengths;    // [batch]
  float* output;         // [steps, batch, columns]
  int steps;
  int batch;
  int features;
  int columns;
};

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
    input_products(const __grid_constant__ Products run) {
  __shared__ float inputs[DEPTH][BLOCK + 1];
  __shared__ float weights[DEPTH][BLOCK + 1];
  const int thread = threadIdx.x;
  const int first_row = blockIdx.x * BLOCK, first_column = blockIdx.y * BLOCK;
  const int thread_row = thread / SIDE * EACH, thread_column = thread % SIDE * EACH;
  const int rows = run.steps * run.batch;

  float sums[EACH][EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int column = first_column + thread_column + j;
    const float bias = column < run.columns ? run.bias[column] : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sums[i][j] = bias;
  }

  for (int first = 0; first < run.features; first += DEPTH) {
    const int depth = min(DEPTH, run.features - first);
    for (int i = thread; i < BLOCK * DEPTH; i += SIDE * SIDE) {
      const int line = i / DEPTH, k = i % DEPTH;
      const int row = first_row + line, column = first_column + line;
      float input = 0.0f, weight = 0.0f;
      // Past the end of a sequence the input may hold anything, and the product is not read.
      if (k < depth && row < rows && row / run.batch < run.lengths[row % run.batch])
        input = run.input[static_cast<size_t>(row) * run.features + first + k];
      if (k < depth && column < run.columns)
        weight = widened_one(run.weights, static_cast<size_t>(column) * run.features + first + k);
      inputs[k][line] = input;
      weights[k][line] = weight;
    }
    __syncthreads();
    // Exactly the features that there are: a product of zeros could change the sign of a zero.
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j)
          sums[i][j] = fmaf(inputs[k][thread_row + i], weights[k][thread_column + j], sums[i][j]);
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < EACH; ++i)
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + thread_row + i, column = first_column + thread_column + j;
      if (row < rows && column < run.columns)
        run.output[static_cast<size_t>(row) * run.columns + column] = sums[i][j];
    }
}
