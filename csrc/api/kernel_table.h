// The kernels as a table of function pointers: filled by the scalar tier, overlaid by every tier
// that the machine supports (dispatch/). Arrays are indexed by WeightFormat, and by DType of
// activations and cache. Where a format is float32 or bfloat16, that is the activations' type, too.
#pragma once

#include "api/types.h"

namespace octavo {

struct LinearArgs {
  const Buffer* x;
  const LinearWeight* weight;
  const Buffer* residual;  // null: plain linear. May be the same memory as out.
  const Buffer* out;
};

struct GatedArgs {
  const Buffer* x;
  const LinearWeight* weight;
  const Buffer* out;
  Activation activation;
};

struct LogitsArgs {
  const Buffer* x;
  const LinearWeight* weight;
  const Buffer* out;
  float scale;
  float soft_cap;  // 0: none
};

// The best column of each row, per thread: value and id [num_threads][ld].
struct ArgmaxPartials {
  float* values;
  std::int32_t* ids;
  std::int64_t ld;
};

struct ArgmaxArgs {
  LogitsArgs logits;  // out: [rows, 2] float32, column and value
  const ArgmaxPartials* partials;
};

struct QkvArgs {
  const Buffer* x;
  const LinearWeight* weight;
  const Buffer* raw;  // [rows, N] float32 between the two halves, when not split by rows
  const Buffer* q;
  KvView kv;
  HeadShape heads;
  RopeView rope;      // rotary_dim 0: none
  HeadNormView norm;  // null pointers: none
};

// Results of chunks that are merged later: out [rows][head_dim padded to 16], max and sum [rows].
struct AttentionPartials {
  float* out;
  float* max;
  float* sum;
};

struct AttentionArgs {
  const Buffer* q;
  const Buffer* out;
  KvView kv;
  HeadShape heads;
  float scale;
  float soft_cap;      // 0: none
  int window;          // 0: none
  const float* sinks;  // [num_heads], or null
  const AttentionPartials* partials;
  std::int64_t partial_rows;  // how many they hold
};

struct NormArgs {
  const Buffer* x;
  const float* weight;     // padded with zeros
  const float* bias;       // of layer_norm, padded with zeros
  const Buffer* residual;  // of rms_norm_add. May be the same memory as out.
  const Buffer* out;
  int width;
  float eps;
  float offset;
};

// Activations as a quantized weight reads them: a Buffer of float32 whose rows hold, for
// groups = k_padded / group,
//   int8 codes[k_padded]; float scales[groups]; corrections[groups]
// with x = scale * code. A correction is int32 -zero_point * (sum of the group's codes), or, for
// weights with minima, float32 scale * (sum of the group's codes). For groups of 16 and 32, whose
// formats have outliers (WeightTraits),
//   int8 high[groups][4]; int32 quads[groups]
// follow: x = scale * (256 * high + code) for the four of a group from 4 * quad on, those with the
// group's largest magnitude.
struct QuantizeArgs {
  const Buffer* x;
  const Buffer* out;
  int k;
  int k_padded;
  int group;
  int zero_point;
  bool has_min;
  bool by_columns;  // threads take groups of all rows, not rows
};

struct EmbeddingArgs {
  TableWeight table;           // rows, or
  const LinearWeight* weight;  // panels
  const Buffer* out;
  int width;
  float scale;
};

struct KernelTable {
  const char* tier;

  void (*linear[kNumWeightFormats])(const LinearArgs&, const Task&);
  void (*gated_linear[kNumWeightFormats][kNumDTypes])(const GatedArgs&, const Task&);
  void (*logits[kNumWeightFormats])(const LogitsArgs&, const Task&);
  // The second call, after a barrier, takes the best of what the threads found.
  void (*argmax[kNumWeightFormats])(const ArgmaxArgs&, const Task&);
  void (*argmax_merge)(const ArgmaxArgs&, const Task&);
  // Split by rows: all in the first call. Otherwise the second call finishes heads after a barrier.
  void (*qkv_project[kNumWeightFormats][kNumDTypes])(const QkvArgs&, const Task&);
  void (*qkv_finish[kNumDTypes])(const QkvArgs&, const Task&);
  // The second call finishes, after a barrier, what the first dealt out by chunks.
  void (*attention[kNumDTypes])(const AttentionArgs&, const Task&);
  void (*attention_merge[kNumDTypes])(const AttentionArgs&, const Task&);
  // Whether there is anything to merge in this step.
  bool (*attention_is_split)(const AttentionArgs&, const Task&);
  void (*rms_norm[kNumDTypes])(const NormArgs&, const Task&);
  void (*rms_norm_add)(const NormArgs&, const Task&);
  void (*layer_norm[kNumDTypes])(const NormArgs&, const Task&);
  void (*quantize[kNumDTypes])(const QuantizeArgs&, const Task&);
  void (*embedding_rows[kNumDTypes])(const EmbeddingArgs&, const Task&);
  void (*embedding_panels[kNumWeightFormats])(const EmbeddingArgs&, const Task&);

  // Bytes of scratch that one thread needs.
  std::int64_t (*gemm_scratch)(int panels_per_group);
  std::int64_t (*attention_scratch)(const HeadShape&);

  // Over one row of logits. All tiers give the same bits.
  // The largest, and that of every kMaxBlock ids. NaN is skipped; -inf where all are NaN.
  float (*row_max)(const float* x, std::int64_t n, float* maxima);
  // weights[i] = e^((x[i] - max) * inv_temperature), to a multiple of kWeightUnit; NaN as 0.
  // Returns their sum. `weights` has room for n rounded up to kRowBlock; zeros fill it up.
  double (*row_weights)(const float* x, std::int64_t n, float max, float inv_temperature,
                        float* weights);
  // The sum of e^(x[i] - max), NaN as 0.
  double (*row_sum_exp)(const float* x, std::int64_t n, float max);
  // The sum of weights[i] where x[i] > high; ids, ascending, and values of all low <= x[i] <= high.
  // Both have room for kRowBlock more than there can be.
  double (*row_split)(const float* x, const float* weights, std::int64_t n, float low, float high,
                      std::int32_t* ids, float* values, std::int64_t* num_ids);
  // The first id with which the running weight of what is kept exceeds `target`, or else the last
  // one of some weight. Kept: x[i] > cut, or x[i] == cut and i <= cut_id.
  std::int64_t (*row_draw)(const float* x, const float* weights, std::int64_t n, float cut,
                           std::int64_t cut_id, double target);
  std::int64_t (*row_count_greater)(const float* x, std::int64_t n, float threshold);
  // The same of all x[i] >= threshold; returns how many.
  std::int64_t (*row_collect)(const float* x, std::int64_t n, float threshold, std::int32_t* ids,
                              float* values);
  // x[i] = -inf where bit i % 32 of bits[i / 32] is 0.
  void (*row_allow)(float* x, std::int64_t n, const std::int32_t* bits);
};

constexpr int kRowBlock = 256;
constexpr int kMaxBlock = 64;
// The largest weight of a row is 1: float64 sums of up to 2^19 weights are exact, in any order.
constexpr double kWeightUnit = 0x1p-34;

// One per tier; each sets what it improves. Defined in isa/.
void overlay_scalar(KernelTable& table);
void overlay_avx2(KernelTable& table);
void overlay_avx512(KernelTable& table);
void overlay_avx512_vnni(KernelTable& table);
void overlay_avx512_bf16(KernelTable& table);
void overlay_neon(KernelTable& table);

}  // namespace octavo
