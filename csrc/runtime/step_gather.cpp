#include "runtime/step_gather.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"

namespace octavo {

StepGather::StepGather(BatchArrays batch, StepBuffers step)
    : batch_(std::move(batch)), step_(std::move(step)) {}

StepGather::Sizes StepGather::gather(const std::vector<std::int32_t>& rows,
                                     const std::vector<std::int32_t>& counts,
                                     const std::vector<std::int32_t>& num_logits) {
  const std::int64_t num_requests = static_cast<std::int64_t>(rows.size());
  require(counts.size() == rows.size() && num_logits.size() == rows.size(),
          "step gather: rows, counts and num_logits must be of one length");
  require(num_requests <= step_.max_requests, "step gather: too many requests");
  num_logit_rows_ = 0;
  std::int64_t t = 0, logit = 0, longest = 0;
  step_.query_start[0] = 0;
  for (std::int64_t b = 0; b < num_requests; ++b) {
    const std::int64_t row = rows[b], count = counts[b], wanted = num_logits[b];
    require(row >= 0 && row < batch_.num_rows, "step gather: no such row");
    require(count >= 1 && count <= step_.max_tokens - t, "step gather: too many tokens");
    require(wanted >= 0 && wanted <= count, "step gather: more logits rows than tokens");
    const std::int64_t start = batch_.num_computed_tokens[row], end = start + count;
    const std::int64_t num_drafts = std::max<std::int64_t>(wanted - 1, 0);  // they are not counted
    require(start >= 0 && end <= batch_.row_size, "step gather: more tokens than a row holds");
    require(end - num_drafts <= batch_.num_tokens[row], "a token was scheduled but not known");
    step_.rows[b] = row;
    step_.seq_lens[b] = static_cast<std::int32_t>(end);
    longest = std::max(longest, end);
    const std::int32_t* known = batch_.token_ids + row * batch_.row_size;
    for (std::int64_t p = start; p < end; ++p, ++t) {
      step_.token_ids[t] = known[p];
      step_.positions[t] = static_cast<std::int32_t>(p);
    }
    step_.query_start[b + 1] = static_cast<std::int32_t>(t);
    for (std::int64_t i = 0; i < wanted; ++i, ++logit) {
      step_.logit_rows[logit] = static_cast<std::int32_t>(t - wanted + i);
      step_.logit_rows_of_state[logit] = row;
      step_.logit_offsets[logit] = static_cast<std::int32_t>(i);
      step_.logit_positions[logit] = static_cast<std::int32_t>(end - wanted + i + 1);
    }
  }
  for (std::size_t g = 0; g < batch_.tables.size(); ++g) {
    const BatchArrays::Table& table = batch_.tables[g];
    const std::int64_t width = (longest + table.block_size - 1) / table.block_size;
    require(width <= table.columns, "step gather: a request is longer than its block table");
    for (std::int64_t b = 0; b < num_requests; ++b) {
      const std::int32_t* blocks = table.blocks + step_.rows[b] * table.columns;
      std::copy_n(blocks, width, step_.tables[g] + b * width);
      for (std::int64_t i = step_.query_start[b]; i < step_.query_start[b + 1]; ++i) {
        const std::int64_t p = step_.positions[i];
        step_.slots[g][i] = static_cast<std::int32_t>(
            blocks[p / table.block_size] * table.block_size + p % table.block_size);
      }
    }
  }
  num_logit_rows_ = logit;
  return {t, logit, longest};
}

void StepGather::write_sampled(const std::vector<std::int32_t>& token_ids) {
  require(static_cast<std::int64_t>(token_ids.size()) == num_logit_rows_,
          "step gather: one token per logits row of the last step");
  for (std::int64_t i = 0; i < num_logit_rows_; ++i) {
    const std::int64_t row = step_.logit_rows_of_state[i], position = step_.logit_positions[i];
    require(position < batch_.row_size, "step gather: a token past the end of its row");
    batch_.token_ids[row * batch_.row_size + position] = token_ids[i];
    batch_.num_tokens[row] = static_cast<std::int32_t>(position) + 1;
  }
}

}  // namespace octavo
