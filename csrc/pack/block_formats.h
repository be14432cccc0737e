// GGUF block formats: codes, scales and minima of a block, and its values as float32, exactly as
// the format's own reference computes them.
#pragma once

#include <cstdint>

namespace octavo {

constexpr int kMaxBlockValues = 256;
constexpr int kMinBlockGroup = 16;

// A block taken apart: value = scale * (code - zero_point) + min, per group.
struct BlockParts {
  std::uint8_t codes[kMaxBlockValues];
  float scales[kMaxBlockValues / kMinBlockGroup];
  float mins[kMaxBlockValues / kMinBlockGroup];  // set where the format has minima
};

// A block format: `values` numbers in `bytes` bytes, in groups that share a scale.
struct BlockFormat {
  const char* name;
  int values;
  int bytes;
  int bits;  // of a code
  int group;
  int zero_point;
  bool has_min;
  int scale_bytes;  // 2: scales and minima are float16 numbers; 4: products, exact in float32
  void (*split)(const std::uint8_t* block, BlockParts* parts);
};

// nullptr where the name is unknown.
const BlockFormat* find_block_format(const char* name);

// Blocks one after the other, to float32 in the same order.
void dequantize(const BlockFormat& format, const std::uint8_t* data, std::int64_t num_blocks,
                float* out);

}  // namespace octavo
