#include "runtime/program.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bindings.h"
#include "runtime/error.h"

namespace octavo {
namespace {

// An argument of `run` as it came last. The same array is not taken apart again: to do that takes
// microseconds where all caches are cold, as they are between two forwards.
template <class Array>
class LastArray {
 public:
  const Array& of(nb::handle source) {
    if (source.ptr() != source_.ptr()) {
      if (!nb::try_cast(source, array_, false)) throw nb::next_overload();  // becomes a TypeError
      source_ = nb::borrow(source);
    }
    return array_;
  }

 private:
  nb::object source_;
  Array array_;
};

// A program and the arrays of its last run.
struct BoundProgram : Program {
  using Program::Program;

  LastArray<Int32Array> token_ids, positions, query_start, seq_lens, logit_rows;
  std::vector<LastArray<Int32Matrix>> block_tables;
  std::vector<LastArray<Int32Array>> slots;
};

StepArrays::Array view(const Int32Array& a) {
  return {a.data(), static_cast<std::int64_t>(a.size())};
}

bool run(BoundProgram& self, nb::handle token_ids, nb::handle positions, nb::handle query_start,
         nb::handle seq_lens, const nb::list& block_tables, const nb::list& slot_mapping,
         nb::handle logit_rows, const std::map<std::string, AnyMatrix>& extra,
         const std::optional<std::vector<std::string>>& outputs,
         const std::optional<Int64Array>& counter_targets) {
  StepArrays step;
  step.wants_all = !outputs.has_value();
  if (outputs) step.wanted = *outputs;
  if (counter_targets) {
    step.targets = counter_targets->data();
    step.num_targets = static_cast<std::int64_t>(counter_targets->size());
  }
  step.token_ids = view(self.token_ids.of(token_ids));
  step.positions = view(self.positions.of(positions));
  step.query_start = view(self.query_start.of(query_start));
  step.seq_lens = view(self.seq_lens.of(seq_lens));
  step.logit_rows = view(self.logit_rows.of(logit_rows));
  self.block_tables.resize(nb::len(block_tables));
  self.slots.resize(nb::len(slot_mapping));
  for (std::size_t g = 0; g < self.block_tables.size(); ++g) {
    const Int32Matrix& table = self.block_tables[g].of(block_tables[g]);
    step.block_tables.push_back({table.data(), static_cast<std::int64_t>(table.shape(0)),
                                 static_cast<std::int64_t>(table.shape(1))});
  }
  for (std::size_t g = 0; g < self.slots.size(); ++g) {
    step.slots.push_back(view(self.slots[g].of(slot_mapping[g])));
  }
  for (const auto& [name, array] : extra) {
    const SourceRows rows = source_rows(array);
    step.extra[name] = {rows.data, rows.dtype, rows.rows, rows.columns, rows.ld};
  }
  const nb::gil_scoped_release release;
  return self.run(step);
}

template <class T>
nb::object tap_array(const Program::Tap& tap) {
  const std::size_t shape[2] = {static_cast<std::size_t>(tap.rows),
                                static_cast<std::size_t>(tap.width)};
  const std::int64_t strides[2] = {tap.ld, 1};
  auto* owner = new std::shared_ptr<Region>(tap.owner);
  nb::capsule capsule(owner,
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<Region>*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy, T>(const_cast<void*>(tap.data), 2, shape, capsule, strides));
}

nb::dict taps(const BoundProgram& self) {
  nb::dict result;
  for (const auto& [name, tap] : self.taps()) {
    result[name.c_str()] =
        tap.dtype == DType::kF32 ? tap_array<float>(tap) : tap_array<std::uint16_t>(tap);
  }
  return result;
}

template <class T>
nb::object host_array(const HostRows& rows) {
  const std::size_t shape[2] = {static_cast<std::size_t>(rows.rows),
                                static_cast<std::size_t>(rows.width)};
  const std::int64_t strides[2] = {rows.ld, 1};
  return nb::cast(nb::ndarray<nb::numpy, T>(rows.data, 2, shape, nb::none(), strides),
                  nb::rv_policy::reference);
}

// `function` is given a view of the rows, which is good for as long as it runs.
int host_call(BoundProgram& self, int x, const nb::callable& function) {
  return self.host_call(x, [function](const HostRows& rows) {
    const nb::gil_scoped_acquire acquire;
    function(rows.dtype == DType::kF32 ? host_array<float>(rows) : host_array<std::uint16_t>(rows));
  });
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGelu;
  throw Error("activation '" + name + "' must be silu, gelu_tanh or gelu");
}

void bind_recording(nb::class_<BoundProgram>& program) {
  program
      .def("input", [](BoundProgram& self, const std::string& name, std::int64_t width,
                       const char* dtype) { return self.input(name, width, parse_dtype(dtype)); })
      .def("output", &Program::output)
      .def("embedding", [](BoundProgram& self, std::shared_ptr<PackedTable> table,
                           float scale) { return self.embedding(std::move(table), scale); })
      .def("embedding", [](BoundProgram& self, std::shared_ptr<PackedLinear> table,
                           float scale) { return self.embedding(std::move(table), scale); })
      .def("select_rows", &Program::select_rows)
      .def(
          "rms_norm",
          [](BoundProgram& self, int x, std::shared_ptr<PackedVector> weight, int residual,
             float eps,
             float offset) { return self.rms_norm(x, std::move(weight), residual, eps, offset); },
          "residual -1: rms_norm, else rms_norm_add.")
      .def("linear", &Program::linear, "residual -1: linear, else linear_add.")
      .def("gated_linear",
           [](BoundProgram& self, int x, std::shared_ptr<PackedLinear> weight,
              const std::string& activation) {
             return self.gated_linear(x, std::move(weight), parse_activation(activation));
           })
      .def(
          "qkv_rope_store",
          [](BoundProgram& self, int x, std::shared_ptr<PackedLinear> weight, const KvLayer& kv,
             const HeadShape& heads, std::shared_ptr<RopeTable> rope, const HeadNorm* norm) {
            return self.qkv_rope_store(x, std::move(weight), kv, heads, std::move(rope),
                                       norm ? *norm : HeadNorm{});
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("kv"), nb::arg("heads"), nb::arg("rope").none(),
          nb::arg("norm").none())
      .def("attention", &Program::attention, nb::arg("q"), nb::arg("kv"), nb::arg("heads"),
           nb::arg("scale"), nb::arg("window"), nb::arg("soft_cap"), nb::arg("sinks").none(),
           "window 0, soft_cap 0: none.")
      .def("layer_norm", &Program::layer_norm, nb::arg("x"), nb::arg("weight"),
           nb::arg("bias").none(), nb::arg("eps"))
      .def("logits", &Program::logits, "soft_cap 0: none.")
      .def("argmax", &Program::argmax, "soft_cap 0: none.")
      .def("host_call", host_call)
      .def("signal", &Program::signal)
      .def("wait", &Program::wait)
      .def("finish", &Program::finish);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<KvLayer>(m, "KvLayer")
      .def(
          "__init__",
          [](KvLayer* self, std::shared_ptr<KvCache> cache, std::int64_t tensor, std::int64_t group,
             std::int64_t num_kv_heads, std::int64_t head_dim) {
            new (self) KvLayer{std::move(cache), tensor, group, num_kv_heads, head_dim};
          },
          nb::arg("cache"), nb::arg("tensor"), nb::arg("group"), nb::arg("num_kv_heads"),
          nb::arg("head_dim"));
  nb::class_<HeadShape>(m, "HeadShape")
      .def(
          "__init__",
          [](HeadShape* self, int num_heads, int num_kv_heads, int head_dim) {
            new (self) HeadShape{num_heads, num_kv_heads, head_dim};
          },
          nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"));
  nb::class_<HeadNorm>(m, "HeadNorm")
      .def(
          "__init__",
          [](HeadNorm* self, std::shared_ptr<PackedVector> q, std::shared_ptr<PackedVector> k,
             float eps,
             float offset) { new (self) HeadNorm{std::move(q), std::move(k), eps, offset}; },
          nb::arg("q"), nb::arg("k"), nb::arg("eps"), nb::arg("offset"));

  nb::class_<Counters>(m, "Counters", "What a program signals, and waits for.")
      .def("__len__", &Counters::size)
      .def("value", &Counters::value)
      .def("add", &Counters::add)
      .def("wait", &Counters::wait, nb::call_guard<nb::gil_scoped_release>(),
           "seconds negative: never gives up.")
      .def("cancel", &Counters::cancel);

  auto program = nb::class_<BoundProgram>(m, "Program", "A recorded forward.");
  program.def(
      "__init__",
      [](BoundProgram* self, Device& d, const char* act, std::int64_t max_tokens,
         std::int64_t max_requests, std::int64_t max_logit_rows, std::int64_t max_position) {
        new (self) BoundProgram(d.pool, d.kernels, parse_dtype(act),
                                StepLimits{max_tokens, max_requests, max_logit_rows, max_position});
      },
      nb::arg("device"), nb::arg("act"), nb::arg("max_tokens"), nb::arg("max_requests"),
      nb::arg("max_logit_rows"), nb::arg("max_position"));
  bind_recording(program);
  program.def("run", run, nb::arg("token_ids"), nb::arg("positions"), nb::arg("query_start"),
              nb::arg("seq_lens"), nb::arg("block_tables"), nb::arg("slot_mapping"),
              nb::arg("logit_rows"), nb::arg("extra").noconvert(), nb::arg("outputs").none(),
              nb::arg("counter_targets").noconvert().none(),
              "One step; whether `taps` are the views that they were after the last. Releases the "
              "GIL.");
  program.def("taps", taps, "Named outputs of the last run: views, overwritten by the next.");
  program.def_prop_ro("counters", &Program::counters);
  program.def_prop_ro("nbytes", &Program::bytes);
  program.def("set_profiling", &Program::set_profiling);
  program.def("profile", &Program::profile, "(op, seconds) in order, then ('wait', seconds).");
}

}  // namespace octavo
