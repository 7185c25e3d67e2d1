// The activation functions of `src/reference/activation.rs`, operation by operation: the same bits.
// Compiled without contraction, so that `a * b + c` rounds twice and `fmaf` once.
#pragma once

// Unlike fmaxf and fminf these return NaN for NaN.
__device__ inline float at_least(float bound, float x) { return bound > x ? bound : x; }
__device__ inline float at_most(float bound, float x) { return bound < x ? bound : x; }

__device__ inline float power_of_two(int n) {
  return __uint_as_float((static_cast<unsigned>(n) + 127u) << 23);
}

// `factor * x`, rounded to the nearest integer.
__device__ inline float nearest(float factor, float x) {
  const float round = 12582912.0f;
  return fmaf(x, factor, round) - round;
}

// e^-x = 2^n (1 - g + g² tail).
struct ReducedExp {
  int n;
  float g;
  float tail;
};

__device__ inline ReducedExp exp_of_minus(float x) {
  float n = nearest(-1.44269504088896340736f, x);
  float g = fmaf(n, -1.9046542e-9f, fmaf(n, 0.693147180559945309417f, x));
  float tail = 0.0013838902f;
  tail = fmaf(tail, g, -0.0083691925f);
  tail = fmaf(tail, g, 0.041668102f);
  tail = fmaf(tail, g, -0.16666517f);
  tail = fmaf(tail, g, 0.49999994f);
  return {__float2int_rz(n), g, tail};
}

__device__ inline float sigmoid(float x) {
  ReducedExp e = exp_of_minus(at_least(-104.0f, at_most(104.0f, x)));
  float p = 1.0f + fmaf(e.g * e.g, e.tail, -e.g);
  int half = e.n >> 1;
  float c = power_of_two(-half), d = power_of_two(e.n - half);
  return c / fmaf(p, d, c);
}

__device__ inline float hyperbolic_tangent(float x) {
  float a = fabsf(x), magnitude;
  if (a < 0.625f) {
    float w = a * a;
    float p = -0.005668687f;
    p = fmaf(p, w, 0.02061035f);
    p = fmaf(p, w, -0.05373233f);
    p = fmaf(p, w, 0.13331376f);
    p = fmaf(p, w, -0.3333328f);
    magnitude = fmaf(a * w, p, a);
  } else {
    a = at_most(9.02f, a);
    float n = nearest(2.0f * 1.44269504088896340736f, a);
    float g = fmaf(n, -0.5f * 0.693147180559945309417f, a);
    float p = 0.08856897f;
    p = fmaf(p, g, 0.26781416f);
    p = fmaf(p, g, 0.66668963f);
    p = fmaf(p, g, 1.3333213f);
    p = fmaf(p, g, 1.9999998f);
    p = fmaf(p, g, 2.0f);
    p = fmaf(p, g, 1.0f);
    magnitude = 1.0f - 2.0f / fmaf(p, power_of_two(__float2int_rz(n)), 1.0f);
  }
  return copysignf(magnitude, x);
}

__device__ inline float relu(float x) { return at_least(0.0f, x); }
__device__ inline float affine(float x, float alpha, float beta) { return fmaf(alpha, x, beta); }
__device__ inline float leaky_relu(float x, float alpha) { return x >= 0.0f ? x : alpha * x; }
__device__ inline float thresholded_relu(float x, float alpha) { return x < alpha ? 0.0f : x; }

__device__ inline float scaled_tanh(float x, float alpha, float beta) {
  return alpha * hyperbolic_tangent(beta * x);
}

__device__ inline float hard_sigmoid(float x, float alpha, float beta) {
  return at_most(1.0f, at_least(0.0f, fmaf(alpha, x, beta)));
}

// e^x - 1 for x < 0, as (2^n - 1) + 2^n (e^-g - 1).
__device__ inline float exp_less_one(float x) {
  ReducedExp e = exp_of_minus(at_most(40.0f, fabsf(x)));
  float scale = power_of_two(e.n);
  return fmaf(scale * e.g, fmaf(e.g, e.tail, -1.0f), scale - 1.0f);
}

__device__ inline float elu(float x, float alpha) {
  return x >= 0.0f ? x : alpha * exp_less_one(x);
}

__device__ inline float softsign(float x) {
  const float largest = 3.40282346638528859812e+38f;
  x = at_least(-largest, at_most(largest, x));
  return x / (1.0f + fabsf(x));
}

__device__ inline float softplus(float x) {
  ReducedExp e = exp_of_minus(at_most(104.0f, fabsf(x)));
  float p = 1.0f + fmaf(e.g * e.g, e.tail, -e.g);
  int half = e.n >> 1;
  float u = p * power_of_two(e.n - half) * power_of_two(half);
  float t = u / fmaf(u, 0.5f, 1.0f);
  float w = t * t;
  float q = 0.00054719753f;
  q = fmaf(q, w, 0.0021876136f);
  q = fmaf(q, w, 0.012506718f);
  q = fmaf(q, w, 0.08333302f);
  return at_least(0.0f, x) + fmaf(t * w, q, t);
}

// A bound of a pre-activation; NaN stays NaN.
__device__ inline float clamp(float bound, float z) {
  return z > bound ? bound : z < -bound ? -bound : z;
}

// Zero if the state is tiny; NaN stays NaN.
__device__ inline float flush(float state) {
  return fabsf(state) < 5.42101086242752217e-20f ? 0.0f : state;
}
