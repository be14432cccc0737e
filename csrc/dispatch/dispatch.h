// The kernel table of this process.
#pragma once

#include <string>
#include <vector>

#include "api/kernel_table.h"

namespace octavo {

// Tiers that were laid over each other, in order; the last is the one in force. OCTAVO_CPU_ISA caps
// them. Throws std::invalid_argument where it names no tier.
const std::vector<std::string>& active_tiers();

const KernelTable& kernels();

}  // namespace octavo
