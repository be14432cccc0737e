#pragma once

#include <stdexcept>
#include <string>

namespace octavo {

// A refused argument; becomes octavo.errors.KernelError.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory that the system does not give; becomes octavo.errors.MemoryPlanError.
class MemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool condition, const char* message) {
  if (!condition) throw Error(message);
}

}  // namespace octavo
