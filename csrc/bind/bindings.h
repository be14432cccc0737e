// The only code that knows Python. Every call that does real work releases the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <vector>

#include "pack/weights.h"
#include "runtime/sampler.h"
#include "runtime/thread_pool.h"

namespace octavo {

namespace nb = nanobind;

using Int32Array = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Matrix = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

// What a back end owns beside its KV cache: threads and weights.
struct Device {
  Device(int num_threads, std::vector<int> cpus, const std::string& isa_cap);

  std::vector<std::string> isa_tiers;
  std::shared_ptr<const KernelTable> kernels;
  std::shared_ptr<ThreadPool> pool;
  WeightHeap heap;
  std::unique_ptr<Sampler> sampler;
};

DType parse_dtype(const char* name);

// A float32 or uint16 (bfloat16 bits) matrix with contiguous rows.
SourceRows source_rows(const AnyMatrix& array);

void bind_weights(nb::module_& m);
void bind_program(nb::module_& m);
void bind_roofline(nb::module_& m);
void bind_step_gather(nb::module_& m);
void bind_sampler(nb::class_<Device>& device);

}  // namespace octavo
