// Paged causal attention of a mixed batch: which thread does what.
//
// Items (attention_item.inl.h) are dealt out in contiguous runs of about equal cost. Where there
// are few of them and contexts are long, their chunks are dealt out instead, each chunk's result is
// kept, and a second pass merges them: the same operations in the same order, so the same bits.
#pragma once

#include "kernels/attention_item.inl.h"
#include "kernels/kv_page.inl.h"

namespace octavo {
namespace {

// Query heads of one item: all of a kv head, or an even share of them.
OCTAVO_INLINE int item_heads(const HeadShape& heads) {
  const int per_kv_head = heads.num_heads / heads.num_kv_heads;
  const int shares = (per_kv_head + 15) / 16;
  return (per_kv_head + shares - 1) / shares;
}

OCTAVO_INLINE int item_tokens(int heads) {
  const int tokens = kMaxItemRows / heads;
  return tokens < 8 ? tokens : 8;
}

// Calls visit(item, chunks, cost) for every item of the step, in one order for all threads, until
// it returns false. The cost, in tokens read and multiplied, is that of one query head.
template <class Visit>
OCTAVO_INLINE void for_each_item(const AttentionArgs& args, const StepView& step, Visit&& visit) {
  const int heads = item_heads(args.heads), tile = item_tokens(heads);
  const int per_kv_head = args.heads.num_heads / args.heads.num_kv_heads;
  for (int b = 0; b < step.num_requests; ++b) {
    for (int t = step.query_start[b]; t < step.query_start[b + 1]; t += tile) {
      const int left = step.query_start[b + 1] - t;
      const int tokens = left < tile ? left : tile;
      int low = 0x7fffffff, high = 0;
      for (int i = t; i < t + tokens; ++i) {
        const int end = step.positions[i] + 1;
        const int begin = args.window > 0 && end > args.window ? end - args.window : 0;
        low = begin < low ? begin : low;
        high = end > high ? end : high;
      }
      const int chunks = (high - 1) / kChunk - low / kChunk + 1;
      const std::int64_t cost = static_cast<std::int64_t>(high - low + 32) * (tokens + 2);
      for (int h = 0; h < args.heads.num_heads;) {
        const int rest = per_kv_head - h % per_kv_head;
        const int n = rest < heads ? rest : heads;
        if (!visit(ItemRef{b, t, tokens, h, n}, chunks, cost * n)) return;
        h += n;
      }
    }
  }
}

struct AttentionPlan {
  std::int64_t items = 0, chunks = 0, rows = 0, cost = 0;  // rows: of all chunks
  bool by_chunks = false;
};

constexpr int kFewItems = 4;  // per thread: fewer than that are dealt out by chunks

OCTAVO_INLINE AttentionPlan plan_attention(const AttentionArgs& args, const Task& task) {
  AttentionPlan plan;
  for_each_item(args, *task.step, [&](const ItemRef& item, int chunks, std::int64_t cost) {
    plan.items += 1;
    plan.chunks += chunks;
    plan.rows += static_cast<std::int64_t>(chunks) * item.tokens * item.heads;
    plan.cost += cost;
    return true;
  });
  plan.by_chunks = task.num_threads > 1 && plan.items <= kFewItems * task.num_threads &&
                   plan.chunks > plan.items && plan.rows <= args.partial_rows;
  return plan;
}

// Whether `attention_merge` has anything to do. Looks at a few items of large steps only.
inline bool attention_is_split(const AttentionArgs& args, const Task& task) {
  std::int64_t items = 0;
  for_each_item(args, *task.step, [&](const ItemRef&, int, std::int64_t) {
    return ++items <= kFewItems * task.num_threads;
  });
  return items <= kFewItems * task.num_threads && plan_attention(args, task).by_chunks;
}

OCTAVO_INLINE ChunkPages chunk_pages(const AttentionArgs& args, const StepView& step,
                                     const ItemRef& item, int lowest, int highest, int chunk) {
  const GroupView& group = step.groups[args.kv.group];
  const std::int32_t* table = group.block_tables + item.request * group.table_ld;
  const int kv_head = item.head / (args.heads.num_heads / args.heads.num_kv_heads);
  const std::int64_t head = kv_head * args.kv.head_bytes;
  const int low = lowest - chunk * kChunk, high = highest - chunk * kChunk;
  ChunkPages result;
  result.first = low > 0 ? low / kBlockSize : 0;
  result.last = high < kChunk ? (high + kBlockSize - 1) / kBlockSize : kChunkBlocks;
  for (int b = result.first; b < result.last; ++b) {
    result.pages[b] = kv_page(args.kv, table[chunk * kChunkBlocks + b]) + head;
  }
  return result;
}

// Pages of an item's first chunk.
OCTAVO_INLINE ChunkPages first_pages(const AttentionArgs& args, const StepView& step,
                                     const ItemRef& item) {
  const int end = step.positions[item.token] + 1;
  const int begin = args.window > 0 && end > args.window ? end - args.window : 0;
  return chunk_pages(args, step, item, begin, end, begin / kChunk);
}

// `next` follows on the same thread: its first pages are fetched on the way.
template <class E>
void attend_item(const AttentionArgs& args, const StepView& step, const ItemRef& ref,
                 const ItemRef* next, AttentionItem<E>& item) {
  item.start(args, step, ref);
  int chunk = item.lowest / kChunk;
  ChunkPages pages = chunk_pages(args, step, ref, item.lowest, item.highest, chunk);
  for (;; ++chunk) {
    ChunkPages ahead;
    const bool last = (chunk + 1) * kChunk >= item.highest;
    if (!last) {
      ahead = chunk_pages(args, step, ref, item.lowest, item.highest, chunk + 1);
    } else if (next) {
      ahead = first_pages(args, step, *next);
    }
    item.attend_chunk(args, chunk, pages, last && !next ? nullptr : &ahead);
    item.merge_chunk(chunk);
    if (last) break;
    pages = ahead;
  }
  item.finish(args);
}

// An item (or chunk) belongs to the thread in whose range of cost its middle lies.
struct CostRange {
  std::int64_t begin, end, at = 0;

  OCTAVO_INLINE CostRange(std::int64_t total, const Task& task)
      : begin(total * task.thread / task.num_threads),
        end(total * (task.thread + 1) / task.num_threads) {}

  OCTAVO_INLINE bool take(std::int64_t cost) {
    const std::int64_t middle = at + cost / 2;
    at += cost;
    return middle >= begin && middle < end;
  }
  OCTAVO_INLINE bool done() const { return at >= end; }
};

template <class E>
OCTAVO_INLINE void attend_items(const AttentionArgs& args, const Task& task,
                                const AttentionPlan& plan) {
  AttentionItem<E> item(task.scratch, args.heads.head_dim);
  CostRange range(plan.cost, task);
  ItemRef pending{-1, 0, 0, 0, 0};
  for_each_item(args, *task.step, [&](const ItemRef& ref, int, std::int64_t cost) {
    if (range.take(cost)) {
      if (pending.request >= 0) attend_item<E>(args, *task.step, pending, &ref, item);
      pending = ref;
    }
    return !range.done();
  });
  if (pending.request >= 0) attend_item<E>(args, *task.step, pending, nullptr, item);
}

template <class E>
OCTAVO_INLINE void attend_chunks(const AttentionArgs& args, const Task& task,
                                 const AttentionPlan& plan) {
  AttentionItem<E> item(task.scratch, args.heads.head_dim);
  CostRange range(plan.chunks, task);
  std::int64_t row = 0;
  for_each_item(args, *task.step, [&](const ItemRef& ref, int chunks, std::int64_t) {
    bool started = false;
    for (int c = 0; c < chunks; ++c, row += ref.tokens * ref.heads) {
      if (!range.take(1)) continue;
      if (!started) item.start(args, *task.step, ref);
      started = true;
      const int chunk = item.lowest / kChunk + c;
      const ChunkPages pages = chunk_pages(args, *task.step, ref, item.lowest, item.highest, chunk);
      item.attend_chunk(args, chunk, pages, nullptr);
      const AttentionPartials& to = *args.partials;
      for (int i = 0; i < item.rows; ++i) {
        to.max[row + i] = item.chunk_max[i];
        to.sum[row + i] = item.chunk_sum[i];
        __builtin_memcpy(to.out + (row + i) * item.ld, item.chunk_out + i * item.ld,
                         sizeof(float) * item.ld);
      }
    }
    return !range.done();
  });
}

template <class E>
void attention(const AttentionArgs& args, const Task& task) {
  const AttentionPlan plan = plan_attention(args, task);
  if (plan.by_chunks) {
    attend_chunks<E>(args, task, plan);
  } else {
    attend_items<E>(args, task, plan);
  }
  const int width = args.heads.num_heads * args.heads.head_dim;
  int begin, end;
  split(task.rows, 1, task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    typename E::T* out = row_of<typename E::T>(*args.out, row);
    for (int j = width; j < round_up(width, kColumnPad); ++j) out[j] = 0;
  }
}

// After a barrier: merges what was dealt out by chunks.
template <class E>
void attention_merge(const AttentionArgs& args, const Task& task) {
  const AttentionPlan plan = plan_attention(args, task);
  if (!plan.by_chunks) return;
  AttentionItem<E> item(task.scratch, args.heads.head_dim);
  CostRange range(plan.items, task);
  std::int64_t row = 0;
  for_each_item(args, *task.step, [&](const ItemRef& ref, int chunks, std::int64_t) {
    const std::int64_t rows = ref.tokens * ref.heads;
    if (range.take(1)) {
      item.start(args, *task.step, ref);
      const AttentionPartials& from = *args.partials;
      for (int c = 0; c < chunks; ++c) {
        const int chunk = item.lowest / kChunk + c;
        for (int i = 0; i < item.rows; ++i) {
          item.chunk_max[i] = from.max[row + c * rows + i];
          item.chunk_sum[i] = from.sum[row + c * rows + i];
        }
        __builtin_memcpy(item.chunk_out, from.out + (row + c * rows) * item.ld,
                         sizeof(float) * item.ld * rows);
        item.merge_chunk(chunk);
      }
      item.finish(args);
    }
    row += chunks * rows;
    return !range.done();
  });
}

inline std::int64_t attention_scratch(const HeadShape& heads) {
  return AttentionItem<ElemF32>::bytes(heads.head_dim);
}

}  // namespace
}  // namespace octavo
