// GGUF block formats to float32, exactly as the format's own reference computes them.
#pragma once

#include <cstdint>

#include "runtime/thread_pool.h"

namespace octavo {

// A block format: `values` numbers in `bytes` bytes.
struct BlockFormat {
  const char* name;
  int values;
  int bytes;
  void (*dequantize)(const std::uint8_t* block, float* out);
};

// nullptr where the name is unknown.
const BlockFormat* find_block_format(const char* name);

// rows x blocks_per_row blocks, rows one after the other, to float32 in the same order.
void dequantize(ThreadPool& pool, const BlockFormat& format, const std::uint8_t* data,
                std::int64_t rows, std::int64_t blocks_per_row, float* out);

}  // namespace octavo
