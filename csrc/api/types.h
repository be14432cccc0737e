// Plain types that every part of the native code shares. No STL, no intrinsics, no inline
// functions: ISA units include this header, and whatever they emit must stay local to them.
#pragma once

#include <cstdint>

namespace octavo {

using bf16 = std::uint16_t;  // bit pattern

enum class DType : int { kF32 = 0, kBf16 = 1 };
constexpr int kNumDTypes = 2;

// How a linear weight is kept. Quantized values are scale * (code - zero_point) + min, with codes
// from 0 on; products with activations' codes (QuantizeArgs) are summed as integers.
enum class WeightFormat : int {
  kF32 = 0,
  kBf16 = 1,
  kInt8 = 2,           // one scale per output; activations in groups of 64
  kInt8G32 = 3,        // groups of 32 along K, as Q8_0, Q5_0
  kInt8G32Min = 4,     // Q5_1, Q5_K
  kInt8G16 = 5,        // Q6_K
  kInt8G16Min = 6,     // rows of Q6_K beside rows of a format with minima
  kInt4G32 = 7,        // Q4_0
  kInt4G32Min = 8,     // Q4_1
  kInt4G32MinF32 = 9,  // Q4_K
};
constexpr int kNumWeightFormats = 10;

struct WeightTraits {
  const char* name;
  int bits;          // of a stored code
  int group;         // K that share a scale: of the activations, and of the weight's output
  int zero_point;    // of codes; 0 where there are minima
  bool has_min;      // value = scale * code + min
  int scale_bytes;   // of a scale and of a minimum: 2 float16, 4 float32; 0: one float per output
  bool has_outlier;  // activations: four of a group have 16 bits, all others 8
};

// Indexed by WeightFormat.
constexpr WeightTraits kWeightTraits[kNumWeightFormats] = {
    {"float32", 32, 0, 0, false, 0, false},    {"bfloat16", 16, 0, 0, false, 0, false},
    {"int8", 8, 64, 128, false, 0, false},     {"int8_g32", 8, 32, 128, false, 2, true},
    {"int8_g32_min", 8, 32, 0, true, 4, true}, {"int8_g16", 8, 16, 128, false, 4, true},
    {"int8_g16_min", 8, 16, 0, true, 4, true}, {"int4_g32", 4, 32, 8, false, 2, true},
    {"int4_g32_min", 4, 32, 0, true, 2, true}, {"int4_g32_min_f32", 4, 32, 0, true, 4, true},
};

enum class Activation : int { kSilu = 0, kGeluTanh = 1, kGelu = 2 };

constexpr int kPanel = 32;      // output columns of one weight panel
constexpr int kBlockSize = 16;  // tokens of one KV block
constexpr int kChunk = 256;     // tokens of one softmax chunk, at absolute positions
constexpr int kColumnPad = 32;  // columns that every row is padded to, with zeros
constexpr int kRowGranule = 4;  // rows are split among threads in multiples of this
constexpr int kMaxHeadDim = 512;
constexpr int kNullBlock = 0;

// A matrix of the step. Columns from the width up to the next multiple of kColumnPad hold zeros, so
// that kernels work on whole vectors (behind what gated_linear makes they are undefined); `ld`
// counts elements and may be larger still.
struct Buffer {
  void* data;
  std::int64_t ld;
};

// A linear weight [n, k] in panels of 32 output columns, one after the other. A gated weight
// interleaves 16 gate columns and the 16 up columns of the same outputs in each panel. A panel is
//   float formats   [k_padded / k_step][32][k_step], k_step 1 for float32, 2 for bfloat16
//   quantized       per group of K: codes, scales [32], minima [32] where the format has them; one
//                   scale per output lies apart, in `scales` [num_panels * 32]. Codes of 8 bits:
//                   [group / 4][32][4]. Of 4 bits: [group / 8][32][4] bytes, whose low nibbles are
//                   the first half of the group, the high ones the second.
// `bias` [num_panels * 32] or null.
struct LinearWeight {
  const void* panels;
  const float* scales;
  const float* bias;
  std::int64_t panel_bytes;
  WeightFormat format;
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

// One layer of the KV cache. 2^run_shift blocks lie together: a run. Per block and kv head,
// K [head_dim / step][16][step], then V [16 / step][head_dim][step], contiguous.
struct KvView {
  char* base;
  std::int64_t page_bytes;  // from a block to the next one of a run
  std::int64_t run_stride;  // from a run to the next one
  int run_shift;
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
