#include "pack/dequantize.h"

#include <cstring>

namespace octavo {
namespace {

using u8 = std::uint8_t;

float half(const u8* p) {
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  const std::uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

std::uint32_t word(const u8* p) {
  std::uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}

void q4_0(const u8* b, float* out) {
  const float d = half(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[16 + i] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

void q4_1(const u8* b, float* out) {
  const float d = half(b), m = half(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[16 + i] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

int fifth_bit(std::uint32_t high, int i) { return static_cast<int>((high >> i) & 1u) << 4; }

void q5_0(const u8* b, float* out) {
  const float d = half(b);
  const std::uint32_t high = word(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((b[6 + i] & 15) | fifth_bit(high, i)) - 16);
    out[16 + i] = d * static_cast<float>(((b[6 + i] >> 4) | fifth_bit(high, 16 + i)) - 16);
  }
}

void q5_1(const u8* b, float* out) {
  const float d = half(b), m = half(b + 2);
  const std::uint32_t high = word(b + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[8 + i] & 15) | fifth_bit(high, i)) + m;
    out[16 + i] = d * static_cast<float>((b[8 + i] >> 4) | fifth_bit(high, 16 + i)) + m;
  }
}

void q8_0(const u8* b, float* out) {
  const float d = half(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(b[2 + i])) * d;
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K).
void scale_and_min(const u8* s, int i, float d, float dmin, float* scale, float* min) {
  int sc, m;
  if (i < 4) {
    sc = s[i] & 63;
    m = s[4 + i] & 63;
  } else {
    sc = (s[4 + i] & 15) | ((s[i - 4] >> 2) & 0x30);
    m = (s[4 + i] >> 4) | ((s[i] >> 2) & 0x30);
  }
  *scale = d * static_cast<float>(sc);
  *min = dmin * static_cast<float>(m);
}

void q4_k(const u8* b, float* out) {
  const float d = half(b), dmin = half(b + 2);
  for (int i = 0; i < 8; ++i) {
    float scale, min;
    scale_and_min(b + 4, i, d, dmin, &scale, &min);
    const u8* q = b + 16 + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      out[i * 32 + j] = scale * static_cast<float>((q[j] >> shift) & 15) - min;
    }
  }
}

void q5_k(const u8* b, float* out) {
  const float d = half(b), dmin = half(b + 2);
  const u8* high = b + 16;
  for (int i = 0; i < 8; ++i) {
    float scale, min;
    scale_and_min(b + 4, i, d, dmin, &scale, &min);
    const u8* q = b + 48 + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int value = ((q[j] >> shift) & 15) | (((high[j] >> i) & 1) << 4);
      out[i * 32 + j] = scale * static_cast<float>(value) - min;
    }
  }
}

void q6_k(const u8* b, float* out) {
  const u8 *low = b, *high = b + 128;
  const float d = half(b + 208);
  for (int i = 0; i < 8; ++i) {  // 32 values each: low nibbles of 64, then high nibbles, twice
    const u8* q = low + i / 4 * 64 + i % 2 * 32;
    const u8* h = high + i / 4 * 32;
    const int shift = i % 4 / 2 * 4, high_shift = i % 4 * 2;
    for (int j = 0; j < 32; ++j) {
      const int value = (((q[j] >> shift) & 15) | (((h[j] >> high_shift) & 3) << 4)) - 32;
      const auto scale = static_cast<std::int8_t>(b[192 + i * 2 + j / 16]);
      out[i * 32 + j] = d * static_cast<float>(scale) * static_cast<float>(value);
    }
  }
}

constexpr BlockFormat kFormats[] = {
    {"q4_0", 32, 18, q4_0},   {"q4_1", 32, 20, q4_1},   {"q5_0", 32, 22, q5_0},
    {"q5_1", 32, 24, q5_1},   {"q8_0", 32, 34, q8_0},   {"q4_k", 256, 144, q4_k},
    {"q5_k", 256, 176, q5_k}, {"q6_k", 256, 210, q6_k},
};

}  // namespace

const BlockFormat* find_block_format(const char* name) {
  for (const BlockFormat& format : kFormats) {
    if (std::strcmp(format.name, name) == 0) return &format;
  }
  return nullptr;
}

void dequantize(ThreadPool& pool, const BlockFormat& format, const u8* data, std::int64_t rows,
                std::int64_t blocks_per_row, float* out) {
  const std::int64_t blocks = rows * blocks_per_row;
  pool.run([&](int thread) {
    const std::int64_t begin = blocks * thread / pool.num_threads();
    const std::int64_t end = blocks * (thread + 1) / pool.num_threads();
    for (std::int64_t i = begin; i < end; ++i) {
      format.dequantize(data + i * format.bytes, out + i * format.values);
    }
  });
}

}  // namespace octavo
