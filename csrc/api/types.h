// Plain types that every part of the native code shares. No STL, no intrinsics, no inline
// functions: ISA units include this header, and whatever they emit must stay local to them.
#pragma once

#include <cstdint>

namespace octavo {

using bf16 = std::uint16_t;  // bit pattern

enum class DType : int { kF32 = 0, kBf16 = 1 };
constexpr int kNumDTypes = 2;

enum class Activation : int { kSilu = 0, kGeluTanh = 1, kGelu = 2 };

constexpr int kPanel = 32;      // output columns of one weight panel
constexpr int kBlockSize = 16;  // tokens of one KV block
constexpr int kChunk = 256;     // tokens of one softmax chunk, at absolute positions
constexpr int kColumnPad = 32;  // columns that every row is padded to, with zeros
constexpr int kRowGranule = 4;  // rows are split among threads in multiples of this
constexpr int kMaxHeadDim = 512;
constexpr int kNullBlock = 0;

// A matrix of the step. Columns from the width up to the next multiple of kColumnPad hold zeros, so
// that kernels work on whole vectors; `ld` counts elements and may be larger still.
struct Buffer {
  void* data;
  std::int64_t ld;
};

// A linear weight [n, k] in panels of 32 output columns, K in steps of `k_step` (1 for float32, 2
// for bfloat16): [num_panels][k_padded / k_step][32][k_step]. A gated weight interleaves 16 gate
// columns and the 16 up columns of the same outputs in each panel. `bias` [num_panels * 32] or
// null.
struct LinearWeight {
  const void* panels;
  const float* bias;
  int n;
  int k;
  int k_padded;
  int num_panels;
};

// A row-major table [rows, ld].
struct TableWeight {
  const void* data;
  std::int64_t ld;
};

// One layer of the KV cache. Per block and kv head, K [head_dim / step][16][step], then
// V [16 / step][head_dim][step], contiguous.
struct KvView {
  char* base;
  std::int64_t page_bytes;
  std::int64_t head_bytes;
  int group;
};

struct RopeView {
  const float* cos;  // [positions, ld]
  const float* sin;
  std::int64_t ld;
  int rotary_dim;
  bool interleaved;
};

struct HeadNormView {
  const float* q;  // [head_dim], padded with zeros
  const float* k;
  float eps;
  float offset;
};

struct HeadShape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
};

// Arrays of one KV group in a step.
struct GroupView {
  const std::int32_t* block_tables;  // [num_requests, table_ld]
  std::int64_t table_ld;
  const std::int32_t* slots;  // [num_tokens]
};

// One step's data; see octavo.kernels.ops.StepInputs.
struct StepView {
  int num_tokens;
  int num_requests;
  int num_logit_rows;
  const std::int32_t* token_ids;
  const std::int32_t* positions;
  const std::int32_t* query_start;
  const GroupView* groups;
  const std::int32_t* logit_rows;
};

// A thread's share of one op. `by_rows`: threads own ranges of rows through a chain of ops;
// otherwise linear ops split output columns and row-wise ops split rows. `replicated`: there are
// values of which every thread has a copy (runtime/program.h); no kernel asks.
struct Task {
  int thread;
  int num_threads;
  int rows;
  bool by_rows;
  bool replicated;
  char* scratch;  // of this thread, 64-byte aligned
  const StepView* step;
};

}  // namespace octavo
