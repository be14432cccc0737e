#include "pack/block_formats.h"

#include <cstring>

#include "simd/common.h"

namespace octavo {
namespace {

using u8 = std::uint8_t;

float half(const u8* p) {
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

std::uint32_t word(const u8* p) {
  std::uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}

void nibbles(const u8* q, u8* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[16 + i] = q[i] >> 4;
  }
}

void add_fifth_bits(std::uint32_t high, u8* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<u8>(codes[i] | ((high >> i) & 1u) << 4);
}

void q4_0(const u8* b, BlockParts* p) {
  p->scales[0] = half(b);
  nibbles(b + 2, p->codes);
}

void q4_1(const u8* b, BlockParts* p) {
  p->scales[0] = half(b);
  p->mins[0] = half(b + 2);
  nibbles(b + 4, p->codes);
}

void q5_0(const u8* b, BlockParts* p) {
  p->scales[0] = half(b);
  nibbles(b + 6, p->codes);
  add_fifth_bits(word(b + 2), p->codes);
}

void q5_1(const u8* b, BlockParts* p) {
  p->scales[0] = half(b);
  p->mins[0] = half(b + 2);
  nibbles(b + 8, p->codes);
  add_fifth_bits(word(b + 4), p->codes);
}

void q8_0(const u8* b, BlockParts* p) {
  p->scales[0] = half(b);
  for (int i = 0; i < 32; ++i) p->codes[i] = b[2 + i] ^ 0x80;  // from two's complement
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K). The products are exact.
void scales_and_mins(const u8* b, BlockParts* p) {
  const float d = half(b), dmin = half(b + 2);
  const u8* s = b + 4;
  for (int i = 0; i < 8; ++i) {
    int scale, min;
    if (i < 4) {
      scale = s[i] & 63;
      min = s[4 + i] & 63;
    } else {
      scale = (s[4 + i] & 15) | ((s[i - 4] >> 2) & 0x30);
      min = (s[4 + i] >> 4) | ((s[i] >> 2) & 0x30);
    }
    p->scales[i] = d * static_cast<float>(scale);
    p->mins[i] = -(dmin * static_cast<float>(min));
  }
}

void q4_k(const u8* b, BlockParts* p) {
  scales_and_mins(b, p);
  for (int i = 0; i < 8; ++i) {
    const u8* q = b + 16 + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) p->codes[i * 32 + j] = (q[j] >> shift) & 15;
  }
}

void q5_k(const u8* b, BlockParts* p) {
  scales_and_mins(b, p);
  const u8* high = b + 16;
  for (int i = 0; i < 8; ++i) {
    const u8* q = b + 48 + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int fifth = ((high[j] >> i) & 1) << 4;
      p->codes[i * 32 + j] = static_cast<u8>(((q[j] >> shift) & 15) | fifth);
    }
  }
}

void q6_k(const u8* b, BlockParts* p) {
  const u8 *low = b, *high = b + 128;
  const float d = half(b + 208);
  for (int i = 0; i < 8; ++i) {  // 32 values each: low nibbles of 64, then high nibbles, twice
    const u8* q = low + i / 4 * 64 + i % 2 * 32;
    const u8* h = high + i / 4 * 32;
    const int shift = i % 4 / 2 * 4, high_shift = i % 4 * 2;
    for (int j = 0; j < 32; ++j) {
      const int top = ((h[j] >> high_shift) & 3) << 4;
      p->codes[i * 32 + j] = static_cast<u8>(((q[j] >> shift) & 15) | top);
    }
  }
  for (int i = 0; i < 16; ++i) {
    p->scales[i] = d * static_cast<float>(static_cast<std::int8_t>(b[192 + i]));
  }
}

constexpr BlockFormat kFormats[] = {
    {"q4_0", 32, 18, 4, 32, 8, false, 2, q4_0},   {"q4_1", 32, 20, 4, 32, 0, true, 2, q4_1},
    {"q5_0", 32, 22, 5, 32, 16, false, 2, q5_0},  {"q5_1", 32, 24, 5, 32, 0, true, 2, q5_1},
    {"q8_0", 32, 34, 8, 32, 128, false, 2, q8_0}, {"q4_k", 256, 144, 4, 32, 0, true, 4, q4_k},
    {"q5_k", 256, 176, 5, 32, 0, true, 4, q5_k},  {"q6_k", 256, 210, 6, 16, 32, false, 4, q6_k},
};

void values(const BlockFormat& format, const BlockParts& parts, float* out) {
  const u8* codes = parts.codes;
  for (int g = 0; g < format.values / format.group; ++g) {
    const float scale = parts.scales[g], min = format.has_min ? parts.mins[g] : -0.0f;
    for (int i = 0; i < format.group; ++i) {
      out[i] = scale * static_cast<float>(codes[i] - format.zero_point) + min;  // x + -0 is x
    }
    codes += format.group;
    out += format.group;
  }
}

}  // namespace

const BlockFormat* find_block_format(const char* name) {
  for (const BlockFormat& format : kFormats) {
    if (std::strcmp(format.name, name) == 0) return &format;
  }
  return nullptr;
}

void dequantize(const BlockFormat& format, const u8* data, std::int64_t num_blocks, float* out) {
  BlockParts parts;
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    format.split(data + i * format.bytes, &parts);
    values(format, parts, out + i * format.values);
  }
}

}  // namespace octavo
