#include "runtime/roofline.h"

#include <nanobind/stl/string.h>

#include "bind/bindings.h"
#include "runtime/error.h"

namespace octavo {
namespace {

PeakKind parse_kind(const std::string& name) {
  if (name == "f32") return PeakKind::kF32;
  if (name == "bf16") return PeakKind::kBf16;
  if (name == "int8") return PeakKind::kInt8;
  throw Error("peak kind '" + name + "' must be f32, bf16 or int8");
}

}  // namespace

void bind_roofline(nb::module_& m) {
  m.def("measure_bandwidth", measure_bandwidth, nb::arg("threads"),
        nb::arg("bytes") = std::int64_t{512} << 20, nb::arg("seconds") = 0.5,
        nb::call_guard<nb::gil_scoped_release>(), "Bytes per second read from memory.");
  m.def(
      "measure_peak",
      [](const std::string& kind, int threads, double seconds) {
        return measure_peak(parse_kind(kind), threads, seconds);
      },
      nb::arg("kind"), nb::arg("threads"), nb::arg("seconds") = 0.2,
      nb::call_guard<nb::gil_scoped_release>(), "Operations per second in registers.");
}

}  // namespace octavo
