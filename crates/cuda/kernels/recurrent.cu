// A sequence in one launch. Each warp owns UNITS units of one direction: it keeps their weights in
// registers and shared memory, as far as they fit, and reads the others each step. Blocks exchange
// the state once a step; see README.md, "Exchange".
//
// A prologue defines CELL, GATES, GATE(x), CANDIDATE(x), OUTPUT(x), the weights' type, and the
// plan: WARPS, UNITS, TILE, CHUNKS, REGISTER_CHUNKS, SHARED_CHUNKS, CLUSTER.
#include "machine.cuh"
#include "activation.cuh"
#include "weights.cuh"
#include "sums.cuh"
#include "cell.cuh"

constexpr int THREADS = WARPS * LANES;
constexpr int COLUMNS = UNITS * GATES;
// Units of a block.
constexpr int BLOCK_UNITS = WARPS * UNITS;
// Values of a padded row of the state.
constexpr int STRIDE = CHUNKS * CHUNK;
// The first columns of a unit: all, or those before the reset gate acts.
constexpr int FIRST_GATES = CELL == GRU_BEFORE ? 2 : GATES;
static_assert(TILE * BLOCK_UNITS <= THREADS, "a thread has one unit and row of a tile at most");

// The arrays of one direction. Rows are sequences, from the longest to the shortest.
struct Direction {
  const float* input;             // [steps, batch, GATES * hidden] products of the input and biases
  const StoredWeights* weights;   // in the order of `weights.rs`
  const float* candidate_bias;    // [hidden], GRU that resets after the product
  const float* peepholes;         // [3, hidden]: to input, forget and output gate
  float* states;                  // [rows, hidden]: before the first step at `from_rows`, after the
                                  // last one of each sequence at `to_rows`
  float* cell;                    // [rows, hidden] cell states, as `states`
  float* output;                  // [steps, batch, output_stride], of which `hidden` are written
  unsigned long long* exchanged;  // [2, batch, hidden] stamped states; [2, ...] more before a reset
  int is_reverse;
  int unused;
};

struct Sequences {
  Direction directions[2];
  const int* lengths;    // [batch], descending
  // [batch]. No block writes a row that another reads: the two rows of a sequence differ.
  const int* from_rows;
  const int* to_rows;
  int batch;
  int hidden;
  int output_stride;
  unsigned stamp;  // of step 0; the next launch that exchanges here has larger ones
};

// The states of a sequence, at one of these rows.
__device__ inline float* state_of(float* states, const int* rows, int row, int hidden) {
  return states + static_cast<size_t>(rows[row]) * hidden;
}

// The weights of this warp, where they are.
struct WarpWeights {
  StoredWeights held[REGISTER_CHUNKS > 0 ? REGISTER_CHUNKS : 1][COLUMNS];
  const StoredWeights* shared;
  const StoredWeights* streamed;
};

// Adds the products of gates FIRST to FIRST + COUNT of the warp's units with a tile of states.
template <int FIRST, int COUNT>
__device__ inline void products(const WarpWeights& weights, const float* state, float* totals,
                                int warp, int lane) {
  float sums[TILE * UNITS * COUNT] = {};
  const float* at = state + lane * 4;
  StoredWeights some[UNITS * COUNT];
#pragma unroll
  for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
#pragma unroll
    for (int column = 0; column < UNITS * COUNT; ++column)
      some[column] = weights.held[chunk][column / COUNT * GATES + FIRST + column % COUNT];
    add_chunk<TILE, UNITS * COUNT>(sums, at, STRIDE, some);
    at += CHUNK;
  }
#pragma unroll 1
  for (int chunk = 0; chunk < CHUNKS - REGISTER_CHUNKS; ++chunk) {
    const StoredWeights* from = chunk < SHARED_CHUNKS
                                    ? weights.shared + chunk * COLUMNS * LANES
                                    : weights.streamed + (chunk - SHARED_CHUNKS) * COLUMNS * LANES;
#pragma unroll
    for (int column = 0; column < UNITS * COUNT; ++column)
      some[column] = from[(column / COUNT * GATES + FIRST + column % COUNT) * LANES + lane];
    add_chunk<TILE, UNITS * COUNT>(sums, at, STRIDE, some);
    at += CHUNK;
  }
  // Sums are [TILE, UNITS, COUNT]; totals are [TILE, BLOCK_UNITS, GATES].
  write_totals<TILE * UNITS * COUNT>(sums, lane, totals, [&](int index) {
    const int row = index / (UNITS * COUNT), column = index % (UNITS * COUNT);
    return (row * BLOCK_UNITS + warp * UNITS + column / COUNT) * GATES + FIRST + column % COUNT;
  });
}

// Copies `hidden` values with this stamp, as soon as they have arrived.
__device__ inline void await_row(const unsigned long long* from, unsigned stamp, float* to,
                                 int hidden) {
  constexpr int AT_ONCE = 4;
  for (int first = threadIdx.x; first < hidden; first += AT_ONCE * THREADS) {
    Stamped words[AT_ONCE];
    bool arrived;
    do {
      arrived = true;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int k = first + i * THREADS;
        if (k < hidden) {
          words[i] = read_stamped(from + k);
          arrived &= words[i].stamp == stamp;
        }
      }
      if (!arrived) spin_hint();
    } while (!arrived);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (first + i * THREADS < hidden) to[first + i * THREADS] = words[i].value;
  }
}

#if CLUSTER
#define CLUSTER_SIZE __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER_SIZE
#endif

extern "C" __global__ void CLUSTER_SIZE __launch_bounds__(THREADS, 1)
    recurrent(const __grid_constant__ Sequences run) {
  const Direction& direction = run.directions[blockIdx.y];
  const int hidden = run.hidden, batch = run.batch;
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  const int padded_batch = (batch + TILE - 1) / TILE * TILE;

  // Shared memory: weights; tiles of states; totals.
  BLOCK_MEMORY(memory);
  StoredWeights* shared = reinterpret_cast<StoredWeights*>(memory);
  float* states = reinterpret_cast<float*>(shared + WARPS * SHARED_CHUNKS * COLUMNS * LANES);
  // With a cluster the states of all rows, twice, and those that a reset gate has acted on;
  // otherwise two tiles.
  const int state_rows = CLUSTER ? (CELL == GRU_BEFORE ? 3 : 2) * padded_batch : 2 * TILE;
  float* totals = states + state_rows * STRIDE;
  for (int i = thread; i < state_rows * STRIDE; i += THREADS) states[i] = 0.0f;

  WarpWeights weights;
  const StoredWeights* all =
      direction.weights +
      static_cast<size_t>(blockIdx.x * WARPS + warp) * CHUNKS * COLUMNS * LANES;
#pragma unroll
  for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column)
      weights.held[chunk][column] = all[(chunk * COLUMNS + column) * LANES + lane];
  all += REGISTER_CHUNKS * COLUMNS * LANES;
  StoredWeights* here = shared + warp * SHARED_CHUNKS * COLUMNS * LANES;
  // A lane reads only what it copies itself.
  for (int i = lane; i < SHARED_CHUNKS * COLUMNS * LANES; i += LANES) here[i] = all[i];
  weights.shared = here;
  weights.streamed = all + SHARED_CHUNKS * COLUMNS * LANES;

  // The row of a tile and the unit whose state this thread computes.
  const int tile_row = thread / BLOCK_UNITS, block_unit = thread % BLOCK_UNITS;
  const int unit = blockIdx.x * BLOCK_UNITS + block_unit;
  const bool has_unit = tile_row < TILE && unit < hidden;
  __syncthreads();

#if CLUSTER
  const size_t parity_size = static_cast<size_t>(padded_batch) * STRIDE;
  for (int row = 0; row < batch; ++row) {
    const float* initial = state_of(direction.states, run.from_rows, row, hidden);
    for (int k = thread; k < hidden; k += THREADS) states[row * STRIDE + k] = initial[k];
  }
  // No block writes states here before all have begun.
  cluster_barrier();
#else
  int round = 0;  // Tiles so far: they take turns with the two places.
#endif

  for (int step = 0; step < run.lengths[0]; ++step) {
    for (int tile = 0; tile < batch && run.lengths[tile] > step; tile += TILE) {
      const int row = tile + tile_row;
      const int length = row < batch ? run.lengths[row] : 0;
      const bool computes = has_unit && length > step;
      const int position = direction.is_reverse ? length - 1 - step : step;
      const size_t place = static_cast<size_t>(position) * batch + row;

      // Read before the wait for other blocks.
      float z[GATES] = {};
      if (computes) {
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate)
          z[gate] = direction.input[(place * GATES + gate) * hidden + unit];
      }
#if CELL == LSTM
      const int* cell_rows = step == 0 ? run.from_rows : run.to_rows;
      float c = computes ? state_of(direction.cell, cell_rows, row, hidden)[unit] : 0.0f;
#endif

#if CLUSTER
      const float* state = states + (step & 1) * parity_size + static_cast<size_t>(tile) * STRIDE;
#else
      const size_t at = static_cast<size_t>(row) * hidden + unit;  // of the words exchanged
      float* state = states + (round & 1) * TILE * STRIDE;
      round++;
      for (int i = 0; i < TILE && tile + i < batch && run.lengths[tile + i] > step; ++i) {
        if (step == 0) {
          const float* initial = state_of(direction.states, run.from_rows, tile + i, hidden);
          for (int k = thread; k < hidden; k += THREADS) state[i * STRIDE + k] = initial[k];
        } else {
          const size_t from = static_cast<size_t>(tile + i) * hidden;
          const size_t parity = (step - 1) & 1;
          await_row(direction.exchanged + parity * batch * hidden + from, run.stamp + step - 1,
                    state + i * STRIDE, hidden);
        }
      }
      __syncthreads();
#endif
      products<0, FIRST_GATES>(weights, state, totals, warp, lane);
      __syncthreads();

      const float* total = totals + (tile_row * BLOCK_UNITS + block_unit) * GATES;
      float h = 0.0f;
#if CELL != LSTM && CELL != RNN
      // The state of this unit before the step.
      const float before = computes ? state[tile_row * STRIDE + unit] : 0.0f;
#endif
      if (computes) {
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
          if (CELL == GRU_AFTER && gate == 2) continue;
          if (gate < FIRST_GATES) z[gate] = z[gate] + total[gate];
        }
#if CELL == LSTM
        h = new_state(z, c, PEEPHOLES ? direction.peepholes + unit : nullptr, hidden);
        state_of(direction.cell, run.to_rows, row, hidden)[unit] = c;
#elif CELL == RNN
        h = new_state(z);
#elif CELL == LIGHT_GRU
        h = new_state(z[0], z[1], before);
#elif CELL == GRU_AFTER
        const float reset = GATE(CLIPPED(z[0]));
        const float product = direction.candidate_bias[unit] + total[2];
        h = new_state(z[1], fmaf(reset, product, z[2]), before);
#endif
      }

#if CELL == GRU_BEFORE
      // A second exchange: the candidate's product is with the states that the reset gates of all
      // units have acted on.
      const float reset_state = computes ? GATE(CLIPPED(z[0])) * before : 0.0f;
#if CLUSTER
      float* reset_states = states + 2 * parity_size + static_cast<size_t>(tile) * STRIDE;
      if (computes)
        for (unsigned block = 0; block < gridDim.x; ++block)
          *in_block(reset_states + tile_row * STRIDE + unit, block) = reset_state;
      cluster_barrier();
#else
      unsigned long long* exchanged =
          direction.exchanged + static_cast<size_t>(2 + (step & 1)) * batch * hidden;
      if (computes) write_stamped(exchanged + at, {run.stamp + step, reset_state});
      float* reset_states = states + (round & 1) * TILE * STRIDE;
      round++;
      for (int i = 0; i < TILE && tile + i < batch && run.lengths[tile + i] > step; ++i)
        await_row(exchanged + static_cast<size_t>(tile + i) * hidden, run.stamp + step,
                  reset_states + i * STRIDE, hidden);
      __syncthreads();
#endif
      products<2, 1>(weights, reset_states, totals, warp, lane);
      __syncthreads();
      if (computes) h = new_state(z[1], z[2] + total[2], before);
#endif

      if (computes) {
#if CLUSTER
        float* next = states + ((step + 1) & 1) * parity_size +
                      static_cast<size_t>(row) * STRIDE + unit;
        for (unsigned block = 0; block < gridDim.x; ++block) *in_block(next, block) = h;
#else
        write_stamped(direction.exchanged + static_cast<size_t>(step & 1) * batch * hidden + at,
                      {run.stamp + step, h});
#endif
        direction.output[place * run.output_stride + unit] = h;
        if (step + 1 == length)
          state_of(direction.states, run.to_rows, row, hidden)[unit] = h;
      }
#if CLUSTER
      // The next tile has totals of its own in the same place.
      __syncthreads();
#endif
    }
#if CLUSTER
    cluster_barrier();
#endif
  }
}
