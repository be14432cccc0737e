#include "runtime/step.h"

#include <algorithm>

#include "runtime/error.h"

namespace octavo {
namespace {

[[noreturn]] void refuse(const std::string& name, std::int64_t value, std::int64_t low,
                         std::int64_t high) {
  throw Error("step: " + name + " is " + std::to_string(value) + "; it must be in " +
              std::to_string(low) + "…" + std::to_string(high));
}

void check_range(const char* name, const StepArrays::Array& a, std::int64_t low,
                 std::int64_t high) {
  for (std::int64_t i = 0; i < a.size; ++i) {
    if (a.data[i] < low || a.data[i] > high) {
      refuse(std::string(name) + "[" + std::to_string(i) + "]", a.data[i], low, high);
    }
  }
}

void check_size(const std::string& name, std::int64_t size, std::int64_t expected) {
  if (size != expected) refuse("size of " + name, size, expected, expected);
}

void check_requests(const StepArrays& step, std::int64_t num_tokens, std::int64_t num_requests) {
  const std::int32_t* start = step.query_start.data;
  if (start[0] != 0) refuse("query_start[0]", start[0], 0, 0);
  if (start[num_requests] != num_tokens) {
    refuse("query_start[-1]", start[num_requests], num_tokens, num_tokens);
  }
  for (std::int64_t b = 0; b < num_requests; ++b) {
    if (start[b + 1] < start[b] || start[b + 1] > num_tokens) {
      refuse("query_start[" + std::to_string(b + 1) + "]", start[b + 1], start[b], num_tokens);
    }
  }
  for (std::int64_t b = 0; b < num_requests; ++b) {
    for (std::int64_t t = start[b]; t < start[b + 1]; ++t) {
      if (step.positions.data[t] >= step.seq_lens.data[b]) {
        refuse("positions[" + std::to_string(t) + "]", step.positions.data[t], 0,
               step.seq_lens.data[b] - 1);
      }
    }
  }
}

// Every block that some token of a request attends to must be a real one.
void check_table(const StepArrays& step, std::int64_t group, const GroupUse& use,
                 std::int64_t num_blocks) {
  const StepArrays::Table& table = step.block_tables[group];
  for (std::int64_t b = 0; b < table.rows; ++b) {
    std::int64_t low = INT64_MAX, high = 0;
    for (std::int64_t t = step.query_start.data[b]; t < step.query_start.data[b + 1]; ++t) {
      const std::int64_t end = step.positions.data[t] + 1;
      high = std::max(high, end);
      low = std::min(low, use.window > 0 ? std::max<std::int64_t>(end - use.window, 0) : 0);
    }
    if (high > table.columns * kBlockSize) {
      refuse("columns of block_tables[" + std::to_string(group) + "]", table.columns,
             (high + kBlockSize - 1) / kBlockSize, INT32_MAX);
    }
    const std::int32_t* row = table.data + b * table.columns;
    for (std::int64_t i = low / kBlockSize; i * kBlockSize < high; ++i) {
      if (row[i] <= kNullBlock || row[i] >= num_blocks) {
        refuse("block_tables[" + std::to_string(group) + "][" + std::to_string(b) + ", " +
                   std::to_string(i) + "]",
               row[i], kNullBlock + 1, num_blocks - 1);
      }
    }
  }
}

}  // namespace

void check_step(const StepArrays& step, const StepRules& rules) {
  const std::int64_t num_tokens = step.token_ids.size;
  const std::int64_t num_requests = step.seq_lens.size;
  const std::int64_t num_groups = static_cast<std::int64_t>(rules.groups.size());
  if (num_tokens > rules.limits.max_tokens) {
    refuse("number of tokens", num_tokens, 0, rules.limits.max_tokens);
  }
  if (num_requests > rules.limits.max_requests) {
    refuse("number of requests", num_requests, 0, rules.limits.max_requests);
  }
  if (step.logit_rows.size > rules.limits.max_logit_rows) {
    refuse("number of logit rows", step.logit_rows.size, 0, rules.limits.max_logit_rows);
  }
  check_size("positions", step.positions.size, num_tokens);
  check_size("query_start", step.query_start.size, num_requests + 1);
  if (rules.vocab > 0) check_range("token_ids", step.token_ids, 0, rules.vocab - 1);
  check_range("positions", step.positions, 0, rules.limits.max_position - 1);
  check_range("logit_rows", step.logit_rows, 0, num_tokens - 1);
  check_requests(step, num_tokens, num_requests);

  const std::int64_t given = static_cast<std::int64_t>(step.block_tables.size());
  if (given < num_groups) refuse("number of block_tables", given, num_groups, INT32_MAX);
  check_size("slot_mapping's groups", static_cast<std::int64_t>(step.slots.size()), given);
  for (std::int64_t g = 0; g < num_groups; ++g) {
    const GroupUse& use = rules.groups[g];
    if (use.stores) {
      check_size("slot_mapping", step.slots[g].size, num_tokens);
      check_range("slot_mapping", step.slots[g], 0, rules.num_blocks * kBlockSize - 1);
    }
    if (use.attends) {
      check_size("block_tables' rows", step.block_tables[g].rows, num_requests);
      check_table(step, g, use, rules.num_blocks);
    }
  }
}

}  // namespace octavo
