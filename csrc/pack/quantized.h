// Columns of quantized panels (api/types.h, LinearWeight), from rows of GGUF blocks or of floats.
#pragma once

#include "api/types.h"
#include "pack/block_formats.h"

namespace octavo {

constexpr std::int64_t kQuad = 4;  // floats that are read at once

const WeightTraits& traits_of(WeightFormat format);

// Bytes of one panel of a quantized format.
std::int64_t quantized_panel_bytes(const WeightTraits& traits, std::int64_t k_padded);

// Whether every value of the block format is a value of `traits`.
bool can_hold(const WeightTraits& traits, const BlockFormat& format);

// One row of blocks into one column of a panel, exactly. Needs can_hold.
void pack_blocks(const WeightTraits& traits, const BlockFormat& format, const std::uint8_t* row,
                 std::int64_t num_blocks, int column, char* panel);

// One row of k floats, followed by zeros up to a whole quad, into one column of a panel, rounded to
// the format: symmetrically by the largest magnitude, or, where there are minima, to scale and
// minimum of least squares. `scale` is set for formats with one scale per row.
void quantize_row(const WeightTraits& traits, const float* row, std::int64_t k, int column,
                  char* panel, float* scale);

}  // namespace octavo
