#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <new>

#include "bind/bindings.h"
#include "dispatch/dispatch.h"
#include "runtime/error.h"

namespace octavo {
namespace {

void set_python_error(const char* name, const char* message) {
  nb::object type = nb::module_::import_("octavo.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const Error& e) {
    set_python_error("KernelError", e.what());
  } catch (const MemoryError& e) {
    set_python_error("MemoryPlanError", e.what());
  } catch (const std::bad_alloc&) {
    set_python_error("MemoryPlanError", "out of memory in a native call");
  }
}

}  // namespace

Device::Device(int num_threads, std::vector<int> cpus, const std::string& isa_cap) {
  KernelSelection selection = select_kernels(isa_cap);
  isa_tiers = std::move(selection.tiers);
  kernels = std::make_shared<const KernelTable>(selection.table);
  pool = std::make_shared<ThreadPool>(num_threads, std::move(cpus));
  sampler = std::make_unique<Sampler>(pool, kernels);
}

DType parse_dtype(const char* name) {
  if (std::strcmp(name, "float32") == 0) return DType::kF32;
  if (std::strcmp(name, "bfloat16") == 0) return DType::kBf16;
  throw Error(std::string("dtype '") + name + "' must be float32 or bfloat16");
}

SourceRows source_rows(const AnyMatrix& array) {
  SourceRows rows{};
  if (array.dtype() == nb::dtype<float>()) {
    rows.dtype = DType::kF32;
  } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
    rows.dtype = DType::kBf16;
  } else {
    throw Error("a matrix must be float32, or uint16 for bfloat16");
  }
  rows.data = array.data();
  rows.rows = static_cast<std::int64_t>(array.shape(0));
  rows.columns = static_cast<std::int64_t>(array.shape(1));
  rows.ld = array.stride(0);
  require(rows.columns <= 1 || array.stride(1) == 1, "a matrix must have contiguous rows");
  require(rows.rows <= 1 || rows.ld >= rows.columns, "a matrix must not have overlapping rows");
  return rows;
}

}  // namespace octavo

NB_MODULE(_cpu, m) {
  using namespace octavo;
  m.doc() = "CPU kernels of Octavo. Use octavo.kernels.cpu.";
  nb::set_leak_warnings(false);  // at exit, memory goes with the process
  nb::register_exception_translator(translate);

  auto device = nb::class_<Device>(m, "Device", "Threads, kernels and weights of one back end.");
  device.def(nb::init<int, std::vector<int>, const std::string&>(), nb::arg("num_threads"),
             nb::arg("cpus"), nb::arg("isa_cap"));
  device.def_ro("isa_tiers", &Device::isa_tiers,
                "Kernel tiers in force, lowest first; the last is the one that runs.");
  device.def_prop_ro("num_threads", [](const Device& d) { return d.pool->num_threads(); });
  device.def(
      "close", [](Device& d) { d.pool->close(); }, nb::call_guard<nb::gil_scoped_release>(),
      "Join the threads. May be called twice.");
  bind_sampler(device);
  bind_weights(m);
  bind_program(m);
  bind_roofline(m);
  bind_step_gather(m);
}
