// One step's arrays, checked before any kernel sees them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/types.h"

namespace octavo {

// As the caller gives them; see octavo.kernels.ops.StepInputs.
struct StepArrays {
  struct Array {
    const std::int32_t* data = nullptr;
    std::int64_t size = 0;
  };
  struct Table {
    const std::int32_t* data = nullptr;
    std::int64_t rows = 0, columns = 0;
  };
  struct Extra {
    const void* data = nullptr;
    DType dtype = DType::kF32;
    std::int64_t rows = 0, columns = 0, ld = 0;
  };

  Array token_ids, positions, query_start, seq_lens, logit_rows;
  std::vector<Table> block_tables;
  std::vector<Array> slots;
  std::map<std::string, Extra> extra;
  bool wants_all = true;  // outputs; otherwise those named in `wanted`
  std::vector<std::string> wanted;
  const std::int64_t* targets = nullptr;  // of wait ops, one per counter; null: none waits
  std::int64_t num_targets = 0;
};

struct StepLimits {
  std::int64_t max_tokens, max_requests, max_logit_rows, max_position;
};

// What a program reads of one KV group.
struct GroupUse {
  bool stores = false;
  bool attends = false;
  int window = 0;  // the largest among its attention ops; 0: no window
};

struct StepRules {
  StepLimits limits;
  std::int64_t vocab = 0;  // 0: no embedding op
  std::int64_t num_blocks = 0;
  std::vector<GroupUse> groups;
};

// Throws Error, naming the array, the value and the rule. Costs about a nanosecond per token and
// block.
void check_step(const StepArrays& step, const StepRules& rules);

}  // namespace octavo
