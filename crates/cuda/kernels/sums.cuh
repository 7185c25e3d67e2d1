// Products of a state with the columns of a warp, in the order of sums of a GPU
// (`SumOrder::Lanes` of the reference): lane l adds the terms 128 i + 4 l to 128 i + 4 l + 3, and
// the lanes' sums are added in pairs.
#pragma once

constexpr int LANES = 32;
constexpr int CHUNK = 128;

// One chunk of terms: for each row of the state, four terms of each column.
template <int ROWS, int COLUMNS>
__device__ inline void add_chunk(float (&sums)[ROWS * COLUMNS], const float* state, int stride,
                                 const StoredWeights (&stored)[COLUMNS]) {
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const float4 h = *reinterpret_cast<const float4*>(state + row * stride);
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      const float4 w = widened(stored[column]);
      float& sum = sums[row * COLUMNS + column];
      sum = fmaf(h.x, w.x, sum);
      sum = fmaf(h.y, w.y, sum);
      sum = fmaf(h.z, w.z, sum);
      sum = fmaf(h.w, w.w, sum);
    }
  }
}

// Adds each of COUNT sums over the lanes; COUNT is a power of two, at most 32. Lane l returns the
// total of sum l * COUNT / 32. While a lane has several sums, it gives half of them away, so that
// COUNT totals take fewer shuffles than COUNT times one total.
template <int COUNT>
__device__ inline float total_over_lanes(float (&sums)[COUNT], int lane) {
  int count = COUNT;
#pragma unroll
  for (int lane_mask = LANES / 2; lane_mask > 0; lane_mask /= 2) {
    if (count > 1) {
      count /= 2;
      const bool upper = (lane & lane_mask) != 0;
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        if (i < count) {
          const float given = upper ? sums[i] : sums[i + count];
          const float kept = upper ? sums[i + count] : sums[i];
          sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, lane_mask);
        }
      }
    } else {
      sums[0] = sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], lane_mask);
    }
  }
  return sums[0];
}

__device__ constexpr int power_of_two_from(int count) {
  int power = 1;
  while (power < count && power < LANES) power *= 2;
  return power;
}

// The totals of COUNT sums over the lanes of the warp, written to `totals[place(i)]` for sum i.
template <int COUNT, typename Place>
__device__ inline void write_totals(const float (&sums)[COUNT], int lane, float* totals,
                                    Place place) {
  constexpr int AT_ONCE = power_of_two_from(COUNT);
  constexpr int LANES_EACH = LANES / AT_ONCE;
#pragma unroll
  for (int first = 0; first < COUNT; first += AT_ONCE) {
    float some[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) some[i] = first + i < COUNT ? sums[first + i] : 0.0f;
    const float total = total_over_lanes<AT_ONCE>(some, lane);
    const int index = first + lane / LANES_EACH;
    if (lane % LANES_EACH == 0 && index < COUNT) totals[place(index)] = total;
  }
}
