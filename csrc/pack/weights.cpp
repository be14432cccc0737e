#include "pack/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxDim = 1 << 30;
constexpr int kHalfPanel = kPanel / 2;
constexpr std::int64_t kTableRows = 64;  // per task

bool is_quantized(WeightFormat format) {
  return format != WeightFormat::kF32 && format != WeightFormat::kBf16;
}

float to_float(bf16 x) {
  const std::uint32_t u = static_cast<std::uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>) return x;
  if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, float>) return to_bf16(x);
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, bf16>) return to_float(x);
}

// `count` source rows into neighbouring columns of one panel, in bands of k that stay in the L1
// cache: first a row's band is converted, then its kStep-tuples are dealt out.
template <class To, class From, int kStep>
void pack_columns(const From* src, std::int64_t ld, int count, std::int64_t k, To* out) {
  constexpr std::int64_t kBand = 64;
  static_assert(kBand % kStep == 0);
  for (std::int64_t band = 0; band < k; band += kBand) {
    const std::int64_t size = std::min(kBand, k - band);
    To* panel = out + band * kPanel;
    for (int c = 0; c < count; ++c) {
      const From* row = src + c * ld + band;
      To converted[kBand] = {};
      for (std::int64_t i = 0; i < size; ++i) converted[i] = convert<To>(row[i]);
      for (std::int64_t i = 0; i < size; i += kStep) {  // a last tuple is padded with zeros
        std::memcpy(panel + i * kPanel + c * kStep, converted + i, kStep * sizeof(To));
      }
    }
  }
}

template <class To, int kStep>
void pack_columns(const SourceRows& rows, std::int64_t first, int count, To* out) {
  if (rows.dtype == DType::kF32) {
    const float* src = static_cast<const float*>(rows.data) + first * rows.ld;
    pack_columns<To, float, kStep>(src, rows.ld, count, rows.columns, out);
  } else {
    const bf16* src = static_cast<const bf16*>(rows.data) + first * rows.ld;
    pack_columns<To, bf16, kStep>(src, rows.ld, count, rows.columns, out);
  }
}

template <class To>
void copy_row(const SourceRows& rows, std::int64_t row, To* out) {
  if (rows.dtype == DType::kF32) {
    const float* src = static_cast<const float*>(rows.data) + row * rows.ld;
    for (std::int64_t i = 0; i < rows.columns; ++i) out[i] = convert<To>(src[i]);
  } else {
    const bf16* src = static_cast<const bf16*>(rows.data) + row * rows.ld;
    for (std::int64_t i = 0; i < rows.columns; ++i) out[i] = convert<To>(src[i]);
  }
}

void check_dims(std::int64_t rows, std::int64_t columns) {
  require(rows > 0 && rows < kMaxDim && columns > 0 && columns < kMaxDim,
          "weight dimensions must be in 1…2^30");
}

}  // namespace

bf16 to_bf16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  const std::uint32_t quiet_nan = (u >> 16) | 0x40, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return static_cast<bf16>(x != x ? quiet_nan : rounded);
}

std::int64_t element_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

PackedLinear::PackedLinear(WeightHeap& heap, WeightFormat format, std::int64_t n, std::int64_t k,
                           bool gated, bool bias)
    : gated_(gated) {
  check_dims(n, k);
  require(!gated || n % 2 == 0, "a gated weight needs as many gate rows as up rows");
  const WeightTraits& traits = traits_of(format);
  const bool quantized = is_quantized(format);
  const std::int64_t columns = gated ? round_to(n / 2, kHalfPanel) * 2 : round_to(n, kPanel);
  const std::int64_t step = quantized                       ? std::max(kColumnPad, traits.group)
                            : format == WeightFormat::kBf16 ? 2
                                                            : 1;
  weight_.format = format;
  weight_.n = static_cast<int>(n);
  weight_.k = static_cast<int>(k);
  weight_.k_padded = static_cast<int>(round_to(k, step));
  weight_.num_panels = static_cast<int>(columns / kPanel);
  weight_.panel_bytes = quantized ? quantized_panel_bytes(traits, weight_.k_padded)
                                  : std::int64_t{kPanel} * weight_.k_padded * traits.bits / 8;
  panels_ = heap.allocate(weight_.num_panels * weight_.panel_bytes);
  weight_.panels = panels_.data;
  if (quantized && traits.scale_bytes == 0) scales_.assign(columns, 0.0f);
  weight_.scales = scales_.empty() ? nullptr : scales_.data();
  if (bias) bias_.assign(columns, 0.0f);
  weight_.bias = bias ? bias_.data() : nullptr;
}

std::int64_t PackedLinear::bytes() const {
  const std::size_t floats = scales_.size() + bias_.size();
  return panels_.bytes + static_cast<std::int64_t>(floats * sizeof(float));
}

void PackedLinear::unload() {
  panels_ = {};
  weight_.panels = nullptr;
}

void PackedLinear::swap(PackedLinear& other) {
  require(weight_.format == other.weight_.format && gated_ == other.gated_ &&
              weight_.n == other.weight_.n && weight_.k == other.weight_.k &&
              bias_.size() == other.bias_.size(),
          "linear weights that are swapped must have one format and one shape");
  std::swap(weight_, other.weight_);
  std::swap(panels_, other.panels_);
  std::swap(scales_, other.scales_);
  std::swap(bias_, other.bias_);
}

std::int64_t PackedLinear::column_of(std::int64_t row) const {
  if (!gated_) return row;
  const std::int64_t half = weight_.n / 2;
  const std::int64_t i = row % half;
  return i / kHalfPanel * kPanel + i % kHalfPanel + (row < half ? 0 : kHalfPanel);
}

std::vector<PackedLinear::Run> PackedLinear::runs_of(std::int64_t first, std::int64_t rows) const {
  std::vector<Run> runs;
  for (std::int64_t i = 0; i < rows;) {
    const std::int64_t column = column_of(first + i);
    int count = 1;
    while (i + count < rows && (column + count) % kPanel != 0 &&
           column_of(first + i + count) == column + count) {
      ++count;
    }
    runs.push_back({i, column, count});
    i += count;
  }
  return runs;
}

// A task of pack(run, panel) for every run.
template <class Pack>
void PackedLinear::pack_runs(PackTasks& tasks, std::int64_t first, std::int64_t rows,
                             const Pack& pack) {
  require(is_loaded(), "this linear weight is unloaded");
  for (const Run& run : runs_of(first, rows)) {
    char* panel = panels_.data + run.column / kPanel * weight_.panel_bytes;
    tasks.add(panel, [pack, run, panel] { pack(run, panel); });
  }
}

void PackedLinear::quantize_run(const SourceRows& rows, const Run& run, char* panel) {
  std::vector<float> values(round_to(rows.columns, kQuad));
  for (int i = 0; i < run.count; ++i) {
    const std::int64_t column = run.column + i;
    copy_row(rows, run.source + i, values.data());
    quantize_row(traits_of(weight_.format), values.data(), rows.columns,
                 static_cast<int>(column % kPanel), panel,
                 scales_.empty() ? nullptr : &scales_[column]);
  }
}

void PackedLinear::put_rows(PackTasks& tasks, std::int64_t first, const SourceRows& rows) {
  require(
      rows.columns == weight_.k && first >= 0 && rows.rows >= 0 && first + rows.rows <= weight_.n,
      "rows do not fit the linear weight");
  pack_runs(tasks, first, rows.rows,
            [this, rows](const Run& run, char* panel) { pack_run(rows, run, panel); });
}

void PackedLinear::pack_run(const SourceRows& rows, const Run& run, char* panel) {
  const std::int64_t c = run.column % kPanel;
  if (weight_.format == WeightFormat::kF32) {
    pack_columns<float, 1>(rows, run.source, run.count, reinterpret_cast<float*>(panel) + c);
  } else if (weight_.format == WeightFormat::kBf16) {
    pack_columns<bf16, 2>(rows, run.source, run.count, reinterpret_cast<bf16*>(panel) + c * 2);
  } else {
    quantize_run(rows, run, panel);
  }
}

void PackedLinear::put_blocks(PackTasks& tasks, std::int64_t first, const SourceBlocks& blocks) {
  require(blocks.columns() == weight_.k && first >= 0 && blocks.rows >= 0 &&
              first + blocks.rows <= weight_.n,
          "rows do not fit the linear weight");
  pack_runs(tasks, first, blocks.rows, [this, blocks](const Run& run, char* panel) {
    const BlockFormat& format = *blocks.format;
    const WeightTraits& traits = traits_of(weight_.format);
    const std::int64_t k = weight_.k;
    if (!can_hold(traits, format)) {  // a panel's rows at a time: their values stay in the cache
      const std::unique_ptr<float[]> values(new float[run.count * k]);
      blocks.dequantize_rows(run.source, run.count, values.get());
      return pack_run({values.get(), DType::kF32, run.count, k, k}, {0, run.column, run.count},
                      panel);
    }
    for (int i = 0; i < run.count; ++i) {
      pack_blocks(traits, format, blocks.row(run.source + i), blocks.blocks_per_row,
                  static_cast<int>(run.column % kPanel) + i, panel);
    }
  });
}

void PackedLinear::put_bias(std::int64_t first, const float* bias, std::int64_t count) {
  require(!bias_.empty(), "this linear weight has no bias");
  require(first >= 0 && count >= 0 && first + count <= weight_.n, "bias does not fit the weight");
  for (std::int64_t i = 0; i < count; ++i) bias_[column_of(first + i)] = bias[i];
}

PackedTable::PackedTable(WeightHeap& heap, DType dtype, std::int64_t rows, std::int64_t columns)
    : dtype_(dtype), rows_(rows), columns_(columns), ld_(round_to(columns, kColumnPad)) {
  check_dims(rows, columns);
  data_ = heap.allocate(rows * ld_ * element_bytes(dtype));
}

void PackedTable::swap(PackedTable& other) {
  require(dtype_ == other.dtype_ && rows_ == other.rows_ && columns_ == other.columns_,
          "embedding tables that are swapped must have one format and one shape");
  std::swap(data_, other.data_);
}

void PackedTable::check_rows(std::int64_t first, std::int64_t rows, std::int64_t columns) const {
  require(columns == columns_ && first >= 0 && rows >= 0 && first + rows <= rows_,
          "rows do not fit the embedding table");
  require(is_loaded(), "this table is unloaded");
}

void PackedTable::put_row(const SourceRows& rows, std::int64_t row, std::int64_t to) {
  if (dtype_ == DType::kF32) {
    copy_row(rows, row, reinterpret_cast<float*>(data_.data) + to * ld_);
  } else {
    copy_row(rows, row, reinterpret_cast<bf16*>(data_.data) + to * ld_);
  }
}

// Tasks of put(begin, end): of the source's rows from `begin` to before `end`.
template <class Put>
void PackedTable::put_all(PackTasks& tasks, std::int64_t first, std::int64_t rows, const Put& put) {
  for (std::int64_t begin = 0; begin < rows; begin += kTableRows) {
    const std::int64_t end = std::min(begin + kTableRows, rows);
    tasks.add(data_.data + (first + begin) * ld_ * element_bytes(dtype_),
              [put, begin, end] { put(begin, end); });
  }
}

void PackedTable::put_rows(PackTasks& tasks, std::int64_t first, const SourceRows& rows) {
  check_rows(first, rows.rows, rows.columns);
  put_all(tasks, first, rows.rows, [this, first, rows](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) put_row(rows, i, first + i);
  });
}

void PackedTable::put_blocks(PackTasks& tasks, std::int64_t first, const SourceBlocks& blocks) {
  check_rows(first, blocks.rows, blocks.columns());
  put_all(tasks, first, blocks.rows, [this, first, blocks](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(columns_);
    for (std::int64_t i = begin; i < end; ++i) {
      blocks.dequantize_rows(i, 1, values.data());
      put_row({values.data(), DType::kF32, 1, columns_, columns_}, 0, first + i);
    }
  });
}

PackedVector::PackedVector(const float* data, std::int64_t size) : size_(size) {
  check_dims(1, size);
  const auto item = static_cast<std::int64_t>(sizeof(float));
  region_ = std::make_unique<Region>(round_to(size, kColumnPad) * item, false);
  std::copy(data, data + size, reinterpret_cast<float*>(region_->data()));
}

void PackedVector::swap(PackedVector& other) {
  require(size_ == other.size_, "vectors that are swapped must have one size");
  std::swap(region_, other.region_);
}

RopeTable::RopeTable(const float* cos, const float* sin, std::int64_t positions, std::int64_t half,
                     bool interleaved)
    : positions_(positions),
      region_(2 * positions * round_to(half, 16) * static_cast<std::int64_t>(sizeof(float)),
              false) {
  check_dims(positions, half);
  require(half <= kMaxHeadDim / 2, "rotary_dim is larger than any head");
  const std::int64_t ld = round_to(half, 16);
  float* out = reinterpret_cast<float*>(region_.data());
  for (std::int64_t p = 0; p < positions; ++p) {
    std::copy(cos + p * half, cos + (p + 1) * half, out + p * ld);
    std::copy(sin + p * half, sin + (p + 1) * half, out + (positions + p) * ld);
  }
  view_ = {out, out + positions * ld, ld, static_cast<int>(2 * half), interleaved};
}

}  // namespace octavo
