// Which kernels run on this machine.
#pragma once

#include <string>
#include <vector>

#include "api/kernel_table.h"

namespace octavo {

struct KernelSelection {
  KernelTable table{};
  std::vector<std::string> tiers;  // laid over each other, in order; the last is the one in force
};

// All tiers that the machine supports, up to `cap` where it is not empty. Throws
// std::invalid_argument where `cap` names no tier.
KernelSelection select_kernels(const std::string& cap);

}  // namespace octavo
