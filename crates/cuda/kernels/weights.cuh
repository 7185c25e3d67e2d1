// Weights as they are stored, four neighbours at a time, and their values.
#pragma once

#if WEIGHTS == WEIGHTS_F32
typedef float4 StoredWeights;

__device__ inline float4 widened(StoredWeights w) { return w; }

__device__ inline float widened_one(const void* weights, size_t index) {
  return static_cast<const float*>(weights)[index];
}
#else
typedef uint2 StoredWeights;

#if WEIGHTS == WEIGHTS_BF16
__device__ inline float of_half(unsigned half) { return __uint_as_float(half << 16); }
#else
// binary16 to binary32, which is exact. Subnormal numbers and zeros have an exponent of 0; the
// subtraction brings their digits to the front. Weights are finite.
__device__ inline float of_half(unsigned half) {
  unsigned sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
  float normal = __uint_as_float(rest + (112u << 23));
  float small = __uint_as_float(rest + (113u << 23)) - __uint_as_float(113u << 23);
  return __uint_as_float(sign | __float_as_uint((half & 0x7c00u) ? normal : small));
}
#endif

__device__ inline float4 widened(StoredWeights w) {
  return make_float4(of_half(w.x & 0xffffu), of_half(w.x >> 16), of_half(w.y & 0xffffu),
                     of_half(w.y >> 16));
}

__device__ inline float widened_one(const void* weights, size_t index) {
  return of_half(static_cast<const unsigned short*>(weights)[index]);
}
#endif
