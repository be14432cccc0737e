// Weights in the layout that kernels read, filled row by row at load time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/types.h"
#include "pack/pack_tasks.h"
#include "pack/quantized.h"
#include "runtime/memory.h"

namespace octavo {

std::int64_t element_bytes(DType dtype);

bf16 to_bf16(float x);  // round to nearest even; NaN stays NaN

// Rows of a checkpoint tensor, float32 or bfloat16 bits.
struct SourceRows {
  const void* data;
  DType dtype;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t ld;
};

// Rows of GGUF blocks, one after the other.
struct SourceBlocks {
  const BlockFormat* format;
  const std::uint8_t* data;
  std::int64_t rows;
  std::int64_t blocks_per_row;

  std::int64_t columns() const { return blocks_per_row * format->values; }
  const std::uint8_t* row(std::int64_t i) const {
    return data + i * blocks_per_row * format->bytes;
  }
  // `count` rows from `first` on, as float32.
  void dequantize_rows(std::int64_t first, std::int64_t count, float* out) const {
    dequantize(*format, row(first), count * blocks_per_row, out);
  }
};

// Programs read weights through these objects, in every step anew: `swap` puts other weights of the
// same kind and shape under a recorded program, `unload` frees the memory until something is
// swapped in. Neither while a program runs.
class Packed {
 public:
  virtual ~Packed() = default;
  virtual bool is_loaded() const = 0;
  virtual void unload() = 0;
};

class PackedLinear : public Packed {
 public:
  PackedLinear(WeightHeap& heap, WeightFormat format, std::int64_t n, std::int64_t k, bool gated,
               bool bias);

  WeightFormat format() const { return weight_.format; }
  bool gated() const { return gated_; }
  const LinearWeight& weight() const { return weight_; }
  std::int64_t bytes() const;
  bool is_loaded() const override { return panels_.data != nullptr; }
  void unload() override;
  void swap(PackedLinear& other);

  // Adds the tasks that pack logical output rows [first, first + rows.rows). Gated: first all gate
  // rows, then all up rows. Quantized formats round (pack/quantized.h). Weight and source stay as
  // they are until the tasks have run.
  void put_rows(PackTasks& tasks, std::int64_t first, const SourceRows& rows);
  // The same for rows of GGUF blocks: repacked where the format holds them exactly.
  void put_blocks(PackTasks& tasks, std::int64_t first, const SourceBlocks& blocks);
  void put_bias(std::int64_t first, const float* bias, std::int64_t count);

 private:
  // Rows that are neighbours in one panel.
  struct Run {
    std::int64_t source, column;
    int count;
  };

  std::int64_t column_of(std::int64_t row) const;  // among num_panels * 32
  std::vector<Run> runs_of(std::int64_t first, std::int64_t rows) const;
  template <class Pack>
  void pack_runs(PackTasks& tasks, std::int64_t first, std::int64_t rows, const Pack& pack);
  void pack_run(const SourceRows& rows, const Run& run, char* panel);
  void quantize_run(const SourceRows& rows, const Run& run, char* panel);

  bool gated_;
  LinearWeight weight_{};
  Allocation panels_;
  std::vector<float> scales_;
  std::vector<float> bias_;
};

class PackedTable : public Packed {
 public:
  PackedTable(WeightHeap& heap, DType dtype, std::int64_t rows, std::int64_t columns);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  TableWeight table() const { return {data_.data, ld_}; }
  std::int64_t bytes() const { return data_.bytes; }
  bool is_loaded() const override { return data_.data != nullptr; }
  void unload() override { data_ = {}; }
  void swap(PackedTable& other);

  // As for PackedLinear.
  void put_rows(PackTasks& tasks, std::int64_t first, const SourceRows& rows);
  void put_blocks(PackTasks& tasks, std::int64_t first, const SourceBlocks& blocks);

 private:
  void check_rows(std::int64_t first, std::int64_t rows, std::int64_t columns) const;
  template <class Put>
  void put_all(PackTasks& tasks, std::int64_t first, std::int64_t rows, const Put& put);
  void put_row(const SourceRows& rows, std::int64_t row, std::int64_t to);

  DType dtype_;
  std::int64_t rows_, columns_, ld_;
  Allocation data_;
};

// float32, padded with zeros to whole vectors.
class PackedVector : public Packed {
 public:
  explicit PackedVector(const float* data, std::int64_t size);

  std::int64_t size() const { return size_; }
  const float* data() const { return reinterpret_cast<const float*>(region_->data()); }
  bool is_loaded() const override { return region_ != nullptr; }
  void unload() override { region_.reset(); }
  void swap(PackedVector& other);

 private:
  std::int64_t size_;
  std::unique_ptr<Region> region_;
};

class RopeTable {
 public:
  RopeTable(const float* cos, const float* sin, std::int64_t positions, std::int64_t half,
            bool interleaved);

  std::int64_t positions() const { return positions_; }
  const RopeView& view() const { return view_; }

 private:
  std::int64_t positions_;
  Region region_;
  RopeView view_{};
};

}  // namespace octavo
