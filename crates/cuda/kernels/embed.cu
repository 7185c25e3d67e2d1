// The features of symbols: a row of a table each, or NaN for a symbol that has none.
#include "machine.cuh"

struct Lookup {
  const float* symbols;  // whole numbers
  const int* rows;       // [count]: where the symbols are, if they are not one after the other
  const float* table;    // [known, features]
  float* to;             // [count, features]
  int count;
  int features;
  int known;
  int unused;
};

extern "C" __global__ void embed_rows(const __grid_constant__ Lookup run) {
  for (int i = blockIdx.x; i < run.count; i += gridDim.x) {
    const float symbol = run.symbols[run.rows ? run.rows[i] : i];
    const bool has_row = symbol >= 0.0f && symbol < static_cast<float>(run.known) &&
                         static_cast<float>(static_cast<int>(symbol)) == symbol;
    const size_t from = has_row ? static_cast<size_t>(symbol) * run.features : 0;
    float* to = run.to + static_cast<size_t>(i) * run.features;
    for (int k = threadIdx.x; k < run.features; k += blockDim.x)
      to[k] = has_row ? run.table[from + k] : __uint_as_float(0x7fc00000u);
  }
}
