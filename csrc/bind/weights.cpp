#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind/bindings.h"
#include "pack/block_formats.h"
#include "runtime/error.h"
#include "runtime/kv_cache.h"

namespace octavo {

using ByteMatrix = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

namespace {

WeightFormat parse_weight_format(const char* name) {
  for (int i = 0; i < kNumWeightFormats; ++i) {
    if (std::strcmp(name, kWeightTraits[i].name) == 0) return static_cast<WeightFormat>(i);
  }
  throw Error(std::string("unknown weight format '") + name + "'");
}

SourceBlocks source_blocks(const char* name, const ByteMatrix& rows) {
  const BlockFormat* format = find_block_format(name);
  require(format != nullptr, "unknown block format");
  const auto row_bytes = static_cast<std::int64_t>(rows.shape(1));
  require(row_bytes % format->bytes == 0, "rows are not whole blocks");
  return {format, rows.data(), static_cast<std::int64_t>(rows.shape(0)), row_bytes / format->bytes};
}

}  // namespace

void bind_weights(nb::module_& m) {
  // Its tasks' weights and sources stay alive as long as the object.
  nb::class_<PackTasks>(m, "PackTasks")
      .def(nb::init<>())
      .def(
          "run", [](PackTasks& self, Device& d) { self.run(*d.pool); }, nb::arg("device"),
          nb::call_guard<nb::gil_scoped_release>());

  nb::class_<PackedLinear>(m, "PackedLinear")
      .def(
          "__init__",
          [](PackedLinear* self, Device& d, const char* format, std::int64_t n, std::int64_t k,
             bool gated, bool bias) {
            new (self) PackedLinear(d.heap, parse_weight_format(format), n, k, gated, bias);
          },
          nb::arg("device"), nb::arg("format"), nb::arg("n"), nb::arg("k"), nb::arg("gated"),
          nb::arg("bias"))
      .def_prop_ro("nbytes", &PackedLinear::bytes)
      .def("unload", &PackedLinear::unload)
      .def("swap", &PackedLinear::swap)
      .def(
          "put_rows",
          [](PackedLinear& self, PackTasks& tasks, std::int64_t first, const AnyMatrix& rows) {
            self.put_rows(tasks, first, source_rows(rows));
          },
          nb::arg("tasks"), nb::arg("first"), nb::arg("rows").noconvert(), nb::keep_alive<2, 1>(),
          nb::keep_alive<2, 4>())
      .def(
          "put_blocks",
          [](PackedLinear& self, PackTasks& tasks, std::int64_t first, const char* format,
             const ByteMatrix& rows) {
            self.put_blocks(tasks, first, source_blocks(format, rows));
          },
          nb::arg("tasks"), nb::arg("first"), nb::arg("format"), nb::arg("rows").noconvert(),
          nb::keep_alive<2, 1>(), nb::keep_alive<2, 5>())
      .def(
          "put_bias",
          [](PackedLinear& self, std::int64_t first, const FloatArray& bias) {
            self.put_bias(first, bias.data(), static_cast<std::int64_t>(bias.size()));
          },
          nb::arg("first"), nb::arg("bias").noconvert());

  nb::class_<PackedTable>(m, "PackedTable")
      .def(
          "__init__",
          [](PackedTable* self, Device& d, const char* dtype, std::int64_t rows,
             std::int64_t columns) {
            new (self) PackedTable(d.heap, parse_dtype(dtype), rows, columns);
          },
          nb::arg("device"), nb::arg("dtype"), nb::arg("rows"), nb::arg("columns"))
      .def_prop_ro("nbytes", &PackedTable::bytes)
      .def("unload", &PackedTable::unload)
      .def("swap", &PackedTable::swap)
      .def(
          "put_rows",
          [](PackedTable& self, PackTasks& tasks, std::int64_t first, const AnyMatrix& rows) {
            self.put_rows(tasks, first, source_rows(rows));
          },
          nb::arg("tasks"), nb::arg("first"), nb::arg("rows").noconvert(), nb::keep_alive<2, 1>(),
          nb::keep_alive<2, 4>())
      .def(
          "put_blocks",
          [](PackedTable& self, PackTasks& tasks, std::int64_t first, const char* format,
             const ByteMatrix& rows) {
            self.put_blocks(tasks, first, source_blocks(format, rows));
          },
          nb::arg("tasks"), nb::arg("first"), nb::arg("format"), nb::arg("rows").noconvert(),
          nb::keep_alive<2, 1>(), nb::keep_alive<2, 5>());

  nb::class_<PackedVector>(m, "PackedVector")
      .def(
          "__init__",
          [](PackedVector* self, const FloatArray& data) {
            new (self) PackedVector(data.data(), static_cast<std::int64_t>(data.size()));
          },
          nb::arg("data").noconvert())
      .def("unload", &PackedVector::unload)
      .def("swap", &PackedVector::swap);

  using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  nb::class_<RopeTable>(m, "RopeTable")
      .def(
          "__init__",
          [](RopeTable* self, const FloatMatrix& cos, const FloatMatrix& sin, bool interleaved) {
            require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1),
                    "cos and sin must have the same shape");
            new (self) RopeTable(cos.data(), sin.data(), static_cast<std::int64_t>(cos.shape(0)),
                                 static_cast<std::int64_t>(cos.shape(1)), interleaved);
          },
          nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("interleaved"));

  nb::class_<KvCache>(m, "KvCache")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), nb::arg("num_tensors"),
           nb::arg("num_blocks"), nb::arg("page_bytes"))
      .def("copy_blocks", &KvCache::copy_blocks, nb::arg("copies"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("clear_blocks", &KvCache::clear_blocks, nb::arg("blocks"),
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
