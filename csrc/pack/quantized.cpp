#include "pack/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd/generic.h"

namespace octavo {
namespace {

using u8 = std::uint8_t;

constexpr int kMaxGroup = 64;
static_assert(kLanes == kQuad);

// float16, round to nearest even; too large becomes infinite.
std::uint16_t to_half(float x) {
  const std::uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: a multiple of 2^-24, by rounding at that place
    const float placed = bits_float(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_bits(placed) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

std::int64_t code_bytes(const WeightTraits& t, std::int64_t count) {
  return count * kPanel * t.bits / 8;
}

std::int64_t block_bytes(const WeightTraits& t) {
  return code_bytes(t, t.group) + kPanel * t.scale_bytes * (t.has_min ? 2 : 1);
}

// `count` codes, a multiple of 4, into a column.
void put_codes(const WeightTraits& t, const u8* codes, int count, int column, char* out) {
  u8 bytes[kMaxGroup];
  if (t.bits == 4) {
    count /= 2;
    for (int i = 0; i < count; ++i) bytes[i] = static_cast<u8>(codes[i] | codes[count + i] << 4);
    codes = bytes;
  }
  for (int i = 0; i < count; i += 4) {
    std::memcpy(out + i * kPanel + column * 4, codes + i, 4);
  }
}

void put_scale(const WeightTraits& t, float scale, int column, char* out) {
  if (t.scale_bytes == 2) {
    const std::uint16_t h = to_half(scale);
    std::memcpy(out + column * 2, &h, 2);
  } else {
    std::memcpy(out + column * 4, &scale, 4);
  }
}

void put_group(const WeightTraits& t, const u8* codes, float scale, float min, int column,
               char* block) {
  char* scales = block + code_bytes(t, t.group);
  put_codes(t, codes, t.group, column, block);
  put_scale(t, scale, column, scales);
  if (t.has_min) put_scale(t, min, column, scales + kPanel * t.scale_bytes);
}

// Of a whole number of quads.
float magnitude(const float* x, std::int64_t count) {
  F32 max = set1(0.0f);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const F32 v = load(x + i);
    max = vmax(vmax(v, set1(0.0f) - v), max);
  }
  return reduce_max(max);
}

// x rounded, from `low` to `high`; `low` for what is no number.
F32 to_code(F32 x, float low, float high) {
  return round_even(vmin(vmax(x, set1(low)), set1(high)));
}

void narrow(const std::int32_t* wide, int count, u8* codes) {
  for (int i = 0; i < count; ++i) codes[i] = static_cast<u8>(wide[i]);
}

void store_wide(std::int32_t* p, F32 code) {
  const I32x4 wide = __builtin_convertvector(code, I32x4);
  std::memcpy(p, &wide, sizeof wide);
}

// Codes of scale * (code - zero_point), from the largest magnitude; returns the scale.
float quantize_symmetric(const WeightTraits& t, const float* x, int count, float max, u8* codes) {
  const float limit = static_cast<float>((1 << (t.bits - 1)) - 1);
  float scale = max / limit;
  if (t.scale_bytes == 2) scale = half_to_float(to_half(scale));
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const F32 zero_point = set1(static_cast<float>(t.zero_point));
  std::int32_t wide[kMaxGroup];
  for (int i = 0; i < count; i += kLanes) {
    store_wide(wide + i, to_code(load(x + i) * inverse, -limit, limit) + zero_point);
  }
  narrow(wide, count, codes);
  return scale;
}

struct Affine {
  float scale, min;
};

// Codes of scale * code + min, as numbers; returns the sum of squared errors. Sums over a group are
// four, of every fourth element, added at the end.
float round_affine(const float* x, int count, float levels, Affine a, float* codes) {
  const float inverse = a.scale > 0.0f ? 1.0f / a.scale : 0.0f;
  F32 error = set1(0.0f);
  for (int i = 0; i < count; i += kLanes) {
    const F32 v = load(x + i), code = to_code((v - a.min) * inverse, 0.0f, levels);
    const F32 difference = a.scale * code + a.min - v;
    store(codes + i, code);
    error += difference * difference;
  }
  return reduce_add(error);
}

// Scale and minimum that fit x to given codes best (least squares).
Affine fit(const float* x, int count, const float* codes, Affine fallback) {
  F32 sum_q = set1(0.0f), sum_qq = sum_q, sum_v = sum_q, sum_qv = sum_q;
  for (int i = 0; i < count; i += kLanes) {
    const F32 code = load(codes + i), value = load(x + i);
    sum_q += code;
    sum_qq += code * code;
    sum_v += value;
    sum_qv += code * value;
  }
  const float n = static_cast<float>(count), q = reduce_add(sum_q), qq = reduce_add(sum_qq);
  const float v = reduce_add(sum_v), qv = reduce_add(sum_qv);
  const float determinant = n * qq - q * q;
  if (determinant <= 0.0f) return fallback;
  const Affine a{(n * qv - q * v) / determinant, (qq * v - q * qv) / determinant};
  return a.scale > 0.0f ? a : fallback;
}

Affine stored(const WeightTraits& t, Affine a) {
  if (t.scale_bytes == 4) return a;
  return {half_to_float(to_half(a.scale)), half_to_float(to_half(a.min))};
}

// Starts from the extremes, and from ranges that clip them a little; each is refined once.
Affine quantize_affine(const WeightTraits& t, const float* x, int count, u8* codes) {
  F32 lows = load(x), highs = lows;
  for (int i = kLanes; i < count; i += kLanes) {
    lows = vmin(lows, load(x + i));
    highs = vmax(highs, load(x + i));
  }
  const float low = -reduce_max(set1(0.0f) - lows), range = reduce_max(highs) - low;
  const float levels = static_cast<float>((1 << t.bits) - 1);
  Affine best = stored(t, {range / levels, low});
  float best_codes[kMaxGroup], trial[kMaxGroup];
  float least = round_affine(x, count, levels, best, best_codes);
  for (const float clip : {0.0f, 0.03f, 0.06f, 0.1f, 0.15f}) {
    const Affine start{range * (1.0f - 2.0f * clip) / levels, low + range * clip};
    round_affine(x, count, levels, start, trial);
    const Affine refined = stored(t, fit(x, count, trial, start));
    const float error = round_affine(x, count, levels, refined, trial);
    if (error < least) {
      least = error;
      best = refined;
      std::copy(trial, trial + count, best_codes);
    }
  }
  std::int32_t wide[kMaxGroup];
  for (int i = 0; i < count; i += kLanes) store_wide(wide + i, load(best_codes + i));
  narrow(wide, count, codes);
  return best;
}

}  // namespace

const WeightTraits& traits_of(WeightFormat format) {
  return kWeightTraits[static_cast<int>(format)];
}

std::int64_t quantized_panel_bytes(const WeightTraits& t, std::int64_t k_padded) {
  return k_padded / t.group * block_bytes(t);
}

bool can_hold(const WeightTraits& t, const BlockFormat& f) {
  return t.group > 0 && f.group % t.group == 0 && f.bits <= t.bits && (t.has_min || !f.has_min) &&
         f.scale_bytes <= t.scale_bytes;
}

void pack_blocks(const WeightTraits& t, const BlockFormat& f, const u8* row,
                 std::int64_t num_blocks, int column, char* panel) {
  const int groups = f.values / t.group;
  // Codes move to the zero point of the panel; where that is 0, the minimum takes it.
  const int shift = t.has_min ? 0 : t.zero_point - f.zero_point;
  BlockParts parts;
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    f.split(row + b * f.bytes, &parts);
    if (shift) {
      for (int i = 0; i < f.values; ++i) parts.codes[i] = static_cast<u8>(parts.codes[i] + shift);
    }
    for (int g = 0; g < groups; ++g, panel += block_bytes(t)) {
      const int from = g * t.group / f.group;
      const float scale = parts.scales[from];
      const float min = f.has_min ? parts.mins[from] : -static_cast<float>(f.zero_point) * scale;
      put_group(t, parts.codes + g * t.group, scale, min, column, panel);
    }
  }
}

void quantize_row(const WeightTraits& t, const float* row, std::int64_t k, int column, char* panel,
                  float* scale) {
  u8 codes[kMaxGroup];
  float x[kMaxGroup];
  const int group = t.group;
  const bool scale_apart = t.scale_bytes == 0;
  const float row_max = scale_apart ? magnitude(row, (k + kQuad - 1) / kQuad * kQuad) : 0.0f;
  for (std::int64_t start = 0; start < k; start += group) {
    const int count = static_cast<int>(std::min<std::int64_t>(group, k - start));
    std::copy(row + start, row + start + count, x);
    std::fill(x + count, x + group, 0.0f);
    if (scale_apart) {
      *scale = quantize_symmetric(t, x, group, row_max, codes);
      put_codes(t, codes, group, column, panel + start / group * block_bytes(t));
    } else if (t.has_min) {
      const Affine a = quantize_affine(t, x, group, codes);
      put_group(t, codes, a.scale, a.min, column, panel + start / group * block_bytes(t));
    } else {
      const float s = quantize_symmetric(t, x, group, magnitude(x, group), codes);
      put_group(t, codes, s, 0.0f, column, panel + start / group * block_bytes(t));
    }
  }
}

}  // namespace octavo
