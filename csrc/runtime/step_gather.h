// A step's arrays, gathered from those of the persistent batch (octavo.kernels.step_gather).
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// The persistent batch: a row per request. The memory is the caller's.
struct BatchArrays {
  struct Table {
    const std::int32_t* blocks;  // [num_rows, columns]
    std::int64_t columns, block_size;
  };

  std::int64_t num_rows, row_size;
  std::int32_t* token_ids;                  // [num_rows, row_size]
  std::int32_t* num_tokens;                 // [num_rows]
  const std::int32_t* num_computed_tokens;  // [num_rows]
  std::vector<Table> tables;
};

// Where a step of at most so many tokens and requests goes; see octavo.kernels.ops.StepInputs and
// octavo.kernels.step_gather.GatheredStep. The memory is the caller's.
struct StepBuffers {
  std::int64_t max_tokens, max_requests;
  std::int32_t *token_ids, *positions, *query_start, *seq_lens, *logit_rows;
  std::int64_t *rows, *logit_rows_of_state;
  std::int32_t *logit_offsets, *logit_positions;
  std::vector<std::int32_t*> tables;  // [max_requests * columns]
  std::vector<std::int32_t*> slots;
};

class StepGather {
 public:
  struct Sizes {
    std::int64_t num_tokens, num_logit_rows, longest;  // longest: of seq_lens
  };

  StepGather(BatchArrays batch, StepBuffers step);

  // The step of the requests in `rows`: the next counts[i] tokens of each; the last num_logits[i]
  // of them want logits, all of which but the first follow drafts.
  Sizes gather(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& counts,
               const std::vector<std::int32_t>& num_logits);

  // Keep what the logits rows of the last step sampled, one token each, in their order.
  void write_sampled(const std::vector<std::int32_t>& token_ids);

 private:
  BatchArrays batch_;
  StepBuffers step_;
  std::int64_t num_logit_rows_ = 0;  // of the last step
};

}  // namespace octavo
