// Elementary functions over the vector interface: the same arithmetic in every lane. NaN stays NaN:
// vmax(a, b) and vmin(a, b) give b where one is NaN, so the argument stands second.
#pragma once

namespace octavo {
namespace {

// 2^f on [-1/2, 1/2]: a polynomial of degree 6, relative error 1.3e-7.
OCTAVO_INLINE F32 exp2_fraction(F32 f) {
  F32 p = set1(1.540353039e-4f);
  p = fma(p, f, set1(1.333355815e-3f));
  p = fma(p, f, set1(9.618129108e-3f));
  p = fma(p, f, set1(5.550410866e-2f));
  p = fma(p, f, set1(2.402265070e-1f));
  p = fma(p, f, set1(6.931471806e-1f));
  return fma(p, f, set1(1.0f));
}

// 2^x: exact 0 below -126, where the result would be subnormal; 2^127 at most.
OCTAVO_INLINE F32 vexp2(F32 x) {
  const F32 low = set1(-126.0f);
  const F32 clamped = vmin(set1(127.0f), vmax(low, x));
  const F32 n = round_even(clamped);
  const F32 y = mul(exp2_fraction(sub(clamped, n)), pow2(n));
  return select_greater(low, x, set1(0.0f), y);
}

// 2^x of an x that is not positive, but for rounding: with fewer operations, exact 0 below -126.5,
// and subnormal from there to -126.
OCTAVO_INLINE F32 vexp2_of_negative(F32 x) {
  const F32 clamped = vmax(set1(-127.0f), x);
  const F32 n = round_even(clamped);
  return mul(exp2_fraction(sub(clamped, n)), pow2(n));
}

// e^x, by Cody and Waite's reduction: exact 0 below -87.3, at most 1.7e38.
OCTAVO_INLINE F32 vexp(F32 x) {
  const F32 low = set1(-87.3365f);
  const F32 clamped = vmin(set1(88.0f), vmax(low, x));
  const F32 n = round_even(mul(clamped, set1(1.442695041f)));
  F32 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F32 p = set1(1.388888889e-3f);
  p = fma(p, r, set1(8.333333333e-3f));
  p = fma(p, r, set1(4.166666667e-2f));
  p = fma(p, r, set1(1.666666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const F32 y = mul(p, pow2(n));
  return select_greater(low, x, set1(0.0f), y);
}

// tanh(x) = 1 - 2 / (e^2x + 1); near 0, where that cancels, its series.
OCTAVO_INLINE F32 vtanh(F32 x) {
  const F32 one = set1(1.0f);
  const F32 t = sub(one, div(set1(2.0f), add(vexp(add(x, x)), one)));
  const F32 square = mul(x, x);
  F32 p = set1(-5.396825397e-2f);
  p = fma(p, square, set1(1.333333333e-1f));
  p = fma(p, square, set1(-3.333333333e-1f));
  const F32 small = fma(mul(p, square), x, x);
  return select_greater(set1(0.04f), square, small, t);
}

OCTAVO_INLINE F32 silu(F32 x) { return div(x, add(set1(1.0f), vexp(sub(set1(0.0f), x)))); }

OCTAVO_INLINE F32 gelu_tanh(F32 x) {
  const F32 inner = mul(set1(0.7978845608f), fma(mul(mul(x, x), x), set1(0.044715f), x));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), vtanh(inner)));
}

// x * Phi(x), with erfc by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7, and relative to the
// tail on the negative side, because nothing cancels there).
OCTAVO_INLINE F32 gelu(F32 x) {
  const F32 zero = set1(0.0f), one = set1(1.0f);
  const F32 z = mul(vmax(x, sub(zero, x)), set1(0.7071067812f));
  const F32 t = div(one, fma(z, set1(0.3275911f), one));
  F32 p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const F32 half_erfc = mul(mul(mul(p, t), vexp(sub(zero, mul(z, z)))), set1(0.5f));
  return mul(x, select_greater(x, zero, sub(one, half_erfc), half_erfc));
}

}  // namespace
}  // namespace octavo
