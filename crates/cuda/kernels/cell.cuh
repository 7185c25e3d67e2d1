// The new state of one unit from its pre-activations: the formulas of `src/reference/mod.rs`.
#pragma once

#ifdef CLIP
#define CLIPPED(z) clamp(CLIP, z)
#else
#define CLIPPED(z) (z)
#endif
#ifdef OUTPUT_CLIP
#define OUTPUT_CLIPPED(c) clamp(OUTPUT_CLIP, c)
#else
#define OUTPUT_CLIPPED(c) (c)
#endif

#if CELL == LSTM
// `z`: input, forget, candidate, output gate. Replaces the cell state `c`.
__device__ inline float new_state(const float (&z)[GATES], float& c, const float* peephole,
                                  int hidden) {
#if PEEPHOLES
  const float i = GATE(CLIPPED(fmaf(peephole[0], c, z[0])));
#else
  const float i = GATE(CLIPPED(z[0]));
#endif
#if INPUT_FORGET
  const float f = 1.0f - i;
#elif PEEPHOLES
  const float f = GATE(CLIPPED(fmaf(peephole[hidden], c, z[1])));
#else
  const float f = GATE(CLIPPED(z[1]));
#endif
  const float g = CANDIDATE(CLIPPED(z[2]));
  c = flush(fmaf(f, c, i * g));
#if PEEPHOLES
  const float o = GATE(CLIPPED(fmaf(peephole[2 * hidden], c, z[3])));
#else
  const float o = GATE(CLIPPED(z[3]));
#endif
  return flush(o * OUTPUT(OUTPUT_CLIPPED(c)));
}
#elif CELL == RNN
__device__ inline float new_state(const float (&z)[GATES]) { return flush(GATE(CLIPPED(z[0]))); }
#else
// Of a GRU or a light GRU: `update` and `candidate` are pre-activations, `h` the state before.
__device__ inline float new_state(float update, float candidate, float h) {
  const float z = GATE(CLIPPED(update));
  const float n = CANDIDATE(CLIPPED(candidate));
  return flush(fmaf(z, h, (1.0f - z) * n));
}
#endif
