// Recording, continued: what goes in and out of a program, and what it does with the world.
#include <algorithm>
#include <cstring>

#include "runtime/error.h"
#include "runtime/program.h"

namespace octavo {
namespace {

// A thread's rows.
std::int64_t share_begin(const Task& task) {
  return static_cast<std::int64_t>(task.rows) * task.thread / task.num_threads;
}
std::int64_t share_end(const Task& task) {
  return static_cast<std::int64_t>(task.rows) * (task.thread + 1) / task.num_threads;
}

}  // namespace

int Program::input(const std::string& name, std::int64_t width, DType dtype) {
  if (const auto known = inputs_.find(name); known != inputs_.end()) {
    const ValueInfo& v = info(known->second);
    if (v.width != width || v.dtype != dtype) {
      throw Error("input '" + name + "' is declared twice, differently");
    }
    return known->second;
  }
  const int out = add_value({Rows::kTokens, width, dtype, Format::kInput});
  const Buffer* to = &values_[out]->buffer;
  inputs_[name] = out;
  const auto run = [this, name, to, width, dtype](const Task& task) {
    const StepArrays::Extra& x = current_->extra.at(name);
    const std::int64_t item = element_bytes(dtype);
    const std::int64_t padding = round_to(width, kColumnPad) - width;
    for (std::int64_t i = share_begin(task); i < share_end(task); ++i) {
      char* row = static_cast<char*>(to->data) + i * to->ld * item;
      if (x.dtype == dtype) {
        const char* src = static_cast<const char*>(x.data) + i * x.ld * item;
        std::memcpy(row, src, static_cast<std::size_t>(width * item));
      } else {
        const float* src = static_cast<const float*>(x.data) + i * x.ld;
        std::transform(src, src + width, reinterpret_cast<bf16*>(row), to_bf16);
      }
      std::memset(row + width * item, 0, static_cast<std::size_t>(padding * item));
    }
  };
  add_op("input", Rows::kTokens, {out}, run).row_local = false;
  return out;
}

void Program::output(const std::string& name, int x) {
  require(!finished_, "this program is finished");
  for (const auto& [known, id] : taps_) {
    if (known == name) throw Error("output '" + name + "' is declared twice");
  }
  require(taps_.size() < kMaxTaps, "a program has at most 63 outputs");
  value(x).is_tap = true;
  taps_.emplace_back(name, x);
}

int Program::select_rows(int x) {
  const ValueInfo from = read(x).info;
  require(from.rows == Rows::kTokens, "select_rows reads a value with rows TOKENS");
  const int out = add_value({Rows::kLogits, from.width, from.dtype, from.format});
  const Buffer* src = &values_[x]->buffer;
  const Buffer* dst = &values_[out]->buffer;
  const std::int64_t item = element_bytes(from.dtype);
  const std::int64_t bytes = round_to(from.width, kColumnPad) * item;
  const auto run = [src, dst, item, bytes](const Task& task) {
    for (std::int64_t i = share_begin(task); i < share_end(task); ++i) {
      const std::int64_t row = task.step->logit_rows[i];
      std::memcpy(static_cast<char*>(dst->data) + i * dst->ld * item,
                  static_cast<const char*>(src->data) + row * src->ld * item,
                  static_cast<std::size_t>(bytes));
    }
  };
  add_op("select_rows", Rows::kLogits, {out}, run).row_local = false;
  return out;
}

int Program::host_call(int x, std::function<void(const HostRows&)> call) {
  const ValueInfo info = read(x).info;
  const int out = add_value(info);
  const Value* from = values_[x].get();
  const Value* to = values_[out].get();
  const std::int64_t item = element_bytes(info.dtype);
  add_op("copy", info.rows, {out}, [=](const Task& task) {
    for (std::int64_t i = share_begin(task); i < share_end(task); ++i) {
      std::memcpy(static_cast<char*>(to->buffer.data) + i * to->buffer.ld * item,
                  static_cast<const char*>(from->buffer.data) + i * from->buffer.ld * item,
                  static_cast<std::size_t>(round_to(info.width, kColumnPad) * item));
    }
  }).row_local = false;
  read(out);
  Op& op = add_op("host_call", info.rows, {out}, [=, call = std::move(call)](const Task& task) {
    if (task.thread != 0) return;
    try {
      call({to->buffer.data, task.rows, info.width, to->buffer.ld, info.dtype});
    } catch (...) {
      fail();
    }
  });
  op.row_local = false;
  op.has_effects = true;
  op.can_fail = true;
  return out;
}

void Program::use_counter(int counter) {
  require(!finished_, "this program is finished");
  require(counter >= 0, "counters are numbered from 0");
  counters_->grow(counter + 1);
}

void Program::signal(int counter) {
  use_counter(counter);
  Op& op = add_op("signal", Rows::kTokens, {}, [this, counter](const Task& task) {
    if (task.thread == 0) counters_->add(counter, 1);
  });
  op.row_local = false;
  op.has_effects = true;
}

void Program::wait(int counter) {
  use_counter(counter);
  Op& op = add_op("wait", Rows::kTokens, {}, [this, counter](const Task& task) {
    if (task.thread != 0) return;
    try {
      counters_->wait(counter, current_->targets[counter], -1.0);
    } catch (...) {
      fail();
    }
  });
  op.row_local = false;
  op.has_effects = true;
  op.can_fail = true;
  op.is_needed = [this](const Task&) { return current_->targets != nullptr; };
}

}  // namespace octavo
